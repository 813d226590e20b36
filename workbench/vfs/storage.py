"""What a layer is made of: the kinds of entries, their stats, and the protocol that a lower layer answers."""

from __future__ import annotations

import builtins
import os
import stat as stat_module
from dataclasses import dataclass
from enum import StrEnum
from typing import BinaryIO, Protocol, runtime_checkable


class Kind(StrEnum):
    """What an entry is. `WHITEOUT` only occurs in an upper layer; `DEVICE` is refused wherever it would be carried."""

    FILE = "file"
    DIR = "dir"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    DEVICE = "device"
    WHITEOUT = "whiteout"


@dataclass(frozen=True, slots=True)
class Stat:
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
        if stat_module.S_ISREG(mode):
            kind = Kind.FILE
        elif stat_module.S_ISDIR(mode):
            kind = Kind.DIR
        elif stat_module.S_ISLNK(mode):
            kind = Kind.SYMLINK
        elif stat_module.S_ISFIFO(mode):
            kind = Kind.FIFO
        elif stat_module.S_ISSOCK(mode):
            kind = Kind.SOCKET
        elif stat_module.S_ISCHR(mode) and result.st_rdev == 0:
            kind = Kind.WHITEOUT
        else:
            kind = Kind.DEVICE
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
    """What a lower layer may know beyond `Storage`: it's used where both methods are there."""

    # `builtins`, since `list` is a method here.
    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """As `list`, with the kind of each entry."""
        ...

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """The extended attributes of an entry, copied up with it. Raises as `stat`."""
        ...
