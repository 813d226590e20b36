"""`workbench exec`: whose exit code it is, what goes in and comes out, where it runs, and how it's interrupted."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Prompt
from tests.trees import snapshot
from tests.waiting import wait_until

_NO_ENGINE = {"DOCKER_HOST": "unix:///nonexistent/docker.sock"}


@pytest.fixture(autouse=True)
def _nothing_of_the_workspace_changes(prompt: Prompt) -> Iterator[None]:
    before = snapshot(prompt.workspace)
    yield
    assert snapshot(prompt.workspace) == before


def report(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    """What `--json` printed: one object, and nothing else on stdout."""
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


# Exit codes


@pytest.mark.parametrize("number", [0, 1, 2, 3, 77, 124, 125, 126, 127, 255])
def test_the_exit_code_is_the_commands_own(prompt: Prompt, number: int) -> None:
    told = report(prompt("exec", "--json", "--", "sh", "-c", f"exit {number}", code=number))
    assert (told["exit_code"], told["exit_code_of"], told["signal"]) == (number, "command", None)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV, signal.SIGHUP])
def test_a_command_that_a_signal_ends_exits_with_128_and_its_number(prompt: Prompt, number: signal.Signals) -> None:
    told = report(prompt("exec", "--json", "--", "sh", "-c", f"kill -{number.value} $$", code=128 + number))
    assert (told["exit_code"], told["exit_code_of"], told["signal"]) == (128 + number, "command", number.name)


@pytest.mark.parametrize(
    ("argv", "number", "code"),
    [
        (["no-such-command"], 127, "command_not_found"),
        (["./no-such-file"], 127, "command_not_found"),
        (["./README.md"], 126, "command_not_executable"),
        (["./src"], 126, "command_not_executable"),
        (["README.md/x"], 127, "command_not_found"),
    ],
)
def test_a_command_that_never_ran_is_the_workbenchs_to_report(
    prompt: Prompt, argv: list[str], number: int, code: str
) -> None:
    told = report(prompt("exec", "--json", "--", *argv, code=number))
    assert (told["exit_code"], told["exit_code_of"]) == (number, "workbench")
    assert isinstance(told["error"], dict)
    assert told["error"]["code"] == code
    said = prompt("exec", "--", *argv, code=number)
    assert said.stdout == b""
    assert f"[{code}]".encode() in said.stderr


def test_a_script_without_an_interpreter_line_is_run_by_the_shell_as_any_shell_would(prompt: Prompt) -> None:
    prompt.sh("printf 'echo by the shell: $1' >plain; chmod +x plain")
    assert prompt.run("./plain", "x").stdout == b"by the shell: x\n"


def test_a_command_out_of_time_exits_with_124_which_is_the_workbenchs(prompt: Prompt) -> None:
    told = report(prompt("exec", "--json", "--timeout", "0.3", "--", "sleep", "1000", code=124))
    assert (told["exit_code"], told["exit_code_of"], told["timed_out"]) == (124, "workbench", True)
    assert told["signal"] == "SIGTERM"
    said = prompt("exec", "--timeout", "2.3", "--", "sh", "-c", "echo started; sleep 1000", code=124)
    assert said.stdout == b"started\n"
    assert b"2.3 s" in said.stderr


def test_a_command_in_time_knows_nothing_of_its_time_limit(prompt: Prompt) -> None:
    told = report(prompt("exec", "--json", "--timeout", "100", "--", "sh", "-c", "exit 9", code=9))
    assert (told["exit_code_of"], told["timed_out"]) == ("command", False)


def test_wrong_use_exits_with_2(prompt: Prompt) -> None:
    prompt("exec", code=2)
    prompt("exec", "--no-such-option", "--", "true", code=2)
    prompt("exec", "--timeout", "soon", "--", "true", code=2)
    prompt("exec", "-e", "=value", "--", "true", code=2)
    prompt("exec", "--session", "../x", "--", "true", code=2)
    prompt("exec", "--timeout", "-1", "--", "true", code=2)
    prompt("exec", "--timeout", "inf", "--", "true", code=2)
    prompt("exec", "--max-output", "0", "--", "true", code=2)
    told = report(prompt("exec", "--json", "--session", "../x", "--", "true", code=2))
    assert (told["exit_code"], told["exit_code_of"]) == (2, "workbench")


def test_where_no_engine_answers_it_exits_with_125(fresh_prompt: Prompt) -> None:
    environment = {**fresh_prompt.environment, **_NO_ENGINE}
    done = fresh_prompt("exec", "--backend", "docker", "--json", "--", "true", code=125, env=environment)
    told = report(done)
    assert (told["exit_code"], told["exit_code_of"]) == (125, "workbench")
    assert isinstance(told["error"], dict)
    assert told["error"]["code"] == "engine_unavailable"
    assert told["error"]["hint"]
    said = fresh_prompt("exec", "--backend", "docker", "--", "true", code=125, env=environment)
    assert said.stdout == b""
    assert b"[engine_unavailable]" in said.stderr


def test_a_session_that_began_with_docker_never_changes_its_backend_silently(fresh_prompt: Prompt) -> None:
    fresh_prompt.run("true")
    fresh_prompt("stop")
    said = fresh_prompt("exec", "--", "true", code=125, env={**fresh_prompt.environment, **_NO_ENGINE})
    assert b"[engine_unavailable]" in said.stderr


def test_an_image_that_the_project_names_is_offered_once_and_not_used(fresh_prompt: Prompt) -> None:
    settings = fresh_prompt.workspace / ".devcontainer" / "devcontainer.json"
    settings.parent.mkdir()
    settings.write_text('{"image": "example.invalid/dev:1"}')
    assert b"--image example.invalid/dev:1" in fresh_prompt.run("true").stderr
    fresh_prompt("stop")
    assert b"example.invalid" not in fresh_prompt.run("true").stderr


@pytest.mark.parametrize("image", ["an impossible name", "workbench.invalid/none:1"])
def test_an_image_that_cant_be_had_exits_with_125(fresh_prompt: Prompt, image: str) -> None:
    told = report(fresh_prompt("exec", "--json", "--image", image, "--", "true", code=125))
    assert isinstance(told["error"], dict)
    assert told["error"]["code"] == "image_unavailable"


def test_a_workspace_that_isnt_there_exits_with_125(prompt: Prompt) -> None:
    told = report(prompt("exec", "--json", "-w", "/nonexistent", "--", "true", code=125))
    assert (told["exit_code"], told["exit_code_of"]) == (125, "workbench")
    assert isinstance(told["error"], dict)
    assert told["error"]["code"] == "workspace_missing"


# What comes out


def test_stdout_and_stderr_are_two_streams_and_talk_goes_to_stderr(prompt: Prompt) -> None:
    done = prompt.sh("echo out; echo err >&2; echo more >new-file")
    assert done.stdout == b"out\n"
    assert done.stderr.startswith(b"err\n")
    assert b"changed" in done.stderr
    quiet = prompt("exec", "-q", "--", "sh", "-c", "echo out; echo err >&2")
    assert (quiet.stdout, quiet.stderr) == (b"out\n", b"err\n")


def test_every_byte_comes_through_as_it_is(prompt: Prompt) -> None:
    every = bytes(range(256)) * 64
    assert prompt("exec", "-q", "--", "cat", stdin=None, input=every).stdout == every


def test_output_comes_as_it_is_written(prompt: Prompt) -> None:
    with prompt.start("-q", "--", "sh", "-c", "echo first; read word; echo $word", stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == b"first\n"
        process.stdin.write(b"second\n")
        process.stdin.flush()
        assert process.stdout.readline() == b"second\n"


def test_a_reader_that_leaves_ends_the_command_as_a_closed_pipe_does(prompt: Prompt) -> None:
    with prompt.start("--", "yes") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(2) == b"y\n"
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(timeout=120) == 128 + signal.SIGPIPE
        assert b"Traceback" not in said
    assert processes(prompt, "yes") == 0


@pytest.mark.parametrize("how", [(), ("--timeout", "100"), ("--json",)], ids=["warm", "with options", "as JSON"])
def test_output_that_cannot_be_written_is_an_error_of_its_own_and_the_command_goes_on_to_its_end(
    prompt: Prompt, how: tuple[str, ...]
) -> None:
    prompt("exec", "--", "true")
    for script, code in (("yes | head -c 300000; echo done > done; echo told >&2", 1), ("echo more; exit 3", 3)):
        done = _onto_a_full_disk(prompt, "exec", *how, "--", "sh", "-c", script)
        assert done.returncode == code
        assert b"standard output can't be written to: No space left on device" in done.stderr
        assert f"itself ended with exit code {code if code == 3 else 0}".encode() in done.stderr
        assert b"Traceback" not in done.stderr
        assert (b"told" in done.stderr) == (code == 1 and "--json" not in how)
    assert prompt("exec", "--", "cat", "done").stdout == b"done\n"


@pytest.mark.parametrize("arguments", [("status",), ("exec", "--help")])
def test_a_report_that_cannot_be_written_is_an_error(prompt: Prompt, arguments: tuple[str, ...]) -> None:
    done = _onto_a_full_disk(prompt, *arguments)
    assert done.returncode == 1
    assert b"no room on the disk" in done.stderr or b"No space left on device" in done.stderr
    assert b"Traceback" not in done.stderr


def _onto_a_full_disk(prompt: Prompt, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    command, environment = prompt.argv(*arguments), prompt.environment
    with open("/dev/full", "wb") as full:
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, env=environment)


def test_a_reader_that_reads_no_more_doesnt_keep_the_command_from_being_ended(prompt: Prompt) -> None:
    with prompt.start("--", "yes") as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"y\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert processes(prompt, "yes") == 0


def test_max_output_keeps_the_head_and_the_tail_and_says_how_much_it_left_out(prompt: Prompt) -> None:
    script = "seq 100000; seq 100000 >&2"
    whole = b"".join(b"%d\n" % number for number in range(1, 100001))
    told = report(prompt("exec", "--json", "--max-output", "1000", "--", "sh", "-c", script))
    for name in ("stdout", "stderr"):
        assert told[name] == (whole[:500] + whole[-500:]).decode()
    assert told["omitted_bytes"] == 2 * (len(whole) - 1000)
    said = prompt("exec", "--max-output", "1000", "--", "sh", "-c", script)
    assert said.stdout == whole[:500] + whole[-500:]
    assert f"{2 * (len(whole) - 1000):,} bytes".encode() in said.stderr


def test_json_has_the_output_as_text_and_nothing_else_on_stdout(prompt: Prompt) -> None:
    told = report(prompt("exec", "--json", "--", "sh", "-c", r"printf 'gr\303\274n\377'; echo err >&2"))
    assert told["stdout"] == "grün\N{REPLACEMENT CHARACTER}"
    assert told["stderr"] == "err\n"
    assert told["omitted_bytes"] == 0


# What goes in


def test_what_is_piped_in_arrives_whole(prompt: Prompt) -> None:
    data = os.urandom(3_000_000)
    done = prompt("exec", "-q", "--", "sha256sum", stdin=None, input=data)
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_it_takes_its_input_though_nobody_reads_its_output_yet(prompt: Prompt) -> None:
    script = "head -c 1000000 /dev/zero & wc -c >&2; wait"
    with prompt.start("-q", "--", "sh", "-c", script, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(bytes(3_000_000))
        process.stdin.close()
        assert process.stdout.read() == bytes(1_000_000)
        assert process.stderr.read() == b"3000000\n"
        assert process.wait(timeout=120) == 0


def test_a_warm_command_imports_no_event_loop(prompt: Prompt) -> None:
    prompt.run("true")
    # The changes are counted anew after one that changed something.
    prompt.run("true")
    told = prompt("exec", "--", "true", env={**prompt.environment, "PYTHONPROFILEIMPORTTIME": "1"}).stderr
    imported = {line.rpartition(b"|")[2].strip() for line in told.splitlines()}
    assert b"workbench.cli.direct" in imported
    assert not imported & {b"asyncio", b"anyio", b"pydantic", b"typer"}


_COUNTS_LOOKS = """
import sys
from workbench import warm
from workbench.cli import quick
looks, look = [], warm.signature
warm.signature = lambda path: (looks.append(path), look(path))[1]
code = quick.run(sys.argv[2:])
with open(sys.argv[1], "w") as file:
    file.write(str(len(looks)))
