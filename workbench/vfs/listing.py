"""What a merged view has at a path, for somebody to look at: with metadata, and a mark for what the overlay has."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from workbench.vfs import paths
from workbench.vfs.merged import MergedView
from workbench.vfs.storage import Kind, Stat


@dataclass(frozen=True, slots=True)
class Listed:
    """One entry, at `path` from the root; `target` is where a symlink leads.

    `mark` is `A` for what the lower layer hasn't got, `M` for what the upper has a copy of its own of, else empty.
    """

    path: bytes
    stat: Stat
    target: bytes
    mark: str


def listing(merged: MergedView, path: bytes, *, everything: bool = False) -> list[Listed]:
    """What is in a directory, sorted by name, or the one entry that `path` is.

    What listings hide is left out, unless `everything`, or it's named. Raises OSError as `MergedView.list`.
    """
    if merged.stat(path).kind is not Kind.DIR:
        return [_listed(merged, path)]
    names = merged.list(path)
    if everything and not path and merged.exists(merged.scratch):
        names = sorted({*names, merged.scratch})
    found = []
    for name in names:
        # What goes away meanwhile isn't there.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found.append(_listed(merged, paths.join(path, name)))
    return found


def _listed(merged: MergedView, path: bytes) -> Listed:
    found = merged.stat(path)
    own = merged.upper.look(path)
    mark = "" if own.kind is None else "M" if own.lower and _has(merged, path) else "A"
    return Listed(path, found, merged.readlink(path) if found.kind is Kind.SYMLINK else b"", mark)


def _has(merged: MergedView, path: bytes) -> bool:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        merged.lower.stat(path)
        return True
    return False
