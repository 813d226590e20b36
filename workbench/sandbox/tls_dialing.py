"""An engine that listens at a port, as a rule behind TLS."""

from __future__ import annotations

import os
import select
import socket
import ssl
from contextlib import suppress

_READ_SIZE = 256 << 10
_HELD_LIMIT = 1 << 20
_TLS_PORT, _PLAIN_PORT = 2376, 2375
_NOT_NOW = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def connect(host: str, port: int | None, certificates: str, seconds: float | None) -> socket.socket:
    """Connect to an engine; arguments and what is raised as of `dialing.dial`."""
    if not certificates and host not in _LOOPBACK:
        raise ValueError(f"without TLS no engine is talked to over a network, as {host} would be")
    connected = socket.create_connection((host, port or (_TLS_PORT if certificates else _PLAIN_PORT)), seconds)
    if not certificates:
        return connected
    try:
        trust = ssl.create_default_context(cafile=os.path.join(certificates, "ca.pem"))
        own = [os.path.join(certificates, name) for name in ("cert.pem", "key.pem")]
        if all(map(os.path.exists, own)):
            trust.load_cert_chain(*own)
        return trust.wrap_socket(connected, server_hostname=host)
    except BaseException:
        connected.close()
        raise


def pump(server: socket.socket, far: socket.socket) -> None:
    """Pass bytes on both ways until one end closes. One thread does both: TLS is no two at once."""
    up, down = bytearray(), bytearray()
    with server, far, suppress(OSError):
        server.setblocking(False)
        far.setblocking(False)
        while True:
            _give(server, up)
            _give(far, down)
            if _take(far, up):
                return
            if _take(server, down):
                far.setblocking(True)
                far.sendall(down)
                return
            reads = [end for end, held in ((far, up), (server, down)) if len(held) < _HELD_LIMIT]
            writes = [end for end, held in ((server, up), (far, down)) if held]
            select.select(reads, writes, [])


def _take(source: socket.socket, held: bytearray) -> bool:
    """Take what has come, up to a limit; whether that was the end. Raises OSError."""
    with suppress(*_NOT_NOW):
        while len(held) < _HELD_LIMIT:
            if not (data := source.recv(_READ_SIZE)):
                return True
            held += data
    return False


def _give(target: socket.socket, held: bytearray) -> None:
    with suppress(*_NOT_NOW):
        while held:
            del held[: target.send(held)]
