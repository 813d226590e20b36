"""Word by word: what changed within the lines of a hunk."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from workbench.review.lines import Hunk, changed_ranges

_TOKEN = re.compile(rb"[0-9A-Za-z_\x80-\xff]+|[^\S\r\n]+|\r?\n|.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Run:
    """A run of a hunk's lines without what they begin with: `old` and `new` are equal where nothing changed."""

    old: tuple[bytes, ...]
    new: tuple[bytes, ...]

    @property
    def is_changed(self) -> bool:
        return self.old != self.new


def runs(hunk: Hunk) -> Iterator[Run]:
    """The lines of a hunk in runs: those that stay, and those that go with those that come in their place."""
    stays: list[bytes] = []
    goes: list[bytes] = []
    comes: list[bytes] = []
    for line in (*hunk.lines, None):
        if stays and (line is None or not line.startswith(b" ")):
            yield Run(tuple(stays), tuple(stays))
            stays = []
        if (goes or comes) and (line is None or line.startswith(b" ") or (comes and line.startswith(b"-"))):
            yield Run(tuple(goes), tuple(comes))
            goes, comes = [], []
        if line is not None:
            side = stays if line.startswith(b" ") else goes if line.startswith(b"-") else comes
            side.append(line[1:])


def changed_words(old: bytes, new: bytes) -> list[tuple[int, int, int, int]]:
    """Where two texts differ, word by word: from and to in the old, from and to in the new, in bytes."""
    olds, news = _TOKEN.findall(old), _TOKEN.findall(new)
    old_at, new_at = _offsets(olds), _offsets(news)
    return [
        (old_at[old_from], old_at[old_to], new_at[new_from], new_at[new_to])
        for old_from, old_to, new_from, new_to in changed_ranges(olds, news)
    ]


def render(hunk: Hunk) -> Iterator[bytes]:
    """A hunk as `git diff --word-diff` shows one: its lines as they are, with `[-what goes-]` and `{+what comes+}`."""
    yield from hunk.head()
    for run in runs(hunk):
        if not run.is_changed:
            yield from map(_ended, run.new)
            continue
        old, new = b"".join(map(_ended, run.old)), b"".join(map(_ended, run.new))
        found, at = b"", 0
        for old_from, old_to, new_from, new_to in changed_words(old, new):
            found += new[at:new_from]
            found += _marked(old[old_from:old_to], b"[-", b"-]") + _marked(new[new_from:new_to], b"{+", b"+}")
            at = new_to
        yield _ended(found + new[at:])


def _marked(text: bytes, begins: bytes, ends: bytes) -> bytes:
    """Every line of what changed between marks of its own; the end of a line isn't within."""
    found = b""
    for line in text.splitlines(keepends=True):
        content = line.rstrip(b"\r\n")
        found += (begins + content + ends if content else b"") + line[len(content) :]
    return found


def _ended(line: bytes) -> bytes:
    return line if line.endswith(b"\n") else line + b"\n"


def _offsets(tokens: Iterable[bytes]) -> list[int]:
    found = [0]
    for token in tokens:
        found.append(found[-1] + len(token))
    return found
