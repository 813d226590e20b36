"""What the tests of the faces share: overlays of every make, and one that is frozen after each change."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from weakref import WeakSet

from workbench.testing import freeze
from workbench.vfs.local import LocalStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper

MAKES = ("local", "memory", "local frozen", "memory frozen")


@contextmanager
def new_overlay(make: str, path: Path) -> Iterator[Overlay]:
    """An empty overlay with an upper on disk or in memory."""
    for name in ("lower", "upper", "work"):
        (path / name).mkdir(exist_ok=True, parents=True)
    with (
        LocalStorage(os.fsencode(path / "lower")) as lower,
        LocalUpper(os.fsencode(path / "upper"), work=os.fsencode(path / "work")) as upper,
    ):
        yield Overlay(lower, upper if make.startswith("local") else MemoryUpper())


class Frozen:
    """For a face: at every step whatever was written until then has become the lower layer.

    Without it a suite that begins with nothing would never meet a lower layer at all.
    """

    _now: Overlay
    _writers: WeakSet[Any]

    @property
    def overlay(self) -> Overlay:
        if not any(not file.closed for file in self._writers) and self._now.upper.entries(b""):
            self._now = freeze(self._now)
        return self._now

    @overlay.setter
    def overlay(self, overlay: Overlay) -> None:
        self._now = overlay
        self._writers = WeakSet()

    def note_writer(self, file: Any) -> None:
        self._writers.add(file)
