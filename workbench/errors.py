"""Every error that workbench raises on purpose.

::

    WorkbenchError                    code · message · hint; system_error
    ├── OptionsError (ValueError)     invalid_options
    ├── StateError                    state_forbidden · state_corrupt · disk_full · confirmation_required
    ├── WorkspaceError                workspace_missing · workspace_unreadable · workspace_forbidden ·
    │                                 workspace_unsupported · workspace_replaced
    ├── OverlayError                  overlay_busy · layer_unsupported · overlay_mounted · session_exists
    ├── SandboxError                  engine_unavailable · backend_unavailable · image_unavailable · sandbox_failed ·
    │   │                             sandbox_lost · sandbox_busy · sandbox_unsupported · keeper_failed ·
    │   │                             job_not_found · shell_ended
    │   └── CommandError              command_not_found · command_not_executable · invalid_directory · spawn_failed
    ├── CheckpointError               checkpoint_not_found · checkpoint_exists · checkpoint_failed · store_corrupt ·
    │                                 checkpoint_raced · nothing_to_redo
    └── CommitError                   digest_required · digest_unknown · digest_changed · risky_paths · not_landable ·
        │                             commit_failed · commit_incomplete · commit_unknown · check_failed ·
        │                             unresolved_conflicts · no_repository · branch_exists · policy_denied ·
        │                             policy_waits · storage_read_only
        └── ConflictError             conflict (with `paths`)

A code is stable: programs may match on it. A message says what happened in one sentence, a hint what to do next.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


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
