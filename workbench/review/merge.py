"""Bringing what a person changed meanwhile into an overlay: a three-way merge of each conflicting text file.

The overlay's version is ours, the real workspace's is theirs, and the base is what both departed from. What comes out is
the overlay's new version, with theirs as its new base. Where both changed the same lines it has git's conflict markers,
which are only ever in the overlay. What isn't text on both sides isn't merged: one says which version is meant.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.checkpoints.scan import Sink
from workbench.checkpoints.store import CheckpointStore
from workbench.errors import CommitError
from workbench.review import git
from workbench.review.bases import Found, base_of, content_id, look
from workbench.review.diff import BINARY_PROBE, TEXT_LIMIT
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind

_OURS, _BASE, _THEIRS = "overlay", "base", "workspace"
_MARKER = re.compile(rb"^(?:<{7} overlay|>{7} workspace)\r?$", re.MULTILINE)
_LEAVES = (Kind.FILE, Kind.SYMLINK, Kind.WHITEOUT)


@dataclass(slots=True)
class Merge:
    """What a merge made of the conflicts of a manifest.

    `merged` are paths of which both sides' changes are in `manifest` now, `marked` those of them with conflict markers,
    `taken` those for which one side was said to be meant. `unmerged` are the others, each with the reason, a word or two.
    """

    manifest: Manifest
    merged: list[bytes] = field(default_factory=list)
    marked: list[bytes] = field(default_factory=list)
    taken: list[bytes] = field(default_factory=list)
    unmerged: dict[bytes, str] = field(default_factory=dict)


def merge(
    manifest: Manifest,
    conflicting: Iterable[bytes],
    lower: LocalStorage,
    store: CheckpointStore,
    sink: Sink,
    *,
    ours: Collection[bytes] = (),
    theirs: Collection[bytes] = (),
) -> Merge:
    """Merge the conflicting paths of a manifest; contents go into `sink`.

    Paths at or below `ours` stay as the overlay has them, those at or below `theirs` become the real workspace's again.
    Raises CommitError (commit_failed) where git fails, OSError, CheckpointError.
    """
    return _Merging(manifest, lower, store, sink, ours, theirs).run(sorted(conflicting))


def has_markers(content: bytes) -> bool:
    """Whether a merge's conflict markers are in a text."""
    return _MARKER.search(content) is not None


class _Merging:
    def __init__(
        self,
        manifest: Manifest,
        lower: LocalStorage,
        store: CheckpointStore,
        sink: Sink,
        ours: Collection[bytes],
        theirs: Collection[bytes],
    ) -> None:
        self._manifest = manifest
        self._lower = lower
        self._store = store
        self._sink = sink
        self._ours = ours
        self._theirs = theirs
        self._entries = dict(manifest.entries)
        self._bases = dict(manifest.bases)

    def run(self, conflicting: Iterable[bytes]) -> Merge:
        done = Merge(self._manifest)
        for path in conflicting:
            why = self._one(path, done)
            if why:
                done.unmerged[path] = why
        entries = {path: self._entries[path] for path in sorted(self._entries)}
        done.manifest = self._manifest.with_entries(entries, {path: self._bases[path] for path in sorted(self._bases)})
        return done

    def _one(self, path: bytes, done: Merge) -> str:
        """Merge one path; why it can't be, empty where it was."""
        entry = self._entries.get(path)
        if entry is None or entry.kind not in _LEAVES:
            return "directory" if entry is None or entry.kind is Kind.DIR else "special file"
        if self._is_hidden(path):
            return "in a replaced directory"
        found = look(self._lower, path)
        if found is not None and found.stat.kind is Kind.DIR:
            return "directory"
        if _is_among(path, self._ours):
            self._bases[path] = self._base(path, found)
            done.taken.append(path)
            return ""
        if _is_among(path, self._theirs):
            del self._entries[path]
            self._bases.pop(path, None)
            done.taken.append(path)
            return ""
        if entry.kind is Kind.WHITEOUT or found is None:
            return "deleted on one side"
        if entry.kind is not Kind.FILE or found.stat.kind is not Kind.FILE:
            return "symbolic link"
        return self._file(entry, found, done)

    def _file(self, entry: Entry, found: Found, done: Merge) -> str:
        if entry.omitted or not entry.blob:
            return "not kept"
        path, before = entry.path, base_of(self._manifest, entry.path)
        mode = self._mode(entry, found, before)
        if mode is None:
            return "mode"
        if max(entry.size, found.stat.size) > TEXT_LIMIT:
            return "binary"
        ours, theirs = self._store.read(entry.blob), self._read(path)
        base = self._store.read(before.blob) if before.blob and self._store.has(before.blob) else b""
        if any(b"\0" in text[:BINARY_PROBE] for text in (ours, base, theirs)):
            return "binary"
        content, is_marked = _merged(path, ours, base, theirs)
        blob = self._sink.blob(content)
        self._entries[path] = entry._replace(
            mode=mode,
            size=len(content),
            blob=blob,
            holes=(),
            link_group=0 if blob != entry.blob else entry.link_group,
        )
        self._bases[path] = found.base(path, self._sink.blob(theirs))
        done.merged.append(path)
        if is_marked:
            done.marked.append(path)
        return ""

    def _mode(self, entry: Entry, found: Found, before: Base) -> int | None:
        theirs = found.stat.mode
        if entry.mode == theirs or (before.certainty is Certainty.KNOWN and before.mode == theirs):
            return entry.mode
        return theirs if before.certainty is Certainty.KNOWN and before.mode == entry.mode else None

    def _read(self, path: bytes) -> bytes:
        with self._lower.open(path) as file:
            return file.read()

    def _base(self, path: bytes, found: Found | None) -> Base:
        if found is None:
            return Base(path, Certainty.ABSENT)
        return found.base(path, content_id(self._lower, path, found, like=""))

    def _is_hidden(self, path: bytes) -> bool:
        """Whether a directory of the overlay above a path hides what the lower has there."""
        while path:
            path = paths.parent(path)
            entry = self._entries.get(path)
            if entry is not None and (entry.kind is not Kind.DIR or entry.opaque):
                return True
        return False


def _is_among(path: bytes, named: Collection[bytes]) -> bool:
    return any(not one or path == one or paths.is_below(path, one) for one in named)


def _merged(path: bytes, ours: bytes, base: bytes, theirs: bytes) -> tuple[bytes, bool]:
    """What git's merge-file makes of three texts, and whether it has conflict markers."""
    with tempfile.TemporaryDirectory(prefix="workbench-merge-") as directory:
        for name, content in ((_OURS, ours), (_BASE, base), (_THEIRS, theirs)):
            with open(os.path.join(directory, name), "wb") as file:
                file.write(content)
        labels = [word for name in (_OURS, _BASE, _THEIRS) for word in ("-L", name)]
        done = git.run(["merge-file", "-p", "-q", *labels, _OURS, _BASE, _THEIRS], cwd=directory)
    # The number of conflicts, up to 127; an error is 255.
    if not 0 <= done.returncode <= 127:
        said = done.stderr.decode(errors="replace").strip()
        raise CommitError(f"git couldn't merge '{paths.display(path)}': {said or done.returncode}.")
    return done.stdout, done.returncode > 0
