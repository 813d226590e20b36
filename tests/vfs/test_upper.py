from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import workbench
from workbench.errors import OverlayError
from workbench.vfs import marks
from workbench.vfs.storage import Kind
from workbench.vfs.syscalls import file_handle
from workbench.vfs.upper import LocalUpper


@pytest.fixture
def upper(tmp_path: Path) -> Iterator[LocalUpper]:
    with LocalUpper(os.fsencode(tmp_path)) as upper:
        yield upper


def _open(path: Path) -> int:
    return os.open(path, os.O_PATH | os.O_NOFOLLOW)


def test_a_whiteout_is_listed_as_one_and_holds_nothing(upper: LocalUpper, tmp_path: Path) -> None:
    upper.make_whiteout(upper.root_fd, b"gone")
    assert upper.stat(b"gone").kind is Kind.WHITEOUT
    assert upper.entries(b"") == [(b"gone", Kind.WHITEOUT)]
    found = (tmp_path / "gone").lstat()
    assert stat.S_ISCHR(found.st_mode)
    assert found.st_rdev == 0
    with pytest.raises(FileNotFoundError):
        upper.open(b"gone")
    with pytest.raises(FileExistsError):
        upper.make_whiteout(upper.root_fd, b"gone")


def test_an_opaque_mark_is_set_and_taken_away(upper: LocalUpper, tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    fd = _open(tmp_path / "directory")
    assert not upper.is_opaque(b"directory")
    for opaque in (True, True, False, False):
        upper.set_opaque(fd, opaque)
        assert upper.is_opaque(b"directory") is opaque
        assert upper.opaque_of(fd) is opaque
        assert upper.attributes_of(fd).opaque is opaque
    os.close(fd)


def test_only_the_kernels_own_mark_is_opaque(upper: LocalUpper, tmp_path: Path) -> None:
    for value in (b"x", b"", b"yes"):
        os.setxattr(tmp_path, "user.overlay.opaque", value)
        assert not upper.is_opaque(b"")


def test_other_attributes_are_told_without_the_kernels_own(upper: LocalUpper, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    os.setxattr(path, "user.note", b"\0\xff")
    os.setxattr(path, "user.empty", b"")
    os.setxattr(path, "user.overlay.impure", b"y")
    os.setxattr(path, "user.overlay.uuid", b"0123456789abcdef")
    fd = _open(path)
    assert upper.xattrs_of(fd) == ((b"user.empty", b""), (b"user.note", b"\0\xff"))
    assert upper.attributes_of(fd).xattrs == upper.xattrs_of(fd)
    os.close(fd)


def test_symlinks_fifos_and_whiteouts_carry_nothing_and_are_no_error(upper: LocalUpper, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("x")
    os.setxattr(tmp_path / "target", "user.note", b"x")
    (tmp_path / "link").symlink_to("target")
    os.mkfifo(tmp_path / "fifo")
    upper.make_whiteout(upper.root_fd, b"whiteout")
    for name in ("link", "fifo", "whiteout"):
        fd = _open(tmp_path / name)
        upper.check_entry(fd)
        assert not upper.opaque_of(fd)
        assert upper.origin_of(fd) == b""
        assert [name for name, _ in upper.xattrs_of(fd) if name.startswith(b"user.")] == []
        os.close(fd)


@pytest.mark.parametrize("name", ["user.overlay.redirect", "user.overlay.metacopy"])
def test_what_only_other_mount_options_write_is_refused(upper: LocalUpper, tmp_path: Path, name: str) -> None:
    (tmp_path / "entry").write_text("x")
    os.setxattr(tmp_path / "entry", name, b"/elsewhere")
    fd = _open(tmp_path / "entry")
    for method in (upper.check_entry, upper.attributes_of):
        with pytest.raises(OverlayError) as caught:
            method(fd)
        assert caught.value.code == "layer_unsupported"
        assert caught.value.hint
    os.close(fd)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes device nodes")
def test_a_device_node_is_refused(upper: LocalUpper, tmp_path: Path) -> None:
    os.mknod(tmp_path / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    assert upper.stat(b"null").kind is Kind.DEVICE
    fd = _open(tmp_path / "null")
    with pytest.raises(OverlayError, match="device node"):
        upper.check_entry(fd)
    os.close(fd)


def test_an_origin_of_ours_holds_the_handle_it_was_made_of(upper: LocalUpper, tmp_path: Path) -> None:
    handle = upper.handle(b"")
    assert handle
    assert marks.origin(marks.origin_of(handle)) == handle
    assert marks.origin(marks.origin_of(b"")) == b""


def test_an_origin_is_the_handle_inside_the_kernels_struct(upper: LocalUpper, tmp_path: Path) -> None:
    (tmp_path / "lower").write_text("x")
    (tmp_path / "copy").write_text("x")
    handle = file_handle(upper.root_fd, b"lower")
    if not handle:
        pytest.skip("no handles on this filesystem")
    fid = handle[4:]
    struct = bytes([0, 0xFB, 21 + len(fid), 0, int.from_bytes(handle[:4], "big")]) + bytes(16) + fid
    fd = _open(tmp_path / "copy")
    os.setxattr(tmp_path / "copy", "user.overlay.origin", struct)
    assert upper.origin_of(fd) == handle
    # The kernel writes an empty one over a lower filesystem without handles.
    os.setxattr(tmp_path / "copy", "user.overlay.origin", b"")
    assert upper.origin_of(fd) == b""
    for broken in (struct[:10], b"\1" + struct[1:], struct + b"x", b"\0\0" + struct[2:]):
        os.setxattr(tmp_path / "copy", "user.overlay.origin", broken)
        with pytest.raises(OverlayError, match="isn't known"):
            upper.origin_of(fd)
    os.close(fd)


_UNPRIVILEGED = """
import ctypes, os, sys
from workbench.vfs import marks
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
# A process that changed its user is undumpable, as no ordinary one is, and may not look at itself in /proc.
ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)
upper = LocalUpper(int(sys.argv[1]))
upper.make_whiteout(upper.root_fd, b"gone")
os.mkdir(b"directory", dir_fd=upper.root_fd)
fd = upper.open_directory(b"directory")
upper.set_opaque(fd, True)
assert upper.is_opaque(b"directory") and upper.attributes_of(fd).opaque
assert upper.entries(b"") == [(b"directory", Kind.DIR), (b"gone", Kind.WHITEOUT)]
# The agent may leave a directory that can't be read, or not even entered.
os.chmod(fd, 0)
assert upper.stat(b"directory").mode == 0
try:
    upper.list(b"directory")
except PermissionError as error:
    assert error.filename == b"directory"
else:
    raise AssertionError("listed")
print("done")
"""


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_an_unprivileged_user_writes_the_same_format(tmp_path: Path) -> None:
    os.chown(tmp_path, 65534, 65534)
    fd = os.open(tmp_path, os.O_RDONLY)
    package = os.path.dirname(next(iter(workbench.__path__)))
    run = subprocess.run(
        [sys.executable, "-c", _UNPRIVILEGED, str(fd)],
        pass_fds=[fd],
        env={"PYTHONPATH": package},
        capture_output=True,
        text=True,
    )
    os.close(fd)
    assert run.stdout == "done\n", run.stderr
