"""Removing what nobody has used for long: sessions, what commits keep to be reverted, workspaces of which nothing is left.

First it's looked what there is to remove, then it's done, each session under its overlay's lock and only if it's still as it
was when looked at. The room that its checkpoints take in the store is free once that is repacked.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace

from workbench.checkpoints import restore
from workbench.checkpoints.journey import is_under_way
from workbench.checkpoints.store import CheckpointStore
from workbench.errors import OverlayError, WorkbenchError
from workbench.review import landed
from workbench.review.audit import AuditLog
from workbench.review.pending import pending
from workbench.sandbox import leftovers
from workbench.sessions import GIT, Session, WorkspaceSessions, survey, survey_session
from workbench.state import Standing, StateDirectory, WorkspaceDirectory
from workbench.unfinished import is_half_made
from workbench.vfs import lockfile
from workbench.vfs.measure import measure
from workbench.vfs.session import OverlayDirectory

_LOCK_TIMEOUT_S = 30.0
IN_USE = "It's in use by another process."
USED_MEANWHILE = "It was used meanwhile."
UNFINISHED = "A commit or a rewind of it was cut short: the next command in it completes that."


@dataclass(frozen=True, slots=True)
class Old:
    """A session that is old enough to be removed. `reason` says why it's kept all the same, empty where it isn't."""

    workspace: WorkspaceSessions
    session: Session
    reason: str = ""


@dataclass(frozen=True, slots=True)
class OldCommit:
    """A commit that landed before anything that could still be rewound to; `size` is what its directory takes."""

    workspace: WorkspaceSessions
    commit_id: str
    size: int


@dataclass(frozen=True, slots=True)
class Prunable:
    """What there is to remove, and in `kept` the sessions that are as old and stay.

    `emptied` are the workspaces of which nothing is left then, and whose real directory is gone. `failed` are errors of
    what couldn't be looked at, or not be removed.
    """

    sessions: tuple[Old, ...] = ()
    kept: tuple[Old, ...] = ()
    commits: tuple[OldCommit, ...] = ()
    emptied: tuple[WorkspaceSessions, ...] = ()
    failed: tuple[WorkbenchError | OSError, ...] = ()

    @property
    def held(self) -> tuple[Old, ...]:
        """Those to remove that hold something which was never landed."""
        return tuple(old for old in self.sessions if old.session.holds)

    @property
    def size(self) -> int:
        """What removing it frees at once, in bytes."""
        return sum(old.session.upper.size for old in self.sessions) + sum(commit.size for commit in self.commits)


def prunable(
    state: StateDirectory, before_ns: int, *, root: bytes | None = None, with_changes: bool = False
) -> Prunable:
    """What wasn't used since a moment, in ns since the epoch; with `root` only what belongs to that real directory.

    A session that holds anything not landed is kept, unless `with_changes`. Nothing is changed. Raises OSError.
    """
    found = [_look(workspace, before_ns, with_changes) for workspace in survey(state, root=root, limit=None)]
    return Prunable(
        tuple(old for each in found for old in each.sessions),
        tuple(old for each in found for old in each.kept),
        tuple(commit for each in found for commit in each.commits),
        tuple(workspace for each in found for workspace in each.emptied),
        tuple(error for each in found for error in each.failed),
    )


def prune(state: StateDirectory, plan: Prunable, before_ns: int) -> Prunable:
    """Remove what `prunable` found with the same moment; what was removed, and why the rest wasn't.

    What has changed since it was looked at is kept.
    """
    sessions: list[Old] = []
    kept, failed = list(plan.kept), list(plan.failed)
    for old in plan.sessions:
        try:
            reason = remove_session(state, old, before_ns)
        except (WorkbenchError, OSError) as error:
            failed.append(error)
        else:
            (kept if reason else sessions).append(replace(old, reason=reason))
            if not reason:
                _note(old.workspace, session=old.session.name, counts=removed_counts(old.session))
    commits = []
    for commit in plan.commits:
        try:
            if _is_free(commit, before_ns):
                _remove(state, os.path.join(commit.workspace.directory, "commits", commit.commit_id))
                commits.append(commit)
                _note(commit.workspace, commit_id=commit.commit_id)
        except (WorkbenchError, OSError) as error:
            failed.append(error)
    emptied = []
    for workspace in plan.emptied:
        try:
            if remove_workspace(state, workspace):
                emptied.append(workspace)
        except (WorkbenchError, OSError) as error:
            failed.append(error)
    return Prunable(tuple(sessions), tuple(kept), tuple(commits), tuple(emptied), tuple(failed))


def removed_counts(session: Session) -> dict[str, int]:
    """What goes with a session, for the audit log."""
    counts = {"file": session.upper.files, "checkpoint": session.checkpoints}
    return {what: count for what, count in counts.items() if count}


def _note(
    workspace: WorkspaceSessions, *, session: str = "", commit_id: str = "", counts: dict[str, int] | None = None
) -> None:
    AuditLog(workspace.directory).append("prune", session=session, commit_id=commit_id, counts=counts)


def _look(workspace: WorkspaceSessions, before_ns: int, with_changes: bool) -> Prunable:
    old = [
        Old(workspace, session, why_kept(workspace, session, with_changes))
        for session in workspace.sessions
        if session.touched_ns < before_ns
    ]
    sessions = tuple(each for each in old if not each.reason)
    kept = tuple(each for each in old if each.reason)
    if workspace.standing is None:
        return Prunable(sessions, kept)
    gone = {each.session.name for each in sessions}
    try:
        commits = tuple(_old_commits(workspace, before_ns, gone))
        emptied = (workspace,) if _is_empty(workspace, gone, {each.commit_id for each in commits}, before_ns) else ()
    except (WorkbenchError, OSError) as error:
        return Prunable(sessions, kept, failed=(error,))
    return Prunable(sessions, kept, commits, emptied)


def why_kept(workspace: WorkspaceSessions, session: Session, with_changes: bool) -> str:
    """Why a session can't be removed as it is, empty where it can. Raises OSError, StateError."""
    if session.problem or workspace.standing is None:
        return session.problem or workspace.problem
    if session.running:
        return "Its sandbox runs."
    if session.busy:
        return IN_USE
    if is_unfinished(workspace, session):
        return UNFINISHED
    if session.holds and not with_changes:
        return "It holds what was never landed."
    return ""


