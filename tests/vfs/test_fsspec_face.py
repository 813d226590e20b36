"""An overlay through fsspec, where fsspec's own suite has no questions."""

from __future__ import annotations

import errno
import importlib
import os
import pickle
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.dirfs import DirFileSystem

from tests.conftest import ROOT
from tests.vfs.faces import new_overlay
from tests.vfs.test_fsspec_face_suite import FrozenFileSystem
from workbench.errors import OptionsError
from workbench.vfs.fsspec_face import OverlayFileSystem
from workbench.vfs.overlay import Overlay


@pytest.fixture(params=["local", "memory"])
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Overlay]:
    lower = tmp_path / "lower"
    (lower / "src/deep").mkdir(parents=True)
    (lower / "src/main.py").write_bytes(b"print()\n")
    (lower / "src/deep/x").write_bytes(b"x")
    (lower / "README.md").write_bytes(b"hello\n")
    with new_overlay(request.param, tmp_path) as overlay:
        yield overlay


@pytest.fixture
def fs(overlay: Overlay) -> OverlayFileSystem:
    fsspec.register_implementation("workbench", OverlayFileSystem, clobber=True)
    return fsspec.filesystem("workbench", overlay=overlay)  # type: ignore[no-any-return]


@pytest.fixture
def links(fs: OverlayFileSystem, overlay: Overlay) -> OverlayFileSystem:
    for name, target in {
        b"to-file": b"src/main.py",
        b"to-dir": b"src",
        b"dangling": b"gone",
        b"out": b"../../etc/passwd",
        b"rooted": b"/etc/passwd",
        b"loop": b"loop",
        b"src/up": b"../README.md",
    }.items():
        overlay.symlink(target, name)
    return fs


def lower_of(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in (path / "lower").rglob("*") if p.is_file()}


# Reaching it


def test_the_entry_point_names_the_filesystem() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = project["entry-points"]["fsspec.specs"]["workbench"].partition(":")
    assert issubclass(getattr(importlib.import_module(module), name), OverlayFileSystem)


def test_the_package_is_imported_without_fsspec_and_without_pyfilesystem() -> None:
    script = "import sys, workbench, workbench.vfs.overlay; print(*({'fsspec', 'fs', 'six'} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_a_url_opens_a_file_of_the_overlay(fs: OverlayFileSystem, overlay: Overlay) -> None:
    with fsspec.open("workbench://src/new/file.txt", "wt", overlay=overlay, encoding="utf-8") as file:
        file.write("é")
    assert overlay.read_bytes(b"src/new/file.txt") == "é".encode()
    with fsspec.open("workbench:///src/main.py", "rb", overlay=overlay) as file:
        assert file.read() == b"print()\n"
    with fsspec.open("workbench://a.gz", "wb", overlay=overlay, compression="gzip") as file:
        file.write(b"squeezed")
    with fsspec.open("workbench://a.gz", "rb", overlay=overlay, compression="infer") as file:
        assert file.read() == b"squeezed"


def test_every_spelling_of_a_path_is_the_same_one(fs: OverlayFileSystem) -> None:
    for path in (
        "src/main.py",
        "/src/main.py",
        "workbench://src/main.py",
        "src//main.py",
        "./src/./main.py",
        "src/main.py/",
    ):
        assert fs.info(path)["name"] == "/src/main.py"
    assert fs.ls("") == fs.ls("/") == fs.ls("workbench://")
    assert fs.unstrip_protocol(fs.info("src")["name"]) == "workbench:///src"


def test_dirfilesystem_works_on_top(fs: OverlayFileSystem, overlay: Overlay) -> None:
    inner = DirFileSystem("src", fs)
    assert sorted(inner.find("")) == ["deep/x", "main.py"]
    inner.pipe("new/y", b"y")
    inner.mv("main.py", "moved.py")
    inner.rm("deep", recursive=True)
    assert fs.find("src") == ["/src/moved.py", "/src/new/y"]
    assert overlay.read_bytes(b"src/new/y") == b"y"


