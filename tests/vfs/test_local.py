from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench.errors import OptionsError
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind

Nest = Callable[[Path, bytes, int], int]

NAMES = [
    b"new\nline",
    b"\ttab",
    b"-rf",
    b" leading and trailing ",
    b"dot.",
    b"report..final.md",
    b"[...slug]",
    b"a:b,c\\d*?\"'",
    b"\xff\xfe not utf-8",
    "é".encode(),
    "e\u0301".encode(),
    b"n" * 255,
    b".GIT",
    b"git~1",
    b"nul",
]


@pytest.fixture
def storage(tmp_path: Path, resolver: str) -> Iterator[LocalStorage]:
    (tmp_path / "root").mkdir()
    with LocalStorage(os.fsencode(tmp_path / "root")) as storage:
        yield storage


@pytest.fixture
def root(tmp_path: Path, storage: LocalStorage) -> Path:
    return tmp_path / "root"


def test_every_name_is_listed_and_read(storage: LocalStorage, root: Path) -> None:
    for name in NAMES:
        (root / os.fsdecode(name)).write_bytes(name)
    assert storage.list(b"") == sorted(NAMES)
    assert storage.entries(b"") == [(name, Kind.FILE) for name in sorted(NAMES)]
    for name in NAMES:
        with storage.open(name) as file:
            assert file.read() == name


def test_every_kind_is_told(storage: LocalStorage, root: Path) -> None:
    (root / "directory").mkdir()
    (root / "file").write_text("content")
    (root / "symlink").symlink_to("directory")
    os.mkfifo(root / "fifo")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(os.fspath(root / "socket"))
    kinds = [
        (b"directory", Kind.DIR),
        (b"fifo", Kind.FIFO),
        (b"file", Kind.FILE),
        (b"socket", Kind.SOCKET),
        (b"symlink", Kind.SYMLINK),
    ]
    assert storage.entries(b"") == kinds
    assert [(name, storage.stat(name).kind) for name, _ in kinds] == kinds
    assert [(name, storage.kind(name)) for name in storage.names(b"")] == kinds
    assert storage.stat(b"").kind is Kind.DIR
    assert storage.stat(b"file").size == 7
    assert storage.readlink(b"symlink") == b"directory"


def test_wrong_kinds_are_refused_with_the_path(storage: LocalStorage, root: Path) -> None:
    (root / "directory").mkdir()
    (root / "file").write_text("x")
    (root / "symlink").symlink_to("file")
    (root / "dangling").symlink_to("nowhere")
    expected = {
        (storage.open, b"directory"): errno.EISDIR,
        (storage.open, b""): errno.EISDIR,
        (storage.open, b"symlink"): errno.ELOOP,
        (storage.open, b"missing"): errno.ENOENT,
        (storage.open, b"file/below"): errno.ENOTDIR,
        (storage.list, b"file"): errno.ENOTDIR,
        (storage.list, b"symlink"): errno.ENOTDIR,
        (storage.list, b"missing"): errno.ENOENT,
        (storage.entries, b"dangling"): errno.ENOTDIR,
        (storage.names, b"symlink"): errno.ENOTDIR,
        (storage.kind, b"symlink/below"): errno.ENOTDIR,
        (storage.kind, b"missing"): errno.ENOENT,
        (storage.readlink, b"file"): errno.EINVAL,
        (storage.readlink, b"directory"): errno.EINVAL,
        (storage.readlink, b"missing"): errno.ENOENT,
        (storage.stat, b"symlink/below"): errno.ENOTDIR,
        (storage.open_directory, b"symlink"): errno.ENOTDIR,
    }
    for (method, path), code in expected.items():
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            method(path)
        assert (caught.value.errno, caught.value.filename) == (code, path)
    assert storage.exists(b"dangling")
    assert not storage.exists(b"dangling/below")
    with pytest.raises(OptionsError):
        storage.stat(b"../root")


def test_a_fifo_blocks_nobody_and_wakes_nobody(storage: LocalStorage, root: Path) -> None:
    os.mkfifo(root / "fifo")
    with pytest.raises(OSError, match="Invalid argument"):
        storage.open(b"fifo")
    # Had it been opened for reading, this would have succeeded at some moment.
    with pytest.raises(OSError, match="No such device or address"):
        os.open(root / "fifo", os.O_WRONLY | os.O_NONBLOCK)


def test_reading_and_listing_leave_the_access_times(storage: LocalStorage, root: Path) -> None:
    (root / "directory").mkdir()
    (root / "directory" / "file").write_text("x")
    for path in (root / "directory" / "file", root / "directory"):
        os.utime(path, ns=(1, 1))
    with storage.open(b"directory/file") as file:
        file.read()
    assert storage.read_bytes(b"directory/file") == b"x"
    for method in (storage.list, storage.names, storage.entries):
        assert method(b"directory")
    assert (root / "directory" / "file").stat().st_atime_ns == 1
    assert (root / "directory").stat().st_atime_ns == 1


