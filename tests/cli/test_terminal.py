"""Commands in a terminal: what they see of it, what is typed at them, and the terminal as it is left."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator

import pytest

from tests.cli.conftest import Prompt
from tests.cli.terminals import END_OF_FILE, INTERRUPT, SUSPEND, Terminal, terminal
from tests.needed import need_program
from tests.waiting import wait_until

_PROMPT = b"ready> $"


@pytest.fixture(autouse=True)
def _the_sandbox_is_warm_before_and_idle_after(prompt: Prompt) -> Iterator[None]:
    prompt.run("true")
    keeper = _keeper(prompt)
    yield
    assert _keeper(prompt) == keeper
    wait_until(lambda: _running(prompt) == 0, "no command runs")


def _keeper(prompt: Prompt) -> int:
    return (prompt.overlay() / "keeper").readlink().stat().st_ino


def _running(prompt: Prompt) -> int:
    """How many processes there are inside, but for the sandbox's own and the one that counts."""
    script = (
        'for p in /proc/[0-9]*; do read -r name <$p/comm && case $name in workbench*|sh) ;; *) echo "$name";; esac; done'
        "; true"
    )
    shown = prompt("exec", "-q", "-T", "--", "sh", "-c", script).stdout
    return len(shown.split())


@contextlib.contextmanager
def opened(prompt: Prompt, *arguments: str, command: str = "exec", **options: object) -> Iterator[Terminal]:
    argv = [os.fsdecode(word) for word in prompt.argv(command, *arguments)]
    with terminal(argv, cwd=prompt.workspace, environment=prompt.environment, **options) as shown:  # type: ignore[arg-type]
        yield shown


@contextlib.contextmanager
def shell(prompt: Prompt) -> Iterator[Terminal]:
    """`workbench shell`, at its prompt."""
    with opened(prompt, command="shell") as shown:
        # Typed in two pieces, so that its echo isn't taken for the prompt.
        shown.type(b"bind 'set enable-bracketed-paste off'; PROMPT_COMMAND=; PS1='rea''dy> '\r")
        shown.expect(_PROMPT)
        yield shown


def test_where_the_command_has_a_terminal_so_has_the_one_inside(prompt: Prompt) -> None:
    script = "test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo $TERM"
    with opened(prompt, "--", "sh", "-c", script, size=(33, 101)) as shown:
        shown.expect(rb"/dev/pts/\d+\r\n33 101\r\nxterm-256color\r\n")
        assert shown.wait() == 0
        assert shown.modes() == shown.modes_before


def test_a_terminal_can_be_refused_and_asked_for(prompt: Prompt) -> None:
    with opened(prompt, "-T", "--", "sh", "-c", "test -t 0 || test -t 1 || echo none") as shown:
        shown.expect(b"none\r\n")
        assert shown.wait() == 0
    asked = prompt("exec", "-q", "-t", "--", "sh", "-c", "test -t 0 && test -t 1 && echo one", input=b"", stdin=None)
    assert asked.stdout == b"one\r\n"


def test_without_a_terminal_at_both_ends_there_is_none_inside(prompt: Prompt) -> None:
    argv = [os.fsdecode(word) for word in prompt.argv("exec", "-q", "--", "sh", "-c", "test -t 0; echo $?")]
    with terminal(
        ["sh", "-c", '"$@" | cat', "sh", *argv], cwd=prompt.workspace, environment=prompt.environment
    ) as shown:
        shown.expect(b"1\r\n")
        assert shown.wait() == 0


def test_colours_reach_the_terminal_as_the_command_wrote_them(prompt: Prompt) -> None:
    with opened(prompt, "--", "ls", "--color=auto", "-d", "src") as shown:
        shown.expect(rb"\x1b\[[0-9;]*msrc\x1b\[0m")
        assert shown.wait() == 0


def test_the_exit_code_is_the_commands_and_the_terminal_is_put_back(prompt: Prompt) -> None:
    with opened(prompt, "--", "sh", "-c", "stty raw -echo; exit 42") as shown:
        assert shown.wait() == 42
        assert shown.modes() == shown.modes_before


def test_what_is_typed_is_echoed_once_and_arrives(prompt: Prompt) -> None:
    with opened(prompt, "--", "sh", "-c", "echo go; read line; echo got $line") as shown:
        shown.expect(b"go\r\n")
        shown.type(b"hello\r")
        shown.expect(b"^hello\r\ngot hello\r\n")
        assert shown.wait() == 0


