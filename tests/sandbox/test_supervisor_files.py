"""Freezing, and files through the supervisor."""

from __future__ import annotations

import os
import stat
from collections.abc import AsyncIterator

import anyio
import pytest

from tests.sandbox.supervised import Inside, supervised
from tests.waiting import until
from workbench.protocol.commands import Command

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    async with supervised() as started:
        yield started


async def test_nothing_changes_while_it_is_frozen_and_all_goes_on_afterwards(inside: Inside) -> None:
    counter = inside.directory / "counter"
    script = "i=0; while :; do i=$((i+1)); echo $i > counter.new; mv counter.new counter; (true); done"
    job = await inside.connection.spawn(Command(("sh", "-c", f"({script}) & {script}")))
    await until(counter.exists)
    for _ in range(10):
        async with inside.connection.freeze():
            seen = [(path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in inside.directory.iterdir()]
            assert await inside.connection.stat("counter")
            again = [(path.name, path.stat().st_mtime_ns, path.read_bytes()) for path in inside.directory.iterdir()]
            assert seen == again
        before = counter.read_bytes() if counter.exists() else b""
        await until(lambda before=before: counter.exists() and counter.read_bytes() != before)
    await job.kill()
    await job.wait()
    assert await inside.processes() == []


async def test_commands_and_writes_wait_until_it_is_thawed(inside: Inside) -> None:
    order: list[str] = []

    async def command() -> None:
        await inside.sh("true")
        order.append("command")

    async def write() -> None:
        await inside.connection.write_file("file", b"x" * 100_000)
        order.append("write")

    async with anyio.create_task_group() as group, inside.connection.freeze(), inside.connection.freeze():
        group.start_soon(command)
        group.start_soon(write)
        for _ in range(20):
            await inside.connection.counters()
        assert os.listdir(inside.directory) == []
        order.append("thaw")
    assert order[0] == "thaw"
    assert sorted(order[1:]) == ["command", "write"]


async def test_thawing_wakes_nothing_that_was_stopped_before(inside: Inside) -> None:
    script = "sleep 1001 & kill -STOP $!; until grep -q 'State:.T' /proc/$!/status; do :; done; echo $! > pid; wait"
    job = await inside.connection.spawn(Command(("sh", "-c", script)))
    await until(lambda: (inside.directory / "pid").exists() and (inside.directory / "pid").read_text().strip())
    async with inside.connection.freeze():
        pass
    pid = (inside.directory / "pid").read_text().strip()
    assert (await inside.text(f"cut -d' ' -f3 /proc/{pid}/stat")) == "T\n"
    await job.kill()
    await job.wait()


async def test_a_shell_does_not_notice_that_it_was_frozen(inside: Inside) -> None:
    seen = bytearray()
    command = Command(("bash", "--norc", "-i"), tty=True, environment={"PS1": "READY>", "TERM": "dumb"})
    job = await inside.connection.spawn(command)
    async with anyio.create_task_group() as group:

        async def freezes() -> None:
            await until(lambda: b"READY>" in seen)
            await job.send_input(b"sleep 2\n")
            await inside.runs("sleep 2")
            for _ in range(20):
                async with inside.connection.freeze():
                    pass
            await until(lambda: seen.count(b"READY>") == 2)
            await job.send_input(b"exit\n")

        group.start_soon(freezes)
        await job.wait(on_stdout=seen.extend)
    assert b"Stopped" not in seen


async def test_a_timeout_waits_for_the_thaw_and_killing_does_not(inside: Inside) -> None:
    results = []

    async def late() -> None:
        results.append(await inside.sh("sleep 1001", timeout_ms=50))

    async with anyio.create_task_group() as group:
        group.start_soon(late)
        victim = await inside.connection.spawn(Command(("sleep", "1002")))
        await inside.sh("true")
        async with inside.connection.freeze():
            await victim.kill("test")
            assert (await victim.wait()).ended_by == "test"
    assert results[0].timed_out


async def test_a_written_file_is_whole_and_keeps_its_mode(inside: Inside) -> None:
    content = os.urandom(1_000_000)
    written = await inside.connection.write_file("file", content)
    assert (written.size, stat.S_IMODE(written.mode)) == (1_000_000, 0o644)
    assert (inside.directory / "file").read_bytes() == content
    await inside.sh("chmod 751 file")
    await inside.connection.write_file("file", b"new")
    assert stat.S_IMODE((await inside.connection.stat("file")).mode) == 0o751
    await inside.connection.write_file("file", b"", mode=0o600)
    assert stat.S_IMODE((await inside.connection.stat("file")).mode) == 0o600
    assert os.listdir(inside.directory) == ["file"]


async def test_a_file_is_read_whole_or_in_part(inside: Inside) -> None:
    content = os.urandom(1_000_000)
    (inside.directory / "file").write_bytes(content)
    (inside.directory / "empty").touch()
    assert await inside.connection.read_file("file") == content
    assert await inside.connection.read_file("file", offset=999_990, length=100) == content[-10:]
    assert await inside.connection.read_file("file", offset=10, length=5) == content[10:15]
    assert await inside.connection.read_file("empty") == b""


async def test_no_symlink_is_followed_and_nothing_outside_is_reached(inside: Inside) -> None:
    (inside.directory / "outside").symlink_to("/etc")
    (inside.directory / "link").symlink_to("/etc/passwd")
    connection = inside.connection
    for path in ("outside/passwd", "link/x"):
        with pytest.raises(NotADirectoryError):
            await connection.read_file(path)
        with pytest.raises(NotADirectoryError):
            await connection.write_file(path, b"x")
    with pytest.raises(OSError, match="symbolic link") as caught:
        await connection.read_file("link")
    assert caught.value.filename == "link"
    for path in ("../x", "a/../b", "/etc/passwd", "a//b", "./x", "x\0y"):
        with pytest.raises(OSError, match="Invalid argument"):
            await connection.stat(path)
    await connection.write_file("link", b"mine")
    assert (inside.directory / "link").read_bytes() == b"mine"
    assert stat.S_ISLNK((await connection.stat("outside")).mode)
    assert stat.S_ISDIR((await connection.stat("")).mode)


async def test_what_is_no_regular_file_is_never_waited_for(inside: Inside) -> None:
    await inside.sh("mkfifo fifo; mkdir directory")
    with pytest.raises(OSError, match="Invalid argument"):
        await inside.connection.read_file("fifo")
    with pytest.raises(IsADirectoryError):
        await inside.connection.read_file("directory")
    with pytest.raises(IsADirectoryError):
        await inside.connection.write_file("directory", b"x")
    with pytest.raises(FileNotFoundError):
        await inside.connection.write_file("missing/file", b"x")
    assert sorted(os.listdir(inside.directory)) == ["directory", "fifo"]


async def test_a_write_that_is_cancelled_leaves_nothing(inside: Inside) -> None:
    with anyio.move_on_after(0):
        await inside.connection.write_file("file", b"x" * 5_000_000)
    await inside.sh("true")
    assert os.listdir(inside.directory) == []


async def test_names_of_any_bytes_work(inside: Inside) -> None:
    for name in (b"new\nline", b"\xff\xfe", b"-rf", b"a:b,c\\d e", b"n" * 230):
        await inside.connection.write_file(os.fsdecode(name), name)
        assert await inside.connection.read_file(os.fsdecode(name)) == name
        assert name in os.listdir(os.fsencode(inside.directory))


async def test_edits_are_what_the_system_calls_of_their_names_do(inside: Inside) -> None:
    connection, directory = inside.connection, inside.directory
    await connection.edit("mkdir", "d", mode=0o750)
    assert stat.S_IMODE((directory / "d").stat().st_mode) == 0o750
    await connection.write_file("d/f", b"f", exclusive=True)
    with pytest.raises(FileExistsError):
        await connection.write_file("d/f", b"g", exclusive=True)
    await connection.append_file("d/f", b"more")
    await connection.append_file("d/g", b"g")
    assert (directory / "d" / "f").read_bytes() == b"fmore"
    with pytest.raises(FileExistsError):
        await connection.edit("rename", "d/f", target="d/g", exclusive=1)
    await connection.edit("rename", "d/f", target="d/h", exclusive=1)
    await connection.edit("rename", "d/h", target="d/g")
    await connection.edit("link", "d/g", target="other")
    assert (directory / "other").stat().st_nlink == 2
    await connection.edit("symlink", "link", target="d/g")
    await connection.edit("chmod", "other", mode=0o600)
    await connection.edit("utime", "other", atime_ns=1_000_000_000, mtime_ns=-5)
    found = (directory / "d" / "g").stat()
    assert (stat.S_IMODE(found.st_mode), found.st_mtime_ns, found.st_size) == (0o600, -5, 5)
    await connection.edit("unlink", "d/g")
    await connection.edit("rmdir", "d")
    assert sorted(os.listdir(directory)) == ["link", "other"]


async def test_no_edit_follows_a_symlink_or_leaves_its_mount(inside: Inside) -> None:
    await inside.sh("mkdir outside d; echo kept > outside/file; ln -s outside out; ln -s outside/file link")
    connection = inside.connection
    for call, options in (
        ("unlink", {}),
        ("mkdir", {}),
        ("chmod", {"mode": 0}),
        ("utime", {"atime_ns": 0, "mtime_ns": 0}),
    ):
        with pytest.raises(NotADirectoryError):
            await connection.edit(call, "out/file", **options)  # type: ignore[arg-type]
    with pytest.raises(NotADirectoryError):
        await connection.edit("rename", "d", target="out/d")
    with pytest.raises(OSError, match="Invalid argument"):
        await connection.edit("rename", "d", target="../d")
    with pytest.raises(OSError, match="not supported"):
        await connection.edit("chmod", "link", mode=0o777)
    with pytest.raises(OSError, match="symbolic link"):
        await connection.append_file("link", b"x")
    await inside.sh("mkfifo fifo")
    with pytest.raises(OSError, match=r"No such device|Invalid argument"):
        await connection.append_file("fifo", b"x")
    await connection.edit("link", "link", target="link-too")
    assert await inside.text("cat outside/file; readlink link-too") == "kept\noutside/file\n"


async def test_edits_wait_until_it_is_thawed(inside: Inside) -> None:
    async with anyio.create_task_group() as group, inside.connection.freeze():
        group.start_soon(inside.connection.edit, "mkdir", "d")
        for _ in range(20):
            await inside.connection.counters()
        assert os.listdir(inside.directory) == []
    assert os.listdir(inside.directory) == ["d"]
