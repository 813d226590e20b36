"""What a layer is made of: the kinds of entries, their stats, and the protocol that a lower layer answers."""

from __future__ import annotations

import builtins
import os
import stat as stat_module
from enum import StrEnum
from operator import itemgetter
from typing import BinaryIO, NamedTuple, Protocol, runtime_checkable


class Kind(StrEnum):
    """What an entry is. `WHITEOUT` only occurs in an upper layer; `DEVICE` is refused wherever it would be carried."""

    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"
    WHITEOUT = "whiteout"


FILE, DIR, WHITEOUT = Kind.FILE, Kind.DIR, Kind.WHITEOUT
"""What every lookup compares with: a class's own constant takes a call to look up, before Python 3.12."""

_KINDS = {
    stat_module.S_IFREG: FILE,
    stat_module.S_IFDIR: DIR,
    stat_module.S_IFLNK: Kind.SYMLINK,
    stat_module.S_IFIFO: Kind.FIFO,
    stat_module.S_IFSOCK: Kind.SOCKET,
}


class Stat(NamedTuple):
    """An entry's metadata: `mode` is the permission bits with setuid, setgid and sticky (0 to 0o7777), times in ns."""

    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    nlink: int
    device: int

    @classmethod
    def of(cls, result: os.stat_result) -> Stat:
        """Convert what `os.lstat` or `os.fstat` returned."""
        return cls(
            kind_of(result),
            stat_module.S_IMODE(result.st_mode),
            result.st_uid,
            result.st_gid,
            result.st_size,
            result.st_mtime_ns,
            result.st_ctime_ns,
            result.st_ino,
            result.st_nlink,
            result.st_dev,
        )


def kind_of(result: os.stat_result) -> Kind:
    """The kind in what `os.lstat` or `os.fstat` returned; a character device 0:0 is a `WHITEOUT`."""
    mode = result.st_mode
    kind = _KINDS.get(stat_module.S_IFMT(mode))
    if kind is None:
        kind = Kind.WHITEOUT if stat_module.S_ISCHR(mode) and result.st_rdev == 0 else Kind.DEVICE
    return kind


BY_NAME = itemgetter(0)
"""Sorts entries, (name, kind): names are unique, so that to compare kinds as well would only take time."""


class Storage(Protocol):
    """A lower layer. Paths are bytes relative to its root, `b""` is the root; no method follows a last symlink."""

    def stat(self, path: bytes) -> Stat:
        """Raises FileNotFoundError, NotADirectoryError, or another OSError with errno and path."""
        ...

    def list(self, path: bytes) -> list[bytes]:
        """The names in a directory, sorted bytewise. Raises as `stat`, and NotADirectoryError."""
        ...

    def open(self, path: bytes) -> BinaryIO:
        """A regular file, for reading. Raises as `stat`, IsADirectoryError, and OSError(ELOOP) on a symlink."""
        ...

    def readlink(self, path: bytes) -> bytes:
        """A symlink's target. Raises as `stat`, and OSError(EINVAL) on anything else."""
        ...


@runtime_checkable
class DetailedStorage(Storage, Protocol):
    """What a lower layer may know beyond `Storage`: it's used where all these methods are there."""

    # `builtins`, since `list` is a method here.
    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """As `list`, with the kind of each entry."""
        ...

    def read_bytes(self, path: bytes) -> bytes:
        """A regular file's content. Raises as `open`."""
        ...

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """The extended attributes of an entry, copied up with it. Raises as `stat`."""
        ...


@runtime_checkable
class BriefStorage(Storage, Protocol):
    """A lower layer that tells a part of what it knows in less time than all of it."""

    def kind(self, path: bytes) -> Kind:
        """What is at a path. Raises as `stat`."""
        ...

    def names(self, path: bytes) -> builtins.list[bytes]:
        """As `list`, without what a lower layer doesn't show: whiteouts."""
        ...


@runtime_checkable
class IdentifiedStorage(Storage, Protocol):
    """A lower layer whose entries have an identity of their own, apart from their paths."""

    def identify(self, path: bytes) -> tuple[Stat, bytes] | None:
        """An entry's metadata and what identifies it: a file handle, or the version of an object; empty where nothing does.

        Both are of one and the same entry. None where nothing is. Raises OSError: EXDEV at or below a mount point.
        """
        ...


class Directory(Protocol):
    """One directory of a lower layer, looked into while others may change it."""

    def stat(self, name: bytes) -> Stat | None:
        """What it has under a name, a symlink itself; None where nothing is. Raises OSError."""
        ...

    def names(self) -> builtins.list[bytes]:
        """All of them, sorted bytewise. Raises OSError."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Lower(DetailedStorage, IdentifiedStorage, Protocol):
    """What a review asks of a lower layer, beyond what an overlay does: `LocalStorage` answers, any other as `AnyLower`.

    `root_path` is where it is on this machine, absolute, empty where it's nowhere.
    """

    @property
    def root_path(self) -> bytes: ...

    def exists(self, path: bytes) -> bool:
        """Whether anything is there, a dangling symlink too. Raises OSError where that can't be told."""
        ...

    def directory(self, path: bytes) -> Directory:
        """A directory, which the caller closes. Raises as `stat`, NotADirectoryError, OSError(EXDEV) at a mount."""
        ...

    def resolve(self, path: bytes) -> bytes:
        """Follow every symlink in `path`, the last one too. Raises as `stat` and `paths.resolve`."""
        ...

    def mount_points(self) -> builtins.list[bytes]:
        """The paths at which something else is mounted, of which this layer says nothing."""
        ...


class StorageWriter(Protocol):
    """Writes to a storage, object by object, each whole or not at all, never over what isn't as expected.

    `expected` is what stood at a path, as of `Lower.identify`. Where it's another by now: OSError(ESTALE). `weak` says that
    the storage can't check that in one step with the change, so that one made at the very moment in between is missed.
    """

    weak: bool

    def create(self, path: bytes, data: bytes) -> None:
        """Make a file, and the directories above it. FileExistsError where something is, in one step."""
        ...

    def replace(self, path: bytes, data: bytes, expected: tuple[Stat, bytes]) -> None:
        """Put another content in a file's place."""
        ...

    def remove(self, path: bytes, expected: tuple[Stat, bytes]) -> None:
        """Remove a file."""
        ...

    def make_directory(self, path: bytes) -> None:
        """Make an empty directory; one that is there is as good."""
        ...

    def remove_directory(self, path: bytes) -> None:
        """Remove an empty directory, if there is one by itself."""
        ...


@runtime_checkable
class WritableStorage(Storage, Protocol):
    """A storage that may be written to."""

    def writer(self) -> StorageWriter | None:
        """What writes to it, None where it can't be done with less than a promise broken. Forgets what it has cached."""
        ...