def test_a_mapper_reads_and_writes(fs: OverlayFileSystem) -> None:
    mapper = fs.get_mapper("src")
    mapper["k/l"] = b"value"
    assert dict(mapper) == {"deep/x": b"x", "k/l": b"value", "main.py": b"print()\n"}
    del mapper["main.py"]
    assert not fs.exists("src/main.py")


def test_it_is_not_pickled_and_not_cached(fs: OverlayFileSystem, overlay: Overlay) -> None:
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(fs)
    assert fsspec.filesystem("workbench", overlay=overlay) is not fs


# The lower layer


def test_whatever_is_done_the_lower_layer_stays(fs: OverlayFileSystem, tmp_path: Path) -> None:
    before = lower_of(tmp_path)
    fs.pipe("src/main.py", b"other")
    with fs.open("README.md", "ab") as file:
        file.write(b"more\n")
    fs.mv("src/deep", "moved")
    fs.touch("moved/x", truncate=False)
    fs.cp("README.md", "src/")
    fs.rm("src", recursive=True)
    assert fs.find("") == ["/README.md", "/moved/x"]
    assert fs.cat("README.md") == b"hello\nmore\n"
    assert lower_of(tmp_path) == before
    fs.rm("/", recursive=True)
    assert fs.ls("") == []
    assert lower_of(tmp_path) == before


def test_listings_leave_the_scratch_directory_out_and_emptying_the_root_leaves_it_there(
    fs: OverlayFileSystem, overlay: Overlay
) -> None:
    fs.pipe("_notes/plan.md", b"plan")
    assert "/_notes" not in fs.ls("", detail=False)
    assert not [path for path in fs.find("") if "_notes" in path]
    fs.rm("", recursive=True)
    assert fs.cat("_notes/plan.md") == b"plan"


def test_a_frozen_overlay_has_everything_in_the_lower_layer(fs: OverlayFileSystem, overlay: Overlay) -> None:
    frozen = FrozenFileSystem(overlay)
    frozen.pipe("a/b", b"b")
    with frozen.open("a/c", "wb") as file:
        file.write(b"c")
        assert frozen.overlay.upper.entries(b"") != []
    assert frozen.overlay.upper.entries(b"") == []
    frozen.rm("src", recursive=True)
    frozen.mv("a", "d")
    assert frozen.find("") == ["/README.md", "/d/b", "/d/c"]


# Files


def test_parts_of_a_file_are_read_as_slices_are(fs: OverlayFileSystem) -> None:
    content = b"print()\n"
    for start, end in (
        (None, None),
        (2, None),
        (None, 3),
        (-3, None),
        (1, -1),
        (-100, 2),
        (5, 2),
        (3, 100),
        (100, None),
    ):
        assert fs.cat_file("src/main.py", start, end) == content[start:end]
    assert fs.head("src/main.py", 3) == content[:3]
    assert fs.tail("src/main.py", 3) == content[-3:]
    assert fs.cat_ranges(["README.md"] * 2, [0, 1], [1, 3]) == [b"h", b"el"]


def test_a_file_is_changed_in_place(fs: OverlayFileSystem) -> None:
    with fs.open("README.md", "r+b") as file:
        file.seek(1)
        file.write(b"u")
    assert fs.cat("README.md") == b"hullo\n"