def test_end_of_file_can_be_typed(prompt: Prompt) -> None:
    with opened(prompt, "--", "sh", "-c", "echo go; cat; echo over") as shown:
        shown.expect(b"go\r\n")
        shown.type(b"line\r" + END_OF_FILE)
        shown.expect(b"line\r\n.*line\r\n.*over\r\n")
        assert shown.wait() == 0


def test_a_resize_reaches_the_command(prompt: Prompt) -> None:
    script = "trap 'stty size; exit 0' WINCH; echo go; while :; do sleep 0.05; done"
    with opened(prompt, "--", "bash", "-c", script) as shown:
        shown.expect(b"go\r\n")
        shown.resize(50, 132)
        shown.expect(b"50 132\r\n")
        assert shown.wait() == 0


def test_an_interrupt_typed_stops_the_command_and_not_the_sandbox(prompt: Prompt) -> None:
    with opened(prompt, "--", "sh", "-c", "echo go; exec sleep 1000") as shown:
        shown.expect(b"go\r\n")
        shown.type(INTERRUPT)
        assert shown.wait() == 128 + signal.SIGINT
        assert shown.modes() == shown.modes_before
        assert b"Traceback" not in shown.screen


def test_a_program_in_raw_mode_gets_every_key(prompt: Prompt) -> None:
    script = "import sys, tty; tty.setraw(0); print('go\\r'); keys = sys.stdin.buffer.raw.read(3); print(keys)"
    with opened(prompt, "--", "python3", "-c", script) as shown:
        shown.expect(b"go\r\n")
        shown.type(INTERRUPT + SUSPEND + b"\x1c")
        shown.expect(rb"b'\\x03\\x1a\\x1c'")
        assert shown.wait() == 0
        assert shown.modes() == shown.modes_before


def test_a_program_that_ends_badly_leaves_a_usable_terminal(prompt: Prompt) -> None:
    with opened(prompt, "--", "sh", "-c", "stty raw -echo; kill -9 $$") as shown:
        assert shown.wait() == 128 + signal.SIGKILL
        assert shown.modes() == shown.modes_before


def test_the_terminal_is_put_back_where_the_sandbox_is_stopped_underneath(fresh_prompt: Prompt) -> None:
    fresh_prompt.run("true")
    with opened(fresh_prompt, "--", "sh", "-c", "echo go; exec sleep 1000") as shown:
        shown.expect(b"go\r\n")
        fresh_prompt("stop")
        assert shown.wait() in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
        assert shown.modes() == shown.modes_before
        assert b"ended by stop" in shown.screen


def test_the_terminal_is_put_back_where_the_client_is_terminated(prompt: Prompt) -> None:
    with opened(prompt, "--", "sh", "-c", "echo go; exec sleep 1000") as shown:
        shown.expect(b"go\r\n")
        shown.process.send_signal(signal.SIGTERM)
        assert shown.wait() == 128 + signal.SIGTERM
        assert shown.modes() == shown.modes_before


def test_closing_the_window_ends_the_command(prompt: Prompt) -> None:
    with opened(prompt, "--", "sh", "-c", "trap '' HUP; echo go; sleep 1000") as shown:
        shown.expect(b"go\r\n")
        shown.close()
        assert shown.process.wait(timeout=120) != 0


def test_a_command_that_isnt_there_leaves_the_terminal_as_it_was(prompt: Prompt) -> None:
    with opened(prompt, "--", "no-such-command") as shown:
        shown.expect(rb"\[command_not_found\]")
        assert shown.wait() == 127
        assert shown.modes() == shown.modes_before


# It waits for the signal itself: a handler of Python's may run only after the call that it should have interrupted.
_SAYS_WHEN_IT_GOES_ON = (
    b"import signal as s; s.signal(s.SIGINT, s.SIG_DFL); s.pthread_sigmask(s.SIG_BLOCK, [s.SIGCONT]); "
    b'print("go", flush=True); s.sigwait([s.SIGCONT]); print("on", flush=True); s.pause()'
)


def test_a_shell_has_job_control(prompt: Prompt) -> None:
    with shell(prompt) as shown:
        # What it says comes once it has the terminal, so that the next key is for it.
        shown.type(b"python3 -c '" + _SAYS_WHEN_IT_GOES_ON + b"'\r")
        shown.expect(b"go\r\n")
        shown.type(SUSPEND)
        shown.expect(rb"\[1\]\+\s+Stopped\s+python3.*ready> $")
        shown.type(b"jobs\r")
        shown.expect(rb"\[1\]\+\s+Stopped.*ready> $")
        shown.type(b"fg\r")
        shown.expect(b"on\r\n")
        shown.type(INTERRUPT)
        shown.expect(b"ready> $")
        shown.type(b"echo $?\r")
        shown.expect(b"130\r\nready> $")
        shown.type(b"exit 7\r")
        assert shown.wait() == 7
        assert shown.modes() == shown.modes_before


