"""What was left over in a state directory, and around it, by processes that were killed and directories that went away.

Everything is told by our own records: the state directory's id on containers and volumes, an overlay's lock, a commit's
journal. What isn't certainly ours, or may still be wanted, is said, and left to a person. Doing it again is harmless.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workbench import pruning
from workbench.checkpoints import files, restore
from workbench.errors import CommitError, OverlayError, SandboxError, WorkbenchError
from workbench.review import landed, recovery
from workbench.sandbox import keepers, leftovers, runtime
from workbench.sessions import WorkspaceSessions, survey
from workbench.state import Standing, StateDirectory
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.session import OverlayDirectory
from workbench.workspace import Workspace

_STAGING = re.compile(rb"\.workbench-\d{8}-\d{6}-[0-9a-f]{6}")
_TEMPORARY = re.compile(r"\..+\.[0-9a-f]{16}\.tmp")
_MAKING_S = 60.0
"""Nobody takes so long to make a directory complete."""

_PRUNE = "`workbench prune --all --older-than AGE` removes what holds nothing."


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that was left over.

    `kind` is process, sandbox, commit, staging, overlay, workspace, removal, temporary, or unreadable for what can't be looked
    at; `finding` a sentence; `fix` what `mend` does about it, and where that is None what a person can do.
    """

    kind: str
    finding: str
    fix: str
    mend: Callable[[], object] | None = None


def leftovers_of(state: StateDirectory) -> list[Leftover]:
    """Everything left over, and nothing that somebody is at; what can't be looked at is among it.

    Nothing is changed, but that whoever opens a store sweeps it. Raises OSError where the state directory can't be read.
    """
    found: list[Leftover] = []
    handled: set[str] = set()
    _add(found, state.path, lambda: _processes(state))
    # First: looking at the checkpoints sweeps.
    for path in state.workspace_paths():
        _add(found, path, lambda path=path: _temporaries(path))  # type: ignore[misc]
    for workspace in survey(state, limit=1):
        for look in (
            lambda at: _sandboxes_of(state, at, handled),
            lambda at: _commits(state, at),
            lambda at: _half_made(state, at),
            lambda at: _gone(state, at),
        ):
            _add(found, _shown(workspace), lambda look=look, at=workspace: look(at))  # type: ignore[misc]
    _add(found, state.path, lambda: _unknown_sandboxes(state, handled))
    return [*found, *_half_removed(state)]


def _add(found: list[Leftover], where: str, look: Callable[[], Iterator[Leftover]]) -> None:
    try:
        found.extend(look())
    except WorkbenchError as error:
        found.append(Leftover("unreadable", f"{where} can't be looked at whole: {error.message}", error.hint or ""))
    except OSError as error:
        reason = error.strerror or str(error)
        found.append(Leftover("unreadable", f"{where} can't be looked at whole: {reason}.", "Look what stands there."))


def _processes(state: StateDirectory) -> Iterator[Leftover]:
    for keeper in keepers.lost(state.path):
        yield Leftover(
            "process",
            f"Process {keeper.pid} keeps a sandbox over {keeper.overlay_path}, which is gone.",
            "end it, with its sandbox",
            lambda keeper=keeper: keepers.end(keeper),  # type: ignore[misc]
        )


def _sandboxes_of(state: StateDirectory, workspace: WorkspaceSessions, handled: set[str]) -> Iterator[Leftover]:
    """What keepers that were killed left of the sandboxes of sessions that are there."""
    boot = leftovers.boot_id()
    for session in workspace.sessions:
        if session.busy or session.problem:
            continue
        overlay = OverlayDirectory(session.directory)
        mounted = any(mount.live and mount.boot_id in ("", boot) for mount in overlay.record().mounts)
        if mounted or runtime.find_socket(overlay.path) is not None:
            handled.add(overlay.path)
            yield Leftover(
                "sandbox",
                f"The keeper of session {session.name} of {_shown(workspace)} is gone, and what it had mounted may not be.",
                "unmount and remove its sandbox, and its socket",
                lambda overlay=overlay: _unmount(state, overlay),  # type: ignore[misc]
            )


