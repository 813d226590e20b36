"""How long a sandbox lives: what it outlives, what ends it, and what its keeper's death leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.cli.conftest import Prompt
from tests.trees import snapshot
from tests.waiting import wait_until
from workbench.mounting import SandboxOptions
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.facts import KeeperInfo
from workbench.workspace import Workspace


def keeper(prompt: Prompt, session: str = "default") -> KeeperInfo | None:
    """What the keeper of a session's sandbox says, None where there is none."""

    async def ask() -> KeeperInfo | None:
        client = await KeeperClient.connect(str(prompt.overlay(session)))
        if client is None:
            return None
        async with client:
            return await client.info()

    return anyio.run(ask)


def warm(prompt: Prompt) -> KeeperInfo:
    """The keeper of the sandbox that a command has just started or found."""
    prompt.run("true")
    found = keeper(prompt)
    assert found is not None
    return found


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_a_second_command_finds_the_sandbox_of_the_first(fresh_prompt: Prompt) -> None:
    first = warm(fresh_prompt)
    fresh_prompt.sh("echo kept >/tmp/beside-the-workspace")
    assert fresh_prompt.run("cat", "/tmp/beside-the-workspace").stdout == b"kept\n"
    assert warm(fresh_prompt).pid == first.pid


def test_sessions_have_a_sandbox_each(fresh_prompt: Prompt) -> None:
    fresh_prompt("exec", "--session", "one", "--", "sh", "-c", "echo 1 >file")
    fresh_prompt("exec", "--session", "two", "--", "sh", "-c", "echo 2 >file")
    shown = [fresh_prompt("exec", "-q", "--session", name, "--", "cat", "file").stdout for name in ("one", "two")]
    assert shown == [b"1\n", b"2\n"]
    one, two = keeper(fresh_prompt, "one"), keeper(fresh_prompt, "two")
    assert one is not None
    assert two is not None
    assert one.pid != two.pid


def test_an_idle_sandbox_ends_by_itself_and_leaves_nothing_but_the_overlay(fresh_prompt: Prompt) -> None:
    async def start() -> int:
        options = SandboxOptions(idle_seconds=0.5)
        async with Workspace.open(
            fresh_prompt.workspace, options=options, state_path=str(fresh_prompt.state)
        ) as opened:
            client = await opened.sandbox()
            pid = (await client.info()).pid
            await client.aclose()
            return pid

    pid = anyio.run(start)
    wait_until(lambda: not is_alive(pid), "the keeper has ended")
    assert fresh_prompt.leftovers() == []
    assert keeper(fresh_prompt) is None
    assert fresh_prompt.sh("echo anew").stdout == b"anew\n"


def test_a_sandbox_with_a_command_isnt_idle(fresh_prompt: Prompt) -> None:
    async def start() -> None:
        options = SandboxOptions(idle_seconds=0.2)
        async with Workspace.open(
            fresh_prompt.workspace, options=options, state_path=str(fresh_prompt.state)
        ) as opened:
            await (await opened.sandbox()).aclose()

    anyio.run(start)
    assert fresh_prompt.sh("sleep 1; echo still here").stdout == b"still here\n"


def _stop(prompt: Prompt) -> None:
    prompt("stop")


def _discard(prompt: Prompt) -> None:
    prompt("discard", "--yes")


def _commit(prompt: Prompt) -> None:
    prompt.commit()


@pytest.mark.parametrize("end", [_stop, _discard, _commit])
def test_what_ends_a_sandbox_ends_all_of_it(fresh_prompt: Prompt, end: Callable[[Prompt], None]) -> None:
    fresh_prompt.sh("echo new >new-file")
    found = warm(fresh_prompt)
    assert len(fresh_prompt.leftovers()) == 2
    with fresh_prompt.start("--", "sh", "-c", "echo started; exec sleep 1000") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"started\n"
        end(fresh_prompt)
        assert running.wait(timeout=120) in (128 + signal.SIGTERM, 128 + signal.SIGKILL)
        assert f"ended by {end.__name__.strip('_')}".encode() in running.stderr.read()
    assert fresh_prompt.leftovers() == []
    wait_until(lambda: not is_alive(found.pid), "the keeper has ended")
    assert (fresh_prompt.workspace / "new-file").exists() == (end is _commit)
    assert fresh_prompt.sh("ls new-file || true").stdout == (b"" if end is _discard else b"new-file\n")


def test_ending_what_isnt_there_is_harmless(fresh_prompt: Prompt) -> None:
    fresh_prompt("stop")
    fresh_prompt("discard", "--yes")
    warm(fresh_prompt)
    fresh_prompt("stop")
    fresh_prompt("stop")


def test_a_terminated_keeper_ends_its_sandbox_in_order(fresh_prompt: Prompt) -> None:
    found = warm(fresh_prompt)
    os.kill(found.pid, signal.SIGTERM)
    wait_until(lambda: not is_alive(found.pid), "the keeper has ended")
    assert fresh_prompt.leftovers() == []
    assert warm(fresh_prompt).pid != found.pid


