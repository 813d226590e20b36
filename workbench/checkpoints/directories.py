"""Directories below a root, each reached without following a symlink or crossing a mount, a bounded number open at once."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Self

from workbench.vfs import paths, syscalls

_OPEN = 64
"""Far below the usual limit of 1,024 descriptors, and deep enough for most trees to be walked without opening any twice."""

_STEPS = 32
"""How many directories above one are opened, and so kept, with it: whoever walks up a deep tree finds them."""

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
        missing: list[bytes] = []
        at = path
        while at and at not in self._fds and len(missing) < _STEPS:
            missing.append(at)
            at = at.rpartition(b"/")[0]
        if at in self._fds:
            self._fds.move_to_end(at)
        else:
            self._keep(at, lambda flags: paths.open_below(self._root_fd, at, flags))
        above = self._fds[at]
        for step in reversed(missing):
            above = self._keep(step, partial(syscalls.openat2, above, step.rpartition(b"/")[2]))
        return above

    def forget(self, path: bytes) -> None:
        """Close a directory that is about to be removed or replaced. What is below it has to be forgotten before."""
        fd = self._fds.pop(path, None)
        if fd is not None:
            os.close(fd)

    def _keep(self, path: bytes, open_with: Callable[[int], int]) -> int:
        try:
            try:
                fd = open_with(os.O_RDONLY | _FLAGS)
            except PermissionError:
                fd = open_with(os.O_PATH | _FLAGS)
        except OSError as error:
            code = errno.ENOTDIR if error.errno == errno.ELOOP else error.errno or errno.EIO
            raise paths.error(code, path) from error
        self._fds[path] = fd
        if len(self._fds) > _OPEN:
            os.close(self._fds.popitem(last=False)[1])
        return fd
