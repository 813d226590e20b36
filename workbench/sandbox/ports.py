"""A port of the sandbox on a loopback port of this machine: connections go through the supervisor's stream."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Callable

import anyio
from anyio.abc import SocketAttribute, SocketStream

from workbench.errors import OptionsError, SandboxError
from workbench.sandbox import frames
from workbench.sandbox.connection import SupervisorConnection

ADDRESS = "127.0.0.1"
_MOST = 128
_END_SECONDS = 20.0
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER of no time: closing then resets the connection."""


async def forward(
    connection: SupervisorConnection,
    port: int,
    *,
    to: int = 0,
    ready: Callable[[int], object],
    report: Callable[[str], object],
) -> None:
    """Pass on every connection to a port of 127.0.0.1 to that port inside, until cancelled or the sandbox is gone.

    Args:
        connection: to the sandbox.
        port: what something inside listens on, at its loopback address.
        to: the port here; 0 takes a free one.
        ready: hears the port here, once it listens.
        report: hears, a sentence each, of connections that nothing inside takes.

    Raises OptionsError where a port isn't one, OSError where it can't be had, SandboxError (sandbox_lost).
    """
    for number, lowest in ((port, 1), (to, 0)):
        if not lowest <= number <= 65535:
            raise OptionsError(f"{number} is no port.", hint="Name one from 1 to 65535.")
    listener = await anyio.create_tcp_listener(local_host=ADDRESS, local_port=to)
    free = anyio.CapacityLimiter(_MOST)
    lost: list[SandboxError] = []

    async def serve(stream: SocketStream) -> None:
        async with stream, free:
            try:
                await _relay(connection, port, stream)
            except ConnectionResetError:
                # Else what came so far would look like all of it.
                stream.extra(SocketAttribute.raw_socket).setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            except OSError:
                report(f"nothing inside listens on port {port} yet")
            except SandboxError as error:
                # Where it's lost, we end by that.
                if not connection.lost:
                    report(error.message)

    async def watch() -> None:
        try:
            await connection.until_lost()
        except SandboxError as error:
            lost.append(error)
            group.cancel_scope.cancel()

    async with listener, anyio.create_task_group() as group:
        ready(listener.extra(SocketAttribute.local_port))
        group.start_soon(watch)
        await listener.serve(serve)
    raise lost[0]


async def _relay(connection: SupervisorConnection, port: int, stream: SocketStream) -> None:
    """Pass bytes on both ways until the side inside closes, or one breaks.

    Raises OSError (ConnectionResetError where the side inside broke off), SandboxError.
    """
    exchange = await connection.open_port(port)
    failed: SandboxError | None = None

    async def inwards() -> None:
        try:
            async for data in stream:
                if not await connection.send_data(exchange, data):
                    return
            await connection.send(frames.encode(frames.DATA, exchange.number))
        except anyio.BrokenResourceError:
            group.cancel_scope.cancel()
        except SandboxError:
            return  # the other direction says it

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(inwards)
            try:
                while (chunk := await connection.next_chunk(exchange)) is not None:
                    await stream.send(chunk[1])
            except anyio.BrokenResourceError:
                pass  # whoever connected here has gone
            except SandboxError as error:
                failed = error
            group.cancel_scope.cancel()
    finally:
        if not exchange.over and not connection.lost:
            with anyio.move_on_after(_END_SECONDS, shield=True), contextlib.suppress(SandboxError):
                await connection.send(frames.encode_json(frames.KILL, exchange.number, {}))
    if failed is not None:
        raise failed
    if exchange.over:
        exchange.content()
