"""What a file in memory holds: bytes, or, once it's big, an unnamed temporary file, which keeps holes."""

from __future__ import annotations

import io
import os
import tempfile
from typing import BinaryIO

from workbench.vfs import syscalls

_CHUNK = 1 << 20


class Content:
    """A file's content. Beyond `limit` bytes it moves to an unnamed file where `tempfile` puts them, for good.

    All methods raise OSError where that can't be made or is full.
    """

    __slots__ = ("_data", "_fd", "_limit")

    def __init__(self, data: bytes, limit: int) -> None:
        self._fd = -1
        self._limit = limit
        self._data: bytes | bytearray = data
        if len(data) > limit:
            self._spill()

    @property
    def size(self) -> int:
        """In bytes."""
        return len(self._data) if self._fd < 0 else os.fstat(self._fd).st_size

    def read(self, offset: int = 0, count: int | None = None) -> bytes:
        """Up to `count` bytes from an offset, or all there are from there."""
        if self._fd < 0:
            if count is None and not offset and isinstance(self._data, bytes):
                return self._data
            return bytes(self._data[offset:] if count is None else self._data[offset : offset + count])
        if count is not None:
            return os.pread(self._fd, count, offset)
        pieces = []
        # One call gives 2 GB at most.
        while piece := os.pread(self._fd, max(self.size - offset, 0), offset):
            pieces.append(piece)
            offset += len(piece)
        return b"".join(pieces)

    def write(self, offset: int, data: bytes | memoryview) -> int:
        """Write at an offset, all of it; a gap before it is a hole."""
        end = offset + len(data)
        if self._fd < 0 and end > self._limit:
            self._spill()
        if self._fd >= 0:
            view = memoryview(data)
            while view:
                view = view[os.pwrite(self._fd, view, offset + len(data) - len(view)) :]
            return len(data)
        held = self._writable()
        if offset > len(held):
            held.extend(bytes(offset - len(held)))
        held[offset:end] = data
        return len(data)

    def truncate(self, size: int) -> None:
        """Cut, or extend by a hole."""
        if self._fd < 0 and size > self._limit:
            self._spill()
        if self._fd >= 0:
            os.ftruncate(self._fd, size)
            return
        held = self._writable()
        if size < len(held):
            del held[size:]
        else:
            held.extend(bytes(size - len(held)))

    def fill(self, source: BinaryIO) -> None:
        """Take on all that is in a file; called on an empty content."""
        plain = isinstance(source, io.BufferedReader) and isinstance(source.raw, io.FileIO)
        if plain and os.fstat(source.fileno()).st_size > self._limit:
            syscalls.copy_data(source.fileno(), self._spill())
            return
        offset = 0
        while data := source.read(_CHUNK):
            offset += self.write(offset, data)

    def _writable(self) -> bytearray:
        if not isinstance(self._data, bytearray):
            self._data = bytearray(self._data)
        return self._data

    def _spill(self) -> int:
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(self._data)
            self._fd = os.dup(file.fileno())
        self._data = b""
        return self._fd

    def __del__(self) -> None:
        # No one else knows when the last open file of a deleted entry goes.
        if self._fd >= 0:
            os.close(self._fd)
