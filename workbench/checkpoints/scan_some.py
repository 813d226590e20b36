"""Looking at a part of an upper layer, where it's known that nothing else was written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from workbench.checkpoints.manifest import Entry
from workbench.checkpoints.parts import Recorded
from workbench.checkpoints.scan import Budget, LayerWalk, Sink, ancestors
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper


def scan_some(
    upper: LocalUpper,
    sink: Sink,
    touched: Iterable[bytes],
    known: Recorded,
    *,
    boot_id: str,
    offline: bool = False,
    budget: Budget | None = None,
) -> dict[bytes, Entry | None] | None:
    """What differs from `known` in an upper layer that was written at and below the paths `touched` alone, since.

    By path, in bytewise order, None for what is gone. Looked at is what is at and below those paths, and the directories
    above them; None where what else is there would have to be known: of names that share an inode, of what is left out,
    of a layer near its budget. Arguments else as of `scan`. Raises as it does.
    """
    budget = budget or Budget()
    walk = LayerWalk(upper, sink, offline, budget)
    if known.boot_id == boot_id:
        walk.trust(known.entry, known.scanned_ns)
    walk.begin_at(known.totals)
    tops = _outermost(touched)
    found = None if known.totals.omitted or b"" in tops else walk.run_below(tops)
    if found is None or not _is_way_the_same(tops, found, known):
        return None
    were = [top + b"/" for top in tops if (before := known.entry(top)) is not None and before.kind is Kind.DIR]
    below = [path for path in known.whole().entries if path.startswith(tuple(were))] if were else []
    changes: dict[bytes, Entry | None] = {}
    for path in sorted({*found, *tops, *below}):
        before, now = known.entry(path), found.get(path)
        if (before is not None and before.link_group) or (now is not None and now.omitted):
            return None
        if before != now:
            changes[path] = now
    return changes


def _is_way_the_same(tops: Iterable[bytes], found: Mapping[bytes, Entry], known: Recorded) -> bool:
    """Whether the directories above some paths are those that they were, or new."""
    for above in {above for top in tops for above in ancestors(top)}:
        before, now = known.entry(above), found.get(above)
        if before is not None and (now is None or (before.kind, before.inode) != (Kind.DIR, now.inode)):
            return False
    return True


def _outermost(touched: Iterable[bytes]) -> list[bytes]:
    """Some paths without those that are below another."""
    found: list[bytes] = []
    # A NUL sorts before all else: a directory comes right before what is below it.
    for path in sorted(touched, key=lambda path: path.replace(b"/", b"\0")):
        if not found or not path.startswith(found[-1] + b"/"):
            found.append(path)
    return found
