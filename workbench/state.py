"""The state directory: where workspaces, their overlays, checkpoints and commits live on disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from workbench.errors import OverlayError, StateError, WorkspaceError
from workbench.protocol.records import WorkspaceRecord
from workbench.protocol.session_ids import file_name
from workbench.vfs import paths
from workbench.vfs.changed_mark import mark_changed
from workbench.vfs.identity import identify, same
from workbench.vfs.session import OverlayDirectory, scratch_name
from workbench.vfs.statefile import read_json, write_json
from workbench.warm import default_state_path, slug

# What may stand in a mount option without a quote or an escape, on every kernel and engine.
_PLAIN_PATH = re.compile(r"[A-Za-z0-9._/@+=-]+")

_REMOVED = ".removed-"


class Standing(StrEnum):
    """Whether the real directory of a workspace is where it was.

    `MISSING` may also mean that it was moved, `REPLACED` that another directory stands there, `LET_GO` that this was said
    to be meant.
    """

    HERE = "here"
    MISSING = "missing"
    REPLACED = "replaced"
    UNREACHABLE = "unreachable"
    LET_GO = "let_go"


@dataclass(frozen=True, slots=True)
class StateDirectory:
    """An existing state directory of ours, mode 0700; `id` tells its containers and volumes from another's."""

    path: str
    id: str

    @classmethod
    def open(cls, path: str | None = None) -> StateDirectory:
        """Make it where it's missing, and check it.

        `path` None is `default_state_path()`. Raises StateError (state_forbidden) where it isn't ours, others may
        write to it, or its path can't stand in a mount option.
        """
        path = os.path.realpath(path or default_state_path())
        if not _PLAIN_PATH.fullmatch(path):
            raise StateError(
                f"The state directory's path {path!r} has characters that can't stand in a mount option.",
                code="state_forbidden",
                hint="Set WORKBENCH_STATE to a directory whose path has only ASCII letters, digits and ._/@+=-.",
            )
        try:
            os.makedirs(path, mode=0o700, exist_ok=True)
            found = os.lstat(path)
        except OSError as error:
            raise StateError(
                f"The state directory {path} can't be made: {error.strerror}.",
                code="state_forbidden",
                hint="Set WORKBENCH_STATE to a directory that you may write to.",
            ) from error
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise StateError(
                f"The state directory {path} belongs to somebody else, or others may enter it.",
                code="state_forbidden",
                hint=f"Make it yours alone (chmod 700 {path}), or set WORKBENCH_STATE to another directory.",
            )
        return cls(path, _state_id(path))

    def workspaces(self) -> Iterator[WorkspaceDirectory]:
        """Every workspace of this state directory, in order of name; one whose record can't be read is left out."""
        for directory in self.workspace_paths():
            with contextlib.suppress(FileNotFoundError, StateError):
                yield WorkspaceDirectory.read(directory)

    def workspace_paths(self) -> list[str]:
        """The directory of every workspace, sorted, whether its record can be read or not."""
        base = os.path.join(self.path, "workspaces")
        names = sorted(os.listdir(base)) if os.path.isdir(base) else []
        return [os.path.join(base, name) for name in names]

    def set_aside(self, path: str) -> str:
        """Take something of this state directory out of use in one step, to be removed; returns where it is now.

        Raises OSError.
        """
        aside = os.path.join(self.path, f"{_REMOVED}{secrets.token_hex(8)}")
        os.rename(path, aside)
        return aside

    def half_removed(self) -> list[str]:
        """What was set aside and not removed, sorted: that is being done at this moment, or was cut short."""
        return sorted(os.path.join(self.path, name) for name in os.listdir(self.path) if name.startswith(_REMOVED))

    def workspace(self, root: bytes) -> WorkspaceDirectory:
        """The workspace of the real directory `root` (absolute, without symlinks), made where it's new.

        A directory is known by its file handle, whatever path leads to it, so one that was moved keeps its workspace.
        Raises WorkspaceError: workspace_missing, workspace_unreadable, workspace_forbidden, and workspace_replaced
        where another directory stands at the path and the old one's overlays still hold changes.
        """
        record = self._identify(root)
        return self._find(record, (record.handle, record.inode, record.birth_ns)) or self._create(record)

    def _identify(self, root: bytes) -> WorkspaceRecord:
        self._refuse_forbidden(root)
        try:
            root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise WorkspaceError(
                f"There is no directory {paths.display(root)}.",
                code="workspace_missing",
                hint="Name an existing directory with -w.",
            ) from error
        except OSError as error:
            raise WorkspaceError(
                f"The directory {paths.display(root)} can't be read: {error.strerror}.", code="workspace_unreadable"
            ) from error
        try:
            if not os.access(b".", os.R_OK | os.X_OK, dir_fd=root_fd, effective_ids=True):
                raise WorkspaceError(f"The directory {paths.display(root)} can't be read.", code="workspace_unreadable")
            handle, inode, birth_ns = identify(root_fd)
        finally:
            os.close(root_fd)
        return WorkspaceRecord(root=paths.display(root), root_bytes=root, handle=handle, inode=inode, birth_ns=birth_ns)

    def replaced(self, root: bytes) -> list[WorkspaceDirectory]:
        """Those whose path leads to another directory by now. Raises as `workspace`."""
        record = self._identify(root)
        identity = (record.handle, record.inode, record.birth_ns)
        return [
            workspace
            for workspace in self._candidates(record)
            if workspace.root == root and not same(workspace.record, identity)
        ]

    def _find(self, record: WorkspaceRecord, identity: tuple[bytes, int, int]) -> WorkspaceDirectory | None:
        found = None
        for workspace in self._candidates(record):
            is_same = same(workspace.record, identity)
            if is_same and (workspace.root == record.root_bytes or not workspace.stands_elsewhere(record)):
                found = workspace
            elif not is_same and workspace.root == record.root_bytes:
                workspace.retire_if_empty()
        if found is not None and found.root != record.root_bytes:
            found = WorkspaceDirectory(found.path, record)
            found.save()
            # A sandbox that is warm still has it at its old path.
            for session in found.sessions():
                mark_changed(found.overlay_path(session))
        return found

    def _candidates(self, record: WorkspaceRecord) -> Iterator[WorkspaceDirectory]:
        """Those that are known at this path, or by this identity: the cost doesn't grow with the records."""
        base = os.path.join(self.path, "workspaces")
        key = _key(record)
        names = [name for name in os.listdir(base) if key in name.split("-")] if os.path.isdir(base) else []
        with contextlib.suppress(FileNotFoundError):
            names.append(os.readlink(_path_link(base, record.root_bytes)))
        for name in sorted(set(names)):
            directory = os.path.join(base, name)
            with contextlib.suppress(FileNotFoundError):
                yield WorkspaceDirectory.read(directory)

    def _create(self, record: WorkspaceRecord) -> WorkspaceDirectory:
        base = os.path.join(self.path, "workspaces", f"{slug(record.root_bytes)}-{_key(record)}")
        path, number = base, 1
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        while True:
            try:
                os.mkdir(path, 0o700)
                break
            except FileExistsError:
                if not os.path.exists(_record_path(path)):
                    break  # another process is making it, or died while it did: the same record is written either way
                number += 1
                path = f"{base}-{number}"
        created = WorkspaceDirectory(path, record)
        created.save()
        return created

    def _refuse_forbidden(self, root: bytes) -> None:
        home = os.path.realpath(os.fsencode(os.path.expanduser("~")))
        state = os.fsencode(self.path)
        for forbidden, what in ((b"/", "the root of the filesystem"), (home, "your home directory")):
            if root == forbidden:
                raise WorkspaceError(
                    f"A workspace can't be {what}.",
                    code="workspace_forbidden",
                    hint="Name the directory of one project with -w.",
                )
        if _contains(root, state) or _contains(state, root):
            raise WorkspaceError(
                f"The workspace {paths.display(root)} and the state directory {self.path} lie in each other.",
                code="workspace_forbidden",
                hint="Set WORKBENCH_STATE to a directory outside the workspace.",
            )


