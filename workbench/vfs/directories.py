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

    __slots__ = ("device", "fd", "inode")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        found = os.fstat(fd)
        self.inode, self.device = found.st_ino, found.st_dev

    def __del__(self) -> None:
        # No one else knows when the last thread that looks into it is done.
        os.close(self.fd)


class KeptDirectories:
    """Directories by their paths. None is believed to be where it was: its name is looked at anew each time.

    That takes one call, where to open it and close it again takes two, and is as safe: while a directory is open no
    other has its inode number, so that what stands there now is this one or is opened anew.
    """

    def __init__(self) -> None:
        self._kept: dict[bytes, KeptDirectory] = {}

    def close(self) -> None:
        """Let go of them all."""
        self._kept.clear()

    def get(self, path: bytes, dir_fd: int, name: bytes, found: os.stat_result) -> KeptDirectory:
        """The directory at `path`, which is `name` in the open directory `dir_fd`, and there just now was `found`.

        Raises FileNotFoundError for a whiteout and where nothing is any more, NotADirectoryError for anything else but
        a directory, OSError.
        """
        kept = self._kept.get(path)
        if kept is not None and kept.inode == found.st_ino and kept.device == found.st_dev:
            return kept
        opened = KeptDirectory(_enter(dir_fd, name))
        if len(self._kept) >= _LIMIT:
            self._kept.clear()
        self._kept[path] = opened
        return opened


def look_at(dir_fd: int, name: bytes) -> os.stat_result | None:
    """What has a name in an open directory, a symlink itself; None where nothing has. Raises OSError."""
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


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
