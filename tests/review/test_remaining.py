"""What remains after a commit shows over the new lower exactly what was seen before, and no more is kept than that takes."""

from __future__ import annotations

import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.review.landing import Landing, everything, without_syncs, write_upper
from workbench.checkpoints.manifest import Certainty, Manifest
from workbench.errors import ConflictError
from workbench.review.changeset import Change, ChangeKind, ChangeSet
from workbench.review.compare import change_set, digest_of
from workbench.review.landed import Committed
from workbench.review.remaining import remaining
from workbench.vfs.storage import Kind


@pytest.fixture(autouse=True)
def no_syncs() -> Iterator[None]:
    with without_syncs():
        yield


@pytest.fixture
def landing(tmp_path: Path) -> Iterator[Landing]:
    made = Landing(tmp_path)
    yield made
    made.close()


def rest_of(landing: Landing, committed: Committed, now: Manifest) -> Manifest:
    return remaining(now, landing.lower, committed.landed_bases, added=committed.added)


def settle(landing: Landing, committed: Committed, now: Manifest) -> Manifest:
    """What remains, made the upper layer."""
    rest = rest_of(landing, committed, now)
    write_upper(landing, rest)
    return rest


def selection(changes: ChangeSet, chosen: Callable[[bytes], bool]) -> ChangeSet:
    """The steps at the chosen paths (of a rename that may be one half), and what they depend on."""
    steps = {
        path: Change(path, ChangeKind.ADDED if old is None else ChangeKind.DELETED, old, new)
        if change.kind is ChangeKind.RENAMED
        else change
        for change in changes.changes
        for path, old, new in change.steps()
    }
    taken: set[bytes] = set()
    waiting = [path for path in steps if chosen(path)]
    while waiting:
        path = waiting.pop()
        if path in taken:
            continue
        taken.add(path)
        old, new = steps[path].old, steps[path].new
        if old is not None and old.kind is Kind.DIR and (new is None or new.kind is not Kind.DIR):
            waiting.extend(below for below in steps if below.startswith(path + b"/"))
        for above, change in steps.items():
            if path.startswith(above + b"/") and (change.old is None or change.old.kind is not Kind.DIR):
                waiting.append(above)
    picked = tuple(change for path, change in sorted(steps.items()) if path in taken)
    return replace(changes, changes=picked, digest=digest_of(picked))


def below(*tops: bytes) -> Callable[[bytes], bool]:
    return lambda path: path.split(b"/")[0] in tops


def test_nothing_remains_of_what_landed_whole(landing: Landing) -> None:
    everything(landing)
    manifest, changes = landing.review()
    rest = rest_of(landing, landing.land((manifest, changes)), manifest)
    assert set(rest.entries) == {b""}
    assert set(rest.bases) <= {b""}


def test_what_was_not_committed_stays_with_its_base(landing: Landing) -> None:
    everything(landing)
    manifest, changes = landing.review()
    view = landing.merged()
    chosen = selection(changes, below(b"replaced", b"fresh", b"gone"))
    committed = landing.land((manifest, chosen))
    rest = settle(landing, committed, manifest)
    assert landing.merged() == view
    assert b"replaced" not in rest.entries
    assert not [path for path in rest.entries if path.startswith(b"fresh")]
    assert rest.entries[b"d/changed"] == manifest.entries[b"d/changed"]
    assert rest.bases[b"d/changed"] == manifest.bases[b"d/changed"]
    # And it lands as well, without a conflict.
    left = change_set("c", rest, landing.lower, landing.store, scratch=b"_notes")
    landing.land((rest, left))
    assert landing.tree() == view


def test_one_entry_of_an_opaque_directory_lands_alone(landing: Landing) -> None:
    for name in (b"kept", b"sub/deep", b"both"):
        landing.write("lower", b"d/" + name, b"old")
    landing.mkdir("upper", b"d", opaque=True)
    landing.write("upper", b"d/both", b"agent")
    landing.write("upper", b"d/new", b"agent")
    landing.write("upper", b"d/sub/other", b"agent")
    manifest, changes = landing.review()
    view = landing.merged()
    committed = landing.land((manifest, selection(changes, lambda path: path == b"d/new")))
    rest = settle(landing, committed, manifest)
    assert landing.merged() == view
    assert not rest.entries[b"d"].opaque
    assert b"d/new" not in rest.entries
    assert rest.entries[b"d/kept"].kind is Kind.WHITEOUT
    # What it hid is as well known as before.
    assert rest.bases[b"d/kept"] == manifest.bases[b"d/kept"]
    assert rest.bases[b"d/sub/deep"] == manifest.bases[b"d/sub/deep"]
    left = change_set("c", rest, landing.lower, landing.store, scratch=b"_notes")
    landing.land((rest, left))
    assert landing.tree() == view


