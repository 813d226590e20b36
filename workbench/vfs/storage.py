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


# A class's own constant takes a call to look up, before Python 3.12.
_KINDS = {
    stat_module.S_IFREG: Kind.FILE,
    stat_module.S_IFDIR: Kind.DIR,
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
        """Convert what `os.lstat` or `os.fstat` returned; a character device 0:0 is a `WHITEOUT`."""
        mode = result.st_mode
        kind = _KINDS.get(stat_module.S_IFMT(mode))
        if kind is None:
            kind = Kind.WHITEOUT if stat_module.S_ISCHR(mode) and result.st_rdev == 0 else Kind.DEVICE
        return cls(
            kind,
            stat_module.S_IMODE(mode),
            result.st_uid,
            result.st_gid,
            result.st_size,
            result.st_mtime_ns,
            result.st_ctime_ns,
            result.st_ino,
            result.st_nlink,
            result.st_dev,
        )


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
