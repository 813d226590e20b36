"""Commands in the background: they outlive who started them, their output is kept, and others attach to them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from tests.sandbox.places import Place
from tests.waiting import until
from workbench.errors import CommandError, OptionsError, SandboxError
from workbench.protocol.commands import Command
from workbench.sandbox.backend import Limits
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.facts import JobFacts

pytestmark = pytest.mark.anyio
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def anyio_backend() -> str:
    """One event loop is enough here: the other one drives the same client in the keeper's own tests."""
    return "asyncio"


class Heard:
    """What somebody who is attached gets to hear."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.err = bytearray()
        self.left_out: list[int] = []

    def callbacks(self) -> dict[str, object]:
        return {"on_stdout": self.out.extend, "on_stderr": self.err.extend, "on_left_out": self.left_out.append}


def sh(script: str, **options: object) -> Command:
    return Command(("sh", "-c", script), **options)  # type: ignore[arg-type]


async def job(client: KeeperClient, name: str) -> JobFacts:
    [found] = [one for one in await client.jobs() if one.id == name]
    return found


async def logs(client: KeeperClient, name: str, tail: int | None = None) -> bytes:
    heard = Heard()
    await (await client.attach(name, tail=tail, follow=False)).wait(**heard.callbacks())  # type: ignore[arg-type]
    return bytes(heard.out)


async def test_it_outlives_who_started_it_and_the_next_one_finds_it(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        name = await client.start_job(sh("echo out; echo err >&2; while ! test -e go; do sleep 0.01; done; exit 7"))
    async with await either_place.ensure() as client:
        assert [(one.id, one.over, one.background) for one in await client.jobs()] == [(name, False, True)]
        heard = Heard()
        attached = await client.attach(name)
        await client.run(Command(("touch", "go")))
        result = await attached.wait(**heard.callbacks())  # type: ignore[arg-type]
        assert result is not None
        assert (result.exit_code, bytes(heard.out), bytes(heard.err)) == (7, b"out\n", b"err\n")
        ended = await job(client, name)
        assert ended.over
        assert ended.result == result
        assert await logs(client, name) == b"out\n"


async def test_what_takes_cpu_time_and_memory_is_seen_while_it_runs(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        name = await client.start_job(sh("while :; do :; done"))

        async def has_used() -> bool:
            found = await job(client, name)
            return found.cpu_ms > 50 and found.memory_bytes > 100_000 and found.processes == 1

        await until(has_used)
        await client.end_job(name)
        ended = await job(client, name)
        assert ended.result is not None
        assert (ended.result.ended_by, ended.result.signal) == ("kill", "SIGKILL")
        assert ended.result.user_cpu_ms + ended.result.system_cpu_ms > 50


async def test_what_never_ran_is_an_error_and_is_not_listed(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        with pytest.raises(CommandError) as caught:
            await client.start_job(Command(("no-such-command",)))
        assert caught.value.code == "command_not_found"
        assert await client.jobs() == ()


async def test_a_command_by_an_unknown_name_is_an_error(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        first, second = await client.start_job(sh("exit 0")), await client.start_job(sh("exit 0"))
        for name in ("", "nonsense", first + "0"):
            for what in (client.end_job(name), client.signal_job(name, 15), (await client.attach(name)).wait()):
                with pytest.raises(SandboxError) as caught:
                    await what
                assert caught.value.code == "job_not_found"
        own = await client.spawn(sh("sleep 1000"))
        [running] = [one for one in await client.jobs() if not one.background]
        with pytest.raises(SandboxError, match="foreground"):
            await (await client.attach(running.id)).wait()
        await client.end_job(running.id)
        assert (await own.wait()).ended_by == "kill"
        with pytest.raises(OptionsError):
            await client.signal_job(second, 65)


async def test_of_much_output_the_beginning_and_the_end_are_kept_and_the_rest_is_counted(either_place: Place) -> None:
    whole = b"".join(b"%d\n" % n for n in range(1, 400_001))
    async with await either_place.ensure() as client:
        name = await client.start_job(sh("seq 1 400000"))
        assert (await (await client.attach(name, tail=0)).wait()) is not None
        heard = Heard()
        result = await (await client.attach(name)).wait(**heard.callbacks())  # type: ignore[arg-type]
        assert result is not None
        [left_out] = heard.left_out
        assert result.omitted_bytes == left_out == len(whole) - len(heard.out)
        assert 256 << 10 < len(heard.out) <= 512 << 10
        head = next(at for at, byte in enumerate(heard.out) if byte != whole[at])
        assert head > 120 << 10
        assert bytes(heard.out[head:]) == whole[head + left_out :]
        assert (await job(client, name)).output_bytes == len(whole)
        assert await logs(client, name, tail=2) == b"399999\n400000\n"
        assert await logs(client, name, tail=0) == b""


async def test_what_there_is_of_an_endless_output_has_an_end(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        name = await client.start_job(sh("yes"))

        async def has_written() -> bool:
            return (await job(client, name)).output_bytes > 2 << 20

        await until(has_written)
        with anyio.fail_after(120):
            assert len(await logs(client, name)) > 128 << 10
        assert not (await job(client, name)).over
        await client.end_job(name)


async def test_a_follower_who_reads_nothing_holds_up_neither_the_command_nor_the_others(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        name = await client.start_job(sh("while ! test -e go; do sleep 0.01; done; head -c 20000000 /dev/zero"))
        slow = await KeeperClient.connect(either_place.overlay.path)
        assert slow is not None
        async with slow:
            stuck = await slow.attach(name)
            await client.run(Command(("touch", "go")))
            with anyio.fail_after(120):
                assert await (await client.attach(name, tail=0)).wait() is not None
            heard = Heard()
            result = await stuck.wait(**heard.callbacks())  # type: ignore[arg-type]
            assert result is not None
            assert len(heard.out) + sum(heard.left_out) == 20_000_000
            assert len(heard.out) < 2 << 20


async def test_several_type_into_one_command_and_each_sees_all_of_its_output(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        name = await client.start_job(Command(("cat",), stdin=True))
        first, second = await client.attach(name), await client.attach(name)
        heard = Heard()
        assert await first.send_input(b"one\n")
        assert await second.send_input(b"x" * 1_000_000)
        await first.detach()
        assert await first.wait(**heard.callbacks()) is None  # type: ignore[arg-type]
        await second.end_input()
        result = await second.wait(**heard.callbacks())  # type: ignore[arg-type]
        assert result is not None
        assert result.exit_code == 0
        assert (await job(client, name)).output_bytes == 1_000_004


async def test_cancelling_who_is_attached_leaves_the_command_alone(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        name = await client.start_job(sh("echo here; sleep 1000"))
        attached, heard = await client.attach(name), anyio.Event()
        async with anyio.create_task_group() as group:

            async def follow() -> None:
                await attached.wait(on_stdout=lambda data: heard.set())

            group.start_soon(follow)
            await heard.wait()
            group.cancel_scope.cancel()
        assert not (await job(client, name)).over
        await client.signal_job(name, signal.SIGINT)
        result = await (await client.attach(name)).wait()
        assert result is not None
        assert (result.signal, result.ended_by) == ("SIGINT", "")


async def test_a_terminal_in_the_background_is_resized_and_typed_into(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        name = await client.start_job(
            Command(("sh", "-c", "stty -echo; echo ready; read x; stty size; echo got $x"), tty=True)
        )
        attached = await client.attach(name)
        screen = bytearray()

        async def typed() -> AsyncIterator[bytes]:
            await until(lambda: b"ready" in screen)
            await attached.resize(33, 99)
            yield b"word\n"
            await anyio.sleep_forever()

        result = await attached.wait(stdin=typed(), on_stdout=screen.extend)
        assert result is not None
        assert bytes(screen) == b"ready\r\n33 99\r\ngot word\r\n"


async def test_it_keeps_an_idle_sandbox_alive_and_only_for_as_long_as_it_runs(either_place: Place) -> None:
    async with await either_place.ensure(idle_seconds=0.2) as client:
        pid = (await client.info()).pid
        # Far longer than it would stay alone.
        name = await client.start_job(sh("sleep 1; touch later; while ! test -e go; do sleep 0.01; done"))
    await until((either_place.upper / "later").exists)
    found = await KeeperClient.connect(either_place.overlay.path)
    assert found is not None
    async with found:
        assert (await found.info()).pid == pid
        assert not (await job(found, name)).over
        await found.run(Command(("touch", "go")))
    await until(either_place.is_free)


async def test_a_stop_names_what_it_ended_and_those_attached_hear_of_it(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        name = await client.start_job(sh("trap 'echo asked; exit 3' TERM; echo here; while :; do sleep 0.01; done"))
        heard = Heard()
        attached = await client.attach(name)
        results = []

        async def follow() -> None:
            results.append(await attached.wait(**heard.callbacks()))  # type: ignore[arg-type]

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await until(lambda: b"here" in heard.out)
            other = await KeeperClient.connect(either_place.overlay.path)
            assert other is not None
            async with other:
                [ended] = await other.stop(reason="commit")
        assert (ended.id, ended.background, ended.ended_by, ended.argv[0]) == (name, True, "commit", "sh")
        [result] = results
        assert (result.exit_code, result.ended_by, bytes(heard.out)) == (3, "commit", b"here\nasked\n")


async def test_too_many_at_once_are_refused_with_what_to_do(either_place: Place) -> None:
    async with await either_place.ensure(limits=Limits(pids=16)) as client:
        names = [await client.start_job(sh("sleep 1000")) for _ in range(2)]
        with pytest.raises(SandboxError) as caught:
            await client.start_job(sh("sleep 1000"))
        assert caught.value.code == "sandbox_busy"
        assert "workbench kill" in (caught.value.hint or "")
        assert (await client.run(sh("exit 5"))).exit_code == 5
        await client.end_job(names[0])
        await client.start_job(sh("sleep 1000"))


async def test_who_dies_before_it_began_leaves_nothing_and_who_dies_later_leaves_it(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        script = f"""
import anyio
from workbench.sandbox.client import KeeperClient
from workbench.protocol.commands import Command
async def main():
    async with await KeeperClient.connect({either_place.overlay.path!r}) as client:
        await client.start_job(Command(("sleep", "1000")))
        async with client.freeze():
            print("frozen", flush=True)
            await client.start_job(Command(("sleep", "2000")))
anyio.run(main)
"""
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        with subprocess.Popen([sys.executable, "-c", script], env=environment, stdout=subprocess.PIPE) as other:
            assert other.stdout is not None
            assert await anyio.to_thread.run_sync(other.stdout.readline) == b"frozen\n"
            await until(lambda: _asked_for(client, 2))
            other.kill()

        async def is_alone() -> bool:
            return [one.argv for one in await client.jobs() if not one.over] == [("sleep", "1000")]

        await until(is_alone)


async def _asked_for(client: KeeperClient, number: int) -> bool:
    return (await client.info()).jobs == number


async def test_only_the_last_that_ended_are_remembered(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        names = [await client.start_job(sh("exit 0")) for _ in range(35)]

        async def all_over() -> bool:
            return all(one.over for one in await client.jobs())

        await until(all_over)
        listed = [one.id for one in await client.jobs()]
        assert len(listed) == 32
        assert set(listed) < set(names)
