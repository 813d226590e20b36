"""Git's ignore patterns, as regular expressions over bytes that match exactly what git's own matcher does.

pathspec's `GitIgnoreSpec` isn't used: it lets a pattern match what is below a matching directory too, which is wrong as
soon as another file's pattern takes the directory back, and it knows no `[[:alpha:]]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_NEVER = b"(?!)"
_STAR = b"*"
_ANY = rb"[^\0]*?"
_DIRECTORIES = rb"(?:[^\0]*?/)??"
_IN_NAME = rb"[^/\0]*?"
_BOM = b"\xef\xbb\xbf"

_CLASSES: dict[bytes, Callable[[int], bool]] = {
    b"alnum": lambda c: bytes((c,)).isalnum(),
    b"alpha": lambda c: bytes((c,)).isalpha(),
    b"blank": lambda c: c in b" \t",
    b"cntrl": lambda c: c < 32 or c == 127,
    b"digit": lambda c: c in b"0123456789",
    b"graph": lambda c: 32 < c < 127,
    b"lower": lambda c: bytes((c,)).islower(),
    b"print": lambda c: 32 <= c < 127,
    b"punct": lambda c: 32 < c < 127 and not bytes((c,)).isalnum(),
    b"space": lambda c: c in b" \t\n\v\f\r",
    b"upper": lambda c: bytes((c,)).isupper(),
    b"xdigit": lambda c: c in b"0123456789abcdefABCDEF",
}


@dataclass(frozen=True, slots=True)
class _Pattern:
    expression: bytes
    negative: bool
    of_names: bool


class PatternList:
    """The patterns of one ignore file; the last one that matches decides."""

    def __init__(self, content: bytes) -> None:
        patterns = list(_parse(content))
        self._negative = [pattern.negative for pattern in patterns]
        self._names, self._name_numbers = _compile(patterns, of_names=True)
        self._paths, self._path_numbers = _compile(patterns, of_names=False)

    def __bool__(self) -> bool:
        return bool(self._negative)

    def match(self, path: bytes, name: bytes, *, is_dir: bool) -> bool | None:
        """What the file says of a path relative to its own directory: ignored, not ignored, or None for nothing."""
        mark = b"\0" if is_dir else b""
        number = -1
        if self._names is not None and (found := self._names.match(name + mark)):
            number = self._name_numbers[found.lastindex or 0]
        if self._paths is not None and (found := self._paths.match(path + mark)):
            number = max(number, self._path_numbers[found.lastindex or 0])
        return None if number < 0 else not self._negative[number]


def _compile(patterns: list[_Pattern], *, of_names: bool) -> tuple[re.Pattern[bytes] | None, list[int]]:
    # The first alternative that matches wins, so the last pattern comes first; its group's number says which it was.
    chosen = [number for number, pattern in enumerate(patterns) if pattern.of_names is of_names]
    chosen.reverse()
    if not chosen:
        return None, []
    source = b"|".join(b"(" + patterns[number].expression + b")" for number in chosen)
    return re.compile(source), [-1, *chosen]


def _parse(content: bytes) -> Iterator[_Pattern]:
    for line in content.removeprefix(_BOM).split(b"\n"):
        if line.startswith(b"#"):
            continue
        text = _trimmed(line.removesuffix(b"\r").partition(b"\0")[0])
        negative = text.startswith(b"!")
        text = text[negative:]
        directory = text.endswith(b"/")
        text = text[: len(text) - directory]
        if not text:
            continue
        of_names = b"/" not in text
        expression = _translate(text if of_names else text.removeprefix(b"/"), of_names=of_names)
        yield _Pattern(expression + (rb"\0\Z" if directory else rb"\0?\Z"), negative, of_names)


def _trimmed(line: bytes) -> bytes:
    """Without trailing spaces, but for escaped ones (`trim_trailing_spaces` in git's dir.c)."""
    end = None
    at = 0
    while at < len(line):
        if line[at : at + 1] == b" ":
            end = at if end is None else end
        else:
            end = None
            at += line[at : at + 1] == b"\\"
        at += 1
    return line if end is None else line[:end]


def _literal_length(pattern: bytes) -> int:
    found = re.search(rb"[*?\[\\]", pattern)
    return found.start() if found else len(pattern)


def _translate(pattern: bytes, *, of_names: bool) -> bytes:
    """A pattern as an expression (`dowild` in git's wildmatch.c)."""
    # git compares the literal beginning first, and hands its matcher only the rest: `a**/b` means `a` then `**/b`.
    start = 0 if of_names else _literal_length(pattern)
    tokens = [re.escape(pattern[:start])]
    at = start
    while at < len(pattern):
        byte = pattern[at : at + 1]
        if byte == b"\\":
            at += 1
            if at == len(pattern):
                return _NEVER
            tokens.append(re.escape(pattern[at : at + 1]))
        elif byte == b"?":
            tokens.append(rb"[^/\0]")
        elif byte == b"[":
            expression, at = _bracket(pattern, at)
            tokens.append(expression)
        elif byte == b"*":
            first = at
            while pattern[at + 1 : at + 2] == b"*":
                at += 1
            rest = pattern[at + 1 :]
            opens = first == start or pattern[first - 1 : first] == b"/"
            closes = not rest or rest.startswith((b"/", b"\\/"))
            if at == first or not (opens and closes) or of_names:
                tokens.append(_STAR)
            elif rest.startswith(b"/"):
                tokens.append(_DIRECTORIES)
                at += 1
            else:
                tokens.append(_ANY)
        else:
            tokens.append(re.escape(byte))
        at += 1
    return _assemble(tokens)


def _assemble(tokens: list[bytes]) -> bytes:
    """Put an expression together whose stars don't try every combination: a pattern of twenty stars must not hang.

    Between two `**` the first place that fits is as good as any later one, and so is it between two `*` of one name:
    what follows can stretch over the rest. So each of these is an atomic group.
    """
    groups: list[list[bytes]] = [[]]
    for token in tokens:
        if token in (_ANY, _DIRECTORIES):
            groups.append([])
        groups[-1].append(token)
    made: list[bytes] = []
    for number, group in enumerate(groups, start=1):
        is_last = number == len(groups)
        pieces = [b""]
        for token in group:
            if token == _STAR:
                pieces.append(b"")
            else:
                pieces[-1] += token
        stars = [b"(?>" + _IN_NAME + piece + b")" for piece in pieces[1:]]
        if stars and is_last:
            stars[-1] = _IN_NAME + pieces[-1]
        expression = pieces[0] + b"".join(stars)
        made.append(expression if is_last else b"(?>" + expression + b")")
    return b"".join(made)


def _bracket(pattern: bytes, at: int) -> tuple[bytes, int]:
    """A bracket expression that opens at `at`, and where it closes; one that doesn't close matches nothing."""
    at += 1
    negated = pattern[at : at + 1] in (b"!", b"^")
    at += negated
    members: set[int] = set()
    previous = 0
    first = True
    while first or pattern[at : at + 1] != b"]":
        first = False
        if at >= len(pattern):
            return _NEVER, len(pattern)
        byte = pattern[at]
        following = pattern[at + 1 : at + 2]
        if byte == 0x5C:
            at += 1
            if at >= len(pattern):
                return _NEVER, len(pattern)
            previous = pattern[at]
            members.add(previous)
        elif byte == 0x2D and previous and following not in (b"", b"]"):
            at += 1
            if pattern[at : at + 1] == b"\\":
                at += 1
                if at >= len(pattern):
                    return _NEVER, len(pattern)
            members.update(range(previous, pattern[at] + 1))
            previous = 0
        elif byte == 0x5B and following == b":":
            close = pattern.find(b"]", at + 2)
            if close < 0:
                return _NEVER, len(pattern)
            if close - 1 < at + 2 or pattern[close - 1 : close] != b":":
                members.add(byte)
                previous = byte
            else:
                member = _CLASSES.get(pattern[at + 2 : close - 1])
                if member is None:
                    return _NEVER, len(pattern)
                members.update(code for code in range(1, 256) if member(code))
                at = close
                previous = 0
        else:
            members.add(byte)
            previous = byte
        at += 1
    chosen = {code for code in range(1, 256) if (code in members) is not negated} - {0x2F}
    if not chosen:
        return _NEVER, at
    return b"[" + b"".join(b"\\x%02x" % code for code in sorted(chosen)) + b"]", at
