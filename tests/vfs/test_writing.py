"""What an overlay does to an upper layer on disk: its order of steps, what it leaves, and what it survives."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import subprocess
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.vfs.worlds import OverlayWorld, PlainWorld, Tree, fill_lower, layer
from workbench.errors import OptionsError
from workbench.vfs import marks, syscalls
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper


class Layers:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.lower = base / "lower"
        self.upper = base / "upper"
        self.work = base / "work"
        for path in (self.lower, self.upper, self.work):
            path.mkdir(exist_ok=True)
        self.storage = LocalStorage(os.fsencode(self.lower))
        self.layer = LocalUpper(os.fsencode(self.upper), work=os.fsencode(self.work))
        self.overlay = Overlay(self.storage, self.layer, scratch=b"no-scratch")

    def close(self) -> None:
        self.layer.close()
        self.storage.close()


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    made = Layers(tmp_path)
    yield made
    made.close()
    assert os.listdir(made.work) == []


def _content(path: Path, content: bytes = b"lower") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# The steps that change something on disk; a process is killed before each of them in turn.
_CHANGES = ["mknod", "mkdir", "unlink", "rmdir", "rename", "link", "symlink", "setxattr", "chmod", "chown", "utime"]

_OPERATIONS: dict[str, Callable[[Overlay], object]] = {
    "write a new file": lambda overlay: overlay.write_bytes(b"a/b/c/new", b"new"),
    "replace a lower file": lambda overlay: overlay.write_bytes(b"a/b/f", b"new"),
    "replace an upper file": lambda overlay: overlay.write_bytes(b"upper/f", b"new"),
    "delete a lower file": lambda overlay: overlay.unlink(b"a/b/f"),
    "delete an upper file": lambda overlay: overlay.unlink(b"upper/f"),
    "delete a changed file": lambda overlay: overlay.unlink(b"changed"),
    "delete a lower directory": lambda overlay: overlay.remove_tree(b"a"),
    "delete a merged directory": lambda overlay: overlay.remove_tree(b"d"),
    "delete an upper directory": lambda overlay: overlay.remove_tree(b"upper"),
    "remove an emptied directory": lambda overlay: overlay.rmdir(b"emptied"),
    "make a deleted directory again": lambda overlay: overlay.mkdir(b"gone"),
    "write a deleted file again": lambda overlay: overlay.write_bytes(b"gone", b"a file"),
    "move a lower file": lambda overlay: overlay.rename(b"f", b"a/moved"),
    "move a lower file over one": lambda overlay: overlay.rename(b"f", b"a/f"),
    "move a changed file to a deleted path": lambda overlay: overlay.rename(b"changed", b"gone"),
    "move a lower directory": lambda overlay: overlay.rename(b"a", b"upper/a"),
    "move a merged directory": lambda overlay: overlay.rename(b"d", b"moved"),
    "move an upper directory to a deleted path": lambda overlay: overlay.rename(b"upper", b"gone"),
    "move a lower directory over an emptied one": lambda overlay: overlay.rename(b"a", b"emptied"),
    "link a lower file to a deleted path": lambda overlay: overlay.link(b"f", b"gone"),
    "make a symlink at a deleted path": lambda overlay: overlay.symlink(b"f", b"gone"),
    "change a mode": lambda overlay: overlay.chmod(b"a/b/f", 0o600),
}


def _prepare(layers: Layers) -> None:
    fill_lower(layers.lower)
    for name in ("gone", "emptied"):
        _content(layers.lower / name / "x")
    _content(layers.lower / "changed")
    overlay = layers.overlay
    overlay.remove_tree(b"gone")
    overlay.unlink(b"emptied/x")
    overlay.write_bytes(b"changed", b"changed")
    overlay.makedirs(b"upper/e")
    overlay.write_bytes(b"upper/f", b"upper")
    overlay.unlink(b"d/f")
    overlay.write_bytes(b"d/new", b"upper")
    overlay.remove_tree(b"d/a")
    overlay.mkdir(b"d/a")


def _timeless(tree: Tree) -> Tree:
    return {path: told[:-1] for path, told in tree.items()}


def _dies_before(change: int, base: Path, operation: Callable[[Overlay], object]) -> bool:
    """Run an operation in a process that ends at once before its n-th change; whether it got that far."""
    child = os.fork()
    if child == 0:
        try:
            left = [change]

            def counted(real: Callable[..., object]) -> Callable[..., object]:
                def call(*arguments: object, **options: object) -> object:
                    if not left[0]:
                        os._exit(17)
                    left[0] -= 1
                    return real(*arguments, **options)

                return call

            overlay = Layers(base).overlay
            for name in _CHANGES:
                setattr(os, name, counted(getattr(os, name)))
            syscalls.renameat2 = counted(syscalls.renameat2)  # type: ignore[assignment]
            operation(overlay)
            os._exit(0)
        finally:
            os._exit(1)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, 17)
    return code == 17


@pytest.mark.parametrize("name", _OPERATIONS)
def test_a_process_killed_anywhere_leaves_the_old_or_the_new(tmp_path: Path, name: str) -> None:
    operation = _OPERATIONS[name]
    start = Layers(tmp_path)
    _prepare(start)
    before = _timeless(OverlayWorld(start.overlay).tree())
    start.close()

    def in_copy(change: int) -> tuple[bool, Path]:
        copy = tmp_path / f"copy-{change}"
        copy.mkdir()
        os.symlink(tmp_path / "lower", copy / "lower")
        subprocess.run(["cp", "-a", tmp_path / "upper", tmp_path / "work", copy], check=True)
        return _dies_before(change, copy, operation), copy

    whole, copy = in_copy(10**6)
    assert not whole
    done = Layers(copy)
    after = _timeless(OverlayWorld(done.overlay).tree())
    done.close()
    assert before != after
    change = 0
    while True:
        died, copy = in_copy(change)
        left = Layers(copy)
        shown = _timeless(OverlayWorld(left.overlay).tree())
        assert shown in (before, after), f"killed before change {change}"
        # The next writer sweeps up.
        left.overlay.write_bytes(b"next", b"")
        assert len(os.listdir(left.work)) == 1
        left.close()
        assert os.listdir(left.work) == []
        if not died:
            break
        change += 1
    assert change > 0
    assert shown == after


def test_nothing_can_be_written_without_a_work_directory(tmp_path: Path) -> None:
    for name in ("lower", "upper"):
        (tmp_path / name).mkdir()
    _content(tmp_path / "lower" / "f")
    with LocalStorage(os.fsencode(tmp_path / "lower")) as lower, LocalUpper(os.fsencode(tmp_path / "upper")) as upper:
        overlay = Overlay(lower, upper)
        for act in (lambda: overlay.write_bytes(b"new", b""), lambda: overlay.chmod(b"f", 0o600)):
            with pytest.raises(OSError, match=os.strerror(errno.EROFS)) as caught:
                act()
            assert caught.value.errno == errno.EROFS
        assert os.listdir(tmp_path / "upper") == []


def test_whiteouts_stand_only_where_the_lower_has_something(layers: Layers) -> None:
    _content(layers.lower / "d" / "old")
    overlay = layers.overlay
    overlay.write_bytes(b"d/new", b"")
    overlay.unlink(b"d/new")
    assert layer(layers.upper, layers.lower).keys() == {b"", b"d"}
    overlay.unlink(b"d/old")
    overlay.rmdir(b"d")
    assert layer(layers.upper, layers.lower)[b"d"] == ("whiteout", 0)
    overlay.mkdir(b"d")
    overlay.write_bytes(b"d/old", b"")
    overlay.unlink(b"d/old")
    # Below an opaque directory there is nothing to hide.
    assert os.listdir(layers.upper / "d") == []
    assert layers.layer.is_opaque(b"d")
    overlay.rmdir(b"d")
    overlay.symlink(b"x", b"d")
    overlay.unlink(b"d")
    assert layer(layers.upper, layers.lower)[b"d"] == ("whiteout", 0)


def test_all_that_is_deleted_takes_one_inode(layers: Layers) -> None:
    for number in range(20):
        _content(layers.lower / f"d{number % 3}" / f"f{number}")
    for number in range(20):
        layers.overlay.unlink(b"d%d/f%d" % (number % 3, number))
    assert [names for _, _, names in layers.overlay.walk()] == [[], [], [], []]
    whiteouts = [path.lstat() for path in layers.upper.rglob("f*")]
    assert len(whiteouts) == 20
    assert len({whiteout.st_ino for whiteout in whiteouts}) == 1
    assert all(stat.S_ISCHR(whiteout.st_mode) for whiteout in whiteouts)
    # It's no longer one of them that is written over.
    layers.overlay.write_bytes(b"d0/f0", b"new")
    assert layers.overlay.list(b"d0") == [b"f0"]
    assert not layers.overlay.exists(b"d1/f1")


def test_a_moved_directory_carries_no_whiteouts_along(layers: Layers) -> None:
    _content(layers.lower / "d" / "e" / "old")
    _content(layers.lower / "d" / "kept")
    layers.overlay.unlink(b"d/e/old")
    layers.overlay.rename(b"d", b"moved")
    shown = layer(layers.upper, layers.lower)
    assert shown.keys() == {b"", b"d", b"moved", b"moved/e", b"moved/kept"}
    assert shown[b"d"] == ("whiteout", 0)


def test_a_deletion_is_there_for_who_opens_the_layers_again(layers: Layers) -> None:
    _content(layers.lower / "d" / "old")
    layers.overlay.remove_tree(b"d")
    layers.close()
    again = Layers(layers.base)
    try:
        assert not again.overlay.exists(b"d/old")
        again.overlay.mkdir(b"d")
    finally:
        again.close()
    third = Layers(layers.base)
    try:
        assert third.overlay.list(b"d") == []
    finally:
        third.close()


def test_what_the_kernel_wrote_of_its_own_stays_unseen_and_unset(layers: Layers) -> None:
    _content(layers.lower / "f")
    os.setxattr(layers.lower / "f", "user.overlay.upper", b"x")
    os.setxattr(layers.lower / "f", "user.note", b"x")
    overlay = layers.overlay
    assert overlay.listxattr(b"f") == [b"user.note"]
    for act in (lambda: overlay.setxattr(b"f", marks.OPAQUE, b"y"), lambda: overlay.removexattr(b"f", marks.ORIGIN)):
        with pytest.raises(PermissionError):
            act()
    overlay.setxattr(b"f", b"user.more", b"1")
    assert overlay.listxattr(b"f") == [b"user.more", b"user.note"]
    assert overlay.getxattr(b"f", b"user.note") == b"x"
    # A copy up is marked as the kernel marks it where it doesn't know the origin.
    assert set(os.listxattr(layers.upper / "f")) == {"user.more", "user.note", "user.overlay.origin"}
    assert os.getxattr(layers.upper / "f", "user.overlay.origin") == b""
    overlay.removexattr(b"f", b"user.note")
    with pytest.raises(OSError, match=os.strerror(errno.ENODATA)):
        overlay.getxattr(b"f", b"user.note")


def test_new_entries_take_on_the_group_and_the_access_control_list_of_their_directory(layers: Layers) -> None:
    _content(layers.lower / "d" / "old")
    if os.geteuid() == 0:
        os.chown(layers.lower / "d", -1, 12345)
    os.chmod(layers.lower / "d", 0o2775)
    overlay = layers.overlay
    overlay.unlink(b"d/old")
    for path in (b"d/old", b"d/new"):
        overlay.mkdir(path)
        assert overlay.stat(path).gid == overlay.stat(b"d").gid
        assert overlay.stat(path).mode & stat.S_ISGID
        overlay.write_bytes(path + b"/file", b"")
        assert overlay.stat(path + b"/file").gid == overlay.stat(b"d").gid
    overlay.copy(b"d/new/file", b"d/copy")
    assert overlay.stat(b"d/copy").gid == overlay.stat(b"d").gid
    if shutil.which("setfacl") is None:
        return
    subprocess.run(["setfacl", "-d", "-m", "u:12345:rwx", layers.upper / "d"], check=True)
    overlay.write_bytes(b"d/listed", b"")
    assert b"system.posix_acl_access" in overlay.xattrs(b"d/listed")


def test_a_big_sparse_file_is_copied_up_with_its_holes_and_never_held_in_memory(layers: Layers) -> None:
    size = 4 << 30
    with open(layers.lower / "big", "wb") as file:
        file.truncate(size)
        file.seek(1 << 30)
        file.write(b"middle")
    overlay = layers.overlay
    with overlay.open(b"big", "r+b") as file:
        assert not (layers.upper / "big").exists()
        file.seek(-4, os.SEEK_END)
        file.write(b"tail")
    found = os.stat(layers.upper / "big")
    assert found.st_size == size
    assert found.st_blocks * 512 < 1 << 20
    with overlay.open(b"big") as file:
        file.seek(1 << 30)
        assert file.read(8) == b"middle\0\0"
    overlay.copy(b"big", b"copy")
    assert os.stat(layers.upper / "copy").st_blocks * 512 < 1 << 20
    overlay.truncate(b"big", 5)
    assert overlay.read_bytes(b"big") == bytes(5)


def test_a_file_open_for_writing_is_copied_up_once_for_all_that_have_it_open(layers: Layers) -> None:
    _content(layers.lower / "f", b"0123456789")
    overlay = layers.overlay
    with overlay.open(b"f", "r+b") as one, overlay.open(b"f", "r+b") as other, overlay.open(b"f", "ab") as third:
        assert one.read(2) == b"01"
        other.write(b"AB")
        other.flush()
        assert os.pread(one.fileno(), 4, 0) == b"AB23"
        third.write(b"!")
        third.flush()
        assert other.seek(0, os.SEEK_END) == 11
        assert os.fstat(one.fileno()).st_ino == os.fstat(third.fileno()).st_ino
    assert overlay.read_bytes(b"f") == b"AB23456789!"


def test_another_overlay_over_the_same_layers_may_have_copied_it_up(layers: Layers) -> None:
    _content(layers.lower / "f", b"lower")
    other = Overlay(layers.storage, layers.layer)
    with layers.overlay.open(b"f", "r+b") as file:
        other.write_bytes(b"f", b"other")
        file.write(b"O")
    assert other.read_bytes(b"f") == b"Other"


def test_fifos_and_sockets_never_block(layers: Layers) -> None:
    (layers.lower / "d").mkdir()
    os.mkfifo(layers.lower / "d" / "pipe")
    os.mkfifo(layers.upper / "pipe")
    overlay = layers.overlay
    for path in (b"d/pipe", b"pipe"):
        for mode in ("rb", "r+b", "wb", "ab", "w+b"):
            with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
                overlay.open(path, mode)
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            overlay.write_bytes(path, b"")
    overlay.rename(b"d", b"moved")
    overlay.copy(b"moved", b"copy")
    assert overlay.stat(b"copy/pipe").kind is overlay.stat(b"moved/pipe").kind is Kind.FIFO
    overlay.remove_tree(b"moved")
    assert not overlay.exists(b"moved")


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_node_of_the_lower_is_never_carried(layers: Layers) -> None:
    (layers.lower / "d").mkdir()
    os.mknod(layers.lower / "d" / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    acts = (
        lambda overlay: overlay.chmod(b"d/null", 0o600),
        lambda overlay: overlay.rename(b"d", b"moved"),
        lambda overlay: overlay.copy(b"d/null", b"copy"),
        lambda overlay: overlay.link(b"d/null", b"link"),
    )
    for act in acts:
        with pytest.raises(PermissionError):
            act(layers.overlay)
    assert layers.overlay.list(b"") == [b"d"]
    layers.overlay.unlink(b"d/null")
    assert layers.overlay.list(b"d") == []


def test_a_thousand_levels_are_moved_copied_and_removed(
    layers: Layers, nest: Callable[[Path, bytes, int], int]
) -> None:
    name = b"n" * 60
    fd = nest(layers.lower, name, 300)
    os.close(os.open(b"leaf", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)
    overlay = layers.overlay
    overlay.rename(name, b"moved")
    assert b"moved" + (b"/" + name) * 299 + b"/leaf" in set(overlay.find())
    overlay.copy(b"moved", b"copy")
    overlay.write_bytes(b"copy" + (b"/" + name) * 299 + b"/leaf", b"deep")
    overlay.remove_tree(b"moved")
    overlay.remove_tree(b"copy")
    assert overlay.list(b"") == []
    os.close(nest(layers.upper, b"level", 1200))
    overlay.remove_tree(b"level")
    assert overlay.list(b"") == []


def test_a_hostile_upper_makes_nobody_write_outside(layers: Layers, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    _content(outside / "f", b"secret")
    os.symlink(outside, layers.upper / "dir")
    os.symlink(outside / "f", layers.upper / "file")
    os.symlink("loop", layers.upper / "loop")
    before = PlainWorld(outside).tree()
    overlay = layers.overlay
    acts: list[Callable[[bytes], object]] = [
        lambda path: overlay.write_bytes(path, b"x"),
        lambda path: overlay.create(path, exclusive=False),
        lambda path: overlay.open(path, "ab"),
        lambda path: overlay.truncate(path, 0),
        lambda path: overlay.chmod(path, 0o777),
        lambda path: overlay.setxattr(path, b"user.x", b"x"),
        lambda path: overlay.read_bytes(path),
    ]
    for path in (b"dir/f", b"dir/new", b"file", b"loop", b"loop/x"):
        for act in acts:
            with pytest.raises((NotADirectoryError, OSError)) as caught:
                act(path)
            assert caught.value.errno in (errno.ELOOP, errno.ENOTDIR, errno.EPERM, errno.ENOTSUP)
    for path in (b"dir/f", b"dir/new", b"loop/x"):
        for act in (overlay.unlink, overlay.mkdir, overlay.remove_tree, lambda to: overlay.rename(b"file", to)):
            with pytest.raises(NotADirectoryError):
                act(path)
    overlay.utime(b"file", 5)
    overlay.utime(b"dir", 5)
    overlay.copy(b"dir", b"copy")
    assert overlay.readlink(b"copy") == os.fsencode(outside)
    overlay.remove_tree(b"dir")
    overlay.remove_tree(b"file")
    assert PlainWorld(outside).tree() == before


def test_a_layers_path_may_have_any_name(tmp_path: Path) -> None:
    base = tmp_path / "co:lon, com\\ma and sp ace"
    base.mkdir()
    layers = Layers(base)
    _content(layers.lower / "f")
    layers.overlay.rename(b"f", b"g")
    assert layers.overlay.list(b"") == [b"g"]
    layers.close()


def test_what_makes_no_sense_is_refused(layers: Layers) -> None:
    _content(layers.lower / "f")
    overlay = layers.overlay
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        overlay.truncate(b"f", -1)
    with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
        overlay.symlink(b"", b"link")
    with pytest.raises(OptionsError):
        overlay.open(b"f", "r")
    with pytest.raises(OSError, match=os.strerror(errno.EBUSY)):
        overlay.remove_tree(b"")
    with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
        overlay.write_bytes(b"n" * 256, b"")
    assert os.listdir(layers.upper) == []


def _as_another_user(base: Path) -> None:
    with (
        LocalStorage(base_of(base, "lower")) as lower,
        LocalUpper(base_of(base, "upper"), work=base_of(base, "work")) as upper,
    ):
        overlay = Overlay(lower, upper)
        # A copy up into a directory that its owner may not write in.
        overlay.chmod(b"closed/f", 0o600)
        assert overlay.stat(b"closed").mode == 0o555
        with pytest.raises(PermissionError) as caught:
            overlay.write_bytes(b"closed/new", b"")
        assert caught.value.filename == b"closed/new"
        # Another's file becomes ours in the upper, as it must.
        overlay.write_bytes(b"others", b"ours now")
        assert overlay.stat(b"others").uid == os.geteuid()
        overlay.rename(b"closed", b"moved")
        assert overlay.list(b"moved") == [b"f", b"g"]
        assert overlay.stat(b"moved").mode == 0o555
        overlay.remove_tree(b"moved")
        overlay.remove_tree(b"tree")
        overlay.mkdir(b"tree")
        assert overlay.list(b"") == [b"others", b"tree"]


def base_of(base: Path, name: str) -> bytes:
    return os.fsencode(base / name)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_an_unprivileged_user_writes_as_well() -> None:
    # Not below the test runner's own directory, which nobody else may enter.
    base = Path(tempfile.mkdtemp(prefix="unprivileged-"))
    try:
        layers = Layers(base)
        for name in ("closed/f", "closed/g", "tree/a/b"):
            _content(layers.lower / name)
        _content(layers.lower / "others")
        for path in [base, *base.rglob("*")]:
            if path.name != "others":
                os.chown(path, 12345, 12345)
        (layers.lower / "closed").chmod(0o555)
        (layers.lower / "tree" / "a").chmod(0o500)
        layers.close()
        child = os.fork()
        if child == 0:
            try:
                os.setgroups([])
                os.setresgid(12345, 12345, 12345)
                os.setresuid(12345, 12345, 12345)
                _as_another_user(base)
                os._exit(0)
            except (AssertionError, OSError):
                traceback.print_exc()
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert os.listdir(base / "work") == []
    finally:
        shutil.rmtree(base)
