"""A commit lands exactly what was reviewed, and nothing else changes."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.review.landing import Landing, everything, in_child
from tests.trees import snapshot
from workbench.checkpoints.manifest import Manifest
from workbench.errors import CommitError, ConflictError
from workbench.review.changeset import ChangeSet
from workbench.review.compare import digest_of
from workbench.review.landed import load
from workbench.review.recovery import unsettled
from workbench.vfs import syscalls
from workbench.vfs.local import LocalStorage

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
pytestmark = pytest.mark.filterwarnings("error")

ODD_NAMES = [
    b"new\nline",
    b"\xff\xfe not UTF-8",
    b"n" * 255,
    b"co:lon,comma",
    b"-dash",
    b" space ",
    b"tab\t",
    b"quote\"'",
    b"back\\slash",
    b"report..final.md",
    b"[...slug]",
    b"*?",
    b".wh.file",
    b"CON",
    b"trailing.",
    "é".encode(),
    "e\u0301".encode(),
]


@pytest.fixture
def landing(tmp_path: Path) -> Iterator[Landing]:
    made = Landing(tmp_path)
    yield made
    made.close()


def test_a_commit_reproduces_the_merged_view(landing: Landing) -> None:
    everything(landing)
    merged = landing.merged()
    committed = landing.land()
    assert landing.tree() == merged
    landing.assert_tidy()
    assert set(committed.landed_bases) == set(committed.landed)
    assert not committed.weak


def test_the_record_of_a_commit_is_read_back_as_it_was(landing: Landing) -> None:
    everything(landing)
    landing.write("upper", b"\xff\n")
    committed = landing.land(session="mine")
    assert load(landing.commits, committed.commit_id) == committed
    assert unsettled(landing.commits) == [committed]
    assert committed.session == "mine"


def test_the_pre_images_of_a_commit_are_kept(landing: Landing) -> None:
    everything(landing)
    before = landing.tree()
    committed = landing.land()
    old = snapshot(os.path.join(committed.directory, "old"), times=False)
    contents = {node.content for node in old.values()}
    for path in (b"replaced", b"deleted", b"gone/deep/file", b"to-file/child", b"d/changed", b"link"):
        assert before[path].content in contents, path


def test_an_empty_change_set_touches_nothing(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    before = landing.tree(times=True)
    assert landing.land().landed == ()
    assert landing.tree(times=True) == before


def test_a_commit_keeps_the_mtimes_of_files_and_of_untouched_directories(landing: Landing) -> None:
    landing.write("lower", b"d/a", b"1")
    landing.write("lower", b"other/b", b"1")
    landing.write("upper", b"d/a", b"2")
    os.utime(landing.at("upper", b"d/a"), ns=(5, 1_234_567_891))
    before = landing.tree(times=True)
    landing.land()
    after = landing.tree(times=True)
    assert after[b"d/a"].mtime_ns == 1_234_567_891
    for path in (b"", b"other"):
        assert after[path].mtime_ns == before[path].mtime_ns
    assert after[b"other/b"] == before[b"other/b"]


def test_a_mode_alone_is_changed_in_place(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    inode = os.stat(landing.at("lower", b"a")).st_ino
    landing.write("upper", b"a", b"1", 0o755)
    landing.land()
    assert os.stat(landing.at("lower", b"a")).st_mode & 0o777 == 0o755
    assert os.stat(landing.at("lower", b"a")).st_ino == inode


def test_a_mode_alone_of_a_hard_linked_file_leaves_the_other_names_as_they_were(landing: Landing) -> None:
    for name in (b"a", b"d/c"):
        landing.write("lower", name, b"1")
    for name in (b"b", b"c", b"d/e"):
        os.link(landing.at("lower", b"a"), landing.at("lower", name))
    for name, mode in ((b"a", 0o755), (b"c", 0o700)):
        landing.write("upper", name, b"1", mode)
    merged = landing.merged()
    landing.land()
    assert landing.tree() == merged
    assert os.stat(landing.at("lower", b"b")).st_mode & 0o777 == 0o644


def test_several_names_of_one_file_can_go_at_once(landing: Landing) -> None:
    landing.write("lower", b"d/a", b"1")
    for name in (b"a", b"b", b"c"):
        os.link(landing.at("lower", b"d/a"), landing.at("lower", name))
    landing.whiteout(b"a")
    landing.write("upper", b"b", b"2")
    landing.write("upper", b"c", b"1", 0o755)
    landing.whiteout(b"d")
    merged = landing.merged()
    landing.land()
    assert landing.tree() == merged
    landing.assert_tidy()


def test_replacing_a_hard_linked_file_breaks_the_link(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    os.link(landing.at("lower", b"a"), landing.at("lower", b"b"))
    landing.write("upper", b"a", b"2")
    landing.land()
    assert landing.read(b"a") == b"2"
    assert landing.read(b"b") == b"1"


def test_new_hard_links_land_as_hard_links(landing: Landing) -> None:
    landing.write("upper", b"d/a", b"1")
    landing.mkdir("upper", b"e")
    os.link(landing.at("upper", b"d/a"), landing.at("upper", b"e/b"))
    landing.land()
    assert os.stat(landing.at("lower", b"d/a")).st_ino == os.stat(landing.at("lower", b"e/b")).st_ino


def test_symlinks_land_as_symlinks_and_are_never_followed(landing: Landing, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("untouched")
    landing.symlink("lower", b"way", os.fsencode(outside))
    landing.symlink("lower", b"file", os.fsencode(outside / "f"))
    landing.write("upper", b"way/f", b"agent")
    landing.write("upper", b"file", b"agent")
    landing.symlink("upper", b"new", b"/etc/passwd")
    landing.symlink("upper", b"dangling", b"nowhere")
    before = snapshot(outside)
    landing.land()
    assert snapshot(outside) == before
    assert landing.read(b"way/f") == b"agent"
    assert os.readlink(landing.at("lower", b"new")) == b"/etc/passwd"
    assert os.readlink(landing.at("lower", b"dangling")) == b"nowhere"


def test_odd_names_land(landing: Landing) -> None:
    for name in ODD_NAMES:
        landing.write("lower", b"old/" + name, b"1" + name)
        landing.whiteout(b"old/" + name)
        landing.write("lower", b"both/" + name, b"1")
        landing.write("upper", b"both/" + name, b"2" + name)
        landing.write("upper", b"new/" + name + b"/" + name, b"3" + name)
    merged = landing.merged()
    landing.land()
    assert landing.tree() == merged


def test_a_deep_tree_lands_and_goes(landing: Landing) -> None:
    def nest(layer: bytes, depth: int) -> None:
        fd = os.open(layer, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir(b"deep" * 10, dir_fd=fd)
            below = os.open(b"deep" * 10, os.O_RDONLY, dir_fd=fd)
            os.close(fd)
            fd = below
        os.close(os.open(b"leaf", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
        os.close(fd)

    depth = 300
    nest(landing.upper_path, depth)
    committed = landing.land()
    assert len(committed.landed) == depth + 1
    path = b"/".join([b"deep" * 10] * depth) + b"/leaf"
    assert len(path) > 4096
    assert landing.lower.exists(path)
    # And out again: the upper now only says that it's gone.
    subprocess.run(["rm", "-rf", os.path.join(landing.upper_path, b"deep" * 10)], check=True)
    landing.whiteout(b"deep" * 10)
    landing.begin_again()
    landing.land()
    assert os.listdir(landing.lower_path) == []


def test_a_deleted_then_recreated_directory_hides_what_was_in_it(landing: Landing) -> None:
    landing.write("lower", b"d/old", b"1")
    landing.write("lower", b"d/sub/old", b"1")
    landing.mkdir("upper", b"d", opaque=True)
    landing.write("upper", b"d/new", b"2")
    landing.land()
    assert set(landing.tree()) == {b"", b"d", b"d/new"}


def test_holes_stay_holes(landing: Landing) -> None:
    landing.write("upper", b"sparse", b"start")
    with open(landing.at("upper", b"sparse"), "r+b") as file:
        file.seek(4 << 20)
        file.write(b"middle")
        file.truncate(16 << 20)
    landing.land()
    assert landing.tree() == landing.merged()
    assert os.stat(landing.at("lower", b"sparse")).st_blocks * 512 < 1 << 20


def test_a_file_of_the_side_store_lands(landing: Landing) -> None:
    content = os.urandom(1 << 20) * 9
    landing.write("lower", b"big", content)
    landing.write("upper", b"big", content[::-1])
    landing.write("upper", b"new", content)
    landing.land()
    assert landing.read(b"big") == content[::-1]
    assert landing.read(b"new") == content


# Conflicts


def assert_conflict(landing: Landing, *expected: bytes, reviewed: object = None) -> None:
    before = landing.tree(times=True)
    with pytest.raises(ConflictError) as caught:
        landing.land(reviewed)
    assert landing.tree(times=True) == before
    assert set(expected) <= set(caught.value.paths)
    assert caught.value.code == "conflict"
    landing.assert_tidy()


@pytest.fixture
def edited(landing: Landing) -> Landing:
    for path in (b"a", b"b", b"d/f", b"gone/x", b"gone/sub/y"):
        landing.write("lower", path, b"old")
    landing.symlink("lower", b"link", b"a")
    landing.write("upper", b"a", b"agent")
    landing.write("upper", b"d/f", b"agent")
    landing.whiteout(b"b")
    landing.whiteout(b"gone")
    landing.symlink("upper", b"link", b"b")
    landing.write("upper", b"new/file", b"agent")
    return landing


def save(path: bytes, content: bytes) -> None:
    with open(path + b".tmp", "wb") as file:
        file.write(content)
    os.rename(path + b".tmp", path)


def test_a_file_saved_by_rename_is_a_conflict(edited: Landing) -> None:
    reviewed = edited.review()
    save(edited.at("lower", b"a"), b"person")
    assert_conflict(edited, b"a", reviewed=reviewed)


def test_a_file_edited_in_place_is_a_conflict_even_with_its_old_times(edited: Landing) -> None:
    reviewed = edited.review()
    status = os.stat(edited.at("lower", b"a"))
    with open(edited.at("lower", b"a"), "r+b") as file:
        file.write(b"odd")
    os.utime(edited.at("lower", b"a"), ns=(status.st_atime_ns, status.st_mtime_ns))
    assert_conflict(edited, b"a", reviewed=reviewed)


def test_a_deleted_file_that_was_edited_is_a_conflict_even_with_its_old_times(edited: Landing) -> None:
    reviewed = edited.review()
    status = os.stat(edited.at("lower", b"b"))
    with open(edited.at("lower", b"b"), "r+b") as file:
        file.write(b"odd")
    os.utime(edited.at("lower", b"b"), ns=(status.st_atime_ns, status.st_mtime_ns))
    assert_conflict(edited, b"b", reviewed=reviewed)


def test_every_conflict_is_named_at_once(edited: Landing) -> None:
    reviewed = edited.review()
    save(edited.at("lower", b"a"), b"person")
    save(edited.at("lower", b"gone/x"), b"person")
    edited.write("lower", b"gone/sub/added", b"person")
    edited.write("lower", b"new/file", b"person")
    os.chmod(edited.at("lower", b"d/f"), 0o600)
    assert_conflict(edited, b"a", b"gone/x", b"gone/sub/added", b"new/file", b"d/f", reviewed=reviewed)


def test_a_swapped_directory_is_a_conflict(edited: Landing) -> None:
    reviewed = edited.review()
    os.rename(edited.at("lower", b"d"), edited.at("lower", b"d.away"))
    os.mkdir(edited.at("lower", b"d"))
    os.link(edited.at("lower", b"d.away/f"), edited.at("lower", b"d/f"))
    assert_conflict(edited, b"d", b"d/f", reviewed=reviewed)


def test_a_directory_that_became_a_symlink_is_a_conflict(edited: Landing, tmp_path: Path) -> None:
    reviewed = edited.review()
    os.rename(edited.at("lower", b"d"), os.fsencode(tmp_path / "elsewhere"))
    os.symlink(os.fsencode(tmp_path / "elsewhere"), edited.at("lower", b"d"))
    assert_conflict(edited, b"d/f", reviewed=reviewed)
    assert (tmp_path / "elsewhere" / "f").read_bytes() == b"old"


def test_a_flipped_symlink_is_a_conflict(edited: Landing) -> None:
    reviewed = edited.review()
    os.unlink(edited.at("lower", b"link"))
    os.symlink(b"d", edited.at("lower", b"link"))
    assert_conflict(edited, b"link", reviewed=reviewed)


def test_a_file_added_to_a_deleted_directory_is_a_conflict(edited: Landing) -> None:
    reviewed = edited.review()
    edited.write("lower", b"gone/sub/added", b"person")
    assert_conflict(edited, b"gone/sub/added", reviewed=reviewed)


def test_a_file_taken_from_a_deleted_directory_is_a_conflict(edited: Landing) -> None:
    reviewed = edited.review()
    os.unlink(edited.at("lower", b"gone/sub/y"))
    assert_conflict(edited, b"gone/sub/y", reviewed=reviewed)


def test_an_edit_between_the_base_and_the_review_is_a_conflict(edited: Landing) -> None:
    manifest = edited.manifest()
    save(edited.at("lower", b"a"), b"person")
    changes = edited.changes(manifest)
    assert_conflict(edited, b"a", reviewed=(manifest, changes))
    # Put back since, it's still not what was looked at.
    save(edited.at("lower", b"a"), b"old")
    assert_conflict(edited, b"a", reviewed=(manifest, changes))


def test_a_file_saved_with_the_same_content_is_no_conflict(edited: Landing) -> None:
    reviewed = edited.review()
    save(edited.at("lower", b"a"), b"old")
    edited.land(reviewed)
    assert edited.read(b"a") == b"agent"


def test_an_unknown_base_is_a_conflict_unless_both_sides_are_equal(edited: Landing) -> None:
    manifest, changes = edited.review()
    unknown = manifest.bases[b"a"]._replace(certainty=type(manifest.bases[b"a"].certainty).UNKNOWN)
    manifest = manifest.with_entries(manifest.entries, {**manifest.bases, b"a": unknown})
    assert_conflict(edited, b"a", reviewed=(manifest, changes))
    save(edited.at("lower", b"a"), b"agent")
    os.chmod(edited.at("lower", b"a"), 0o644)
    edited.land((manifest, changes))
    assert edited.read(b"a") == b"agent"


def test_a_change_that_the_person_made_as_well_is_no_conflict(edited: Landing) -> None:
    reviewed = edited.review()
    os.unlink(edited.at("lower", b"b"))
    edited.write("lower", b"new/file", b"agent")
    inode = os.stat(edited.at("lower", b"new/file")).st_ino
    edited.land(reviewed)
    assert os.stat(edited.at("lower", b"new/file")).st_ino == inode


# Refusals


def test_a_digest_that_isnt_the_change_sets_is_refused(edited: Landing) -> None:
    manifest, changes = edited.review()
    with pytest.raises(CommitError) as caught:
        edited.land((manifest, replace(changes, changes=changes.changes[1:])))
    assert caught.value.code == "digest_changed"


def test_a_selection_without_what_it_depends_on_is_refused(edited: Landing) -> None:
    manifest, changes = edited.review()
    for left_out in (b"new", b"gone/x"):
        chosen = tuple(change for change in changes.changes if change.path != left_out)
        before = edited.tree(times=True)
        with pytest.raises(CommitError) as caught:
            edited.land((manifest, replace(changes, changes=chosen, digest=digest_of(chosen))))
        assert caught.value.code == "not_landable"
        assert left_out.decode() in caught.value.message
        assert edited.tree(times=True) == before


def test_a_repository_never_lands_whoever_made_the_change_set(landing: Landing) -> None:
    landing.write("upper", b"d/x", b"1")
    manifest, changes = landing.review()
    forged = tuple(replace(change, path=change.path.replace(b"d", b".GiT", 1)) for change in changes.changes)
    with pytest.raises(CommitError) as caught:
        landing.land((manifest, replace(changes, changes=forged, digest=digest_of(forged))))
    assert caught.value.code == "not_landable"
    assert os.listdir(landing.lower_path) == []


def test_a_damaged_content_never_lands(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    landing.write("upper", b"a", b"2")
    manifest, changes = landing.review()

    class Damaged:
        def open(self, blob: str) -> object:
            import io

            return io.BytesIO(b"something else")

    before = landing.tree()
    landing.store.close()
    landing.store = Damaged()  # type: ignore[assignment]
    landing.store.close = lambda: None  # type: ignore[method-assign]
    with pytest.raises(CommitError, match="isn't what was reviewed"):
        landing.land((manifest, changes))
    assert landing.tree() == before
    landing.assert_tidy()


def test_a_lock_that_somebody_holds_is_waited_for_and_then_refused(edited: Landing) -> None:
    fd = os.open(edited.lower_path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(CommitError, match="lock"):
        edited.land(lock_timeout_s=0)
    os.close(fd)
    edited.land(lock_timeout_s=0)


def test_the_directories_above_are_locked_shared(edited: Landing) -> None:
    above = os.open(edited.base, os.O_RDONLY)
    held = []

    def look(step: str) -> None:
        other = os.open(edited.base, os.O_RDONLY)
        try:
            fcntl.flock(other, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.flock(other, fcntl.LOCK_UN)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held.append(step)
        os.close(other)

    edited.land(on_step=look, locks=(above,))
    assert "synced" in held
    fcntl.flock(above, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(above)


def test_of_two_commits_at_once_the_second_sees_the_first(edited: Landing) -> None:
    reviewed = edited.review()
    other = Landing(edited.base / "other")
    other.lower.close()
    other.lower_path, other.lower, other.commits = edited.lower_path, LocalStorage(edited.lower_path), edited.commits
    other.write("upper", b"a", b"another agent")
    other.write("upper", b"mine", b"another agent")
    others = other.review()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.read(reading, 1)
            other.land(others)
        except ConflictError as error:
            code = 3 if error.paths == (b"a",) else 4
        finally:
            os._exit(code)

    def begin_the_other(step: str) -> None:
        if step == "examined":
            os.write(writing, b"!")

    edited.land(reviewed, begin_the_other)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 3
    assert edited.read(b"a") == b"agent"
    assert not edited.lower.exists(b"mine")
    other.close()
    for fd in (reading, writing):
        os.close(fd)


def test_an_interrupt_undoes_the_commit(edited: Landing) -> None:
    before = edited.tree()

    def interrupt(step: str) -> None:
        if step == "synced":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        edited.land(on_step=interrupt)
    assert edited.tree() == before
    edited.assert_tidy()


def test_an_undone_commit_gives_directories_their_mtimes_back(edited: Landing) -> None:
    before = {path: node.mtime_ns for path, node in edited.tree(times=True).items()}

    def fail(step: str) -> None:
        if step == "synced":
            raise OSError(errno.EIO, "broken")

    with pytest.raises(CommitError):
        edited.land(on_step=fail)
    assert {path: node.mtime_ns for path, node in edited.tree(times=True).items()} == before
    edited.land()


# Owners, attributes, filesystems


def acl(*entries: tuple[int, int, int]) -> bytes:
    # The layout of include/uapi/linux/posix_acl_xattr.h: version 2, then tag, permissions and id of each entry.
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ANYBODY = 0xFFFFFFFF
ACL = acl((1, 6, ANYBODY), (2, 6, 12345), (4, 4, ANYBODY), (0x10, 6, ANYBODY), (0x20, 4, ANYBODY))


@needs_root
def test_what_replaces_a_file_has_its_owner_acl_and_attributes(landing: Landing) -> None:
    landing.write("lower", b"a", b"1", 0o664)
    path = landing.at("lower", b"a")
    os.setxattr(path, b"user.colour", b"blue")
    os.setxattr(path, b"system.posix_acl_access", ACL)
    os.chown(path, 1234, 2345)
    landing.write("upper", b"a", b"2", 0o664)
    landing.land()
    status = os.stat(path)
    assert (status.st_uid, status.st_gid, status.st_mode & 0o7777) == (1234, 2345, 0o664)
    assert os.getxattr(path, b"user.colour") == b"blue"
    assert os.getxattr(path, b"system.posix_acl_access") == ACL
    assert landing.read(b"a") == b"2"


@needs_root
def test_a_capability_of_the_old_content_is_not_given_to_the_new(landing: Landing) -> None:
    landing.write("lower", b"a", b"1", 0o755)
    path = landing.at("lower", b"a")
    # struct vfs_cap_data of include/uapi/linux/capability.h, revision 2, CAP_NET_RAW effective.
    os.setxattr(path, b"security.capability", struct.pack("<IIIII", 0x02000001, 1 << 13, 0, 0, 0))
    landing.write("upper", b"a", b"2", 0o755)
    landing.land()
    assert "security.capability" not in os.listxattr(path)


@needs_root
def test_new_entries_below_a_setgid_directory_have_its_group(landing: Landing) -> None:
    landing.mkdir("lower", b"team")
    os.chown(landing.at("lower", b"team"), 0, 4321)
    os.chmod(landing.at("lower", b"team"), 0o2775)
    landing.mkdir("upper", b"team", 0o2775)
    landing.write("upper", b"team/new/file", b"1")
    landing.land()
    status = os.stat(landing.at("lower", b"team/new"))
    assert (status.st_gid, status.st_mode & 0o7000) == (4321, stat.S_ISGID)
    assert os.stat(landing.at("lower", b"team/new/file")).st_gid == 4321


def test_new_entries_have_the_default_acl_of_their_directory(landing: Landing) -> None:
    landing.mkdir("lower", b"shared")
    os.setxattr(landing.at("lower", b"shared"), b"system.posix_acl_default", ACL)
    landing.mkdir("upper", b"shared")
    landing.write("upper", b"shared/new/file", b"1", 0o664)
    landing.land()
    assert os.getxattr(landing.at("lower", b"shared/new"), b"system.posix_acl_default") == ACL
    assert os.getxattr(landing.at("lower", b"shared/new/file"), b"system.posix_acl_access") == ACL
    assert os.stat(landing.at("lower", b"shared/new/file")).st_mode & 0o777 == 0o664


def test_a_default_acl_of_the_root_reaches_nothing_but_its_own_new_entries(landing: Landing) -> None:
    landing.write("lower", b"d/a", b"1")
    os.setxattr(landing.lower_path, b"system.posix_acl_default", ACL)
    landing.write("upper", b"d/a", b"2")
    landing.write("upper", b"d/b", b"2")
    landing.land()
    for path in (b"d/a", b"d/b"):
        assert "system.posix_acl_access" not in os.listxattr(landing.at("lower", path))


@needs_root
def test_a_caller_who_cant_keep_an_owner_is_refused_before_anything_is_touched(landing: Landing) -> None:
    landing.write("lower", b"a", b"1", 0o666)
    landing.write("upper", b"a", b"2", 0o666)
    reviewed = review_as_nobody(landing)
    os.chown(landing.at("lower", b"a"), 0, 0)
    before = landing.tree(times=True)
    assert unprivileged(landing, reviewed) == "commit_failed"
    assert landing.tree(times=True) == before


@needs_root
def test_a_directory_that_may_not_be_written_is_refused_before_anything_is_touched(landing: Landing) -> None:
    landing.write("lower", b"a", b"1")
    landing.write("lower", b"closed/b", b"1")
    os.chmod(landing.at("lower", b"closed"), 0o555)
    landing.write("upper", b"a", b"2")
    landing.write("upper", b"closed/b", b"2")
    reviewed = review_as_nobody(landing)
    before = landing.tree(times=True)
    assert unprivileged(landing, reviewed) == "commit_failed"
    assert landing.tree(times=True) == before


@needs_root
def test_closed_directories_come_go_and_change_without_root(landing: Landing) -> None:
    landing.write("lower", b"opened/a", b"1")
    landing.write("lower", b"gone/a", b"1")
    landing.write("lower", b"closing/a", b"1")
    for name in (b"opened", b"gone"):
        os.chmod(landing.at("lower", name), 0o555)
    landing.write("upper", b"opened/new", b"1")
    landing.mkdir("upper", b"opened", 0o755)
    landing.whiteout(b"gone")
    landing.write("upper", b"closing/new", b"1")
    landing.mkdir("upper", b"closing", 0o555)
    landing.write("upper", b"fresh/deep/file", b"1")
    landing.mkdir("upper", b"fresh/deep", 0o555)
    landing.mkdir("upper", b"fresh", 0o555)
    merged, old, reviewed = landing.merged(), landing.tree(), review_as_nobody(landing)

    def fail(step: str) -> None:
        if step == "synced":
            raise OSError(errno.EIO, "broken")

    assert unprivileged(landing, reviewed, fail) == "commit_failed"
    assert landing.tree() == old
    assert unprivileged(landing, reviewed) == ""
    assert landing.tree() == merged


@needs_root
def test_an_immutable_file_half_way_undoes_the_rest(landing: Landing) -> None:
    for name in (b"a", b"b", b"c"):
        landing.write("lower", name, b"1")
        landing.write("upper", name, b"2")
    reviewed = landing.review()
    before = landing.tree()
    if subprocess.run(["chattr", "+i", landing.at("lower", b"b")], check=False).returncode:
        pytest.skip("the filesystem has no immutable files")
    try:
        with pytest.raises(CommitError) as caught:
            landing.land(reviewed)
        assert caught.value.code == "commit_failed"
        assert landing.tree() == before
        landing.assert_tidy()
    finally:
        subprocess.run(["chattr", "-i", landing.at("lower", b"b")], check=True)
    landing.land(reviewed)
    assert landing.read(b"b") == b"2"


def review_as_nobody(landing: Landing) -> tuple[Manifest, ChangeSet]:
    """Give a workspace and its state to an unprivileged user, and review it."""
    give_away(landing.lower_path)
    reviewed = landing.review()
    os.chown(landing.base, NOBODY, NOBODY)
    give_away(os.fsencode(landing.base / "store"))
    return reviewed


def give_away(top: bytes) -> None:
    for directory, names, files in os.walk(top):
        for name in [b".", *names, *files]:
            os.lchown(os.path.join(directory, name), NOBODY, NOBODY)


NOBODY = 65534


def unprivileged(landing: Landing, reviewed: object, on_step: object = None) -> str:
    """Land as an unprivileged user, in a process of its own; the code of the error, empty where there was none."""
    reading, writing = os.pipe()

    def act() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        try:
            landing.land(reviewed, on_step)
        except CommitError as error:
            os.write(writing, error.code.encode())

    # The directories that pytest makes are closed to others.
    above = landing.base
    modes = []
    while above != above.parent:
        modes.append((above, above.stat().st_mode & 0o7777))
        above.chmod(modes[-1][1] | 0o111)
        above = above.parent
    try:
        assert in_child(act) == 0
    finally:
        for directory, mode in modes:
            directory.chmod(mode)
        os.close(writing)
    with os.fdopen(reading) as told:
        return told.read()


@needs_root
def test_a_mount_point_inside_is_never_renamed_away(landing: Landing) -> None:
    landing.write("lower", b"d/f", b"1")
    landing.mkdir("lower", b"d/mounted")
    landing.whiteout(b"d")
    reviewed = landing.review()
    subprocess.run(["mount", "-t", "tmpfs", "none", landing.at("lower", b"d/mounted")], check=True)
    try:
        before = landing.tree()
        with pytest.raises(CommitError) as caught:
            landing.land(reviewed)
        assert caught.value.code == "not_landable"
        assert landing.tree() == before
    finally:
        subprocess.run(["umount", landing.at("lower", b"d/mounted")], check=True)


@needs_root
def test_pre_images_are_copied_where_the_state_is_on_another_filesystem(landing: Landing, tmp_path: Path) -> None:
    everything(landing)
    before, merged, reviewed = landing.tree(), landing.merged(), landing.review()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", elsewhere], check=True)
    try:
        landing.commits = str(elsewhere / "commits")
        committed = landing.land(reviewed)
        assert landing.tree() == merged
        contents = {node.content for node in snapshot(os.path.join(committed.directory, "old")).values()}
        for path in (b"replaced", b"deleted", b"gone/deep/file", b"to-file/child", b"d/changed", b"link"):
            assert before[path].content in contents, path
        landing.assert_tidy()
    finally:
        subprocess.run(["umount", elsewhere], check=True)


@needs_root
def test_a_full_disk_leaves_everything_as_it_was(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", small], check=True)
    landing = Landing(tmp_path / "layers")
    try:
        landing.lower.close()
        landing.lower_path = os.fsencode(small)
        landing.lower = LocalStorage(landing.lower_path)
        landing.write("lower", b"a", b"1")
        landing.write("upper", b"a", b"2")
        landing.write("upper", b"huge", os.urandom(2 << 20))
        reviewed, before = landing.review(), landing.tree(times=True)
        with pytest.raises(CommitError, match="No space left") as caught:
            landing.land(reviewed)
        assert caught.value.code == "commit_failed"
        after = landing.tree(times=True)
        assert {path: node[:4] for path, node in after.items()} == {path: node[:4] for path, node in before.items()}
        landing.assert_tidy()
        subprocess.run(["mount", "-o", "remount,size=16m", small], check=True)
        landing.land(reviewed)
        assert landing.read(b"a") == b"2"
    finally:
        landing.close()
        subprocess.run(["umount", small], check=True)


def without_exchange(monkeypatch: pytest.MonkeyPatch, flags: int) -> None:
    """Answer as the kernel does for a filesystem that lacks some flags of renameat2(2)."""
    real = syscalls.renameat2

    def renameat2(*arguments: object) -> None:
        if len(arguments) > 4 and int(arguments[4]) & flags:  # type: ignore[call-overload]
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(syscalls, "renameat2", renameat2)


@pytest.mark.parametrize("flags", [syscalls.RENAME_EXCHANGE, syscalls.RENAME_EXCHANGE | syscalls.RENAME_NOREPLACE])
def test_without_an_exchange_the_window_is_admitted(
    landing: Landing, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    everything(landing)
    old, merged, reviewed = landing.tree(), landing.merged(), landing.review()
    without_exchange(monkeypatch, flags)
    steps: list[str] = []

    def fail(step: str) -> None:
        steps.append(step)
        if step == "synced":
            raise OSError(errno.EIO, "broken")

    with pytest.raises(CommitError):
        landing.land(reviewed, fail)
    assert landing.tree() == old
    for step in steps:
        if step.startswith(("apply", "emptied", "renamed")):
            die_at = step

            def die(at: str, die_at: str = die_at) -> None:
                if at == die_at:
                    os.kill(os.getpid(), 9)
                fail(at)

            assert in_child(lambda die=die: landing.land(reviewed, die)) == -9
            landing.recover()
            assert landing.tree() == old, step
    assert landing.land(reviewed).weak
    assert landing.tree() == merged
    landing.assert_tidy()


def test_a_thousand_changes_land(landing: Landing) -> None:
    for number in range(1000):
        path = b"d%d/f%d" % (number % 20, number)
        if number % 3:
            landing.write("lower", path, b"old")
        if number % 3 == 1:
            landing.whiteout(path)
        else:
            landing.write("upper", path, b"new")
    merged = landing.merged()
    landing.land()
    assert landing.tree() == merged