@dataclass(frozen=True, slots=True)
class WorkspaceDirectory:
    """`workspaces/<slug>-<id>/`: everything kept for one real directory."""

    path: str
    record: WorkspaceRecord

    @classmethod
    def read(cls, path: str) -> WorkspaceDirectory:
        """The one at a path. Raises FileNotFoundError where it has no record, StateError (state_corrupt)."""
        return cls(path, read_json(_record_path(path), WorkspaceRecord))

    @property
    def root(self) -> bytes:
        return self.record.root_bytes

    @property
    def lower_link(self) -> str:
        """A symlink to the real directory, so that its own path never stands in a mount option."""
        return os.path.join(self.path, "lower")

    @property
    def checkpoints(self) -> str:
        return os.path.join(self.path, "checkpoints.git")

    @property
    def commits(self) -> str:
        return os.path.join(self.path, "commits")

    def save(self) -> None:
        """Write the record, and point the links at it: `lower`, and the one by which its path is found."""
        os.makedirs(self.commits, mode=0o700, exist_ok=True)
        base, name = os.path.split(self.path)
        by_path = _path_link(base, self.root)
        os.makedirs(os.path.dirname(by_path), mode=0o700, exist_ok=True)
        for link, target in ((self.lower_link, self.root), (by_path, os.fsencode(name))):
            temporary = f"{link}.{secrets.token_hex(4)}"
            os.symlink(target, os.fsencode(temporary))
            os.rename(temporary, link)
        write_json(_record_path(self.path), self.record)

    def sessions(self) -> list[str]:
        """The names of its sessions, sorted."""
        base = os.path.join(self.path, "overlays")
        return sorted(os.listdir(base)) if os.path.isdir(base) else []

    def overlay_path(self, session: str) -> str:
        return os.path.join(self.path, "overlays", session)

    def conversation_path(self, session: str) -> str:
        """Where the conversation of a session is kept, if it has one."""
        return os.path.join(self.path, "sessions", file_name(session))

    def overlay(self, session: str) -> OverlayDirectory:
        """The overlay of a session, made where it's new.

        Its scratch directory is `_notes`, or the next name that the real directory doesn't have at that moment.
        """
        path = self.overlay_path(session)
        if os.path.exists(os.path.join(path, "overlay.json")):
            return OverlayDirectory.open(path)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        scratch = scratch_name(lambda name: os.path.lexists(os.path.join(self.root, name)))
        try:
            return OverlayDirectory.create(path, session=session, scratch=os.fsdecode(scratch))
        except OverlayError:
            if not os.path.isdir(os.path.join(path, "upper")):
                raise
            # Its record was lost while a sandbox runs over it, which can still be ended.
            return OverlayDirectory.open(path)

    def standing(self) -> Standing:
        """Whether the real directory is where it was."""
        if not self.root:
            return Standing.LET_GO
        try:
            fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return Standing.MISSING
        except OSError:
            return Standing.UNREACHABLE
        try:
            return Standing.HERE if same(self.record, identify(fd)) else Standing.REPLACED
        finally:
            os.close(fd)

    def forget_path(self) -> None:
        """Drop the link by which its path is found, where it's still this one's. Raises OSError."""
        base, name = os.path.split(self.path)
        by_path = _path_link(base, self.root)
        with contextlib.suppress(FileNotFoundError):
            if os.readlink(by_path) == name:
                os.unlink(by_path)

    def stands_elsewhere(self, record: WorkspaceRecord) -> bool:
        """Whether this workspace's own path still leads to it, and that isn't the directory of `record`.

        The identity of both is the same, as it is in a copy of a whole filesystem.
        """
        with contextlib.suppress(OSError):
            fd = os.open(self.root, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return same(self.record, identify(fd)) and not os.path.samefile(fd, record.root_bytes)
            finally:
                os.close(fd)
        return False

    def retire_if_empty(self) -> None:
        """Let go of a path at which another directory stands now.

        Raises WorkspaceError (workspace_replaced) where an overlay still holds changes against the old one.
        """
        for session in self.sessions():
            upper = os.path.join(self.overlay_path(session), "upper")
            if os.path.isdir(upper) and os.listdir(upper):
                raise WorkspaceError(
                    f"The directory {self.record.root} isn't the one that session {session!r} started from.",
                    code="workspace_replaced",
                    hint="Put the old directory back, or let go of what the session holds with "
                    f"`workbench discard --replaced --session {session}`.",
                )
        self.retire()

    def retire(self) -> None:
        """Forget the path: what is kept here no longer stands for the directory at it."""
        write_json(_record_path(self.path), self.record.model_copy(update={"root_bytes": b"", "root": ""}))


def _key(record: WorkspaceRecord) -> str:
    """12 hex digits of the directory's identity."""
    identity = record.handle or b"%d:%d" % (record.inode, record.birth_ns)
    return hashlib.sha256(identity).hexdigest()[:12]


def _path_link(base: str, root: bytes) -> str:
    """`paths/<32 hex digits of the real path>`: a symlink that says under which name that path is kept in `base`."""
    return os.path.join(os.path.dirname(base), "paths", hashlib.sha256(root).hexdigest()[:32])


def _record_path(directory: str) -> str:
    return os.path.join(directory, "workspace.json")


def _contains(outer: bytes, inner: bytes) -> bool:
    return inner == outer or outer in _ancestors(inner)


def _ancestors(path: bytes) -> set[bytes]:
    return {os.fsencode(parent) for parent in Path(os.fsdecode(path)).parents}


def _state_id(path: str) -> str:
    """A random name, made once; two that start at the same moment end up with the same one."""
    file = os.path.join(path, "id")
    try:
        with open(file, encoding="ascii") as stream:
            return stream.read().strip()
    except FileNotFoundError:
        temporary = f"{file}.{secrets.token_hex(4)}"
        with open(temporary, "x", encoding="ascii") as stream:
            stream.write(secrets.token_hex(8) + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(temporary, file)
        os.unlink(temporary)
        return _state_id(path)
