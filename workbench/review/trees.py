"""Whole trees, moved, copied and removed without following a symlink, however deep they are."""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable

from workbench.review.bases import look
from workbench.vfs import paths, syscalls
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind

_OPEN = 0o700


def remove_tree(storage: LocalStorage, path: bytes) -> None:
    """Remove an entry with everything below it; what isn't there is fine. Raises OSError."""
    found = look(storage, path)
    if found is None:
        return
    if found.stat.kind is not Kind.DIR:
        _in_parent(storage, path, lambda fd, name: os.unlink(name, dir_fd=fd))
        return
    waiting = [path]
    while waiting:
        here = waiting[-1]
        _make_accessible(storage, here)
        fd = storage.open_directory(here)
        try:
            below = []
            with os.scandir(fd) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        below.append(os.fsencode(entry.name))
                    else:
                        os.unlink(entry.name, dir_fd=fd)
        finally:
            os.close(fd)
        if below:
            waiting.extend(paths.join(here, name) for name in below)
        else:
            _in_parent(storage, here, lambda fd, name: os.rmdir(name, dir_fd=fd))
            waiting.pop()


def copy_tree(source: LocalStorage, path: bytes, target: LocalStorage, to: bytes) -> None:
    """Copy an entry with everything below it to a name that isn't taken; it's on disk when this returns.

    Bytes, holes, modes, times and link targets are kept, owners where that's permitted. A directory is left writable
    for its owner. Raises OSError.
    """
    waiting = [b""]
    while waiting:
        below = waiting.pop()
        here = paths.join(path, below)
        found = look(source, here)
        if found is None:
            raise paths.error(errno.ENOENT, here)
        stat = found.stat
        place = paths.join(to, below)
        parent_fd = target.open_directory(paths.parent(place))
        name = paths.name(place)
        try:
            if stat.kind is Kind.DIR:
                os.mkdir(name, _OPEN, dir_fd=parent_fd)
                waiting.extend(paths.join(below, child) for child in source.list(here))
            elif stat.kind is Kind.SYMLINK:
                os.symlink(source.readlink(here), name, dir_fd=parent_fd)
            elif stat.kind is Kind.FILE:
                _copy_file(source, here, name, parent_fd)
            else:
                raise paths.error(errno.EINVAL, here)
            if os.geteuid() == 0:
                os.chown(name, stat.uid, stat.gid, dir_fd=parent_fd, follow_symlinks=False)
            if stat.kind is not Kind.SYMLINK:
                mode = stat.mode | _OPEN if stat.kind is Kind.DIR else stat.mode
                os.chmod(name, mode, dir_fd=parent_fd)
            if stat.kind is not Kind.DIR:
                os.utime(name, ns=(stat.mtime_ns, stat.mtime_ns), dir_fd=parent_fd, follow_symlinks=False)
        finally:
            os.close(parent_fd)
    syscalls.syncfs(target.root_fd)


def move_tree(source: LocalStorage, path: bytes, target: LocalStorage, to: bytes) -> None:
    """Move an entry to a name that isn't taken: by rename within a filesystem, else as a copy that appears at once.

    A rename is on disk once the directory of `to` is synced. Raises OSError, with the entry still in its old place.
    """
    source_fd = source.open_directory(paths.parent(path))
    target_fd = target.open_directory(paths.parent(to))
    try:
        try:
            os.rename(paths.name(path), paths.name(to), src_dir_fd=source_fd, dst_dir_fd=target_fd)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
        else:
            return
        temporary = to + b".copy"
        remove_tree(target, temporary)
        copy_tree(source, path, target, temporary)
        os.rename(paths.name(temporary), paths.name(to), src_dir_fd=target_fd, dst_dir_fd=target_fd)
        # The copy must be there for good before the original goes.
        os.fsync(target_fd)
    finally:
        os.close(source_fd)
        os.close(target_fd)
    remove_tree(source, path)


def _copy_file(source: LocalStorage, path: bytes, name: bytes, parent_fd: int) -> None:
    source_fd = source.open_file(path)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, 0o600, dir_fd=parent_fd)
        try:
            syscalls.copy_data(source_fd, fd)
        finally:
            os.close(fd)
    finally:
        os.close(source_fd)


def _in_parent(storage: LocalStorage, path: bytes, act: Callable[[int, bytes], None]) -> None:
    fd = paths.open_below(storage.root_fd, paths.parent(path), os.O_PATH | os.O_DIRECTORY)
    try:
        act(fd, paths.name(path))
    finally:
        os.close(fd)


def _make_accessible(storage: LocalStorage, path: bytes) -> None:
    """Give the owner of a directory the rights to empty it."""
    fd = paths.open_below(storage.root_fd, path, os.O_PATH | os.O_DIRECTORY)
    try:
        mode = stat_module.S_IMODE(os.fstat(fd).st_mode)
        if mode & _OPEN != _OPEN:
            change_mode(fd, mode | _OPEN)
    finally:
        os.close(fd)


def change_mode(fd: int, mode: int) -> None:
    """Set the permission bits of the very inode behind a descriptor, O_PATH ones too. Raises OSError."""
    os.chmod(f"/proc/self/fd/{fd}", mode)
