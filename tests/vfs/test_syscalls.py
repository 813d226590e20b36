from __future__ import annotations

import errno
import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.vfs import syscalls

BLOCK = 1 << 16


@pytest.fixture
def dir_fd(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


def test_opening_never_leaves_the_directory(tmp_path: Path, dir_fd: int, resolver: str) -> None:
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "file").write_text("x")
    (tmp_path / "link").symlink_to("inside")
    os.close(syscalls.openat2(dir_fd, b"inside/file", os.O_RDONLY))
    for path in (b"/etc", b"..", b"inside/../..", b"link/file", b"link"):
        with pytest.raises(OSError, match=os.strerror(errno.EXDEV) + "|symbolic|Not a directory"):
            syscalls.openat2(dir_fd, path, os.O_RDONLY | os.O_NOFOLLOW)


def test_a_symlink_itself_can_be_opened_as_a_path(tmp_path: Path, dir_fd: int, resolver: str) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    fd = syscalls.openat2(dir_fd, b"link", os.O_PATH | os.O_NOFOLLOW)
    assert os.readlink("", dir_fd=fd) == "nowhere"
    os.close(fd)


def test_an_opened_file_is_made_with_its_mode_and_not_inherited(tmp_path: Path, dir_fd: int, resolver: str) -> None:
    fd = syscalls.openat2(dir_fd, b"new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o640
    with pytest.raises(FileExistsError):
        syscalls.openat2(dir_fd, b"new", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)


def test_a_mount_point_is_not_entered(resolver: str) -> None:
    if not os.path.ismount("/proc"):
        pytest.skip("/proc isn't mounted")
    root = os.open("/", os.O_PATH)
    try:
        for path in (b"proc", b"proc/version"):
            with pytest.raises(OSError, match=os.strerror(errno.EXDEV)):
                syscalls.openat2(root, path, os.O_RDONLY)
        os.close(syscalls.openat2(root, b"proc", os.O_PATH, resolve=syscalls.RESOLVE_BENEATH))
    finally:
        os.close(root)


def test_failed_openings_leak_no_descriptor(tmp_path: Path, dir_fd: int, resolver: str) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with pytest.raises(FileNotFoundError):
            syscalls.openat2(dir_fd, b"a/b/c/d", os.O_RDONLY)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_nul_byte_is_refused_before_the_kernel_sees_half_a_name(dir_fd: int) -> None:
    with pytest.raises(ValueError, match="null"):
        syscalls.openat2(dir_fd, b"a\0b", os.O_RDONLY)


def test_an_exchange_swaps_a_file_and_a_directory(tmp_path: Path, dir_fd: int) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "directory").mkdir()
    syscalls.renameat2(dir_fd, b"file", dir_fd, b"directory", syscalls.RENAME_EXCHANGE)
    assert (tmp_path / "file").is_dir()
    assert (tmp_path / "directory").read_text() == "x"


def test_a_rename_that_may_not_replace_does_not(tmp_path: Path, dir_fd: int) -> None:
    (tmp_path / "a").write_text("a")
    (tmp_path / "b").write_text("b")
    with pytest.raises(FileExistsError):
        syscalls.renameat2(dir_fd, b"a", dir_fd, b"b", syscalls.RENAME_NOREPLACE)
    syscalls.renameat2(dir_fd, b"a", dir_fd, b"c", syscalls.RENAME_NOREPLACE)
    assert sorted(os.listdir(tmp_path)) == ["b", "c"]


def test_a_handle_follows_an_inode_and_not_a_path(tmp_path: Path, dir_fd: int) -> None:
    (tmp_path / "a").mkdir()
    handle = syscalls.file_handle(dir_fd, b"a")
    if not handle:
        pytest.skip("no handles on this filesystem")
    os.rename(tmp_path / "a", tmp_path / "b")
    assert syscalls.file_handle(dir_fd, b"b") == handle
    os.rmdir(tmp_path / "b")
    os.mkdir(tmp_path / "b")
    assert syscalls.file_handle(dir_fd, b"b") != handle


