"""Globs: which paths of a tree fit a pattern with `*`, `?`, `[...]` and `**`."""

from __future__ import annotations

import fnmatch
import re
from bisect import bisect_left
from collections.abc import Callable
from typing import TypeVar

from workbench.vfs import paths
from workbench.vfs.storage import BY_NAME, Kind

_MAGIC = re.compile(rb"[*?[]")
_CHARACTERS = re.compile(rb"[?[]")
_ANY_DEPTH = b"**"

Place = TypeVar("Place")
"""What a listing knows of its directory, handed on to the listings of those in it."""


def matcher(pattern: bytes) -> Callable[[bytes], bool]:
    """Whether a name fits one component of a pattern, in which a character of several bytes counts as one."""
    if not _CHARACTERS.search(pattern) and _is_text(pattern):
        # Then it's all the same whether characters or bytes are compared.
        matches = re.compile(fnmatch.translate(pattern.decode("latin-1")).encode("latin-1")).match
        return lambda name: matches(name) is not None
    match = re.compile(fnmatch.translate(_decoded(pattern))).match
    return lambda name: match(_decoded(name)) is not None


def _is_text(pattern: bytes) -> bool:
    try:
        pattern.decode()
    except UnicodeDecodeError:
        return False
    return True


def _decoded(name: bytes) -> str:
    # Whatever the locale; a byte that isn't UTF-8 becomes a character of its own.
    return name.decode("utf-8", "surrogateescape")


def glob(
    pattern: bytes,
    kind: Callable[[bytes], Kind | None],
    entries: Callable[[bytes, Place | None], tuple[Place, list[tuple[bytes, Kind]]]],
    visible: Callable[[bytes, list[tuple[bytes, Kind]]], list[tuple[bytes, Kind]]],
) -> list[bytes]:
    """The paths that fit, sorted bytewise.

    `kind` tells what stands at a path, `entries` what is in a directory, sorted by name, given what it returned of the
    one above; `visible` which of it fits where it isn't named. A directory that vanishes meanwhile is passed over.
    Raises OptionsError for an impossible path, and what they raise.
    """
    segments = paths.parts(pattern)
    if not segments:
        return []
    tests = [matcher(segment) if _MAGIC.search(segment) else None for segment in segments]
    several = segments.count(_ANY_DEPTH) > 1
    seen: set[tuple[bytes, int]] = set()
    found: set[bytes] = set()
    waiting: list[tuple[bytes, Place | None, int]] = [(b"", None, 0)]
    listed: tuple[bytes, Place, list[tuple[bytes, Kind]]] | None = None
    directory = Kind.DIR
    while waiting:
        here, above, position = waiting.pop()
        if several:
            if (here, position) in seen:
                continue
            seen.add((here, position))
        segment = segments[position]
        fits = tests[position]
        last = position + 1 == len(segments)
        prefix = here + b"/" if here else b""
        if fits is None:
            path = prefix + segment
            there = _named(listed[2], segment) if listed is not None and listed[0] == here else kind(path)
            if there is not None and last:
                found.add(path)
            elif there is directory:
                waiting.append((path, None, position + 1))
            continue
        if listed is None or listed[0] != here:
            try:
                listed = (here, *entries(here, above))
            except (FileNotFoundError, NotADirectoryError):
                continue
        _, place, merged = listed
        names = visible(here, merged)
        if segment == _ANY_DEPTH:
            if last:
                found.update([prefix + name for name, _ in names])
            waiting.extend([(prefix + name, place, position) for name, there in names if there is directory])
            if not last:
                # The next one, while its listing is still at hand.
                waiting.append((here, above, position + 1))
        elif last:
            found.update([prefix + name for name, _ in names if fits(name)])
        else:
            waiting.extend(
                [(prefix + name, place, position + 1) for name, there in names if there is directory and fits(name)]
            )
    return sorted(found)


def _named(entries: list[tuple[bytes, Kind]], name: bytes) -> Kind | None:
    at = bisect_left(entries, name, key=BY_NAME)
    return entries[at][1] if at < len(entries) and entries[at][0] == name else None
