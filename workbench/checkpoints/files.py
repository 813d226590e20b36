"""Files of a store: replaced whole, and temporary ones that are locked by their writer, so that dead writers' are told."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

PREFIX = "tmp_"
"""What every temporary file's name begins with; git, too, ignores such files beside its packs."""


def create_temporary(dir_fd: int, kind: str) -> tuple[str, int]:
    """Make an empty file (mode 0600) in a directory, open for reading and writing, locked until it's closed.

    `kind` becomes part of the name. Returns the name and the descriptor, which the caller closes. Raises OSError.
    """
    while True:
        name = f"{PREFIX}{kind}_{os.urandom(8).hex()}"
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            # A sweep may have taken it for a dead writer's before it was locked.
            if os.fstat(fd).st_nlink:
                return name, fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def sweep(directory: str) -> None:
    """Remove the temporary files in a directory whose writers are gone. Raises OSError."""
    for path in _free(directory):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)


def abandoned(directory: str) -> list[str]:
    """The paths of the temporary files in a directory whose writers are gone. Raises OSError."""
    return list(_free(directory))


def _free(directory: str) -> Iterator[str]:
    """The temporary files that nobody writes, each locked for as long as it's looked at."""
    for name in os.listdir(directory):
        if not name.startswith(PREFIX):
            continue
        path = os.path.join(directory, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            continue
        try:
            yield path
        finally:
            os.close(fd)


def replace(path: str, content: bytes) -> None:
    """Replace a file by `content` (mode 0600): whole or not at all, and on disk when this returns. Raises OSError."""
    directory, name = os.path.split(path)
    dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        # A name that begins with a dot is no reference to git.
        new = f".{name}.{os.urandom(8).hex()}"
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
        try:
            with open(fd, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.rename(new, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
        except BaseException:
            os.unlink(new, dir_fd=dir_fd)
            raise
        os.fsync(dir_fd)
    finally:
        os.close(dir_fd)


def probe(directory: str) -> os.stat_result:
    """The stat of a file made in a directory this moment, and gone again: its ctime is that filesystem's clock.

    Raises OSError.
    """
    dir_fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        name, fd = create_temporary(dir_fd, "clock")
        try:
            os.unlink(name, dir_fd=dir_fd)
            return os.fstat(fd)
        finally:
            os.close(fd)
    finally:
        os.close(dir_fd)
