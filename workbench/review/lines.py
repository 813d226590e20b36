"""Line by line: which lines of two texts are the same, and the hunks between them, as unified diffs have them."""

from __future__ import annotations

import bisect
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CONTEXT = 3
_HEADING = re.compile(rb"[A-Za-z_$]")
_HEADING_LENGTH = 80
_EDITS = 1000
"""How many inserted and deleted lines one search for a shortest script goes through: it costs their square."""
_STEPS = 2_000_000
"""How many steps all searches of one file may take together, about a second; what is left then is replaced whole."""


@dataclass(frozen=True, slots=True)
class Hunk:
    """A run of changed lines with what is around it.

    Starts and counts are those of its `@@` line, in lines from 1. `lines` begin with a space, `-` or `+` and have the
    line endings of their file: the last one of a file may have none. `heading` is the nearest line above that looks
    like the beginning of a definition (git's default rule).
    """

    old_start: int
    old_count: int
    new_start: int
    new_count: int
    heading: bytes
    lines: tuple[bytes, ...]

    def head(self) -> Iterator[bytes]:
        """Its `@@` line."""
        heading = b" " + self.heading if self.heading else b""
        old, new = _range(self.old_start, self.old_count), _range(self.new_start, self.new_count)
        yield b"@@ -%s +%s @@%s\n" % (old, new, heading)

    def render(self) -> Iterator[bytes]:
        """The hunk as lines of a patch."""
        yield from self.head()
        for line in self.lines:
            yield line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"


def hunks(old: bytes, new: bytes, context: int = CONTEXT) -> tuple[Hunk, ...]:
    """The hunks between two texts, in order, each with up to `context` lines around the change."""
    old_lines, new_lines = split(old), split(new)
    found: list[Hunk] = []
    heading_at, heading = 0, b""
    for group in _groups(changed_ranges(old_lines, new_lines), context):
        first, last = group[0], group[-1]
        old_start, new_start = max(0, first[0] - context), max(0, first[2] - context)
        old_end, new_end = min(len(old_lines), last[1] + context), min(len(new_lines), last[3] + context)
        lines: list[bytes] = []
        at = old_start
        for old_from, old_to, new_from, new_to in group:
            lines.extend(b" " + line for line in old_lines[at:old_from])
            lines.extend(b"-" + line for line in old_lines[old_from:old_to])
            lines.extend(b"+" + line for line in new_lines[new_from:new_to])
            at = old_to
        lines.extend(b" " + line for line in old_lines[at:old_end])
        for line in reversed(old_lines[heading_at:old_start]):
            if _HEADING.match(line):
                heading = line[:_HEADING_LENGTH].rstrip()
                break
        heading_at = old_start
        old_count, new_count = old_end - old_start, new_end - new_start
        # An empty range is named by the line before it.
        found.append(
            Hunk(
                old_start + bool(old_count),
                old_count,
                new_start + bool(new_count),
                new_count,
                heading,
                tuple(lines),
            )
        )
    return tuple(found)


def split(text: bytes) -> list[bytes]:
    """The lines of a text with their ends; only a newline ends a line, so CRLF stays in it."""
    lines = text.split(b"\n")
    last = lines.pop()
    ended = [line + b"\n" for line in lines]
    return [*ended, last] if last else ended


def changed_ranges(old: Sequence[bytes], new: Sequence[bytes]) -> list[tuple[int, int, int, int]]:
    """The ranges of lines in which two texts differ, in order, each (old from, old to, new from, new to).

    Lines that occur once on both sides are matched first (a patience diff), and what is between them by a shortest edit
    script (Myers). The work is bounded: a range that would take more is one change from its beginning to its end.
    """
    numbers: dict[bytes, int] = {}
    matcher = _Matcher(
        [numbers.setdefault(line, len(numbers)) for line in old],
        [numbers.setdefault(line, len(numbers)) for line in new],
    )
    ranges: list[tuple[int, int, int, int]] = []
    old_at = new_at = 0
    for old_from, new_from, length in matcher.run():
        if old_from > old_at or new_from > new_at:
            ranges.append((old_at, old_from, new_at, new_from))
        old_at, new_at = old_from + length, new_from + length
    if old_at < len(old) or new_at < len(new):
        ranges.append((old_at, len(old), new_at, len(new)))
    return ranges