def is_unfinished(workspace: WorkspaceSessions, session: Session) -> bool:
    """Whether a commit or a rewind of a session was cut short. Raises OSError, StateError."""
    commits = os.path.join(workspace.directory, "commits")
    return (
        pending(commits)
        or restore.pending(os.path.join(session.directory, "upper")) is not None
        or is_under_way(session.directory)
        or any(committed.session == session.name for committed in landed.unsettled(commits))
    )


def remove_session(state: StateDirectory, old: Old, before_ns: int) -> str:
    """Remove a session that wasn't used since a moment, in ns since the epoch; empty, or why it was kept.

    Raises StateError, SandboxError, OSError.
    """
    workspace = WorkspaceDirectory.read(old.workspace.directory)
    overlay = OverlayDirectory.open(old.session.directory)
    with contextlib.ExitStack() as held:
        try:
            held.callback(overlay.take_lock().close)
            is_half_made(overlay.path)
        except OverlayError:
            return IN_USE
        now = survey_session(workspace, old.session.name)
        if now.problem or now.touched_ns >= before_ns or (now.holds and not old.session.holds):
            return now.problem or USED_MEANWHILE
        locks = _conversation_locks(now)
        for path in locks:
            with contextlib.suppress(FileNotFoundError):
                fd = lockfile.take(path)
                if fd < 0:
                    return IN_USE
                held.callback(os.close, fd)
        _take_away(state, workspace, overlay, now.name)
        for path in locks:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    return ""


def remove_unfinished(state: StateDirectory, workspace: WorkspaceDirectory, name: str) -> bool:
    """Remove a session whose import was cut short; whether it was one.

    Raises OverlayError (overlay_busy) while somebody makes it, StateError, SandboxError, OSError.
    """
    path = workspace.overlay_path(name)
    if not is_half_made(path):
        return False
    overlay = OverlayDirectory.open(path)
    with overlay.lock(_LOCK_TIMEOUT_S):
        if is_half_made(path):
            _take_away(state, workspace, overlay, name)
    return True


