"""One request to a supervisor and what came back so far, whoever reads and writes the stream.

Stands on the path of every warm command, so it imports nothing heavy.
"""

from __future__ import annotations

from collections import deque

from workbench.sandbox import frames


class Exchange:
    """What came back: output that wasn't taken yet, credit for input, the answer."""

    __slots__ = ("answer", "chunks", "failure", "input_closed", "input_credit", "number", "owed", "unread")

    def __init__(self, number: int) -> None:
        self.number = number
        self.chunks: deque[tuple[bytes, bytearray]] = deque()
        self.unread = 0
        self.owed = 0
        self.input_credit = frames.WINDOW
        self.input_closed = False
        self.answer: bytes | None = None
        self.failure: bytes | None = None

    @property
    def over(self) -> bool:
        """Whether the answer is there."""
        return self.answer is not None or self.failure is not None

    def content(self, path: str = "") -> frames.Json:
        """What the answer says; raises what it stands for where that is FAILED: an OSError names `path`."""
        if self.failure is not None:
            raise frames.failure(self.failure, path)
        return frames.parse(self.answer or b"")

    def add_output(self, kind: bytes, data: bytes) -> None:
        """Keep output until it's taken. Raises SandboxError (sandbox_lost) for more than was granted."""
        self.unread += len(data)
        if self.unread + self.owed > frames.WINDOW:
            raise frames.lost("it sent more than it was allowed to")
        if self.chunks and self.chunks[-1][0] == kind != frames.LEFT_OUT:
            self.chunks[-1][1].extend(data)
        else:
            self.chunks.append((kind, bytearray(data)))

    def grant(self, payload: bytes) -> None:
        """Take a CREDIT frame's payload; never more than a window. Raises SandboxError (sandbox_lost)."""
        if len(payload) != frames.COUNT.size:
            raise frames.lost("it sent a malformed frame")
        self.input_credit = min(frames.WINDOW, self.input_credit + frames.COUNT.unpack(payload)[0])

    def receive(self, kind: bytes, payload: bytes) -> None:
        """Take in a frame of this exchange. Raises SandboxError (sandbox_lost) where it breaks a rule."""
        if kind in (frames.STDOUT, frames.STDERR, frames.LEFT_OUT):
            self.add_output(kind, payload)
        elif kind == frames.CREDIT:
            self.grant(payload)
        elif kind == frames.INPUT_CLOSED:
            self.input_closed = True
        elif kind == frames.RESULT:
            self.answer = payload
        elif kind == frames.FAILED:
            self.failure = payload

    def taken(self, count: int) -> None:
        """Note that so much output was taken."""
        self.unread -= count
        self.owed += count

    def credit(self) -> bytes:
        """The frame that grants as much again as was taken; empty while that can wait."""
        if self.owed < frames.WINDOW // 4 or self.over:
            return b""
        owed, self.owed = self.owed, 0
        return frames.encode(frames.CREDIT, self.number, frames.COUNT.pack(owed))
