"""What was accepted lands, with what it depends on and nothing else; the merged view stays what it was."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.review.conftest import GIT
from tests.review.landing import (
    Landing,
    count_of,
    everything,
    fail_at,
    freshly_made,
    in_child,
    kill_at,
    without_syncs,
    write_upper,
)
from tests.review.landing import calls as changing_calls
from tests.review.test_remaining import build, lower_tree, rest_of, upper_tree
from workbench.checkpoints.manifest import Manifest
from workbench.errors import CommitError, OptionsError
from workbench.review.changeset import ChangeKind, ChangeSet, Included, Left
from workbench.review.compare import change_set
from workbench.review.decisions import Review, Verdict
from workbench.review.hunks import NamedHunk, derived, editable, edited, named_hunks
from workbench.review.landed import Committed, unsettled
from workbench.review.order import Group, group_of, in_order
from workbench.review.selection import Selection, selected

LINES = [b"one", b"two", b"three", b"four", b"five", b"six", b"seven", b"eight", b"nine", b"ten", b"eleven", b"twelve"]


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
    """Twelve lines, some of them others."""
    return b"".join(dict(changed).get(number, line) + b"\n" for number, line in enumerate(LINES))


def pick(landing: Landing, changes: ChangeSet, selection: Selection) -> ChangeSet:
    with landing.store.adding() as sink:
        return selected(changes, selection, landing.lower, landing.store, sink)


def accept(landing: Landing, changes: ChangeSet, *paths: bytes, refused: frozenset[bytes] = frozenset()) -> ChangeSet:
    return pick(landing, changes, Selection(frozenset(paths), refused=refused))


def hunk_ids(landing: Landing, changes: ChangeSet, path: bytes) -> list[str]:
    change = next(change for change in changes.changes if change.path == path)
    return [hunk.id for hunk in named_hunks(change, landing.lower, landing.store)]


def land_and_settle(landing: Landing, manifest: Manifest, chosen: ChangeSet) -> tuple[Committed, Manifest]:
    """Land a selection, and make what remains the upper layer; the merged view stays the same."""
    view = landing.merged()
    committed = landing.land((manifest, chosen))
    rest = rest_of(landing, committed, manifest)
    write_upper(landing, rest)
    assert landing.merged() == view
    return committed, rest


def land_the_rest(landing: Landing, rest: Manifest) -> None:
    view = landing.merged()
    left = change_set("c", rest, landing.lower, landing.store, scratch=b"_notes")
    landing.land((rest, left))
    assert landing.tree() == view


# Hunks


def test_an_accepted_hunk_lands_and_the_other_stays(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((0, b"ONE"), (11, b"TWELVE")))
    manifest, changes = landing.review()
    first, second = hunk_ids(landing, changes, b"f")
    chosen = pick(landing, changes, Selection(hunks={b"f": frozenset({second})}))
    assert chosen.digest != changes.digest
    _, rest = land_and_settle(landing, manifest, chosen)
    assert landing.read(b"f") == text((11, b"TWELVE"))
    left = change_set("c", rest, landing.lower, landing.store, scratch=b"_notes")
    assert hunk_ids(landing, left, b"f") == [first]
    land_the_rest(landing, rest)


def test_all_hunks_are_the_whole_change_and_none_are_nothing(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((0, b"ONE"), (11, b"TWELVE")))
    landing.write("upper", b"new", text())
    _, changes = landing.review()
    ids = {path: frozenset(hunk_ids(landing, changes, path)) for path in (b"f", b"new")}
    assert pick(landing, changes, Selection(hunks=ids)).digest == changes.digest
    assert pick(landing, changes, Selection(hunks={b"f": frozenset(), b"new": frozenset({"0" * 16})})).changes == ()


def test_a_mode_goes_with_the_whole_file_and_never_with_its_hunks(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((0, b"ONE")), 0o755)
    manifest, changes = landing.review()
    ids = frozenset(hunk_ids(landing, changes, b"f"))
    _, rest = land_and_settle(landing, manifest, pick(landing, changes, Selection(hunks={b"f": ids})))
    assert os.stat(landing.at("lower", b"f")).st_mode & 0o777 == 0o644
    assert landing.read(b"f") == text((0, b"ONE"))
    (change,) = change_set("c", rest, landing.lower, landing.store, scratch=b"_notes").changes
    assert change.kind is ChangeKind.MODE
    assert change.new_executable


def test_a_hunk_keeps_its_id_where_it_only_moves(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((11, b"TWELVE")))
    before = hunk_ids(landing, landing.review()[1], b"f")
    landing.write("upper", b"f", b"inserted\n" + text((11, b"TWELVE")))
    assert before[0] in hunk_ids(landing, landing.review()[1], b"f")


def test_a_hunk_of_two_runs_can_be_taken_apart(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((3, b"FOUR"), (5, b"SIX")))
    manifest, changes = landing.review()
    (hunk,) = named_hunks(changes.changes[0], landing.lower, landing.store)
    assert len(hunk.parts) == 2
    chosen = pick(landing, changes, Selection(hunks={b"f": frozenset({hunk.parts[1].id})}))
    _, rest = land_and_settle(landing, manifest, chosen)
    assert landing.read(b"f") == text((5, b"SIX"))
    land_the_rest(landing, rest)


def git_applied(landing: Landing, old: bytes, hunks: list[NamedHunk]) -> bytes:
    """What the real git makes of a patch with these hunks."""
    landing.write("lower", b"applied", old)
    patch, moved = [b"--- a/applied\n+++ b/applied\n"], 0
    for one in hunks:
        # Without the hunks before it, it stands elsewhere in the new text.
        start = one.hunk.old_start - bool(one.hunk.old_count) + moved + bool(one.hunk.new_count)
        patch += replace(one.hunk, new_start=start).render()
        moved += one.hunk.new_count - one.hunk.old_count
    if hunks:
        given = b"".join(patch)
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        subprocess.run(command, cwd=landing.lower_path, input=given, env=GIT, check=True)
    return landing.read(b"applied")


texts = st.lists(st.sampled_from([b"a\n", b"b\n", b"c\n", b"\n", b"a\r\n"]), max_size=40).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(texts, texts, st.booleans(), st.booleans(), st.randoms(use_true_random=False))
def test_any_accepted_hunks_give_what_git_makes_of_them(
    old: bytes, new: bytes, old_ends: bool, new_ends: bool, random: object
) -> None:
    old, new = old if old_ends else old[:-1], new if new_ends else new[:-1]
    base = Path(tempfile.mkdtemp())
    landing = Landing(base)
    try:
        landing.write("lower", b"f", old)
        landing.write("upper", b"f", new)
        changes = landing.review()[1].changes
        if not changes:
            assert old == new
            return
        hunks = named_hunks(changes[0], landing.lower, landing.store)
        every = [part.id for hunk in hunks for part in hunk.leaves]
        assert len(set(every)) == len(every)
        assert derived(old, hunks, every) == new
        assert derived(old, hunks, [hunk.id for hunk in hunks]) == new
        assert derived(old, hunks, []) == old
        some = [hunk for hunk in hunks if random.random() < 0.5]  # type: ignore[attr-defined]
        assert derived(old, hunks, [hunk.id for hunk in some]) == git_applied(landing, old, some)
    finally:
        landing.close()
        shutil.rmtree(base)


def with_counts(hunk: NamedHunk, lines: tuple[bytes, ...]) -> NamedHunk:
    """A hunk with other lines, as a patch has it."""
    count = sum(not line.startswith(b"-") for line in lines)
    start = hunk.hunk.new_start - bool(hunk.hunk.new_count) + bool(count)
    return replace(hunk, hunk=replace(hunk.hunk, lines=lines, new_start=start, new_count=count))


@settings(max_examples=60, deadline=None)
@given(texts, texts, st.data())
def test_edited_hunks_give_what_git_makes_of_the_edited_patch(old: bytes, new: bytes, data: st.DataObject) -> None:
    base = Path(tempfile.mkdtemp())
    landing = Landing(base)
    try:
        landing.write("lower", b"f", old)
        landing.write("upper", b"f", new)
        changes = landing.review()[1].changes
        hunks = named_hunks(changes[0], landing.lower, landing.store) if changes else ()
        instead: dict[str, tuple[bytes, ...]] = {}
        for hunk in hunks:
            lines: list[bytes] = []
            for line in hunk.hunk.lines:
                if line.startswith(b"+"):
                    lines += data.draw(st.sampled_from([[line], [], [b"+edited\n", line]]))
                elif line.startswith(b"-"):
                    lines.append(data.draw(st.sampled_from([line, b" " + line[1:]])))
                else:
                    lines.append(line)
            asked = editable(with_counts(hunk, tuple(lines)))
            instead[hunk.id] = edited(hunk, b"# what to do\n" + asked)
            assert instead[hunk.id] == tuple(lines)
        wanted = [with_counts(hunk, instead[hunk.id]) for hunk in hunks]
        some = [hunk for hunk in wanted if any(not line.startswith(b" ") for line in hunk.hunk.lines)]
        assert derived(old, hunks, (), instead) == git_applied(landing, old, some)
    finally:
        landing.close()
        shutil.rmtree(base)


@pytest.mark.parametrize("is_new", [False, True], ids=["a modified file", "a new file"])
def test_an_edited_hunk_lands_and_the_rest_of_the_agents_version_stays(landing: Landing, is_new: bool) -> None:
    if not is_new:
        landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((3, b"FOUR")), 0o644)
    manifest, changes = landing.review()
    review = Review(changes, Included(), landing.lower, landing.store)
    (hunk,) = review.hunks(changes.changes[0])
    review.edit_part(changes.changes[0], hunk, edited(hunk, editable(hunk).replace(b"+FOUR", b"+VIER")))
    assert review.verdict(changes.changes[0]) is Verdict.PART
    _, rest = land_and_settle(landing, manifest, pick(landing, changes, review.selection()))
    assert landing.read(b"f") == text((3, b"VIER"))
    land_the_rest(landing, rest)
    assert landing.read(b"f") == text((3, b"FOUR"))


def test_two_parts_may_not_be_edited_to_change_the_same_line(landing: Landing) -> None:
    landing.write("lower", b"f", text())
    landing.write("upper", b"f", text((3, b"FOUR"), (5, b"SIX")))
    changes = landing.review()[1]
    review = Review(changes, Included(), landing.lower, landing.store)
    (change,) = changes.changes
    (hunk,) = review.hunks(change)
    for part, is_refused in zip(hunk.parts, (False, True), strict=True):
        lines = edited(part, editable(part).replace(b" five\n", b"-five\n+fuenf\n"))
        with pytest.raises(OptionsError) if is_refused else contextlib.nullcontext():
            review.edit_part(change, part, lines)
    assert set(review.decision(change).edits) == {hunk.parts[0].id}
    # What is decided anew is no longer edited.
    review.decide_part(change, hunk, True)
    assert not review.decision(change).edits


# What depends on what


def test_a_new_file_brings_its_new_directories_and_not_its_neighbours(landing: Landing) -> None:
    landing.write("upper", b"new/deep/a", b"1")
    landing.write("upper", b"new/deep/b", b"1")
    landing.write("upper", b"new/c", b"1")
    manifest, changes = landing.review()
    _, rest = land_and_settle(landing, manifest, accept(landing, changes, b"new/deep/a"))
    assert set(landing.tree()) == {b"", b"new", b"new/deep", b"new/deep/a"}
    land_the_rest(landing, rest)


def test_a_file_in_what_was_a_file_brings_the_change_of_kind(landing: Landing) -> None:
    landing.write("lower", b"f", b"1")
    landing.write("upper", b"f/a", b"1")
    landing.write("upper", b"f/b", b"1")
    manifest, changes = landing.review()
    land_and_settle(landing, manifest, accept(landing, changes, b"f/a"))
    assert set(landing.tree()) == {b"", b"f", b"f/a"}


def test_a_directory_that_becomes_a_file_takes_all_of_it_along(landing: Landing) -> None:
    landing.write("lower", b"d/a/b", b"1")
    landing.write("lower", b"d/c", b"1")
    landing.write("upper", b"d", b"now a file")
    manifest, changes = landing.review()
    land_and_settle(landing, manifest, accept(landing, changes, b"d"))
    assert set(landing.tree()) == {b"", b"d"}


def test_both_ends_of_a_rename_land_together(landing: Landing) -> None:
    landing.write("lower", b"d/old", b"content")
    landing.write("lower", b"d/other", b"1")
    landing.whiteout(b"d/old")
    landing.write("upper", b"new/name", b"content")
    landing.write("upper", b"d/other", b"2")
    manifest, changes = landing.review()
    land_and_settle(landing, manifest, accept(landing, changes, b"new/name"))
    assert set(landing.tree()) == {b"", b"d", b"d/other", b"new", b"new/name"}
    assert landing.read(b"d/other") == b"1"


def test_a_directory_goes_with_the_last_of_what_is_in_it(landing: Landing) -> None:
    landing.write("lower", b"d/e/a", b"1")
    landing.write("lower", b"d/b", b"2")
    landing.whiteout(b"d")
    manifest, changes = landing.review()
    land_and_settle(landing, manifest, accept(landing, changes, b"d/e/a"))
    assert set(landing.tree()) == {b"", b"d", b"d/b"}
    landing.begin_again()
    manifest, changes = landing.review()
    land_and_settle(landing, manifest, accept(landing, changes, b"d/b"))
    assert set(landing.tree()) == {b""}


def test_all_that_is_shown_accepted_is_the_whole_change_set(landing: Landing) -> None:
    everything(landing)
    _, changes = landing.review()
    assert accept(landing, changes, *(change.path for change in changes.shown)).digest == changes.digest


def test_what_depends_on_something_rejected_is_refused_and_named(landing: Landing) -> None:
    landing.write("lower", b"d/a", b"1")
    landing.write("upper", b"d", b"file")
    _, changes = landing.review()
    with pytest.raises(CommitError) as caught:
        accept(landing, changes, b"d", refused=frozenset({b"d/a"}))
    assert (caught.value.code, caught.value.paths) == ("not_landable", (b"d/a",))


@settings(max_examples=100, deadline=None)
@given(lower_tree, upper_tree, st.randoms(use_true_random=False))
def test_whatever_is_accepted_lands_and_the_merged_view_is_the_same(
    lower: dict[bytes, tuple[object, ...]], upper: dict[bytes, tuple[object, ...]], random: object
) -> None:
    base = Path(tempfile.mkdtemp())
    landing = Landing(base)
    try:
        build(landing, "lower", lower)
        build(landing, "upper", upper)
        manifest, changes = landing.review()
        accepted: set[bytes] = set()
        hunks: dict[bytes, frozenset[str]] = {}
        for change in changes.shown:
            chance = random.random()  # type: ignore[attr-defined]
            if chance < 0.4:
                accepted.add(change.path)
            elif chance < 0.7:
                ids = [part.id for hunk in named_hunks(change, landing.lower, landing.store) for part in hunk.leaves]
                hunks[change.path] = frozenset(one for one in ids if random.random() < 0.5)  # type: ignore[attr-defined]
        chosen = pick(landing, changes, Selection(frozenset(accepted), hunks))
        committed, rest = land_and_settle(landing, manifest, chosen)
        assert set(committed.landed) == {path for change in chosen.changes for path, _, _ in change.steps()}
        land_the_rest(landing, rest)
    finally:
        landing.close()
        shutil.rmtree(base)


# Faults


def some(landing: Landing) -> tuple[Manifest, ChangeSet]:
    """A selection of one of each sort, a hunk of a file among them, of a workspace with everything."""
    landing.write("lower", b"hunks", text())
    landing.write("upper", b"hunks", text((0, b"ONE"), (11, b"TWELVE")))
    manifest, changes = landing.review()
    first = frozenset(hunk_ids(landing, changes, b"hunks")[:1])
    paths = frozenset(
        {b"replaced", b"renamed-to", b"gone/link", b"fresh/tree/of/files", b"to-file", b"mode", b"to-dir/a"}
    )
    return manifest, pick(landing, changes, Selection(paths, {b"hunks": first}))


def after_fault(landing: Landing, manifest: Manifest, chosen: ChangeSet, old: object, view: object) -> None:
    """Once recovered the workspace is the old one or what was accepted, and nothing of the merged view is lost."""
    landing.recover()
    landing.assert_tidy()
    for committed in unsettled(landing.commits):
        write_upper(landing, rest_of(landing, committed, manifest))
        assert landing.merged() == view
        assert landing.read(b"hunks") == text((0, b"ONE"))
        return
    assert landing.tree() == old
    assert landing.merged() == view
    land_and_settle(landing, manifest, chosen)


def test_a_kill_at_every_step_of_a_partial_commit_leaves_what_was_accepted_or_nothing(tmp_path: Path) -> None:
    with freshly_made(tmp_path) as make:
        landing = make()
        steps = count_of(lambda hook: landing.land(some(landing), on_step=hook))
        for step in range(steps):
            landing = make()
            manifest, chosen = some(landing)
            old, view = landing.tree(), landing.merged()
            assert in_child(lambda: landing.land((manifest, chosen), kill_at(step))) == -9  # noqa: B023
            after_fault(landing, manifest, chosen, old, view)


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_an_error_at_every_changing_call_of_a_partial_commit_leaves_what_was_accepted_or_nothing(
    tmp_path: Path, code: int
) -> None:
    with freshly_made(tmp_path) as make:
        landing = make()
        reviewed = some(landing)

        def counted(hook: Callable[[str], None]) -> None:
            with changing_calls(hook):
                landing.land(reviewed)

        for number in range(count_of(counted)):
            landing = make()
            manifest, chosen = some(landing)
            old, view = landing.tree(), landing.merged()
            try:
                with changing_calls(fail_at(number, code)):
                    committed = landing.land((manifest, chosen))
            except CommitError:
                after_fault(landing, manifest, chosen, old, view)
            else:
                write_upper(landing, rest_of(landing, committed, manifest))
                assert landing.merged() == view


# Decisions


def review_of(landing: Landing, included: Included | None = None) -> Review:
    changes = change_set("c", landing.manifest(), landing.lower, landing.store, scratch=b"_notes", included=included)
    return Review(changes, included or Included(), landing.lower, landing.store)


def verdicts(review: Review) -> dict[bytes, Verdict]:
    return {change.path: review.verdict(change) for change in review.changes.shown}


def test_decisions_are_taken_over_by_changes_that_are_the_same(landing: Landing) -> None:
    for name in (b"same", b"new-changes", b"old-changes", b"hunks"):
        landing.write("lower", b"d/" + name, text())
        landing.write("upper", b"d/" + name, text((0, b"ONE"), (11, b"TWELVE")))
    review = review_of(landing)
    assert len(review.decide(b"d", True)) == 4
    (hunk, _) = hunk_ids(landing, review.changes, b"d/hunks")
    review.decide_hunk(hunk[:8], False)
    assert verdicts(review)[b"d/hunks"] is Verdict.PART
    kept = review.record("")
    landing.write("upper", b"d/new-changes", b"other\n")
    landing.write("lower", b"d/old-changes", b"other\n")
    landing.begin_again()
    later = review_of(landing)
    later.take_over(type(kept).model_validate_json(kept.model_dump_json()))
    assert verdicts(later) == {
        b"d/same": Verdict.ACCEPTED,
        b"d/new-changes": Verdict.UNDECIDED,
        b"d/old-changes": Verdict.UNDECIDED,
        b"d/hunks": Verdict.PART,
    }
    assert later.selection() == Selection(frozenset({b"d/same"}), review.selection().hunks)


def test_what_isnt_among_the_changes_cant_be_decided(landing: Landing) -> None:
    landing.write("upper", b"a", b"1")
    review = review_of(landing)
    for decide in (lambda: review.decide(b"b", True), lambda: review.decide_hunk("0" * 16, True)):
        with pytest.raises(OptionsError):
            decide()
    # A beginning of an id that is too short to mean one hunk.
    with pytest.raises(OptionsError):
        review.decide_hunk(hunk_ids(landing, review.changes, b"a")[0][:7], True)


def test_what_is_left_lands_where_its_asked_for(landing: Landing) -> None:
    landing.write("lower", b".gitignore", b"*.log\nout/\n")
    landing.write("upper", b"a.log", b"1")
    landing.write("upper", b"out/x", b"1")
    landing.write("upper", b"out/deep/y", b"1")
    landing.write("upper", b"_notes/plan", b"1")
    landing.write("upper", b"_notes/other", b"1")
    asked = {
        Included(): set(),
        Included(frozenset({Left.IGNORED})): {b"a.log", b"out/x", b"out/deep/y"},
        Included(frozenset({Left.SCRATCH})): {b"_notes/plan", b"_notes/other"},
        Included(paths=frozenset({b"out/deep"})): {b"out/deep/y"},
        Included(paths=frozenset({b"_notes/plan", b"a.log"})): {b"_notes/plan", b"a.log"},
    }
    for included, expected in asked.items():
        changes = review_of(landing, included).changes
        assert {change.path for change in changes.shown} == expected
        everywhere = {b"a.log", b"out/x", b"out/deep/y", b"_notes/plan", b"_notes/other"}
        left = sum(one.count for one in changes.left)
        assert left == len(everywhere - expected), (included, changes.left)


def test_what_could_do_harm_comes_first_and_what_tools_wrote_last(landing: Landing) -> None:
    expected = {
        b"z/.envrc": Group.RISKY,
        b"src/app.py": Group.SOURCE,
        b"src/contest.py": Group.SOURCE,
        b"tests/helpers.py": Group.TEST,
        b"src/app.test.ts": Group.TEST,
        b"src/test_app.py": Group.TEST,
        b"Cargo.lock": Group.LOCK,
        b"web/package-lock.json": Group.LOCK,
        b"dist/app.min.js": Group.GENERATED,
    }
    for name in expected:
        landing.write("upper", name, b"1")
    _, changes = landing.review()
    assert {change.path: group_of(change) for change in changes.shown} == expected
    groups = [group_of(change) for change in in_order(changes.shown)]
    assert groups == sorted(groups)
