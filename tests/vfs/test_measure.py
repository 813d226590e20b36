"""Measuring a tree: everything once, nothing through a symlink, never more than was asked for."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sandbox.users import ordinary_user
from workbench.vfs.measure import Measured, measure

_BLOCK = 4096


def blocks(*paths: Path) -> int:
    return sum(os.lstat(path).st_blocks * 512 for path in paths)


def test_everything_is_counted_once(tmp_path: Path) -> None:
    top = tmp_path / "top"
    (top / "d" / "e").mkdir(parents=True)
    (top / "d" / "big").write_bytes(b"x" * 100 * _BLOCK)
    os.link(top / "d" / "big", top / "another name")
    (top / os.fsdecode(b"odd\n\xff")).write_bytes(b"y")
    (top / "sparse").touch()
    os.truncate(top / "sparse", 1 << 40)
    found = measure(str(top))
    assert (found.entries, found.directories, found.files, found.complete) == (6, 2, 4, True)
    everything = (top, top / "d", top / "d" / "e", top / "d" / "big", top / os.fsdecode(b"odd\n\xff"), top / "sparse")
    assert found.size == blocks(*everything)
    assert found.changed_ns == max(os.lstat(path).st_ctime_ns for path in everything)


def test_no_symlink_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "big").write_bytes(b"x" * 100 * _BLOCK)
    top = tmp_path / "top"
    top.mkdir()
    (top / "out").symlink_to(outside)
    (top / "loop").symlink_to(top)
    found = measure(str(top))
    assert (found.entries, found.size) == (2, blocks(top, top / "out", top / "loop"))
    with pytest.raises(NotADirectoryError):
        measure(str(top / "out"))


def test_a_limit_is_kept_and_said(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").touch()
    assert measure(str(tmp_path), 8) == measure(str(tmp_path))
    found = measure(str(tmp_path), 7)
    assert (found.entries, found.complete) == (7, False)
    assert (found + Measured()).complete is False


def test_more_directories_than_descriptors_and_any_depth_are_measured(tmp_path: Path) -> None:
    for number in range(3000):
        (tmp_path / "wide" / str(number)).mkdir(parents=True)
    here = os.getcwd()
    try:
        os.chdir(tmp_path)
        for _ in range(300):
            os.mkdir("d" * 50)
            os.chdir("d" * 50)
    finally:
        os.chdir(here)
    found = measure(str(tmp_path))
    assert (found.directories, found.complete) == (3301, True)


@pytest.mark.root
def test_what_is_closed_to_its_owner_makes_it_incomplete_and_nothing_else() -> None:
    with ordinary_user() as user:
        user.run(
            "import os; from workbench.vfs.measure import measure; os.makedirs('t/closed/in'); open('t/f', 'w').close();"
            "os.chmod('t/closed', 0); found = measure('t'); os.chmod('t/closed', 0o700);"
            "assert (found.entries, found.complete) == (2, False), found; assert measure('t').entries == 3"
        )
