"""Control groups of the namespace backend: that they limit, that nothing of them stays, and whose are left alone."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.sandbox.places import Place, a_place
from tests.sandbox.support import IMAGE, LABEL
from tests.sandbox.users import OrdinaryUser, environment, ordinary_user
from tests.waiting import until, wait_until
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import cgroups, leftovers, namespace
from workbench.sandbox.backend import Limits
from workbench.sandbox.cgroups import MEMORY, PROCESSES, PROCESSOR_TIME
from workbench.sandbox.client import KeeperClient

pytestmark = pytest.mark.anyio
MIB = 1 << 20
ROOT = Path(__file__).parents[2]
LITTLE = Limits(memory_bytes=160 * MIB, pids=48, cpus=0.5, tmp_bytes=8 * MIB, home_bytes=8 * MIB)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def place() -> Iterator[Place]:
    with a_place("namespace") as place:
        yield place


def need(*controllers: str) -> None:
    """Go on only where groups of ours can limit these."""
    lacking = sorted(set(controllers) - cgroups.enforceable())
    if lacking:
        pytest.skip(f"no control group here is ours to divide for {', '.join(lacking)}")


def groups_of(name: str) -> list[str]:
    return list(cgroups._named(name))


async def sh(client: KeeperClient, script: str) -> CommandResult:
    with anyio.fail_after(120):
        return await client.run(Command(("sh", "-c", script), output_limit=1 << 20))


async def test_processes_over_the_limit_are_refused_and_the_sandbox_lives(place: Place) -> None:
    need(PROCESSES)
    async with await place.ensure(limits=LITTLE) as client:
        bomb = "b() { b | b & }; b 2>/dev/null; sleep 0.2"
        assert (await sh(client, bomb)).out_of_processes
        counted = await client.counters()
        assert counted.pids_refused
        assert counted.pids_peak is None or counted.pids_peak <= LITTLE.pids
        assert (await sh(client, "echo well")).stdout == b"well\n"


_TOGETHER = """
import os, subprocess
hold = "import signal; x = bytearray(60 << 20); signal.pause()"
each = [subprocess.Popen(["python3", "-c", hold]) for _ in range(4)]
os.wait()
for one in each:
    one.kill()
