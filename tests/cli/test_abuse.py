"""Commands that misbehave: each ends with a clear result, leaves nothing running, and the sandbox goes on answering."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Iterator

import anyio
import pytest

from tests.cli.conftest import Prompt
from tests.trees import snapshot
from tests.waiting import wait_until
from workbench.mounting import SandboxOptions
from workbench.sandbox.backend import Limits
from workbench.workspace import Workspace

_LIMITS = Limits(memory_bytes=256 << 20, pids=150, tmp_bytes=32 << 20, home_bytes=16 << 20)
_COUNT = """
import os
found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        with open(f"/proc/{pid}/stat") as file:
            line = file.read()
    except OSError:
        continue
    name, state = line[line.index("(") + 1 : line.rindex(")")], line[line.rindex(")") + 2]
    if not name.startswith("workbench") and int(pid) != os.getpid():
        found.append(f"{name}:{state}")
print(" ".join(found))
"""


def start_limited(prompt: Prompt) -> None:
    """Start a sandbox with little memory, few processes and small temporary directories; the command line finds it warm."""

    async def start() -> None:
        options = SandboxOptions(limits=_LIMITS)
        async with Workspace.open(prompt.workspace, options=options, state_path=str(prompt.state)) as workspace:
            await (await workspace.sandbox()).aclose()

    anyio.run(start)


def processes(prompt: Prompt) -> str:
    """Every process inside, zombies too, but the sandbox's own and the one that looks."""
    return prompt("exec", "-q", "--", "python3", "-c", _COUNT).stdout.decode().strip()


def told(done: subprocess.CompletedProcess[bytes]) -> dict[str, object]:
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@pytest.fixture(autouse=True)
def _the_sandbox_survives_and_nothing_else(prompt: Prompt) -> Iterator[None]:
    start_limited(prompt)
    before = snapshot(prompt.workspace)
    keeper = (prompt.overlay() / "keeper").readlink().stat().st_ino
    yield
    assert prompt.sh("echo alive").stdout == b"alive\n"
    assert (prompt.overlay() / "keeper").readlink().stat().st_ino == keeper
    wait_until(lambda: processes(prompt) == "", "nothing is left running")
    assert snapshot(prompt.workspace) == before


def test_500_megabytes_of_output_stream_to_whoever_reads_them(prompt: Prompt) -> None:
    with prompt.start("-q", "--", "head", "-c", "500000000", "/dev/zero") as process:
        assert process.stdout is not None
        size = 0
        while piece := process.stdout.read(1 << 20):
            size += len(piece)
        assert process.wait(timeout=120) == 0
    assert size == 500_000_000


def test_500_megabytes_of_output_are_bounded_with_json(prompt: Prompt) -> None:
    script = "echo the head; head -c 500000000 /dev/zero | tr '\\0' x; echo the tail"
    found = told(prompt("exec", "--json", "--", "sh", "-c", script))
    shown = found["stdout"]
    assert isinstance(shown, str)
    assert len(shown) == 1 << 20
    assert shown.startswith("the head\nxxx")
    assert shown.endswith("xxxthe tail\n")
    assert found["omitted_bytes"] == 500_000_000 + len("the head\nthe tail\n") - len(shown)


def test_a_flood_on_both_streams_is_bounded_on_each(prompt: Prompt) -> None:
    script = "yes out | head -c 20000000 & yes err | head -c 20000000 >&2; wait"
    found = told(prompt("exec", "--json", "--max-output", "4096", "--", "sh", "-c", script))
    assert found["omitted_bytes"] == 2 * (20_000_000 - 4096)


def test_a_fork_bomb_ends_with_its_time(prompt: Prompt) -> None:
    found = told(
        prompt("exec", "--json", "--timeout", "2", "--", "bash", "-c", "b() { b | b & }; b; sleep 1000", code=124)
    )
    assert found["timed_out"] is True


def test_a_fork_bomb_whose_first_process_ends_is_cleared_away(prompt: Prompt) -> None:
    source = "import os\nwhile True:\n  try:\n    os.fork()\n  except OSError:\n    pass"
    prompt("exec", "-q", "--", "sh", "-c", 'setsid python3 -c "$1" & sleep 1', "sh", source)


def test_running_out_of_memory_is_said(prompt: Prompt) -> None:
    hog = ("python3", "-c", "x = bytearray(1 << 30)")
    found = told(prompt("exec", "--json", "--", *hog, code=137))
    assert (found["signal"], found["out_of_memory"], found["exit_code_of"]) == ("SIGKILL", True, "command")
    assert b"out of memory" in prompt("exec", "--", *hog, code=137).stderr


def test_a_full_tmp_is_an_error_for_the_command_alone(prompt: Prompt) -> None:
    said = prompt("exec", "--", "sh", "-c", "head -c 100000000 /dev/zero >/tmp/filler", code=1)
    assert b"No space left on device" in said.stderr
    assert prompt.sh("echo still works").stdout == b"still works\n"
    prompt.sh("head -c 100000000 /dev/zero >~/filler", code=1)
    prompt.sh("rm /tmp/filler ~/filler; echo there is room >/tmp/again && rm /tmp/again")


_DAEMONS = {
    "background": "sleep 1000 &",
    "setsid": "setsid sleep 1000 &",
    "nohup": "nohup setsid sleep 1000 >/dev/null 2>&1 </dev/null &",
    "double fork": "(setsid sh -c 'sleep 1000 & sleep 1000 &' &)",
    "without an environment": "env -i setsid /usr/bin/sleep 1000 >/dev/null 2>&1 </dev/null &",
    "ignoring signals": "(trap '' TERM HUP INT; setsid sh -c 'trap \"\" TERM HUP INT; while :; do sleep 1; done' &)",
    "stopped": "sleep 1000 & kill -STOP $!",
}