def test_a_directory_that_is_swapped_for_a_symlink_leads_nowhere(
    storage: LocalStorage, root: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    for place in (outside, root / "real"):
        place.mkdir()
        (place / "file").write_text(place.name)
    (outside / "secret").write_text("secret")
    (root / "link").symlink_to(outside)
    os.rename(root / "real", root / "door")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(root / "door", root / "real")
            os.rename(root / "link", root / "door")
            os.rename(root / "door", root / "link")
            os.rename(root / "real", root / "door")

    swapper = threading.Thread(target=swap)
    swapper.start()
    inside = blocked = 0
    try:
        while inside < 300 or blocked < 300:
            try:
                with storage.open(b"door/file") as file:
                    assert file.read() == b"real"
                assert storage.list(b"door") == [b"file"]
                assert not storage.exists(b"door/secret")
                inside += 1
            except (FileNotFoundError, NotADirectoryError):
                blocked += 1
    finally:
        stop.set()
        swapper.join()


def test_a_file_that_is_swapped_for_a_fifo_or_a_symlink_is_never_followed_and_never_waited_for(
    storage: LocalStorage, root: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (root / "file").write_text("file")
    (root / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(root / "fifo")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for name in ("link", "fifo"):
                os.link(root / name, root / "next", follow_symlinks=False)
                os.rename(root / "next", root / "door")
                os.link(root / "file", root / "next")
                os.rename(root / "next", root / "door")

    os.link(root / "file", root / "door")
    swapper = threading.Thread(target=swap)
    swapper.start()
    opened = refused = 0
    try:
        while opened < 300 or refused < 300:
            try:
                with storage.open(b"door") as file:
                    assert file.read() == b"file"
                opened += 1
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EINVAL):
                    raise
                refused += 1
    finally:
        stop.set()
        swapper.join()


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="/proc isn't mounted")
def test_a_mount_point_is_an_empty_directory(resolver: str) -> None:
    with LocalStorage(b"/") as storage:
        assert storage.stat(b"proc").kind is Kind.DIR
        assert storage.exists(b"proc")
        assert storage.list(b"proc") == []
        assert storage.entries(b"proc") == storage.names(b"proc") == []
        assert storage.kind(b"proc") is Kind.DIR
        for path in (b"proc/version", b"proc/sys/kernel"):
            assert not storage.exists(path)
            with pytest.raises(FileNotFoundError):
                storage.open(path)
            with pytest.raises(FileNotFoundError):
                storage.list(path)
        with pytest.raises(OSError, match="cross-device"):
            storage.open_directory(b"proc")
        assert b"proc" in storage.mount_points()
        assert not any(path.startswith(b"proc/") for path in storage.mount_points())


def test_a_directory_without_mount_points_has_none(storage: LocalStorage) -> None:
    assert storage.mount_points() == []


@pytest.mark.skipif(not os.path.ismount("/proc"), reason="/proc isn't mounted")
def test_a_root_that_is_a_mount_point_itself_is_read(resolver: str) -> None:
    with LocalStorage(b"/proc") as storage:
        assert b"version" in storage.list(b"")
        with storage.open(b"version") as file:
            assert file.read().startswith(b"Linux")


def test_fifteen_hundred_levels_are_listed_and_read(storage: LocalStorage, root: Path, nest: Nest) -> None:
    fd = nest(root, b"level", 1500)
    os.close(os.open("leaf", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)
    path = b"/".join([b"level"] * 1500)
    assert storage.list(path) == [b"leaf"]
    with storage.open(path + b"/leaf") as file:
        assert file.read() == b""


def test_symlinks_are_resolved_inside_the_root_alone(storage: LocalStorage, root: Path) -> None:
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("x")
    (root / "to-b").symlink_to("a/b")
    (root / "a" / "up").symlink_to("../to-b/./")
    (root / "loop").symlink_to("loop")
    (root / "absolute").symlink_to("/etc")
    (root / "climbs").symlink_to("../root/a")
    (root / "file-as-directory").symlink_to("a/b/file/")
    assert storage.resolve(b"to-b/file") == b"a/b/file"
    assert storage.resolve(b"a/up/file") == b"a/b/file"
    assert storage.resolve(b"a/up") == b"a/b"
    assert storage.resolve(b"") == b""
    codes = {
        b"loop": errno.ELOOP,
        b"absolute": errno.EXDEV,
        b"absolute/passwd": errno.EXDEV,
        b"climbs": errno.EXDEV,
        b"a/missing": errno.ENOENT,
        b"file-as-directory": errno.ENOTDIR,
    }
    for path, code in codes.items():
        with pytest.raises(OSError, match=os.strerror(code)) as caught:
            storage.resolve(path)
        assert caught.value.errno == code


def test_forty_links_are_followed_and_no_more(storage: LocalStorage, root: Path) -> None:
    (root / "0").write_text("x")
    for number in range(1, 42):
        (root / str(number)).symlink_to(str(number - 1))
    assert storage.resolve(b"40") == b"0"
    with pytest.raises(OSError, match="symbolic"):
        storage.resolve(b"41")


def test_a_storage_over_a_descriptor_outlives_it(root: Path) -> None:
    (root / "file").write_text("x")
    fd = os.open(root, os.O_RDONLY)
    storage = LocalStorage(fd)
    os.close(fd)
    assert storage.list(b"") == [b"file"]
    storage.close()
    storage.close()


def test_a_root_that_moves_is_still_the_root(storage: LocalStorage, root: Path, tmp_path: Path) -> None:
    (root / "file").write_text("x")
    os.rename(root, tmp_path / "moved")
    root.mkdir()
    assert storage.list(b"") == [b"file"]


def test_no_call_leaks_a_descriptor(storage: LocalStorage, root: Path) -> None:
    (root / "d").mkdir()
    (root / "f").write_text("x")
    (root / "l").symlink_to("f")
    before = len(os.listdir("/proc/self/fd"))
    for path in (b"", b"d", b"f", b"l", b"missing", b"f/x", b"l/x"):
        listings = (storage.list, storage.names, storage.entries)
        for method in (storage.stat, storage.kind, *listings, storage.readlink, storage.handle, storage.resolve):
            try:
                method(path)
            except OSError:
                continue
        try:
            storage.open(path).close()
        except OSError:
            continue
    assert len(os.listdir("/proc/self/fd")) == before
