"""Workspaces as filesystems of fsspec and PyFilesystem2: found by protocol, their own suites, with a sandbox and without."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pickle
import tempfile
import tomllib
import unittest
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.tests import abstract

from tests.bench import Bench
from tests.conftest import ROOT
from tests.trees import snapshot
from workbench.errors import OptionsError, WorkspaceError
from workbench.faces.fsspec import WorkspaceFileSystem
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay

if importlib.util.find_spec("fs") is None:
    pytest.skip("PyFilesystem2 isn't installed", allow_module_level=True)

from workbench.faces.pyfilesystem import WorkspaceFS, WorkspaceOpener

fs = importlib.import_module("fs")
registry = importlib.import_module("fs.opener").registry
FSTestCases = importlib.import_module("fs.test").FSTestCases


@pytest.fixture(autouse=True)
def registered() -> None:
    """What the installed distribution's entry points do."""
    fsspec.register_implementation("workbench", WorkspaceFileSystem, clobber=True)
    registry.install(WorkspaceOpener)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "repo"
    (path / "docs").mkdir(parents=True)
    (path / "docs" / "plan.md").write_text("plan\n")
    return path


def test_the_entry_points_name_the_faces() -> None:
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for group, face in (("fsspec.specs", WorkspaceFileSystem), ("fs.opener", WorkspaceOpener)):
        module, _, name = named[group]["workbench"].partition(":")
        assert getattr(importlib.import_module(module), name) is face


def test_an_address_reads_and_writes_the_session_and_never_the_directory(state: Path, root: Path) -> None:
    before = snapshot(root)
    with fsspec.open("workbench://docs/plan.md", "at", path=root) as file:
        file.write("more\n")
    with fsspec.open("workbench://docs/plan.md", "rt", path=root) as file:
        assert file.read() == "plan\nmore\n"
    with fsspec.open("workbench://docs/plan.md", "rt", path=root, session="other") as file:
        assert file.read() == "plan\n"
    assert snapshot(root) == before
    bench = Bench(root)
    assert bench.told() == {b"docs/plan.md": "modified"}
    bench.commit()
    assert (root / "docs" / "plan.md").read_text() == "plan\nmore\n"


def test_without_a_path_it_is_the_workspace_around_the_current_directory(
    state: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / ".git").mkdir()
    monkeypatch.chdir(root / "docs")
    assert fsspec.filesystem("workbench").cat("docs/plan.md") == b"plan\n"


def test_a_transaction_lands_in_the_overlay_whole_or_not_at_all(state: Path, root: Path) -> None:
    files = fsspec.filesystem("workbench", path=root)

    def fail() -> None:
        with files.transaction:
            files.pipe("a", b"1")
            files.pipe("docs/b", b"2")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert files.find("/") == ["/docs/plan.md"]
    with files.transaction:
        files.pipe("a", b"1")
        files.pipe("docs/b", b"2")
        assert files.find("/") == ["/docs/plan.md"]
    assert files.cat(["/a", "/docs/b"]) == {"/a": b"1", "/docs/b": b"2"}


@pytest.mark.filterwarnings("ignore:UPath 'workbench' filesystem not explicitly implemented")
def test_filesystems_on_top_of_it_work(state: Path, root: Path) -> None:
    upath = pytest.importorskip("upath")
    below = DirFileSystem("/docs", fs=fsspec.filesystem("workbench", path=root))
    below.pipe("new.md", b"new\n")
    assert below.ls("/", detail=False) == ["new.md", "plan.md"]
    path = upath.UPath("workbench:///docs", path=root)
    assert sorted(each.name for each in path.iterdir()) == ["new.md", "plan.md"]
    (path / "sub" / "deep.md").write_text("deep\n")
    assert fsspec.filesystem("workbench", path=root).cat("docs/sub/deep.md") == b"deep\n"


def test_a_pickled_one_is_the_same_session(state: Path, root: Path) -> None:
    files = fsspec.filesystem("workbench", path=root, session="other")
    files.pipe("a", b"1")
    again = pickle.loads(pickle.dumps(files))
    assert again.cat("a") == b"1"
    again.pipe("a", b"2")
    assert files.cat("a") == b"2"
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(fsspec.filesystem("workbench", overlay=Overlay(MemoryUpper(), MemoryUpper())))


def test_what_names_no_workspace_is_refused(state: Path, root: Path) -> None:
    with pytest.raises(WorkspaceError) as caught:
        fsspec.filesystem("workbench", path=root / "missing")
    assert caught.value.code == "workspace_missing"
    with pytest.raises(OptionsError):
        fsspec.filesystem("workbench", path=root, overlay=Overlay(MemoryUpper(), MemoryUpper()))
    with pytest.raises(OptionsError):
        fsspec.filesystem("workbench", path=root, session="../x")
    with pytest.raises(WorkspaceError):
        fs.open_fs(f"workbench://{root}/missing")


def test_pyfilesystem_opens_a_workspace_by_its_address(
    state: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(root.parent)
    before = snapshot(root)
    with fs.open_fs("workbench://repo") as files:
        assert files.readtext("docs/plan.md") == "plan\n"
        files.writetext("docs/new.md", "new\n")
        files.movedir("docs", "moved", create=True)
    with fs.open_fs("workbench://repo?session=other") as files:
        assert files.listdir("/") == ["docs"]
    assert snapshot(root) == before
    assert Bench(root).told() == {b"moved/plan.md": "renamed", b"moved/new.md": "added"}


def test_both_faces_and_commands_see_one_another_at_once(engine: None, state: Path, root: Path) -> None:
    bench = Bench(root)
    bench.sh("echo command > command")
    files = fsspec.filesystem("workbench", path=root)
    with fs.open_fs(f"workbench://{root}") as others:
        assert files.cat("command") == b"command\n"
        files.pipe("one/two/three", b"fsspec\n")
        others.writetext("one/four", "pyfilesystem\n")
        others.move("docs/plan.md", "one/plan.md")
        files.mv("one/two", "one/moved")
        assert bench.sh("cat one/moved/three one/four one/plan.md; rm one/four") == b"fsspec\npyfilesystem\nplan\n"
        assert sorted(others.listdir("one")) == ["moved", "plan.md"]
        files.rm("one", recursive=True)
        assert bench.sh("ls") == b"command\ndocs\n"
    assert bench.keeper() is not None


# Their own suites


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, state: Path, tmp_path: Path) -> WorkspaceFileSystem:
        (tmp_path / "workspace").mkdir()
        return WorkspaceFileSystem(path=tmp_path / "workspace")

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


class TestPyFilesystem(FSTestCases, unittest.TestCase):  # type: ignore[misc]
    # test_remove of fs 2.4.16 asks for it by the name that Python 3.12 took away.
    assertRaisesRegexp = unittest.TestCase.assertRaisesRegex  # noqa: N815

    def make_fs(self) -> Any:
        self._directory = tempfile.TemporaryDirectory()
        for name in ("state", "workspace"):
            os.mkdir(os.path.join(self._directory.name, name), 0o700)
        with mock.patch.dict(os.environ, WORKBENCH_STATE=os.path.join(self._directory.name, "state")):
            return fs.open_fs(f"workbench://{self._directory.name}/workspace")

    def destroy_fs(self, opened: WorkspaceFS) -> None:
        opened.close()
        self._directory.cleanup()
