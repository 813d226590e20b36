from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoints.layers import Layers, as_nobody, let_nobody_enter, show
from workbench.checkpoints.manifest import Certainty, Manifest, Omitted
from workbench.checkpoints.restore import pending, restore
from workbench.checkpoints.scan import Budget
from workbench.errors import CheckpointError
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper


def back_to(layers: Layers, target: Manifest, **options: object) -> Manifest:
    with LocalUpper(bytes(layers.upper)) as upper:
        return restore(str(layers.upper), upper, target, layers.store, **options)  # type: ignore[arg-type]


def one_of_everything(upper: Path) -> None:
    (upper / "d/e").mkdir(parents=True)
    (upper / "d/e/f").write_text("first")
    (upper / "d/linked").write_text("linked")
    os.link(upper / "d/linked", upper / "linked too")
    (upper / "mode").write_text("x")
    (upper / "mode").chmod(0o4711)
    os.setxattr(upper / "mode", "user.a", b"1")
    os.setxattr(upper / "d", "user.b", b"2")
    os.setxattr(upper / "d/e", "user.overlay.opaque", b"y")
    # An access control list: the owner and group rwx, user 1 rx, all within the mask rx (linux/posix_acl_xattr.h).
    parts = [(1, 7, 0xFFFFFFFF), (2, 5, 1), (4, 7, 0xFFFFFFFF), (16, 5, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *part) for part in parts)
    os.setxattr(upper / "d/e/f", "system.posix_acl_access", acl)
    (upper / "sym").symlink_to("../../etc/passwd")
    os.mkfifo(upper / "fifo", 0o640)
    with (upper / "sparse").open("wb") as file:
        file.truncate(300_000)
        file.seek(150_000)
        file.write(b"x")
    (upper / "closed").mkdir(mode=0o500)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(upper / "sock"))
    os.mknod(upper / "white", 0o020000, 0)
    (upper / "to dir").write_text("a file")
    (upper / "to file").mkdir()
    (upper / "to file/x").write_text("x")
    for path in (upper / "d/e", upper / "d", upper):
        os.utime(path, ns=(1, 1_000_000_000_000_000_001))


def something_else(upper: Path) -> None:
    shutil.rmtree(upper / "d/e")
    (upper / "d/e").write_text("was a directory")
    (upper / "d/linked").unlink()
    (upper / "d/linked").write_text("apart")
    os.link(upper / "mode", upper / "d/mode")
    (upper / "mode").chmod(0o600)
    os.removexattr(upper / "mode", "user.a")
    (upper / "sym").unlink()
    (upper / "sym").mkdir()
    (upper / "fifo").unlink()
    os.mknod(upper / "fifo", 0o020000, 0)
    (upper / "white").unlink()
    (upper / "white").write_text("back")
    (upper / "to dir").unlink()
    (upper / "to dir/deep").mkdir(parents=True)
    shutil.rmtree(upper / "to file")
    (upper / "to file").symlink_to("d")
    (upper / "closed").chmod(0o700)
    (upper / "closed/new").write_text("x")
    (upper / "sock").unlink()
    os.setxattr(upper / "d", "user.overlay.opaque", b"y")


def test_a_restore_goes_both_ways_between_any_two_states(layers: Layers) -> None:
    one_of_everything(layers.upper)
    first, first_shown = layers.take(), show(layers.upper)
    something_else(layers.upper)
    second, second_shown = layers.take(), show(layers.upper)
    blocks = (layers.upper / "sparse").stat().st_blocks
    for checkpoint, shown, opaque in (
        (first, first_shown, "d/e"),
        (second, second_shown, "d"),
        (first, first_shown, "d/e"),
    ):
        restored = back_to(layers, checkpoint.manifest)
        assert show(layers.upper) == shown
        assert os.getxattr(layers.upper / opaque, "user.overlay.opaque") == b"y"
        assert {path for path, entry in restored.entries.items() if entry.opaque} == {opaque.encode()}
        assert restored.bases == checkpoint.manifest.bases
    back_to(layers, Manifest({b"": first.manifest.entries[b""]}))
    assert list(layers.upper.iterdir()) == []
    back_to(layers, first.manifest)
    assert show(layers.upper) == first_shown
    assert (layers.upper / "sparse").stat().st_blocks == blocks
    assert sorted(path.name for path in layers.path.iterdir()) == [
        "checkpoints.git",
        "lower",
        "merged",
        "upper",
        "work",
    ]


def test_the_layers_own_directory_and_the_kernels_marks_on_it_survive(layers: Layers) -> None:
    os.setxattr(layers.upper, "user.overlay.uuid", b"0123456789abcdef")
    inode = layers.upper.stat().st_ino
    empty = layers.take()
    (layers.upper / "f").write_text("x")
    back_to(layers, empty.manifest)
    assert layers.upper.stat().st_ino == inode
    assert os.getxattr(layers.upper, "user.overlay.uuid") == b"0123456789abcdef"


