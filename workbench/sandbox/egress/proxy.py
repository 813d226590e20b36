"""The HTTP proxy that commands inside are pointed to: absolute-form requests, and tunnels by CONNECT."""

from __future__ import annotations

from urllib.parse import urlsplit

import h11
from anyio.abc import ByteStream

from workbench.sandbox.egress import hosts
from workbench.sandbox.egress.attempt import Account, Attempt, MeteredStream
from workbench.sandbox.egress.permission import Permission
from workbench.sandbox.egress.relay import HttpRefusal, Side, end_to_end, exchange, framing, splice
from workbench.sandbox.egress.upstream import connect

_HTTP_PORT = 80


async def pass_on(
    client: Side, request: h11.Request, permission: Permission, account: Account, attempt: Attempt
) -> None:
    """Pass one request on that came to the proxy, or refuse it.

    Args:
        client: where it came from; its head was read.
        request: that head.
        permission: says which hosts are allowed.
        account: how many bytes each of them may still take and give.
        attempt: learns what becomes of it.

    Raises HttpRefusal, and where an end breaks off as `relay.exchange`.
    """
    attempt.method = request.method.decode("ascii")
    if request.method == b"CONNECT":
        host, port = _place(request.target.decode("ascii"), None)
        target = b""
    else:
        host, port, target = absolute(request)
    attempt.host, attempt.port = str(host), port
    await permission.require(host, port)
    if not account.has_room(attempt.host):
        raise HttpRefusal(403, f"{host} has had all the bytes it may take and give")
    async with await connect(host, port, attempt) as connection:
        stream = MeteredStream(connection, attempt, account)
        if target:
            authority = hosts.written(host) if port == _HTTP_PORT else f"{hosts.written(host)}:{port}"
            ours = (b"host", b"expect")
            kept = [(name, value) for name, value in end_to_end(request) if name.lower() not in ours]
            headers = [(b"Host", authority.encode("ascii")), *kept, *framing(request), (b"Connection", b"close")]
            outgoing = h11.Request(method=request.method, target=target, headers=headers)
            attempt.status = await exchange(client, Side(stream, h11.CLIENT), outgoing)
        else:
            await _tunnel(client, stream)


async def _tunnel(client: Side, stream: ByteStream) -> None:
    await client.send(h11.Response(status_code=200, headers=[], reason=b"Connection established"))
    early, _ = client.http.trailing_data
    if early:
        await stream.send(early)
    await splice(client.stream, stream)


def absolute(request: h11.Request) -> tuple[hosts.Host, int, bytes]:
    """Host, port and origin-form of a request in absolute-form. Raises HttpRefusal (400)."""
    text = request.target.decode("ascii", "replace")
    try:
        url = urlsplit(text)
    except ValueError as error:
        raise HttpRefusal(400, f"the URL is malformed: {error}") from error
    if not url.scheme or not url.netloc:
        raise HttpRefusal(400, "this is a proxy, so a request has to name the whole URL")
    if url.scheme.lower() != "http":
        raise HttpRefusal(400, f"{url.scheme[:20]} URLs aren't passed on, but through CONNECT")
    # Cut by hand: what we judge and what we send are the very same bytes.
    _, _, rest = text.partition("//")
    end = min((at for at in map(rest.find, "/?#") if at >= 0), default=len(rest))
    host, port = _place(rest[:end], _HTTP_PORT)
    path, _, _ = rest[end:].partition("#")
    named = next((value for name, value in request.headers if name == b"host"), None)
    if named is not None and _place(named.decode("ascii", "replace"), _HTTP_PORT) != (host, port):
        raise HttpRefusal(400, "the URL names one host, the Host header another")
    return host, port, (path if path.startswith("/") else f"/{path}").encode("ascii", "replace")


def _place(text: str, default_port: int | None) -> tuple[hosts.Host, int]:
    """Host and port of an authority. Raises HttpRefusal (400)."""
    if "@" in text:
        raise HttpRefusal(400, "a URL with a user's name isn't passed on")
    try:
        name, port = hosts.split_port(text)
        if not name.isascii():
            raise ValueError("it isn't a name")
        host = hosts.canonical(name)
    except ValueError as error:
        raise HttpRefusal(400, f"the host is malformed: {error}") from error
    if port is None and default_port is None:
        raise HttpRefusal(400, "CONNECT has to name a port")
    return host, port or default_port or _HTTP_PORT