def test_errors_are_those_of_the_system(fs: OverlayFileSystem) -> None:
    for call, kind, code in (
        (lambda: fs.info("gone"), FileNotFoundError, errno.ENOENT),
        (lambda: fs.ls("gone"), FileNotFoundError, errno.ENOENT),
        (lambda: fs.open("gone"), FileNotFoundError, errno.ENOENT),
        (lambda: fs.info("README.md/x"), NotADirectoryError, errno.ENOTDIR),
        (lambda: fs.open("README.md/x", "wb"), NotADirectoryError, errno.ENOTDIR),
        (lambda: fs.open("src"), IsADirectoryError, errno.EISDIR),
        (lambda: fs.open("src", "wb"), IsADirectoryError, errno.EISDIR),
        (lambda: fs.open("README.md", "xb"), FileExistsError, errno.EEXIST),
        (lambda: fs.mkdir("src"), FileExistsError, errno.EEXIST),
        (lambda: fs.mkdir("a/b", create_parents=False), FileNotFoundError, errno.ENOENT),
        (lambda: fs.makedirs("README.md", exist_ok=True), FileExistsError, errno.EEXIST),
        (lambda: fs.rmdir("src"), OSError, errno.ENOTEMPTY),
        (lambda: fs.rm("src"), IsADirectoryError, errno.EISDIR),
        (lambda: fs.rm("gone"), FileNotFoundError, errno.ENOENT),
        (lambda: fs.rm_file("src"), IsADirectoryError, errno.EISDIR),
        (lambda: fs.mv("gone", "x"), FileNotFoundError, errno.ENOENT),
        (lambda: fs.mv("src", "src/deep/in-itself"), OSError, errno.EINVAL),
        (lambda: fs.cp("gone", "x"), FileNotFoundError, errno.ENOENT),
    ):
        with pytest.raises(kind) as raised:
            call()
        assert raised.value.errno == code
    assert fs.find("") == ["/README.md", "/src/deep/x", "/src/main.py"]


def test_without_auto_mkdir_the_directory_has_to_be_there(overlay: Overlay) -> None:
    fs = OverlayFileSystem(overlay, auto_mkdir=False)
    for call in (lambda: fs.open("a/b", "wb"), lambda: fs.cp("README.md", "a/b"), lambda: fs.mv("README.md", "a/b")):
        with pytest.raises(FileNotFoundError):
            call()
    assert fs.exists("README.md")


def test_mv_renames_over_a_file_and_into_a_directory(fs: OverlayFileSystem, overlay: Overlay) -> None:
    fs.pipe("other", b"other")
    fs.chmod("other", 0o750)
    inode = overlay.stat(b"other").inode
    fs.mv("other", "README.md")
    assert (fs.cat("README.md"), overlay.stat(b"README.md").inode) == (b"other", inode)
    assert fs.info("README.md")["mode"] & 0o777 == 0o750
    fs.mv("README.md", "src")
    fs.mv("src/deep", "new/place/")
    fs.mv("src/main.py", "src/main.py")
    assert fs.find("") == ["/new/place/deep/x", "/src/README.md", "/src/main.py"]
    fs.mv("src/*", "new", recursive=True)
    assert fs.find("") == ["/new/README.md", "/new/main.py", "/new/place/deep/x"]


def test_times_and_modes_are_told_and_kept(fs: OverlayFileSystem, overlay: Overlay) -> None:
    overlay.utime(b"README.md", 1_700_000_000 * 10**9)
    assert fs.modified("README.md").timestamp() == 1_700_000_000
    assert fs.created("README.md").tzinfo is not None
    before = fs.checksum("README.md"), fs.ukey("README.md")
    fs.touch("README.md", truncate=False)
    assert fs.modified("README.md").timestamp() > 1_700_000_000
    assert fs.cat("README.md") == b"hello\n"
    assert (fs.checksum("README.md"), fs.ukey("README.md")) != before
    fs.touch("README.md")
    assert fs.cat("README.md") == b""


# Transactions


def test_what_a_transaction_writes_appears_when_it_ends(fs: OverlayFileSystem) -> None:
    with fs.transaction:
        with fs.open("a/new", "wb") as file:
            file.write(b"one")
        with fs.open("README.md", "ab") as file:
            file.write(b"more\n")
        fs.pipe("src/main.py", b"two")
        assert not fs.exists("a")
        assert fs.cat("README.md") == b"hello\n"
        assert fs.cat("src/main.py") == b"print()\n"
    assert fs.cat(["/a/new", "/README.md", "/src/main.py"]) == {
        "/a/new": b"one",
        "/README.md": b"hello\nmore\n",
        "/src/main.py": b"two",
    }
    fs.pipe("after", b"at once")
    assert fs.cat("after") == b"at once"


def test_a_transaction_that_fails_leaves_nothing(fs: OverlayFileSystem) -> None:
    def fail() -> None:
        with fs.transaction:
            fs.pipe("a/new", b"one")
            fs.pipe("README.md", b"two")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        fail()
    assert not fs.exists("a")
    assert fs.cat("README.md") == b"hello\n"