sys.exit(code)
"""


def test_a_warm_command_looks_at_what_is_there_only_where_something_may_have_written(
    prompt: Prompt, tmp_path: Path
) -> None:
    def looks(script: str) -> int:
        arguments = ["exec", "-w", str(prompt.workspace), "--", "sh", "-c", script]
        command = [sys.executable, "-c", _COUNTS_LOOKS, str(tmp_path / "looks"), *arguments]
        subprocess.run(command, env=prompt.environment, stdin=subprocess.DEVNULL, check=True, timeout=600)
        return int((tmp_path / "looks").read_text())

    prompt.run("true")
    prompt.run("true")
    # One look is at what the command left; after one that changed something the changes are counted.
    assert looks("true") == 1
    assert looks("echo 1 > looked") == 2
    assert looks("rm looked") >= 1
    prompt.run("true")
    prompt("exec", "-d", "--", "sh", "-c", "sleep 1000")
    assert looks("true") == 2
    assert looks("true") == 2
    for job in json.loads(prompt("ps", "--json").stdout)["jobs"]:
        prompt("kill", job["id"])


def test_what_was_written_between_two_commands_is_kept_before_the_second(prompt: Prompt) -> None:
    prompt.run("true")
    prompt.run("true")
    prompt("exec", "-d", "--no-checkpoint", "--", "sh", "-c", "echo late > late")
    late = prompt.overlay() / "upper" / "late"
    wait_until(lambda: late.exists() and late.read_bytes() == b"late\n")
    prompt.run("rm", "late")
    newest = next(entry for entry in json.loads(prompt("log", "--json").stdout) if entry["kind"] == "command")
    prompt("rewind", newest["message_id"])
    assert late.read_bytes() == b"late\n"
    prompt("discard", "--yes")


def test_a_file_can_be_its_input(prompt: Prompt, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"from a file\n")
    with file.open("rb") as stream:
        assert prompt("exec", "-q", "--", "cat", stdin=stream).stdout == b"from a file\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_as_good_as_empty_ones(prompt: Prompt, closed: str) -> None:
    argv = [os.fsdecode(word) for word in prompt.argv("exec", "-q", "--", "sh", "-c", "cat; exit 7")]
    done = subprocess.run(
        ["sh", "-c", f'"$@" {closed}', "sh", *argv],
        env=prompt.environment,
        capture_output=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 7, done.stderr
    assert done.stdout == b""


def test_a_command_that_never_reads_its_input_ends_all_the_same(prompt: Prompt) -> None:
    with open("/dev/zero", "rb") as endless:
        prompt("exec", "--", "true", stdin=endless)
    with prompt.start("--", "true", stdin=subprocess.PIPE) as process:
        assert process.wait(timeout=120) == 0


# Environment and directory


def test_nothing_of_the_hosts_environment_is_inside_but_what_is_named(prompt: Prompt) -> None:
    environment = {**prompt.environment, "API_TOKEN": "secret", "NAMED": "passed on", "LD_PRELOAD": ""}
    arguments = ("-q", "-e", "NAMED", "-e", "GIVEN=a=b c", "-e", "EMPTY=", "-e", "NOT_SET_HERE")
    shown = prompt("exec", *arguments, "--", "env", "-0", env=environment).stdout.decode()
    found = dict(line.split("=", 1) for line in shown.split("\0") if line)
    assert (found["NAMED"], found["GIVEN"], found["EMPTY"]) == ("passed on", "a=b c", "")
    assert set(found) <= {
        *("PATH", "HOME", "USER", "LANG", "HOSTNAME", "GIT_OPTIONAL_LOCKS", "NAMED", "GIVEN", "EMPTY"),
        *("LC_ALL", "LC_CTYPE", "TZ", "PWD"),
    }
    # Not even the first process's, which any command could read were it not for the kernel.
    everybody = prompt("exec", "-q", "--", "sh", "-c", "cat /proc/*/environ 2>/dev/null; true", env=environment)
    assert b"secret" not in everybody.stdout


def test_it_starts_in_the_workspace_at_its_real_path(prompt: Prompt) -> None:
    assert prompt.run("pwd").stdout.decode().strip() == str(prompt.workspace)


def test_the_current_directory_maps_into_the_sandbox(prompt: Prompt) -> None:
    def here(directory: Path) -> str:
        return prompt("exec", "--", "pwd", cwd=directory).stdout.decode().strip()

    assert here(prompt.workspace / "src" / "deep") == str(prompt.workspace / "src" / "deep")
    assert here(prompt.workspace.parent) == str(prompt.workspace)
    assert here(Path("/")) == str(prompt.workspace)


def test_without_w_the_workspace_is_the_nearest_directory_with_a_repository(prompt: Prompt) -> None:
    argv = [os.fsdecode(word) for word in prompt.argv("exec") if word not in ("-w", str(prompt.workspace))]
    done = subprocess.run(
        [*argv, "--", "sh", "-c", "pwd; git rev-parse --show-toplevel"],
        cwd=prompt.workspace / "src" / "deep",
        env=prompt.environment,
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().split() == [str(prompt.workspace / "src" / "deep"), str(prompt.workspace)]


def test_a_directory_that_is_gone_inside_is_a_clear_error(prompt: Prompt) -> None:
    prompt.sh("rm -rf docs")
    said = prompt("exec", "--", "true", cwd=prompt.workspace / "docs", code=125)
    assert b"[invalid_directory]" in said.stderr
    prompt.sh("mkdir docs")


# Interrupting it. These run it without a terminal: `test_terminal.py` has the others.


def processes(prompt: Prompt, command: str) -> int:
    """How many processes of that name run inside."""
    script = 'grep -lsx "$1" /proc/[0-9]*/comm | wc -l'
    return int(prompt("exec", "-q", "--", "sh", "-c", script, "sh", command).stdout)


def _keeper(prompt: Prompt) -> str:
    """What tells one sandbox from the next: the socket's inode, made anew for each."""
    socket = (prompt.overlay() / "keeper").readlink()
    return f"{socket.stat().st_ino}:{socket.stat().st_ctime_ns}"


