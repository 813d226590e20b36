"""universal_pathlib's reusable cases over an overlay. They come with its source distribution, not with its wheel."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.suites.fetched import source_distribution
from tests.vfs.faces import MAKES, new_overlay
from workbench.vfs.fsspec_face import OverlayFileSystem

upath = pytest.importorskip("upath")
upath.__path__.append(str(source_distribution(f"universal_pathlib=={version('universal_pathlib')}") / "upath"))

from upath.tests.cases import BaseTests  # noqa: E402 (only now it can be imported)
from upath.tests.utils import OverrideMeta, overrides_base  # noqa: E402

pytestmark = [
    # upath has a class of its own for some filesystems, and says so of all others.
    pytest.mark.filterwarnings("ignore:UPath 'workbench' filesystem not explicitly implemented:UserWarning"),
    # test_open_buffering never closes its file.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def local_testdir(tmp_path: Path) -> str:
    """The tree of the cases on this machine, to compare with."""
    root = tmp_path / "compared"
    (root / "folder1").mkdir(parents=True)
    for name in ("file1.txt", "file2.txt"):
        (root / "folder1" / name).write_text(name)
        (root / name).write_text("hello world")
    return str(root)


@pytest.fixture
def pathlib_base(local_testdir: str) -> Path:
    return Path(local_testdir)


@pytest.fixture
def clear_fsspec_memory_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MemoryFileSystem, "store", {})
    monkeypatch.setattr(MemoryFileSystem, "pseudo_dirs", [""])


class TestOverlayPath(BaseTests, metaclass=OverrideMeta):
    @pytest.fixture(params=MAKES[:2], autouse=True)
    def path(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
        fsspec.register_implementation("workbench", OverlayFileSystem, clobber=True)
        with new_overlay(request.param, tmp_path / "overlay") as overlay:
            self.path = upath.UPath(f"workbench://{tmp_path}", overlay=overlay)
            self.prepare_file_system()
            yield

    @overrides_base
    def test_is_correct_class(self) -> None:
        assert isinstance(self.path, upath.UPath)
        assert self.path.protocol == "workbench"

    @overrides_base
    def test_pickling(self) -> None:
        """An overlay belongs to its process, as a `MemoryFileSystem` with a store of its own does."""
        with pytest.raises(TypeError, match="pickle"):
            super().test_pickling()

    @overrides_base
    def test_pickling_child_path(self) -> None:
        with pytest.raises(TypeError, match="pickle"):
            super().test_pickling_child_path()
