"""Directories below a root, each reached without following a symlink or crossing a mount, a bounded number open at once."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from types import TracebackType
from typing import Self

from workbench.vfs import paths, syscalls

_OPEN = 64
"""Far below the usual limit of 1,024 descriptors, and deep enough for most trees to be walked without opening any twice."""

_FLAGS = os.O_DIRECTORY | os.O_NOFOLLOW


class Directories:
    """Opens directories by path and keeps the last ones open. A context manager that closes them.

    A descriptor is lent: it stays good until some dozens of others have been asked for. `root_fd` is the caller's.
    """

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd
        self._fds: OrderedDict[bytes, int] = OrderedDict()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    def open(self, path: bytes) -> int:
        """A descriptor of a directory: for reading, or an O_PATH one where it may be entered and not read.

        Raises OSError with the path: NotADirectoryError also for a symlink, EXDEV at or below a mount point.
        """
        fd = self._fds.get(path)
        if fd is not None:
            self._fds.move_to_end(path)
            return fd
        try:
            fd = self._open(path, os.O_RDONLY)
        except PermissionError:
            fd = self._open(path, os.O_PATH)
        self._fds[path] = fd
        if len(self._fds) > _OPEN:
            os.close(self._fds.popitem(last=False)[1])
        return fd

    def forget(self, path: bytes) -> None:
        """Close a directory that is about to be removed or replaced. What is below it has to be forgotten before."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def _open(self, path: bytes, access: int) -> int:
        above, _, name = path.rpartition(b"/")
        parent = self._fds.get(above) if path else None
        try:
            if parent is None:
                return paths.open_below(self._root_fd, path, access | _FLAGS)
            self._fds.move_to_end(above)
            return syscalls.openat2(parent, name, access | _FLAGS)
        except OSError as error:
            code = errno.ENOTDIR if error.errno == errno.ELOOP else error.errno or errno.EIO
            raise paths.error(code, path) from error
