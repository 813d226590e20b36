"""The directories on the way to what is asked of an upper layer, kept open from one lookup to the next."""

from __future__ import annotations

import errno
import os

from workbench.vfs import syscalls
from workbench.vfs.storage import Kind, kind_of

_LIMIT = 32
"""How many are kept: a process may have a thousand files open, and several layers."""


class KeptDirectory:
    """A directory that stays open, under `fd`, for as long as anybody holds this; an O_PATH one where it can't be read."""

    __slots__ = ("fd",)

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __del__(self) -> None:
        # No one else knows when the last thread that looks into it is done.
        os.close(self.fd)


class KeptDirectories:
    """Directories by their identity: none is believed to be where it was, its name is looked at anew each time.

    That takes one call, where to open it and close it again takes two, and is as safe: while a directory is open no
    other has its inode number, so that what stands there now is this one or is opened.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int], KeptDirectory] = {}

    def close(self) -> None:
        """Let go of them all."""
        self._kept.clear()

    def enter(self, dir_fd: int, name: bytes, found: os.stat_result) -> KeptDirectory:
        """What is `name` in an open directory, and was `found` to be just now.

        Raises FileNotFoundError for a whiteout and where nothing is any more, NotADirectoryError for anything else but
        a directory, OSError.
        """
        kept = self._kept.get((found.st_dev, found.st_ino))
        return kept if kept is not None else self._open(dir_fd, name)

    def _open(self, dir_fd: int, name: bytes) -> KeptDirectory:
        opened = KeptDirectory(_enter(dir_fd, name))
        found = os.fstat(opened.fd)
        if len(self._kept) >= _LIMIT:
            self._kept.clear()
        self._kept[found.st_dev, found.st_ino] = opened
        return opened


def _enter(dir_fd: int, name: bytes) -> int:
    try:
        return syscalls.openat2(dir_fd, name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.ELOOP, errno.ENOTDIR):
            raise
    fd = syscalls.openat2(dir_fd, name, os.O_PATH | os.O_NOFOLLOW)
    if (kind := kind_of(os.fstat(fd))) is not Kind.DIR:
        os.close(fd)
        code = errno.ENOENT if kind is Kind.WHITEOUT else errno.ENOTDIR
        raise OSError(code, os.strerror(code))
    return fd
