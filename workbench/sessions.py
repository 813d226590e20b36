"""The sessions of a state directory: what each holds, how old and how big it is, and what is wrong with it.

Looking takes no lock, asks no engine, and makes nothing that isn't there. What can't be read is a `problem` of that one
session or workspace, and the rest is listed all the same.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections import Counter
from dataclasses import dataclass, field, replace

from workbench import warm
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.errors import OptionsError, WorkbenchError
from workbench.protocol.records import OverlayRecord, WorkspaceRecord
from workbench.sandbox import runtime
from workbench.state import Standing, StateDirectory, WorkspaceDirectory
from workbench.vfs import paths
from workbench.vfs.measure import Measured, measure
from workbench.vfs.session import OverlayDirectory

_LIMIT = 50_000
"""Entries of one tree that a listing looks at."""

# What is written there when a session is used. Not `lower-changed`: that is the work of others.
_TOUCHED = ("overlay.json", "mounted", "counted", "keeper.log", "shown")

GIT = "git"
"""In an overlay's directory the overlay of a linked worktree's repository; its checkpoints are `<session>/git`'s."""


@dataclass(frozen=True, slots=True)
class Session:
    """One session.

    `directory` is its overlay's; `conversation` that of its conversation, whether there is one or not, empty where none can
    be. `touched_ns` is when it was last used, 0 where that isn't known. `upper` is what it takes and has outside of the
    checkpoints; `changes` how many of it would be shown, None where nobody has counted since it last changed. `checkpoints`
    counts those that a log lists, `checkpoint_bytes` is the share of the packs of all; big files, which sessions may share,
    are only in what its workspace's store takes. `backend` is what its sandbox is, or last was. `running` says that it runs;
    `busy`, that another process is at the overlay. `problem` is empty, or a sentence; where not `readable` it's of the
    overlay itself.
    """

    name: str
    directory: str
    conversation: str = ""
    touched_ns: int = 0
    upper: Measured = field(default_factory=Measured)
    changes: int | None = None
    checkpoints: int = 0
    checkpoint_bytes: int = 0
    backend: str = ""
    running: bool = False
    busy: bool = False
    problem: str = ""
    readable: bool = True

    @property
    def holds(self) -> bool:
        """Whether something in it would be lost with it, or that isn't sure; ignored files and notes count."""
        return bool(self.changes != 0 or self.upper.files or not self.upper.complete)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a store has of a session: how many checkpoints, its share of the packs in bytes, when it took the last."""

    checkpoints: int = 0
    size: int = 0
    newest_ns: int = 0


@dataclass(frozen=True, slots=True)
class WorkspaceSessions:
    """A workspace of the state directory, with its sessions.

    `root` is its real directory, as last known, empty where that is known no more. `standing` is None where the record
    can't be read. `store` is what the checkpoints take. `problem` is empty, or a sentence.
    """

    directory: str
    root: bytes
    standing: Standing | None
    sessions: tuple[Session, ...] = ()
    store: Measured = field(default_factory=Measured)
    problem: str = ""


def survey(state: StateDirectory, *, root: bytes | None = None, limit: int | None = _LIMIT) -> list[WorkspaceSessions]:
    """All workspaces of a state directory with their sessions; with `root` those of that real directory alone.

    No tree is looked at for more than `limit` entries, whose measures are then not complete.
    """
    return [
        survey_workspace(path, limit=limit)
        for path in state.workspace_paths()
        if os.path.isdir(path) and root in (None, linked_root(path))
    ]


def survey_workspace(path: str, *, limit: int | None = _LIMIT, only: str | None = None) -> WorkspaceSessions:
    """One workspace, by its directory in the state directory; `limit` as of `survey`, with `only` that session alone."""
    problem, standing = "", None
    try:
        workspace = WorkspaceDirectory.read(path)
        standing = workspace.standing()
    except (WorkbenchError, OSError) as error:
        problem = _sentence(error, "Its record is missing; the next command in the directory writes it anew.")
        root = linked_root(path)
        workspace = WorkspaceDirectory(path, WorkspaceRecord(root=paths.display(root), root_bytes=root))
    store = Measured()
    kept: dict[str, _Kept] = {}
    problems: dict[str, str] = {}
    # Opening a store makes it where there is none.
    if os.path.exists(os.path.join(workspace.checkpoints, "HEAD")):
        try:
            store = measure(workspace.checkpoints, limit)
            with CheckpointStore(workspace.checkpoints) as opened:
                kept = _kept(opened, problems)
        except (WorkbenchError, OSError) as error:
            problem = problem or _sentence(error)
    sessions = tuple(
        replace(session, problem=session.problem or problems.get(session.name, ""))
        for session in (_session(workspace, name, kept, limit) for name in workspace.sessions() if only in (None, name))
    )
    return WorkspaceSessions(path, workspace.root, standing, sessions, store, problem)


def survey_session(workspace: WorkspaceDirectory, name: str) -> Session:
    """One session, looked at whole, but for its checkpoints."""
    return _session(workspace, name, {}, None)


def named(name: str | None = None, root: bytes | None = None) -> list[tuple[str, str]]:
    """Every session's name with the directory of its workspace, sorted, at the cost of a few system calls.

    With `name` only sessions of that name, with `root` only those of that real directory; a workspace that has the same
    one as another can be told by its own directory.
    """
    base = os.path.join(os.path.realpath(warm.default_state_path()), "workspaces")
    found: list[tuple[str, str]] = []
    with contextlib.suppress(FileNotFoundError):
        for entry in os.listdir(base):
            path = os.path.join(base, entry)
            if root in (None, linked_root(path), os.fsencode(path)):
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                    found += [(each, path) for each in os.listdir(os.path.join(path, "overlays"))]
    return sorted(each for each in found if name in (None, each[0]))


def linked_root(path: str) -> bytes:
    """The real directory that a workspace's link names, empty where it has none."""
    try:
        return os.readlink(os.path.join(os.fsencode(path), b"lower"))
    except OSError:
        return b""


