"""What an agent, a person at the wrong moment, or a damaged state directory could do, end to end."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.cli.conftest import Prompt, fresh_prompt, prompt
from tests.conftest import Cli
from tests.trees import snapshot
from tests.waiting import unmount, wait_until
from workbench import warm
from workbench.cli.failure import find_error
from workbench.mounting import epoch
from workbench.review.nearest import Nearest, with_ancestors
from workbench.sandbox.client import KeeperClient
from workbench.vfs.session import OverlayDirectory

__all__ = ["fresh_prompt", "prompt"]

MAPS = """\
import mmap, os, sys
with open("mapped", "w+b") as file:
    file.write(b"A" * 4096)
    file.flush()
    os.fsync(file.fileno())
    pages = mmap.mmap(file.fileno(), 4096)
    pages[:5] = b"first"
    os.mkdir("/tmp/first")
    while not os.path.exists("/tmp/go"):
        pass
    pages[:5] = b"later"
    os.mkdir("/tmp/later")
    while True:
        pass
"""
"""The second write finds the page writable, so it leaves no time on the file."""

FIRST_THREAD_ENDS = """\
import ctypes, os, threading
def write():
    number, new = 0, "count." + str(os.getpid())
    while True:
        number += 1
        with open(new, "w") as file:
            file.write(str(number))
        os.rename(new, "count")
threading.Thread(target=write).start()
ctypes.CDLL(None).pthread_exit(None)
"""

WAITS_IN_THE_KERNEL = """\
import ctypes, os, signal, time
CLONE, VFORK = 56, 0x4000
if ctypes.CDLL(None).syscall(CLONE, VFORK | signal.SIGCHLD, 0, 0, 0, 0) == 0:
    os.mkdir("forked")
    while True:
        time.sleep(1)
