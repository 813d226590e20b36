"""A terminal to run a command in: a pseudo-terminal of our own, with somebody who reads, types and resizes."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import typer

_SECONDS = 120.0
_OVER = b"\0over\0"
INTERRUPT, SUSPEND, END_OF_FILE = b"\x03", b"\x1a", b"\x04"


class Terminal:
    """A command with a controlling terminal of its own; `screen` is everything that it has shown."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, slave: int) -> None:
        self.process = process
        self.screen = b""
        self._seen = 0
        self._master = master
        self._slave = slave
        self.modes_before = termios.tcgetattr(slave)

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[object]:
        return termios.tcgetattr(self._slave)

    def expect(self, pattern: bytes, seconds: float = _SECONDS) -> re.Match[bytes]:
        """Wait until what was shown since the last match matches."""
        deadline = time.monotonic() + seconds
        while True:
            found = re.search(pattern, self.screen[self._seen :], re.DOTALL)
            if found:
                self._seen += found.end()
                return found
            assert self._read(deadline), f"{pattern!r} isn't shown, but {self.screen[self._seen :]!r}"

    def wait(self, seconds: float = _SECONDS) -> int:
        """Read on until the command has ended; its exit code."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it doesn't end; shown: {self.screen!r}"
            self._read(time.monotonic() + 0.02)
        while self._read(time.monotonic() + 0.02):
            pass
        # What it showed comes before what we show now, however late.
        os.write(self._slave, _OVER)
        while _OVER not in self.screen:
            assert self._read(deadline), f"the end isn't shown, but {self.screen!r}"
        self.screen = self.screen.replace(_OVER, b"")
        return self.process.returncode

    def _read(self, deadline: float) -> bool:
        """Take what is shown by the deadline; False where that is nothing."""
        if not select.select([self._master], [], [], max(0.0, deadline - time.monotonic()))[0]:
            return False
        self.screen += os.read(self._master, 65536)
        return True

    def close(self) -> None:
        """Close the terminal, as somebody who closes its window."""
        for fd in (self._master, self._slave):
            if fd >= 0:
                os.close(fd)
        self._master = self._slave = -1


def talk(commands: Sequence[Sequence[str]], answers: Sequence[bytes], asks: bytes) -> tuple[list[int], str]:
    """Run `workbench` commands at one terminal in this process, which saves their start; what they ended with, and showed.

    Somebody in another thread types an answer each time that what was shown since matches `asks`; after the last one the
    input ends where it's still asked for.
    """
    from workbench.cli.app import app  # heavy, and not needed by other tests of terminals

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 100, 0, 0))
    screen, seen, waiting = b"", 0, [*answers]

    def person() -> None:
        nonlocal screen, seen
        # The terminal's other end is closed when the command has ended.
        with contextlib.suppress(OSError):
            while data := os.read(master, 65536):
                screen += data
                while found := re.search(asks, screen[seen:]):
                    seen += found.end()
                    os.write(master, waiting.pop(0) + b"\n" if waiting else END_OF_FILE)

    before, codes = (sys.stdin, sys.stdout, sys.stderr), []
    thread = threading.Thread(target=person)
    thread.start()
    try:
        with open(slave, closefd=False) as sys.stdin, open(slave, "w", buffering=1, closefd=False) as sys.stdout:
            sys.stderr = sys.stdout
            for arguments in commands:
                try:
                    codes.append(app(list(arguments), standalone_mode=False) or 0)
                except typer.Exit as ended:
                    codes.append(ended.exit_code)
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        os.close(slave)
        thread.join()
        os.close(master)
    assert not waiting, f"not asked for {waiting!r}; shown: {screen!r}"
    return codes, screen.decode().replace("\r\n", "\n")


@contextlib.contextmanager
def terminal(
    argv: list[str], *, cwd: Path, environment: Mapping[str, str] | None = None, size: tuple[int, int] = (24, 80)
) -> Iterator[Terminal]:
    """Run a command in a new terminal; whatever still runs at the end is killed."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    process = subprocess.Popen(
        # The new session's first open of a terminal makes it the controlling one.
        ["sh", "-c", 'tty=$1; shift; exec "$@" <>"$tty" >&0 2>&0', "sh", os.ttyname(slave), *argv],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=cwd,
        env={**os.environ, **(environment or {}), "TERM": "xterm-256color"},
        start_new_session=True,
    )
    opened = Terminal(process, master, slave)
    try:
        yield opened
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        opened.close()