def test_a_transaction_refuses_at_once_what_it_could_not_do_at_its_end(fs: OverlayFileSystem) -> None:
    with fs.transaction:
        with pytest.raises(FileExistsError):
            fs.open("README.md", "xb")
        with pytest.raises(IsADirectoryError):
            fs.open("src", "wb")
        with pytest.raises(OptionsError):
            fs.open("README.md", "r+b")
        with fs.open("README.md") as file:
            assert file.read() == b"hello\n"


# Symlinks


def test_symlinks_are_followed_inside_the_overlay(links: OverlayFileSystem, overlay: Overlay) -> None:
    fs = links
    assert fs.cat("to-file") == b"print()\n"
    assert fs.cat("to-dir/main.py") == b"print()\n"
    assert fs.cat("to-dir/up") == b"hello\n"
    info = fs.info("to-file")
    assert (info["type"], info["size"], info["islink"], info["destination"]) == ("file", 8, True, "src/main.py")
    assert fs.info("to-dir")["type"] == "directory"
    assert fs.ls("to-dir", detail=False) == ["/to-dir/deep", "/to-dir/main.py", "/to-dir/up"]
    fs.pipe("to-dir/new/file", b"new")
    assert overlay.read_bytes(b"src/new/file") == b"new"
    fs.pipe("to-file", b"through")
    assert overlay.read_bytes(b"src/main.py") == b"through"
    fs.chmod("to-file", 0o700)
    assert overlay.stat(b"src/main.py").mode == 0o700
    fs.makedirs("to-dir/deep", exist_ok=True)
    fs.makedirs("to-dir", exist_ok=True)


def test_symlinks_that_lead_out_or_nowhere_do_not_exist_and_cannot_be_opened(links: OverlayFileSystem) -> None:
    for path in ("out", "rooted", "loop", "dangling"):
        assert (links.exists(path), links.lexists(path), links.islink(path)) == (False, True, True)
        assert not links.isfile(path)
        for mode in ("rb", "ab", "wb"):
            with pytest.raises(OSError) as raised:  # noqa: PT011
                links.open(path, mode)
            assert raised.value.errno in (errno.EXDEV, errno.ELOOP, errno.ENOENT)
        with pytest.raises(FileExistsError):
            links.open(path, "xb")


def test_nothing_walks_through_a_symlink_and_removing_one_spares_its_target(links: OverlayFileSystem) -> None:
    fs = links
    listed = {each["name"]: each["type"] for each in fs.ls("")}
    assert (listed["/to-file"], listed["/to-dir"], listed["/loop"]) == ("file", "other", "other")
    assert not [path for path in fs.find("") if path.startswith("/to-dir/")]
    fs.rm("to-dir", recursive=True)
    fs.rm("to-file")
    fs.rm("loop")
    assert not any(fs.lexists(path) for path in ("to-dir", "to-file", "loop"))
    assert fs.cat("src/main.py") == b"print()\n"


def test_a_symlink_is_moved_as_one_and_made_to_lead_to_a_path(links: OverlayFileSystem, overlay: Overlay) -> None:
    links.mv("to-file", "moved")
    assert overlay.readlink(b"moved") == b"src/main.py"
    links.symlink("README.md", "src/deep/readme")
    assert overlay.readlink(b"src/deep/readme") == b"../../README.md"
    assert links.cat("src/deep/readme") == b"hello\n"
    links.link("README.md", "twin")
    assert links.info("twin")["nlink"] == 2


# Names and trees that mean harm

NAMES = (
    b"new\nline",
    b" ",
    b"~",
    b"-rf",
    b"\xff\xfe",
    "é".encode(),
    b"a:b",
    b"a::b",
    b"#?%20",
    b"back\\slash",
    b"x" * 255,
)