def _unmount(state: StateDirectory, overlay: OverlayDirectory) -> None:
    with overlay.lock(1.0):
        leftovers.unmount(overlay, state.id)


def _unknown_sandboxes(state: StateDirectory, handled: set[str]) -> Iterator[Leftover]:
    """Containers and volumes that no record tells of."""
    try:
        found = leftovers.abandoned(state.path, state.id)
    except SandboxError as error:
        # Then there is nobody who could have any: doctor says what is missing.
        if error.code != "engine_unavailable":
            raise
        return
    for name, path in found.items():
        if path not in handled:
            yield Leftover(
                "sandbox",
                f"The sandbox {name} over {path} is nobody's any more.",
                "remove its container and volumes",
                lambda: leftovers.sweep(state.path, state.id),
            )


def _commits(state: StateDirectory, workspace: WorkspaceSessions) -> Iterator[Leftover]:
    """Commits and rewinds that were cut short, and staging directories that no journal tells of."""
    directory = os.path.join(workspace.directory, "commits")
    is_here = workspace.standing is Standing.HERE
    what = f"complete or undo it, as the next command in {_shown(workspace)} would"
    back = f"Put {_shown(workspace)} back where it was: the next command there completes it."
    is_pending = recovery.pending(directory)
    if is_pending and not (is_here and _is_committing(workspace.root, directory)):
        yield Leftover(
            "commit",
            f"A commit to {_shown(workspace)} was cut short.",
            what if is_here else back,
            (lambda: _complete(state, workspace.root, _some(workspace))) if is_here else None,
        )
    waiting = set() if is_pending else {committed.session for committed in landed.unsettled(directory)}
    for session in workspace.sessions:
        upper = os.path.join(session.directory, "upper")
        if not session.busy and (session.name in waiting or restore.pending(upper) is not None):
            yield Leftover(
                "commit",
                f"Session {session.name} of {_shown(workspace)} was cut short on its way to what a commit or a rewind leaves.",
                what if is_here else back,
                (lambda name=session.name: _complete(state, workspace.root, name)) if is_here else None,  # type: ignore[misc]
            )
    if is_here and not is_pending:
        for name in os.listdir(workspace.root):
            if _STAGING.fullmatch(name):
                yield Leftover(
                    "staging",
                    f"{paths.display(os.path.join(workspace.root, name))} is a commit's, of which no journal is left here.",
                    "Look whether it's another user's or state directory's, then whether anything in it is wanted.",
                )


def _is_committing(root: bytes, commits: str) -> bool:
    with LocalStorage(root) as lower:
        try:
            with recovery.locked(lower, commits, (), 0.0):
                return False
        except CommitError:
            return True


def _some(workspace: WorkspaceSessions) -> str:
    """A session to open: recovering is the workspace's affair."""
    return next((session.name for session in workspace.sessions if not session.problem), "default")


def _complete(state: StateDirectory, root: bytes, session: str) -> None:
    Workspace.open(root, session=session, state_path=state.path).close()


def _half_made(state: StateDirectory, workspace: WorkspaceSessions) -> Iterator[Leftover]:
    if not workspace.sessions and workspace.standing is None:
        if _is_half_made_workspace(workspace.directory):
            yield Leftover(
                "workspace",
                f"{workspace.directory} was never made complete.",
                "remove it",
                lambda: _remove_if(state, workspace.directory, _is_half_made_workspace),
            )
        return
    for session in workspace.sessions:
        if not session.busy and _is_half_made(session.directory):
            yield Leftover(
                "overlay",
                f"Session {session.name} of {_shown(workspace)} was never made complete, and holds nothing.",
                "remove it",
                lambda path=session.directory: _remove_overlay(state, path),  # type: ignore[misc]
            )


