from __future__ import annotations

import os
import shutil
import stat
import subprocess
import traceback
from dataclasses import replace

import pytest

from workbench.checkpoints.manifest import Certainty
from workbench.review.changeset import ChangeKind, Left
from workbench.review.compare import change_set, digest_of
from workbench.vfs.storage import Kind

ROOT = os.geteuid() == 0


def test_an_empty_upper_changes_nothing(layers) -> None:
    layers.write("lower", b"a", b"1")
    assert layers.changes().changes == ()
    assert layers.changes().left == ()


def test_a_touched_file_with_equal_content_is_no_change(layers) -> None:
    layers.write("lower", b"a", b"same")
    layers.write("upper", b"a", b"same")
    os.utime(layers.at("upper", b"a"), (1, 1))
    assert layers.told() == {}


def test_another_owner_is_no_change(layers) -> None:
    layers.write("lower", b"a", b"same")
    layers.write("upper", b"a", b"same")
    manifest = layers.manifest()
    entry = manifest.entries[b"a"]._replace(uid=4711, gid=4711)
    assert layers.changes(manifest.with_entries({**manifest.entries, b"a": entry})).changes == ()


def test_added_modified_deleted_and_mode_are_told_apart(layers) -> None:
    for name in (b"modified", b"deleted", b"mode", b"longer"):
        layers.write("lower", name, b"old")
    layers.write("upper", b"modified", b"new")
    layers.write("upper", b"longer", b"longer")
    layers.write("upper", b"mode", b"old", 0o755)
    layers.whiteout(b"deleted")
    layers.write("upper", b"added", b"x")
    assert layers.told() == {
        b"modified": "modified",
        b"longer": "modified",
        b"mode": "mode",
        b"deleted": "deleted",
        b"added": "added",
    }


def test_a_whiteout_of_what_the_lower_no_longer_has_says_nothing(layers) -> None:
    layers.whiteout(b"gone")
    layers.whiteout(b"dir/gone")
    assert layers.told() == {b"dir": "added"}


def test_a_deleted_then_recreated_directory_hides_what_was_in_it(layers) -> None:
    for path in (b"d/same", b"d/old", b"d/sub/deep", b"d/whited"):
        layers.write("lower", path, b"1")
    layers.mkdir("upper", b"d", opaque=True)
    layers.write("upper", b"d/same", b"1")
    layers.write("upper", b"d/new", b"n")
    layers.whiteout(b"d/whited")
    assert layers.told(implied=True) == {
        b"d/old": "deleted",
        b"d/sub": "deleted",
        b"d/sub/deep": "deleted",
        b"d/whited": "deleted",
        b"d/new": "added",
    }


def test_a_directory_below_an_opaque_one_shows_nothing_of_the_lower(layers) -> None:
    layers.write("lower", b"d/sub/old", b"1")
    layers.mkdir("upper", b"d", opaque=True)
    layers.write("upper", b"d/sub/new", b"2")
    assert layers.told(implied=True) == {b"d/sub/old": "deleted", b"d/sub/new": "added"}


def test_a_deleted_directory_takes_everything_with_it(layers) -> None:
    layers.write("lower", b"d/a/b/c", b"1")
    layers.mkdir("lower", b"d/empty")
    layers.symlink("lower", b"d/link", b"/etc")
    layers.whiteout(b"d")
    assert layers.told(implied=True) == dict.fromkeys(
        (b"d", b"d/a", b"d/a/b", b"d/a/b/c", b"d/empty", b"d/link"), "deleted"
    )
    # Only what isn't implied by something else is shown.
    assert layers.told() == dict.fromkeys((b"d/a/b/c", b"d/empty", b"d/link"), "deleted")


def test_a_file_over_a_directory_deletes_what_was_below(layers) -> None:
    layers.write("lower", b"d/a", b"1")
    layers.write("upper", b"d", b"now a file")
    assert layers.told() == {b"d": "kind-changed", b"d/a": "deleted"}


