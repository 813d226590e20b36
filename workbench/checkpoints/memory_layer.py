"""An upper layer in memory over any storage: it notes by itself what it departs from, is checkpointed, and restored.

Unlike a mount, whoever writes here knows each path before it's touched. So a base is what the lower held at that very
moment or, of a file that was read before, when it was read.
"""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from typing import BinaryIO

from workbench.checkpoints import side_store
from workbench.checkpoints.layer import Changed
from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.checkpoints.parts import Recorded
from workbench.checkpoints.plan import CONTENT, LINKABLE
from workbench.checkpoints.scan import TRUST_AFTER_NS, Sink
from workbench.checkpoints.store import CheckpointStore
from workbench.vfs import layers, paths
from workbench.vfs.any_lower import AnyLower
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.storage import Kind, Stat, Storage


class SeenLower(AnyLower):
    """A lower layer that remembers in which state files were when they were read."""

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.seen: dict[bytes, tuple[Stat, bytes]] = {}

    def open(self, path: bytes) -> BinaryIO:
        """As `Storage.open`."""
        self._note(path)
        return super().open(path)

    def read_bytes(self, path: bytes) -> bytes:
        """As `DetailedStorage.read_bytes`."""
        self._note(path)
        return super().read_bytes(path)

    def _note(self, path: bytes) -> None:
        found = self.identify(path)
        if found is None:
            self.seen.pop(path, None)
        else:
            self.seen[path] = found


