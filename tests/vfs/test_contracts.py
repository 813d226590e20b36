"""The public conformance suites on our own layers: on disk, in memory, each frozen after every change as well."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from workbench.testing import OverlayContract, StorageContract, Tree, freeze
from workbench.testing.trees import Directory, Link, fill
from workbench.vfs.layers import Entry
from workbench.vfs.local import LocalStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind, Storage
from workbench.vfs.upper import LocalUpper


def in_memory(tree: Tree) -> MemoryUpper:
    storage = MemoryUpper()
    overlay = Overlay(MemoryUpper(), storage, scratch=b"")
    for path, entry in tree.items():
        overlay.makedirs(path.rpartition(b"/")[0], exist_ok=True)
        if isinstance(entry, Directory):
            overlay.makedirs(path, exist_ok=True)
        elif isinstance(entry, Link):
            overlay.symlink(entry.target, path)
        else:
            storage.put(path, Entry(Kind.FILE, 0o644, content=entry.content))
    return storage


class _Closing:
    @pytest.fixture(autouse=True)
    def _stack(self) -> Iterator[None]:
        with ExitStack() as self.stack:
            yield

    def on_disk(self, tree: Tree, tmp_path: Path) -> LocalStorage:
        (tmp_path / "lower").mkdir()
        fill(os.fsencode(tmp_path / "lower"), tree)
        return self.stack.enter_context(LocalStorage(os.fsencode(tmp_path / "lower")))

    def upper_on_disk(self, tmp_path: Path) -> LocalUpper:
        for name in ("upper", "work"):
            (tmp_path / name).mkdir()
        upper = LocalUpper(os.fsencode(tmp_path / "upper"), work=os.fsencode(tmp_path / "work"))
        return self.stack.enter_context(upper)


class TestLocalStorage(_Closing, StorageContract):
    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        return self.on_disk(tree, tmp_path)


class TestMemoryUpperAsAStorage(StorageContract):
    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        return in_memory(tree)


class TestOverlayAsAStorage(_Closing, StorageContract):
    """An overlay is a storage too, so that another can stand on it."""

    def make_storage(self, tree: Tree, tmp_path: Path) -> Storage:
        half = dict(list(tree.items())[: len(tree) // 2])
        rest = {path: entry for path, entry in tree.items() if path not in half}
        return Overlay(self.on_disk(half, tmp_path), in_memory(rest))


class TestUpperOnDisk(_Closing, OverlayContract):
    def make_overlay(self, lower: Tree, tmp_path: Path) -> Overlay:
        return Overlay(self.on_disk(lower, tmp_path), self.upper_on_disk(tmp_path))


class TestUpperInMemory(_Closing, OverlayContract):
    def make_overlay(self, lower: Tree, tmp_path: Path) -> Overlay:
        return Overlay(self.on_disk(lower, tmp_path), MemoryUpper())


class TestEverythingInMemory(OverlayContract):
    def make_overlay(self, lower: Tree, tmp_path: Path) -> Overlay:
        return Overlay(in_memory(lower), MemoryUpper())


class TestUpperOnDiskOverMemory(_Closing, OverlayContract):
    def make_overlay(self, lower: Tree, tmp_path: Path) -> Overlay:
        return Overlay(in_memory(lower), self.upper_on_disk(tmp_path))


class TestUpperOnDiskFrozen(TestUpperOnDisk):
    def settle(self, overlay: Overlay) -> Overlay:
        return freeze(overlay)


class TestUpperInMemoryFrozen(TestUpperInMemory):
    def settle(self, overlay: Overlay) -> Overlay:
        return freeze(overlay)


class TestOverlayOverAnOverlay(_Closing, OverlayContract):
    def make_overlay(self, lower: Tree, tmp_path: Path) -> Overlay:
        return Overlay(Overlay(self.on_disk(lower, tmp_path), MemoryUpper()), MemoryUpper())
