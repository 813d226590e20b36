"""A terminal with a screen that can be looked at: tmux, with a server of its own for each command."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import termios
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until

_SECONDS = 60.0


class Screen:
    """A command on a screen of tmux's, and somebody who looks and types."""

    def __init__(self, directory: Path) -> None:
        self._server = str(directory / "tmux")
        self._code = directory / "code"

    def type(self, text: str, *keys: str) -> None:
        """Type a text, then keys by tmux's names for them."""
        if text:
            self.tmux("send-keys", "-t", "0", "-l", "--", text)
        if keys:
            self.tmux("send-keys", "-t", "0", *keys)

    def say(self, text: str) -> None:
        """Type a text and Enter."""
        self.type(text, "Enter")

    def paste(self, text: str) -> None:
        """Paste as a terminal does, in brackets where the program has asked for them."""
        self.tmux("set-buffer", "--", text)
        self.tmux("paste-buffer", "-p", "-t", "0")

    def clear(self) -> None:
        """Clear the screen at a prompt, so that what comes is new."""
        self.type("", "C-l")
        wait_until(lambda: self.text().strip() == ">", "an empty screen", seconds=_SECONDS)

    def waiting(self) -> int:
        """How many bytes of whole lines were typed that nobody has read yet."""
        terminal = os.open(self.tmux("display", "-p", "-t", "0", "#{pane_tty}").strip(), os.O_RDONLY | os.O_NOCTTY)
        try:
            return int.from_bytes(fcntl.ioctl(terminal, termios.FIONREAD, bytes(4)), sys.byteorder)
        finally:
            os.close(terminal)

    def resize(self, columns: int, rows: int) -> None:
        self.tmux("resize-window", "-t", "0", "-x", str(columns), "-y", str(rows))

    def text(self) -> str:
        """What is on the screen."""
        return self.tmux("capture-pane", "-p", "-t", "0")

    def wait(self, *texts: str, last: str = "") -> str:
        """Wait until all of these are on the screen, and `last` is its last line where one is given; the screen."""
        shown = ""

        def fits() -> bool:
            nonlocal shown
            shown = self.text()
            return all(text in shown for text in texts) and (not last or shown.rstrip().split("\n")[-1] == last)

        try:
            wait_until(fits, seconds=_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"the screen doesn't show {texts}, but:\n{shown}") from error
        return shown

    def ended(self) -> int:
        """Wait for the end of the command; its exit code."""
        try:
            return int(wait_until(lambda: self._code.exists() and self._code.read_text(), seconds=_SECONDS))
        except AssertionError as error:
            raise AssertionError("the command doesn't end") from error

    def tmux(self, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
        """Give the server a command; what it prints."""
        argv = ["tmux", "-u", "-S", self._server, *arguments]
        done = subprocess.run(argv, check=True, capture_output=True, text=True, encoding="utf-8", env=environment)
        return done.stdout


@contextmanager
def screen(
    argv: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None, size: tuple[int, int] = (80, 24)
) -> Iterator[Screen]:
    """Run a command on a new screen of so many columns and rows; at the end it's hung up, and has to end."""
    directory = Path(tempfile.mkdtemp(prefix="screen-"))
    shown = Screen(directory)
    # The server, and all that it starts, has the environment of whoever starts it.
    own = {**os.environ, "LC_ALL": "C.UTF-8", **(environment or {})}
    own.pop("TMUX", None)
    columns, rows = map(str, size)
    # Signals of the terminal's are the command's, and the shell outlives it.
    script = 'trap : INT HUP TERM; "$@"; echo $? >"$0.new"; mv "$0.new" "$0"'
    kept = ["sh", "-c", script, str(directory / "code"), *argv]
    begin = ["new-session", "-d", "-x", columns, "-y", rows, "-c", str(cwd), "--", *kept]
    options = ["set-option", "-g", "remain-on-exit", "on", ";", "set-option", "-g", "status", "off", ";"]
    try:
        shown.tmux("-f", "/dev/null", "start-server", ";", *options, *begin, environment=own)
        try:
            yield shown
        finally:
            shown.tmux("kill-server")
            shown.ended()
    finally:
        shutil.rmtree(directory)