def test_a_handle_is_the_same_by_name_and_by_any_descriptor(tmp_path: Path, dir_fd: int) -> None:
    (tmp_path / "link").symlink_to("nowhere")
    (tmp_path / "a").write_text("x")
    for name, flags in ((b"a", os.O_RDONLY), (b"a", os.O_PATH), (b"link", os.O_PATH)):
        fd = os.open(name, flags | os.O_NOFOLLOW, dir_fd=dir_fd)
        assert syscalls.file_handle(fd) == syscalls.file_handle(dir_fd, name)
        os.close(fd)


def test_a_filesystem_without_handles_has_an_empty_one() -> None:
    fd = os.open("/proc/self", os.O_PATH)
    try:
        assert syscalls.file_handle(fd) == b""
    finally:
        os.close(fd)


def test_a_missing_name_has_no_handle_but_an_error(dir_fd: int) -> None:
    with pytest.raises(FileNotFoundError):
        syscalls.file_handle(dir_fd, b"missing")


def test_a_birth_time_stays_when_the_file_changes(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x")
    fd = os.open(path, os.O_PATH)
    born = syscalls.birth_ns(fd)
    path.write_text("longer")
    os.utime(path, ns=(1, 1))
    assert syscalls.birth_ns(fd) == born
    assert born <= os.stat(path).st_ctime_ns
    os.close(fd)


def test_the_filesystem_of_proc_is_proc() -> None:
    fd = os.open("/proc", os.O_PATH)
    assert syscalls.filesystem_type(fd) == 0x9FA0
    os.close(fd)


def _sparse(path: Path) -> int:
    with path.open("wb") as file:
        file.seek(4 * BLOCK)
        file.write(b"data" * (BLOCK // 4))
        file.truncate(9 * BLOCK + 5)
    return 9 * BLOCK + 5


def test_holes_and_extents_cover_a_file_exactly(tmp_path: Path) -> None:
    size = _sparse(tmp_path / "sparse")
    fd = os.open(tmp_path / "sparse", os.O_RDONLY)
    found = sorted([*syscalls.holes(fd, size), *syscalls.data_extents(fd, size)])
    os.close(fd)
    assert found[0][0] == 0
    for (offset, length), (following, _) in itertools.pairwise(found):
        assert offset + length == following
    assert sum(found[-1]) == size


def test_an_empty_file_has_neither_data_nor_holes(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    fd = os.open(tmp_path / "empty", os.O_RDONLY)
    assert syscalls.holes(fd, 0) == []
    assert list(syscalls.data_extents(fd, 0)) == []
    os.close(fd)


def test_a_file_cut_short_meanwhile_has_no_extent_past_its_end(tmp_path: Path) -> None:
    (tmp_path / "short").write_bytes(b"x" * 10)
    fd = os.open(tmp_path / "short", os.O_RDONLY)
    assert list(syscalls.data_extents(fd, 1000)) == [(0, 10)]
    os.close(fd)


@pytest.fixture(params=["same filesystem", "memory"])
def elsewhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A directory to copy to: beside the source, and on another filesystem, where the fallbacks are needed."""
    if request.param == "same filesystem":
        yield tmp_path
        return
    if not os.path.isdir("/dev/shm") or not os.access("/dev/shm", os.W_OK):
        pytest.skip("no /dev/shm")
    path = Path(tempfile.mkdtemp(dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


def test_a_copy_has_the_same_bytes_and_the_same_holes(tmp_path: Path, elsewhere: Path) -> None:
    size = _sparse(tmp_path / "source")
    with (tmp_path / "source").open("rb") as source, (elsewhere / "copy").open("xb") as copy:
        assert syscalls.copy_data(source.fileno(), copy.fileno()) == size
    assert (elsewhere / "copy").read_bytes() == (tmp_path / "source").read_bytes()
    assert (elsewhere / "copy").stat().st_blocks * 512 < size


def test_a_copy_works_where_the_kernel_copies_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> int:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "copy_file_range", refuse)
    size = _sparse(tmp_path / "source")
    with (tmp_path / "source").open("rb") as source, (tmp_path / "copy").open("xb") as copy:
        assert syscalls.copy_data(source.fileno(), copy.fileno()) == size
    assert (tmp_path / "copy").read_bytes() == (tmp_path / "source").read_bytes()


def test_a_copy_of_nothing_is_empty(tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"")
    with (tmp_path / "source").open("rb") as source, (tmp_path / "copy").open("xb") as copy:
        assert syscalls.copy_data(source.fileno(), copy.fileno()) == 0
