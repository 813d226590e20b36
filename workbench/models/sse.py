"""Server-sent events: the one reader of every provider's stream."""

from __future__ import annotations

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event; `name` is empty where it has none."""

    name: str
    data: str


class EventReader:
    """Bytes in, cut anywhere; whole events out.

    Lines end with CR, LF or both; comments are dropped; a block without data is no event, whatever else is in it.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")("replace")
        self._after_return = False
        self._pieces: list[str] = []
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[ServerEvent]:
        """The events that this chunk completes."""
        return self._read(self._decoder.decode(chunk))

    def end(self) -> list[ServerEvent]:
        """The event that the end of the bytes completes: some servers leave the last empty line out."""
        return self._read(self._decoder.decode(b"", final=True) + "\n\n")

    def _read(self, text: str) -> list[ServerEvent]:
        if not text:
            return []
        if self._after_return:
            text = text.removeprefix("\n")
        # A line that ends with CR is whole already: waiting for its LF would hold an event back.
        self._after_return = text.endswith("\r")
        first, *rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._pieces.append(first)
        events = []
        for piece in rest:
            event = self._take("".join(self._pieces))
            self._pieces = [piece]
            if event is not None:
                events.append(event)
        return events

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            event = ServerEvent(self._name, "\n".join(self._data)) if self._data else None
            self._name, self._data = "", []
            return event
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._name = value
        return None
