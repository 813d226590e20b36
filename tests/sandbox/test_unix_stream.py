"""A Unix socket as a stream: nothing is lost, and nothing is said, however its waiting ends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from workbench.sandbox.unix_stream import UnixStream

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[UnixStream, UnixStream]]:
    one, other = map(UnixStream, socket.socketpair())
    async with one, other:
        yield one, other


async def to_the_end(stream: UnixStream) -> bytes:
    data = bytearray()
    try:
        while True:
            data += await stream.receive()
    except anyio.EndOfStream:
        return bytes(data)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_a_receive_cancelled_in_the_very_step_in_which_something_comes_does_not_break_the_loop(
    anyio_backend: str,
) -> None:
    loop = asyncio.get_running_loop()
    taken = bytearray()
    async with pair() as (one, other):
        again = one.socket.dup()
        for number in range(100):
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def receive() -> None:
                        taken.extend(await one.receive())

                    if number % 2:
                        loop.add_reader(again, scope.cancel)
                    group.start_soon(receive)
                    await anyio.wait_all_tasks_blocked()
                    if not number % 2:
                        loop.add_reader(again, scope.cancel)
                    other.socket.send(bytes([number]))
                    await anyio.sleep_forever()
            loop.remove_reader(again)
            if len(taken) == number:
                taken.extend(await one.receive())
        again.close()
    assert taken == bytes(range(100))


async def test_what_is_sent_waits_for_a_reader_and_comes_whole() -> None:
    sent = bytes(range(256)) * 20_000
    async with pair() as (one, other), anyio.create_task_group() as group:

        async def send() -> None:
            await one.send(sent)
            await one.aclose()

        group.start_soon(send)
        assert await to_the_end(other) == sent


async def test_closing_wakes_whoever_waits_and_a_peer_that_has_gone_is_told() -> None:
    async with pair() as (one, other):
        async with anyio.create_task_group() as group:

            async def receive() -> None:
                with pytest.raises(anyio.ClosedResourceError):
                    await one.receive()

            group.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            await one.aclose()
        with pytest.raises(anyio.ClosedResourceError):
            await one.send(b"x")
        with pytest.raises(anyio.BrokenResourceError):
            await other.send(b"x" * 1_000_000)


async def test_a_connection_waits_for_its_turn_where_too_many_wait(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen(0)
        listener.setblocking(False)
        streams: list[UnixStream] = []
        async with anyio.create_task_group() as group:

            async def connect() -> None:
                streams.append(await UnixStream.connect(path))

            for _ in range(5):
                group.start_soon(connect)
            for _ in range(5):
                await anyio.wait_readable(listener)
                listener.accept()[0].close()
        assert len(streams) == 5
        for stream in streams:
            await stream.aclose()
    with pytest.raises(OSError, match="refused"):
        await UnixStream.connect(path)
