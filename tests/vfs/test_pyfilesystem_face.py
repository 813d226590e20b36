"""An overlay through PyFilesystem2, where its own suite has no questions."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

if importlib.util.find_spec("fs") is None:
    pytest.skip("PyFilesystem2 isn't installed", allow_module_level=True)

from tests.conftest import ROOT
from tests.vfs.faces import new_overlay
from workbench.vfs._pyfs_compat import import_fs
from workbench.vfs.overlay import Overlay
from workbench.vfs.pyfilesystem_face import OverlayFS

fs = import_fs()

from fs import errors  # noqa: E402 (only now it can be imported)
from fs.copy import copy_fs  # noqa: E402
from fs.enums import ResourceType  # noqa: E402
from fs.permissions import Permissions  # noqa: E402


@pytest.fixture(params=["local", "memory"])
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Overlay]:
    (tmp_path / "lower/src").mkdir(parents=True)
    (tmp_path / "lower/src/main.py").write_bytes(b"print()\n")
    (tmp_path / "lower/README.md").write_bytes(b"hello\n")
    with new_overlay(request.param, tmp_path) as overlay:
        yield overlay


@pytest.fixture
def face(overlay: Overlay) -> Iterator[OverlayFS]:
    with OverlayFS(overlay) as face:
        yield face


@pytest.fixture
def links(face: OverlayFS, overlay: Overlay) -> OverlayFS:
    for name, target in {b"to-file": b"src/main.py", b"to-dir": b"src", b"out": b"../x", b"loop": b"loop"}.items():
        overlay.symlink(target, name)
    return face


IMPORTS = """
import sys, warnings
warnings.simplefilter("error")
{before}
from workbench.vfs._pyfs_compat import import_fs
fs = import_fs()
assert import_fs() is fs
assert sys.modules.get("pkg_resources") is {left}
with fs.open_fs("mem://") as memory:
    memory.writetext("a", "b")
assert "mem" in fs.opener.registry.protocols
"""


@pytest.mark.parametrize(
    ("before", "left"),
    [
        ("", "None"),
        ("import types; sys.modules['pkg_resources'] = theirs = types.ModuleType('pkg_resources')", "theirs"),
    ],
    ids=["without pkg_resources", "with somebody's pkg_resources"],
)
def test_the_package_is_imported_whatever_setuptools_has(before: str, left: str) -> None:
    script = IMPORTS.format(before=before, left=left)
    subprocess.run([sys.executable, "-c", script], cwd=ROOT, check=True)


def test_a_missing_package_is_named_with_what_brings_it() -> None:
    script = (
        "import sys, importlib.abc\n"
        "class Nothing(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'fs':\n"
        "            raise ModuleNotFoundError('no', name='fs')\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "import workbench.vfs.pyfilesystem_face\n"
    )
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "overlay-workbench[pyfilesystem]" in result.stderr


def test_whatever_is_done_the_lower_layer_stays(face: OverlayFS, tmp_path: Path) -> None:
    face.writetext("src/main.py", "other")
    face.appendtext("README.md", "more\n")
    face.move("README.md", "src/moved.md")
    face.copydir("src", "copied", create=True)
    face.removetree("src")
    assert sorted(face.walk.files()) == ["/copied/main.py", "/copied/moved.md"]
    assert face.readtext("copied/moved.md") == "hello\nmore\n"
    face.removetree("/")
    assert face.listdir("/") == []
    assert (tmp_path / "lower/src/main.py").read_bytes() == b"print()\n"
    assert (tmp_path / "lower/README.md").read_bytes() == b"hello\n"


def test_moves_are_renames(face: OverlayFS, overlay: Overlay) -> None:
    face.writetext("a", "a")
    face.makedirs("d/e")
    inodes = overlay.stat(b"a").inode, overlay.stat(b"d").inode
    face.move("a", "src/main.py", overwrite=True)
    face.movedir("d", "moved", create=True)
    assert (overlay.stat(b"src/main.py").inode, overlay.stat(b"moved").inode) == inodes
    with pytest.raises(errors.DestinationExists):
        face.move("README.md", "src/main.py")
    with pytest.raises(errors.FileExpected):
        face.move("src", "elsewhere")
    with pytest.raises(errors.ResourceNotFound):
        face.movedir("moved", "not-there")


def test_a_move_or_copy_onto_itself_loses_nothing(face: OverlayFS) -> None:
    for step in (face.move, face.copy):
        # fs-next has an error for it.
        with suppress(getattr(errors, "IllegalDestination", errors.DestinationExists)):
            step("README.md", "./README.md", overwrite=True)
        assert face.readtext("README.md") == "hello\n"


def test_symlinks_are_followed_inside_the_overlay(links: OverlayFS, overlay: Overlay) -> None:
    assert links.readtext("to-file") == "print()\n"
    assert links.readtext("to-dir/main.py") == "print()\n"
    assert links.listdir("to-dir") == ["main.py"]
    assert links.isdir("to-dir")
    info = links.getinfo("to-file", ["link", "details"])
    assert (info.target, info.type, info.size) == ("src/main.py", ResourceType.file, 8)
    assert (links.islink("to-file"), links.islink("src")) == (True, False)
    links.writetext("to-file", "through")
    assert overlay.read_bytes(b"src/main.py") == b"through"


def test_symlinks_that_lead_out_or_nowhere_are_not_found(links: OverlayFS) -> None:
    for path in ("out", "loop"):
        assert not links.exists(path)
        assert links.islink(path)
        with pytest.raises(errors.ResourceNotFound):
            links.openbin(path)
    assert {info.name for info in links.scandir("/")} == {"README.md", "src", "to-dir", "to-file"}
    assert [info.name for info in links.scandir("/", page=(1, 3))] == ["src", "to-dir"]
    links.remove("out")
    links.remove("to-file")
    assert links.exists("src/main.py")


def test_permissions_and_times_are_set_and_told(face: OverlayFS, overlay: Overlay) -> None:
    face.setinfo("README.md", {"access": {"permissions": Permissions(mode=0o640)}})
    assert overlay.stat(b"README.md").mode == 0o640
    assert face.getinfo("README.md", ["access"]).permissions.mode == 0o640
    when = datetime(2024, 2, 3, tzinfo=UTC)
    face.settimes("README.md", modified=when)
    assert face.getmodified("README.md") == when
    face.makedir("private", Permissions(mode=0o700))
    assert overlay.stat(b"private").mode == 0o700


def test_names_that_are_not_text_come_and_go_and_what_is_no_name_is_refused(face: OverlayFS, overlay: Overlay) -> None:
    for name in (b"\xff\xfe", b"new\nline", b" ", b"x" * 255):
        shown = os.fsdecode(name)
        face.writebytes(shown, b"x")
        assert shown in face.listdir("/")
        assert overlay.read_bytes(name) == b"x"
    for wrong in ("\ud800", "a\0b"):
        with pytest.raises(errors.InvalidCharsInPath):
            face.openbin(wrong, "w")
    for wrong in ("..", "src/../../x"):
        with pytest.raises(errors.IllegalBackReference):
            face.openbin(wrong)


def test_it_copies_from_and_to_other_filesystems(face: OverlayFS) -> None:
    with fs.open_fs("mem://") as memory:
        copy_fs(face, memory)
        memory.writetext("src/new", "new")
        copy_fs(memory, face)
    assert face.readtext("src/new") == "new"


def test_closing_it_leaves_the_overlay_open(overlay: Overlay) -> None:
    face = OverlayFS(overlay)
    face.close()
    with pytest.raises(errors.FilesystemClosed):
        face.listdir("/")
    assert overlay.list(b"src") == [b"main.py"]
