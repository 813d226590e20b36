"""What some paths stand for in a change set: of a rename both names, and a new directory with all that was new in it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from workbench.review.changeset import Change, ChangeKind, ChangeSet
from workbench.vfs import paths


def is_at(path: bytes, top: bytes) -> bool:
    """Whether a path is `top`, or lies below it; everything lies below the root."""
    return not top or path == top or paths.is_below(path, top)


def at(changes: ChangeSet, named: Sequence[bytes]) -> list[Change]:
    """The changes that a listing shows of those at and below some paths, renames by either name."""
    return [
        change for change in changes.shown if any(is_at(step, path) for step, _, _ in change.steps() for path in named)
    ]


def concerned(changes: ChangeSet, named: Sequence[bytes]) -> list[bytes]:
    """The paths themselves, and with them the other names of what was renamed there, and the new directories in which
    nothing else is new."""
    found = [*named, *(step for change in at(changes, named) for step, _, _ in change.steps())]
    going = set(found)
    kept = set[bytes]()
    for change in changes.shown:
        if change.path not in going:
            kept |= _above(step for step, _, _ in change.steps())
    kept |= _above(left.path for left in changes.left if not any(is_at(left.path, path) for path in named))
    above = _above(found)
    emptied = [
        change.path
        for change in changes.changes
        if change.implied and change.kind is ChangeKind.ADDED and change.path in above and change.path not in kept
    ]
    return [*found, *emptied]


def _above(found: Iterable[bytes]) -> set[bytes]:
    above = set[bytes]()
    for path in found:
        while (path := paths.parent(path)) and path not in above:
            above.add(path)
    return above