def _session(workspace: WorkspaceDirectory, name: str, kept: dict[str, _Kept], limit: int | None) -> Session:
    overlay = OverlayDirectory(workspace.overlay_path(name))
    own, git = kept.get(name, _Kept()), kept.get(f"{name}/{GIT}", _Kept())
    session = Session(name, overlay.path, checkpoints=own.checkpoints, checkpoint_bytes=own.size + git.size)
    # What isn't the name of a session has no conversation, either.
    with contextlib.suppress(OptionsError):
        session = replace(session, conversation=workspace.conversation_path(name))
    try:
        upper = _layers(overlay, limit)
        locked = overlay.is_locked()
    except OSError as error:
        return replace(session, problem=_sentence(error, "It has no upper layer."), readable=False)
    session = replace(
        session,
        upper=upper,
        touched_ns=max(upper.changed_ns, own.newest_ns, _touched_ns(overlay.path)),
        running=locked and os.path.lexists(os.path.join(overlay.path, runtime.LINK)),
        busy=locked,
    )
    try:
        record = overlay.record()
    except (WorkbenchError, OSError) as error:
        return replace(session, problem=_sentence(error), readable=False)
    return replace(session, backend=record.backend, changes=_changes(overlay, record, upper))


def _layers(overlay: OverlayDirectory, limit: int | None) -> Measured:
    """The upper layer, with that of the repository beside it."""
    upper = measure(overlay.upper_path, limit)
    with contextlib.suppress(FileNotFoundError):
        upper += measure(OverlayDirectory(os.path.join(overlay.path, GIT)).upper_path, limit)
    return upper


def _changes(overlay: OverlayDirectory, record: OverlayRecord, upper: Measured) -> int | None:
    if not upper.complete:
        return None
    if not upper.entries:
        mode = stat.S_IMODE(os.stat(overlay.upper_path, follow_symlinks=False).st_mode)
        return 0 if record.root_mode in (None, mode) else None
    return warm.counted(overlay.path)[1]


def _touched_ns(overlay_path: str) -> int:
    times = [0]
    for name in _TOUCHED:
        with contextlib.suppress(FileNotFoundError):
            times.append(os.stat(os.path.join(overlay_path, name), follow_symlinks=False).st_mtime_ns)
    return max(times)


def _kept(store: CheckpointStore, problems: dict[str, str]) -> dict[str, _Kept]:
    """What there is of each session; a pack is shared by how many of its checkpoints are whose."""
    packs: dict[str, dict[str, int]] = {}
    rows: dict[str, list[Checkpoint]] = {}
    for session in store.sessions():
        try:
            packs[session] = store.packs(session)
            rows[session] = store.list(session)
        except (WorkbenchError, OSError) as error:
            problems[session.split("/")[0]] = _sentence(error)
    totals: Counter[str] = Counter()
    for counts in packs.values():
        totals.update(counts)
    sizes = {pack: _size(pack) for pack in totals}
    return {
        session: _Kept(
            sum(checkpoint.is_listed and not checkpoint.purpose.step for checkpoint in taken),
            sum(sizes[pack] * count // totals[pack] for pack, count in packs[session].items()),
            max((checkpoint.created_at for checkpoint in taken), default=0),
        )
        for session, taken in rows.items()
    }


def _size(pack: str) -> int:
    # Another process may have just repacked the store.
    with contextlib.suppress(FileNotFoundError):
        return sum(os.stat(f"{pack.removesuffix('.pack')}{end}").st_blocks * 512 for end in (".pack", ".idx"))
    return 0


def _sentence(error: Exception, missing: str = "") -> str:
    if isinstance(error, WorkbenchError):
        return error.message
    if isinstance(error, FileNotFoundError) and missing:
        return missing
    assert isinstance(error, OSError)
    where = f" at {paths.display(os.fsencode(error.filename))}" if error.filename else ""
    return f"The system refused{where}: {error.strerror or error}."
