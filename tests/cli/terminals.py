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
import termios
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

_SECONDS = 30.0
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