def test_a_symlink_that_an_agent_put_in_the_way_is_never_followed(layers: Layers, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_text("untouched")
    (layers.upper / "d").mkdir()
    (layers.upper / "d/f").write_text("inside")
    (layers.upper / "g").write_text("inside")
    checkpoint, shown = layers.take(), show(layers.upper)
    before = show(outside)
    shutil.rmtree(layers.upper / "d")
    (layers.upper / "d").symlink_to(outside)
    (layers.upper / "g").unlink()
    (layers.upper / "g").symlink_to(outside / "f")
    back_to(layers, checkpoint.manifest)
    assert show(layers.upper) == shown
    assert show(outside) == before


@pytest.mark.parametrize("damage", ["content", "big"])
def test_nothing_is_touched_where_something_that_is_needed_is_missing(layers: Layers, damage: str) -> None:
    (layers.upper / "f").write_text("first")
    (layers.upper / "big").write_bytes(os.urandom(9 << 20))
    first = layers.take()
    (layers.upper / "f").unlink()
    (layers.upper / "big").unlink()
    (layers.upper / "other").write_text("x")
    before = show(layers.upper)
    if damage == "content":
        entries = dict(first.manifest.entries)
        entries[b"g"] = type(entries[b"f"])(b"g", Kind.FILE, 0o644, 0, 0, 1, 0, 0, 0, blob="1" * 40)
        target = Manifest(entries)
    else:
        (path,) = (layers.path / "checkpoints.git/big").iterdir()
        path.chmod(0o600)
        with path.open("r+b") as file:
            file.write(b"changed")
        target = first.manifest
    with pytest.raises(CheckpointError) as caught:
        back_to(layers, target)
    assert caught.value.code == "store_corrupt"
    assert show(layers.upper) == before
    assert pending(str(layers.upper)) is None


def test_what_is_over_the_budget_is_left_alone(layers: Layers) -> None:
    empty = layers.take()
    (layers.upper / "d/deep").mkdir(parents=True)
    (layers.upper / "d/deep/big").write_bytes(b"x" * 5000)
    (layers.upper / "d/small").write_text("x")
    budget = Budget(file_bytes=1000)
    full = layers.take(budget=budget)
    assert full.manifest.entries[b"d/deep/big"].omitted == Omitted.TOO_BIG
    restored = back_to(layers, empty.manifest, budget=budget)
    assert set(restored.entries) == {b"", b"d", b"d/deep", b"d/deep/big"}
    assert restored.bases[b"d/deep/big"].certainty is Certainty.UNKNOWN
    restored = back_to(layers, full.manifest, budget=budget)
    assert set(restored.entries) == set(full.manifest.entries)
    assert (layers.upper / "d/deep/big").stat().st_size == 5000
    back_to(layers, empty.manifest, budget=budget, keep_omitted=False)
    assert list(layers.upper.iterdir()) == []


def test_what_is_left_alone_and_in_the_way_is_an_error(layers: Layers) -> None:
    (layers.upper / "d").write_text("a file")
    first = layers.take()
    (layers.upper / "d").unlink()
    (layers.upper / "d").mkdir()
    (layers.upper / "d/big").write_bytes(b"x" * 5000)
    before = show(layers.upper)
    with pytest.raises(CheckpointError, match="can't be restored"):
        back_to(layers, first.manifest, budget=Budget(file_bytes=1000))
    assert show(layers.upper) == before


def test_a_directory_over_the_budget_goes_with_all_it_holds_when_nothing_is_kept(layers: Layers) -> None:
    empty = layers.take()
    (layers.upper / "d/deep/er").mkdir(parents=True)
    (layers.upper / "d/deep/er/f").write_text("x")
    budget = Budget(entries=2)
    back_to(layers, empty.manifest, budget=budget, keep_omitted=False)
    assert list(layers.upper.iterdir()) == []


def test_files_with_the_right_content_stay_the_same_files(layers: Layers) -> None:
    (layers.upper / "f").write_text("same")
    first = layers.take()
    inode = (layers.upper / "f").stat().st_ino
    (layers.upper / "f").chmod(0o600)
    os.utime(layers.upper / "f", ns=(5, 5))
    back_to(layers, first.manifest)
    assert (layers.upper / "f").stat().st_ino == inode


MUTATING = (
    "rename",
    "unlink",
    "rmdir",
    "mkdir",
    "link",
    "symlink",
    "mknod",
    "chmod",
    "fchmod",
    "chown",
    "utime",
    "setxattr",
)
MUTATING += ("removexattr", "fsync", "ftruncate", "pwrite")


def run_and_kill(layers: Layers, target: Manifest, at: int) -> bool:
    """Restore in a child that is killed in front of its step number `at`; whether it was."""
    child = os.fork()
    if child == 0:
        left = [at]

        def wrap(real: Callable[..., object]) -> Callable[..., object]:
            def call(*arguments: object, **options: object) -> object:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return real(*arguments, **options)

            return call

        try:
            for name in MUTATING:
                setattr(os, name, wrap(getattr(os, name)))
            back_to(layers, target)
            os._exit(0)
        finally:
            os._exit(1)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL)
    return status != 0


