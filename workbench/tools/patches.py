"""Patches as models write them: the unified format, with or without git's headers, and the `*** Begin Patch` form.

Line numbers count for little, since models can't count; what a hunk keeps and removes says where it belongs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from workbench.errors import ToolError

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_OCTAL = re.compile(rb"\\([0-7]{3}|.)", re.DOTALL)
_CONTROLS = {b"a": b"\a", b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v"}


@dataclass(slots=True)
class Hunk:
    """Lines as (` `, `-` or `+`; the line).

    `near` is the line that it begins at, counted from 0 (what only adds lines comes after it), `after` the lines to look
    for first, one after the other. `ends_old` and `ends_new` say that the last line of that side has no newline.
    """

    lines: list[tuple[str, str]] = field(default_factory=list)
    near: int | None = None
    after: list[str] = field(default_factory=list)
    at_end: bool = False
    ends_old: bool = False
    ends_new: bool = False

    @property
    def old(self) -> list[str]:
        """What has to be there."""
        return [line for sign, line in self.lines if sign != "+"]


@dataclass(slots=True)
class FilePatch:
    """What is done to one file: `old` None makes it, `new` None deletes it; both, and different, move it."""

    old: str | None
    new: str | None
    hunks: list[Hunk] = field(default_factory=list)
    mode: int | None = None


def parse(patch: str) -> list[FilePatch]:
    """The files of a patch in either form. Raises ToolError (invalid_arguments) with the number of the line at fault."""
    lines = patch.replace("\r\n", "\n").split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    begins = next((number for number, line in enumerate(lines) if line.strip() == "*** Begin Patch"), None)
    files = list(_Plain(lines, begins + 1).files()) if begins is not None else list(_Unified(lines).files())
    if not files:
        raise _refused(1, "there is no change in it")
    return files


class _Plain:
    """The `*** Begin Patch` form."""

    def __init__(self, lines: list[str], at: int) -> None:
        self._lines = lines
        self._at = at

    def files(self) -> Iterator[FilePatch]:
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            action, _, name = line.removeprefix("*** ").partition(": ")
            name = name.strip()
            if line.strip() == "*** End Patch":
                return
            if action == "Add File" and name:
                yield FilePatch(None, name, [Hunk([("+", added) for added in self._added()])])
            elif action == "Delete File" and name:
                yield FilePatch(name, None)
            elif action == "Update File" and name:
                yield self._updated(name)
            elif line.strip():
                raise _refused(
                    self._at, "a line begins no file: '*** Add File: ', '*** Update File: ' or '*** Delete File: '"
                )
        raise _refused(len(self._lines), "'*** End Patch' is missing")

    def _is_header(self) -> bool:
        return self._at >= len(self._lines) or self._lines[self._at].startswith("*** ")

    def _added(self) -> Iterator[str]:
        while not self._is_header():
            line = self._lines[self._at]
            self._at += 1
            if not line.startswith("+"):
                raise _refused(self._at, "each line of a new file begins with '+'")
            yield line[1:]

    def _updated(self, name: str) -> FilePatch:
        new = name
        if self._at < len(self._lines) and self._lines[self._at].startswith("*** Move to: "):
            new = self._lines[self._at].removeprefix("*** Move to: ").strip()
            self._at += 1
        hunks: list[Hunk] = []
        after: list[str] = []
        hunk: Hunk | None = None
        while not self._is_header() or self._is_end_of_file():
            line = self._lines[self._at]
            self._at += 1
            if line.strip() == "*** End of File":
                if hunk is not None:
                    hunk.at_end = True
                hunk = None
            elif line.startswith("@@"):
                if hunk is not None:
                    after = []
                hunk = None
                if place := line[2:].strip().removesuffix("@@").strip():
                    after.append(place)
            elif line[:1] in (" ", "-", "+", ""):
                if hunk is None:
                    hunk = Hunk(after=after)
                    after = []
                    hunks.append(hunk)
                hunk.lines.append((line[:1] or " ", line[1:]))
            else:
                raise _refused(self._at, "a line begins with neither ' ', '-', '+' nor '@@'")
        if not hunks and new == name:
            raise _refused(self._at, f"nothing of {name} is changed")
        return FilePatch(name, new, hunks)

    def _is_end_of_file(self) -> bool:
        return self._at < len(self._lines) and self._lines[self._at].strip() == "*** End of File"


class _Unified:
    """The unified format. Where a hunk ends is told by its header's counts if they can be right, else by what follows."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def files(self) -> Iterator[FilePatch]:
        file: FilePatch | None = None
        is_git = False
        while self._at < len(self._lines):
            line = self._lines[self._at]
            self._at += 1
            if line.startswith("diff --git "):
                if file is not None:
                    yield file
                file, is_git = _of_git(line), True
            elif line.startswith("--- ") and self._next().startswith("+++ "):
                if not is_git and file is not None:
                    yield file
                old, new = _name(line[4:], "a/"), _name(self._next()[4:], "b/")
                self._at += 1
                file, is_git = FilePatch(old, new, mode=file.mode if is_git and file else None), False
            elif file is not None and line.startswith("@@"):
                file.hunks.append(self._hunk(line))
            elif file is not None and is_git:
                _header(file, line, self._at)
        if file is not None:
            yield file

    def _next(self) -> str:
        return self._lines[self._at] if self._at < len(self._lines) else ""

    def _hunk(self, header: str) -> Hunk:
        found = _HUNK.match(header)
        hunk = Hunk(near=int(found[1]) - 1 if found else None)
        end = self._counted_end(int(found[2] or 1), int(found[4] or 1)) if found else None
        while self._at < len(self._lines) if end is None else self._at < end:
            line = self._next()
            if line.startswith("\\"):
                sign = hunk.lines[-1][0] if hunk.lines else " "
                hunk.ends_old |= sign != "+"
                hunk.ends_new |= sign != "-"
            elif end is None and self._is_boundary(self._at):
                break
            else:
                hunk.lines.append((line[:1] or " ", line[1:]))
            self._at += 1
        if not any(sign != " " for sign, _ in hunk.lines):
            raise _refused(self._at, "a hunk changes nothing")
        return hunk

    def _counted_end(self, old: int, new: int) -> int | None:
        """Where a hunk ends by its header's counts; None where they can't be right."""
        at = self._at
        while at < len(self._lines) and (old > 0 or new > 0 or self._lines[at].startswith("\\")):
            sign = self._lines[at][:1] or " "
            if sign not in " -+\\":
                return None
            old -= sign in " -"
            new -= sign in " +"
            at += 1
        return at if old == new == 0 and self._is_boundary(at) else None

    def _is_boundary(self, at: int) -> bool:
        """Whether no line of a hunk can stand there, or a file's header does."""
        line = self._lines[at] if at < len(self._lines) else "@@"
        if line[:1] not in (" ", "-", "+", ""):
            return True
        following = self._lines[at + 1 : at + 3]
        is_header = len(following) == 2 and following[0].startswith("+++ ") and following[1].startswith("@@")
        return line.startswith("--- ") and is_header


