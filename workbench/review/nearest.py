"""What is known of the nearest path above another one, at a cost that doesn't grow with the depth.

An agent may nest thousands of levels. Whoever walks up from each of them to the root does thousands of steps for each of
thousands of paths that are themselves as long, which takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Generic, TypeVar

_Known = TypeVar("_Known")


class Nearest(Generic[_Known]):
    """A mapping from paths to anything, asked for the nearest one at or above a path; what was asked is remembered.

    What is set must be set before anything at or below it is asked for.
    """

    def __init__(self, known: Mapping[bytes, _Known] | None = None) -> None:
        self._known: dict[bytes, _Known | None] = dict(known or {})

    def __setitem__(self, path: bytes, value: _Known) -> None:
        self._known[path] = value

    def at(self, path: bytes) -> _Known | None:
        """What is known of the nearest path at or above `path`, None where nothing is."""
        passed = []
        while path and path not in self._known:
            passed.append(path)
            path = path.rpartition(b"/")[0]
        found = self._known.get(path)
        self._known.update(dict.fromkeys(passed, found))
        return found

    def above(self, path: bytes) -> _Known | None:
        """As `at`, of the directory that `path` lies in; None for the root."""
        return self.at(path.rpartition(b"/")[0]) if path else None


def with_ancestors(paths: Iterable[bytes]) -> set[bytes]:
    """The paths, and every directory above them up to the root."""
    found: set[bytes] = set()
    for path in paths:
        here = path
        # Where one is there, so are those above it.
        while here not in found:
            found.add(here)
            here = here.rpartition(b"/")[0]
    return found
