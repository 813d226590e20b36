"""One passage of a text put in the place of another, where that is found exactly once."""

from __future__ import annotations

import re
from dataclasses import dataclass

from workbench.errors import ToolError
from workbench.tools.text import Text


@dataclass(frozen=True, slots=True)
class Replaced:
    """The new text, how often the passage stood there, and whether only its white space was taken for another."""

    text: str
    count: int
    loosely: bool


def replace(text: Text, old: str, new: str, *, everywhere: bool = False) -> Replaced:
    """Put `new` in the place of `old`; line endings are those of the text, whatever the passages have.

    Where `old` isn't there to the letter, lines count as equal that differ in white space only; the new lines then get the
    indentation that the old ones have. Raises ToolError (invalid_arguments) where it isn't found, or more than once unless
    `everywhere`.
    """
    if not old:
        raise _refused(
            "The old text is empty, which could be anywhere.", "Give the lines to replace, or write the file."
        )
    if old == new:
        raise _refused("The old and the new text are the same: nothing would change.", "Give the text as it should be.")
    found = list(_exactly(old).finditer(text.text))
    loosely = not found
    spans = _loosely(text.text, old) if loosely else [(match.start(), match.end()) for match in found]
    if not spans:
        raise _refused(
            "The old text isn't in the file.", "Read the file again, and give the lines as they stand there."
        )
    if len(spans) > 1 and not everywhere:
        lines = ", ".join(str(text.text.count("\n", 0, start) + 1) for start, _ in spans[:10])
        raise _refused(
            f"The old text is there {len(spans)} times, at lines {lines}.",
            "Give more lines around it, or replace_all to change each of them.",
        )
    pieces, end = [], 0
    for start, stop in spans:
        passage = text.text[start:stop]
        put = _indented(passage, old, new) if loosely else new
        pieces += [text.text[end:start], _with_endings(put, passage, text)]
        end = stop
    return Replaced("".join((*pieces, text.text[end:])), len(spans), loosely)


def _exactly(old: str) -> re.Pattern[str]:
    lines = old.replace("\r\n", "\n").split("\n")
    return re.compile("\r?\n".join(re.escape(line) for line in lines))


def _loosely(text: str, old: str) -> list[tuple[int, int]]:
    """Where whole lines stand that are those of `old` but for their white space."""
    wanted = [_squeezed(line) for line in old.strip("\r\n").split("\n")]
    if not any(wanted):
        return []
    lines = (
        text.splitlines(keepends=True)
        if "\r" not in text.replace("\r\n", "")
        else re.findall(r"[^\n]*\n|[^\n]+$", text)
    )
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line))
    squeezed = [_squeezed(line) for line in lines]
    spans = []
    at = 0
    while at + len(wanted) <= len(lines):
        if squeezed[at : at + len(wanted)] == wanted:
            last = lines[at + len(wanted) - 1]
            stop = starts[at + len(wanted)] - (len(last) - len(last.rstrip("\r\n")))
            spans.append((starts[at], stop))
            at += len(wanted)
        else:
            at += 1
    return spans


def _squeezed(line: str) -> str:
    return " ".join(line.split())


def _indented(passage: str, old: str, new: str) -> str:
    """The new lines, moved as far as the passage is from what it was taken for."""
    new = new.strip("\r\n")
    here, there = (_first_indentation(each) for each in (passage, old.strip("\r\n")))
    if here.endswith(there):
        more = here[: len(here) - len(there)]
        return "\n".join(more + line if line.strip() else line for line in new.split("\n"))
    if there.endswith(here):
        less = there[: len(there) - len(here)]
        return "\n".join(line.removeprefix(less) for line in new.split("\n"))
    return new


def _first_indentation(passage: str) -> str:
    line = next((line for line in passage.split("\n") if line.strip()), "")
    return line[: len(line) - len(line.lstrip())]


def _with_endings(put: str, passage: str, text: Text) -> str:
    newline = "\r\n" if "\r\n" in passage else "\n" if "\n" in passage else text.newline
    return put.replace("\r\n", "\n").replace("\n", newline)


def _refused(message: str, hint: str) -> ToolError:
    return ToolError(message, code="invalid_arguments", hint=hint)