def _started(prompt: Prompt, *argv: str) -> subprocess.Popen[bytes]:
    """A command inside that has said `started`."""
    process = prompt.start("--", *argv)
    assert process.stdout is not None
    assert process.stdout.readline() == b"started\n"
    return process


def test_one_interrupt_stops_the_command_and_not_the_sandbox(prompt: Prompt) -> None:
    prompt.run("true")
    keeper = _keeper(prompt)
    with _started(prompt, "sh", "-c", "echo started; exec sleep 1000") as process:
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 128 + signal.SIGINT
    prompt.run("true")
    assert _keeper(prompt) == keeper
    assert processes(prompt, "sleep") == 0


def test_a_command_may_take_an_interrupt_as_it_likes(prompt: Prompt) -> None:
    script = "trap 'echo caught; exit 5' INT; echo started; while :; do sleep 0.1; done"
    with _started(prompt, "bash", "-c", script) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b"caught\n"
        assert process.wait(timeout=120) == 5


def test_interrupting_twice_stops_the_command_and_the_sandbox(fresh_prompt: Prompt) -> None:
    script = "trap 'echo caught' INT; echo started; while :; do sleep 0.1; done"
    with _started(fresh_prompt, "bash", "-c", script) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == b"caught\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) in (128 + signal.SIGINT, 128 + signal.SIGKILL)
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()
    wait_until(lambda: not fresh_prompt.leftovers(), "the container is gone")
    assert not os.path.lexists(fresh_prompt.overlay() / "keeper")


