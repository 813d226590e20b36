"""HTTP/1.1 from one stream to another: one request and its response, streamed both ways as they come.

h11 reads each message and another h11 writes it anew, so what goes out is what was judged: nothing that two readers could
take differently gets through. One request a connection: no later one can hide behind an allowed one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import h11
from anyio.abc import ByteStream

if TYPE_CHECKING:
    from workbench.sandbox.egress.mask import Mask

Headers = list[tuple[bytes, bytes]]
READ_SIZE = 256 << 10
_REASON_LIMIT = 200
BROKEN = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError)
"""What a stream raises when its other end is gone."""

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te", b"trailer",
     b"transfer-encoding", b"upgrade"}
)  # fmt: skip
# An offer that a server may leave unanswered; any other upgrade changes what is spoken.
_HARMLESS_UPGRADES = frozenset({b"h2c", b"tls/1.2", b"tls/1.3"})


class HttpRefusal(Exception):  # noqa: N818  an answer, not a fault
    """A request that isn't passed on: becomes a response with `status` and a sentence."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


class Side:
    """One end of an exchange: a stream, and where in HTTP's grammar it is."""

    def __init__(self, stream: ByteStream, role: type[h11.CLIENT] | type[h11.SERVER]) -> None:
        self.stream = stream
        self.http = h11.Connection(role)
        self._method = b""

    async def next(self) -> h11.Event:
        """The next event. Raises h11.RemoteProtocolError, and as `receive` of the stream."""
        while True:
            event = self.http.next_event()
            if event is h11.PAUSED:
                return h11.ConnectionClosed()
            if isinstance(event, h11.Request):
                self._method = event.method
            if isinstance(event, h11.Event):
                return event
            if self.http.they_are_waiting_for_100_continue:
                await self.send(h11.InformationalResponse(status_code=100, headers=[]))
            try:
                data = await self.stream.receive(READ_SIZE)
            except anyio.EndOfStream:
                data = b""
            self.http.receive_data(data)

    async def send(self, event: h11.Event) -> None:
        """Write an event. Raises h11.LocalProtocolError, and as `send` of the stream."""
        data = self.http.send(event)
        if data:
            await self.stream.send(data)

    async def answer(self, status: int, text: str) -> None:
        """Answer with a sentence of our own, where no response has begun. Raises as `send` of the stream."""
        if self.http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = f"workbench: {text}\n".encode()
        headers = [
            ("Content-Type", "text/plain; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
        ]
        # Of a refused tunnel most clients show nothing but this line.
        reason = "".join(c if c.isascii() and c.isprintable() else "?" for c in text[:_REASON_LIMIT])
        await self.send(h11.Response(status_code=status, headers=headers, reason=reason.encode("ascii")))
        if self._method != b"HEAD":
            await self.send(h11.Data(data=body))
        await self.send(h11.EndOfMessage())


async def read_request(client: Side) -> h11.Request:
    """The head of a request. Raises HttpRefusal where it's malformed or ambiguous, EndOfStream where none came."""
    try:
        event = await client.next()
    except h11.RemoteProtocolError as error:
        raise HttpRefusal(error.error_status_hint, f"the request is malformed: {error}") from error
    if not isinstance(event, h11.Request):
        raise anyio.EndOfStream
    names = [name for name, _ in event.headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        raise HttpRefusal(400, "the request says its length in two ways")
    if names.count(b"host") > 1:
        raise HttpRefusal(400, "the request names two hosts")
    for name, value in event.headers:
        if name == b"upgrade" and value.strip().lower() not in _HARMLESS_UPGRADES:
            raise HttpRefusal(501, "an upgrade to another protocol isn't passed on")
    return event


def end_to_end(message: h11.Request | h11.Response) -> Headers:
    """What of a message's headers is for its other end: all but those for the next one on the way (RFC 9110, 7.6.1)."""
    connection = [value for name, value in message.headers if name == b"connection"]
    named = {word.strip().lower() for value in connection for word in value.split(b",")}
    # A sender can't have its message's framing dropped by calling it a matter of the connection.
    dropped = _HOP_BY_HOP | (named - {b"content-length", b"host"})
    return [(name, value) for name, value in message.headers.raw_items() if name.lower() not in dropped]


def framing(request: h11.Request) -> Headers:
    """The header that says a body of unknown length comes, where the request has one."""
    chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    return [(b"Transfer-Encoding", b"chunked")] if chunked else []


async def exchange(client: Side, server: Side, request: h11.Request, mask: Mask | None = None) -> int:
    """Send a request with the body that `client` sends, and pass the response back as it comes.

    Args:
        client: where the request came from; its head was read.
        server: where it goes.
        request: its head as it's to be sent.
        mask: goes over the response, where it's given.

    Returns the response's status. Raises HttpRefusal where `server` has no response that can be passed on, with nothing
    of one sent; h11.ProtocolError or one of BROKEN where either end broke off later.
    """
    status = 0

    async def send_body() -> None:
        try:
            while True:
                event = await client.next()
                if isinstance(event, h11.Data):
                    await server.send(h11.Data(data=bytes(event.data)))
                elif isinstance(event, h11.EndOfMessage):
                    await server.send(h11.EndOfMessage())
                    return
                else:
                    break
        except (h11.RemoteProtocolError, anyio.EndOfStream):
            pass
        except (h11.LocalProtocolError, *BROKEN):
            # The server reads no more; it may have answered all the same.
            return
        # Half a request is never taken for a whole one: its framing is left open, and the connection ends.
        group.cancel_scope.cancel()

    try:
        await server.send(request)
    except BROKEN as error:
        raise HttpRefusal(502, "the host closed the connection") from error
    failed: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(send_body)
        try:
            status = await _pass_response(client, server, mask)
        except Exception as error:  # noqa: BLE001  raised again below, by itself rather than in a group
            failed = error
        group.cancel_scope.cancel()
    if failed is not None:
        raise failed
    if not status:
        raise HttpRefusal(400, "the request's body is malformed, or was cut short")
    return status


async def _pass_response(client: Side, server: Side, mask: Mask | None) -> int:
    try:
        event = await server.next()
        while isinstance(event, h11.InformationalResponse):
            if event.status_code == 101:
                raise HttpRefusal(502, "the host changed the protocol unasked")
            event = await server.next()
    except (h11.RemoteProtocolError, *BROKEN) as error:
        raise HttpRefusal(502, "the host closed the connection, or its answer is malformed") from error
    if not isinstance(event, h11.Response):
        raise HttpRefusal(502, "the host closed the connection without an answer")
    headers = end_to_end(event)
    names = [name for name, _ in event.headers]
    if b"content-length" in names and b"transfer-encoding" in names:
        headers = [(name, value) for name, value in headers if name.lower() != b"content-length"]
    reason = bytes(event.reason)
    if mask is not None:
        if any(name == b"content-encoding" and value.lower() != b"identity" for name, value in event.headers):
            raise HttpRefusal(502, "the host compresses its answer, though it was asked not to")
        headers, reason = mask.headers(headers), mask.whole(reason)
    await client.send(
        h11.Response(status_code=event.status_code, headers=[*headers, (b"Connection", b"close")], reason=reason)
    )
    while True:
        part = await server.next()
        if isinstance(part, h11.Data):
            data = bytes(part.data) if mask is None else mask.feed(bytes(part.data))
            if data:
                await client.send(h11.Data(data=data))
        elif isinstance(part, h11.EndOfMessage):
            if mask is not None and (rest := mask.end()):
                await client.send(h11.Data(data=rest))
            await client.send(h11.EndOfMessage())
            return event.status_code
        else:
            raise anyio.BrokenResourceError


async def splice(first: ByteStream, second: ByteStream) -> None:
    """Pass bytes both ways until both have ended; each end is passed on by itself, and a break ends both."""

    async def one_way(source: ByteStream, sink: ByteStream) -> None:
        try:
            while True:
                await sink.send(await source.receive(READ_SIZE))
        except anyio.EndOfStream:
            try:
                await sink.send_eof()
            except BROKEN:
                group.cancel_scope.cancel()
        except BROKEN:
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        group.start_soon(one_way, first, second)
        group.start_soon(one_way, second, first)
