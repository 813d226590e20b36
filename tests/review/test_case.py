"""Names that differ in case alone: two files where the filesystem tells them apart, else nothing is lost and it's said."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.review.landing import Landing, without_syncs
from workbench.errors import WorkbenchError
from workbench.vfs.local import LocalStorage


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