def _container_runs(name: str) -> bool:
    shown = subprocess.run(
        ["docker", "inspect", "-f", "{{.State.Running}}", name], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() == "true"


def test_a_killed_keepers_sandbox_dies_by_itself_and_the_next_command_works(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh("echo kept >new-file")
    before = snapshot(fresh_prompt.workspace)
    found = warm(fresh_prompt)
    with fresh_prompt.start("--", "sh", "-c", "echo started; exec sleep 1000") as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline() == b"started\n"
        os.kill(found.pid, signal.SIGKILL)
        assert running.wait(timeout=120) == 125
        assert b"[sandbox_lost]" in running.stderr.read()
    wait_until(lambda: not _container_runs(found.name), "the container has ended")
    assert fresh_prompt.run("cat", "new-file").stdout == b"kept\n"
    assert not any(found.name in line for line in fresh_prompt.leftovers())
    assert len(fresh_prompt.leftovers()) == 2
    assert snapshot(fresh_prompt.workspace) == before


@pytest.mark.parametrize("command", ["status", "diff", "stop", "discard", "refresh"])
def test_after_a_killed_keeper_every_command_works_and_cleans_up(fresh_prompt: Prompt, command: str) -> None:
    fresh_prompt.sh("echo kept >new-file")
    found = warm(fresh_prompt)
    os.kill(found.pid, signal.SIGKILL)
    fresh_prompt(command)
    assert subprocess.run(["docker", "inspect", found.name], capture_output=True, check=False).returncode != 0
    if command == "diff":
        assert b"+kept" in fresh_prompt("diff").stdout


def test_a_container_killed_from_outside_is_a_lost_sandbox_and_the_next_command_works(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh("echo kept >new-file")
    found = warm(fresh_prompt)
    with fresh_prompt.start("--json", "--", "sh", "-c", "echo started >flag; exec sleep 1000") as running:
        assert running.stdout is not None
        wait_until(lambda: (fresh_prompt.overlay() / "upper" / "flag").exists(), "it runs")
        subprocess.run(["docker", "kill", found.name], capture_output=True, check=True)
        told = json.loads(running.stdout.read())
        assert running.wait(timeout=120) == 125
        assert (told["exit_code"], told["exit_code_of"]) == (125, "workbench")
        assert told["error"]["code"] == "sandbox_lost"
    assert fresh_prompt.run("cat", "new-file").stdout == b"kept\n"
    wait_until(lambda: not is_alive(found.pid), "the old keeper has ended")


def test_two_that_start_at_once_share_one_sandbox(fresh_prompt: Prompt) -> None:
    running = [fresh_prompt.start("-q", "--", "sh", "-c", f"echo {n}; sleep 0.5") for n in range(3)]
    for number, process in enumerate(running):
        with process:
            out, err = process.communicate(timeout=120)
            assert (out, err, process.returncode) == (b"%d\n" % number, b"", 0)
    assert len(fresh_prompt.leftovers()) == 2


def test_many_starts_and_stops_at_once_neither_hang_nor_lose_a_thing(fresh_prompt: Prompt) -> None:
    warm(fresh_prompt)
    for number in range(3):
        with fresh_prompt.start("-q", "--", "sh", "-c", f"echo {number} >>lines") as running:
            fresh_prompt("stop", "--quiet")
            running.communicate(timeout=120)
            assert running.returncode in (0, 125, 128 + signal.SIGTERM, 128 + signal.SIGKILL)
    assert fresh_prompt.sh("echo end >>lines; tail -n 1 lines").stdout == b"end\n"


def test_refresh_mounts_anew_and_shows_the_workspace_as_it_is(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh("echo mine >new-file")
    first = warm(fresh_prompt)
    (fresh_prompt.workspace / "README.md").write_text("# by the person\n")
    (fresh_prompt.workspace / "added.txt").write_text("added\n")
    fresh_prompt("refresh")
    second = keeper(fresh_prompt)
    assert second is not None
    assert second.pid != first.pid
    assert fresh_prompt.run("cat", "README.md", "added.txt", "new-file").stdout == b"# by the person\nadded\nmine\n"


def test_without_an_engine_a_stopped_session_can_still_be_looked_at_and_committed(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh("echo kept >new-file")
    fresh_prompt("stop")
    environment = {**fresh_prompt.environment, "DOCKER_HOST": "unix:///nonexistent/docker.sock"}
    assert b"+kept" in fresh_prompt("diff", env=environment).stdout
    digest = fresh_prompt("diff", "--digest-only", env=environment).stdout.decode().strip()
    fresh_prompt("commit", "--digest", digest, env=environment)
    assert (fresh_prompt.workspace / "new-file").read_text() == "kept\n"


def test_while_the_engine_cant_be_reached_a_sandbox_that_may_be_mounted_is_left_alone(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh("echo kept >new-file")
    found = warm(fresh_prompt)
    os.kill(found.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(found.pid), "the keeper has ended")
    environment = {**fresh_prompt.environment, "DOCKER_HOST": "unix:///nonexistent/docker.sock"}
    for command in ("diff", "discard", "stop"):
        assert b"[engine_unavailable]" in fresh_prompt(command, code=1, env=environment).stderr
    assert b"+kept" in fresh_prompt("diff").stdout


def test_the_keepers_socket_is_its_owners_alone(fresh_prompt: Prompt) -> None:
    warm(fresh_prompt)
    socket = (fresh_prompt.overlay() / "keeper").readlink()
    for path in (socket.parent, socket.parent.parent):
        assert path.stat().st_mode & 0o777 == 0o700
        assert path.stat().st_uid == os.geteuid()


def test_a_session_whose_name_is_long_in_a_long_state_path_works(engine: None, tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    prompt = Prompt(deep)
    try:
        name = "s" * 64
        assert prompt("exec", "--session", name, "--", "echo", "works").stdout == b"works\n"
        assert keeper(prompt, name) is not None
    finally:
        prompt.end()
