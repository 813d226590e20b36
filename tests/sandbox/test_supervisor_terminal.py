"""Terminals made inside: job control, sizes, the keys that send signals."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import pytest

from tests.sandbox.supervised import Inside, supervised
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox.job import Job

pytestmark = pytest.mark.anyio


@pytest.fixture
async def inside() -> AsyncIterator[Inside]:
    async with supervised() as started:
        yield started


class Typist:
    """Someone at a terminal: types, and waits for what appears."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._screen = bytearray()
        self._changed = anyio.Event()
        self.result: CommandResult | None = None

    async def run(self) -> None:
        self.result = await self._job.wait(on_stdout=self._heard)
        self._changed.set()

    def _heard(self, data: bytes) -> None:
        self._screen.extend(data)
        self._changed.set()
        self._changed = anyio.Event()

    async def sees(self, text: bytes) -> bytes:
        """Wait for a text, and return what came before it."""
        with anyio.move_on_after(120):
            while text not in self._screen and self.result is None:
                await self._changed.wait()
        assert text in self._screen, bytes(self._screen)
        before, _, rest = bytes(self._screen).partition(text)
        self._screen[:] = rest
        return before

    async def types(self, text: bytes) -> None:
        assert await self._job.send_input(text)


async def test_a_shell_has_job_control(inside: Inside) -> None:
    command = Command(("bash", "--norc", "-i"), tty=True, environment={"PS1": "READY>", "TERM": "dumb"})
    typist = Typist(await inside.connection.spawn(command))
    async with anyio.create_task_group() as group:
        group.start_soon(typist.run)
        assert b"no job control" not in await typist.sees(b"READY>")
        await typist.types(b"sleep 1001\n")
        await inside.runs("sleep 1001")
        await typist.types(b"\x1a")
        await typist.sees(b"Stopped")
        await typist.sees(b"READY>")
        await typist.types(b"bg\n")
        await typist.sees(b"sleep 1001 &")
        await typist.sees(b"READY>")
        await typist.types(b"jobs -r | wc -l; kill %1; wait\n")
        await typist.sees(b"\r\n1\r\n")
        await typist.sees(b"READY>")
        await typist.types(b"sleep 1002\n")
        await inside.runs("sleep 1002")
        await typist.types(b"\x03")
        await typist.sees(b"READY>")
        await typist.types(b"echo code $?\n")
        await typist.sees(b"code 130\r\n")
        await typist.sees(b"READY>")
        await typist.types(b"exit 7\n")
    assert typist.result is not None
    assert typist.result.exit_code == 7
    assert await inside.processes() == []


async def test_interrupting_a_command_without_a_shell_ends_it(inside: Inside) -> None:
    typist = Typist(await inside.connection.spawn(Command(("sh", "-c", "echo here; exec sleep 1001"), tty=True)))
    async with anyio.create_task_group() as group:
        group.start_soon(typist.run)
        await typist.sees(b"here")
        await inside.runs("sleep 1001")
        await typist.types(b"\x03")
    assert typist.result is not None
    assert (typist.result.exit_code, typist.result.signal) == (130, "SIGINT")


async def test_a_terminal_has_the_size_it_was_given_and_hears_of_another(inside: Inside) -> None:
    script = "trap 'stty size; exit' WINCH; stty size; echo waiting; while :; do sleep 0.01; done"
    job = await inside.connection.spawn(Command(("bash", "-c", script), tty=True, rows=31, columns=97))
    typist = Typist(job)
    async with anyio.create_task_group() as group:
        group.start_soon(typist.run)
        await typist.sees(b"31 97")
        await typist.sees(b"waiting")
        await job.resize(40, 120)
        await typist.sees(b"40 120")


async def test_a_command_in_a_terminal_has_one_stream_and_its_end_of_input(inside: Inside) -> None:
    async def typed() -> AsyncIterator[bytes]:
        yield b"hello\n"

    command = Command(("sh", "-c", "stty -echo; tty -s && echo yes; cat; echo err >&2"), tty=True, output_limit=999)
    result = await inside.connection.run(command, stdin=typed())
    assert result.exit_code == 0
    assert result.stdout.replace(b"hello\r\n", b"", 1) in (b"yes\r\nhello\r\nerr\r\n", b"yes\r\nerr\r\n")
    assert result.stderr == b""


async def test_all_that_a_command_prints_into_its_terminal_arrives(inside: Inside) -> None:
    result = await inside.connection.run(Command(("seq", "1", "20000"), tty=True, output_limit=1 << 20))
    assert result.stdout == "".join(f"{n}\r\n" for n in range(1, 20_001)).encode()


async def test_what_hangs_on_a_terminal_ends_with_its_command(inside: Inside) -> None:
    script = "trap '' HUP; (trap '' HUP TERM; sleep 1001) & setsid -f sleep 1001; echo done"
    result = await inside.connection.run(Command(("bash", "-c", script), tty=True, output_limit=999))
    assert result.stdout == b"done\r\n"
    assert await inside.processes() == []
