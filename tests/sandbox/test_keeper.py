"""Keepers of real sandboxes, their clients, and how each survives the other."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from anyio.abc import ByteStream, UNIXSocketStream

from tests.needed import need_program
from tests.sandbox.places import Place, a_place
from tests.sandbox.supervised import SOURCE, alive, nap, prefix
from tests.waiting import until
from workbench.errors import SandboxError, StateError
from workbench.protocol.commands import Command
from workbench.protocol.records import MountRecord
from workbench.sandbox import client as client_module
from workbench.sandbox import frames, keeper, runtime
from workbench.sandbox.backend import SandboxSpec
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.disk import LocalSpace

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def place() -> Iterator[Place]:
    need_program("bwrap")
    with a_place("namespace") as place:
        yield place


async def sh(client: KeeperClient, script: str) -> bytes:
    with anyio.fail_after(120):
        return (await client.run(Command(("sh", "-c", script), output_limit=1 << 20))).stdout


async def to_the_end(stream: ByteStream) -> None:
    try:
        while True:
            await stream.receive()
    except (anyio.EndOfStream, anyio.BrokenResourceError):
        return


async def test_a_command_sees_the_overlay_and_what_it_writes_stays(place: Place) -> None:
    async with await place.ensure() as client:
        assert await sh(client, "pwd; cat old; echo new > new") == b"/workspace\nold\n"
        assert (place.upper / "new").read_text() == "new\n"
        info = await client.info()
        assert (info.backend, info.targets, info.jobs, info.clients) == ("namespace", ("/workspace",), 0, 1)
        assert (await client.hello()).mounts[0].type == "overlay"
        assert await client.write_file("through", b"written")
        assert await client.read_file("through") == b"written"


async def test_the_mount_is_recorded_with_its_epoch_and_as_gone_after_it_was_unmounted(place: Place) -> None:
    before = place.overlay.tick()
    async with await place.ensure() as client:
        [mount] = place.overlay.record().mounts
        assert (mount.name, mount.backend, mount.live) == ((await client.info()).name, "namespace", True)
        assert mount.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        assert before < mount.epoch_ns <= place.overlay.tick()
        await client.stop()
    [stopped] = place.overlay.record().mounts
    assert stopped == mount.model_copy(update={"live": False})


async def test_a_sandbox_outlives_its_client_and_the_next_one_finds_it(place: Place) -> None:
    async with await place.ensure() as client:
        first = await client.info()
    found = await KeeperClient.connect(place.overlay.path)
    assert found is not None
    async with found:
        assert (await found.info()).pid == first.pid
    assert not place.is_free()


async def test_without_a_keeper_there_is_nothing_to_connect_to(place: Place) -> None:
    assert await KeeperClient.connect(place.overlay.path) is None
    runtime.publish_socket(place.overlay.path, str(place.path / "stale"))
    assert await KeeperClient.connect(place.overlay.path) is None


async def test_clients_that_start_at_once_get_one_keeper(place: Place) -> None:
    pids = []

    async def one() -> None:
        async with await place.ensure() as client:
            pids.append((await client.info()).pid)

    async with anyio.create_task_group() as group:
        for _ in range(4):
            group.start_soon(one)
    assert len(set(pids)) == 1


async def test_processes_that_start_at_once_get_one_keeper(place: Place) -> None:
    script = f"""
import anyio
from workbench.sandbox import keeper_process
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.disk import LocalSpace
from workbench.vfs.session import OverlayDirectory
async def main():
    overlay = OverlayDirectory.open({place.overlay.path!r})
    spec = keeper_process.spec_from_json({_content(place.spec())!r})
    async with await KeeperClient.ensure(overlay, spec, print) as client:
        print((await client.info()).pid)