def test_a_directory_over_a_file_and_over_a_symlink_changes_the_kind(layers) -> None:
    layers.write("lower", b"f", b"1")
    layers.mkdir("lower", b"real")
    layers.write("lower", b"real/x", b"1")
    layers.symlink("lower", b"s", b"real")
    layers.write("upper", b"f/a", b"1")
    layers.write("upper", b"s/x", b"2")
    assert layers.told() == {b"f": "kind-changed", b"f/a": "added", b"s": "kind-changed", b"s/x": "added"}
    assert layers.change(b"f").old.blob


def test_symlinks_are_compared_by_their_target(layers) -> None:
    layers.symlink("lower", b"same", b"x")
    layers.symlink("upper", b"same", b"x")
    layers.symlink("lower", b"other", b"x")
    layers.symlink("upper", b"other", b"y")
    layers.write("lower", b"file", b"x")
    layers.symlink("upper", b"file", b"x")
    assert layers.told() == {b"other": "modified", b"file": "kind-changed"}


def test_an_added_directory_is_implied_by_what_is_in_it_and_shown_when_empty(layers) -> None:
    layers.write("upper", b"d/a", b"1")
    layers.mkdir("upper", b"e/f")
    assert layers.told() == {b"d/a": "added", b"e/f": "added"}
    assert layers.told(implied=True) == {b"d": "added", b"d/a": "added", b"e": "added", b"e/f": "added"}


def test_names_of_all_sorts_are_kept(layers) -> None:
    names = [b"new\nline", b"\xff\xfe", b"n" * 255, b"co:lon", b"-d", b"sp ace ", b"a\tb", b'"', b"back\\slash"]
    for name in names:
        layers.write("upper", name, b"x" + name)
    assert set(layers.told()) == set(names)


