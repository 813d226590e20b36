"""Finding things in the merged view as people do: globs, text and trees, without what the ignore rules ignore."""

from __future__ import annotations

import errno
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from workbench.errors import OptionsError
from workbench.vfs import paths, patterns
from workbench.vfs.ignore_patterns import PatternList
from workbench.vfs.merged import MergedView
from workbench.vfs.storage import Kind

_RULES_SIZE = 256 << 10
"""Bytes of a `.gitignore` that are read."""

_LINE_SIZE = 1 << 20
"""Bytes of a line that are searched at once; a longer one is searched in pieces of it."""

_BINARY_SIZE = 8 << 10
"""A file with a NUL in so many bytes from its beginning is binary; git takes 8,000 of them (`xdiff-interface.c`)."""

_LEVELS = 2
_LISTED = 100
"""How many levels down, and in how many directories of each, `ignored_directories` looks; how many it names."""

_NO_KINDS = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EINVAL, errno.EISDIR})
"""What opening says of a file that has vanished, or become something else, since it was listed."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths, sorted bytewise; `complete` unless there were more than asked for."""

    paths: tuple[bytes, ...]
    complete: bool


@dataclass(frozen=True, slots=True)
class Match:
    """A line that matches: its file, its number from 1, and its text without the newline.

    `cut` says that it's a part of the line, the one with the match.
    """

    path: bytes
    line: int
    text: bytes
    cut: bool


@dataclass(frozen=True, slots=True)
class Matches:
    """Matching lines, by file in the order of a walk; `complete` unless there were more than asked for.

    `binary` counts the files that weren't searched as text isn't in them; `unread` are those that can't be read.
    """

    matches: tuple[Match, ...]
    complete: bool
    binary: int
    unread: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Tree:
    """A tree as lines for people; `complete` unless something was left out for a limit."""

    lines: tuple[str, ...]
    complete: bool


def glob(view: MergedView, pattern: bytes, *, ignored: bool = False, limit: int = 1000) -> Paths:
    """The paths that fit a pattern as `MergedView.glob` has it, without ignored ones unless `ignored`.

    Ignored is what the `.gitignore` files of the view say, and `.git`; a component without a wildcard names its path all
    the same. At most `limit` paths come back. Raises OptionsError.
    """
    rules = _Rules(view)

    def fitting(path: bytes, entries: list[tuple[bytes, Kind]]) -> list[tuple[bytes, Kind]]:
        return entries if ignored else [each for each in entries if not rules.ignores(path, *each)]

    found = view.glob(pattern, fitting)
    return Paths(tuple(found[:limit]), len(found) <= limit)


def grep(
    view: MergedView,
    pattern: bytes,
    path: bytes = b"",
    *,
    names: bytes = b"*",
    literal: bool = False,
    ignore_case: bool = False,
    ignored: bool = False,
    limit: int = 200,
    columns: int = 400,
    among: Collection[bytes] | None = None,
) -> Matches:
    """The lines that match a regular expression (Python's, over bytes), or that hold it where it's `literal`.

    `path` is a file, or a directory to search below, symlinks not followed; `names` a pattern for the last component of
    what is searched there. At most `limit` lines come back, of each at most `columns` bytes around the match. Files are
    streamed. Below a directory only those `among` some are looked at, where it's given: of all others somebody knows
    that they can be read, and hold neither a matching line nor a NUL. Raises OptionsError for an expression that isn't
    one, FileNotFoundError, NotADirectoryError.
    """
    expression = compiled(pattern, literal=literal, ignore_case=ignore_case)
    matches: list[Match] = []
    unread: list[bytes] = []
    binary = 0
    for file in _files(view, path, names, ignored, among):
        try:
            found = _search(view, file, expression, columns)
            for match in found:
                if len(matches) == limit:
                    return Matches(tuple(matches), False, binary, tuple(unread))
                matches.append(match)
        except _BinaryFileError:
            binary += 1
        except OSError as error:
            if error.errno not in _NO_KINDS:
                unread.append(file)
    return Matches(tuple(matches), True, binary, tuple(unread))


