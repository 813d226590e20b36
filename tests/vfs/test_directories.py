"""What an upper layer keeps open from one lookup to the next never stands for anything else."""

from __future__ import annotations

import errno
import gc
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind
from workbench.vfs.syscalls import RENAME_EXCHANGE, renameat2
from workbench.vfs.upper import LocalUpper


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    return _filled(tmp_path / "outside", "outside")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return _filled(tmp_path / "upper", "upper")


@pytest.fixture
def overlay(tmp_path: Path, root: Path) -> Iterator[Overlay]:
    lower = _filled(tmp_path / "lower", "lower")
    (lower / "a" / "b" / "below").write_text("lower")
    with LocalStorage(os.fsencode(lower)) as storage, LocalUpper(os.fsencode(root)) as upper:
        overlay = Overlay(storage, upper)
        assert overlay.read_bytes(b"a/b/file") == b"upper"
        assert overlay.read_bytes(b"a/b/below") == b"lower"
        yield overlay


def _filled(path: Path, content: str) -> Path:
    (path / "a" / "b").mkdir(parents=True)
    (path / "a" / "b" / "file").write_text(content)
    return path


@pytest.mark.parametrize("swapped", ["a", "a/b"])
def test_a_kept_directory_that_a_symlink_replaced_is_not_gone_through(
    overlay: Overlay, root: Path, outside: Path, swapped: str
) -> None:
    os.rename(root / swapped, root / "kept")
    (root / swapped).symlink_to(outside / swapped)
    for path in (b"a/b/file", b"a/b/below", b"a/b/missing"):
        with pytest.raises(NotADirectoryError):
            overlay.read_bytes(path)
        with pytest.raises(NotADirectoryError):
            overlay.upper.look(path)


def test_a_kept_directory_that_moved_is_found_where_it_is_now(overlay: Overlay, root: Path) -> None:
    os.rename(root / "a", root / "c")
    assert overlay.upper.look(b"a/b/file").kind is None
    assert overlay.read_bytes(b"a/b/file") == b"lower"
    assert overlay.read_bytes(b"c/b/file") == b"upper"


def test_another_directory_in_its_place_is_looked_into(overlay: Overlay, root: Path) -> None:
    _filled(root / "other", "another")
    fd = os.open(root, os.O_RDONLY)
    renameat2(fd, b"a", fd, b"other/a", RENAME_EXCHANGE)
    os.close(fd)
    assert overlay.read_bytes(b"a/b/file") == b"another"


@pytest.mark.parametrize("marked", ["a", "a/b"])
def test_a_mark_that_a_kept_directory_gets_later_counts(overlay: Overlay, root: Path, marked: str) -> None:
    os.setxattr(root / marked, "user.overlay.opaque", b"y")
    assert overlay.read_bytes(b"a/b/file") == b"upper"
    with pytest.raises(FileNotFoundError):
        overlay.read_bytes(b"a/b/below")
    assert overlay.list(b"a/b") == [b"file"]


def test_a_whiteout_in_place_of_a_kept_directory_hides_it(overlay: Overlay, root: Path) -> None:
    os.rename(root / "a", root / "kept")
    fd = os.open(root, os.O_RDONLY)
    overlay.upper.make_whiteout(fd, b"a")
    os.close(fd)
    for path in (b"a", b"a/b", b"a/b/below", b"a/b/file"):
        with pytest.raises(FileNotFoundError):
            overlay.stat(path)


def test_a_directory_that_can_be_entered_and_not_read_is_looked_into(root: Path) -> None:
    os.chmod(root / "a", 0o311)
    with LocalUpper(os.fsencode(root)) as upper:

        def look() -> None:
            found = upper.look(b"a/b/file")
            assert (found.kind, found.lower) == (Kind.FILE, True)
            assert upper.content(b"a/b/file") == b"upper"

        _as_nobody(root, look)