@pytest.mark.parametrize("name", NAMES)
def test_any_name_comes_and_goes(fs: OverlayFileSystem, overlay: Overlay, name: bytes) -> None:
    shown = os.fsdecode(name)
    fs.pipe(f"d/{shown}/{shown}", b"x")
    assert overlay.read_bytes(b"d/" + name + b"/" + name) == b"x"
    assert fs.find("d") == [f"/d/{shown}/{shown}"]
    assert fs.info(f"d/{shown}")["name"] == f"/d/{shown}"
    fs.mv(f"d/{shown}/{shown}", f"d/{shown}/moved")
    assert fs.cat_file(f"d/{shown}/moved") == b"x"
    fs.rm_file(f"d/{shown}/moved")
    fs.rmdir(f"d/{shown}")
    assert fs.ls("d") == []


def test_a_name_that_looks_like_a_glob_is_removed_and_moved_alone(fs: OverlayFileSystem) -> None:
    fs.pipe({"d/a?": b"odd", "d/ab": b"even", "d/[x]/y": b"odd", "d/x/y": b"even"})
    fs.rm("d/a?")
    fs.rm("d/[x]", recursive=True)
    assert fs.find("d") == ["/d/ab", "/d/x/y"]
    fs.pipe("d/a*", b"odd")
    fs.mv("d/a*", "moved")
    fs.rm("d/a?")
    assert fs.find("") == ["/README.md", "/d/x/y", "/moved", "/src/deep/x", "/src/main.py"]


@pytest.mark.parametrize("path", ["..", "../x", "src/../../etc/passwd", "a\0b", "\ud800"])
def test_paths_that_cannot_be_are_refused(fs: OverlayFileSystem, path: str) -> None:
    calls: list[Any] = [fs.info, fs.ls, fs.open, fs.mkdir, fs.makedirs, fs.rm_file, fs.rmdir, fs.touch]
    for call in calls:
        with pytest.raises(OptionsError):
            call(path)
    assert not fs.exists(path)


def test_a_very_deep_tree_is_walked_and_removed(tmp_path: Path) -> None:
    levels = sys.getrecursionlimit() + 100
    with new_overlay("memory", tmp_path) as overlay:
        fs = OverlayFileSystem(overlay)
        fs.makedirs("top/" + "/".join(["d"] * levels))
        assert sum(1 for _ in fs.walk("top")) == levels + 1
        assert len(next(fs.walk("top", topdown=False))[0]) > 2 * levels
        fs.rm("top", recursive=True)
        assert not fs.exists("top")


def test_names_alone_are_those_that_come_with_details(links: OverlayFileSystem, overlay: Overlay) -> None:
    overlay.mkdir(b"empty")
    for withdirs in (False, True):
        assert links.find("/", withdirs=withdirs) == sorted(links.find("/", withdirs=withdirs, detail=True))
    for pattern in ("/**", "/*", "/**/", "/src/*", "/to-*", "/to-dir/*", "/**/x", "/dangling", "/gone"):
        assert links.glob(pattern) == sorted(links.glob(pattern, detail=True)), pattern
    named = [(here, directories, files) for here, directories, files in links.walk("/")]
    assert named == [(here, list(below), list(files)) for here, below, files in links.walk("/", detail=True)]
    assert links.find("/", detail=True)["/src/main.py"]["size"] == 8


def test_walks_are_those_of_fsspec(fs: OverlayFileSystem) -> None:
    assert list(fs.walk("")) == [
        ("/", ["src"], ["README.md"]),
        ("/src", ["deep"], ["main.py"]),
        ("/src/deep", [], ["x"]),
    ]
    assert list(fs.walk("", topdown=False))[-1][0] == "/"
    assert [path for path, _, _ in fs.walk("", maxdepth=2)] == ["/", "/src"]
    pruned = []
    for path, directories, _ in fs.walk("src"):
        pruned.append(path)
        directories.clear()
    assert pruned == ["/src"]
    assert list(fs.walk("gone")) == []
    with pytest.raises(FileNotFoundError):
        list(fs.walk("gone", on_error="raise"))
    seen: list[OSError] = []
    list(fs.walk("gone", on_error=seen.append))
    assert isinstance(seen[0], FileNotFoundError)
    assert list(fs.walk("README.md")) == [("/README.md", [], [""])]
    with pytest.raises(ValueError, match="maxdepth"):
        list(fs.walk("", maxdepth=0))