def compiled(pattern: bytes, *, literal: bool = False, ignore_case: bool = False) -> re.Pattern[bytes]:
    """The expression that `grep` looks for. Raises OptionsError."""
    try:
        return re.compile(re.escape(pattern) if literal else pattern, re.IGNORECASE if ignore_case else 0)
    except re.error as error:
        raise OptionsError(
            f"The pattern isn't a regular expression: {error}.", hint="Correct it, or search for it literally."
        ) from error


def tree(
    view: MergedView, path: bytes = b"", *, depth: int = 3, width: int = 50, limit: int = 400, ignored: bool = False
) -> Tree:
    """What is below a directory, a line each, two spaces deeper for each level, a `/` after directories.

    To `depth` levels, `width` entries of each directory and `limit` lines in all. What is left out is counted. Raises
    FileNotFoundError, NotADirectoryError.
    """
    rules = _Rules(view)
    lines: list[str] = []
    complete = True
    waiting: list[tuple[int, bytes, Kind | None, int]] = [(0, path, None, 0)]
    while waiting:
        level, here, kind, left_out = waiting.pop()
        if len(lines) == limit:
            return Tree(tuple(lines), False)
        if left_out:
            lines.append("  " * (level - 1) + f"... {left_out} more")
            complete = False
            continue
        if kind is not None:
            lines.append("  " * (level - 1) + _shown(view, here, kind))
        if kind not in (None, Kind.DIR):
            continue
        try:
            entries = view.entries(here)
        except (FileNotFoundError, NotADirectoryError):
            if kind is None:
                raise
            continue
        entries = entries if ignored else [each for each in entries if not rules.ignores(here, *each)]
        if level == depth and entries:
            waiting.append((level + 1, here, None, len(entries)))
            continue
        if len(entries) > width:
            waiting.append((level + 1, here, None, len(entries) - width))
        waiting.extend((level + 1, paths.join(here, name), below, 0) for name, below in reversed(entries[:width]))
    return Tree(tuple(lines), complete)


def _shown(view: MergedView, path: bytes, kind: Kind) -> str:
    shown = paths.display(paths.name(path))
    if kind is Kind.DIR:
        return f"{shown}/"
    if kind is not Kind.SYMLINK:
        return shown
    try:
        return f"{shown} -> {paths.display(view.readlink(path))}"
    except OSError:
        # It has vanished, or become something else.
        return shown


def overlaid(view: MergedView, path: bytes, *, ignored: bool) -> list[bytes]:
    """What the upper layer alone has below a directory, but directories, without what `grep` wouldn't come by."""
    rules = _Rules(view)
    found: list[bytes] = []
    waiting = [path]
    while waiting:
        here = waiting.pop()
        try:
            entries = view.upper.entries(here)
        except (FileNotFoundError, NotADirectoryError):
            continue
        for name, kind in entries:
            below = paths.join(here, name)
            if (ignored or not rules.ignores(here, name, kind)) and view.is_listed(below, path):
                (waiting if kind is Kind.DIR else found).append(below)
    return found


def ignored_directories(view: MergedView, path: bytes) -> list[bytes]:
    """Ignored directories below one, relative to it: those near the top, where the big ones mostly are."""
    rules = _Rules(view)
    found: list[bytes] = []
    waiting = [path]
    for _ in range(_LEVELS):
        below: list[bytes] = []
        for here in waiting[:_LISTED]:
            try:
                entries = view.entries(here)
            except (FileNotFoundError, NotADirectoryError):
                # It has vanished, or become something else.
                continue
            for name, kind in entries:
                if kind is Kind.DIR:
                    (found if rules.ignores(here, name, kind) else below).append(paths.join(here, name))
        waiting = below
    base = len(paths.parts(path))
    return [b"/".join(paths.parts(each)[base:]) for each in found[:_LISTED]]


