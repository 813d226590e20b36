"""fsspec's own abstract suite over overlays of every make."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.tests import abstract

from tests.vfs.faces import MAKES, Frozen, new_overlay
from workbench.vfs.fsspec_face import OverlayFileSystem


class FrozenFileSystem(Frozen, OverlayFileSystem):
    def _open(self, path: str, mode: str = "rb", *arguments: Any, **options: Any) -> Any:
        file = super()._open(path, mode, *arguments, **options)
        if mode != "rb":
            self.note_writer(file)
        return file


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(params=MAKES)
    def fs(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OverlayFileSystem]:
        with new_overlay(request.param, tmp_path / "overlay") as overlay:
            yield (FrozenFileSystem if "frozen" in request.param else OverlayFileSystem)(overlay)

    @pytest.fixture
    def fs_path(self) -> str:
        return ""

    @pytest.fixture
    def fs_join(self) -> Callable[..., str]:
        return lambda *names: "/".join(names)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


if hasattr(abstract, "AbstractOpenTests"):  # since 2025

    class TestOpen(abstract.AbstractOpenTests, Fixtures):
        pass

    class TestPipe(abstract.AbstractPipeTests, Fixtures):
        pass
