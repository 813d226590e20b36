"""What a tool call did to files, as lines of a diff, as far as its arguments tell."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile

from workbench.protocol.records import Frozen
from workbench.transcripts.changes import (
    Append,
    Cell,
    Deed,
    Delete,
    Diff,
    Insert,
    Patch,
    Replace,
    Write,
    changes_of_call,
)
from workbench.transcripts.models import CallRecord

_CONTEXT = 3


class FileDiff(Frozen):
    """How a call changed a file: `text` is lines that begin with a space, `+`, `-` or `@`, or a patch as the agent wrote it.

    `path` is empty where a patch names its files.
    """

    call_id: str
    path: str
    text: str


def diffs_of_call(call: CallRecord) -> tuple[FileDiff, ...]:
    """Of each file that a call writes; nothing of one that its arguments don't tell, or not whole."""
    return tuple(
        FileDiff(call_id=call.id, path=change.path, text="\n".join(lines))
        for change in changes_of_call(call.name, call.arguments)
        if (lines := list(_lines(change.deed)))
    )


def _lines(deed: Deed) -> Iterator[str]:
    match deed:
        case Write(content) | Append(content) | Cell(_, content):
            yield from _marked("+", content.splitlines())
        case Insert(line, text):
            yield f"@@ after line {line} @@"
            yield from _marked("+", text.splitlines())
        case Replace(replacements):
            for each in replacements:
                yield "@@ everywhere @@" if each.everywhere else "@@"
                yield from _replaced(each.old.splitlines(), each.new.splitlines())
        case Patch(text) | Diff(text):
            yield from text.splitlines()
        case Delete():
            yield "@@ deleted @@"


def _replaced(old: list[str], new: list[str]) -> Iterator[str]:
    """What both begin and end with is context. In linear time, which a diff isn't: nobody knows what agents write."""
    above = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False)))
    rest = zip(reversed(old[above:]), reversed(new[above:]), strict=False)
    below = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], rest))
    yield from _marked(" ", old[max(0, above - _CONTEXT) : above])
    yield from _marked("-", old[above : len(old) - below])
    yield from _marked("+", new[above : len(new) - below])
    yield from _marked(" ", old[len(old) - below :][:_CONTEXT])


def _marked(mark: str, lines: list[str]) -> Iterator[str]:
    return (f"{mark}{line}" for line in lines)
