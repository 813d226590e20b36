"""Open files of an overlay: the modes they're opened in, files in memory, and lower ones, copied up when first written."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from typing import BinaryIO

from workbench.errors import OptionsError
from workbench.vfs.content import Content
from workbench.vfs.layers import OpenMode

# read, write, append, create, exclusive, truncate
_MODES = {
    "r": OpenMode(True, False, False, False, False, False),
    "r+": OpenMode(True, True, False, False, False, False),
    "w": OpenMode(False, True, False, True, False, True),
    "w+": OpenMode(True, True, False, True, False, True),
    "a": OpenMode(False, True, True, True, False, False),
    "a+": OpenMode(True, True, True, True, False, False),
    "x": OpenMode(False, True, False, True, True, False),
    "x+": OpenMode(True, True, False, True, True, False),
}


def open_mode(mode: str) -> OpenMode:
    """What a mode string asks for: `rb`, `r+b`, `wb`, `w+b`, `ab`, `a+b`, `xb`, `x+b`; `rb+` is `r+b`.

    Raises OptionsError for any other, text modes above all.
    """
    found = _MODES.get(mode.replace("b", "", 1)) if "b" in mode else None
    if found is None:
        raise OptionsError(
            f"'{mode}' isn't a mode that a file of an overlay can be opened in.",
            hint="Use rb, r+b, wb, w+b, ab, a+b, xb or x+b, and io.TextIOWrapper around it for text.",
        )
    return found


def buffered(raw: io.RawIOBase, mode: OpenMode) -> BinaryIO:
    """What `open` gives for a raw file in this mode."""
    if mode.append:
        raw.seek(0, os.SEEK_END)
    if mode.read and mode.write:
        return io.BufferedRandom(raw)
    return io.BufferedWriter(raw) if mode.write else io.BufferedReader(raw)


class LowerFile(io.RawIOBase):
    """A file of the lower layer, open for writing. It's read there until it's written to; then it's copied up.

    `copy_up` has the overlay do so, and `attach` this file to the copy; the overlay also does it by itself where the
    path is copied up for another reason, or about to be taken away.
    """

    def __init__(self, name: bytes, mode: OpenMode, reader: BinaryIO, copy_up: Callable[[LowerFile], None]) -> None:
        super().__init__()
        self.name = name
        self.open_mode = mode
        self._file: io.RawIOBase | BinaryIO = reader
        self.attached = False
        self._copy_up = copy_up

    @property
    def mode(self) -> str:
        """The mode it was opened in, as `io.FileIO.mode`."""
        return str(self.open_mode)

    def attach(self, raw: io.RawIOBase) -> None:
        """Go on with the copy in the upper layer, at the same place."""
        position = self._file.tell()
        self._file.close()
        self._file = raw
        self.attached = True
        raw.seek(position)

    def _writable(self) -> io.RawIOBase:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not self.attached:
            self._copy_up(self)
        assert isinstance(self._file, io.RawIOBase)
        return self._file

    def readable(self) -> bool:
        """Whether the mode lets it be read."""
        return self.open_mode.read

    def writable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int | None:  # type: ignore[override]
        """Read at the position. Raises OSError, UnsupportedOperation."""
        if not self.open_mode.read:
            raise io.UnsupportedOperation("not readable")
        return self._file.readinto(buffer)  # type: ignore[union-attr]

    def write(self, data: bytes | memoryview) -> int | None:  # type: ignore[override]
        """Copy the file up, if that hasn't been done, and write. Raises OSError."""
        return self._writable().write(data)

    def truncate(self, size: int | None = None) -> int:
        """As `write`, but cut or extend. Raises OSError."""
        return self._writable().truncate(self.tell() if size is None else size)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position. Raises OSError, ValueError."""
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """The position in bytes."""
        return self._file.tell()

    def fileno(self) -> int:
        """The descriptor of the copy in the upper layer, which is made for it. Raises UnsupportedOperation, OSError."""
        return self._writable().fileno()

    def close(self) -> None:
        """Close it; safe to call again."""
        if not self.closed:
            self._file.close()
        super().close()


class ContentFile(io.RawIOBase):
    """An open file in memory. It stays the same file whatever becomes of its path; `touched` is told of each change."""

    def __init__(self, name: bytes, mode: OpenMode, content: Content, touched: Callable[[], None]) -> None:
        super().__init__()
        self.name = name
        self._mode = mode
        self._content = content
        self._touched = touched
        self._position = 0

    @property
    def mode(self) -> str:
        """As `LowerFile.mode`."""
        return str(self._mode)

    def _check(self, allowed: bool, what: str) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        if not allowed:
            raise io.UnsupportedOperation(what)

    def readable(self) -> bool:
        """Whether the mode lets it be read."""
        return self._mode.read

    def writable(self) -> bool:
        """Whether the mode lets it be written."""
        return self._mode.write

    def seekable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """As `io.FileIO.readinto`. Raises OSError, UnsupportedOperation."""
        self._check(self._mode.read, "not readable")
        data = self._content.read(self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)

    def readall(self) -> bytes:
        """As `io.FileIO.readall`. Raises OSError, UnsupportedOperation."""
        self._check(self._mode.read, "not readable")
        data = self._content.read(self._position)
        self._position += len(data)
        return data

    def write(self, data: bytes | memoryview) -> int:  # type: ignore[override]
        """Write at the position, or the end. Raises OSError, UnsupportedOperation."""
        self._check(self._mode.write, "not writable")
        if self._mode.append:
            self._position = self._content.size
        with memoryview(data) as view:
            count = self._content.write(self._position, view.cast("B"))
        self._position += count
        self._touched()
        return count

    def truncate(self, size: int | None = None) -> int:
        """Cut, or extend by a hole. Raises OSError, UnsupportedOperation."""
        self._check(self._mode.write, "not writable")
        size = self._position if size is None else size
        if size < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._content.truncate(size)
        self._touched()
        return size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position. Raises OSError, ValueError."""
        self._check(True, "")
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._content.size}
        if whence not in base:
            raise ValueError(f"invalid whence ({whence})")
        if base[whence] + offset < 0:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        self._position = base[whence] + offset
        return self._position

    def tell(self) -> int:
        """The position in bytes."""
        return self._position