def _as_nobody(root: Path, act: Callable[[], None]) -> None:
    if os.geteuid() != 0:
        act()
        return
    for path in (root, root / "a", root / "a" / "b", root / "a" / "b" / "file"):
        os.chown(path, 65534, 65534)
    os.chmod(root, 0o755)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            act()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_few_are_kept_and_none_is_left_open(tmp_path: Path) -> None:
    root = tmp_path / "many"
    for number in range(100):
        (root / f"d{number}" / "e").mkdir(parents=True)
        (root / f"d{number}" / "e" / "file").write_text(str(number))
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with LocalUpper(os.fsencode(root)) as upper:
        for _ in range(2):
            for number in range(100):
                assert upper.content(b"d%d/e/file" % number) == str(number).encode()
        assert len(os.listdir("/proc/self/fd")) <= before + 40
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        upper.look(b"d0/e/file")


def test_threads_that_look_while_directories_are_let_go_never_meet_another_file(tmp_path: Path) -> None:
    root = tmp_path / "many"
    for number in range(100):
        (root / f"d{number}").mkdir(parents=True)
        (root / f"d{number}" / "file").write_text(str(number))
    failures: list[BaseException] = []

    def read(upper: LocalUpper, start: int) -> None:
        try:
            for step in range(1500):
                number = (start + step * 7) % 100
                assert upper.content(b"d%d/file" % number) == str(number).encode()
                assert upper.look(b"d%d/missing" % number).directories == 1
        except BaseException as error:  # noqa: BLE001 - told by the test
            failures.append(error)

    with LocalUpper(os.fsencode(root)) as upper:
        threads = [threading.Thread(target=read, args=(upper, start)) for start in range(0, 100, 25)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []


def test_a_swapper_never_has_a_kept_directory_lead_outside(overlay: Overlay, root: Path, outside: Path) -> None:
    (outside / "a" / "b" / "secret").write_text("secret")
    (root / "link").symlink_to(outside / "a")
    stop = threading.Event()

    def swap() -> None:
        fd = os.open(root, os.O_RDONLY)
        while not stop.is_set():
            renameat2(fd, b"a", fd, b"link", RENAME_EXCHANGE)
        os.close(fd)

    swapper = threading.Thread(target=swap)
    swapper.start()
    inside = blocked = 0
    try:
        while inside < 300 or blocked < 300:
            try:
                assert overlay.read_bytes(b"a/b/file") == b"upper"
                assert overlay.upper.look(b"a/b/secret").kind is None
                assert b"secret" not in overlay.list(b"a/b")
                inside += 1
            except (FileNotFoundError, NotADirectoryError):
                blocked += 1
    finally:
        stop.set()
        swapper.join()


def test_a_file_that_is_swapped_for_anything_else_is_never_followed_and_never_waited_for(
    overlay: Overlay, root: Path, outside: Path
) -> None:
    (root / "link").symlink_to(outside / "a" / "b" / "file")
    os.mkfifo(root / "fifo")
    stop = threading.Event()

    def swap() -> None:
        fd = os.open(root, os.O_RDONLY)
        while not stop.is_set():
            for name in (b"link", b"fifo"):
                renameat2(fd, b"a/b/file", fd, name, RENAME_EXCHANGE)
                renameat2(fd, b"a/b/file", fd, name, RENAME_EXCHANGE)
        os.close(fd)

    swapper = threading.Thread(target=swap)
    swapper.start()
    opened = refused = 0
    try:
        while opened < 300 or refused < 300:
            try:
                assert overlay.read_bytes(b"a/b/file") == b"upper"
                opened += 1
            except OSError as error:
                if error.errno not in (errno.ELOOP, errno.EINVAL):
                    raise
                refused += 1
    finally:
        stop.set()
        swapper.join()


def test_a_file_that_is_deleted_while_it_is_opened_is_not_found(overlay: Overlay, root: Path) -> None:
    layer = overlay.upper
    assert isinstance(layer, LocalUpper)
    look = layer.look

    def look_then_delete(path: bytes) -> object:
        found = look(path)
        layer.look = look  # type: ignore[method-assign]
        os.unlink(root / "a" / "b" / "file")
        fd = os.open(root / "a" / "b", os.O_RDONLY)
        layer.make_whiteout(fd, b"file")
        os.close(fd)
        return found

    layer.look = look_then_delete  # type: ignore[method-assign, assignment]
    with pytest.raises(FileNotFoundError):
        overlay.read_bytes(b"a/b/file")
