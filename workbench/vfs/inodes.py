"""How a new inode becomes an entry of an upper layer on disk: its content, owner, attributes, mode and times."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat as stat_module
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from workbench.vfs import marks, paths, syscalls
from workbench.vfs.layers import Entry
from workbench.vfs.storage import Kind

_NEW_FILE = 0o600
_NEW_DIRECTORY = 0o700
_CHUNK = 1 << 20


def fill(dir_fd: int, staged: bytes, entry: Entry, path: bytes) -> None:
    """Make a new inode of an entry's kind, with its content; `path` is where it will be. Raises OSError."""
    if entry.kind is Kind.FILE:
        with create(dir_fd, staged, _NEW_FILE) as file:
            write(file, entry.content)
            if entry.owner is not None:
                # As the kernel does: else a power cut could leave an empty file in place of what was there before.
                os.fdatasync(file.fileno())
    elif entry.kind is Kind.DIR:
        os.mkdir(staged, _NEW_DIRECTORY, dir_fd=dir_fd)
    elif entry.kind is Kind.SYMLINK:
        os.symlink(entry.target, staged, dir_fd=dir_fd)
    elif entry.kind in (Kind.FIFO, Kind.SOCKET):
        kind = stat_module.S_IFIFO if entry.kind is Kind.FIFO else stat_module.S_IFSOCK
        os.mknod(staged, kind | _NEW_FILE, dir_fd=dir_fd)
    else:
        raise paths.error(errno.EPERM, path)


def dress(fd: int, entry: Entry, *, mark: bool) -> None:
    """Set all metadata of a new inode: owner, attributes, mode, and last the time; `mark` it as copied up. Raises OSError."""
    target = marks.itself(fd)
    if entry.owner is not None:
        _give(fd, *entry.owner)
    for name, value in entry.xattrs.items():
        _set_attribute(target, name, value)
    if mark and (entry.kind is Kind.DIR or (entry.kind is Kind.FILE and entry.single)):
        # An empty one is the kernel's own word for "copied up, from where isn't known".
        os.setxattr(target, marks.ORIGIN, marks.origin_of(entry.origin))
    if entry.kind is not Kind.SYMLINK:
        os.chmod(target, entry.mode)
    if entry.mtime_ns is not None:
        os.utime(target, ns=(entry.mtime_ns, entry.mtime_ns))


def create(dir_fd: int, name: bytes, mode: int) -> io.FileIO:
    """A new file, open for writing; `mode` is subject to the umask. Raises FileExistsError, OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return io.FileIO(os.open(name, flags, mode, dir_fd=dir_fd), "wb")


def write(file: io.FileIO, content: BinaryIO | bytes) -> None:
    """Write all of a content; what comes from a file keeps its holes. Raises OSError."""
    if isinstance(content, io.BufferedReader) and isinstance(content.raw, io.FileIO):
        syscalls.copy_data(content.fileno(), file.fileno())
    elif isinstance(content, bytes | bytearray | memoryview):
        view = memoryview(content)
        while view:
            view = view[file.write(view) :]
    else:
        while data := content.read(_CHUNK):
            write(file, data)


def _give(fd: int, uid: int, gid: int) -> None:
    found = os.fstat(fd)
    if (found.st_uid, found.st_gid) == (uid, gid):
        return
    target = marks.itself(fd)
    try:
        os.chown(target, uid, gid, follow_symlinks=True)
    except PermissionError:
        if os.geteuid() == 0:
            raise
        # Not ours to give away: it stays ours, and in the group only if we're in it.
        with contextlib.suppress(PermissionError):
            os.chown(target, -1, gid)


def hand_over(dir_fd: int, name: bytes, uid: int, gid: int) -> None:
    """Give a new entry to somebody; a group that its directory handed down stays."""
    found = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    group = gid if found.st_gid == os.getegid() else -1
    os.chown(name, uid, group, dir_fd=dir_fd, follow_symlinks=False)


def _set_attribute(target: bytes, name: bytes, value: bytes) -> None:
    try:
        os.setxattr(target, name, value)
    except OSError as error:
        # What belongs to the system isn't everyone's to copy.
        if name.startswith(b"user.") or error.errno not in (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP):
            raise


@contextmanager
def unchanged(dir_fd: int) -> Iterator[None]:
    """Keep a directory's times over a change that the merged view doesn't show, and that its mode is no bar to."""
    target = marks.itself(dir_fd)
    found = os.fstat(dir_fd)
    mode = stat_module.S_IMODE(found.st_mode)
    locked = found.st_uid == os.geteuid() != 0 and mode & _NEW_DIRECTORY != _NEW_DIRECTORY
    if locked:
        os.chmod(target, mode | _NEW_DIRECTORY)
    try:
        yield
    finally:
        if locked:
            os.chmod(target, mode)
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