def _is_half_made(path: str) -> bool:
    if not os.path.isdir(path) or os.path.lexists(os.path.join(path, "overlay.json")) or not _is_old(path, _MAKING_S):
        return False
    layers = (os.path.join(path, name) for name in ("upper", "work", "git"))
    return not any(os.path.lexists(layer) and os.listdir(layer) for layer in layers)


def _is_half_made_workspace(path: str) -> bool:
    kept = ("workspace.json", "overlays", "checkpoints.git")
    return _is_old(path, _MAKING_S) and not any(os.path.lexists(os.path.join(path, name)) for name in kept)


def _is_old(path: str, seconds: float) -> bool:
    return time.time() - os.stat(path).st_mtime > seconds


def _remove_overlay(state: StateDirectory, path: str) -> None:
    is_half_made = _is_half_made(path)
    with OverlayDirectory(path).lock():
        # Whoever was making it holds the lock from before it's complete.
        if is_half_made and not os.path.lexists(os.path.join(path, "overlay.json")):
            runtime.remove_socket(path)
            leftovers.remove_tree(state.set_aside(path))


def _remove_if(state: StateDirectory, path: str, still: Callable[[str], bool]) -> None:
    if still(path):
        leftovers.remove_tree(state.set_aside(path))


def _gone(state: StateDirectory, workspace: WorkspaceSessions) -> Iterator[Leftover]:
    words = {
        Standing.MISSING: "is missing: it was deleted or moved, or its disk isn't there",
        Standing.REPLACED: "isn't the directory that it was",
        Standing.LET_GO: "was let go of",
    }
    if workspace.standing not in words:
        return
    sessions = len(workspace.sessions)
    finding = f"{_shown(workspace)} {words[workspace.standing]}"
    if pruning.is_empty(workspace):
        yield Leftover(
            "workspace",
            f"{finding}, and nothing is kept for it.",
            f"remove {workspace.directory}",
            lambda: pruning.remove_workspace(state, workspace),
        )
    elif sessions:
        kept = "1 session is" if sessions == 1 else f"{sessions} sessions are"
        yield Leftover("workspace", f"{finding}; {kept} kept for it.", _PRUNE)


def _temporaries(workspace: str) -> Iterator[Leftover]:
    pack = os.path.join(workspace, "checkpoints.git", "objects", "pack")
    directories = [path for path in (pack, os.path.join(workspace, "checkpoints.git", "big")) if os.path.isdir(path)]
    records = list(_records_never_finished(workspace))
    number = len(records) + sum(len(files.abandoned(directory)) for directory in directories)
    if number:
        yield Leftover(
            "temporary",
            f"{workspace} has temporary files ({number}) of writers that are gone.",
            "remove them",
            lambda: _remove_files(directories, records),
        )


def _records_never_finished(workspace: str) -> Iterator[str]:
    """Temporary files of JSON records, which nobody takes long to write."""
    for pattern in ("", "overlays/*", "overlays/*/shown"):
        for path in glob.glob(os.path.join(glob.escape(workspace), pattern, ".*.tmp")):
            with contextlib.suppress(FileNotFoundError):
                if _TEMPORARY.fullmatch(os.path.basename(path)) and _is_old(path, _MAKING_S):
                    yield path


def _remove_files(directories: list[str], others: list[str]) -> None:
    for directory in directories:
        files.sweep(directory)
    for path in others:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def _half_removed(state: StateDirectory) -> Iterator[Leftover]:
    for path in state.half_removed():
        yield Leftover(
            "removal",
            f"{path} was to be removed, and is there.",
            "remove it",
            lambda path=path: leftovers.remove_tree(path),  # type: ignore[misc]
        )


def _shown(workspace: WorkspaceSessions) -> str:
    return paths.display(workspace.root) or workspace.directory


def mend(found: Leftover) -> WorkbenchError | OSError | None:
    """Do what can be done about something left over; what stood in the way, None where it's done.

    What somebody has taken up meanwhile is left to them.
    """
    if found.mend is None:
        return None
    try:
        found.mend()
    except OverlayError as error:
        return None if error.code == "overlay_busy" else error
    except (WorkbenchError, OSError) as error:
        return error
    return None
