"""Renames: files that went in one place and came in another with the very same content."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from workbench.review.changeset import Change, ChangeKind
from workbench.vfs.storage import Kind


def with_renames(changes: Mapping[bytes, Change], content_of: Callable[[bytes, str], str]) -> list[Change]:
    """The changes, with each pair of a deleted and an added file of equal content made one.

    Only files that aren't empty, one to one: the same name first, then in order of path. `content_of` gives the blob of
    a deleted file, of the sort of the blob it's given, and is asked only where an added file has the same size.
    """
    kept = dict(changes)
    added: dict[str, list[Change]] = {}
    alike: dict[int, str] = {}
    for path in sorted(kept):
        new = kept[path].new
        if kept[path].kind is ChangeKind.ADDED and new is not None and new.kind is Kind.FILE and new.size and new.blob:
            added.setdefault(new.blob, []).append(kept[path])
            alike[new.size] = new.blob
    deleted: dict[str, list[Change]] = {}
    for path in sorted(kept) if added else ():
        change, old = kept[path], kept[path].old
        if change.kind is ChangeKind.DELETED and old is not None and old.kind is Kind.FILE and old.size in alike:
            blob = content_of(path, alike[old.size])
            if blob in added:
                deleted.setdefault(blob, []).append(replace(change, old=replace(old, blob=blob)))
    for blob, gone in deleted.items():
        for source, target in _pairs(gone, added[blob]):
            del kept[source.path]
            kept[target.path] = replace(target, kind=ChangeKind.RENAMED, old=source.old, renamed_from=source.path)
    return list(kept.values())


def _pairs(gone: list[Change], come: list[Change]) -> Iterator[tuple[Change, Change]]:
    by_name: dict[bytes, list[Change]] = {}
    for change in reversed(come):
        by_name.setdefault(_name(change), []).append(change)
    rest: list[Change] = []
    taken: set[bytes] = set()
    for change in gone:
        same = by_name.get(_name(change))
        if same:
            partner = same.pop()
            taken.add(partner.path)
            yield change, partner
        else:
            rest.append(change)
    yield from zip(rest, (change for change in come if change.path not in taken), strict=False)


def _name(change: Change) -> bytes:
    return change.path.rpartition(b"/")[2]
