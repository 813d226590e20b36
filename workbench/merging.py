"""Merging a person's concurrent edits into one overlay, and what of that is still to be resolved."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator

from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.store import CheckpointStore
from workbench.errors import CommitError
from workbench.mounting import Mounting
from workbench.protocol.records import MergeRecord
from workbench.review.changeset import ChangeSet
from workbench.review.diff import TEXT_LIMIT
from workbench.review.merge import Merge, has_markers, merge
from workbench.vfs.local import LocalStorage
from workbench.vfs.statefile import write_json
from workbench.vfs.storage import Kind

_FILE = "merge.json"
"""Where it stands, a merge has been made whose conflict markers may still be somewhere."""


class Merging:
    """The merges of one overlay."""

    def __init__(self, overlay_path: str, lower: LocalStorage, store: CheckpointStore, mounting: Mounting) -> None:
        self._file = os.path.join(overlay_path, _FILE)
        self._lower = lower
        self._store = store
        self._mounting = mounting

    def run(
        self,
        now: Manifest,
        conflicting: Iterable[bytes],
        write: Callable[[Manifest], object],
        *,
        ours: Collection[bytes],
        theirs: Collection[bytes],
    ) -> Merge:
        """Merge the conflicting paths of what the overlay holds `now`, and `write` what comes out.

        The overlay's lock is held, and nothing is mounted. Raises as `merge` and `write`.
        """
        with self._store.adding() as sink:
            done = merge(now, conflicting, self._lower, self._store, sink, ours=ours, theirs=theirs)
        if done.merged or done.taken:
            # First: nobody looks for markers before.
            write_json(self._file, MergeRecord(marked=tuple(done.marked)))
            write(done.manifest)
        return done

    def unresolved(self, manifest: Manifest) -> list[bytes]:
        """The paths that still have conflict markers of a merge in them, under whatever name. Raises OSError,
        CheckpointError."""
        files = ((path, entry.blob, entry.size) for path, entry in manifest.entries.items() if entry.kind is Kind.FILE)
        return list(self._with_markers(files))

    def require_resolved(self, changes: ChangeSet) -> None:
        """Raise CommitError (unresolved_conflicts) where something with conflict markers of a merge would land."""
        states = ((change.path, change.new) for change in changes.changes)
        files = ((path, new.blob, new.size) for path, new in states if new is not None and new.kind is Kind.FILE)
        if found := list(self._with_markers(files)):
            raise CommitError(
                "Conflict markers of a merge would land; nothing was applied.",
                code="unresolved_conflicts",
                paths=found,
                hint="Edit them in the sandbox (`workbench exec`, `workbench shell`), and review again.",
            )

    def _with_markers(self, files: Iterable[tuple[bytes, str, int]]) -> Iterator[bytes]:
        if not os.path.exists(self._file):
            return
        for path, blob, size in files:
            if blob and size <= TEXT_LIMIT and has_markers(self._store.read(blob)):
                yield path
