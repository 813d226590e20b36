"""After a crash at any moment the workspace is all old or all new, and what a person typed since stays."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.review.landing import (
    ALLOCATING,
    CHANGING,
    Landing,
    Make,
    calls,
    count_of,
    fail_at,
    freshly_made,
    in_child,
    kill_at,
)
from workbench.errors import CommitError, ConflictError
from workbench.review import recovery
from workbench.review.recovery import pending, unsettled


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    with freshly_made(tmp_path) as fresh:
        yield fresh


def file_times(landing: Landing) -> dict[bytes, int]:
    return {path: node.mtime_ns for path, node in landing.tree(times=True).items() if node.content}


def assert_whole(landing: Landing, old: object, new: object, where: int) -> bool:
    """Whether it's all new; else it must be all old."""
    landing.assert_tidy()
    tree = landing.tree()
    assert tree in (old, new), f"neither old nor new after fault {where}"
    assert bool(unsettled(landing.commits)) == (tree == new), where
    return tree == new


ERRORS = {errno.EIO: 1, errno.EACCES: 1, errno.EROFS: 4, errno.EXDEV: 4}
"""The errors that calls fail with, and at every how many."""


def test_five_hundred_faults_and_more_are_injected_into_one_commit(
    make: Make, record_property: Callable[[str, object], None]
) -> None:
    """What the tests below inject, counted as they count it."""

    def made(names: tuple[str, ...]) -> int:
        def land(hook: Callable[[str], None]) -> None:
            landing = make()
            reviewed = landing.review()
            with calls(hook, names):
                landing.land(reviewed)

        return count_of(land)

    changing = made(CHANGING)
    faults = {
        "kill at a step": count_of(lambda hook: make().land(on_step=hook)),
        "kill at a changing call": changing,
        **{errno.errorcode[code]: len(range(0, changing, every)) for code, every in ERRORS.items()},
        "ENOSPC from a call on": made(ALLOCATING),
    }
    for name, number in faults.items():
        record_property(name, number)
    print(faults, sum(faults.values()))
    assert sum(faults.values()) >= 500


def test_a_kill_at_every_step_leaves_all_or_nothing(make: Make) -> None:
    steps = count_of(lambda hook: make().land(on_step=hook))
    outcomes = set()
    for step in range(steps):
        landing = make()
        old, times, new, reviewed = landing.tree(), file_times(landing), landing.merged(), landing.review()
        assert in_child(lambda: landing.land(reviewed, kill_at(step))) == -9  # noqa: B023
        landing.recover()
        is_new = assert_whole(landing, old, new, step)
        if not is_new:
            assert file_times(landing) == times
        outcomes.add(is_new)
        assert landing.recover() == []
    assert outcomes == {True, False}


def test_a_kill_at_every_changing_call_leaves_all_or_nothing(make: Make) -> None:
    def land(landing: Landing, hook: Callable[[str], None], reviewed: object = None) -> None:
        reviewed = reviewed or landing.review()
        with calls(hook):
            landing.land(reviewed)

    total = count_of(lambda hook: land(make(), hook))
    for call in range(total):
        landing = make()
        old, new, reviewed = landing.tree(), landing.merged(), landing.review()
        assert in_child(lambda: land(landing, kill_at(call), reviewed)) == -9  # noqa: B023
        landing.recover()
        assert_whole(landing, old, new, call)


def test_a_kill_during_recovery_is_recovered_from(make: Make) -> None:
    steps = count_of(lambda hook: make().land(on_step=hook))
    for step in range(5, steps, 7):
        again = 0
        while True:
            landing = make()
            old, new, reviewed = landing.tree(), landing.merged(), landing.review()
            assert in_child(lambda: landing.land(reviewed, kill_at(step))) == -9  # noqa: B023

            def recover_with_a_kill(landing: Landing = landing, again: int = again) -> None:
                with calls(kill_at(again)):
                    landing.recover()

            code = in_child(recover_with_a_kill)
            landing.recover()
            assert_whole(landing, old, new, step)
            if code == 0:
                break
            assert code == -9
            again += 4