"""


async def test_memory_over_the_limit_ends_a_command_and_the_sandbox_lives(place: Place) -> None:
    need(MEMORY)
    async with await place.ensure(limits=LITTLE) as client:
        result = await sh(client, "python3 -c 'bytearray(500 << 20)' || exit 3")
        assert (result.exit_code, result.out_of_memory) == (3, True)
        # Each of them is within it, and holds what it has until one of them was ended.
        assert (await sh(client, f"python3 -c '{_TOGETHER}'")).out_of_memory
        result = await sh(client, "echo well")
        assert (result.stdout, result.out_of_memory) == (b"well\n", False)
        counted = await client.counters()
        assert counted.memory_peak_bytes is not None
        assert counted.memory_peak_bytes <= LITTLE.memory_bytes


@pytest.mark.engine
@pytest.mark.root
def test_memory_has_its_limit_in_a_container_whose_groups_are_its_own(engine: None, tmp_path: Path) -> None:
    if MEMORY in cgroups.enforceable():
        pytest.skip("it can be limited here, too, and there is a test for that")
    told = {**environment(tmp_path), "TMPDIR": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [
        "docker",
        "run",
        "--rm",
        "--network=none",
        f"--label={LABEL}=1",
        "--cgroupns=private",
        f"--workdir={ROOT}",
    ]
    command += ["--cap-add=SYS_ADMIN", *(f"--security-opt={what}=unconfined" for what in ("seccomp", "systempaths"))]
    command += [f"--volume={path}:{path}:ro" for path in {*told["PYTHONPATH"].split(os.pathsep)} if os.path.isdir(path)]
    command += [f"--volume={tmp_path}:{tmp_path}", *(f"--env={name}={value}" for name, value in told.items())]
    # The engine shows them read-only.
    script = (
        "mkdir /tmp/own; mount -t cgroup -o memory memory /tmp/own || exit 77; python3 -c 'import pydantic' || exit 77"
    )
    script += (
        f"; exec python3 -m pytest -q -p no:cacheprovider {Path(__file__).relative_to(ROOT)} -k over_the_limit_ends"
    )
    done = subprocess.run(
        [*command, IMAGE if ":" in IMAGE else f"{IMAGE}:1", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode in (77, 125):
        pytest.skip(f"no container here can have that: {done.stderr.strip()}")
    assert "1 passed" in done.stdout, done.stdout + done.stderr


async def test_processor_time_over_the_limit_is_held_back(place: Place) -> None:
    need(PROCESSOR_TIME)
    async with await place.ensure(limits=LITTLE) as client:
        facts = "cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null"
        assert (await sh(client, facts)).stdout.split()[0] == b"50000"
        # As many as get more than the limit however busy the machine is.
        busy = "for i in 1 2 3 4 5 6 7 8; do sh -c 'while :; do :; done' & done"
        held = "cat /sys/fs/cgroup/cpu.stat /sys/fs/cgroup/cpu/cpu.stat 2>/dev/null | grep -q 'nr_throttled [1-9]'"
        assert (await sh(client, f"{busy}; until {held}; do sleep 0.05; done")).exit_code == 0


async def test_everything_inside_is_counted_and_the_keeper_is_not(place: Place) -> None:
    need(PROCESSES)
    async with await place.ensure(limits=LITTLE) as client:
        info = await client.info()
        await client.spawn(Command(("sleep", "1000")))
        holders = list(namespace._holders(info.name))
        assert holders
        for pid in holders:
            # One that has ended meanwhile was only there to start another.
            with contextlib.suppress(OSError):
                assert info.name in Path(f"/proc/{pid}/cgroup").read_text()
        for pid in (info.pid, os.getpid()):
            assert info.name not in Path(f"/proc/{pid}/cgroup").read_text()


async def test_a_sandbox_sees_its_limits_and_cannot_change_them(place: Place) -> None:
    need(PROCESSES)
    async with await place.ensure(limits=LITTLE) as client:
        find = "find /sys/fs/cgroup -name pids.max"
        assert (await sh(client, f"cat $({find})")).stdout == b"48\n"
        for script in (f"echo max >$({find})", f"mkdir $(dirname $({find}))/more"):
            result = await sh(client, script)
            assert result.exit_code
            assert b"Read-only" in result.stderr


async def test_nothing_of_a_group_is_left_after_its_sandbox(place: Place) -> None:
    need(PROCESSES)
    async with await place.ensure(limits=LITTLE) as client:
        name = (await client.info()).name
        await client.spawn(Command(("sh", "-c", "setsid -f sleep 1000")))
        assert groups_of(name)
        await client.stop()
    assert groups_of(name) == []


async def test_what_a_killed_keeper_left_of_a_group_whoever_takes_the_lock_removes(place: Place) -> None:
    need(PROCESSES)
    another = cgroups.make(f"workbench-{secrets.token_hex(8)}", LITTLE)
    try:
        async with await place.ensure(limits=LITTLE) as client:
            info = await client.info()
            os.kill(info.pid, signal.SIGKILL)
        await until(lambda: place.is_free() and not place.is_mounted())
        assert groups_of(info.name)
        # As whoever takes the lock next does, to start or to repair.
        with place.overlay.lock():
            leftovers.unmount(place.overlay, "")
        assert groups_of(info.name) == []
        assert all(map(os.path.isdir, another.directories.values()))
    finally:
        assert cgroups.remove("", another)


# Says which limits could be set, whether a sandbox is in a group of its own, and what is said to be missing.
TOLD = """
import json, os, sys
from pathlib import Path
import anyio
from tests.sandbox.support import Inside, Layers, backend_of, spec
from workbench.sandbox import cgroups, leftovers, namespace
from workbench.sandbox.backend import Limits
if "realtime" in sys.argv:
    os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
async def main():
    limits = Limits(memory_bytes=256 << 20, pids=64, cpus=1, tmp_bytes=8 << 20, home_bytes=4 << 20)
    backend = backend_of(spec("namespace", Layers(Path(f"told-{os.getpid()}")).mount, limits=limits))
    said = []
    inside = Inside(backend, await backend.start(said.append))
    try:
        assert await inside.line() == "here"
        joined = backend.name in await inside("open('/proc/self/cgroup').read()")
    finally:
        await backend.stop()
    assert list(cgroups._named(backend.name)) == []
    print(json.dumps([sorted(cgroups.enforceable()), joined, said, namespace.lacks()]))
