"""Commands in the background, as a keeper has them: what is kept of their output, and who follows it.

Nobody has to read along: the first and the last of the output are kept, and a follower who is slower than the command
is told how much was left out in between. What followers type goes in one after another, as the command takes it.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from workbench.protocol.commands import CommandResult
from workbench.sandbox import frames

HEAD_BYTES = 128 << 10
TAIL_BYTES = 384 << 10
_PIECE_OVERHEAD = 128
SHOWN_CHARACTERS = 256


@dataclass(slots=True)
class _Piece:
    start: int
    kind: bytes
    data: bytearray

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    @property
    def cost(self) -> int:
        return len(self.data) + _PIECE_OVERHEAD


class OutputLog:
    """The head and the tail of a command's output, both streams in the order in which they came.

    A position counts the bytes before it, also those that aren't kept any more. What is kept of output in tiny pieces is
    less, so that the memory it takes stays bounded.
    """

    def __init__(self, head: int = HEAD_BYTES, tail: int = TAIL_BYTES) -> None:
        self._head_left = head
        self._tail_left = tail
        self._head: list[_Piece] = []
        self._tail: deque[_Piece] = deque()
        self.end = 0
        """The position after the last byte."""

    def add(self, kind: bytes, data: bytes) -> None:
        """Append output of a stream, `frames.STDOUT` or `frames.STDERR`."""
        if self._head_left > 0:
            first, data = data[: self._head_left], data[self._head_left :]
            self._head_left -= self._append(self._head, kind, first)
        if data:
            self._tail_left -= self._append(self._tail, kind, data)
            while self._tail_left < 0:
                self._tail_left += self._tail.popleft().cost

    def _append(self, pieces: list[_Piece] | deque[_Piece], kind: bytes, data: bytes) -> int:
        last = pieces[-1] if pieces else None
        start, self.end = self.end, self.end + len(data)
        if last is not None and last.kind == kind and len(last.data) < frames.CHUNK:
            last.data += data
            return len(data)
        pieces.append(_Piece(start, kind, bytearray(data)))
        return pieces[-1].cost

    def read(self, position: int, size: int) -> tuple[int, bytes, bytes]:
        """Up to `size` bytes of one stream from a position on: how many before them are gone, the stream, the bytes.

        Empty bytes at the end.
        """
        gone = 0
        pieces: list[_Piece] | deque[_Piece] = self._head
        if not self._head or position >= self._head[-1].end:
            pieces = self._tail
            if pieces and pieces[0].start > position:
                gone = pieces[0].start - position
                position += gone
        index = bisect_right(pieces, position, key=lambda piece: piece.start) - 1
        if index < 0 or position >= pieces[index].end:
            return gone, frames.STDOUT, b""
        piece = pieces[index]
        at = position - piece.start
        return gone, piece.kind, bytes(piece.data[at : at + size])

    def last_lines(self, lines: int) -> int:
        """The position from which on there are so many lines, as far as they are kept in one piece with the end."""
        if not lines:
            return self.end
        kept = list(self._tail)
        if not kept or not self._head or self._head[-1].end == kept[0].start:
            kept = self._head + kept
        is_last = True
        for piece in reversed(kept):
            at = len(piece.data)
            while (at := piece.data.rfind(b"\n", 0, at)) >= 0:
                # The end of the last line begins no other.
                lines -= not (is_last and at == len(piece.data) - 1)
                is_last = False
                if not lines:
                    return piece.start + at + 1
            is_last = False
        return kept[0].start if kept else 0


@dataclass(slots=True, eq=False)
class Follower:
    """Somebody who reads a job's output from a position on, as their credit allows; `ended` hears that it's over.

    It's over at the position `until`, where that is given, else with the job.
    """

    job: BackgroundJob
    number: int
    position: int
    until: int | None
    send: Callable[[bytes], None]
    ended: Callable[[Follower], object]
    credit: int = frames.WINDOW
    input_credit: int = frames.WINDOW
    left_out: int = 0

    def pump(self) -> None:
        """Send what there is and may be sent; at the end of everything, the answer."""
        log = self.job.log
        end = log.end if self.until is None else self.until
        while self.position < end and self.credit > frames.LONG_COUNT.size:
            size = min(frames.CHUNK, self.credit - frames.LONG_COUNT.size, end - self.position)
            gone, kind, data = log.read(self.position, size)
            if gone:
                self.left_out += gone
                self.credit -= frames.LONG_COUNT.size
                self.send(frames.encode(frames.LEFT_OUT, self.number, frames.LONG_COUNT.pack(gone)))
            self.credit -= len(data)
            self.position += gone + len(data)
            self.send(frames.encode(kind, self.number, data))
        if self.position < end:
            return
        if self.job.result is not None:
            result = replace(self.job.result, omitted_bytes=self.left_out)
            self._finish(frames.encode_json(frames.RESULT, self.number, frames.result_content(result)))
        elif self.job.failure is not None:
            self._finish(frames.encode(frames.FAILED, self.number, self.job.failure))
        elif self.until is not None:
            self.leave()

    def leave(self) -> None:
        """End it, whatever the job does."""
        self._finish(frames.encode_json(frames.RESULT, self.number, {"left": True}))

    def _finish(self, answer: bytes) -> None:
        self.job.followers.discard(self)
        self.ended(self)
        self.send(answer)


@dataclass(slots=True, eq=False)
class BackgroundJob:
    """One command that runs, or has run, in the background; `tell` sends a frame of its exchange to the supervisor."""

    id: str
    tell: Callable[[bytes, bytes], None]
    log: OutputLog = field(default_factory=OutputLog)
    followers: set[Follower] = field(default_factory=set)
    result: CommandResult | None = None
    failure: bytes | None = None
    input_closed: bool = False
    over_at: float = 0.0
    _owed: int = 0
    _input_credit: int = frames.WINDOW
    _typed: deque[tuple[Follower, bytes]] = field(default_factory=deque)

    def wrote(self, kind: bytes, data: bytes) -> None:
        """Keep output, ask for more, pass it on. Raises SandboxError (sandbox_lost) for more than was asked for."""
        self._owed += len(data)
        if self._owed > frames.WINDOW:
            raise frames.lost("it sent more than it was allowed to")
        self.log.add(kind, data)
        if self._owed >= frames.WINDOW // 4:
            owed, self._owed = self._owed, 0
            self.tell(frames.CREDIT, frames.COUNT.pack(owed))
        self._pump()

    def finish(self, kind: bytes, payload: bytes) -> None:
        """Take the answer to its request, RESULT or FAILED. Raises SandboxError (sandbox_lost) for a malformed one."""
        if kind == frames.RESULT:
            self.result = frames.command_result(frames.parse(payload), b"", b"")
        else:
            frames.failure(payload)
            self.failure = payload
        self.over_at = time.monotonic()
        self._typed.clear()
        self._pump()

    @property
    def over(self) -> bool:
        """Whether it has ended, or was lost."""
        return self.result is not None or self.failure is not None

    def _pump(self) -> None:
        for follower in list(self.followers):
            follower.pump()

    def type(self, follower: Follower, data: bytes) -> None:
        """Input from a follower; empty: its end. Raises SandboxError (sandbox_lost) for more than was granted."""
        follower.input_credit -= len(data)
        if follower.input_credit < 0:
            raise frames.lost("more input than was granted")
        if not self.input_closed and not self.over:
            self._typed.append((follower, data))
            self._feed()

    def grant(self, payload: bytes) -> None:
        """The command took input. Raises SandboxError (sandbox_lost) for a malformed frame."""
        if len(payload) != frames.COUNT.size:
            raise frames.lost("it sent a malformed frame")
        self._input_credit = min(frames.WINDOW, self._input_credit + frames.COUNT.unpack(payload)[0])
        self._feed()

    def _feed(self) -> None:
        while self._typed:
            follower, data = self._typed[0]
            piece = data[: self._input_credit]
            if data and not piece:
                return
            self._input_credit -= len(piece)
            self.tell(frames.DATA, piece)
            if follower in self.followers and piece:
                follower.input_credit += len(piece)
                follower.send(frames.encode(frames.CREDIT, follower.number, frames.COUNT.pack(len(piece))))
            if len(piece) < len(data):
                self._typed[0] = (follower, data[len(piece) :])
            else:
                self._typed.popleft()

    def close_input(self) -> None:
        """The command reads no more."""
        self.input_closed = True
        self._typed.clear()
        for follower in self.followers:
            follower.send(frames.encode(frames.INPUT_CLOSED, follower.number))


def shown_argv(content: frames.Json) -> list[str]:
    """A RUN request's command as listings show it, cut to what is useful there."""
    shown, left = [], SHOWN_CHARACTERS
    for word in [content["label"]] if content.get("label") else content.get("argv", []):
        if left <= 0:
            break
        shown.append(str(word)[:left])
        left -= len(shown[-1]) + 1
    return shown


def usage_of(content: frames.Json, number: int) -> frames.Json:
    """What a job takes, of the supervisor's answer to USAGE. Raises SandboxError (sandbox_lost)."""
    jobs = content.get("jobs")
    if not isinstance(jobs, dict):
        raise frames.lost("its answer has wrong jobs")
    values = jobs.get(str(number), [0, 0, 0])
    if not isinstance(values, list) or len(values) != 3:
        raise frames.lost("its answer has wrong jobs")
    named = dict(zip(("cpu_ms", "memory_bytes", "processes"), values, strict=True))
    return {name: frames.number(named, name) for name in named}
