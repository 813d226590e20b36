"""Listening, answering, and ending within a bound."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
from collections.abc import Callable, Generator

import anyio
import uvicorn
from starlette.types import ASGIApp

from workbench.errors import OptionsError, ServerError

_GRACE_SECONDS = 3
"""For what is being answered when the end is asked for."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address; port 0 is a free one.

    Raises:
        OptionsError: there is no such address.
        ServerError: address_unavailable where it's taken, or may not be had.
    """
    try:
        family, kind, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise OptionsError(f"{host!r} is no address of this machine.", hint="Name one, such as 127.0.0.1.") from error
    listener = socket.socket(family, kind)
    try:
        # A connection of an earlier server that is still being closed doesn't keep the port.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise ServerError(
            f"Port {port} of {host} can't be listened at: {os.strerror(error.errno or 0)}.",
            code="address_unavailable",
            hint="--port 0 takes a free one.",
        ) from error
    return listener


async def serve(app: ASGIApp, listener: socket.socket, *, ready: Callable[[], None]) -> None:
    """Answer until SIGINT, SIGTERM or SIGHUP; `ready` is called once it does. A second signal doesn't wait for anybody."""
    server = _Server(
        uvicorn.Config(
            app,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_SECONDS,
        )
    )
    async with anyio.create_task_group() as tasks:
        with anyio.open_signal_receiver(*_SIGNALS) as signals:

            async def end() -> None:
                async for number in signals:
                    server.force_exit = server.should_exit
                    server.handle_exit(number, None)

            tasks.start_soon(end)
            ready()
            await server.serve(sockets=[listener])
            tasks.cancel_scope.cancel()


class _Server(uvicorn.Server):
    """Leaves signals alone: the end that was asked for is no failure, and `serve` hears of it."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield
