"""Removing one session: its overlay, its checkpoints and its conversation, whatever became of its directory."""

from __future__ import annotations

import os

from anyio import to_thread

from workbench import pruning
from workbench.checkpoints import upkeep
from workbench.checkpoints.store import CheckpointStore
from workbench.errors import CommitError, SandboxError, SessionBusyError, StateError, WorkbenchError
from workbench.pruning import Old
from workbench.review.audit import AuditLog
from workbench.sandbox.client import KeeperClient
from workbench.sessions import Session, WorkspaceSessions, survey_session
from workbench.state import StateDirectory, WorkspaceDirectory
from workbench.vfs import paths


def require_removable(workspace: WorkspaceSessions, session: Session, *, with_changes: bool = False) -> None:
    """See whether a session, looked at whole, can be removed; a sandbox that runs is no matter yet.

    Raises StateError (state_corrupt, changes_not_landed), CommitError (commit_incomplete), SessionBusyError, OSError.
    """
    if not session.readable or workspace.standing is None:
        raise StateError(
            f"Session {session.name} is damaged. {session.problem or workspace.problem}",
            hint="A command in it, or `workbench doctor --fix`, may put that right.",
        )
    if session.busy and not session.running:
        raise _busy(workspace, session)
    if pruning.is_unfinished(workspace, session):
        raise CommitError(
            f"A commit or a rewind in the workspace of session {session.name} was cut short.",
            code="commit_incomplete",
            hint=f"The next command in {paths.display(workspace.root)} completes it: `workbench status` is one.",
        )
    if session.holds and not with_changes:
        raise StateError(
            f"Session {session.name} holds what was never landed.",
            code="changes_not_landed",
            hint=f"`workbench sessions show {session.name}` says what to do; --with-changes removes it all the same.",
        )


async def delete(
    state: StateDirectory, workspace: WorkspaceSessions, session: Session, *, with_changes: bool = False
) -> None:
    """Remove a session, if it's still as it was when it was looked at whole. Its sandbox ends, if nothing runs in it.

    The audit log says so. What its commits keep to be reverted stays, and the contents of its checkpoints do until `collect`.
    A removal that is cut short can be done again. Raises as `require_removable`, and SessionBusyError also where it was used
    since, SandboxError.
    """
    require_removable(workspace, session, with_changes=with_changes)
    if session.running:
        await _stop(workspace, session)
    await to_thread.run_sync(_remove, state, workspace, session)


def collect(workspace: WorkspaceSessions) -> None:
    """Take what no checkpoint needs any more out of the store of a workspace. Raises CheckpointError, OSError."""
    directory = os.path.join(workspace.directory, "checkpoints.git")
    if os.path.exists(os.path.join(directory, "HEAD")):
        with CheckpointStore(directory) as store:
            upkeep.collect(store)


def _remove(state: StateDirectory, workspace: WorkspaceSessions, session: Session) -> None:
    now = survey_session(WorkspaceDirectory.read(workspace.directory), session.name)
    if now.upper != session.upper:
        raise _busy(workspace, session, pruning.USED_MEANWHILE)
    if reason := pruning.remove_session(state, Old(workspace, now), now.touched_ns + 1):
        raise _busy(workspace, session, reason)
    AuditLog(workspace.directory).append("delete", session=session.name, counts=pruning.removed_counts(session))


async def _stop(workspace: WorkspaceSessions, session: Session) -> None:
    client = await KeeperClient.connect(session.directory)
    if client is None:
        return
    async with client:
        try:
            await client.stop_if_idle()
        except SandboxError as error:
            if error.code != "sandbox_busy":
                raise
            raise _busy(workspace, session, error.message) from error


def _busy(workspace: WorkspaceSessions, session: Session, why: str = pruning.IN_USE) -> WorkbenchError:
    return SessionBusyError(
        f"Session {session.name} can't be removed. {why}",
        hint=f"`workbench ps -w {paths.display(workspace.root)} --session {session.name}` lists what runs in it.",
    )
