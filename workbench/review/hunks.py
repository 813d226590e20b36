"""Hunks of one change by their ids, and what a file becomes where only some of them are accepted, or other than they are."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from workbench.errors import OptionsError
from workbench.review.changeset import Change
from workbench.review.diff import Contents, hunks_of
from workbench.review.lines import CONTEXT, Hunk, split
from workbench.vfs.storage import Storage

Lines = tuple[bytes, ...]
"""A hunk's lines as `lines.Hunk` has them, as somebody wants them instead."""

_Edit = tuple[int, int, Lines]
"""Lines of the old text from and to (counted from 0), and what stands there in the new one."""


@dataclass(frozen=True, slots=True)
class NamedHunk:
    """A hunk of a change. `id` depends on the path and the hunk's lines alone: it stays where the hunk only moves.

    `parts` are what it can be taken apart into, each with an id of its own; none where it's one run of changed lines.
    """

    id: str
    hunk: Hunk
    parts: tuple[NamedHunk, ...] = ()

    @property
    def leaves(self) -> tuple[NamedHunk, ...]:
        """Its parts, else itself."""
        return self.parts or (self,)


def named_hunks(change: Change, lower: Storage, store: Contents) -> tuple[NamedHunk, ...]:
    """The hunks of a change's text, none where it's binary or equal. Raises as `diff.unified`."""
    seen: Counter[bytes] = Counter()

    def named(hunk: Hunk, parts: Iterable[Hunk]) -> NamedHunk:
        lines = b"".join(hunk.lines)
        # The same lines may change twice in one file.
        identity = b"%s\0%d\0%s" % (change.path, seen[lines], lines)
        seen[lines] += 1
        name = hashlib.sha256(identity).hexdigest()[:16]
        return NamedHunk(name, hunk, tuple([named(part, ()) for part in parts]))

    whole = hunks_of(change, lower, store)
    first = [named(hunk, ()) for hunk in whole]
    return tuple(
        NamedHunk(one.id, one.hunk, tuple(named(part, ()) for part in parts)) if len(parts) > 1 else one
        for one, parts in zip(first, map(_parts, whole), strict=True)
    )


def with_parts(hunks: Iterable[NamedHunk]) -> Iterator[NamedHunk]:
    """The hunks and what they can be taken apart into."""
    for hunk in hunks:
        yield hunk
        yield from hunk.parts


def is_accepted(hunk: NamedHunk, accepted: Collection[str]) -> bool:
    """Whether a hunk is among the accepted ids, itself or with all of its parts."""
    return hunk.id in accepted or all(part.id in accepted for part in hunk.leaves)


def derived(
    old: bytes, hunks: Iterable[NamedHunk], accepted: Collection[str], instead: Mapping[str, Lines] | None = None
) -> bytes:
    """The old text with those hunks in it that are accepted, whole or in parts, or are to be other lines `instead`.

    Raises OptionsError where two of those change the same lines.
    """
    other = instead or {}
    edits: list[_Edit] = []
    for hunk in hunks:
        whole = hunk.id in other or hunk.id in accepted
        for one in (hunk,) if whole else hunk.parts:
            if one.id in other:
                edits += _edits(replace(one.hunk, lines=other[one.id]))
            elif one.id in accepted:
                edits += _edits(one.hunk)
    lines = split(old)
    found: list[bytes] = []
    at = 0
    for start, end, new in sorted(edits, key=lambda edit: edit[:2]):
        if start < at:
            raise OptionsError(
                "Two edited hunks change the same lines.", hint="Edit the hunk that they are parts of, as a whole."
            )
        found += lines[at:start]
        found += new
        at = end
    return b"".join(found + lines[at:])


def editable(hunk: NamedHunk) -> bytes:
    """A hunk as text for an editor, which `edited` reads."""
    return b"".join(hunk.hunk.render())


def edited(hunk: NamedHunk, text: bytes) -> Lines:
    """What a hunk's lines are to be, from what `editable` became; lines that begin with `#` are left out.

    Raises OptionsError where it no longer fits what was there before.
    """
    lines: list[bytes] = []
    for line in split(text):
        if line.startswith((b"#", b"@@")):
            continue
        if line.startswith(b"\\"):
            if lines:
                lines[-1] = lines[-1].removesuffix(b"\n")
        # An editor may have taken the space of an empty line for one too many.
        elif line in (b"\n", b"\r\n"):
            lines.append(b" " + line)
        elif line.startswith((b" ", b"-", b"+")):
            lines.append(line)
        else:
            raise OptionsError(
                "A line of the edited hunk begins with none of space, - and +.", hint="Begin the lines you add with +."
            )
    if _side(lines, b"+") != _side(hunk.hunk.lines, b"+"):
        raise OptionsError(
            "The edited hunk no longer fits: the lines with a space or - aren't those that were there before.",
            hint="To keep a line that goes, make its - a space; to drop one that comes, delete its line.",
        )
    if any(not line.endswith(b"\n") for side in (b"-", b"+") for line in _side(lines, side)[:-1]):
        raise OptionsError("Only a file's last line may be without a newline.", hint="Move the line, or end it.")
    return tuple(lines)


def _side(lines: Iterable[bytes], without: bytes) -> list[bytes]:
    return [line[1:] for line in lines if not line.startswith(without)]


def _edits(hunk: Hunk) -> Iterator[_Edit]:
    at = hunk.old_start - bool(hunk.old_count)
    start, added = at, list[bytes]()
    for line in hunk.lines:
        if line.startswith(b" "):
            if at > start or added:
                yield start, at, tuple(added)
            at += 1
            start, added = at, []
        elif line.startswith(b"-"):
            at += 1
        else:
            added.append(line[1:])
    if at > start or added:
        yield start, at, tuple(added)


def _parts(hunk: Hunk) -> list[Hunk]:
    """One hunk for each run of changed lines, with the unchanged ones around it up to the next run."""
    runs: list[tuple[int, int]] = []
    for number, line in enumerate(hunk.lines):
        if line.startswith(b" "):
            continue
        if runs and runs[-1][1] == number:
            runs[-1] = (runs[-1][0], number + 1)
        else:
            runs.append((number, number + 1))
    found = []
    for number, (start, end) in enumerate(runs):
        first = max(start - CONTEXT, runs[number - 1][1] if number else 0)
        last = min(end + CONTEXT, runs[number + 1][0] if number + 1 < len(runs) else len(hunk.lines))
        found.append(_cut(hunk, first, last))
    return found


def _cut(hunk: Hunk, first: int, last: int) -> Hunk:
    before, lines = hunk.lines[:first], hunk.lines[first:last]

    def count(where: Iterable[bytes], without: bytes) -> int:
        return sum(not line.startswith(without) for line in where)

    old, new = count(lines, b"+"), count(lines, b"-")
    old_at = hunk.old_start - bool(hunk.old_count) + count(before, b"+")
    new_at = hunk.new_start - bool(hunk.new_count) + count(before, b"-")
    return Hunk(old_at + bool(old), old, new_at + bool(new), new, hunk.heading, lines)