def test_a_restore_that_is_killed_at_any_step_is_completed_by_the_next(layers: Layers) -> None:
    one_of_everything(layers.upper)
    first, first_shown = layers.take(), show(layers.upper)
    something_else(layers.upper)
    second, second_shown = layers.take(), show(layers.upper)
    step = 0
    while run_and_kill(layers, first.manifest, step):
        journal = pending(str(layers.upper))
        if journal is None:
            assert show(layers.upper) in (first_shown, second_shown)
            journal = first.manifest
        assert journal.entries == first.manifest.entries
        assert journal.bases == first.manifest.bases
        back_to(layers, journal)
        assert show(layers.upper) == first_shown
        assert pending(str(layers.upper)) is None
        back_to(layers, second.manifest)
        assert show(layers.upper) == second_shown
        step += 1
    assert step > 50
    assert show(layers.upper) == first_shown


def test_another_restore_may_follow_one_that_was_killed(layers: Layers) -> None:
    one_of_everything(layers.upper)
    first = layers.take()
    something_else(layers.upper)
    second, shown = layers.take(), show(layers.upper)
    assert run_and_kill(layers, first.manifest, 40)
    assert pending(str(layers.upper)) is not None
    back_to(layers, second.manifest)
    assert show(layers.upper) == shown
    assert pending(str(layers.upper)) is None


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_full_disk_leaves_the_layer_as_it_was(layers: Layers) -> None:
    small = layers.path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(small)], check=True)
    try:
        upper = small / "upper"
        upper.mkdir()
        with LocalUpper(bytes(upper)) as layer, LocalUpper(bytes(layers.lower)) as lower:
            for name in "abc":
                (upper / name).write_bytes(os.urandom(600_000))
            full = layers.store.take("s", layer, lower, message_id="full", epoch_ns=None)
            for name in "abc":
                (upper / name).unlink()
            (upper / "other").write_bytes(os.urandom(1_500_000))
            before = show(upper)
            with pytest.raises(CheckpointError, match="space") as caught:
                restore(str(upper), layer, full.manifest, layers.store)
            assert caught.value.code == "checkpoint_failed"
            assert "disk space" in str(caught.value.hint)
        assert show(upper) == before
        assert pending(str(upper)) is None
    finally:
        subprocess.run(["umount", str(small)], check=True)


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_user_who_is_not_root_restores_what_the_agent_locked(tmp_path: Path) -> None:
    place = tmp_path / "home"
    place.mkdir()
    let_nobody_enter(tmp_path)
    os.chown(place, 65534, 65534)
    assert as_nobody(lambda: _locked_and_back(place)) == 0


def _locked_and_back(place: Path) -> None:
    layers = Layers.make(place / "l")
    upper = layers.upper
    (upper / "a/b").mkdir(parents=True)
    (upper / "a/b/f").write_text("deep")
    os.setxattr(upper / "a/b/f", "user.x", b"y")
    (upper / "a/b/f").chmod(0)
    (upper / "g").write_text("read-only")
    (upper / "g").chmod(0o400)
    os.setxattr(upper / "a", "user.x", b"y")
    (upper / "a/b").chmod(0o100)
    (upper / "a").chmod(0)
    locked = layers.take(epoch_ns=None, offline=True)
    assert not any(entry.omitted for entry in locked.manifest.entries.values())
    (upper / "a").chmod(0o700)
    (upper / "a/b").chmod(0o700)
    os.remove(upper / "a/b/f")
    (upper / "a/b/new").write_text("x")
    (upper / "a/b").chmod(0o000)
    (upper / "g").unlink()
    other = layers.take(epoch_ns=None, offline=True)
    for target in (locked, other, locked):
        restored = back_to(layers, target.manifest)
        assert restored.entries.keys() == target.manifest.entries.keys()
        for path, entry in target.manifest.entries.items():
            assert (restored.entries[path].mode, restored.entries[path].xattrs) == (entry.mode, entry.xattrs)
    assert (upper / "a").stat().st_mode & 0o777 == 0
    back_to(layers, Manifest({b"": locked.manifest.entries[b""]}))
    assert list(upper.iterdir()) == []