class MemoryLayer(MemoryUpper):
    """An upper layer in memory, with the base of each path that it departed at. Implements `layer.Layer`."""

    def __init__(self, lower: SeenLower) -> None:
        super().__init__()
        self._lower = lower
        self._bases: dict[bytes, Base] = {}
        self._life = f"memory {secrets.token_hex(8)}"
        """What takes a boot's place: of another process's memory nothing is known."""

    # What departs

    def make_file(self, path: bytes, mode: int, data: bytes = b"") -> None:
        """As `layers.Upper.make_file`."""
        self._depart(path)
        super().make_file(path, mode, data)

    def make_directory(self, path: bytes, mode: int, *, opaque: bool, bare: object = None) -> None:
        """As `layers.Upper.make_directory`; what the lower doesn't have isn't remembered, since others may write there."""
        self._depart(path)
        super().make_directory(path, mode, opaque=opaque)

    def make_symlink(self, path: bytes, target: bytes) -> None:
        """As `layers.Upper.make_symlink`."""
        self._depart(path)
        super().make_symlink(path, target)

    def link(self, src: bytes, dst: bytes) -> None:
        """As `layers.Upper.link`."""
        self._depart(dst)
        super().link(src, dst)

    def put(self, path: bytes, entry: layers.Entry, *, copy_up: bool = False) -> None:
        """As `layers.Upper.put`."""
        self._depart(path)
        super().put(path, entry, copy_up=copy_up)

    def remove(self, path: bytes, *, whiteout: bool) -> None:
        """As `layers.Upper.remove`."""
        if whiteout:
            self._depart_below(path)
        super().remove(path, whiteout=whiteout)
        if not whiteout:
            self._prune()

    def move(self, src: bytes, dst: bytes, *, whiteout: bool, opaque: bool) -> None:
        """As `layers.Upper.move`."""
        if whiteout:
            self._depart_below(src)
        self._depart_below(dst)
        for path in self._paths(src):
            self._depart(dst + path[len(src) :])
        super().move(src, dst, whiteout=whiteout, opaque=opaque)
        self._prune()

    def make_opaque(self, path: bytes) -> None:
        """As `layers.Upper.make_opaque`."""
        self._depart_below(path)
        super().make_opaque(path)

    def _depart(self, path: bytes) -> None:
        if path not in self._bases:
            self._bases[path] = self._base(path)

    def _depart_below(self, top: bytes) -> None:
        """A path, and all that the lower shows below it, is about to be hidden."""
        waiting = [top]
        while waiting:
            path = waiting.pop()
            self._depart(path)
            base = self._bases[path]
            if base.certainty is Certainty.KNOWN and base.kind is Kind.DIR and self._shows(path):
                names = self._lower.list(path)
                waiting.extend(paths.join(path, name) for name in names)

    def _base(self, path: bytes) -> Base:
        if not self._shows(path):
            return Base(path, Certainty.ABSENT)
        found = self._lower.seen.pop(path, None) or self._lower.identify(path)
        if found is None:
            return Base(path, Certainty.ABSENT)
        stat, handle = found
        times = (stat.mtime_ns, stat.ctime_ns)
        return Base(
            path, Certainty.KNOWN, stat.kind, stat.mode, stat.uid, stat.gid, stat.size, *times, stat.inode, handle
        )

    def _shows(self, path: bytes) -> bool:
        """Whether nothing above a path hides what the lower has there."""
        while path:
            path = paths.parent(path)
            try:
                found = self.look(path)
            except (FileNotFoundError, NotADirectoryError):
                return False
            if found.kind is not None:
                return found.lower_below
        return True

    def _paths(self, top: bytes) -> list[bytes]:
        found, waiting = [], [top]
        while waiting:
            path = waiting.pop()
            found.append(path)
            if self.stat(path).kind is Kind.DIR:
                waiting.extend(paths.join(path, name) for name in self.list(path))
        return found

    def _prune(self) -> None:
        """Forget the bases of paths at and above which nothing of the layer stands any more."""
        self._bases = {path: base for path, base in self._bases.items() if self._speaks_for(path)}

    def _speaks_for(self, path: bytes) -> bool:
        try:
            return self.look(path).kind is not None or not self._shows(path)
        except (FileNotFoundError, NotADirectoryError):
            return True

    # Checkpoints

    def changed(self, sink: Sink, known: Recorded) -> Changed:
        """As `Layer.changed`; a content that stands as it did when it was last taken in isn't read again."""
        with self.lock:
            return Changed.between(known.whole(), self._manifest(sink, known))

    def _manifest(self, sink: Sink, known: Recorded) -> Manifest:
        scanned_ns = time.time_ns()
        trusted_before = known.scanned_ns - TRUST_AFTER_NS if known.boot_id == self._life else 0
        entries: dict[bytes, Entry] = {}
        groups: dict[int, int] = {}
        for path in sorted(self._paths(b"")):
            stat, before = self.stat(path), known.entry(path)
            if before is None or stat.ctime_ns >= trusted_before or not _is_that(stat, before):
                before = None
            entry = self._entry(path, stat, before.blob if before is not None and sink.has(before.blob) else "", sink)
            if entry.kind in LINKABLE and stat.nlink > 1:
                entry = entry._replace(link_group=groups.setdefault(entry.inode, len(groups) + 1))
            entries[path] = entry
        bases = {b"": self._base(b"")} | self._bases
        return Manifest(entries, {path: bases[path] for path in sorted(bases)}, self._life, scanned_ns)

    def _entry(self, path: bytes, stat: Stat, blob: str, sink: Sink) -> Entry:
        if stat.kind is Kind.FILE and not blob:
            with self.open(path) as file:
                blob = _taken(file, stat.size, sink)
        elif stat.kind is Kind.SYMLINK:
            blob = sink.blob(self.readlink(path))
        return Entry(
            path,
            stat.kind,
            stat.mode,
            stat.uid,
            stat.gid,
            stat.size if stat.kind in CONTENT else 0,
            stat.mtime_ns,
            stat.ctime_ns,
            stat.inode,
            xattrs=tuple(sorted(self.xattrs(path).items())),
            blob=blob,
            opaque=stat.kind is Kind.DIR and self.is_opaque(path),
        )

    def restore(self, target: Manifest, store: CheckpointStore) -> None:
        """Hold from now on, in one step, what a manifest says, and depart from where it did.

        Raises CheckpointError (store_corrupt) and OSError, with nothing changed.
        """
        made = MemoryUpper()
        firsts: dict[int, bytes] = {}
        for path in sorted(target.entries):
            entry = target.entries[path]
            if entry.link_group in firsts:
                made.link(firsts[entry.link_group], path)
            elif path:
                _make(made, entry, store)
            if entry.link_group:
                firsts.setdefault(entry.link_group, path)
        for path in sorted(target.entries, reverse=True):
            entry = target.entries[path]
            if entry.kind is Kind.DIR:
                if entry.opaque:
                    made.make_opaque(path)
                made.chmod(path, entry.mode)
                made.utime(path, entry.mtime_ns, entry.mtime_ns)
        self.exchange(made)
        self._bases = {path: base for path, base in target.bases.items() if path}


def _is_that(stat: Stat, entry: Entry) -> bool:
    """Whether a file is the very one that an entry was made of, and was left alone since."""
    then = (entry.kind, entry.inode, entry.size, entry.mtime_ns, entry.ctime_ns)
    return bool(entry.blob) and then == (stat.kind, stat.inode, stat.size, stat.mtime_ns, stat.ctime_ns)


def _make(made: MemoryUpper, entry: Entry, store: CheckpointStore) -> None:
    if entry.kind is Kind.WHITEOUT:
        made.remove(entry.path, whiteout=True)
        return
    attributes: Mapping[bytes, bytes] = dict(entry.xattrs)
    target = store.read(entry.blob) if entry.kind is Kind.SYMLINK else b""
    content = store.read(entry.blob) if entry.kind is Kind.FILE else b""
    owner = (entry.uid, entry.gid)
    made.put(entry.path, layers.Entry(entry.kind, entry.mode, owner, entry.mtime_ns, attributes, content, target))


def _taken(file: BinaryIO, size: int, sink: Sink) -> str:
    if size <= side_store.LIMIT:
        return sink.blob(file.read())
    with tempfile.TemporaryFile() as kept:
        shutil.copyfileobj(file, kept)
        kept.flush()
        os.lseek(kept.fileno(), 0, os.SEEK_SET)
        return sink.big(kept.fileno())