def test_a_deep_tree_is_compared(layers) -> None:
    for layer in ("lower", "upper"):
        fd = os.open(layers.at(layer, b""), os.O_RDONLY)
        for _ in range(1200):
            os.mkdir(b"deep", dir_fd=fd)
            below = os.open(b"deep", os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(os.open(b"file", os.O_CREAT | os.O_WRONLY, 0o644 if layer == "lower" else 0o600, dir_fd=fd))
        os.close(fd)
    assert list(layers.told().values()) == ["mode"]
    # Python's own rmtree recurses.
    subprocess.run(["rm", "-rf", layers.at("upper", b"deep")], check=True)
    layers.whiteout(b"deep")
    changes = layers.changes()
    assert len(changes.changes) == 1201
    assert len(changes.shown) == 1
    subprocess.run(["rm", "-rf", layers.at("lower", b"deep")], check=True)


# Modes


def test_setuid_and_setgid_bits_of_what_is_new_stay_behind(layers) -> None:
    layers.write("upper", b"f", b"1", 0o6755)
    layers.mkdir("upper", b"d", 0o2775)
    for path, mode in ((b"f", 0o755), (b"d", 0o775)):
        change = layers.change(path)
        assert change.new.mode == mode
        assert change.drops_setid


def test_a_setuid_bit_alone_is_left_and_said(layers) -> None:
    layers.write("lower", b"f", b"1", 0o755)
    layers.write("upper", b"f", b"1", 0o4755)
    assert layers.told() == {}
    assert layers.left() == {b"f": (Left.SETID, 1)}


def test_a_touched_file_keeps_the_setuid_bit_that_the_lower_has(layers) -> None:
    layers.write("lower", b"f", b"1", 0o4755)
    layers.write("upper", b"f", b"1", 0o4755)
    assert layers.told() == {}
    assert layers.left() == {}


def test_a_setgid_bit_that_a_new_directory_gets_from_the_real_one_above_stays_behind_nowhere(layers) -> None:
    layers.mkdir("lower", b"team", 0o2775)
    layers.mkdir("upper", b"team", 0o2775)
    layers.mkdir("upper", b"team/d", 0o2755)
    layers.mkdir("upper", b"team/d/e", 0o2755)
    layers.mkdir("upper", b"team/u", 0o6755)
    layers.write("upper", b"team/f", b"1", 0o2755)
    dropping = {path: layers.change(path).drops_setid for path in (b"team/d", b"team/d/e", b"team/u", b"team/f")}
    assert dropping == {b"team/d": False, b"team/d/e": False, b"team/u": True, b"team/f": True}


def test_a_setgid_directory_of_the_lower_stays_one(layers) -> None:
    layers.mkdir("lower", b"team", 0o2770)
    layers.mkdir("upper", b"team", 0o2775)
    manifest = layers.manifest()
    base = manifest.bases[b"team"]._replace(mode=0o2770)
    changes = layers.changes(manifest.with_entries(manifest.entries, {**manifest.bases, b"team": base}))
    assert changes.changes[0].new.mode == 0o2775
    assert not changes.changes[0].drops_setid


def test_a_directory_that_was_only_copied_up_keeps_the_mode_that_the_person_gave_it_since(layers) -> None:
    layers.mkdir("lower", b"d", 0o755)
    layers.write("upper", b"d/new", b"1")
    manifest = layers.manifest()
    os.chmod(layers.at("lower", b"d"), 0o700)
    assert [change.path for change in layers.changes(manifest).changes] == [b"d/new"]


def test_a_new_executable_bit_is_marked_and_an_old_one_is_not(layers) -> None:
    layers.write("lower", b"was", b"1", 0o755)
    layers.write("lower", b"becomes", b"1")
    layers.write("upper", b"was", b"2", 0o755)
    layers.write("upper", b"becomes", b"1", 0o755)
    layers.write("upper", b"new", b"1", 0o755)
    marked = {change.path: change.new_executable for change in layers.changes().changes}
    assert marked == {b"was": False, b"becomes": True, b"new": True}


def test_a_change_of_the_roots_mode_is_told_only_against_the_mode_it_was_given(layers) -> None:
    os.chmod(layers.lower_path, 0o750)
    os.chmod(layers.upper_path, 0o700)
    manifest = layers.manifest()
    assert layers.changes(manifest).changes == ()
    for given, expected in ((0o700, []), (0o750, [(b"", ChangeKind.MODE)])):
        found = change_set("c", manifest, layers.lower, layers.store, scratch=b"_notes", root_mode=given)
        assert [(change.path, change.kind) for change in found.changes] == expected


# Renames


def test_a_moved_file_is_one_rename_and_an_edited_one_is_not(layers) -> None:
    layers.write("lower", b"a", b"the same", 0o755)
    layers.write("lower", b"b", b"edited one")
    layers.whiteout(b"a")
    layers.whiteout(b"b")
    layers.write("upper", b"new/a", b"the same", 0o644)
    layers.write("upper", b"new/b", b"edited two")
    assert layers.told() == {b"new/a": "renamed", b"b": "deleted", b"new/b": "added"}
    change = layers.change(b"new/a")
    assert (change.renamed_from, change.old.mode, change.new.mode) == (b"a", 0o755, 0o644)
    assert change.old.blob == change.new.blob


def test_empty_files_and_symlinks_are_never_renamed(layers) -> None:
    layers.write("lower", b"empty")
    layers.symlink("lower", b"link", b"x")
    layers.whiteout(b"empty")
    layers.whiteout(b"link")
    layers.write("upper", b"empty2")
    layers.symlink("upper", b"link2", b"x")
    assert set(layers.told().values()) == {"added", "deleted"}


def test_renames_pair_one_to_one_by_name_first(layers) -> None:
    for path in (b"x/one", b"x/two", b"x/three"):
        layers.write("lower", path, b"content")
    layers.whiteout(b"x")
    for path in (b"y/two", b"y/zero"):
        layers.write("upper", path, b"content")
    renamed = {c.path: c.renamed_from for c in layers.changes().changes if c.kind is ChangeKind.RENAMED}
    assert renamed == {b"y/two": b"x/two", b"y/zero": b"x/one"}
    assert layers.told(implied=True)[b"x/three"] == "deleted"


def test_a_directory_whose_files_all_moved_away_is_implied(layers) -> None:
    layers.write("lower", b"old/f", b"content")
    layers.whiteout(b"old")
    layers.write("upper", b"new/f", b"content")
    assert layers.told() == {b"new/f": "renamed"}


def test_a_file_moved_onto_another_leaves_no_rename_of_that_one(layers) -> None:
    layers.write("lower", b"a", b"content")
    layers.write("lower", b"b", b"other!!")
    layers.whiteout(b"a")
    layers.write("upper", b"b", b"content")
    assert layers.told() == {b"a": "deleted", b"b": "modified"}


# What is read


def test_a_known_base_is_not_read_again(layers) -> None:
    layers.write("lower", b"a", b"old")
    layers.write("upper", b"a", b"new")
    manifest = layers.manifest()
    told = manifest.bases[b"a"]._replace(blob="1" * 40)
    assert told.certainty is Certainty.KNOWN
    changes = layers.changes(manifest.with_entries(manifest.entries, {b"a": told}))
    assert changes.changes[0].old.blob == "1" * 40


def test_a_deleted_file_is_read_only_where_it_may_have_been_renamed(layers) -> None:
    layers.write("lower", b"a", b"12345")
    layers.write("lower", b"b", b"123")
    layers.whiteout(b"a")
    layers.whiteout(b"b")
    layers.write("upper", b"c", b"12345")
    old = {change.renamed_from or change.path: change.old.blob for change in layers.changes().changes}
    assert old[b"a"] != ""
    assert old[b"b"] == ""


def test_a_file_of_the_side_store_is_compared_by_its_own_sort_of_id(layers) -> None:
    content = b"x" * (9 << 20)
    layers.write("lower", b"same", content)
    layers.write("upper", b"same", content)
    layers.write("lower", b"other", content)
    layers.write("upper", b"other", b"y" + content[1:])
    assert layers.told() == {b"other": "modified"}
    assert layers.change(b"other").new.blob.startswith("big:")


# The digest


def test_equal_inputs_give_an_equal_digest_and_any_difference_another(layers) -> None:
    layers.write("lower", b"a", b"old")
    layers.write("upper", b"a", b"new")
    manifest = layers.manifest()
    digest = layers.changes(manifest).digest
    assert len(digest) == 64
    assert layers.changes(manifest).digest == digest
    seen = {digest}
    layers.write("upper", b"a", b"neu")
    seen.add(layers.changes().digest)
    layers.write("upper", b"a", b"neu", 0o755)
    seen.add(layers.changes().digest)
    layers.write("lower", b"a", b"odd")
    seen.add(layers.changes().digest)
    layers.write("upper", b"b", b"")
    seen.add(layers.changes().digest)
    assert len(seen) == 5


def test_the_digest_does_not_depend_on_how_a_rename_is_paired(layers) -> None:
    layers.write("lower", b"a", b"content")
    layers.whiteout(b"a")
    layers.write("upper", b"b", b"content")
    renamed = layers.changes().changes
    apart = [
        replace(renamed[0], path=path, kind=kind, old=old, new=new, renamed_from=b"")
        for (path, old, new), kind in zip(renamed[0].steps(), (ChangeKind.DELETED, ChangeKind.ADDED), strict=True)
    ]
    assert digest_of(renamed) == digest_of(apart)


# What is left behind


def test_the_scratch_directory_is_left_and_counted(layers) -> None:
    layers.write("upper", b"_notes/a.md", b"1")
    layers.write("upper", b"_notes/sub/b.md", b"1")
    layers.write("upper", b"_notes2/c.md", b"1")
    layers.write("upper", b"sub/_notes/d.md", b"1")
    assert layers.told() == {b"_notes2/c.md": "added", b"sub/_notes/d.md": "added"}
    assert layers.left() == {b"_notes": (Left.SCRATCH, 2)}


def test_an_empty_scratch_directory_is_nothing(layers) -> None:
    layers.mkdir("upper", b"_notes")
    assert layers.left() == {}
    assert layers.told() == {}


def test_fifos_and_sockets_are_left(layers) -> None:
    layers.write("lower", b"was", b"1")
    layers.mkdir("upper", b"d")
    os.mkfifo(layers.at("upper", b"d/fifo"))
    os.mkfifo(layers.at("upper", b"was"))
    os.mknod(layers.at("upper", b"socket"), stat.S_IFSOCK | 0o600)
    assert layers.told() == {b"d": "added"}
    assert layers.left() == {b"d/fifo": (Left.FIFO, 1), b"was": (Left.FIFO, 1), b"socket": (Left.SOCKET, 1)}


def test_a_fifo_of_the_lower_keeps_the_directories_around_it(layers) -> None:
    layers.write("lower", b"d/e/file", b"1")
    os.mkfifo(layers.at("lower", b"d/fifo"))
    layers.whiteout(b"d")
    assert layers.told(implied=True) == {b"d/e": "deleted", b"d/e/file": "deleted"}
    assert layers.left() == {b"d/fifo": (Left.FIFO, 1)}


def test_nothing_replaces_a_directory_in_which_something_stays(layers) -> None:
    layers.write("lower", b"d/file", b"1")
    os.mkfifo(layers.at("lower", b"d/fifo"))
    layers.write("upper", b"d", b"a file now")
    assert layers.told() == {}
    assert set(layers.left()) == {b"d", b"d/fifo"}


def test_a_mode_change_of_a_directory_in_which_something_stays_lands(layers) -> None:
    layers.mkdir("lower", b"d", 0o755)
    os.mkfifo(layers.at("lower", b"d/fifo"))
    layers.mkdir("upper", b"d", 0o700)
    layers.whiteout(b"d/fifo")
    manifest = layers.manifest()
    base = manifest.bases[b"d"]._replace(mode=0o755)
    changes = layers.changes(manifest.with_entries(manifest.entries, {**manifest.bases, b"d": base}))
    assert [(change.path, change.kind) for change in changes.changes] == [(b"d", ChangeKind.MODE)]


def test_what_a_checkpoint_omitted_is_left(layers) -> None:
    layers.write("lower", b"a", b"1")
    layers.write("upper", b"a", b"2")
    manifest = layers.manifest()
    entry = manifest.entries[b"a"]._replace(omitted="too big", blob="")
    changes = layers.changes(manifest.with_entries({**manifest.entries, b"a": entry}))
    assert changes.changes == ()
    assert [one.reason for one in changes.left] == [Left.OMITTED]


@pytest.mark.skipif(not ROOT, reason="needs root to mount")
def test_changes_at_and_below_a_mount_point_are_left(layers, tmp_path) -> None:
    layers.mkdir("lower", b"d/mnt")
    layers.write("lower", b"d/file", b"1")
    target = os.fsdecode(layers.at("lower", b"d/mnt"))
    subprocess.run(["mount", "-t", "tmpfs", "none", target], check=True)
    try:
        layers.write("upper", b"d/mnt/a", b"1")
        layers.write("upper", b"d/mnt/sub/b", b"1")
        assert layers.told() == {}
        assert layers.left() == {b"d/mnt": (Left.MOUNT_POINT, 2)}
        shutil.rmtree(layers.at("upper", b"d"))
        layers.whiteout(b"d")
        assert layers.told() == {b"d/file": "deleted"}
        assert layers.left() == {b"d/mnt": (Left.MOUNT_POINT, 1)}
    finally:
        subprocess.run(["umount", target], check=True)


def _as_nobody(action) -> None:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            action()
            code = 0
        finally:
            if code:
                traceback.print_exc()
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.skipif(not ROOT, reason="needs root to become somebody else")
def test_what_the_caller_cannot_read_is_left_and_never_fatal(layers, tmp_path) -> None:
    layers.write("lower", b"secret", b"abc", 0o600)
    layers.write("lower", b"closed/a", b"1")
    layers.write("lower", b"gone/closed/a", b"1")
    layers.write("lower", b"gone/file", b"1")
    layers.write("upper", b"secret", b"xyz")
    layers.write("upper", b"closed/b", b"1")
    layers.whiteout(b"gone")
    manifest = layers.manifest()
    manifest = manifest.with_entries(manifest.entries, {})
    os.chmod(layers.at("lower", b"closed"), 0o700)
    os.chmod(layers.at("lower", b"gone/closed"), 0o700)

    def look() -> None:
        changes = layers.changes(manifest)
        assert [change.path for change in changes.changes] == [b"gone/file"]
        assert {one.path for one in changes.left} == {b"secret", b"closed", b"gone/closed"}
        assert {one.reason for one in changes.left} == {Left.UNREADABLE}

    _as_nobody(look)


def test_a_device_in_the_upper_is_left(layers) -> None:
    layers.write("upper", b"a", b"1")
    manifest = layers.manifest()
    entry = manifest.entries[b"a"]._replace(kind=Kind.DEVICE)
    changes = layers.changes(manifest.with_entries({**manifest.entries, b"a": entry}))
    assert [one.reason for one in changes.left] == [Left.DEVICE]
