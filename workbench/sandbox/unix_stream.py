"""A Unix socket as a byte stream whose waiting may be cancelled at any moment.

anyio's own, on asyncio, has the event loop log an InvalidStateError where a receive is cancelled in the very step in which
something comes; and here a receive is cancelled with every command that ends.
"""

from __future__ import annotations

import errno
import socket

import anyio
import anyio.lowlevel
from anyio.abc import ByteStream

_POLL_SECONDS = 0.01


class UnixStream(ByteStream):
    """One task may receive while another one sends."""

    def __init__(self, connected: socket.socket) -> None:
        """Takes over a connected socket."""
        connected.setblocking(False)
        self._socket = connected

    @classmethod
    async def connect(cls, path: str) -> UnixStream:
        """Connect to what listens at a path. Raises OSError."""
        connecting = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connecting.setblocking(False)
            while True:
                try:
                    connecting.connect(path)
                    return cls(connecting)
                except BlockingIOError:
                    # Too many wait to be accepted; nothing tells when there's room.
                    await anyio.sleep(_POLL_SECONDS)
        except BaseException:
            connecting.close()
            raise

    @property
    def socket(self) -> socket.socket:
        """The socket itself, to be asked who is at its other end."""
        return self._socket

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Wait for 1 to `max_bytes` bytes.

        Raises anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, anyio.BusyResourceError.
        """
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
            except OSError as error:
                raise _broken(error) from error
            else:
                if not data:
                    raise anyio.EndOfStream
                return data

    async def send(self, item: bytes) -> None:
        """Send all of it, waiting while nobody reads. Raises as `receive`, but for anyio.EndOfStream."""
        await anyio.lowlevel.checkpoint()
        view = memoryview(item)
        while view:
            try:
                view = view[self._socket.send(view) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
            except OSError as error:
                raise _broken(error) from error

    async def send_eof(self) -> None:
        """Say that nothing more comes."""
        self._socket.shutdown(socket.SHUT_WR)

    async def aclose(self) -> None:
        """Close it; whoever waits gets anyio.ClosedResourceError."""
        if self._socket.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()
        await anyio.lowlevel.checkpoint()


def _broken(error: OSError) -> anyio.BrokenResourceError | anyio.ClosedResourceError:
    return anyio.ClosedResourceError() if error.errno == errno.EBADF else anyio.BrokenResourceError()
