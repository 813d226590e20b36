"""What a checkpoint is taken of: an upper layer, and what it departs from."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from workbench.checkpoints import files
from workbench.checkpoints.bases import take_bases, wanting
from workbench.checkpoints.manifest import Base, Entry, Manifest
from workbench.checkpoints.parts import Difference, Recorded
from workbench.checkpoints.scan import Budget, Sink, scan
from workbench.checkpoints.scan_some import scan_some
from workbench.checkpoints.system import boot_id
from workbench.vfs.local import LocalStorage
from workbench.vfs.upper import LocalUpper

R = TypeVar("R", Entry, Base)


@dataclass(frozen=True, slots=True)
class Changed:
    """What differs in a layer from an earlier manifest of it, by path, None for what is gone.

    `boot_id` and `scanned_ns` are as in `Manifest`.
    """

    entries: Mapping[bytes, Entry | None]
    bases: Mapping[bytes, Base | None]
    boot_id: str = ""
    scanned_ns: int = 0

    @classmethod
    def between(cls, old: Manifest, new: Manifest) -> Changed:
        """What differs between two manifests that are known whole."""
        found = Difference.between(old, new)
        return cls(_by_path(found.entries), _by_path(found.bases), new.boot_id, new.scanned_ns)


class Layer(Protocol):
    """What a checkpoint can be taken of: an upper layer, on disk or in memory, and what it departs from."""

    def changed(self, sink: Sink, known: Recorded) -> Changed:
        """What it holds at this moment that isn't in an earlier manifest of it, and the bases of those paths.

        All contents are in the sink then. Raises OSError, OverlayError (layer_unsupported).
        """
        ...


@dataclass(frozen=True, slots=True)
class DiskLayer:
    """An upper layer on disk over a real directory. The fields are as the arguments of `CheckpointStore.take`."""

    upper: LocalUpper
    lower: LocalStorage
    clock_directory: str
    epoch_ns: int | None
    offline: bool
    mapped: bool
    scanned: bool
    touched: frozenset[bytes] | None
    budget: Budget | None

    def changed(self, sink: Sink, known: Recorded) -> Changed:
        """As `Layer.changed`."""
        if self.scanned:
            return self._with_bases({}, known, sink, known.boot_id, known.scanned_ns, wanting(known.whole(), sink.has))
        boot, scanned_ns = boot_id(), 0 if self.mapped else self._clock()
        if self.touched is not None:
            some = scan_some(
                self.upper, sink, self.touched, known, boot_id=boot, offline=self.offline, budget=self.budget
            )
            if some is not None:
                return self._with_bases(some, known, sink, boot, scanned_ns, ())
        whole = known.whole()
        found = scan(self.upper, sink, boot_id=boot, previous=whole, offline=self.offline, budget=self.budget)
        entries = _by_path(Difference.between(Manifest(whole.entries), Manifest(found)).entries)
        return self._with_bases(entries, known, sink, boot, scanned_ns, wanting(whole, sink.has))

    def _with_bases(
        self,
        entries: Mapping[bytes, Entry | None],
        known: Recorded,
        sink: Sink,
        boot: str,
        scanned_ns: int,
        again: Collection[bytes],
    ) -> Changed:
        bases = take_bases(entries, known, self.upper, self.lower, sink, epoch_ns=self.epoch_ns, again=again)
        return Changed(entries, bases, boot, scanned_ns)

    def _clock(self) -> int:
        """The time on the upper's filesystem, 0 where the store is on another and can't tell it."""
        probe = files.probe(self.clock_directory)
        return probe.st_ctime_ns if probe.st_dev == os.fstat(self.upper.root_fd).st_dev else 0


def _by_path(pairs: Iterable[tuple[R | None, R | None]]) -> dict[bytes, R | None]:
    return {record.path: new for old, new in pairs if (record := new or old) is not None}
