"""Upper layers on paper: one over another as one, and a part of one in another.

Only manifests are computed here, nothing is touched. A layer's entries are by path in bytewise order, the root's always
there, and so is the directory of every other one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from workbench.checkpoints.manifest import Entry
from workbench.errors import CheckpointError
from workbench.vfs import paths
from workbench.vfs.storage import Kind

Entries = Mapping[bytes, Entry]


def stacked(top: Entries, below: Entries) -> dict[bytes, Entry]:
    """The one layer that shows, over any lower, what `top` shows over `below` over that lower.

    Where both have a directory, `top`'s metadata stands.
    """
    found: dict[bytes, Entry] = {}
    hidden: dict[bytes, bool] = {}
    """By path, whether what `below` has under it is out of sight."""
    # An inode of one layer is none of the other's.
    shift = max((entry.link_group for entry in top.values()), default=0)
    for path in sorted(top.keys() | below.keys()):
        above = bool(path) and hidden.get(paths.parent(path), True)
        over, under = top.get(path), None if above else below.get(path)
        if over is None:
            if under is not None:
                found[path] = under._replace(link_group=under.link_group + shift) if under.link_group else under
                hidden[path] = False
            continue
        if over.kind is Kind.DIR and under is not None and (under.kind is not Kind.DIR or under.opaque):
            over = over._replace(opaque=True)
            hides = under.kind is not Kind.DIR or bool(top[path].opaque)
        else:
            hides = above or over.kind is not Kind.DIR or over.opaque
        found[path] = over
        hidden[path] = hides
    return found


def view_below(entries: Entries, path: bytes) -> bool:
    """Whether the lower shows at a path, as far as what stands above it in the layer is concerned."""
    while path:
        path = paths.parent(path)
        entry = entries.get(path)
        if entry is not None and (entry.kind is not Kind.DIR or entry.opaque):
            return False
    return True


@dataclass(frozen=True, slots=True)
class LowerView:
    """What has to be known of the lower: a directory's entry as if it were copied up, None where there's none, and the
    names in one."""

    directory: Callable[[bytes], Entry | None]
    names: Callable[[bytes], list[bytes]]


def without_idle_whiteouts(entries: Entries, lower: LowerView) -> dict[bytes, Entry]:
    """The entries without the whiteouts in directories of the layer's alone: they hide nothing, and the kernel lists them.

    Raises OSError of the lower's.
    """
    merged: dict[bytes, bool] = {b"": not entries[b""].opaque}
    found: dict[bytes, Entry] = {}
    for path, entry in entries.items():
        if entry.kind is Kind.WHITEOUT:
            above = paths.parent(path)
            if above not in merged:
                merged[above] = view_below(entries, path) and lower.directory(above) is not None
            if not merged[above]:
                continue
        found[path] = entry
    return found


def grafted(now: Entries, target: Entries, path: bytes, lower: LowerView) -> dict[bytes, Entry]:
    """`now`, but at and below `path` with what `target` shows there, both over the same lower.

    Directories above come along where they have to. Raises CheckpointError (checkpoint_failed) where something that isn't
    a directory stands in the way, OSError of the lower's.
    """
    if not path:
        return dict(target)
    found = {each: entry for each, entry in now.items() if each != path and not paths.is_below(each, path)}
    piece = {each: entry for each, entry in target.items() if each == path or paths.is_below(each, path)}
    shows_lower = view_below(target, path)
    if (above := paths.parent(path)) and lower.directory(above) is None:
        # Nothing of the lower's is to be let through, nor to be hidden.
        if path not in piece:
            return found
        shows_lower = False
    if not shows_lower and path in piece and piece[path].kind is Kind.DIR:
        piece[path] = piece[path]._replace(opaque=True)
    if not shows_lower and path not in piece:
        # Nothing was there, whatever the lower has.
        piece[path] = whiteout(path)
    # Only where the graft lets the lower through do the directories above have to.
    needs_lower = shows_lower and (path not in piece or (piece[path].kind is Kind.DIR and not piece[path].opaque))
    _open_way(found, target, path, lower, needs_lower=needs_lower, has_entries=bool(piece))
    shift = max((entry.link_group for entry in found.values()), default=0)
    for each, entry in piece.items():
        found[each] = entry._replace(link_group=entry.link_group + shift) if entry.link_group else entry
    return {each: found[each] for each in sorted(found)}


def whiteout(path: bytes) -> Entry:
    """The entry that hides whatever the lower has at a path."""
    return Entry(path, Kind.WHITEOUT, 0, 0, 0, 0, 0, 0, 0)


def _open_way(
    found: dict[bytes, Entry], target: Entries, path: bytes, lower: LowerView, *, needs_lower: bool, has_entries: bool
) -> None:
    names = paths.parts(path)
    above = [paths.join(*names[:depth]) for depth in range(1, len(names))]
    hidden = found[b""].opaque
    for number, directory in enumerate(above):
        child = above[number + 1] if number + 1 < len(above) else path
        entry = found.get(directory)
        if entry is not None and entry.kind not in (Kind.DIR, Kind.WHITEOUT):
            raise CheckpointError(
                f"'{paths.display(path)}' can't be put back alone: '{paths.display(directory)}' is no directory any more.",
                hint=f"Name that one instead: --path {paths.display(directory)}",
            )
        if entry is not None and entry.kind is Kind.DIR and not entry.opaque and not hidden:
            continue
        if entry is None and not hidden and (not has_entries or lower.directory(directory) is not None):
            if has_entries:
                found[directory] = _directory(directory, target, lower)
            continue
        like = entry if entry is not None and entry.kind is Kind.DIR else _directory(directory, target, lower)
        if not needs_lower or hidden or lower.directory(directory) is None:
            # All that is to be seen here is what the layer itself has.
            found[directory] = like._replace(opaque=True)
            hidden = True
            continue
        _let_through(found, like._replace(opaque=False), child, lower)
        if child != path and child not in found:
            # Nothing of it was to be seen, which the next turn goes on from.
            found[child] = _directory(child, target, lower)._replace(opaque=True)
    if needs_lower and hidden:
        raise CheckpointError(
            f"'{paths.display(path)}' can't be put back alone: the real workspace has no directory for it any more.",
            hint="Rewind the whole overlay, or a directory above it.",
        )


def _let_through(found: dict[bytes, Entry], directory: Entry, child: bytes, lower: LowerView) -> None:
    """Have a directory that hid the lower hide all but one of its names there."""
    found[directory.path] = directory
    for name in lower.names(directory.path):
        sibling = paths.join(directory.path, name)
        if sibling not in found:
            if sibling != child:
                found[sibling] = whiteout(sibling)
        elif found[sibling].kind is Kind.DIR:
            found[sibling] = found[sibling]._replace(opaque=True)


def _directory(path: bytes, target: Entries, lower: LowerView) -> Entry:
    entry = target.get(path)
    if entry is not None and entry.kind is Kind.DIR:
        return entry._replace(opaque=False)
    copied = lower.directory(path)
    if copied is None:
        raise CheckpointError(
            f"'{paths.display(path)}' wasn't there when that checkpoint was taken.",
            hint="Rewind the whole overlay, or a directory above it.",
        )
    return copied