"""
"""A parent that vfork(2) holds up until its child starts a program or ends."""


class Quiet(Prompt):
    """A prompt whose state directory is on a filesystem of its own, which nobody but it writes to disk."""

    def __init__(self, directory: Path, state: Path) -> None:
        super().__init__(directory)
        self.state = state


@pytest.fixture(params=["ext4", "tmpfs"])
def own_filesystem(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A small filesystem that only root can make here."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a filesystem")
    place, image = tmp_path / "filesystem", tmp_path / "image"
    place.mkdir()
    if request.param == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(place)]
    else:
        image.touch()
        os.truncate(image, 64 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-F", str(image)], check=True)
        mount = ["mount", "-o", "loop", str(image), str(place)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("this machine lets nobody mount a filesystem")
    try:
        yield place
    finally:
        unmount(place)


@pytest.fixture
def on_own_filesystem(engine: None, tmp_path: Path, own_filesystem: Path) -> Iterator[Quiet]:
    state = own_filesystem / "state"
    state.mkdir(mode=0o700)
    prompt = Quiet(tmp_path, state)
    try:
        yield prompt
    finally:
        prompt.end()


# What an agent does


def test_what_is_written_to_shared_pages_is_shown_and_never_lost(on_own_filesystem: Quiet) -> None:
    prompt = on_own_filesystem
    prompt.sh(f"cat >/tmp/maps.py <<'END'\n{MAPS}END")
    job = prompt.start("-q", "--", "python3", "/tmp/maps.py")
    mapped = prompt.overlay() / "upper" / "mapped"
    wait_until(lambda: prompt.run("test", "-d", "/tmp/first", code=None).returncode == 0, "the first write")
    # Only what is older than two seconds would be trusted at all.
    changed = mapped.stat().st_ctime_ns
    beside = prompt.state / "clock"
    wait_until(lambda: beside.touch() or beside.stat().st_ctime_ns > changed + 3_000_000_000, "an older file")
    assert b"+first" in prompt("diff").stdout
    prompt.run("touch", "/tmp/go")
    wait_until(lambda: prompt.run("test", "-d", "/tmp/later", code=None).returncode == 0, "the second write")
    shown = prompt("diff").stdout
    assert b"+later" in shown, shown
    prompt.commit()
    assert (prompt.workspace / "mapped").read_bytes().startswith(b"later")
    job.communicate(timeout=120)


def test_a_process_whose_first_thread_ended_is_stopped_and_ended_like_any_other(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh(f"cat >/tmp/threads.py <<'END'\n{FIRST_THREAD_ENDS}END")
    job = fresh_prompt.start("-q", "--", "python3", "/tmp/threads.py")
    wait_until(lambda: fresh_prompt.run("test", "-s", "count", code=None).returncode == 0, "the first count")

    async def look() -> None:
        client = await KeeperClient.connect(str(fresh_prompt.overlay()))
        assert client is not None
        async with client:
            async with client.freeze():
                before = await client.read_file("count")
                for _ in range(20):
                    await client.counters()
                assert await client.read_file("count") == before
            while await client.read_file("count") == before:
                await client.counters()

    anyio.run(look)
    fresh_prompt("exec", "-q", "--timeout", "1", "--", "python3", "/tmp/threads.py", code=124)
    job.terminate()
    job.communicate(timeout=120)
    states = fresh_prompt.sh("cat /proc/[0-9]*/stat").stdout.decode()
    assert "(python3)" not in states


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the number of clone(2) is that of x86-64")
def test_a_process_that_cant_be_stopped_is_an_error_that_says_what_to_do(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh(f"cat >/tmp/waits.py <<'END'\n{WAITS_IN_THE_KERNEL}END")
    job = fresh_prompt.start("-q", "--", "python3", "/tmp/waits.py")
    started = ("test", "-e", "forked")
    wait_until(lambda: fresh_prompt.run(*started, code=None).returncode == 0, "a child that never starts a program")
    refused = fresh_prompt("diff", code=1)
    assert b"[sandbox_failed]" in refused.stderr
    assert b"workbench stop" in refused.stderr
    fresh_prompt("stop")
    job.communicate(timeout=120)
    fresh_prompt("diff")


def test_what_changes_while_it_is_counted_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "upper").mkdir()
    (tmp_path / "upper" / "there").touch()

    def vanished(*arguments: object, **options: object) -> os.stat_result:
        raise FileNotFoundError(errno.ENOENT, "gone", "there")

    with monkeypatch.context() as patched:
        patched.setattr(os, "stat", vanished)
        assert warm.counted(str(tmp_path))[:2] == ("", None)
    assert warm.counted(str(tmp_path))[:2] != ("", None)


@pytest.mark.parametrize("name", [".cargo", ".github", ".config", ".Cargo"])
def test_a_link_in_the_place_of_a_risky_directory_is_risky_whatever_it_leads_to(cli: Cli, name: str) -> None:
    cli.sh(f"mkdir x; echo 1 >x/config.toml; ln -s x {name}")
    assert b"RISKY" in cli("diff").stderr
    refused = cli.commit(code=4)
    assert b"risky_paths" in refused.stderr
    assert not os.path.lexists(cli.workspace / name)


def test_thousands_of_levels_cost_no_more_than_their_number() -> None:
    """A walk from each of them to the root would be millions of steps."""
    steps = 0

    class Counted(bytes):
        def rpartition(self, separator: bytes) -> tuple[bytes, bytes, bytes]:  # type: ignore[override]
            nonlocal steps
            steps += 1
            above, _, name = bytes.rpartition(self, separator)
            return Counted(above), separator, name

    levels = [Counted(b"/".join([b"d"] * depth)) for depth in range(1, 4001)]
    below: Nearest[bool] = Nearest({b"d": True})
    assert all(below.at(path) for path in reversed(levels))
    assert not Nearest({b"d": True}).at(b"dd/d")
    assert with_ancestors(reversed(levels)) == {b"", *levels}
    assert steps <= 2 * len(levels) + 2


# A state directory that was damaged


@pytest.mark.parametrize("name", ["mounted", "counted"])
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", b"x y z", b"\0" * 100])
def test_a_damaged_note_beside_the_overlay_stops_nothing(prompt: Prompt, name: str, content: bytes) -> None:
    prompt.sh("echo changed >README.md")
    (prompt.overlay() / name).write_bytes(content)
    assert prompt.run("cat", "README.md").stdout == b"changed\n"
    (prompt.overlay() / name).write_bytes(content)
    prompt("status")
    prompt("discard", "--yes")


def test_a_damaged_note_of_the_number_of_changes_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "upper").mkdir()
    now, *_ = warm.counted(str(tmp_path))
    (tmp_path / "counted").write_text(f"{now} many")
    assert warm.counted(str(tmp_path))[:2] == (now, None)


def test_what_an_overlay_held_counts_only_for_what_its_keeper_said_then(tmp_path: Path) -> None:
    warm.note_counted(str(tmp_path), "a" * 40, 3, "b" * 40, "keeper-7")
    assert warm.unwritten(str(tmp_path), "keeper-7") == ("a" * 40, "b" * 40)
    for other in ("keeper-8", "another-7", ""):
        assert warm.unwritten(str(tmp_path), other) == warm.NOTHING
    warm.note_counted(str(tmp_path), "a" * 40, 3, "b" * 40)
    assert warm.unwritten(str(tmp_path), "") == warm.NOTHING


def test_a_damaged_note_of_what_was_shown_refuses_that_digest_and_blocks_no_other(prompt: Prompt) -> None:
    prompt.sh("echo one >README.md")
    damaged = prompt.digest()
    prompt.sh("echo two >README.md")
    digest = prompt.digest()
    (prompt.overlay() / "shown" / f"{damaged}.json").write_text("{")
    prompt("status")
    (prompt.overlay() / "shown" / f"{damaged}.json").write_text("{")
    assert b"digest_unknown" in prompt("commit", "--digest", damaged, code=4).stderr
    (prompt.overlay() / "shown" / f"{damaged}.json").write_text("{")
    prompt("commit", "--digest", digest)
    assert (prompt.workspace / "README.md").read_text() == "two\n"


def test_a_sandbox_whose_record_was_lost_can_be_ended_and_nothing_of_it_is_lost(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh("echo agent >README.md")
    (fresh_prompt.overlay() / "overlay.json").write_text("{")
    assert b"[state_corrupt]" in fresh_prompt("status", code=1).stderr
    assert b"workbench stop" in fresh_prompt("status", code=1).stderr
    fresh_prompt("stop")
    assert fresh_prompt.run("cat", "README.md").stdout == b"agent\n"
    fresh_prompt.commit()


def test_where_the_record_was_lost_no_base_is_taken_for_known(tmp_path: Path) -> None:
    """A person may have saved meanwhile: what an overlay departed from can't be read afterwards."""
    made = OverlayDirectory.create(str(tmp_path / "overlay"), session="s")
    assert epoch(made.record().mounts) is None
    (tmp_path / "overlay" / "upper" / "copied-up").touch()
    (tmp_path / "overlay" / "overlay.json").unlink()
    found = OverlayDirectory.create(str(tmp_path / "overlay"), session="s").record()
    assert epoch(found.mounts) == 0
    assert found.git_fingerprint