anyio.run(main)
"""
UNLIMITED = ["the namespace backend can't limit processor time here, so --cpus isn't enforced"]


def told(directory: Path, *before: str, arguments: tuple[str, ...] = ()) -> list[Any]:
    """What TOLD says, run by this user with a command before it."""
    command = [*before, sys.executable, "-c", TOLD, *arguments]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=directory, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout))


@pytest.fixture
def user() -> Iterator[OrdinaryUser]:
    with ordinary_user() as user:
        yield user


@pytest.fixture
def group() -> Iterator[dict[str, str]]:
    """A group as somebody else makes them for those whom he manages: for processes and processor time."""
    if os.geteuid() != 0:
        pytest.skip("making a control group for another takes root")
    need(PROCESSES, PROCESSOR_TIME)
    made = cgroups.make(f"workbench-test-{secrets.token_hex(8)}", Limits(memory_bytes=0, pids=4096, cpus=64))
    try:
        yield made.directories
    finally:
        wait_until(lambda: cgroups.remove("", made), "the group of the test is removed")


def within(group: dict[str, str]) -> tuple[str, ...]:
    """What goes before a command that is to run in a group."""
    entrances = " ".join(f"{directory}/cgroup.procs" for directory in group.values())
    return "sh", "-c", f'for file in {entrances}; do echo 0 >$file || exit; done; exec "$@"', "sh"


def test_where_nothing_can_be_written_a_sandbox_starts_without_and_says_so(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("making mounts read-only takes root")
    script = "for at in /sys/fs/cgroup $(ls -d /sys/fs/cgroup/*/); do mount -o remount,bind,ro $at; done"
    read_only = ("unshare", "--mount", "sh", "-c", f'{script} 2>/dev/null; exec "$@"', "sh")
    enforceable, joined, said, lacks = told(tmp_path, *read_only)
    assert (enforceable, joined, said) == ([], False, UNLIMITED)
    assert lacks.startswith("no limit on the memory and processor time of all processes together (only on each one's")


def test_a_group_that_somebody_else_made_is_his_until_he_gives_it(tmp_path: Path, group: dict[str, str]) -> None:
    enforceable, joined, said, _ = told(tmp_path, *within(group))
    assert (enforceable, joined, said) == ([], False, UNLIMITED)
    for directory in group.values():
        os.setxattr(directory, "trusted.delegate", b"1")
    enforceable, joined, said, lacks = told(tmp_path, *within(group))
    assert (enforceable, joined, said) == ([PROCESSOR_TIME, PROCESSES], True, [])
    assert lacks.startswith("no limit on the memory of all processes together (only on each one's memory), ")


def test_an_ordinary_user_has_groups_only_where_one_was_given(user: OrdinaryUser, group: dict[str, str]) -> None:
    enforceable, joined, said, lacks = json.loads(user.run(TOLD).stdout)
    assert (enforceable, joined, said) == ([], False, UNLIMITED)
    assert lacks.startswith("no limit on the memory and processor time of all processes together (only on each one's")
    for directory in group.values():
        for path in (directory, f"{directory}/cgroup.procs"):
            os.chown(path, user.uid, user.gid)
    enforceable, joined, said, _ = json.loads(user.run(TOLD, before=within(group)).stdout)
    assert (enforceable, joined, said) == ([PROCESSOR_TIME, PROCESSES], True, [])


def test_a_sandbox_that_may_not_join_its_group_starts_without(tmp_path: Path) -> None:
    need(PROCESSOR_TIME)
    # A process that runs in real time isn't taken into a group that has no share of that.
    if not os.path.exists("/sys/fs/cgroup/cpu/cpu.rt_runtime_us"):
        pytest.skip("this kernel's groups take any process")
    _, joined, said, _ = told(tmp_path, arguments=("realtime",))
    assert (joined, said) == (False, UNLIMITED)
