"""Two interrupts typed in a terminal: what stops, and what is left to the program."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

from tests.cli.conftest import Prompt
from tests.cli.terminals import INTERRUPT, Terminal, terminal

# A signal that comes just before a blocking `input` would be noticed only with the next line: hence the pipe.
_READER = """
import os, select, signal
caught, catching = os.pipe()
os.set_blocking(catching, False)
signal.signal(signal.SIGINT, lambda *_: None)
signal.set_wakeup_fd(catching)
print("go", flush=True)
line = ""
while line != "end":
    if caught in select.select([0, caught], [], [])[0]:
        os.read(caught, 1)
        print("caught", flush=True)
    else:
        line = os.read(0, 999).decode().strip()
        print("got", line, flush=True)
"""


def test_they_stop_a_command_that_ignores_them_and_the_sandbox(prompt: Prompt) -> None:
    with _opened(prompt, "sh", "-c", "trap '' INT; echo go; sleep 1000") as shown:
        shown.expect(b"go\r\n")
        shown.type(INTERRUPT)
        shown.type(INTERRUPT)
        shown.expect(b"stopping the command and the sandbox\r\n")
        assert shown.wait() > 128
        assert shown.modes() == shown.modes_before
    assert not os.path.lexists(prompt.overlay() / "keeper")


def test_they_do_so_however_long_the_second_takes_and_whatever_empty_lines_come_between(prompt: Prompt) -> None:
    counting = "trap '' INT; n=0; while :; do n=$((n + 1)); echo $n; sleep 0.1; done"
    with _opened(prompt, "sh", "-c", counting) as shown:
        shown.expect(b"1\r\n")
        shown.type(b"\r" + INTERRUPT)
        shown.expect(rb"\^C")
        for _ in range(15):
            shown.expect(rb"\d\r\n")
        shown.type(b"\r \r" + INTERRUPT + b"\r")
        shown.expect(b"stopping the command and the sandbox")
        assert shown.wait() > 128
    assert not os.path.lexists(prompt.overlay() / "keeper")


def test_they_leave_alone_what_the_first_one_ended(prompt: Prompt) -> None:
    with _opened(prompt, "sh", "-c", "echo go; sleep 1000") as shown:
        shown.expect(b"go\r\n")
        shown.type(INTERRUPT)
        shown.type(INTERRUPT)
        assert shown.wait() == 128 + signal.SIGINT
    assert os.path.lexists(prompt.overlay() / "keeper")


def test_they_are_the_programs_own_business_where_somebody_uses_it(prompt: Prompt) -> None:
    with _opened(prompt, "python3", "-c", _READER) as shown:
        shown.expect(b"go\r\n")
        shown.type(b"one\r")
        shown.expect(b"got one\r\n")
        for _ in range(2):
            shown.type(INTERRUPT)
            shown.expect(b"caught")
        shown.type(b"end\r")
        assert shown.wait() == 0
    assert os.path.lexists(prompt.overlay() / "keeper")


def test_three_stop_a_command_and_the_sandbox_though_somebody_used_it(prompt: Prompt) -> None:
    with _opened(prompt, "python3", "-c", _READER) as shown:
        shown.expect(b"go\r\n")
        shown.type(b"one\r")
        shown.expect(b"got one\r\n")
        shown.type(INTERRUPT * 3)
        shown.expect(b"stopping the command and the sandbox")
        assert shown.wait() > 128
    assert not os.path.lexists(prompt.overlay() / "keeper")


@contextlib.contextmanager
def _opened(prompt: Prompt, *command: str) -> Iterator[Terminal]:
    argv = [os.fsdecode(word) for word in prompt.argv("exec", "--", *command)]
    with terminal(argv, cwd=prompt.workspace, environment=prompt.environment) as shown:
        yield shown