anyio.run(main)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    argv = [sys.executable, "-c", script]
    processes = [subprocess.Popen(argv, stdout=subprocess.PIPE, env=environment, cwd=ROOT) for _ in range(3)]
    said = [await anyio.to_thread.run_sync(process.communicate) for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert len({out.strip() for out, _ in said}) == 1


def _content(spec: SandboxSpec) -> object:
    from dataclasses import asdict

    return json.loads(json.dumps(asdict(spec)))


async def test_a_client_that_is_killed_takes_its_commands_along_and_no_others(place: Place) -> None:
    ours, away, here = nap(), nap(), nap()
    async with await place.ensure() as client:
        own = await client.spawn(Command(("sleep", ours)))
        script = f"""
import anyio
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.disk import LocalSpace
from workbench.protocol.commands import Command
from workbench.protocol.records import MountRecord
async def main():
    async with await KeeperClient.connect({place.overlay.path!r}) as client, client.freeze():
        pass
    async with await KeeperClient.connect({place.overlay.path!r}) as client:
        await client.run(Command(("sh", "-c", "setsid -f sleep {away}; sleep {here}")))
anyio.run(main)
"""
        other = subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(ROOT)})
        await until(lambda: alive("sleep", away) and alive("sleep", here))
        other.kill()
        other.wait()
        await until(lambda: not alive("sleep", away) and not alive("sleep", here))
        assert alive("sleep", ours)
        assert (await client.info()).jobs == 1
        await own.kill("test")
        assert (await own.wait()).ended_by == "test"


async def test_what_a_dead_client_froze_goes_on(place: Place) -> None:
    async with await place.ensure() as client:
        script = f"""
import anyio
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.disk import LocalSpace
async def main():
    async with await KeeperClient.connect({place.overlay.path!r}) as client, client.freeze():
        print("frozen", flush=True)
        await anyio.sleep_forever()
anyio.run(main)
"""
        argv = [sys.executable, "-c", script]
        other = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=subprocess.PIPE)
        assert other.stdout is not None
        assert await anyio.to_thread.run_sync(other.stdout.readline) == b"frozen\n"
        async with anyio.create_task_group() as group:
            done = []

            async def run() -> None:
                done.append(await sh(client, "echo done"))

            group.start_soon(run)
            await client.counters()
            assert done == []
            other.kill()
        assert done == [b"done\n"]
        other.wait()
        other.stdout.close()


async def test_a_killed_keeper_leaves_nothing_running_and_the_overlay_free(place: Place) -> None:
    seconds = nap()
    client = await place.ensure()
    async with client:
        pid = (await client.info()).pid
        job = await client.spawn(Command(("sleep", seconds)))
        await until(lambda: alive("sleep", seconds))
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(SandboxError) as caught:
            await job.wait()
        assert caught.value.code == "sandbox_lost"
    await until(lambda: not alive("sleep", seconds))
    await until(lambda: place.is_free() and not place.is_mounted())
    assert await KeeperClient.connect(place.overlay.path) is None
    assert [mount.live for mount in place.overlay.record().mounts] == [True]
    async with await place.ensure() as again:
        assert await sh(again, "echo well") == b"well\n"


async def test_a_sandbox_whose_supervisor_dies_is_lost_to_all_and_cleaned_up(place: Place) -> None:
    seconds = nap()
    async with await place.ensure() as client:
        job = await client.spawn(Command(("sleep", seconds)))
        await until(lambda: alive("sleep", seconds))
        name = (await client.info()).name
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if Path(f"/proc/{entry}/comm").read_text() == "workbench\n":
                    facts = Path(f"/proc/{entry}/mountinfo").read_text()
                    if f"overlay {name} " in facts:
                        os.kill(int(entry), signal.SIGKILL)
            except OSError:
                continue
        with pytest.raises(SandboxError) as caught:
            await job.wait()
        assert caught.value.code == "sandbox_lost"
    await until(place.is_free)
    assert [mount.live for mount in place.overlay.record().mounts] == [False]


async def test_an_idle_sandbox_ends_by_itself_but_not_under_a_client(place: Place) -> None:
    async with await place.ensure(idle_seconds=0.2) as client:
        with anyio.move_on_after(0.5):
            while True:
                await client.counters()
        assert await sh(client, "echo well") == b"well\n"
    await until(place.is_free)
    assert await KeeperClient.connect(place.overlay.path) is None


async def test_stopping_ends_commands_and_says_so_on_both_sides(place: Place) -> None:
    first, second = nap(), nap()
    async with await place.ensure() as client:
        job = await client.spawn(
            Command(("sh", "-c", f"echo here; trap '' TERM; : >ready; sleep {first}; sleep {second}"), output_limit=99)
        )
        await until((place.upper / "ready").exists)
        other = await KeeperClient.connect(place.overlay.path)
        assert other is not None
        results = []

        async def wait() -> None:
            results.append(await job.wait())

        async with other, anyio.create_task_group() as group:
            group.start_soon(wait)
            [ended] = await other.stop(reason="commit")
            assert (ended.argv[0], ended.ended_by, ended.tty) == ("sh", "commit", False)
            assert place.is_free()
            assert not place.is_mounted()
        assert (results[0].ended_by, results[0].stdout, results[0].signal) == ("commit", b"here\n", "SIGKILL")
    assert not alive("sleep", first)
    assert not alive("sleep", second)


