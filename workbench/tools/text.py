"""The text of a file, and back: its encoding and its line endings stay as they were."""

from __future__ import annotations

import codecs
from dataclasses import dataclass

_BINARY_BYTES = 8_000
"""A file with a NUL in so many bytes from its beginning is binary, as git has it (`xdiff-interface.c`)."""

# The longer mark first: that of UTF-32 begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF32_LE, "utf-32-le"),
    (codecs.BOM_UTF32_BE, "utf-32-be"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


@dataclass(frozen=True, slots=True)
class Text:
    """A file's text, its line endings as they are; `encoding` and `mark` (a byte order mark, or nothing) are how it lies."""

    text: str
    encoding: str = "utf-8"
    mark: bytes = b""

    @property
    def newline(self) -> str:
        """What its lines end in: CRLF where most do, else LF."""
        crlf = self.text.count("\r\n")
        return "\r\n" if crlf * 2 > self.text.count("\n") else "\n"

    def encoded(self, text: str) -> bytes:
        """Another text as this file would hold it. Raises UnicodeEncodeError where its encoding has no such character."""
        return self.mark + text.encode(self.encoding)


def counted(number: int, noun: str) -> str:
    """`1 line`, `2 lines`, for a model to read."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def decoded(data: bytes) -> Text | None:
    """The text of a file's bytes, None of a binary one.

    Told by its byte order mark, else UTF-8, else Latin-1, in which any bytes come back as they were.
    """
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            try:
                return Text(data[len(mark) :].decode(encoding), encoding, mark)
            except UnicodeDecodeError:
                break
    if b"\0" in data[:_BINARY_BYTES]:
        return None
    try:
        return Text(data.decode("utf-8"))
    except UnicodeDecodeError:
        return Text(data.decode("latin-1"), "latin-1")
