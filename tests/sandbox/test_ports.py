"""Ports of a sandbox without a network, reached from outside through the supervisor's stream."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import anyio.to_thread
import pytest
from anyio.abc import SocketStream

from tests.sandbox.places import Place
from tests.waiting import until
from workbench.errors import OptionsError, SandboxError
from workbench.protocol.commands import Command
from workbench.sandbox import ports
from workbench.sandbox.client import KeeperClient

pytestmark = pytest.mark.anyio

# Sends back what it gets, and says when its peer is done.
ECHO = """
import socket, threading
def serve(connection):
    while data := connection.recv(65536):
        connection.sendall(data)
    connection.sendall(b"end")
    connection.close()
listener = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
while True:
    threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()
"""

# Answers, then breaks off what follows.
RESET = """
import socket, struct
listener = socket.create_server(("127.0.0.1", 8000))
print("ready", flush=True)
while True:
    connection, _ = listener.accept()
    connection.sendall(connection.recv(65536))
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.recv(1)
    connection.close()
"""


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@asynccontextmanager
async def forwarded(client: KeeperClient, port: int = 8000) -> AsyncIterator[tuple[int, list[str]]]:
    """The port here, and what was reported."""
    ready, listening, said = anyio.Event(), [], []

    def is_ready(port: int) -> None:
        listening.append(port)
        ready.set()

    async with anyio.create_task_group() as group:

        async def forward() -> None:
            await ports.forward(client, port, ready=is_ready, report=said.append)

        group.start_soon(forward)
        await ready.wait()
        yield listening[0], said
        group.cancel_scope.cancel()


async def serve(client: KeeperClient, *argv: str) -> str:
    """Have a server started inside that says when it's ready."""
    name = await client.start_job(Command(argv))
    heard = bytearray()
    attached = await client.attach(name)

    def hear(data: bytes) -> None:
        heard.extend(data)

    async with anyio.create_task_group() as group:

        async def follow() -> None:
            await attached.wait(on_stdout=hear, on_stderr=hear)

        group.start_soon(follow)
        await until(lambda: b"ready" in heard or b"Serving" in heard)
        group.cancel_scope.cancel()
    return name


async def to_the_end(stream: SocketStream) -> bytes:
    data = bytearray()
    try:
        while True:
            data += await stream.receive()
    except anyio.EndOfStream:
        return bytes(data)


async def test_a_web_server_inside_is_reached_from_outside(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        await client.run(Command(("sh", "-c", "head -c 3000000 /dev/urandom >large")))
        await serve(client, "python3", "-u", "-m", "http.server", "8000", "--bind", "127.0.0.1")
        async with forwarded(client) as (port, _):

            def get(path: str) -> bytes:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=120) as response:
                    data: bytes = response.read()
                    return data

            assert await anyio.to_thread.run_sync(get, "old") == b"old\n"
            assert await anyio.to_thread.run_sync(get, "large") == (either_place.upper / "large").read_bytes()


async def test_many_connections_at_once_keep_to_themselves(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        await serve(client, "python3", "-c", ECHO)
        async with forwarded(client) as (port, _):
            answers: dict[int, bytes] = {}

            async def talk(number: int) -> None:
                async with await anyio.connect_tcp("127.0.0.1", port) as stream, anyio.create_task_group() as group:

                    async def send() -> None:
                        await stream.send(b"%d\n" % number * 50_000)
                        await stream.send_eof()

                    group.start_soon(send)
                    answers[number] = await to_the_end(stream)

            async with anyio.create_task_group() as group:
                for number in range(20):
                    group.start_soon(talk, number)
            assert answers == {number: b"%d\n" % number * 50_000 + b"end" for number in range(20)}


async def test_one_that_reads_nothing_holds_up_no_other(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        await serve(client, "python3", "-c", ECHO)
        async with forwarded(client) as (port, _), await anyio.connect_tcp("127.0.0.1", port) as stuck:
            with anyio.move_on_after(0.5):
                while True:
                    await stuck.send(b"x" * 100_000)
            async with await anyio.connect_tcp("127.0.0.1", port) as other:
                await other.send(b"well")
                await other.send_eof()
                assert await to_the_end(other) == b"wellend"
            assert (await client.run(Command(("echo", "well"), output_limit=9))).stdout == b"well\n"


async def test_a_connection_that_is_reset_inside_is_reset_outside_and_never_looks_whole(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        await serve(client, "python3", "-c", RESET)
        async with forwarded(client) as (port, said), await anyio.connect_tcp("127.0.0.1", port) as stream:
            await stream.send(b"half")
            assert await stream.receive() == b"half"
            await stream.send(b"x")
            with pytest.raises(anyio.BrokenResourceError):
                await to_the_end(stream)
            assert said == []


async def test_where_nothing_listens_the_connection_is_closed_and_that_is_said(either_place: Place) -> None:
    async with await either_place.ensure() as client, forwarded(client, 8001) as (port, said):
        async with await anyio.connect_tcp("127.0.0.1", port) as stream:
            assert await to_the_end(stream) == b""
        await until(lambda: said)
        assert "8001" in said[0]


async def test_only_the_loopback_address_of_this_machine_listens(either_place: Place) -> None:
    async with await either_place.ensure() as client, forwarded(client) as (port, _):
        with socket.socket() as other:
            # Any other loopback address would be taken, too, if it listened everywhere.
            other.bind(("127.0.0.2", port))


async def test_who_forwards_hears_when_the_sandbox_is_gone(either_place: Place) -> None:
    async with await either_place.ensure() as client:
        other = await KeeperClient.connect(either_place.overlay.path)
        assert other is not None
        async with other:
            errors: list[SandboxError] = []
            ready = anyio.Event()

            async def forward() -> None:
                try:
                    await ports.forward(client, 8000, ready=lambda port: ready.set(), report=print)
                except SandboxError as error:
                    errors.append(error)

            async with anyio.create_task_group() as group:
                group.start_soon(forward)
                await ready.wait()
                await other.stop()
            assert [error.code for error in errors] == ["sandbox_lost"]


@pytest.mark.parametrize(("port", "to"), [(0, 0), (65536, 0), (8000, 65536), (8000, -1)])
async def test_what_is_no_port_is_wrong_use(either_place: Place, port: int, to: int) -> None:
    async with await either_place.ensure() as client:
        with pytest.raises(OptionsError):
            await ports.forward(client, port, to=to, ready=print, report=print)