@pytest.mark.parametrize("script", _DAEMONS.values(), ids=_DAEMONS)
def test_a_daemon_ends_with_the_command_that_left_it(prompt: Prompt, script: str) -> None:
    found = told(prompt("exec", "--json", "--", "sh", "-c", f"{script}\necho done"))
    assert found["stdout"] == "done\n"
    assert isinstance(found["stopped_processes"], int)
    assert found["stopped_processes"] >= 1
    said = prompt("exec", "--", "sh", "-c", script).stderr
    assert b"still running" in said


def test_a_command_that_ignores_a_kind_request_is_ended_all_the_same(prompt: Prompt) -> None:
    script = "trap '' TERM; echo started; while :; do sleep 1; done"
    found = told(prompt("exec", "--json", "--timeout", "2", "--", "sh", "-c", script, code=124))
    assert (found["timed_out"], found["signal"], found["stdout"]) == (True, "SIGKILL", "started\n")


def test_a_command_out_of_time_has_a_moment_to_put_its_things_in_order(prompt: Prompt) -> None:
    script = "trap 'echo in order; exit 0' TERM; while :; do sleep 0.1; done"
    found = told(prompt("exec", "--json", "--timeout", "2", "--", "bash", "-c", script, code=124))
    assert (found["timed_out"], found["stdout"]) == (True, "in order\n")


def test_twenty_commands_at_once_each_get_their_own_result(prompt: Prompt) -> None:
    with contextlib.ExitStack() as stack:
        running = [
            stack.enter_context(
                prompt.start("-q", "--", "sh", "-c", f"read x; echo {n} $x; exit {n}", stdin=subprocess.PIPE)
            )
            for n in range(20)
        ]
        for number, process in enumerate(running):
            out, err = process.communicate(b"heard\n", timeout=120)
            assert (out, err, process.returncode) == (b"%d heard\n" % number, b"", number)


def test_a_command_that_closes_its_output_and_lives_on_is_waited_for(prompt: Prompt) -> None:
    found = told(prompt("exec", "--json", "--", "sh", "-c", "echo said; exec >&- 2>&-; sleep 0.5; exit 3", code=3))
    assert found["stdout"] == "said\n"


def test_a_child_that_keeps_the_output_open_isnt_waited_for(prompt: Prompt) -> None:
    found = told(prompt("exec", "--json", "--", "sh", "-c", "sleep 1000 & echo said; exit 3", code=3))
    assert (found["stdout"], found["stopped_processes"]) == ("said\n", 1)


def test_zombies_dont_pile_up(prompt: Prompt) -> None:
    source = "import os, time\nfor _ in range(100):\n  if not os.fork():\n    os._exit(0)\nprint('made')"
    for _ in range(3):
        assert prompt("exec", "-q", "--", "python3", "-c", source).stdout == b"made\n"
    # Orphans whose parent ends first become the sandbox's to reap.
    prompt.sh("for i in $(seq 50); do (sleep 0 &) ; done")


def test_killing_everything_inside_kills_only_that(prompt: Prompt) -> None:
    for _ in range(3):
        found = told(
            prompt("exec", "--json", "--", "sh", "-c", "echo before; kill -9 -1; echo after; exit 3", code=None)
        )
        assert (found["exit_code"], found["exit_code_of"]) in ((3, "command"), (137, "command"))
        assert str(found["stdout"]).startswith("before\n")


def test_one_commands_kill_of_everything_ends_the_others_clearly(prompt: Prompt) -> None:
    with prompt.start("--", "sh", "-c", "echo started; exec sleep 1000") as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"started\n"
        prompt("exec", "-q", "--", "sh", "-c", "kill -9 -1", code=None)
        assert other.wait(timeout=120) == 137


@pytest.mark.parametrize("name", ["KILL", "TERM", "STOP", "SEGV", "INT"])
def test_the_first_process_cant_be_ended_from_inside(prompt: Prompt, name: str) -> None:
    prompt("exec", "-q", "--", "sh", "-c", f"kill -{name} 1; echo survived", code=None)


def test_at_the_limit_of_processes_a_command_waits_for_its_turn(prompt: Prompt) -> None:
    source = (
        "import subprocess, sys\n"
        "held = []\n"
        "try:\n"
        "  while True: held.append(subprocess.Popen(['sleep', '1000']))\n"
        "except OSError: print('full', flush=True)\n"
        "sys.stdin.read(1)"
    )
    with prompt.start("-q", "--", "python3", "-c", source, stdin=subprocess.PIPE) as hog:
        assert hog.stdout is not None
        assert hog.stdin is not None
        assert hog.stdout.readline() == b"full\n"
        with prompt.start("-q", "--", "echo", "my turn") as waiting:
            hog.stdin.close()
            out, _ = waiting.communicate(timeout=120)
            assert (out, waiting.returncode) == (b"my turn\n", 0)
        assert hog.wait(timeout=120) == 0


def test_an_argument_list_that_is_too_long_is_a_clear_error(prompt: Prompt) -> None:
    found = told(prompt("exec", "--json", "--", "sh", "-c", "echo $# $0", "x" * 120_000))
    assert str(found["stdout"]).startswith("0 xxx")
    found = told(prompt("exec", "--json", "--", *["sh", "-c", "exec echo $(seq 1000000)"], code=None))
    assert found["exit_code_of"] == "command"
