"""The public conformance suites on our own layers: on disk, in memory, each frozen after every change as well."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import pytest

from workbench.testing import OverlayContract, StorageContract, Tree, freeze
from workbench.testing.trees import Directory, Link, fill
from workbench.vfs.fsspec_storage import FsspecStorage
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


@pytest.mark.parametrize("make", ["on disk", "in memory", "over fsspec", "over a scope"])
def test_an_error_is_the_systems_with_the_path_and_a_code(make: str, tmp_path: Path) -> None:
    for name in ("lower/t/d", "upper", "work"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("f", "d/a"):
        (tmp_path / "lower" / "t" / name).write_bytes(b"lower")
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        for name in ("f", "d/a"):
            archive.writestr(name, b"lower")
    with (
        LocalStorage(os.fsencode(tmp_path / "lower")) as whole,
        LocalStorage(os.fsencode(tmp_path / "lower" / "t")) as lower,
        LocalUpper(os.fsencode(tmp_path / "upper"), work=os.fsencode(tmp_path / "work")) as upper,
    ):
        zipped = FsspecStorage(fsspec.filesystem("zip", fo=str(tmp_path / "a.zip")))
        storages = {"on disk": lower, "in memory": lower, "over fsspec": zipped, "over a scope": whole.scope(b"t")}
        overlay = Overlay(storages[make], upper if make == "on disk" else MemoryUpper())
        overlay.symlink(b"f", b"link")
        refused: list[tuple[Callable[[], object], type[OSError], bytes, str]] = [
            (lambda: overlay.stat(b"gone"), FileNotFoundError, b"gone", "not_found"),
            (lambda: overlay.write_bytes(b"gone/x", b""), FileNotFoundError, b"gone/x", "not_found"),
            (lambda: overlay.list(b"d/a/x"), NotADirectoryError, b"d/a/x", "not_a_directory"),
            (lambda: overlay.mkdir(b"f/x"), NotADirectoryError, b"f/x", "not_a_directory"),
            (lambda: overlay.create(b"d/a"), FileExistsError, b"d/a", "already_exists"),
            (lambda: overlay.open(b"d"), IsADirectoryError, b"d", "is_a_directory"),
            (lambda: overlay.open(b"link", "ab"), OSError, b"link", "is_a_symlink"),
            (lambda: overlay.readlink(b"f"), OSError, b"f", "invalid"),
            (lambda: overlay.rmdir(b"d"), OSError, b"d", "not_empty"),
            (lambda: overlay.rename(b"", b"x"), OSError, b"", "busy"),
            (lambda: overlay.getxattr(b"f", b"user.gone"), OSError, b"f", "no_such_attribute"),
            (lambda: overlay.create(b"n" * 256), OSError, b"n" * 256, "name_too_long"),
        ]
        for act, kind, path, code in refused:
            with pytest.raises(kind) as raised:
                act()
            # The system's own class, so that whoever knows those knows ours.
            assert (type(raised.value), raised.value.filename) == (kind, path)
            assert vars(raised.value).get("code") == code