async def test_a_terminal_is_only_ended_by_force(place: Place) -> None:
    async with await place.ensure() as client:
        job = await client.spawn(Command(("sleep", "1007.5"), tty=True))
        with pytest.raises(SandboxError) as caught:
            await client.stop()
        assert caught.value.code == "sandbox_busy"
        async with anyio.create_task_group() as group:
            group.start_soon(job.wait)
            assert [ended.tty for ended in await client.stop(force=True)] == [True]


async def test_sigterm_ends_commands_and_unmounts(place: Place) -> None:
    async with await place.ensure() as client:
        job = await client.spawn(Command(("sleep", "1008.5")))
        os.kill((await client.info()).pid, signal.SIGTERM)
        assert (await job.wait()).ended_by == "stop"
    await until(place.is_free)
    assert [mount.live for mount in place.overlay.record().mounts] == [False]


async def test_a_keeper_of_another_version_is_drained(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    results = []
    async with await place.ensure() as client:
        pid = (await client.info()).pid
        job = await client.spawn(Command(("sh", "-c", "while ! test -e go; do sleep 0.01; done")))

        async def wait() -> None:
            results.append((await job.wait()).exit_code)

        with monkeypatch.context() as patched:
            patched.setattr(client_module, "PROTOCOL", keeper.PROTOCOL + 1)
            async with anyio.create_task_group() as group:
                group.start_soon(wait)

                async def let_go() -> bool:
                    try:
                        await client.run(Command(("touch", "go")))
                    except SandboxError:
                        (place.upper / "go").touch()
                    return bool(results)

                group.start_soon(until, let_go)
                assert await KeeperClient.connect(place.overlay.path) is None
        assert results == [0]
        assert place.is_free()
    async with await place.ensure() as client:
        assert (await client.info()).pid != pid


async def test_a_stranger_on_the_socket_is_cut_off_and_nobody_else(place: Place) -> None:
    async with await place.ensure() as client:
        path = runtime.find_socket(place.overlay.path)
        assert path is not None
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            frames.encode_json(frames.RUN, 1, {"argv": ["true"]}),
            frames.encode(frames.GREET, 0, b"no JSON"),
            frames.encode_json(frames.GREET, 0, {"protocol": keeper.PROTOCOL})
            + frames.encode(frames.RUN, 1, b"[" * 100_000),
            frames.encode_json(frames.GREET, 0, {"protocol": keeper.PROTOCOL}) + frames.encode(frames.THAW, 1, b"abcd"),
            frames.encode_json(frames.GREET, 0, {"protocol": keeper.PROTOCOL}) + frames.encode(b"?", 1),
            _asked_then(frames.encode(frames.SIGNAL, 1, b"\xc8")),
            _asked_then(frames.encode_json(frames.KILL, 1, {"grace_ms": -1})),
            _asked_then(frames.encode_json(frames.KILL, 1, {"signal": 99})),
            _asked_then(frames.encode(frames.RESIZE, 1, b"x")),
            _asked_then(frames.encode_json(frames.ATTACH, 2, {"job": "", "tail": "x"}) + frames.encode(b"?", 1)),
        ):
            async with await anyio.connect_unix(path) as stream:
                await stream.send(data)
                with anyio.fail_after(120):
                    await to_the_end(stream)
        assert await sh(client, "echo well") == b"well\n"


def _asked_then(data: bytes) -> bytes:
    """A client's greeting and a command, then what it shouldn't say of it."""
    asked = frames.encode_json(frames.RUN, 1, frames.command_content(Command(("sleep", "1000"))))
    return frames.encode_json(frames.GREET, 0, {"protocol": keeper.PROTOCOL}) + asked + data


async def test_a_sandbox_that_cannot_start_is_an_error_and_leaves_the_overlay_free(place: Place) -> None:
    with pytest.raises(SandboxError) as caught:
        await KeeperClient.ensure(place.overlay, place.spec(backend="nonsense"), print)
    assert caught.value.code == "backend_unavailable"
    assert place.is_free()
    assert place.overlay.record().mounts == ()


