"""PyFilesystem2's own suite over overlays of every make."""

from __future__ import annotations

import importlib.util
import tempfile
import unittest
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("fs") is None:
    pytest.skip("PyFilesystem2 isn't installed", allow_module_level=True)

from tests.vfs.faces import Frozen, new_overlay
from workbench.vfs._pyfs_compat import import_fs
from workbench.vfs.pyfilesystem_face import OverlayFS

import_fs()

from fs.test import FSTestCases  # noqa: E402 (only now it can be imported)


class FrozenFS(Frozen, OverlayFS):
    def openbin(self, path: str, mode: str = "r", buffering: int = -1, **options: Any) -> Any:
        file = super().openbin(path, mode, buffering, **options)
        if set(mode) & set("wax+"):
            self.note_writer(file)
        return file


class Suite(FSTestCases):
    make = ""
    # test_remove of fs 2.4.16 asks for it by the name that Python 3.12 took away.
    assertRaisesRegexp = unittest.TestCase.assertRaisesRegex  # noqa: N815

    def make_fs(self) -> OverlayFS:
        self.left = ExitStack()
        path = self.left.enter_context(tempfile.TemporaryDirectory())
        overlay = self.left.enter_context(new_overlay(self.make, Path(path)))
        return (FrozenFS if "frozen" in self.make else OverlayFS)(overlay)

    def destroy_fs(self, fs: OverlayFS) -> None:
        fs.close()
        self.left.close()


class TestLocal(Suite, unittest.TestCase):
    make = "local"


class TestMemory(Suite, unittest.TestCase):
    make = "memory"


class TestLocalFrozen(Suite, unittest.TestCase):
    make = "local frozen"


class TestMemoryFrozen(Suite, unittest.TestCase):
    make = "memory frozen"