def test_a_terminated_client_ends_its_command_kindly(prompt: Prompt) -> None:
    script = "trap 'echo asked; exit 0' TERM; echo started; while :; do sleep 0.1; done"
    with _started(prompt, "bash", "-c", script) as process:
        assert process.stdout is not None
        process.send_signal(signal.SIGTERM)
        assert process.stdout.read() == b"asked\n"
        assert process.wait(timeout=120) == 0
    with _started(prompt, "sh", "-c", "echo started; exec sleep 1000") as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=120) == 128 + signal.SIGTERM
    assert processes(prompt, "sleep") == 0


def test_a_killed_client_leaves_the_sandbox_but_no_command(prompt: Prompt) -> None:
    prompt.run("true")
    keeper = _keeper(prompt)
    with _started(prompt, "sh", "-c", "(setsid sleep 1000 &); echo started; exec sleep 1000") as process:
        process.kill()
    wait_until(lambda: processes(prompt, "sleep") == 0, "the command has ended")
    assert _keeper(prompt) == keeper


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_the_sandbox_starts_ends_quietly_and_leaves_nothing_half_made(
    fresh_prompt: Prompt, number: signal.Signals
) -> None:
    with fresh_prompt.start("--", "true") as process:
        wait_until(lambda: fresh_prompt.leftovers() or process.poll() is not None, "its container is being made")
        process.send_signal(number)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.wait(timeout=120) in (0, 128 + number, -number)
        assert b"Traceback" not in said
    assert fresh_prompt.sh("echo works").stdout == b"works\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_to_end_reaches_the_command_as_it_is(prompt: Prompt, number: signal.Signals) -> None:
    script = f"trap 'echo caught; exit 9' {number.name[3:]}; echo go; while :; do sleep 0.01; done"
    running = prompt.start("--", "sh", "-c", script)
    assert running.stdout is not None
    assert running.stdout.readline() == b"go\n"
    running.send_signal(number)
    out, _ = running.communicate(timeout=120)
    assert (running.returncode, out) == (9, b"caught\n")


def test_a_runtime_of_the_engine_is_passed_through_and_an_unknown_one_is_an_error(fresh_prompt: Prompt) -> None:
    fresh_prompt("exec", "--runtime", "runc", "--", "true")
    failed = fresh_prompt("exec", "--runtime", "no-such-runtime", "--", "true", code=125)
    assert b"no-such-runtime" in failed.stderr
    assert fresh_prompt.leftovers() == []
