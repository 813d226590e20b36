"""Files that moved and changed a little on the way, found as git finds them (its diffcore-rename.c), for people to look at.

A change set knows exact renames alone: what lands doesn't depend on a guess.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace

from workbench.review.changeset import Change, ChangeKind
from workbench.review.diff import BINARY_PROBE, Contents
from workbench.review.lines import split
from workbench.vfs import paths
from workbench.vfs.storage import Kind, Storage

_LEAST = 50
"""Percent of the bigger file that both have."""
_LEAST_OF_NAME = 75
"""The same, where a name that occurs once on each side already speaks for it."""
_BLOCK = 64
_SIZE = 1 << 20
_PAIRS = 10_000
"""Bytes of a file, and pairs of files, beyond which nothing is looked for, as git has a limit."""

_Blocks = Counter[bytes]


def with_similar_renames(changes: Iterable[Change], lower: Storage, store: Contents) -> tuple[Change, ...]:
    """The changes, with a file that goes and a similar one that comes made into one rename. Raises as `diff.unified`."""
    every = tuple(changes)
    going = [one for one in every if one.kind is ChangeKind.DELETED and one.old and one.old.kind is Kind.FILE]
    coming = [one for one in every if one.kind is ChangeKind.ADDED and one.new and one.new.kind is Kind.FILE]
    if not going or not coming or len(going) * len(coming) > _PAIRS:
        return every
    old = {change.path: _blocks_of_lower(change, lower) for change in going}
    new = {change.path: _blocks_of_store(change, store) for change in coming}
    scores = {
        (before.path, after.path): score
        for before in going
        for after in coming
        if (score := _similarity(old[before.path], new[after.path], _bigger(before, after))) >= _LEAST
    }
    pairs = _paired(scores, going, coming)
    by_path = {change.path: change for change in going}
    gone = {before for before, _ in pairs.values()}
    return tuple(
        _rename(by_path[pairs[change.path][0]], change, pairs[change.path][1]) if change.path in pairs else change
        for change in every
        if change.path not in gone or change.kind is not ChangeKind.DELETED
    )


def _bigger(before: Change, after: Change) -> int:
    return max(state.size for state in (before.old, after.new) if state is not None)


def _paired(
    scores: dict[tuple[bytes, bytes], int], going: list[Change], coming: list[Change]
) -> dict[bytes, tuple[bytes, int]]:
    """By the new path the old one, and how similar they are."""
    names = [Counter(paths.name(change.path) for change in side) for side in (going, coming)]

    def is_named(before: bytes, after: bytes) -> bool:
        name = paths.name(before)
        return name == paths.name(after) and all(count[name] == 1 for count in names)

    def rank(pair: tuple[bytes, bytes]) -> tuple[bool, int, bool, tuple[bytes, bytes]]:
        before, after = pair
        score = scores[pair]
        is_same_name = paths.name(before) == paths.name(after)
        return not (is_named(before, after) and score >= _LEAST_OF_NAME), -score, not is_same_name, pair

    found: dict[bytes, tuple[bytes, int]] = {}
    gone: set[bytes] = set()
    for before, after in sorted(scores, key=rank):
        if before not in gone and after not in found:
            found[after] = before, scores[before, after]
            gone.add(before)
    return found


def _rename(before: Change, after: Change, similarity: int) -> Change:
    return replace(
        after,
        kind=ChangeKind.RENAMED,
        old=before.old,
        renamed_from=before.path,
        similarity=similarity,
        risk=after.risk or before.risk,
    )


def _blocks_of_lower(change: Change, lower: Storage) -> _Blocks:
    if change.old is None or change.old.size > _SIZE:
        return Counter()
    try:
        with lower.open(change.path) as file:
            return _blocks(file.read())
    except PermissionError:
        return Counter()


def _blocks_of_store(change: Change, store: Contents) -> _Blocks:
    if change.new is None or change.new.size > _SIZE:
        return Counter()
    with store.open(change.new.blob) as file:
        return _blocks(file.read())


def _blocks(content: bytes) -> _Blocks:
    """How many bytes there are of each line, or of each 64 bytes of a longer one."""
    if b"\0" not in content[:BINARY_PROBE]:
        content = content.replace(b"\r\n", b"\n")
    found: _Blocks = Counter()
    for line in split(content):
        for at in range(0, len(line), _BLOCK):
            block = line[at : at + _BLOCK]
            found[block] += len(block)
    return found


def _similarity(old: _Blocks, new: _Blocks, size: int) -> int:
    """In percent of a size."""
    return (old & new).total() * 100 // size if size else 0
