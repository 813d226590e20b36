"""Every error that workbench raises on purpose.

::

    WorkbenchError                    code · message · hint; system_error
    ├── OptionsError (ValueError)     invalid_options · session_ambiguous
    ├── StateError                    state_forbidden · state_corrupt · disk_full · confirmation_required ·
    │                                 changes_not_landed
    ├── WorkspaceError                workspace_missing · workspace_unreadable · workspace_forbidden ·
    │                                 workspace_unsupported · workspace_replaced
    ├── OverlayError                  overlay_busy · layer_unsupported · overlay_mounted · session_exists
    ├── SandboxError                  engine_unavailable · backend_unavailable · image_unavailable · sandbox_failed ·
    │   │                             sandbox_lost · sandbox_busy · sandbox_unsupported · keeper_failed ·
    │   │                             job_not_found · shell_ended · disk_full
    │   └── CommandError              command_not_found · command_not_executable · invalid_directory · spawn_failed
    ├── CheckpointError               checkpoint_not_found · checkpoint_exists · checkpoint_failed · store_corrupt ·
    │                                 checkpoint_raced · nothing_to_redo
    ├── CommitError                   digest_required · digest_unknown · digest_changed · risky_paths · not_landable ·
    │   │                             commit_failed · commit_incomplete · commit_unknown · check_failed ·
    │   │                             unresolved_conflicts · no_repository · branch_exists · policy_denied ·
    │   │                             policy_waits · storage_read_only · history_unavailable · nothing_to_commit
    │   └── ConflictError             conflict (with `paths`)
    ├── SessionError                  no_conversation
    │   ├── SessionNotFoundError      session_not_found
    │   ├── SessionExistsError        session_exists
    │   ├── SessionBusyError          session_busy
    │   ├── SessionClosedError        session_closed
    │   ├── SessionChangedError       session_changed
    │   ├── MessageExistsError        message_exists
    │   ├── HistoryNotRewindableError history_not_rewindable
    │   ├── SessionGuardError         the guard's, such as quota_exceeded; retry_after_ms
    │   └── RewindError               message_not_found · invalid_rewind_target · session_busy
    ├── RunFailedError                run_timeout, or its cause's; run_id · message_id · end_reason · usage
    ├── ModelNotFoundError            model_not_found · no_default_model
    ├── DuplicateToolError            duplicate_tool
    ├── ModelRequestError             invalid_request · auth · no_credit · rate_limited · overloaded ·
    │                                 context_overflow · incomplete_stream · network;
    │                                 provider · status · retryable · retry_after_ms · usage
    ├── ToolError                     unknown_tool · invalid_arguments · tool_denied · tool_panicked · tool_timeout ·
    │                                 tool_failed
    ├── ApprovalError                 approval_not_found · approval_resolved · approval_changed
    ├── HistoryError                  history_failed
    ├── LockError                     lock_failed
    ├── StoreError                    store_failed
    ├── CapabilityUnsupportedError    capability_unsupported
    ├── TranscriptError               transcript_unreadable · transcript_empty
    ├── ServerError                   address_unavailable · extra_missing
    └── OperationCancelledError       cancelled

    OSError, of the filesystem        errno · filename · code:
                                      already_exists · busy · changed_meanwhile · disk_full · invalid · is_a_directory ·
                                      is_a_symlink · leads_out · name_too_long · no_such_attribute · not_a_directory ·
                                      not_empty · not_found · not_permitted · not_supported · read_only · system_error

Over HTTP there are also: unauthorized · host_refused · origin_refused · not_found · method_not_allowed · internal_error.

A code is stable: programs may match on it. A message says what happened in one sentence, a hint what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from workbench.protocol.messages import Usage
    from workbench.protocol.runs import EndReason


class WorkbenchError(Exception):
    """The root of the tree: a stable `code`, a `message` of one sentence and, where there is one, a next step."""

    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.code = code or self.default_code
        self.message = message
        self.hint = hint


class OptionsError(WorkbenchError, ValueError):
    """What was asked for makes no sense: a wrong option, an impossible path."""

    default_code = "invalid_options"


class StateError(WorkbenchError):
    """The state directory can't be used, or a file in it can't be read."""

    default_code = "state_corrupt"


class WorkspaceError(WorkbenchError):
    """The real directory can't be a workspace, or isn't the one it was."""

    default_code = "workspace_unsupported"


class OverlayError(WorkbenchError):
    """The overlay is in somebody's hands, or its layers hold what we don't read."""

    default_code = "layer_unsupported"


class SandboxError(WorkbenchError):
    """The sandbox can't be started, or was lost."""

    default_code = "sandbox_failed"


class CommandError(SandboxError):
    """A command never ran: it isn't there, can't be executed, or its directory is missing."""

    default_code = "spawn_failed"


