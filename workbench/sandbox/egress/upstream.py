"""Connections to hosts: a name is resolved here, judged, and what was judged is what is connected to."""

from __future__ import annotations

import socket

import anyio
from anyio.abc import SocketAttribute, SocketStream

from workbench.sandbox.egress import hosts
from workbench.sandbox.egress.attempt import ALLOWED, FAILED, REFUSED, Attempt
from workbench.sandbox.egress.relay import HttpRefusal

_SECONDS = 20.0
_SECONDS_EACH = 8.0
_TRIED = 4


async def connect(host: hosts.Host, port: int, attempt: Attempt) -> SocketStream:
    """Connect to an allowed host.

    An address was named as such, so it's taken as it is. A name's addresses are looked up once, those that aren't public
    are left out, and the rest are tried; one that turns out to be this machine's is refused. The attempt's verdict becomes
    what came of it. Raises HttpRefusal.
    """
    attempt.verdict = FAILED
    try:
        with anyio.fail_after(_SECONDS):
            addresses = [host] if not isinstance(host, str) else await _public_addresses(host, port)
            for address in addresses[:_TRIED]:
                stream = await _try(address, port)
                if stream is None:
                    continue
                if isinstance(host, str) and _is_own(stream):
                    await stream.aclose()
                    raise HttpRefusal(403, f"{host} is this machine, which has to be named by its address")
                attempt.address, attempt.verdict = str(address), ALLOWED
                return stream
    except TimeoutError:
        pass
    except HttpRefusal as refusal:
        attempt.verdict = REFUSED if refusal.status == 403 else FAILED
        raise
    raise HttpRefusal(502, f"{hosts.written(host)} doesn't answer on port {port}")


async def _public_addresses(name: str, port: int) -> list[hosts.Address]:
    try:
        found = await anyio.getaddrinfo(name, port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise HttpRefusal(502, f"{name} can't be resolved") from error
    addresses = list(dict.fromkeys(hosts.parse_address(str(entry[4][0])) for entry in found))
    public = [address for address in addresses if hosts.is_public(address)]
    if not public:
        raise HttpRefusal(403, f"{name} has no public address; a private one has to be named itself")
    return public


async def _try(address: hosts.Address, port: int) -> SocketStream | None:
    with anyio.move_on_after(_SECONDS_EACH):
        try:
            return await anyio.connect_tcp(str(address), port)
        except OSError:
            return None
    return None


def _is_own(stream: SocketStream) -> bool:
    """Whether a connection has come back to this machine: only then are both ends' addresses the same."""
    local, remote = stream.extra(SocketAttribute.local_address), stream.extra(SocketAttribute.remote_address)
    return bool(local[0] == remote[0])