@pytest.mark.parametrize(("code", "every"), ERRORS.items(), ids=[errno.errorcode[code] for code in ERRORS])
def test_an_error_at_every_changing_call_leaves_all_or_nothing(make: Make, code: int, every: int) -> None:
    def land(landing: Landing, hook: Callable[[str], None], reviewed: object = None) -> None:
        reviewed = reviewed or landing.review()
        with calls(hook):
            landing.land(reviewed)

    total = count_of(lambda hook: land(make(), hook))
    # What crosses onto another filesystem is somebody's mount: a conflict.
    refusals = ("commit_failed", "conflict") if code == errno.EXDEV else ("commit_failed",)
    for call in range(0, total, every):
        landing = make()
        old, new, reviewed = landing.tree(), landing.merged(), landing.review()
        failure = ""
        try:
            land(landing, fail_at(call, code), reviewed)
        except CommitError as error:
            failure = error.code
        # What fails once is tried again before the commit gives up.
        assert failure in ("", *refusals)
        if failure:
            assert landing.tree() == old
            landing.assert_tidy()
        landing.recover()
        if not assert_whole(landing, old, new, call):
            # Once the obstruction is gone the same commit goes through.
            landing.land(reviewed)
            assert landing.tree() == new


def test_a_disk_that_is_full_from_any_moment_on_leaves_all_or_nothing(make: Make) -> None:
    def land(landing: Landing, hook: Callable[[str], None], reviewed: object = None) -> None:
        reviewed = reviewed or landing.review()
        with calls(hook, ALLOCATING):
            landing.land(reviewed)

    total = count_of(lambda hook: land(make(), hook))
    for call in range(total):
        landing = make()
        old, new, reviewed = landing.tree(), landing.merged(), landing.review()
        with pytest.raises(CommitError) as caught:
            land(landing, fail_at(call, errno.ENOSPC, always=True), reviewed)
        if caught.value.code == "commit_failed":
            assert landing.tree() == old
        landing.recover()
        assert_whole(landing, old, new, call)


def save(path: bytes, content: bytes) -> None:
    """Save as an editor does: whole, by rename."""
    with open(path + b".tmp", "wb") as file:
        file.write(content)
    os.rename(path + b".tmp", path)


def append(path: bytes, content: bytes) -> None:
    with open(path, "ab") as file:
        file.write(content)


TYPED = b"what a person typed after the crash"


@pytest.mark.parametrize("path", [b"replaced", b"d/changed", b"to-link", b"renamed-to", b"deleted", b"fresh/tree/mine"])
@pytest.mark.parametrize("edit", [save, append])
def test_what_a_person_typed_after_the_kill_stays(
    make: Make, path: bytes, edit: Callable[[bytes, bytes], None]
) -> None:
    steps = count_of(lambda hook: make().land(on_step=hook))
    for step in range(0, steps, 2):
        landing = make()
        old, new, reviewed = landing.tree(), landing.merged(), landing.review()
        assert in_child(lambda: landing.land(reviewed, kill_at(step))) == -9  # noqa: B023
        target = landing.at("lower", path)
        if not os.path.isdir(os.path.dirname(target)) or os.path.islink(target):
            continue
        edit(target, TYPED)
        typed = landing.read(path)
        recovered = landing.recover()
        landing.assert_tidy()
        assert landing.read(path) == typed
        tree = landing.tree()
        directories = {above for above in (b"fresh", b"fresh/tree") if path.startswith(above)}
        rest = {found: node for found, node in tree.items() if found != path and found not in directories}
        assert rest in (
            {found: node for found, node in old.items() if found != path and found not in directories},
            {found: node for found, node in new.items() if found != path and found not in directories},
        ), step
        for one in recovered:
            for kept, place in one.kept:
                assert kept in (path, b"fresh")
                assert not place or os.path.lexists(os.path.join(one.directory, place))
                assert str(one).count("Your edit of") == len(one.kept)


def test_what_an_edit_displaced_is_kept_and_named(make: Make) -> None:
    landing = make()
    reviewed = landing.review()

    def kill(step: str) -> None:
        if step == "apply:9":
            os.kill(os.getpid(), 9)

    assert in_child(lambda: landing.land(reviewed, kill)) == -9
    assert landing.read(b"replaced").startswith(b"new")
    save(landing.at("lower", b"replaced"), TYPED)
    (recovered,) = landing.recover()
    assert recovered.committed is None
    ((path, place),) = recovered.kept
    assert path == b"replaced"
    with open(os.path.join(recovered.directory, place), "rb") as file:
        assert file.read() == b"old replaced"
    assert landing.read(b"replaced") == TYPED


