"""The upper layer that shows over the lower exactly what a change set would make of it, and nothing else."""

from __future__ import annotations

import errno

from workbench.checkpoints.manifest import Entry, Manifest
from workbench.review.bases import look, steps_of
from workbench.review.changeset import ChangeSet, State
from workbench.review.nearest import Nearest
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind


def layer_of(changes: ChangeSet, manifest: Manifest, lower: LocalStorage) -> Manifest:
    """The layer, as a manifest without bases. `manifest` is that of the checkpoint which the change set was made from.

    Raises OSError: ENOENT where the lower lacks a directory that something changes in.
    """
    entries: dict[bytes, Entry] = {}
    gone: Nearest[bool] = Nearest()
    for path, (old, new) in steps_of(changes.changes).items():
        above = path
        missing = []
        while above and (above := paths.parent(above)) not in entries:
            missing.append(above)
        if not gone.above(path):
            for directory in reversed(missing):
                entries[directory] = _directory(directory, manifest, lower)
        if new is not None:
            entries[path] = _entry(path, new, manifest)
        elif not gone.above(path):
            entries[path] = Entry(path, Kind.WHITEOUT, 0, 0, 0, 0, 0, 0, 0)
        # What goes with all that is below it hides that, and so does what takes its place.
        if old is not None and old.kind is Kind.DIR and (new is None or new.kind is not Kind.DIR):
            gone[path] = True
    if b"" not in entries:
        entries[b""] = _directory(b"", manifest, lower)
    return Manifest({path: entries[path] for path in sorted(entries)})


def _entry(path: bytes, state: State, manifest: Manifest) -> Entry:
    known = manifest.entries.get(path)
    if known is None or known.kind is not state.kind:
        return Entry(path, state.kind, state.mode, 0, 0, state.size, 0, 0, 0, blob=state.blob)
    holes = known.holes if known.blob == state.blob else ()
    return known._replace(
        mode=state.mode, size=state.size, blob=state.blob, holes=holes, link_group=0, opaque=False, omitted=""
    )


def _directory(path: bytes, manifest: Manifest, lower: LocalStorage) -> Entry:
    """A directory of the lower as it's copied up."""
    found = look(lower, path)
    if found is None or found.stat.kind is not Kind.DIR:
        raise paths.error(errno.ENOENT, path)
    stat = found.stat
    known = manifest.entries.get(path)
    made = Entry(path, Kind.DIR, stat.mode, stat.uid, stat.gid, 0, stat.mtime_ns, stat.ctime_ns, 0)
    return made._replace(xattrs=known.xattrs) if known is not None else made
