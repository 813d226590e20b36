"""The person's terminal while a command has it: raw mode, its size, keys on their way in."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Iterator

import anyio


@contextlib.contextmanager
def raw(fd: int) -> Iterator[None]:
    """Keys go through as they are for the while, ^C too; the terminal is put back as it was in any case."""
    before = termios.tcgetattr(fd)
    tty.setraw(fd, termios.TCSANOW)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def size(fd: int) -> tuple[int, int]:
    """Rows and columns; 24 and 80 where the terminal doesn't say."""
    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(fd)
        if rows and columns:
            return rows, columns
    return 24, 80


async def sizes(fd: int) -> AsyncIterator[tuple[int, int]]:
    """The new size each time the terminal is resized."""
    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            yield size(fd)


async def stdin_bytes() -> AsyncIterator[bytes]:
    """What arrives on standard input, as it arrives, to its end."""
    fd = sys.stdin.fileno()
    while True:
        try:
            await anyio.wait_readable(fd)
        except (OSError, ValueError):
            # A regular file or /dev/null can't be waited for, and never has to be.
            pass
        data = os.read(fd, 65536)
        if not data:
            return
        yield data
