"""What tells a directory from another at the same path: its file handle, else its inode and birth time."""

from __future__ import annotations

import os
from typing import NamedTuple, Protocol

from workbench.vfs import syscalls


class Identified(Protocol):
    """What was noted of a directory: `Identity` itself, or a record such as `WorkspaceRecord`."""

    @property
    def handle(self) -> bytes: ...
    @property
    def inode(self) -> int: ...
    @property
    def birth_ns(self) -> int: ...


class Identity(NamedTuple):
    """`handle` as of `syscalls.file_handle` (`b""` where there is none), `birth_ns` 0 where it isn't known."""

    handle: bytes
    inode: int
    birth_ns: int


def identify(fd: int) -> Identity:
    """The identity of the directory behind a descriptor (O_PATH will do). Raises OSError."""
    return Identity(syscalls.file_handle(fd), os.fstat(fd).st_ino, syscalls.birth_ns(fd))


def same(record: Identified, identity: tuple[bytes, int, int]) -> bool:
    """Whether a record and an identity (an `Identity`, or its three values) are of one directory.

    By handle where both have one; else by inode and birth time, of which an unknown birth time fits any.
    """
    handle, inode, birth_ns = identity
    if record.handle and handle:
        return record.handle == handle
    if record.inode != inode:
        return False
    return record.birth_ns == birth_ns or not (record.birth_ns and birth_ns)