def _take_away(state: StateDirectory, workspace: WorkspaceDirectory, overlay: OverlayDirectory, name: str) -> None:
    image = overlay.record().image
    leftovers.unmount(overlay, state.id)
    # First: a session without checkpoints can be pruned again, checkpoints without a session can't.
    if os.path.exists(os.path.join(workspace.checkpoints, "HEAD")):
        with CheckpointStore(workspace.checkpoints) as store:
            for kept in (f"{name}/{GIT}", name):
                store.drop_session(kept)
    conversation = workspace.conversation_path(name)
    if os.path.isdir(conversation):
        _remove(state, conversation)
    leftovers.remove_tree(state.set_aside(overlay.path), image=image)


def _conversation_locks(session: Session) -> list[str]:
    """The files that whoever is at the session's conversation holds locked: its run, or what changes it otherwise."""
    directory, name = os.path.split(session.conversation)
    with contextlib.suppress(FileNotFoundError):
        kinds = sorted(kind for kind in os.listdir(directory) if kind.startswith("."))
        paths = [os.path.join(directory, kind, f"{name}.lock") for kind in kinds]
        return [path for path in paths if os.path.isfile(path)]
    return []


def _old_commits(workspace: WorkspaceSessions, before_ns: int, gone: set[str]) -> Iterator[OldCommit]:
    """The commits older than anything that a session other than those `gone` can be rewound to."""
    directory = os.path.join(workspace.directory, "commits")
    if pending(directory):
        return
    earliest = _earliest_checkpoint(workspace.directory, gone)
    for commit_id in landed.landed_ids(directory):
        committed = landed.load(directory, commit_id)
        # What a person wrote, and there was no other place for, stays for good.
        if committed.created_ns < before_ns and committed.created_ns < earliest and not committed.kept:
            yield OldCommit(workspace, commit_id, measure(committed.directory).size)


def _is_free(commit: OldCommit, before_ns: int) -> bool:
    """Whether a commit is still one that can go, now that the sessions have gone that could."""
    return any(found.commit_id == commit.commit_id for found in _old_commits(commit.workspace, before_ns, set()))


def _earliest_checkpoint(directory: str, gone: set[str]) -> int:
    """When the first checkpoint was taken that there still is, in ns; the end of time where there is none."""
    path = os.path.join(directory, "checkpoints.git")
    if not os.path.exists(os.path.join(path, "HEAD")):
        return 1 << 63
    with CheckpointStore(path) as store:
        times = [
            checkpoint.created_at
            for session in store.sessions()
            if session.removesuffix(f"/{GIT}") not in gone
            for checkpoint in store.list(session)
        ]
    return min(times, default=1 << 63)


def is_empty(workspace: WorkspaceSessions) -> bool:
    """Whether the real directory of a workspace is gone, and nothing is kept for it. Raises WorkbenchError, OSError."""
    return _is_empty(workspace, set(), set(), 1 << 63)


def _is_empty(workspace: WorkspaceSessions, gone: set[str], commits: set[str], before_ns: int) -> bool:
    """Whether a workspace has gone for long, and nothing is left of it without those sessions and commits."""
    if workspace.standing not in (Standing.MISSING, Standing.LET_GO):
        return False
    directory = os.path.join(workspace.directory, "commits")
    left = set(os.listdir(directory)) if os.path.isdir(directory) else set()
    return (
        os.stat(os.path.join(workspace.directory, "workspace.json")).st_mtime_ns < before_ns
        and {session.name for session in workspace.sessions} <= gone
        and {name for name in left if not name.startswith(".")} <= commits
        and not pending(directory)
        and _earliest_checkpoint(workspace.directory, gone) == 1 << 63
    )


def remove_workspace(state: StateDirectory, found: WorkspaceSessions) -> bool:
    """Remove a workspace that is empty; False where it isn't, or not any more. Raises WorkbenchError, OSError."""
    workspace = WorkspaceDirectory.read(found.directory)
    now = replace(found, standing=workspace.standing(), sessions=())
    if workspace.sessions() or not is_empty(now):
        return False
    workspace.forget_path()
    _remove(state, workspace.path)
    return True


def _remove(state: StateDirectory, path: str) -> None:
    leftovers.remove_tree(state.set_aside(path))
