"""What a person changed meanwhile comes into the overlay by a three-way merge, and the real workspace isn't touched."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.review.landing import Landing, without_syncs, write_upper
from workbench.checkpoints.manifest import Base, Certainty, Manifest
from workbench.review.bases import conflicts
from workbench.review.compare import change_set
from workbench.review.merge import Merge, has_markers, merge

LINES = [f"line {number}\n".encode() for number in range(12)]


@pytest.fixture(autouse=True)
def no_syncs() -> Iterator[None]:
    with without_syncs():
        yield


@pytest.fixture
def landing(tmp_path: Path) -> Iterator[Landing]:
    made = Landing(tmp_path)
    yield made
    made.close()


def text(*changed: tuple[int, bytes]) -> bytes:
    return b"".join(dict(changed).get(number, line) for number, line in enumerate(LINES))


def merged(landing: Landing, manifest: Manifest, **options: object) -> Merge:
    """Merge what conflicts, make it the upper layer; the lower stays as it is."""
    before = landing.tree(times=True)
    changes = change_set("c", manifest, landing.lower, landing.store, scratch=b"_notes")
    found = conflicts(landing.lower, changes, manifest)
    with landing.store.adding() as sink:
        done = merge(manifest, found, landing.lower, landing.store, sink, **options)  # type: ignore[arg-type]
    write_upper(landing, done.manifest)
    assert landing.tree(times=True) == before
    return done


def land(landing: Landing, manifest: Manifest) -> None:
    """What the overlay shows lands, without a conflict."""
    view = landing.merged()
    changes = change_set("c", manifest, landing.lower, landing.store, scratch=b"_notes")
    landing.land((manifest, changes))
    assert landing.tree() == view


def upper(landing: Landing, path: bytes) -> bytes:
    with open(landing.at("upper", path), "rb") as file:
        return file.read()


def edit(landing: Landing, path: bytes, content: bytes, mode: int = 0o644) -> None:
    """As an editor saves: by rename."""
    landing.write("lower", path + b".new", content, mode)
    os.rename(landing.at("lower", path + b".new"), landing.at("lower", path))


def test_changes_of_different_lines_are_merged_and_land(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((0, b"agent\n")))
    manifest = landing.manifest()
    edit(landing, b"f", text((11, b"person\n")))
    done = merged(landing, manifest)
    assert (done.merged, done.marked, done.unmerged) == ([b"f"], [], {})
    assert upper(landing, b"f") == text((0, b"agent\n"), (11, b"person\n"))
    land(landing, done.manifest)


def test_changes_of_the_same_line_leave_markers_in_the_overlay_alone(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((5, b"agent\n")))
    manifest = landing.manifest()
    edit(landing, b"f", text((5, b"person\n"), (11, b"person\n")))
    done = merged(landing, manifest)
    assert done.marked == [b"f"]
    content = upper(landing, b"f")
    assert has_markers(content)
    assert b"<<<<<<< overlay\nagent\n=======\nperson\n>>>>>>> workspace\n" in content
    assert not has_markers(landing.read(b"f"))


def test_an_edit_during_the_merge_conflicts_again(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((0, b"agent\n")))
    manifest = landing.manifest()
    edit(landing, b"f", text((11, b"person\n")))
    done = merged(landing, manifest)
    edit(landing, b"f", text((10, b"person\n")))
    again = merged(landing, done.manifest)
    assert again.merged == [b"f"]
    assert upper(landing, b"f") == text((0, b"agent\n"), (10, b"person\n"))
    land(landing, again.manifest)


def test_a_file_that_both_made_is_merged_from_nothing(landing: Landing) -> None:
    landing.write("upper", b"f", b"agent\n")
    landing.write("upper", b"same", b"both\n")
    manifest = landing.manifest()
    landing.write("lower", b"f", b"person\n")
    landing.write("lower", b"same", b"both\n")
    done = merged(landing, manifest)
    assert done.marked == [b"f"]
    assert b"agent\n=======\nperson\n" in upper(landing, b"f")


def test_an_unknown_base_is_merged_from_nothing_rather_than_from_a_guess(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((0, b"agent\n")))
    manifest = landing.manifest()
    manifest = manifest.with_entries(manifest.entries, {**manifest.bases, b"f": Base(b"f", Certainty.UNKNOWN)})
    done = merged(landing, manifest)
    assert done.marked == [b"f"]


def test_a_mode_of_either_side_is_kept_and_two_of_them_are_listed(landing: Landing) -> None:
    for name in (b"ours", b"theirs", b"both"):
        landing.write("lower", name, text())
    landing.write("upper", b"ours", text((0, b"agent\n")), 0o755)
    landing.write("upper", b"theirs", text((0, b"agent\n")))
    landing.write("upper", b"both", text((0, b"agent\n")), 0o755)
    manifest = landing.manifest()
    edit(landing, b"ours", text((11, b"person\n")))
    edit(landing, b"theirs", text((11, b"person\n")), 0o600)
    edit(landing, b"both", text((11, b"person\n")), 0o600)
    done = merged(landing, manifest)
    assert done.unmerged == {b"both": "mode"}
    modes = [os.stat(landing.at("upper", name)).st_mode & 0o777 for name in (b"ours", b"theirs")]
    assert modes == [0o755, 0o600]


def unmergeable(landing: Landing) -> Manifest:
    for name in (b"binary", b"to-link", b"edited-and-deleted", b"deleted-and-edited"):
        landing.write("lower", name, b"old\0")
    landing.symlink("lower", b"link", b"a")
    landing.write("lower", b"d/f", b"old")
    landing.write("upper", b"binary", b"agent\0")
    landing.write("upper", b"to-link", b"agent")
    landing.write("upper", b"edited-and-deleted", b"agent")
    landing.whiteout(b"deleted-and-edited")
    landing.symlink("upper", b"link", b"b")
    landing.write("upper", b"d/f", b"agent")
    manifest = landing.manifest()
    edit(landing, b"binary", b"person\0")
    os.unlink(landing.at("lower", b"to-link"))
    landing.symlink("lower", b"to-link", b"c")
    os.unlink(landing.at("lower", b"edited-and-deleted"))
    edit(landing, b"deleted-and-edited", b"person")
    os.unlink(landing.at("lower", b"link"))
    landing.symlink("lower", b"link", b"c")
    return manifest


def test_what_isnt_text_on_both_sides_is_listed_and_left_alone(landing: Landing) -> None:
    manifest = unmergeable(landing)
    done = merged(landing, manifest)
    assert done.unmerged == {
        b"binary": "binary",
        b"to-link": "symbolic link",
        b"edited-and-deleted": "deleted on one side",
        b"deleted-and-edited": "deleted on one side",
        b"link": "symbolic link",
    }
    assert done.manifest.entries == manifest.entries
    assert done.manifest.bases == manifest.bases


@pytest.mark.parametrize("side", ["ours", "theirs"])
def test_one_side_can_be_meant_and_then_lands(landing: Landing, side: str) -> None:
    manifest = unmergeable(landing)
    view = landing.merged()
    lower = landing.tree()
    done = merged(landing, manifest, **{side: [b""]})
    assert done.unmerged == {}
    assert len(done.taken) == 5
    if side == "ours":
        assert landing.merged() == view
    else:
        assert landing.merged() == {**lower, b"d/f": view[b"d/f"]}
    land(landing, done.manifest)


def test_what_lies_in_a_directory_that_was_replaced_is_listed(landing: Landing) -> None:
    landing.write("lower", b"d/f", b"old\n")
    landing.mkdir("upper", b"d", opaque=True)
    landing.write("upper", b"d/f", b"agent\n")
    manifest = landing.manifest()
    edit(landing, b"d/f", b"person\n")
    landing.write("lower", b"d/new", b"person\n")
    done = merged(landing, manifest, theirs=[b"d"])
    assert set(done.unmerged) == {b"d/f", b"d/new"}


lines = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"a\r\n"]), max_size=6).map(b"".join)


@settings(max_examples=60, deadline=None)
@given(lines, lines, lines)
def test_whatever_three_texts_there_are_nothing_of_either_side_is_lost(base: bytes, ours: bytes, theirs: bytes) -> None:
    directory = Path(tempfile.mkdtemp())
    landing = Landing(directory)
    try:
        landing.write("lower", b"f", base)
        landing.write("upper", b"f", ours)
        manifest = landing.manifest()
        edit(landing, b"f", theirs)
        done = merged(landing, manifest)
        content = upper(landing, b"f")
        if ours in (base, theirs) or theirs == base:
            assert done.marked == []
        if done.marked:
            assert has_markers(content)
            old = base.splitlines(keepends=True)
            for side in (ours, theirs):
                new = [line for line in side.splitlines(keepends=True) if line not in old]
                assert all(line in content for line in new)
        assert landing.read(b"f") == theirs
        if b"f" in done.merged:
            assert done.manifest.bases[b"f"].certainty is Certainty.KNOWN
            land(landing, done.manifest)
    finally:
        landing.close()
        shutil.rmtree(directory)