class CheckpointError(WorkbenchError):
    """A checkpoint can't be taken, found or read."""

    default_code = "checkpoint_failed"


class CommitError(WorkbenchError):
    """A commit is refused by a rule, or failed; nothing of it has landed unless the message says so.

    `paths` are those that it is about, relative to the workspace's root, where it is about some.
    """

    default_code = "commit_failed"

    def __init__(
        self, message: str, *, code: str | None = None, paths: Sequence[bytes] = (), hint: str | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.paths = tuple(paths)


class ConflictError(CommitError):
    """The real workspace changed meanwhile in `paths`, the conflicting ones of this commit; nothing was applied."""

    default_code = "conflict"


class SessionError(WorkbenchError):
    """A session can't do what was asked of it."""


class SessionNotFoundError(SessionError):
    """There is no session of this id."""

    default_code = "session_not_found"


class SessionExistsError(SessionError):
    """There is a session of this id already."""

    default_code = "session_exists"


class SessionBusyError(SessionError):
    """A run is in progress, and what was asked doesn't wait for it."""

    default_code = "session_busy"


class SessionClosedError(SessionError):
    """The session, or the manager that it belongs to, has been closed."""

    default_code = "session_closed"


class SessionChangedError(SessionError):
    """The session is no longer what it was, and what it holds now mustn't be replaced unseen."""

    default_code = "session_changed"


class MessageExistsError(SessionError):
    """The session has, or had, a message of this id."""

    default_code = "message_exists"


class HistoryNotRewindableError(SessionError):
    """The session's history is append-only: nothing can be taken back from it."""

    default_code = "history_not_rewindable"


class SessionGuardError(SessionError):
    """A guard vetoed a new session or a run; `retry_after_ms` is when it may be asked again, where it knows."""

    default_code = "quota_exceeded"

    def __init__(
        self, message: str, *, code: str | None = None, hint: str | None = None, retry_after_ms: float | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.retry_after_ms = retry_after_ms


class RewindError(SessionError):
    """A message can't be taken back."""

    default_code = "message_not_found"


class RunFailedError(WorkbenchError):
    """A run failed; the code is its cause's. `message_id` is that of the message that began it: it isn't in the transcript."""

    default_code = "run_timeout"

    def __init__(
        self,
        message: str,
        *,
        run_id: str,
        message_id: str | None,
        end_reason: EndReason,
        usage: Usage,
        code: str | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.run_id = run_id
        self.message_id = message_id
        self.end_reason = end_reason
        self.usage = usage


class ModelNotFoundError(WorkbenchError):
    """No model is registered under this id, or none is the default."""

    default_code = "model_not_found"


class DuplicateToolError(WorkbenchError):
    """A tool of this name is registered already."""

    default_code = "duplicate_tool"


class ModelRequestError(WorkbenchError):
    """A request to a model failed.

    `status` is the HTTP status where there was an answer, `retryable` whether the same request may succeed later, and
    `retry_after_ms` when, where the provider said so. `usage` is what the failed request was charged for, where known.
    """

    default_code = "invalid_request"

    def __init__(
        self,
        message: str,
        *,
        provider: str,
        code: str | None = None,
        status: int | None = None,
        retryable: bool = False,
        retry_after_ms: float | None = None,
        usage: Usage | None = None,
        hint: str | None = None,
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.provider = provider
        self.status = status
        self.retryable = retryable
        self.retry_after_ms = retry_after_ms
        self.usage = usage


class ToolError(WorkbenchError):
    """A call of a tool came to nothing. A run reports it to the model as the call's result and goes on."""

    default_code = "tool_panicked"


class ApprovalError(WorkbenchError):
    """An answer doesn't belong to an open request for approval."""

    default_code = "approval_not_found"


class HistoryError(WorkbenchError):
    """A history can't be read or written."""

    default_code = "history_failed"


class LockError(WorkbenchError):
    """The lock of a session can't be had."""

    default_code = "lock_failed"


class StoreError(WorkbenchError):
    """A store of sessions can't be read or written."""

    default_code = "store_failed"


class CapabilityUnsupportedError(WorkbenchError):
    """What was asked for isn't among what this one can do."""

    default_code = "capability_unsupported"


class OperationCancelledError(WorkbenchError):
    """A signal was cancelled without a reason of its own."""

    default_code = "cancelled"


class TranscriptError(WorkbenchError):
    """Another agent's session is there and can't be read, or has nothing in it to go on from."""

    default_code = "transcript_unreadable"


class ServerError(WorkbenchError):
    """The HTTP server can't be started."""

    default_code = "address_unavailable"


def described(error: BaseException) -> str:
    """An error of somebody else's code by its kind and its text, which may be one that can't be made."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001
        return f"{type(error).__name__}, which doesn't say what it is about"
