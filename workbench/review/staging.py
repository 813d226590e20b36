"""The staging directory: what is about to land, made complete beside the workspace's own entries, and what came out."""

from __future__ import annotations

import bisect
import contextlib
import errno
import io
import itertools
import os
import stat as stat_module
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import BinaryIO, Protocol, Self

from workbench.checkpoints.manifest import Base, Entry
from workbench.errors import CommitError
from workbench.review.bases import ContentHasher, look
from workbench.review.changeset import State
from workbench.review.journal import Operation
from workbench.vfs import paths, syscalls
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind, Stat

_CHUNK = 1 << 20

_SYNC_EACH = 16
"""Up to so many files each is fsynced; beyond, one syncfs is cheaper."""

_ACCESS_ACL = "system.posix_acl_access"
_DEFAULT_ACL = "system.posix_acl_default"

_CONTENT_ATTRIBUTES = ("security.capability", "security.ima", "security.evm")
"""Attributes that vouch for one content: the kernel drops the first at every write, the others are made anew."""

_NO_ATTRIBUTE = (errno.ENODATA, errno.EOPNOTSUPP)


ELSEWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV)
"""How opening fails where a person has put something else in an entry's place."""


IRREGULAR = (errno.EISDIR, errno.EINVAL)
"""How opening a file fails where a person has put a directory in its place, or a FIFO, socket or device."""


class ChangedError(Exception):
    """The workspace changed at `path` while a commit was on its way."""

    def __init__(self, path: bytes) -> None:
        super().__init__(path)
        self.path = path


class Blobs(Protocol):
    """Where contents come from: a `CheckpointStore`."""

    def open(self, blob: str) -> BinaryIO:
        """A content by its id, for reading."""
        ...


@dataclass(frozen=True, slots=True)
class _Owner:
    """Whose a staged entry will be. `required` where it replaces another's; else what can't be given is left out."""

    uid: int
    gid: int
    required: bool


class Staging:
    """One directory of mode 0700 at the workspace's root, where nobody else looks. A context manager that closes it."""

    def __init__(self, root: LocalStorage, fd: int) -> None:
        self._root = root
        self.storage = LocalStorage(fd)
        os.close(fd)

    @classmethod
    def make(cls, root: LocalStorage, name: bytes) -> Self:
        """Make the directory; it must not exist. Raises OSError."""
        os.mkdir(name, 0o700, dir_fd=root.root_fd)
        staging = cls(root, root.open_directory(name))
        # A setgid parent and a default ACL would leak into everything that is made here.
        for attribute in (_DEFAULT_ACL, _ACCESS_ACL):
            _remove_attribute(staging.fd, attribute)
        os.fchmod(staging.fd, 0o700)
        return staging

    @classmethod
    def reopen(cls, root: LocalStorage, name: bytes) -> Self | None:
        """The directory that an earlier process made, None where it's gone. Raises OSError."""
        try:
            return cls(root, root.open_directory(name))
        except FileNotFoundError:
            return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.storage.close()

    @property
    def fd(self) -> int:
        return self.storage.root_fd

    def fill(
        self,
        operations: Iterable[Operation],
        entries: Mapping[bytes, Entry],
        blobs: Blobs,
        staged: Callable[[Operation], None],
    ) -> dict[int, tuple[Base, ...]]:
        """Make what goes in, complete with owners, ACLs, attributes and times, and bring it onto the disk.

        `entries` are the manifest's, for times, owners and holes. `staged` hears of each operation once it's made.
        Returns by operation what stands here, top first: paths are the workspace's. Raises CommitError (commit_failed)
        where an owner or an attribute can't be kept or a content isn't what its id says, CheckpointError,
        ChangedError, and OSError.
        """
        filler = _Filler(self._root, self.storage, entries, blobs)
        standing = {}
        for operation in operations:
            if operation.new:
                try:
                    standing[operation.number] = filler.fill(operation)
                except FileExistsError as error:
                    raise colliding(operation.path) from error
                except OSError as error:
                    # Nobody else is in the staging directory: it's the workspace that something vanished from.
                    if error.errno in ELSEWHERE:
                        raise ChangedError(operation.path) from error
                    raise
                staged(operation)
        self._sync(filler.files)
        return standing

    def _sync(self, files: list[bytes]) -> None:
        if len(files) > _SYNC_EACH:
            syscalls.syncfs(self.fd)
            return
        for path in files:
            fd = paths.open_below(self.fd, path, os.O_RDONLY | os.O_NONBLOCK)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
        os.fsync(self.fd)