def test_a_torn_journal_is_read_up_to_where_it_is_whole(make: Make) -> None:
    landing = make()
    old, new, reviewed = landing.tree(), landing.merged(), landing.review()

    def kill(step: str) -> None:
        if step == "applied":
            os.kill(os.getpid(), 9)

    assert in_child(lambda: landing.land(reviewed, kill)) == -9
    commit_id = os.readlink(os.path.join(landing.commits, ".pending"))
    journal = os.path.join(landing.commits, commit_id, "journal")
    size = os.path.getsize(journal)
    with open(journal, "rb") as file:
        whole = file.read()
    last = whole.rindex(b"\n", 0, -1) + 1
    os.truncate(journal, last + (size - last) // 2)
    landing.recover()
    assert_whole(landing, old, new, 0)
    assert landing.tree() == new


def test_a_workspace_in_another_place_is_not_recovered_into(make: Make) -> None:
    landing = make()
    reviewed = landing.review()
    assert in_child(lambda: landing.land(reviewed, kill_at(20))) == -9
    moved = landing.lower_path + b".away"
    os.rename(landing.lower_path, moved)
    os.mkdir(landing.lower_path)
    landing.lower.close()
    landing.lower = type(landing.lower)(landing.lower_path)
    with pytest.raises(CommitError) as caught:
        landing.recover()
    assert caught.value.code == "commit_incomplete"
    assert os.listdir(landing.lower_path) == []
    assert pending(landing.commits)


def test_a_commit_recovers_first_what_an_earlier_one_left(make: Make) -> None:
    landing = make()
    new, reviewed = landing.merged(), landing.review()
    assert in_child(lambda: landing.land(reviewed, kill_at(25))) == -9
    landing.land(reviewed)
    assert landing.tree() == new
    landing.assert_tidy()


def test_a_commit_after_a_finished_one_conflicts_with_nothing_of_ours(make: Make) -> None:
    landing = make()
    reviewed = landing.review()
    first = landing.land(reviewed)
    assert [one.commit_id for one in unsettled(landing.commits)] == [first.commit_id]
    # The overlay doesn't know yet: what landed is there already.
    again = landing.land(reviewed)
    assert set(again.landed) == set(first.landed)
    for committed in unsettled(landing.commits):
        committed.settle()
        committed.settle()
    assert unsettled(landing.commits) == []


def test_a_person_who_changes_a_deletion_after_an_undo_still_conflicts(make: Make) -> None:
    landing = make()
    reviewed = landing.review()

    def fail(step: str) -> None:
        if step == "synced":
            raise OSError(errno.EIO, "broken")

    with pytest.raises(CommitError):
        landing.land(reviewed, fail)
    append(landing.at("lower", b"deleted"), b"x")
    with pytest.raises(ConflictError) as caught:
        landing.land(reviewed)
    assert caught.value.paths == (b"deleted",)


@pytest.mark.parametrize("step", ["staged", "apply:1", "applied"])
def test_a_recovery_leaves_the_mtime_of_the_root_alone_where_no_entry_of_its_own_changed(
    tmp_path: Path, step: str
) -> None:
    landing = Landing(tmp_path / "layers")
    for name in (b"d/a", b"d/b"):
        landing.write("lower", name, b"old")
        landing.write("upper", name, b"new")
    before = landing.tree(times=True)[b""].mtime_ns
    reviewed = landing.review()

    def kill(at: str) -> None:
        if at == step:
            os.kill(os.getpid(), 9)

    assert in_child(lambda: landing.land(reviewed, kill)) == -9
    landing.recover()
    assert landing.tree(times=True)[b""].mtime_ns == before
    landing.close()


def test_a_journal_of_another_version_is_left_to_that_version(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    landing = make()
    reviewed = landing.review()
    assert in_child(lambda: landing.land(reviewed, kill_at(20))) == -9
    monkeypatch.setattr(recovery, "VERSION", 2)
    with pytest.raises(CommitError, match="another version"):
        landing.recover()
    monkeypatch.undo()
    landing.recover()
    landing.assert_tidy()
