"""Make an upper layer equal to a manifest: what rewind, redo, discard and the end of a commit all do.

Everything new is first staged in `restore/` beside the layer, on the same filesystem, read from the store and checked.
Then the manifest is written there as the journal: only from then on is the layer touched, each step a rename, a removal or
a change of metadata that may be done again. Last the layer is scanned and compared, which is the proof, and the journal is
removed. A restore that was killed leaves the layer as it was, or a journal: `pending` gives its manifest, and restoring
that completes it. A power loss may take contents that weren't on disk yet, as it may those of any command; the checkpoint
still has them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from workbench.checkpoints import files, manifest_format
from workbench.checkpoints.directories import Directories
from workbench.checkpoints.layer_writer import LayerWriter
from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.checkpoints.plan import CONTENT, LINKABLE, Plan, equal_metadata, make_plan
from workbench.checkpoints.scan import Budget, Hasher, scan
from workbench.checkpoints.store import CheckpointStore
from workbench.checkpoints.system import boot_id, failing
from workbench.errors import CheckpointError
from workbench.vfs import paths
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

_STAGING = "restore"
_JOURNAL = "target"

_SETID = 0o6000


def pending(upper_path: str) -> Manifest | None:
    """The manifest of a restore of the layer at `upper_path` that was cut short, None where there is none.

    Raises CheckpointError (store_corrupt) for a journal that can't be read, OSError.
    """
    try:
        with open(os.path.join(_staging_path(upper_path), _JOURNAL), "rb") as file:
            return manifest_format.from_bytes(file.read())
    except FileNotFoundError:
        return None


def restore(
    upper_path: str,
    upper: LocalUpper,
    target: Manifest,
    store: CheckpointStore,
    *,
    current: Manifest | None = None,
    keep_omitted: bool = True,
    budget: Budget | None = None,
) -> Manifest:
    """Make the layer at `upper_path`, which is `upper`, equal to `target`; whoever calls holds its lock, unmounted.

    `current` is what a scan has just found, under the same lock, if there was one: then it isn't scanned again first. What
    a manifest omitted is left alone; with `keep_omitted` False what only the layer's own scan omits, within `budget`, is
    removed like anything else. Files that have the right content stay the same files, and the layer's own directory always
    does.

    Returns the layer's manifest, with the bases of `target`. Raises CheckpointError: store_corrupt where something that is
    needed is missing, with nothing touched; checkpoint_failed where the layer couldn't be made equal. After the latter
    restoring again, or something else, is safe.
    """
    with failing("The overlay couldn't be restored"):
        return _Restore(upper_path, upper, target, store, current, keep_omitted, budget).run()


def _staging_path(upper_path: str) -> str:
    return os.path.join(os.path.dirname(os.path.abspath(upper_path)), _STAGING)


class _Restore:
    def __init__(
        self,
        upper_path: str,
        upper: LocalUpper,
        target: Manifest,
        store: CheckpointStore,
        current: Manifest | None,
        keep_omitted: bool,
        budget: Budget | None,
    ) -> None:
        self._upper = upper
        self._target = target
        self._store = store
        self._current = current
        self._keep_omitted = keep_omitted
        self._budget = budget
        self._staging = _staging_path(upper_path)
        if not os.path.samestat(os.stat(upper_path), os.fstat(upper.root_fd)):
            raise CheckpointError("The overlay's directory isn't the one that was opened.")

    def run(self) -> Manifest:
        os.makedirs(self._staging, mode=0o700, exist_ok=True)
        self._empty_staging()
        before = self._current if self._current is not None else self._scan(None)
        plan = make_plan(before.entries, self._target.entries, keep_omitted=self._keep_omitted)
        staging_fd = os.open(self._staging, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with Directories(self._upper.root_fd) as directories:
                writer = LayerWriter(self._upper, directories, staging_fd, self._store)
                self._stage(plan, writer)
                files.replace(os.path.join(self._staging, _JOURNAL), manifest_format.to_bytes(self._target))
                self._apply(plan, before, writer)
        finally:
            os.close(staging_fd)
        self._empty_staging()
        after = self._scan(before)
        _prove(plan, after.entries, writer)
        os.unlink(os.path.join(self._staging, _JOURNAL))
        os.rmdir(self._staging)
        return replace(after, bases=self._bases(plan, after))

    def _scan(self, previous: Manifest | None) -> Manifest:
        scanned_ns = files.probe(self._staging).st_ctime_ns
        boot = boot_id()
        entries = scan(self._upper, Hasher(), boot_id=boot, previous=previous, offline=True, budget=self._budget)
        return Manifest(entries, {}, boot, scanned_ns)

    def _stage(self, plan: Plan, writer: LayerWriter) -> None:
        try:
            for number, create in enumerate(plan.create):
                if create.entry.kind in CONTENT and create.link_to is None:
                    writer.stage(create.entry, str(number))
        except BaseException:
            self._empty_staging()
            raise

    def _apply(self, plan: Plan, before: Manifest, writer: LayerWriter) -> None:
        opened = writer.open_up(entry for path, entry in before.entries.items() if path not in plan.left)
        for entry in plan.delete:
            writer.delete(entry)
        for number, create in enumerate(plan.create):
            writer.create(create, str(number))
        for entry in plan.adjust:
            writer.adjust(entry)
        for path in sorted({*plan.touched, *opened}, reverse=True):
            # A directory that only stays for what is left alone keeps the metadata it had.
            directory = before.entries.get(path) if path in plan.above_left else plan.wanted.get(path)
            if directory is not None and directory.kind is Kind.DIR:
                writer.finish_directory(directory)

    def _empty_staging(self) -> None:
        for name in os.listdir(self._staging):
            if name != _JOURNAL:
                os.unlink(os.path.join(self._staging, name))

    def _bases(self, plan: Plan, after: Manifest) -> dict[bytes, Base]:
        bases = dict(self._target.bases)
        known = self._current.bases if self._current is not None else {}
        for path in (plan.left | plan.above_left) & after.entries.keys():
            if path not in bases:
                bases[path] = known.get(path) or Base(path, Certainty.UNKNOWN)
        return {path: bases[path] for path in sorted(bases)}


def _prove(plan: Plan, after: Mapping[bytes, Entry], writer: LayerWriter) -> None:
    """Compare what was wanted with what is there now."""
    for path, want in plan.wanted.items():
        here = after.get(path)
        if here is None:
            raise _unequal(path, "is missing")
        if here.kind is not want.kind or here.omitted or (want.kind in CONTENT and here.blob != want.blob):
            raise _unequal(path, "has another content")
        if path in writer.refused_owners:
            here = here._replace(uid=want.uid, gid=want.gid, mode=here.mode | want.mode & _SETID)
        if not equal_metadata(_without(here, writer.refused_xattrs), _without(want, writer.refused_xattrs)):
            raise _unequal(path, "has other metadata")
    for path in after:
        if path not in plan.wanted and path not in plan.left and path not in plan.above_left:
            raise _unequal(path, "is still there")
    names: dict[object, int] = {}
    inodes: dict[int, object] = {}
    for path, want in plan.wanted.items():
        if want.kind in LINKABLE:
            inode, name = after[path].inode, want.link_group or path
            if names.setdefault(name, inode) != inode or inodes.setdefault(inode, name) != name:
                raise _unequal(path, "is linked otherwise")


def _without(entry: Entry, refused: set[tuple[bytes, bytes]]) -> Entry:
    if not refused:
        return entry
    return entry._replace(xattrs=tuple(pair for pair in entry.xattrs if (entry.path, pair[0]) not in refused))


def _unequal(path: bytes, how: str) -> CheckpointError:
    return CheckpointError(
        f"The overlay couldn't be made equal to the checkpoint: '{paths.display(path)}' {how}.",
        hint="Nothing is lost: the checkpoint is kept. Stop whatever else writes into the overlay, then try again.",
    )
