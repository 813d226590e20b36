"""A connection inside, as a stream in the keeper, carried by the supervisor's own stream with credit each way."""

from __future__ import annotations

from collections.abc import Callable

import anyio
from anyio.abc import ByteStream

from workbench.sandbox import frames


class TunnelStream(ByteStream):
    """The keeper's end of a TUNNEL; a half-close is passed on each way."""

    def __init__(self, tell: Callable[[bytes, bytes], None]) -> None:
        """`tell` sends a frame of this exchange to the supervisor."""
        self._tell = tell
        self._buffer = bytearray()
        self._owed = 0
        self._credit = frames.WINDOW
        self._ended = False
        self._over = False
        self._closed = False
        self._progress = anyio.Event()

    def take(self, kind: bytes, payload: bytes) -> None:
        """A frame from the supervisor. Raises SandboxError (sandbox_lost) for a malformed one."""
        if kind == frames.STDOUT and payload:
            if len(self._buffer) + self._owed + len(payload) > frames.WINDOW:
                raise frames.lost("it sent more than it was allowed to")
            self._buffer += payload
        elif kind == frames.STDOUT:
            self._ended = True
        elif kind == frames.CREDIT:
            if len(payload) != frames.COUNT.size:
                raise frames.lost("it sent a malformed frame")
            self._credit = min(frames.WINDOW, self._credit + frames.COUNT.unpack(payload)[0])
        elif kind in (frames.RESULT, frames.FAILED):
            self._over = self._ended = True
        progress, self._progress = self._progress, anyio.Event()
        progress.set()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Wait for bytes from inside. Raises anyio.EndOfStream, anyio.ClosedResourceError after `aclose`."""
        while not self._buffer:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._ended:
                raise anyio.EndOfStream
            await self._progress.wait()
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self._owed += len(data)
        if self._owed >= frames.WINDOW // 4 and not self._over:
            self._tell(frames.CREDIT, frames.COUNT.pack(self._owed))
            self._owed = 0
        return data

    async def send(self, item: bytes) -> None:
        """Send to whoever is inside, as they read. Raises anyio.BrokenResourceError, anyio.ClosedResourceError."""
        view = memoryview(item)
        while view:
            if self._closed:
                raise anyio.ClosedResourceError
            if self._over:
                raise anyio.BrokenResourceError
            piece = view[: min(frames.CHUNK, self._credit)]
            if not piece:
                await self._progress.wait()
                continue
            self._credit -= len(piece)
            self._tell(frames.DATA, bytes(piece))
            view = view[len(piece) :]

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        if not self._over and not self._closed:
            self._tell(frames.DATA, b"")

    async def aclose(self) -> None:
        """End it both ways."""
        if not self._closed and not self._over:
            self._tell(frames.KILL, b"{}")
        self._closed = True
        progress, self._progress = self._progress, anyio.Event()
        progress.set()
        await anyio.lowlevel.checkpoint()
