"""Files of lines that only grow: each append is whole or not there, and what a crash tore is set aside."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import NamedTuple

from workbench.vfs.statefile import sync_directory, write_file

_BLOCK = 1 << 16


class Lines(NamedTuple):
    """The whole lines of a file, without their newlines, and what stands after the last of them."""

    whole: list[bytes]
    torn: bytes


def append(path: str, lines: bytes, *, durable: bool = True) -> str:
    """Add lines, each of which ends with a newline, in one piece: all or none of them, also for a reader beside.

    They are on disk when this returns, unless they needn't be `durable`. The file (mode 0600) is made where there is none.
    Returns where the torn end that a crash left was set aside, "" where there was none. Raises OSError, with the file as
    it was.
    """
    with locked(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, fcntl.LOCK_EX) as fd:
        size = os.fstat(fd).st_size
        end = _end_of_whole_lines(fd, size)
        aside = _set_aside(path, os.pread(fd, size - end, end)) if end < size else ""
        if aside:
            os.ftruncate(fd, end)
        try:
            written = 0
            while written < len(lines):
                written += os.write(fd, lines[written:])
            if durable:
                os.fsync(fd)
        except BaseException:
            os.ftruncate(fd, end)
            raise
        if durable and not end:
            sync_directory(os.path.dirname(path))
    return aside


def read(path: str) -> Lines:
    """The lines of a file, none where there is no file; who appends meanwhile waits for none of it. Raises OSError."""
    try:
        with locked(path, os.O_RDONLY, fcntl.LOCK_SH) as fd:
            size = os.fstat(fd).st_size
            end = _end_of_whole_lines(fd, size)
            torn = os.pread(fd, size - end, end)
            # Whole lines never change.
            fcntl.flock(fd, fcntl.LOCK_UN)
            with open(fd, "rb", closefd=False) as file:
                content = file.read(end)
    except FileNotFoundError:
        return Lines([], b"")
    return Lines(content.split(b"\n")[:-1], torn)


def last_line(path: str) -> bytes:
    """The last whole line, without its newline, empty where there is none; its cost doesn't grow with the file."""
    try:
        with locked(path, os.O_RDONLY, fcntl.LOCK_SH) as fd:
            end = _end_of_whole_lines(fd, os.fstat(fd).st_size)
            begin = _end_of_whole_lines(fd, end - 1) if end else 0
            return os.pread(fd, end - begin - 1, begin) if end else b""
    except FileNotFoundError:
        return b""


@contextlib.contextmanager
def locked(path: str, flags: int, operation: int) -> Iterator[int]:
    """The file, which nobody else is writing meanwhile."""
    while True:
        fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, operation)
            if _is_at(fd, path):
                yield fd
                return
            # It was removed between our open and our lock.
        finally:
            os.close(fd)


def _is_at(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def _end_of_whole_lines(fd: int, size: int) -> int:
    """Where the last newline before `size` ends, 0 where there is none."""
    if size and os.pread(fd, 1, size - 1) == b"\n":
        return size
    while size:
        start = max(0, size - _BLOCK)
        found = os.pread(fd, size - start, start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        size = start
    return 0


def _set_aside(path: str, torn: bytes) -> str:
    number = 1
    while os.path.lexists(f"{path}.torn-{number}"):
        number += 1
    aside = f"{path}.torn-{number}"
    write_file(aside, torn)
    return aside
