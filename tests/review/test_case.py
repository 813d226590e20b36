"""Names that differ in case alone: two files where the filesystem tells them apart, else nothing is lost and it's said."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.review.landing import Landing, without_syncs
from tests.trees import snapshot
from workbench.errors import WorkbenchError
from workbench.review.bases import conflicts
from workbench.review.branch import make_branch
from workbench.review.diff import unified
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage, OpenDirectory


@pytest.fixture
def landing(tmp_path: Path) -> Iterator[Landing]:
    made = Landing(tmp_path)
    with without_syncs():
        yield made
    made.close()


@pytest.fixture
def ignoring(landing: Landing, tmp_path: Path) -> Iterator[Landing]:
    """With a lower that ignores case, whichever filesystem of the kind can be had."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a filesystem that ignores case")
    image, lower = tmp_path / "image", os.fsdecode(landing.lower_path)
    image.touch()
    os.truncate(image, 16 << 20)
    ways = (
        'mount -t tmpfs -o casefold none "$2" && chattr +F "$2"',
        'mkfs.ext4 -q -O casefold "$1" && mount -o loop "$1" "$2" && rmdir "$2/lost+found" && chattr +F "$2"',
    )
    try:
        for way in ways:
            if subprocess.run(["sh", "-c", way, "sh", image, lower], capture_output=True, check=False).returncode == 0:
                break
            subprocess.run(["umount", lower], capture_output=True, check=False)
        else:
            pytest.skip("this kernel has no filesystem that ignores case: tmpfs or ext4 with casefold")
        landing.lower.close()
        landing.lower = LocalStorage(landing.lower_path)
        yield landing
    finally:
        landing.lower.close()
        subprocess.run(["umount", lower], capture_output=True, check=False)


