"""Globs: which paths of a tree fit a pattern with `*`, `?`, `[...]` and `**`."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable
from typing import TypeVar

from workbench.vfs import paths
from workbench.vfs.storage import Kind

_MAGIC = re.compile(rb"[*?[]")
_ANY_DEPTH = b"**"

Place = TypeVar("Place")
"""What a listing knows of its directory, handed on to the listings of those in it."""


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Whether a name fits one component of a pattern, in which a character of several bytes counts as one."""
    match = re.compile(fnmatch.translate(_decoded(pattern))).match
    return lambda name: match(_decoded(name)) is not None


def _decoded(name: bytes) -> str:
    # Whatever the locale; a byte that isn't UTF-8 becomes a character of its own.
    return name.decode("utf-8", "surrogateescape")


def glob(
    pattern: bytes,
    kind: Callable[[bytes], Kind | None],
    entries: Callable[[bytes, Place | None], tuple[Place, list[tuple[bytes, Kind]]]],
) -> list[bytes]:
    """The paths that fit, sorted bytewise.

    `kind` tells what stands at a path, `entries` what is in a directory, given what it returned of the one above. A
    directory that vanishes meanwhile is passed over. Raises OptionsError for an impossible path, and what they raise.
    """
    segments = paths.parts(pattern)
    if not segments:
        return []
    tests = [matcher(segment) for segment in segments]
    several = segments.count(_ANY_DEPTH) > 1
    seen: set[tuple[bytes, int]] = set()
    found: set[bytes] = set()
    waiting: list[tuple[bytes, Place | None, int]] = [(b"", None, 0)]
    listed: tuple[bytes, Place, list[tuple[bytes, Kind]]] | None = None
    while waiting:
        here, above, position = waiting.pop()
        if several:
            if (here, position) in seen:
                continue
            seen.add((here, position))
        segment = segments[position]
        last = position + 1 == len(segments)
        prefix = here + b"/" if here else b""
        if not _MAGIC.search(segment):
            there = kind(prefix + segment)
            if there is not None and last:
                found.add(prefix + segment)
            elif there is Kind.DIR:
                waiting.append((prefix + segment, None, position + 1))
            continue
        if listed is None or listed[0] != here:
            try:
                listed = (here, *entries(here, above))
            except (FileNotFoundError, NotADirectoryError):
                continue
        _, place, names = listed
        if segment == _ANY_DEPTH:
            if last:
                found.update(prefix + name for name, _ in names)
            waiting.extend((prefix + name, place, position) for name, there in names if there is Kind.DIR)
            if not last:
                # The next one, while its listing is still at hand.
                waiting.append((here, above, position + 1))
            continue
        fitting = ((prefix + name, there) for name, there in names if tests[position](name))
        if last:
            found.update(path for path, _ in fitting)
        else:
            waiting.extend((path, place, position + 1) for path, there in fitting if there is Kind.DIR)
    return sorted(found)
