"""Limits of a sandbox: what happens to a command that hits one, and that the disk never fills up."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.sandbox.places import Place, a_place
from tests.waiting import unmount, until
from workbench.errors import OptionsError
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import cgroups
from workbench.sandbox.backend import Limits
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.disk import FULL, LIMIT, DiskWatch, LocalSpace
from workbench.sandbox.tree_size import size_of

pytestmark = pytest.mark.anyio
MIB = 1 << 20


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def sh(client: KeeperClient, script: str) -> CommandResult:
    with anyio.fail_after(120):
        return await client.run(Command(("sh", "-c", script), output_limit=1 << 20))


async def test_an_overlay_over_its_limit_ends_what_fills_it_and_can_be_emptied(any_place: Place) -> None:
    async with await any_place.ensure(limits=Limits(disk_bytes=30 * MIB)) as client:
        name = await client.start_job(Command(("sleep", "1000")))
        result = await sh(client, "while :; do head -c 1000000 /dev/zero >>big; done")
        assert (result.ended_by, result.exit_code) == ("disk_limit", 137)
        ended = await (await client.attach(name)).wait()
        assert ended is not None
        assert ended.ended_by == "disk_limit"
        assert (any_place.upper / "big").stat().st_size > 29 * MIB
        # It's over still, and what doesn't add to it goes on.
        assert (await sh(client, "wc -c <old; sleep 0.3")).exit_code == 0
        again = await sh(client, "while :; do head -c 1000000 /dev/zero >>more; done")
        assert again.ended_by == "disk_limit"
        assert (await sh(client, "rm big more")).exit_code == 0
        assert (await sh(client, "head -c 20000000 /dev/zero >big; sleep 0.3")).exit_code == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A filesystem of 200 MiB."""
    if os.geteuid() != 0:
        pytest.skip("mounting a filesystem takes root")
    tmp_path.chmod(0o755)
    directory = tmp_path / "disk"
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200m,mode=755", "tmpfs", str(directory)], check=True)
    try:
        yield directory
    finally:
        unmount(directory)


@pytest.fixture
def small_place(small_disk: Path) -> Iterator[Place]:
    with a_place("namespace", small_disk) as place:
        yield place


@pytest.fixture
def docker_place(engine: None) -> Iterator[Place]:
    with a_place("docker") as place:
        yield place


@pytest.mark.root
async def test_a_disk_that_is_nearly_full_ends_what_fills_it(small_place: Place) -> None:
    async with await small_place.ensure() as client:
        # Not even a file without a name fills it up; bit by bit, so that each look sees little more.
        script = "exec 3>hidden; rm hidden; while :; do head -c 200000 /dev/zero >&3; sleep 0.005; done"
        result = await sh(client, script)
        assert result.ended_by == "disk_full"
        assert (await sh(client, "echo x >small; sleep 0.3")).exit_code == 0


@pytest.mark.root
async def test_a_disk_that_is_nearly_out_of_files_ends_what_makes_them(small_disk: Path, small_place: Place) -> None:
    subprocess.run(["mount", "-o", "remount,nr_inodes=3000", str(small_disk)], check=True)
    async with await small_place.ensure() as client:
        # Goes on where the disk refuses one, so that nothing but the watch ends it.
        result = await sh(client, "mkdir many; i=0; while :; do i=$((i+1)); touch many/$i 2>/dev/null; done")
        assert result.ended_by == "disk_full"
        assert (await sh(client, "rm -r many; : >one")).exit_code == 0


@pytest.mark.root
async def test_a_watch_tells_which_of_the_two_it_is(small_disk: Path) -> None:
    upper = small_disk / "upper"
    upper.mkdir()
    limited, unlimited = DiskWatch(LocalSpace([str(upper)]), 50 * MIB), DiskWatch(LocalSpace([str(upper)]), 0)
    for watch in (limited, unlimited):
        await watch.begin()
        assert await watch.look() == ""
    (upper / "a").write_bytes(bytes(60 * MIB))
    assert (await limited.look(), await unlimited.look()) == (LIMIT, "")
    await limited.begin()
    assert await limited.look() == ""
    (upper / "b").write_bytes(bytes(135 * MIB))
    assert await unlimited.look() == FULL


def test_the_size_of_a_tree_is_what_it_takes_on_the_disk(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "file").write_bytes(os.urandom(MIB))
    os.link(tmp_path / "deep" / "file", tmp_path / "deep" / "er" / "same")
    with open(tmp_path / "sparse", "wb") as file:
        file.truncate(1 << 40)
    (tmp_path / "link").symlink_to("/")
    os.mkfifo(tmp_path / "fifo")
    assert MIB <= size_of(str(tmp_path)) < MIB + (64 << 10)