def _of_git(line: str) -> FilePatch:
    rest = line.removeprefix("diff --git ")
    quoted = _QUOTED.findall(rest)
    if len(quoted) == 2:
        old, new = (f'"{name}"' for name in quoted)
    else:
        # Both names are the same but for a move, whose header gives them again.
        middle = len(rest) // 2
        old, new = (rest[:middle], rest[middle + 1 :]) if rest[middle : middle + 1] == " " else (rest, rest)
    return FilePatch(_name(old, "a/"), _name(new, "b/"))


def _header(file: FilePatch, line: str, number: int) -> None:
    """One of git's lines between `diff --git` and the names."""
    key, _, value = line.rpartition(" ")
    if key in ("new file mode", "new mode"):
        file.mode = int(value, 8) & 0o777
        if key == "new file mode":
            file.old = None
        if value.startswith(("120", "160")):
            raise _refused(number, "a symlink or a submodule can't be made by a patch; use a command")
    elif key == "deleted file mode":
        file.new = None
    elif line.startswith(("rename from ", "copy from ")):
        file.old = _name(line.partition(" from ")[2], "")
    elif line.startswith(("rename to ", "copy to ")):
        file.new = _name(line.partition(" to ")[2], "")
    elif line.startswith(("GIT binary patch", "Binary files ")):
        raise _refused(number, "a binary file can't be changed by a patch; use a command")


def _name(text: str, prefix: str) -> str | None:
    """A file's name from a header, without git's prefix; None for /dev/null."""
    if found := _QUOTED.match(text):
        raw = found[1].encode("utf-8", "surrogateescape")
        name = _OCTAL.sub(_unquoted, raw).decode("utf-8", "surrogateescape")
    else:
        name = text.partition("\t")[0].rstrip()
    return None if name == "/dev/null" else name.removeprefix(prefix)


def _unquoted(found: re.Match[bytes]) -> bytes:
    code = found[1]
    return bytes([int(code, 8) & 0xFF]) if len(code) == 3 else _CONTROLS.get(code, code)


def _refused(number: int, why: str) -> ToolError:
    return ToolError(f"The patch can't be read: line {number}: {why}.", code="invalid_arguments")