def test_what_a_killed_keeper_left_mounted_is_removed_though_its_record_was_lost(fresh_prompt: Prompt) -> None:
    fresh_prompt.sh("echo agent >README.md")

    async def ask() -> int:
        client = await KeeperClient.connect(str(fresh_prompt.overlay()))
        assert client is not None
        async with client:
            return (await client.info()).pid

    keeper = anyio.run(ask)
    left = fresh_prompt.leftovers()
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not os.path.exists(f"/proc/{keeper}"), "the keeper's end")
    (fresh_prompt.overlay() / "overlay.json").unlink()
    fresh_prompt("diff")
    assert left
    assert fresh_prompt.leftovers() == []


def test_a_full_disk_is_an_error_with_a_next_step() -> None:
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/state/file")
    for raised in (full, ExceptionGroup("both", [full])):
        error = find_error(raised)
        assert error is not None
        assert (error.code, error.hint) == ("disk_full", "Free disk space, then try again.")
    refused = find_error(PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/state/file"))
    assert refused is not None
    assert refused.code == "system_error"
    assert find_error(BrokenPipeError()) is None


def test_what_a_full_state_disk_has_no_room_for_stays_with_an_engine_that_has_copies(
    on_own_filesystem: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORKBENCH_SHARING", "copied")
    prompt = on_own_filesystem
    prompt.sh("echo first >first")
    filler = prompt.overlay() / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    # Enough for what is noted before a command, and too little for what it writes.
    os.truncate(filler, filler.stat().st_size - (1 << 20))
    lost = prompt.sh("echo agent >README.md; dd if=/dev/urandom of=big bs=1M count=4 2>/dev/null", code=125)
    assert b"what the sandbox has written. [disk_full]" in lost.stderr, lost.stderr
    for command in (["status"], ["stop"], ["diff"]):
        assert b"Free disk space" in prompt(*command, code=1).stderr
    filler.unlink()
    assert prompt("stop").returncode == 0
    assert prompt.leftovers() == []
    assert sorted(change["path"] for change in json.loads(prompt("diff", "--json").stdout)["changes"]) == [
        "README.md",
        "big",
        "first",
    ]


def test_a_full_state_disk_stops_nothing_from_being_stopped(
    on_own_filesystem: Quiet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # With copies a command fills the engine's disk: that is the test before this one.
    monkeypatch.setenv("WORKBENCH_SHARING", "mounted")
    prompt = on_own_filesystem
    before = snapshot(prompt.workspace)
    # What fills the disk is ended, which leaves a little of it to somebody else.
    prompt.sh("echo agent >README.md; sync README.md; dd if=/dev/zero of=big bs=1M count=200 2>/dev/null", code=None)
    filler = prompt.overlay() / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    for command in (["status"], ["diff"], ["commit", "--digest", "0" * 64]):
        refused = prompt(*command, code=None)
        assert refused.returncode in (1, 4)
        assert b"Traceback" not in refused.stderr
    prompt("stop")
    for command in (["status"], ["exec", "--", "true"], ["discard", "--yes"]):
        refused = prompt(*command, code=None)
        assert refused.returncode in (1, 125)
        assert b"Free disk space" in refused.stderr, refused.stderr
    assert snapshot(prompt.workspace) == before
    filler.unlink()
    (prompt.overlay() / "upper" / "big").unlink()
    prompt.commit()
    assert (prompt.workspace / "README.md").read_text() == "agent\n"
