"""Commands in the background on the command line: `exec -d`, `ps`, `logs`, `attach`, `wait`, `kill`, `port`."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.conftest import Prompt
from tests.cli.terminals import INTERRUPT, Terminal, terminal
from tests.conftest import ROOT
from tests.waiting import wait_until

_DETACH = b"\x10\x11"


def start(prompt: Prompt, script: str, *options: str) -> str:
    """The id of a script that was started in the background."""
    return prompt("exec", "-d", *options, "--", "sh", "-c", script).stdout.decode().strip()


def jobs(prompt: Prompt) -> dict[str, dict[str, Any]]:
    """What `ps` lists, by id."""
    return {job["id"]: job for job in json.loads(prompt("ps", "--json").stdout)["jobs"]}


@contextlib.contextmanager
def opened(prompt: Prompt, *command: str) -> Iterator[Terminal]:
    argv = [os.fsdecode(word) for word in prompt.argv(*command)]
    with terminal(argv, cwd=prompt.workspace, environment=prompt.environment) as shown:
        yield shown


@pytest.mark.parametrize("backend", ["docker", "namespace"])
def test_a_command_goes_on_in_the_background_and_is_found_again(fresh_prompt: Prompt, backend: str) -> None:
    prompt = fresh_prompt
    name = start(
        prompt, "echo out; echo err >&2; while ! test -e go; do sleep 0.01; done; exit 7", "--backend", backend
    )
    found = jobs(prompt)[name]
    assert (found["state"], found["background"], found["argv"][:2]) == ("running", True, ["sh", "-c"])
    assert (found["exit_code"], found["client"], found["tty"]) == (None, 0, False)
    assert name.encode() in prompt("ps").stdout
    waiting = subprocess.Popen(prompt.argv("wait", name), env=prompt.environment, cwd=ROOT)
    prompt.run("touch", "go")
    assert waiting.wait(timeout=120) == 7
    assert prompt("attach", "--no-stdin", name[:6], code=7).stdout == b"out\n"
    kept = prompt("logs", name)
    assert (kept.stdout, kept.stderr) == (b"out\n", b"err\n")
    told = json.loads(prompt("logs", "--json", name).stdout)
    assert (told["state"], told["stdout"], told["stderr"], told["omitted_bytes"]) == ("ended", "out\n", "err\n", 0)
    ended = json.loads(prompt("wait", "--json", name, code=7).stdout)["jobs"][0]
    assert (ended["state"], ended["exit_code"], ended["ended_by"]) == ("ended", 7, None)


def test_what_never_ran_has_the_exit_codes_of_any_command(prompt: Prompt) -> None:
    said = prompt("exec", "-d", "--", "no-such-command", code=127)
    assert said.stdout == b""
    told = json.loads(prompt("exec", "-d", "--json", "--", "./README.md", code=126).stdout)
    assert (told["exit_code_of"], told["error"]["code"]) == ("workbench", "command_not_executable")
    prompt("exec", "-i", "--", "true", code=2)
    prompt("exec", "-d", "--max-output", "9", "--", "true", code=2)


def test_it_starts_where_the_caller_is_with_what_was_given(prompt: Prompt) -> None:
    told = prompt("exec", "-d", "--json", "-e", "A=b", "--", "sh", "-c", "pwd; echo $A", cwd=prompt.workspace / "src")
    name = json.loads(told.stdout)["id"]
    prompt("wait", name)
    assert prompt("logs", name).stdout.decode() == f"{prompt.workspace / 'src'}\nb\n"


def test_its_time_limit_ends_it(prompt: Prompt) -> None:
    name = start(prompt, "sleep 1000", "--timeout", "0.3")
    prompt("wait", name, code=124)


def test_what_is_piped_into_attach_reaches_it(prompt: Prompt) -> None:
    name = prompt("exec", "-d", "-i", "--", "cat").stdout.decode().strip()
    options: dict[str, object] = {"stdin": None, "input": b"one\ntwo\n"}
    assert prompt("attach", name, **options).stdout == b"one\ntwo\n"
    assert prompt("logs", name).stdout == b"one\ntwo\n"


def test_a_follower_sees_what_comes_and_leaves_it_running(prompt: Prompt) -> None:
    name = start(
        prompt, "for n in 1 2 3; do echo $n; done; while ! test -e on; do sleep 0.01; done; echo 4; sleep 1000"
    )
    wait_until(lambda: prompt("logs", name).stdout == b"1\n2\n3\n", "it has written")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    for command in (["logs", "-f", "--tail", "1"], ["attach", "--no-stdin"]):
        following = subprocess.Popen(prompt.argv(*command, name), env=prompt.environment, cwd=ROOT, **pipes)
        assert following.stdout is not None
        if command[0] == "logs":
            assert following.stdout.readline() == b"3\n"
            prompt.run("touch", "on")
            assert following.stdout.readline() == b"4\n"
        else:
            assert [following.stdout.readline() for _ in range(4)] == [b"1\n", b"2\n", b"3\n", b"4\n"]
        following.send_signal(signal.SIGINT)
        out, err = following.communicate(timeout=120)
        assert out == b""
        if command[0] == "attach":
            assert following.returncode == 0
            assert b"which goes on" in err
    assert jobs(prompt)[name]["state"] == "running"
    prompt("kill", name)


def test_kill_ends_it_with_all_it_started_and_names_it(prompt: Prompt) -> None:
    name = start(prompt, "setsid -f sleep 4321; trap '' TERM; echo here; sleep 4321")
    wait_until(lambda: prompt("logs", name).stdout == b"here\n", "it runs")
    said = prompt("kill", name)
    assert f"ended {name}".encode() in said.stderr
    found = jobs(prompt)[name]
    assert (found["state"], found["signal"], found["ended_by"]) == ("ended", "SIGKILL", "kill")
    assert b"4321" not in prompt.sh("cat /proc/[0-9]*/cmdline").stdout
    assert json.loads(prompt("kill", "--json", name).stdout)["jobs"][0]["state"] == "ended"


def test_kill_with_a_signal_only_sends_that(prompt: Prompt) -> None:
    name = start(
        prompt, "trap 'echo caught' USR1; trap 'echo bye; exit 3' HUP; echo here; while :; do sleep 0.01; done"
    )
    wait_until(lambda: prompt("logs", name).stdout == b"here\n", "it runs")
    prompt("kill", "-s", "SIGUSR1", name)
    wait_until(lambda: prompt("logs", name).stdout == b"here\ncaught\n", "it has caught the signal")
    prompt("kill", "-s", "1", name)
    prompt("wait", name, code=3)
    prompt("kill", "-s", "NONSENSE", name, code=2)
    prompt("kill", "-s", "99", name, code=2)


def test_an_unknown_name_is_an_error_with_what_to_do(prompt: Prompt) -> None:
    prompt.run("true")
    for command in (["logs"], ["attach"], ["wait"], ["kill"]):
        said = prompt(*command, "nonsense", code=1)
        assert b"[job_not_found]" in said.stderr
        assert b"workbench ps" in said.stderr


def test_without_a_sandbox_nothing_runs(fresh_prompt: Prompt) -> None:
    assert jobs(fresh_prompt) == {}
    assert b"[job_not_found]" in fresh_prompt("kill", "1", code=1).stderr
    assert json.loads(fresh_prompt("stop", "--json").stdout)["ended"] == []


@pytest.mark.parametrize("command", ["stop", "refresh", "discard", "commit"])
def test_who_ends_it_says_which(prompt: Prompt, command: str) -> None:
    name = start(prompt, "echo x >file; sleep 1000")
    wait_until(lambda: b"+x" in prompt("diff").stdout, "it has written")
    arguments = ["--digest", prompt.digest()] if command == "commit" else []
    told = json.loads(prompt(command, "--json", *arguments).stdout)
    assert [(one["id"], one["ended_by"], one["argv"][0]) for one in told["ended"]] == [(name, command, "sh")]
    if command == "commit":
        assert told["ended_processes"] == 1
        (prompt.workspace / "file").unlink()
    name = start(prompt, "echo y >>file; sleep 1000")
    wait_until(lambda: b"+y" in prompt("diff").stdout, "it has written")
    arguments = ["--digest", prompt.digest()] if command == "commit" else []
    said = prompt(command, *arguments)
    assert f"ended {name}, which ran in the background".encode() in said.stderr
    (prompt.workspace / "file").unlink(missing_ok=True)
    prompt("discard")


def test_two_interrupts_leave_what_runs_in_the_background(prompt: Prompt) -> None:
    name = start(prompt, "sleep 1000")
    with opened(prompt, "exec", "--", "sh", "-c", "trap '' INT; echo go; sleep 1000") as shown:
        shown.expect(b"go\r\n")
        shown.type(INTERRUPT)
        shown.type(INTERRUPT)
        shown.expect(b"stopping the command; the sandbox stays")
        assert shown.wait() > 128
    assert jobs(prompt)[name]["state"] == "running"
    prompt("kill", name)


def test_two_interrupts_without_a_terminal_leave_what_runs_in_the_background(prompt: Prompt) -> None:
    name = start(prompt, "sleep 1000")
    script = "trap 'echo caught' INT; echo go; while :; do sleep 0.01; done"
    with prompt.start("--", "sh", "-c", script) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"go\n"
        running.send_signal(signal.SIGINT)
        assert running.stdout.readline() == b"caught\n"
        running.send_signal(signal.SIGINT)
        assert b"stopping the command; the sandbox stays" in running.stderr.read()
        assert running.wait(timeout=120) == 128 + signal.SIGINT
    left = jobs(prompt)
    assert left[name]["state"] == "running"
    assert not any(script in job["argv"] for job in left.values())
    prompt("kill", name)


def test_a_terminal_in_the_background_is_attached_left_and_attached_again(prompt: Prompt) -> None:
    name = prompt("exec", "-d", "-t", "-e", "PS1=READY>", "-e", "TERM=dumb", "--", "bash", "--norc", "-i")
    shell = name.stdout.decode().strip()
    with opened(prompt, "attach", shell) as shown:
        shown.expect(b"READY>")
        shown.type(b"cd src; A=kept\r")
        shown.expect(b"READY>")
        shown.type(b"\x10x\x7f")  # a ^P alone is the shell's
        shown.type(_DETACH)
        shown.expect(b"which goes on")
        assert shown.wait() == 0
        assert shown.modes() == shown.modes_before
    with opened(prompt, "attach", shell) as shown:
        shown.expect(b"READY>")
        shown.type(b"\x15echo $A in ${PWD##*/}\r")
        shown.expect(b"kept in src")
        shown.resize(41, 123)
        shown.expect(b"READY>")

        def has_grown() -> bool:
            shown.type(b"stty size\r")
            return b"41 123" in shown.expect(rb"(\d+ \d+)\r\n")[0]

        wait_until(has_grown, "it has heard of the new size")
        shown.type(b"exit 5\r")
        assert shown.wait() == 5
        assert shown.modes() == shown.modes_before


def test_a_shell_that_nobody_is_attached_to_doesnt_keep_a_commit_from_ending_it(prompt: Prompt) -> None:
    name = prompt("exec", "-d", "-t", "--", "sh").stdout.decode().strip()
    with opened(prompt, "attach", name) as shown:
        shown.type(b"echo $((6*7))\r")
        shown.expect(b"42")
        assert b"[sandbox_busy]" in prompt("discard", code=1).stderr
        shown.type(_DETACH)
        assert shown.wait() == 0
    assert f"ended {name}".encode() in prompt("discard").stderr


@pytest.mark.parametrize("backend", ["docker", "namespace"])
def test_a_port_is_reached_from_here_until_interrupted(fresh_prompt: Prompt, backend: str) -> None:
    prompt = fresh_prompt
    start(prompt, "exec python3 -m http.server 8123 --bind 127.0.0.1", "--backend", backend)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    argv = prompt.argv("port", "8123", "--to", "0")
    with subprocess.Popen(argv, env=prompt.environment, cwd=ROOT, **pipes) as forwarding:  # type: ignore[call-overload]
        assert forwarding.stdout is not None
        address = forwarding.stdout.readline().decode().strip()
        assert address.startswith("127.0.0.1:")

        def get() -> bytes:
            fetched = subprocess.run(["curl", "-sS", f"http://{address}/README.md"], capture_output=True, check=False)
            return fetched.stdout

        assert wait_until(get, "the server answers") == (prompt.workspace / "README.md").read_bytes()
        forwarding.send_signal(signal.SIGINT)
        assert forwarding.wait(timeout=120) == 0


@pytest.mark.parametrize("to", ["0.0.0.0:9000", "[::]:9000", ":9000", "example.com:9000", "65536", "x", "-1"])
def test_a_port_is_opened_nowhere_but_on_the_loopback_address(prompt: Prompt, to: str) -> None:
    said = prompt("port", "8000", "--to", to, code=2)
    assert said.stdout == b""


def test_a_port_that_is_taken_here_is_an_error(prompt: Prompt) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = prompt("port", "8000", "--to", str(taken.getsockname()[1]), code=1)
    assert b"[system_error]" in said.stderr


def test_limits_that_are_asked_for_hold_and_start_another_sandbox(fresh_prompt: Prompt) -> None:
    prompt = fresh_prompt
    script = "df -B1 --output=size /tmp | tail -1; ulimit -n"
    asked = ["--tmp-size", "8m", "--open-files", "200", "--memory", "512m", "--pids", "50", "--cpus", "1"]
    assert prompt("exec", *asked, "--", "sh", "-c", script).stdout.split() == [b"8388608", b"200"]
    # Without any it's the warm one, whatever it has.
    assert prompt.sh(script).stdout.split() == [b"8388608", b"200"]
    name = start(prompt, "sleep 1000")
    said = prompt("exec", "--memory", "1g", "--", "true", code=125)
    assert b"[sandbox_busy]" in said.stderr
    prompt("kill", name)
    told = json.loads(
        prompt("exec", "--json", "--disk", "20m", "--", "sh", "-c", "cat /dev/zero >big", code=137).stdout
    )
    assert (told["ended_by"], told["exit_code_of"], told["signal"]) == ("disk_limit", "command", "SIGKILL")
    said = prompt("exec", "--", "sh", "-c", "cat /dev/zero >more", code=137)
    assert b"--disk" in said.stderr
    for wrong in (["--memory", "lots"], ["--pids", "-1"], ["--memory", "1m"], ["--tmp-size", "8g"], ["--disk", "-5"]):
        prompt("exec", *wrong, "--", "true", code=2)
    environment = {**prompt.environment, "WORKBENCH_OPEN_FILES": "300"}
    prompt("stop")
    assert prompt("exec", "--", "sh", "-c", "ulimit -n", env=environment).stdout == b"300\n"


def test_what_a_command_used_is_in_its_report(prompt: Prompt) -> None:
    told = json.loads(prompt("exec", "--json", "--", "python3", "-c", "bytearray(90 << 20); sum(range(10**6))").stdout)
    assert told["memory_peak_bytes"] > 90 << 20
    assert told["user_cpu_ms"] + told["system_cpu_ms"] > 0
    assert told["out_of_processes"] is False