def _files(
    view: MergedView, path: bytes, names: bytes, ignored: bool, among: Collection[bytes] | None
) -> Iterator[bytes]:
    kind = view.stat(path).kind
    if kind is not Kind.DIR:
        yield path
        return
    fits = patterns.matcher(names)
    rules = _Rules(view)
    if among is not None:
        for file in sorted(among, key=_turn):
            if fits(paths.name(file)) and view.is_listed(file, path) and (ignored or not rules.ignore(file, path)):
                yield file
        return
    for here, directories, files in view.walk(path):
        if not ignored:
            directories[:] = [name for name in directories if not rules.ignores(here, name, Kind.DIR)]
            files = [name for name in files if not rules.ignores(here, name, Kind.FILE)]
        yield from (paths.join(here, name) for name in files if fits(name))


def _turn(path: bytes) -> list[tuple[bool, bytes]]:
    """What paths are sorted by into the order of a walk, which has a directory's files before its directories."""
    *above, name = paths.parts(path)
    return [*((True, each) for each in above), (False, name)]


class _BinaryFileError(Exception):
    pass


def _search(view: MergedView, path: bytes, expression: re.Pattern[bytes], columns: int) -> Iterator[Match]:
    with view.open(path) as file:
        if b"\0" in file.read(_BINARY_SIZE):
            raise _BinaryFileError
    with view.open(path) as file:
        number, continues = 1, False
        while piece := file.readline(_LINE_SIZE):
            ends = piece.endswith(b"\n")
            text = piece.removesuffix(b"\n")
            if found := expression.search(text.removesuffix(b"\r")):
                part = continues or (not ends and len(piece) == _LINE_SIZE)
                yield _match(path, number, text, found.start(), columns, part)
            continues = not ends
            number += ends


def _match(path: bytes, number: int, text: bytes, at: int, columns: int, part: bool) -> Match:
    if len(text) <= columns:
        return Match(path, number, text, part)
    start = max(0, min(at - columns // 4, len(text) - columns))
    return Match(path, number, text[start : start + columns], True)


class _Rules:
    """What the `.gitignore` files of a view ignore, from its root down; the nearest file that has a say decides."""

    def __init__(self, view: MergedView) -> None:
        self._view = view
        self._of: dict[bytes, tuple[tuple[int, PatternList], ...]] = {}

    def ignores(self, directory: bytes, name: bytes, kind: Kind) -> bool:
        """Whether an entry of a directory that isn't itself ignored is."""
        if name == b".git":
            return True
        path = paths.join(directory, name)
        for base, listed in self._sources(directory):
            said = listed.match(path[base:], name, is_dir=kind is Kind.DIR)
            if said is not None:
                return said
        return False

    def ignore(self, path: bytes, top: bytes) -> bool:
        """Whether a file below a directory is ignored, or a directory on the way down to it."""
        names = paths.parts(path)
        last = len(names) - 1
        return any(
            self.ignores(b"/".join(names[:at]), names[at], Kind.DIR if at < last else Kind.FILE)
            for at in range(len(paths.parts(top)), len(names))
        )

    def _sources(self, directory: bytes) -> tuple[tuple[int, PatternList], ...]:
        missing = []
        at = directory
        while at not in self._of and at:
            missing.append(at)
            at = paths.parent(at)
        found = self._of[at] if at in self._of else self._remember(at, ())
        for below in reversed(missing):
            found = self._remember(below, found)
        return found

    def _remember(
        self, directory: bytes, above: tuple[tuple[int, PatternList], ...]
    ) -> tuple[tuple[int, PatternList], ...]:
        try:
            with self._view.open(paths.join(directory, b".gitignore")) as file:
                listed = PatternList(file.read(_RULES_SIZE))
        except OSError:
            # As git: one that isn't there, or isn't a file, says nothing.
            listed = PatternList(b"")
        base = len(directory) + 1 if directory else 0
        self._of[directory] = ((base, listed), *above) if listed else above
        return self._of[directory]