def test_an_opaque_directory_of_which_nothing_lands_stays_opaque(landing: Landing) -> None:
    landing.write("lower", b"d/old", b"1")
    landing.mkdir("upper", b"d", opaque=True)
    landing.write("upper", b"d/new", b"1")
    landing.write("upper", b"other", b"1")
    manifest, changes = landing.review()
    rest = rest_of(landing, landing.land((manifest, selection(changes, below(b"other")))), manifest)
    assert rest.entries[b"d"].opaque
    assert set(rest.entries) == {b"", b"d", b"d/new"}
    assert rest.bases[b"d/old"] == manifest.bases[b"d/old"]


def test_what_was_changed_since_the_review_stays_on_what_landed(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    landing.write("upper", b"a", b"2")
    landing.write("upper", b"new/b", b"2")
    landing.write("upper", b"new/gone", b"2")
    reviewed = landing.review()
    landing.write("upper", b"a", b"3")
    landing.write("upper", b"new/c", b"3")
    os.unlink(landing.at("upper", b"new/gone"))
    now = landing.manifest()
    view = landing.merged()
    committed = landing.land(reviewed)
    assert landing.read(b"a") == b"2"
    rest = settle(landing, committed, now)
    assert landing.merged() == view
    assert set(rest.entries) == {b"", b"a", b"new", b"new/c", b"new/gone"}
    assert rest.entries[b"new/gone"].kind is Kind.WHITEOUT
    assert rest.bases[b"a"] == committed.landed_bases[b"a"]
    left = change_set("c", rest, landing.lower, landing.store, scratch=b"_notes")
    landing.land((rest, left))
    assert landing.tree() == view


def test_a_new_directory_that_landed_and_was_removed_since_stays_removed(landing: Landing) -> None:
    landing.write("upper", b"new/deep/file", b"1")
    reviewed = landing.review()
    shutil.rmtree(landing.at("upper", b"new"))
    now = landing.manifest()
    committed = landing.land(reviewed)
    rest = settle(landing, committed, now)
    assert rest.entries[b"new"].kind is Kind.WHITEOUT
    assert rest.bases[b"new/deep/file"] == committed.landed_bases[b"new/deep/file"]
    assert set(landing.merged()) == {b""}
    left = change_set("c", rest, landing.lower, landing.store, scratch=b"_notes")
    landing.land((rest, left))
    assert set(landing.tree()) == {b""}


def test_an_edit_right_after_the_commit_is_a_conflict_for_the_next(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    landing.write("upper", b"a", b"2")
    reviewed = landing.review()
    landing.write("upper", b"a", b"3")
    now = landing.manifest()
    committed = landing.land(reviewed)
    with open(landing.at("lower", b"a"), "wb") as file:
        file.write(b"p")
    rest = settle(landing, committed, now)
    assert landing.merged()[b"a"] != landing.tree()[b"a"]
    left = change_set("c", rest, landing.lower, landing.store, scratch=b"_notes")
    with pytest.raises(ConflictError):
        landing.land((rest, left))


def test_what_a_person_put_into_a_new_directory_meanwhile_is_not_hidden_without_a_word(landing: Landing) -> None:
    landing.mkdir("upper", b"new", opaque=True)
    landing.write("upper", b"new/a", b"1")
    manifest, changes = landing.review()
    committed = landing.land((manifest, changes))
    landing.write("lower", b"new/mine", b"person")
    rest = rest_of(landing, committed, manifest)
    assert rest.entries[b"new/mine"].kind is Kind.WHITEOUT
    assert rest.bases[b"new/mine"].certainty is Certainty.UNKNOWN


def test_what_never_lands_stays(landing: Landing) -> None:
    landing.write("lower", b".gitignore", b"*.log\n")
    landing.write("upper", b"_notes/plan", b"1")
    landing.write("upper", b"new/a", b"1")
    landing.write("upper", b"new/x.log", b"1")
    os.mkfifo(landing.at("upper", b"new/pipe"))
    landing.write("upper", b"new/sub/.git/HEAD", b"ref: refs/heads/main\n")
    manifest, changes = landing.review()
    rest = rest_of(landing, landing.land((manifest, changes)), manifest)
    assert set(rest.entries) >= {b"_notes/plan", b"new/x.log", b"new/pipe", b"new/sub/.git/HEAD"}
    assert b"new/a" not in rest.entries


# Random layers

NAMES = [b"a", b"b", b"a-", b"\xff"]
leaf = st.one_of(
    st.tuples(st.just("file"), st.binary(max_size=3), st.sampled_from([0o644, 0o600, 0o755])),
    st.tuples(st.just("link"), st.sampled_from([b"a", b"/etc", b"../b"])),
)


def directory_of(child: st.SearchStrategy[object], *extra: object) -> st.SearchStrategy[object]:
    return st.tuples(
        st.just("dir"), st.sampled_from([0o755, 0o700]), st.booleans(), st.dictionaries(st.sampled_from(NAMES), child)
    )


lower_node = st.recursive(leaf, directory_of, max_leaves=12)
upper_node = st.recursive(st.one_of(leaf, st.tuples(st.just("whiteout"))), directory_of, max_leaves=12)
lower_tree = st.dictionaries(st.sampled_from(NAMES), lower_node, max_size=4)
upper_tree = st.dictionaries(st.sampled_from(NAMES), upper_node, max_size=4)


def build(landing: Landing, layer: str, tree: dict[bytes, tuple[object, ...]], above: bytes = b"") -> None:
    for name, node in tree.items():
        path = above + b"/" + name if above else name
        match node:
            case ("file", bytes(content), int(mode)):
                landing.write(layer, path, content, mode)
            case ("link", bytes(target)):
                landing.symlink(layer, path, target)
            case ("whiteout",):
                landing.whiteout(path)
            case ("dir", int(mode), bool(opaque), dict(children)):
                landing.mkdir(layer, path, mode, opaque=opaque and layer == "upper")
                build(landing, layer, children, path)


def edit_further(landing: Landing, edits: list[int]) -> None:
    """Change the upper as commands could have after the review: files rewritten, new ones made, new ones removed."""
    for number in edits:
        files = [path for path, entry in landing.manifest().entries.items() if entry.kind is Kind.FILE]
        if not files:
            return
        path = files[number % len(files)]
        full = landing.at("upper", path)
        if number % 3 == 0:
            with open(full, "ab") as file:
                file.write(b"+")
        elif number % 3 == 1:
            os.unlink(full)
            if landing.lower.exists(path):
                os.mknod(full, 0o020600, 0)
        else:
            os.unlink(full)
            landing.mkdir("upper", path, opaque=True)
            landing.write("upper", path + b"/inside", b"x")


@settings(max_examples=150, deadline=None)
@given(lower_tree, upper_tree, st.integers(0, 1 << 16), st.lists(st.integers(0, 50), max_size=3), st.booleans())
def test_the_merged_view_is_the_same_before_and_after(
    lower: dict[bytes, tuple[object, ...]],
    upper: dict[bytes, tuple[object, ...]],
    chosen: int,
    edits: list[int],
    all_of_it: bool,
) -> None:
    base = Path(tempfile.mkdtemp())
    landing = Landing(base)
    try:
        build(landing, "lower", lower)
        build(landing, "upper", upper)
        manifest, changes = landing.review()
        merged = landing.merged()
        if not all_of_it:
            changes = selection(changes, lambda path: bool(zlib.crc32(path, chosen) & 1))
        edit_further(landing, edits)
        now, view = landing.manifest(), landing.merged()
        committed = landing.land((manifest, changes))
        if all_of_it:
            assert landing.tree() == merged
        rest = settle(landing, committed, now)
        assert landing.merged() == view
        left = change_set("c", rest, landing.lower, landing.store, scratch=b"_notes")
        if all_of_it and not edits:
            assert left.changes == ()
        landing.land((rest, left))
        assert landing.tree() == view
    finally:
        landing.close()
        shutil.rmtree(base)