class _Filler:
    """Makes the staged entries. Descriptors of parents aren't kept: a tree may be deeper than the descriptor limit."""

    def __init__(self, root: LocalStorage, storage: LocalStorage, entries: Mapping[bytes, Entry], blobs: Blobs) -> None:
        self._root = root
        self._storage = storage
        self._entries = entries
        self._blobs = blobs
        self._links: dict[tuple[int, str, int, _Owner], bytes] = {}
        self._parents: dict[bytes, tuple[Stat, bytes | None]] = {}
        """What new entries take from the directory above them: its owner and mode, and its default ACL."""
        self.files: list[bytes] = []
        """What was made and must be fsynced, below the staging directory."""

    def fill(self, operation: Operation) -> tuple[Base, ...]:
        top = operation.path
        parent, default_acl = self._above(paths.parent(top))
        replaced = operation.old[0] if operation.old and operation.old[0].kind is operation.new[0][1].kind else None
        directories: list[tuple[bytes, State, _Owner]] = []
        for path, state in operation.new:
            place = operation.slot + path[len(top) :]
            owner = self._owner(path, replaced if path == top else None, parent)
            if state.kind is Kind.DIR:
                with self._parent(place) as (parent_fd, name):
                    os.mkdir(name, 0o700, dir_fd=parent_fd)
                directories.append((path, state, owner))
            elif state.kind is Kind.SYMLINK:
                self._make_symlink(path, place, state, owner)
            else:
                acl = None if replaced else default_acl
                self._make_file(path, place, state, owner, top if replaced else None, acl)
        # A directory's mode may forbid making what is in it, so children come first.
        for path, state, owner in reversed(directories):
            self._finish_directory(path, operation.slot + path[len(top) :], state, owner, parent, default_acl)
        return tuple(self._standing(path, operation.slot + path[len(top) :], state) for path, state in operation.new)

    def _standing(self, path: bytes, place: bytes, state: State) -> Base:
        found = look(self._storage, place)
        if found is None:
            raise _vanished(path)
        return found.base(path, state.blob)

    def _above(self, path: bytes) -> tuple[Stat, bytes | None]:
        if path not in self._parents:
            self._parents[path] = self._root.stat(path), _attribute_of(self._root, path, _DEFAULT_ACL)
        return self._parents[path]

    @contextlib.contextmanager
    def _parent(self, place: bytes) -> Iterator[tuple[int, bytes]]:
        if b"/" not in place:
            yield self._storage.root_fd, place
            return
        fd = paths.open_below(self._storage.root_fd, paths.parent(place), os.O_PATH | os.O_DIRECTORY)
        try:
            yield fd, paths.name(place)
        finally:
            os.close(fd)

    def _owner(self, path: bytes, replaced: Base | None, parent: Stat) -> _Owner:
        if replaced is not None:
            found = self._root.stat(path)
            return _Owner(found.uid, found.gid, required=True)
        entry = self._entries.get(path)
        privileged = os.geteuid() == 0 and entry is not None
        uid = entry.uid if privileged and entry is not None else os.geteuid()
        gid = entry.gid if privileged and entry is not None else os.getegid()
        # A setgid directory gives its group to everything made in it.
        return _Owner(uid, parent.gid if parent.mode & stat_module.S_ISGID else gid, required=False)

    def _make_symlink(self, path: bytes, place: bytes, state: State, owner: _Owner) -> None:
        with self._blobs.open(state.blob) as source:
            target = source.read()
        hasher = ContentHasher(state.blob, len(target))
        hasher.update(target)
        _require_content(path, hasher, state)
        with self._parent(place) as (parent_fd, name):
            os.symlink(target, name, dir_fd=parent_fd)
            now = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
            if (now.st_uid, now.st_gid) != (owner.uid, owner.gid):
                with _own(path, owner):
                    os.chown(name, owner.uid, owner.gid, dir_fd=parent_fd, follow_symlinks=False)
            if path in self._entries:
                mtime = self._entries[path].mtime_ns
                os.utime(name, ns=(mtime, mtime), dir_fd=parent_fd, follow_symlinks=False)

    def _make_file(
        self, path: bytes, place: bytes, state: State, owner: _Owner, replaced: bytes | None, acl: bytes | None
    ) -> None:
        entry = self._entries.get(path)
        link = (entry.link_group if entry and replaced is None else 0, state.blob, state.mode, owner)
        with self._parent(place) as (parent_fd, name):
            if link[0] and link in self._links:
                with self._parent(self._links[link]) as (first_fd, first):
                    os.link(first, name, src_dir_fd=first_fd, dst_dir_fd=parent_fd, follow_symlinks=False)
                return
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(name, flags, 0o600, dir_fd=parent_fd)
        try:
            self._write(path, fd, state, entry.holes if entry and entry.blob == state.blob else ())
            now = os.fstat(fd)
            if (now.st_uid, now.st_gid) != (owner.uid, owner.gid):
                with _own(path, owner):
                    os.fchown(fd, owner.uid, owner.gid)
            if replaced is not None:
                self._copy_attributes(path, fd)
            elif acl is not None:
                os.setxattr(fd, _ACCESS_ACL, acl)
            os.fchmod(fd, state.mode)
            if entry is not None:
                os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))
        finally:
            os.close(fd)
        self.files.append(place)
        if link[0]:
            self._links[link] = place

    def _write(self, path: bytes, fd: int, state: State, holes: Sequence[tuple[int, int]]) -> None:
        hasher = ContentHasher(state.blob, state.size)
        size = 0
        with self._blobs.open(state.blob) as source:
            if isinstance(source, io.BufferedReader) and isinstance(source.raw, io.FileIO):
                # It may share its blocks with the original; what is checked is what lands.
                syscalls.copy_data(source.fileno(), fd)
                while data := os.pread(fd, _CHUNK, size):
                    hasher.update(data)
                    size += len(data)
            else:
                size = self._write_pieces(fd, source, hasher, holes)
        os.ftruncate(fd, size)
        _require_content(path, hasher, state)

    @staticmethod
    def _write_pieces(fd: int, source: BinaryIO, hasher: ContentHasher, holes: Sequence[tuple[int, int]]) -> int:
        size = 0
        while data := source.read(_CHUNK):
            hasher.update(data)
            for start, stop, is_hole in _pieces(size, size + len(data), holes):
                piece = data[start - size : stop - size]
                # A hole is taken from the manifest, but never instead of content.
                if not is_hole or piece.count(0) != len(piece):
                    _write_at(fd, piece, start)
            size += len(data)
        return size

    def _copy_attributes(self, path: bytes, fd: int) -> None:
        try:
            source = self._root.open_file(path)
        except OSError as error:
            if error.errno in IRREGULAR:
                raise ChangedError(path) from error
            raise
        try:
            own = {name: os.getxattr(fd, name) for name in _attributes(fd)}
            for name in _attributes(source):
                value = os.getxattr(source, name)
                if name in _CONTENT_ATTRIBUTES or own.get(name) == value:
                    continue
                try:
                    os.setxattr(fd, name, value)
                except OSError as error:
                    raise CommitError(
                        f"The attribute {name} of '{paths.display(path)}' can't be kept ({error.strerror}); "
                        "nothing was applied.",
                        hint="Commit as a user who may set it, or remove it from the file.",
                    ) from error
        finally:
            os.close(source)

    def _finish_directory(
        self, path: bytes, place: bytes, state: State, owner: _Owner, parent: Stat, acl: bytes | None
    ) -> None:
        fd = self._storage.open_directory(place)
        try:
            now = os.fstat(fd)
            if (now.st_uid, now.st_gid) != (owner.uid, owner.gid):
                with _own(path, owner):
                    os.fchown(fd, owner.uid, owner.gid)
            if acl is not None:
                os.setxattr(fd, _DEFAULT_ACL, acl)
                os.setxattr(fd, _ACCESS_ACL, acl)
            os.fchmod(fd, state.mode | (parent.mode & stat_module.S_ISGID))
            os.fsync(fd)
        finally:
            os.close(fd)