def test_interrupts_at_a_shells_prompt_leave_shell_and_sandbox_alone(prompt: Prompt) -> None:
    with shell(prompt) as shown:
        for _ in range(4):
            # Echoed by the shell itself, which therefore is reading.
            shown.type(b"x")
            shown.expect(b"x")
            # Now and then bash itself acts on one only with the next key: hence the Return.
            shown.type(INTERRUPT + b"\r")
            shown.expect(_PROMPT)
        shown.type(b"echo alive $((1 + 1))\r")
        shown.expect(b"alive 2\r\n")
        shown.type(END_OF_FILE)
        shown.wait()


def test_a_shell_starts_where_the_person_is(prompt: Prompt) -> None:
    argv = [os.fsdecode(word) for word in prompt.argv("shell")]
    with terminal(argv, cwd=prompt.workspace / "src" / "deep", environment=prompt.environment) as shown:
        shown.type(b"pwd; exit\r")
        shown.expect(os.fsencode(prompt.workspace / "src" / "deep") + b"\r\n")
        assert shown.wait() == 0


def test_a_shell_reads_a_script_from_a_pipe(prompt: Prompt) -> None:
    done = prompt("shell", "-q", stdin=None, input=b"echo from a pipe; exit 3\n", code=3)
    assert done.stdout == b"from a pipe\n"


def test_a_commit_leaves_an_attached_shell_alone_unless_told_to_stop_it(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh("echo new >new-file")
    digest = fresh_prompt.digest()
    with shell(fresh_prompt) as shown:
        for command in ("discard", "refresh"):
            said = fresh_prompt(command, code=1)
            assert b"[sandbox_busy]" in said.stderr
        fresh_prompt("commit", "--digest", digest, code=1)
        assert not (fresh_prompt.workspace / "new-file").exists()
        fresh_prompt("commit", "--digest", digest, "--stop")
        assert (fresh_prompt.workspace / "new-file").read_text() == "new\n"
        shown.expect(b"ended by commit")
        assert shown.wait() in (128 + signal.SIGTERM, 128 + signal.SIGKILL, 128 + signal.SIGHUP)
        assert shown.modes() == shown.modes_before


def test_much_output_in_a_terminal_comes_whole(prompt: Prompt) -> None:
    with opened(prompt, "--", "seq", "20000") as shown:
        shown.expect(b"\r\n20000\r\n")
        assert shown.wait() == 0
        assert shown.screen.split(b"workbench:")[0] == b"".join(b"%d\r\n" % number for number in range(1, 20001))


def test_an_interrupt_while_nothing_runs_yet_or_any_more_is_quiet(prompt: Prompt) -> None:
    """Typed again and again, and each time later, it hits the client at every stage of its life."""
    for tenths in range(1, 8):
        with opened(prompt, "--", "true") as shown:
            pause = tenths / 10
            while shown.process.poll() is None:
                with contextlib.suppress(AssertionError):
                    shown.expect(b"nothing of the kind", seconds=pause)
                shown.type(INTERRUPT)
                pause = 0.03
            code = shown.wait()
            if b"Traceback" in shown.screen or b"Fatal Python error" in shown.screen:
                # Before `main` it's Python itself that is interrupted.
                assert not re.search(rb'workbench/cli/\w+\.py", line \d+, in main', shown.screen), shown.screen
            else:
                assert code in (0, 128 + signal.SIGINT, -signal.SIGINT), shown.screen
            assert shown.modes() == shown.modes_before


def test_a_person_in_tmux_has_it_as_in_any_terminal(prompt: Prompt, tmp_path: object) -> None:
    need_program("tmux")
    socket = ["tmux", "-S", f"{tmp_path}/tmux", "-f", "/dev/null"]

    def screen() -> str:
        return subprocess.run([*socket, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout

    argv = [os.fsdecode(word) for word in prompt.argv("exec", "--", "sh", "-c", "tput colors; stty size; read x")]
    subprocess.run([*socket, "new-session", "-d", "-x", "90", "-y", "20", *argv], env=prompt.environment, check=True)
    try:
        wait_until(lambda: "19 90" in screen() or "20 90" in screen(), "the size is shown")
        subprocess.run([*socket, "send-keys", "Enter"], check=True)
        wait_until(
            lambda: subprocess.run([*socket, "has-session"], capture_output=True, check=False).returncode, "over"
        )
    finally:
        subprocess.run([*socket, "kill-server"], capture_output=True, check=False)
