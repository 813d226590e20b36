"""Where the hunks of a patch belong in a text, and the text with them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workbench.errors import ToolError
from workbench.tools.patches import Hunk
from workbench.tools.text import Text

_SHOWN_LINES = 12

# From the letter to what models get wrong most: trailing white space, then the indentation.
_EQUAL: tuple[Callable[[str], str], ...] = (lambda line: line, str.rstrip, lambda line: " ".join(line.split()))


def apply(text: Text, hunks: Sequence[Hunk], shown: str) -> str:
    """The text with every hunk applied, in order; new lines end as the text's do.

    `shown` is what the file is called. Raises ToolError (invalid_arguments) with the lines that weren't found.
    """
    lines = text.text.split("\n")
    ends_with_newline = lines[-1] == ""
    if ends_with_newline:
        lines.pop()
    return_ = "\r" if text.newline == "\r\n" else ""
    bare = [line.removesuffix("\r") for line in lines]
    done: list[str] = []
    at = 0
    for hunk in hunks:
        where = _place(bare, hunk, at)
        if where is None:
            raise _not_found(hunk, shown)
        done += lines[at:where]
        at = where
        for sign, line in hunk.lines:
            if sign == "+":
                done.append(line + return_)
                continue
            if sign == " ":
                # As it stands in the file, whose white space may be another.
                done.append(lines[at])
            at += 1
        if at == len(lines) and (hunk.ends_new or hunk.ends_old):
            ends_with_newline = not hunk.ends_new
    done += lines[at:]
    if not text.text:
        ends_with_newline = not any(hunk.ends_new for hunk in hunks)
    return "\n".join(done) + ("\n" if ends_with_newline and done else "")


def _place(lines: list[str], hunk: Hunk, start: int) -> int | None:
    """The line at which a hunk begins, at or after `start`; that nearest to where it says, else the first."""
    for anchor in hunk.after:
        found = next((number for number in range(start, len(lines)) if lines[number].strip() == anchor), None)
        if found is None:
            found = next((number for number in range(start, len(lines)) if anchor in lines[number]), None)
        if found is None:
            return None
        start = found + 1
    old = hunk.old
    if not old:
        if hunk.near is None:
            return start if hunk.after else len(lines)
        return min(max(hunk.near + 1, start), len(lines))
    for equal in _EQUAL:
        wanted = [equal(line) for line in old]
        having = [equal(line) for line in lines]
        fits = [at for at in range(start, len(lines) - len(old) + 1) if having[at : at + len(old)] == wanted]
        if hunk.at_end and (ends := [at for at in fits if at + len(old) == len(lines)]):
            return ends[0]
        if fits:
            near = hunk.near
            return fits[0] if near is None else min(fits, key=lambda at: abs(at - near))
    return None


def _not_found(hunk: Hunk, shown: str) -> ToolError:
    wanted = [*(f"@@ {anchor}" for anchor in hunk.after), *hunk.old]
    more = len(wanted) - _SHOWN_LINES
    told = "\n".join((*wanted[:_SHOWN_LINES], *((f"[... {more} more lines]",) if more > 0 else ())))
    return ToolError(
        f"The patch doesn't fit: {shown} has these lines nowhere, or not in this order:\n{told}\n",
        code="invalid_arguments",
        hint="Nothing was changed. Read the file again, and give the lines as they stand there.",
    )