def _pieces(start: int, end: int, holes: Sequence[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """Cut a range at the edges of the holes: (start, end, whether it's in a hole)."""
    first = bisect.bisect_right(holes, start, key=sum)
    for offset, length in itertools.takewhile(lambda hole: hole[0] < end, holes[first:]):
        if offset > start:
            yield start, offset, False
            start = offset
        stop = min(end, offset + length)
        yield start, stop, True
        start = stop
    if start < end:
        yield start, end, False


def _write_at(fd: int, data: bytes, offset: int) -> None:
    written = 0
    while written < len(data):
        written += os.pwrite(fd, data[written:], offset + written)


def _require_content(path: bytes, hasher: ContentHasher, state: State) -> None:
    if hasher.id() != state.blob:
        raise CommitError(
            f"The content kept for '{paths.display(path)}' isn't what was reviewed; nothing was applied.",
            hint="The checkpoint store is damaged: check it with `git fsck`, and take another checkpoint.",
        )


def colliding(path: bytes) -> CommitError:
    """What is raised for a name that the filesystem takes for another one."""
    return CommitError(
        f"'{paths.display(path)}' has a name that this filesystem doesn't tell from another that stands beside it, since "
        "it ignores upper and lower case; nothing was applied.",
        code="not_landable",
        hint="Rename one of the two in the overlay; or take a patch (workbench diff) or a branch (workbench commit --git "
        "BRANCH).",
    )


def _vanished(path: bytes) -> OSError:
    return paths.error(errno.ENOENT, path)


@contextlib.contextmanager
def _own(path: bytes, owner: _Owner) -> Iterator[None]:
    try:
        yield
    except PermissionError as error:
        # A new entry may have any owner; that of a setgid directory's group is only given to who is in it.
        if owner.required:
            raise CommitError(
                f"The owner of '{paths.display(path)}' can't be kept; nothing was applied.",
                hint="Commit as its owner, or leave that path out.",
            ) from error


def _attributes(fd: int) -> list[str]:
    try:
        return os.listxattr(fd)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTE:
            return []
        raise


def _attribute_of(root: LocalStorage, path: bytes, name: str) -> bytes | None:
    fd = root.open_directory(path)
    try:
        return os.getxattr(fd, name)
    except OSError as error:
        if error.errno in _NO_ATTRIBUTE:
            return None
        raise
    finally:
        os.close(fd)


def _remove_attribute(fd: int, name: str) -> None:
    try:
        os.removexattr(fd, name)
    except OSError as error:
        if error.errno not in _NO_ATTRIBUTE:
            raise
