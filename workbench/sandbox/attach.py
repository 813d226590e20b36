"""The byte stream to a container's first process, over the engine's own socket."""

from __future__ import annotations

import anyio
from anyio.abc import ByteStream

from workbench.sandbox.unix_stream import UnixStream

_STDERR_KEPT = 16 << 10
_READ_SIZE = 256 << 10
_HEAD_LIMIT = 64 << 10
_HEADER = 8
_STDERR = 2


class AttachStream(ByteStream):
    """Standard input and output of a container's PID 1, as one stream.

    Receives what PID 1 writes to its standard output, sends to its standard input. The engine puts output and errors in
    frames with an 8-byte header (1 byte kind, 3 zero, 4 length, big-endian; the Engine API's "Attach to a container");
    frame boundaries mean nothing here. The last 16 kB of its standard error are kept in `stderr`.

    There are no timeouts. The connection is never half-closed: with the input engines end the output, so `send_eof`
    closes both.
    """

    def __init__(self, stream: UnixStream, received: bytes = b"") -> None:
        self._stream = stream
        self._rest = b""
        self._kind = 0
        self._left = 0
        self._output = bytearray()
        self._stderr = bytearray()
        self._separate(received)

    @property
    def stderr(self) -> bytes:
        """The end of what PID 1 wrote to its standard error so far: at most 16 kB."""
        return bytes(self._stderr)

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Wait for output.

        Returns 1 to `max_bytes` bytes. Raises anyio.EndOfStream when PID 1 has gone, anyio.BrokenResourceError when the
        engine has, anyio.ClosedResourceError after `aclose`.
        """
        while not self._output:
            self._separate(await self._stream.receive(_READ_SIZE))
        data = bytes(self._output[:max_bytes])
        del self._output[:max_bytes]
        return data

    async def send(self, item: bytes) -> None:
        """Send to standard input, waiting while the container doesn't read.

        Raises anyio.BrokenResourceError when the engine has gone, anyio.ClosedResourceError after `aclose`.
        """
        await self._stream.send(item)

    async def send_eof(self) -> None:
        """Close the stream both ways."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connection; under `StdinOnce` that ends the container's standard input."""
        await self._stream.aclose()

    def detach(self) -> int:
        """Let go of the connection, of which nothing was received yet; returns its descriptor."""
        return self._stream.socket.detach()

    def _separate(self, data: bytes) -> None:
        data = self._rest + data
        view = memoryview(data)
        at = 0
        while self._left or len(data) - at >= _HEADER:
            if not self._left:
                self._kind = data[at]
                self._left = int.from_bytes(data[at + 4 : at + _HEADER], "big")
                at += _HEADER
                continue
            piece = view[at : at + self._left]
            if not piece:
                break
            if self._kind == _STDERR:
                self._stderr += piece
                del self._stderr[:-_STDERR_KEPT]
            else:
                self._output += piece
            at += len(piece)
            self._left -= len(piece)
        self._rest = data[at:]


async def upgrade(stream: UnixStream, request: bytes) -> tuple[UnixStream, bytes, bytes]:
    """Send an HTTP/1.1 request that turns its connection into a raw stream.

    Args:
        stream: a new connection to the engine, closed where this fails.
        request: the head of the request, complete.

    Returns the connection, the head of the answer (without its empty line), and what came after that. Raises
    anyio.EndOfStream or anyio.BrokenResourceError where the engine went away.
    """
    try:
        await stream.send(request)
        received = b""
        while b"\r\n\r\n" not in received:
            if len(received) > _HEAD_LIMIT:
                raise anyio.BrokenResourceError
            received += await stream.receive()
    except BaseException:
        await anyio.aclose_forcefully(stream)
        raise
    head, _, rest = received.partition(b"\r\n\r\n")
    return stream, head, rest
