"""A commit that landed can be taken back, and that again; what was changed since is never touched."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.review.landing import Landing, count_of, everything, freshly_made, in_child, kill_at, without_syncs
from tests.review.test_remaining import build, lower_tree, upper_tree
from workbench.checkpoints.manifest import Manifest
from workbench.errors import CommitError, ConflictError
from workbench.review.bases import conflicts, differing
from workbench.review.changeset import ChangeSet
from workbench.review.landed import Committed, find_by_id
from workbench.review.revert import inverted


@pytest.fixture(autouse=True)
def no_syncs() -> Iterator[None]:
    with without_syncs():
        yield


@pytest.fixture
def landing(tmp_path: Path) -> Iterator[Landing]:
    made = Landing(tmp_path)
    yield made
    made.close()


def inverse_of(landing: Landing, committed: Committed) -> tuple[Manifest, ChangeSet]:
    with landing.store.adding() as sink:
        changes, manifest = inverted(find_by_id(landing.commits, committed.commit_id), sink)
    return manifest, changes


def test_a_revert_brings_back_all_that_was_there_and_a_second_one_what_landed(landing: Landing) -> None:
    everything(landing)
    old = landing.tree()
    committed = landing.land()
    new = landing.tree()
    reverted = landing.land(inverse_of(landing, committed))
    assert landing.tree() == old
    assert landing.lower.stat(b"replaced").mtime_ns
    landing.land(inverse_of(landing, reverted))
    assert landing.tree() == new


def test_what_was_changed_since_conflicts_and_nothing_is_touched(landing: Landing) -> None:
    everything(landing)
    committed = landing.land()
    for name in (b"replaced", b"fresh/tree/of/files"):
        with open(landing.at("lower", name), "ab") as file:
            file.write(b"person")
    landing.write("lower", b"fresh/tree/mine", b"person")
    landing.write("lower", b"deleted", b"person")
    before = landing.tree(times=True)
    with pytest.raises(ConflictError) as caught:
        landing.land(inverse_of(landing, committed))
    assert set(caught.value.paths) == {
        b"replaced",
        b"fresh/tree/of/files",
        b"fresh/tree/mine",
        b"deleted",
    }
    assert landing.tree(times=True) == before


def test_what_the_person_had_done_as_well_is_left(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    landing.write("lower", b"b", b"1")
    landing.write("upper", b"a", b"2")
    landing.write("upper", b"b", b"2")
    reviewed = landing.review()
    with open(landing.at("lower", b"b"), "wb") as file:
        file.write(b"2")
    committed = landing.land(reviewed)
    landing.land(inverse_of(landing, committed))
    assert (landing.read(b"a"), landing.read(b"b")) == (b"1", b"2")


def test_what_isnt_kept_any_more_is_refused(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    landing.write("upper", b"a", b"2")
    committed = landing.land()
    shutil.rmtree(os.path.join(committed.directory, "old"))
    with pytest.raises(CommitError) as caught:
        inverse_of(landing, committed)
    assert caught.value.code == "not_landable"
    for name in ("", "nothing", ".unsettled"):
        with pytest.raises(CommitError) as caught:
            find_by_id(landing.commits, name)
        assert caught.value.code == "commit_unknown"


def test_closed_directories_come_back_as_they_were_without_root() -> None:
    def act() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
        base = Path(tempfile.mkdtemp(dir="/tmp"))
        landing = Landing(base)
        try:
            closed_directories_come_back(landing)
        finally:
            for directory, _, _ in os.walk(base):
                os.chmod(directory, 0o700)
            shutil.rmtree(base)

    assert in_child(act) == 0


def closed_directories_come_back(landing: Landing) -> None:
    landing.write("lower", b"gone/a", b"1")
    landing.write("lower", b"kind/a", b"1")
    for name in (b"gone", b"kind"):
        os.chmod(landing.at("lower", name), 0o555)
    landing.whiteout(b"gone")
    landing.write("upper", b"kind", b"a file")
    landing.write("upper", b"fresh/deep/file", b"1")
    landing.mkdir("upper", b"fresh/deep", 0o555)
    landing.mkdir("upper", b"fresh", 0o555)
    old, committed = landing.tree(), landing.land()
    new = landing.tree()
    reverted = landing.land(inverse_of(landing, committed))
    assert landing.tree() == old
    landing.land(inverse_of(landing, reverted))
    assert landing.tree() == new


def test_a_kill_at_every_step_of_a_revert_leaves_all_or_nothing(tmp_path: Path) -> None:
    with freshly_made(tmp_path) as make:
        landing = make()
        committed = landing.land()
        inverse = inverse_of(landing, committed)
        steps = count_of(lambda hook: landing.land(inverse, hook))
        for step in range(0, steps, 2):
            landing = make()
            old = landing.tree()
            inverse = inverse_of(landing, landing.land())
            new = landing.tree()
            assert in_child(lambda: landing.land(inverse, kill_at(step))) == -9  # noqa: B023
            landing.recover()
            landing.assert_tidy()
            assert landing.tree() in (old, new)


@settings(max_examples=100, deadline=None)
@given(lower_tree, upper_tree)
def test_whatever_landed_can_be_taken_back(
    lower: dict[bytes, tuple[object, ...]], upper: dict[bytes, tuple[object, ...]]
) -> None:
    base = Path(tempfile.mkdtemp())
    landing = Landing(base)
    try:
        build(landing, "lower", lower)
        build(landing, "upper", upper)
        old = landing.tree()
        committed = landing.land()
        assert differing(landing.lower, committed.changes) == []
        manifest, changes = inverse_of(landing, committed)
        assert conflicts(landing.lower, changes, manifest) == []
        landing.land((manifest, changes))
        assert landing.tree() == old
    finally:
        landing.close()
        shutil.rmtree(base)


def test_what_is_not_as_it_landed_is_told_by_its_content(landing: Landing) -> None:
    for name in (b"same", b"bytes", b"mode", b"gone"):
        landing.write("upper", name, b"1")
    committed = landing.land()
    assert differing(landing.lower, committed.changes) == []
    path = landing.at("lower", b"bytes")
    before = os.stat(path)
    with open(path, "wb") as file:
        file.write(b"2")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    os.chmod(landing.at("lower", b"mode"), 0o600)
    os.unlink(landing.at("lower", b"gone"))
    assert differing(landing.lower, committed.changes) == [b"bytes", b"gone", b"mode"]