class _Matcher:
    def __init__(self, old: list[int], new: list[int]) -> None:
        self._old = old
        self._new = new
        self._steps = _STEPS
        self._blocks: list[tuple[int, int, int]] = []

    def run(self) -> list[tuple[int, int, int]]:
        """Blocks of equal lines, in order, each (old from, new from, length)."""
        waiting = [(0, len(self._old), 0, len(self._new))]
        while waiting:
            old_from, old_to, new_from, new_to = self._trimmed(*waiting.pop())
            if old_from == old_to or new_from == new_to or self._steps <= 0:
                continue
            self._steps -= old_to - old_from + new_to - new_from
            anchors = self._anchors(old_from, old_to, new_from, new_to)
            if not anchors:
                self._shortest(old_from, old_to, new_from, new_to)
                continue
            # Each anchor begins the range after the one before it, where trimming takes it and what follows.
            bounds = [(old_from, new_from), *anchors, (old_to, new_to)]
            waiting.extend(
                (old_at, old_end, new_at, new_end)
                for (old_at, new_at), (old_end, new_end) in itertools.pairwise(bounds)
            )
        return sorted(self._blocks)

    def _trimmed(self, old_from: int, old_to: int, new_from: int, new_to: int) -> tuple[int, int, int, int]:
        """Take what is equal at both ends of a range."""
        old, new = self._old, self._new
        start = old_from
        while old_from < old_to and new_from < new_to and old[old_from] == new[new_from]:
            old_from += 1
            new_from += 1
        if old_from > start:
            self._blocks.append((start, new_from - (old_from - start), old_from - start))
        end = old_to
        while old_from < old_to and new_from < new_to and old[old_to - 1] == new[new_to - 1]:
            old_to -= 1
            new_to -= 1
        if end > old_to:
            self._blocks.append((old_to, new_to, end - old_to))
        return old_from, old_to, new_from, new_to

    def _anchors(self, old_from: int, old_to: int, new_from: int, new_to: int) -> list[tuple[int, int]]:
        """The longest run of lines that occur once on each side and come in the same order on both."""
        in_old = _once(self._old, old_from, old_to)
        in_new = _once(self._new, new_from, new_to)
        pairs = [(at, in_new[line]) for line, at in in_old.items() if line in in_new]
        tails: list[int] = []
        ends: list[int] = []
        before: list[int] = []
        for number, (_, new_at) in enumerate(pairs):
            length = bisect.bisect_left(tails, new_at)
            before.append(ends[length - 1] if length else -1)
            if length == len(tails):
                tails.append(new_at)
                ends.append(number)
            else:
                tails[length] = new_at
                ends[length] = number
        chosen: list[tuple[int, int]] = []
        number = ends[-1] if ends else -1
        while number >= 0:
            chosen.append(pairs[number])
            number = before[number]
        chosen.reverse()
        return chosen

    def _shortest(self, old_from: int, old_to: int, new_from: int, new_to: int) -> None:
        """Myers' greedy algorithm ("An O(ND) Difference Algorithm and Its Variations", 1986), with a bounded D."""
        old, new = self._old[old_from:old_to], self._new[new_from:new_to]
        rows, columns = len(old), len(new)
        most = min(rows + columns, _EDITS)
        # The furthest row on each diagonal, which may be negative: `middle` is diagonal 0.
        middle = most + 1
        reach = [0] * (2 * middle + 1)
        trace: list[list[int]] = []
        for edits in range(most + 1):
            trace.append(reach[middle - edits - 1 : middle + edits + 2])
            self._steps -= edits + 1
            if self._steps <= 0:
                return
            for diagonal in range(middle - edits, middle + edits + 1, 2):
                if diagonal == middle - edits or (
                    diagonal != middle + edits and reach[diagonal - 1] < reach[diagonal + 1]
                ):
                    row = reach[diagonal + 1]
                else:
                    row = reach[diagonal - 1] + 1
                column = row - diagonal + middle
                start = row
                while row < rows and column < columns and old[row] == new[column]:
                    row += 1
                    column += 1
                self._steps -= row - start
                reach[diagonal] = row
                if row >= rows and column >= columns:
                    self._retrace(trace, rows, columns, old_from, new_from)
                    return

    def _retrace(self, trace: list[list[int]], row: int, column: int, old_from: int, new_from: int) -> None:
        """Walk back from the end to the beginning; each straight run on the way is a block."""
        for edits in range(len(trace) - 1, 0, -1):
            reach = trace[edits]
            diagonal = row - column
            middle = edits + 1
            at = middle + diagonal
            down = diagonal == -edits or (diagonal != edits and reach[at - 1] < reach[at + 1])
            before = reach[at + 1] if down else reach[at - 1]
            begins = before if down else before + 1
            if row > begins:
                self._blocks.append((old_from + begins, new_from + begins - diagonal, row - begins))
            row, column = before, before - (diagonal + 1 if down else diagonal - 1)
        if row:
            self._blocks.append((old_from, new_from, row))


def _once(lines: list[int], start: int, end: int) -> dict[int, int]:
    """The lines that occur once in a range, with where they are, in order."""
    found: dict[int, int] = {}
    again: set[int] = set()
    for at in range(start, end):
        line = lines[at]
        if line in found:
            again.add(line)
        else:
            found[line] = at
    for line in again:
        del found[line]
    return found


def _groups(ranges: list[tuple[int, int, int, int]], context: int) -> Iterator[list[tuple[int, int, int, int]]]:
    """Changes whose context would touch or overlap belong to one hunk."""
    group: list[tuple[int, int, int, int]] = []
    for one in ranges:
        if group and one[0] - group[-1][1] > 2 * context:
            yield group
            group = []
        group.append(one)
    if group:
        yield group


def _range(start: int, count: int) -> bytes:
    return b"%d" % start if count == 1 else b"%d,%d" % (start, count)