@pytest.fixture
def folding(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> Landing:
    """With a lower that answers to a name in any case, where no filesystem of the kind can be had."""
    landing.git("init", "-q", "-b", "main")
    landing.git("config", "core.ignorecase", "true")
    landing.write("lower", b"README", b"old")
    landing.write("lower", b"Src/a", b"a")
    landing.git("add", "-A")
    landing.git("commit", "-q", "-m", "first")
    open_below, stat = paths.open_below, OpenDirectory.stat

    def standing(directory_fd: int, path: bytes) -> bytes:
        found: list[bytes] = []
        for name in path.split(b"/"):
            here = os.listdir(b"/proc/self/fd/%d/%s" % (directory_fd, b"/".join(found)))
            found.append(name if name in here else next((one for one in here if one.lower() == name.lower()), name))
        return b"/".join(found)

    def opening(root_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
        if path and os.path.samestat(os.fstat(root_fd), os.stat(landing.lower_path)):
            with contextlib.suppress(OSError):
                path = standing(root_fd, path)
        return open_below(root_fd, path, flags, mode)

    monkeypatch.setattr(paths, "open_below", opening)
    monkeypatch.setattr(OpenDirectory, "stat", lambda self, name: stat(self, standing(self._fd, name)))
    return landing


RENAMED_IN_CASE = [
    pytest.param((b"README",), {b"readme": b"old"}, {b"readme": b"old", b"Src/a": b"a"}, id="a file"),
    pytest.param((b"README",), {b"readme": b"new"}, {b"readme": b"new", b"Src/a": b"a"}, id="a changed file"),
    pytest.param((b"Src",), {b"src/a": b"a"}, {b"README": b"old", b"src/a": b"a"}, id="a directory"),
    pytest.param((b"Src",), {b"src/A": b"b"}, {b"README": b"old", b"src/A": b"b"}, id="a directory and a file in it"),
    pytest.param((b"Src/a",), {b"Src/A": b"a"}, {b"README": b"old", b"Src/A": b"a"}, id="a file in a directory"),
    pytest.param(
        (b"Src/",), {b"Src/A": b"a"}, {b"README": b"old", b"Src/A": b"a"}, id="a file in a directory made anew"
    ),
]


@pytest.mark.parametrize(("gone", "come", "view"), RENAMED_IN_CASE)
def test_where_case_is_ignored_a_patch_and_a_branch_have_both_sides_of_a_rename(
    folding: Landing, tmp_path: Path, gone: tuple[bytes, ...], come: dict[bytes, bytes], view: dict[bytes, bytes]
) -> None:
    before = folding.tree()
    for path in gone:
        if path.endswith(b"/"):
            folding.mkdir("upper", path[:-1], opaque=True)
        else:
            folding.whiteout(path)
    for path, content in come.items():
        folding.write("upper", path, content)
    manifest, changes = folding.review()
    assert {path for change in changes.changes for path, _, new in change.steps() if new} >= set(come)
    assert conflicts(folding.lower, changes, manifest) == []
    patch = b"".join(unified(changes.changes, folding.lower, folding.store))
    made = make_branch(folding.lower, changes, folding.store, "b")
    # Elsewhere the two names are two.
    target = os.fsencode(tmp_path / "target")
    folding.git("clone", "-q", folding.lower_path.decode(), target.decode())
    (tmp_path / "patch").write_bytes(patch)
    folding.git("apply", str(tmp_path / "patch"), cwd=target)
    for where in (target, None):
        if where is None:
            folding.git("checkout", "-q", "-f", made.commit, cwd=target)
        found = snapshot(target, times=False)
        files = {path for path, node in found.items() if node.content and not path.startswith(b".git/")}
        assert files == set(view)
        for path, content in view.items():
            with open(os.path.join(target, path), "rb") as file:
                assert file.read() == content
    # It can't land there, and nothing is touched.
    with pytest.raises(WorkbenchError) as caught:
        folding.land((manifest, changes))
    assert caught.value.code == "not_landable"
    assert {path: node for path, node in folding.tree().items() if not path.startswith(b".git")} == {
        path: node for path, node in before.items() if not path.startswith(b".git")
    }
    folding.assert_tidy()


def test_names_that_differ_in_case_alone_are_two_where_the_filesystem_tells_them_apart(landing: Landing) -> None:
    landing.write("lower", b"README", b"old")
    landing.write("lower", b"Src/a", b"a")
    landing.whiteout(b"README")
    landing.write("upper", b"readme", b"old")
    landing.whiteout(b"Src")
    landing.write("upper", b"src/a", b"a")
    landing.write("upper", b"new", b"1")
    landing.write("upper", b"New", b"2")
    view = landing.merged()
    landing.land()
    assert landing.tree() == view


def test_one_of_two_hard_linked_names_that_differ_in_case_alone_can_go(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    os.link(landing.at("lower", b"a"), landing.at("lower", b"A"))
    landing.whiteout(b"A")
    landing.write("upper", b"a", b"1", 0o755)
    landing.land()
    assert os.listdir(landing.lower_path) == [b"a"]


@pytest.mark.parametrize(
    ("gone", "come"),
    [
        pytest.param((), {b"a": b"1", b"A": b"2"}, id="two new files"),
        pytest.param((), {b"d/a": b"1", b"d/A": b"2"}, id="two new files in a new directory"),
        pytest.param((), {b"README": b"new", b"readme": b"newer"}, id="a second file beside a changed one"),
        pytest.param((b"README",), {b"readme": b"old"}, id="a renamed file"),
        pytest.param((b"README",), {b"readme": b"new"}, id="a renamed and changed file"),
        pytest.param((b"Src",), {b"src/a": b"a"}, id="a renamed directory"),
    ],
)
def test_where_case_is_ignored_what_would_collide_is_refused_and_nothing_is_lost(
    ignoring: Landing, gone: tuple[bytes, ...], come: dict[bytes, bytes]
) -> None:
    ignoring.write("lower", b"README", b"old")
    ignoring.write("lower", b"Src/a", b"a")
    for path in gone:
        ignoring.whiteout(path)
    for path, content in come.items():
        ignoring.write("upper", path, content)
    with pytest.raises(WorkbenchError) as caught:
        ignoring.land()
    assert caught.value.code in ("not_landable", "conflict")
    assert ignoring.read(b"README") == b"old"
    assert ignoring.read(b"Src/a") == b"a"
    assert len(os.listdir(ignoring.lower_path)) == 2
    ignoring.assert_tidy()


def test_where_case_is_ignored_ordinary_changes_land(ignoring: Landing) -> None:
    ignoring.write("lower", b"README", b"old")
    ignoring.write("lower", b"gone", b"old")
    ignoring.whiteout(b"gone")
    ignoring.write("upper", b"README", b"new")
    ignoring.write("upper", b"d/f", b"1")
    ignoring.land()
    assert sorted(os.listdir(ignoring.lower_path)) == [b"README", b"d"]
    assert ignoring.read(b"README") == b"new"