def test_a_runtime_directory_that_is_not_ours_alone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    tmp_path.chmod(0o700)
    directory = Path(runtime.socket_directory("/some/overlay"))
    assert directory.parent == tmp_path / "workbench"
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.chmod(0o755)
    with pytest.raises(StateError):
        runtime.socket_directory("/some/overlay")
    directory.rmdir()
    directory.symlink_to(tmp_path)
    with pytest.raises(StateError):
        runtime.socket_directory("/some/overlay")


async def test_what_fails_before_the_mount_leaves_the_overlay_free(place: Place) -> None:
    async def fail() -> None:
        raise StateError("It can't be prepared.")

    with place.overlay.lock() as lock, pytest.raises(StateError):
        await KeeperClient.start(place.overlay, place.spec(), lock, print, fail)
    place.overlay.take_lock().close()
    assert place.overlay.record().mounts == ()


async def test_what_has_to_be_done_before_the_mount_may_take_longer_than_the_keeper_to_come_up(place: Place) -> None:
    overlay = os.fsencode(place.overlay.path)

    def is_forked() -> bool:
        """Whether the process that we started has ended, after it forked the keeper proper."""
        children = b" ".join(path.read_bytes() for path in Path("/proc/self/task").glob("*/children"))
        return not any(overlay in _command_line(int(child)) for child in children.split())

    async def prepare() -> None:
        await until(is_forked)
        # So that an event loop has seen it, too.
        for _ in range(3):
            await anyio.to_thread.run_sync(is_forked)

    with place.overlay.lock() as lock:
        async with await KeeperClient.start(place.overlay, place.spec(), lock, print, prepare) as client:
            assert (await client.run(Command(("true",)))).exit_code == 0


def _command_line(pid: int) -> bytes:
    """Empty where it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def test_a_client_imports_nothing_that_is_heavy() -> None:
    script = "import sys, workbench.sandbox.client; print([m for m in sys.argv[1:] if m in sys.modules])"
    heavy = ["pydantic", "docker", "typer", "rich", "dulwich", "workbench.vfs.session"]
    argv = [sys.executable, "-c", script, *heavy]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(argv, capture_output=True, check=True, env=environment).stdout == b"[]\n"


class Stubborn:
    """A sandbox whose removal fails twice, as under an engine that can't be reached."""

    name = "stubborn"
    kind = "namespace"

    def __init__(self, directory: str, stops: list[int]) -> None:
        self._directory = directory
        self._stops = stops
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: ByteStream | None = None

    async def start(self, report: Callable[[str], None]) -> ByteStream:
        ours, theirs = socket.socketpair()
        argv = [*prefix(), "/usr/bin/python3", "-I", "-S", str(SOURCE), json.dumps({"targets": [self._directory]})]
        self._process = subprocess.Popen(argv, stdin=theirs, stdout=theirs)
        theirs.close()
        ours.setblocking(False)
        self._stream = await UNIXSocketStream.from_socket(ours)
        return self._stream

    @property
    def space(self) -> LocalSpace:
        return LocalSpace([self._directory])

    async def stop(self) -> None:
        self._stops.append(1)
        if len(self._stops) < 3:
            raise SandboxError("The engine doesn't answer.", code="engine_unavailable")
        assert self._stream is not None
        assert self._process is not None
        await self._stream.aclose()
        self._process.wait()


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_an_engine_that_cannot_be_reached_keeps_the_overlay_locked(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    stops: list[int] = []
    monkeypatch.setattr(keeper, "_RETRY_SECONDS", (0.05,))
    stubborn = Stubborn(str(place.path / "lower"), stops)
    mount = MountRecord(name=stubborn.name, backend=stubborn.kind, boot_id="")
    place.overlay.save(place.overlay.record().model_copy(update={"mounts": (mount,)}))

    async def mounted() -> int:
        return place.overlay.tick()

    with place.overlay.lock() as lock:
        started = anyio.Event()
        held = keeper.Keeper(place.overlay.path, lock, place.spec(), stubborn)
        async with anyio.create_task_group() as group:
            group.start_soon(held.run, print, mounted, started.set)
            await started.wait()
            client = await KeeperClient.connect(place.overlay.path)
            assert client is not None
            async with client:
                with pytest.raises(SandboxError) as caught:
                    await client.stop()
            assert caught.value.code == "engine_unavailable"
            assert lock.fd >= 0
    assert len(stops) == 3
    assert [mount.live for mount in place.overlay.record().mounts] == [False]