async def test_running_out_of_processes_is_said(either_place: Place) -> None:
    async with await either_place.ensure(limits=Limits(pids=32)) as client:
        result = await sh(client, "for n in $(seq 100); do sleep 100 & done 2>/dev/null; true")
        counted = (await client.counters()).pids_refused is not None
        assert result.out_of_processes == counted
        assert counted == (either_place.backend == "docker" or cgroups.PROCESSES in cgroups.enforceable())
        assert not (await sh(client, "true")).out_of_processes


@pytest.mark.engine
async def test_running_out_of_memory_is_said_whatever_the_shell_makes_of_it(docker_place: Place) -> None:
    limits = Limits(memory_bytes=128 * MIB, tmp_bytes=8 * MIB, home_bytes=8 * MIB)
    async with await docker_place.ensure(limits=limits) as client:
        result = await sh(client, "python3 -c 'bytearray(500 << 20)' || exit 3")
        assert (result.exit_code, result.out_of_memory) == (3, True)
        assert not (await sh(client, "true")).out_of_memory


async def test_a_temporary_directory_has_the_size_it_was_given(either_place: Place) -> None:
    async with await either_place.ensure(limits=Limits(tmp_bytes=4 * MIB, open_files=100)) as client:
        result = await sh(client, "head -c 9000000 /dev/zero >/tmp/x; ulimit -n")
        assert b"No space left" in result.stderr
        assert result.stdout == b"100\n"


async def test_a_full_directory_in_memory_is_named_where_a_command_failed(either_place: Place) -> None:
    limits = Limits(tmp_bytes=4 * MIB, home_bytes=4 * MIB)
    async with await either_place.ensure(limits=limits) as client:
        for name, place in (("tmp", "/tmp"), ("home", "$HOME")):
            fill = f"head -c 9000000 /dev/zero >{place}/x"
            failed = await sh(client, fill)
            assert (failed.tmp_full, failed.home_full) == (name == "tmp", name == "home")
            assert not (await sh(client, "true")).tmp_full
            # What failed for another reason isn't said to have failed for that.
            failed = await sh(client, f"rm {place}/x; false")
            assert (failed.tmp_full, failed.home_full) == (False, False)


async def test_usage_is_that_of_the_command_and_all_it_started(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        script = "python3 -c 'bytearray(150 << 20)'; (i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done) & wait"
        result = await sh(client, script)
        assert result.memory_peak_bytes > 150 * MIB
        assert result.user_cpu_ms + result.system_cpu_ms > 50
        quiet = await sh(client, "sleep 0.3")
        assert quiet.duration_ms >= 300
        assert quiet.user_cpu_ms + quiet.system_cpu_ms < result.user_cpu_ms + result.system_cpu_ms
        assert quiet.memory_peak_bytes < result.memory_peak_bytes


@pytest.mark.parametrize(
    "limits",
    [
        Limits(memory_bytes=1 * MIB, tmp_bytes=0, home_bytes=0),
        Limits(memory_bytes=512 * MIB),
        Limits(pids=3),
        Limits(open_files=5),
        Limits(disk_bytes=-1),
    ],
)
def test_limits_within_which_nothing_works_are_wrong_use(limits: Limits) -> None:
    with pytest.raises(OptionsError):
        limits.check()


@pytest.mark.parametrize("memory", [64 * MIB, 512 * MIB, 4 << 30, 0])
def test_less_memory_makes_the_temporary_directories_smaller(memory: int) -> None:
    Limits(memory_bytes=memory).within().check()


async def test_what_waits_for_a_limit_of_commands_runs_in_its_turn(either_place: Place) -> None:
    async with await either_place.ensure(limits=Limits(pids=16)) as client:
        first = [await client.spawn(Command(("sh", "-c", "while ! test -e go; do sleep 0.01; done"))) for _ in range(4)]
        waiting = await client.spawn(Command(("touch", "ran")))
        await until(lambda: _runs(client, 5))
        assert not (either_place.upper / "ran").exists()
        await client.write_file("go", b"")
        for job in [*first, waiting]:
            assert (await job.wait()).exit_code == 0
        assert (either_place.upper / "ran").exists()


async def _runs(client: KeeperClient, number: int) -> bool:
    return (await client.info()).jobs == number
