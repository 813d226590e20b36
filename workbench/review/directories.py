"""Directories of the workspace, as a commit meets them: names that must be free, mtimes to put back, bringing them to disk."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterable, Iterator

from workbench.review.journal import Operation
from workbench.review.staging import ELSEWHERE, ChangedError
from workbench.vfs import paths, syscalls
from workbench.vfs.local import LocalStorage

NO_FLAG = (errno.EINVAL, errno.ENOSYS)
"""How renameat2(2) says that the filesystem or the kernel lacks a flag."""

_SYNC_EACH = 16
"""Up to so many directories each is fsynced; beyond, one syncfs is cheaper."""


class DirectoryTimes:
    """Puts the mtimes of directories back where our own renames alone changed them."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[int, int, bool]] = {}

    @contextlib.contextmanager
    def around(self, fd: int) -> Iterator[None]:
        """Note what one change of ours does to the mtime of the directory behind `fd`."""
        before = os.fstat(fd)
        key = (before.st_dev, before.st_ino)
        first, last, ours = self._known.get(key, (before.st_mtime_ns, before.st_mtime_ns, True))
        try:
            yield
        finally:
            self._known[key] = (first, os.fstat(fd).st_mtime_ns, ours and last == before.st_mtime_ns)

    def resume(self, fd: int, first_ns: int, last_ns: int) -> None:
        """Take over what an earlier process noted: the mtime before its first change, and after its last."""
        now = os.fstat(fd)
        self._known[(now.st_dev, now.st_ino)] = (first_ns, last_ns, True)

    def restore(self, fd: int) -> None:
        """Put the mtime back to what it was before our first change, unless somebody else changed the directory."""
        now = os.fstat(fd)
        first, last, ours = self._known.get((now.st_dev, now.st_ino), (0, 0, False))
        if ours and now.st_mtime_ns == last:
            _set_mtime(fd, first)
            self._known[(now.st_dev, now.st_ino)] = (first, os.fstat(fd).st_mtime_ns, True)


def _set_mtime(fd: int, mtime_ns: int) -> None:
    """Set a directory's mtime, where that's permitted: another's directory keeps the one that our renames gave it."""
    with contextlib.suppress(PermissionError):
        os.utime(fd, ns=(os.fstat(fd).st_atime_ns, mtime_ns))


@contextlib.contextmanager
def open_parent(storage: LocalStorage, path: bytes) -> Iterator[int]:
    """The directory that holds a path, as a descriptor. Raises OSError."""
    fd = storage.open_directory(paths.parent(path))
    try:
        yield fd
    finally:
        os.close(fd)


def rename_new(source_fd: int, source: bytes, target_fd: int, target: bytes) -> bool:
    """Rename to a name that must not be taken; whether the filesystem itself saw to that.

    Raises OSError: FileExistsError where it is.
    """
    try:
        syscalls.renameat2(source_fd, source, target_fd, target, syscalls.RENAME_NOREPLACE)
    except OSError as error:
        if error.errno not in NO_FLAG:
            raise
    else:
        return True
    try:
        os.stat(target, dir_fd=target_fd, follow_symlinks=False)
    except FileNotFoundError:
        os.rename(source, target, src_dir_fd=source_fd, dst_dir_fd=target_fd)
        return False
    raise paths.error(errno.EEXIST, target)


def sync_parents(root: LocalStorage, operations: Iterable[Operation]) -> None:
    """Bring every directory that the operations touched onto the disk. Raises ChangedError, OSError."""
    parents = {paths.parent(operation.path) for operation in operations}
    if len(parents) > _SYNC_EACH:
        fd = root.open_directory(b"")
        try:
            syscalls.syncfs(fd)
        finally:
            os.close(fd)
        return
    for parent in parents:
        try:
            fd = root.open_directory(parent)
        except OSError as error:
            if error.errno in ELSEWHERE:
                raise ChangedError(parent) from error
            raise
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
