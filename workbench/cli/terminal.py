"""The person's terminal while a command has it: raw mode, its size, keys on their way in.

What needs an event loop imports it itself: not everything here does.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
import sys
import termios
import tty
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator


@contextlib.contextmanager
def raw(fd: int) -> Iterator[None]:
    """Keys go through as they are for the while, ^C too; the terminal is put back as it was in any case."""
    before = termios.tcgetattr(fd)
    tty.setraw(fd, termios.TCSANOW)
    try:
        yield
    finally:
        # One that was closed meanwhile has no modes any more.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextlib.contextmanager
def echo(fd: int, wanted: bool) -> Iterator[None]:
    """Whether the terminal shows keys as they are typed, for the while."""
    before = termios.tcgetattr(fd)
    modes = termios.tcgetattr(fd)
    modes[3] = modes[3] | termios.ECHO if wanted else modes[3] & ~termios.ECHO
    termios.tcsetattr(fd, termios.TCSANOW, modes)
    try:
        yield
    finally:
        # One that was closed meanwhile has no modes any more.
        with contextlib.suppress(termios.error):
            termios.tcsetattr(fd, termios.TCSADRAIN, before)


def is_raw(fd: int) -> bool:
    """Whether it's a terminal in which a line feed alone doesn't lead back to the left."""
    try:
        return not termios.tcgetattr(fd)[1] & termios.OPOST
    except termios.error:
        return False


def size(fd: int) -> tuple[int, int]:
    """Rows and columns; 24 and 80 where the terminal doesn't say."""
    with contextlib.suppress(OSError):
        columns, rows = os.get_terminal_size(fd)
        if rows and columns:
            return rows, columns
    return 24, 80


async def sizes(fd: int) -> AsyncIterator[tuple[int, int]]:
    """The new size each time the terminal is resized."""
    import anyio

    with anyio.open_signal_receiver(signal.SIGWINCH) as signals:
        async for _ in signals:
            yield size(fd)


def ending_signals() -> tuple[signal.Signals, ...]:
    """By which a person ends what runs here: ^C, a SIGTERM, and a closed terminal, but where nohup(1) is to outlive that."""
    always = (signal.SIGINT, signal.SIGTERM)
    return always if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*always, signal.SIGHUP)


async def stdin_bytes() -> AsyncIterator[bytes]:
    """What arrives on standard input, as it arrives, to its end."""
    import anyio

    fd = sys.stdin.fileno()
    while True:
        try:
            await anyio.wait_readable(fd)
        except (OSError, ValueError):
            # A regular file or /dev/null can't be waited for, and never has to be.
            pass
        try:
            data = os.read(fd, 65536)
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # a terminal that was closed
        if not data:
            return
        yield data


@contextlib.contextmanager
def unblocked(fd: int) -> Iterator[int]:
    """A descriptor of the same stream for writing, that doesn't block where a reader is slow.

    It's opened anew for that: to make the one that we share with others non-blocking would change theirs.
    """
    own = -1
    if stat.S_IFMT(os.fstat(fd).st_mode) in (stat.S_IFIFO, stat.S_IFCHR):
        with contextlib.suppress(OSError):
            own = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        yield fd if own < 0 else own
    finally:
        if own >= 0:
            os.close(own)


@contextlib.contextmanager
def writer(fd: int) -> Iterator[Callable[[bytes], Awaitable[None]]]:
    """A function that writes to a stream of this process, and where a reader is slow waits without blocking the rest."""
    import anyio

    with unblocked(fd) as target:

        async def write(data: bytes) -> None:
            view = memoryview(data)
            while view:
                try:
                    view = view[os.write(target, view) :]
                except BlockingIOError:
                    await anyio.wait_writable(target)

        yield write
