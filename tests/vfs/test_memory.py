"""What is special to layers in memory; what they share with those on disk is in the contracts and the machine."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path

import pytest

from workbench.errors import OptionsError
from workbench.vfs.local import LocalStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import DetailedStorage, Kind


@pytest.fixture
def overlay() -> Overlay:
    return Overlay(MemoryUpper(), MemoryUpper())


def test_a_file_that_grows_beyond_the_limit_is_the_same_in_every_way() -> None:
    overlay = Overlay(MemoryUpper(), MemoryUpper(spill=100))
    model = bytearray()
    with overlay.open(b"f", "w+b") as file:
        for offset, data in ((0, b"a" * 60), (50, b"b" * 40), (90, b"c" * 40), (5, b"d"), (300, b"e")):
            file.seek(offset)
            file.write(data)
            model.extend(bytes(max(0, offset + len(data) - len(model))))
            model[offset : offset + len(data)] = data
            file.flush()
            file.seek(0)
            assert file.read() == bytes(model)
            assert overlay.read_bytes(b"f") == bytes(model)
            assert overlay.stat(b"f").size == len(model)
        file.truncate(10)
        assert overlay.read_bytes(b"f") == bytes(model[:10])
    overlay.write_bytes(b"g", b"g" * 1000)
    overlay.copy(b"g", b"h")
    assert overlay.read_bytes(b"h") == b"g" * 1000


def test_a_file_is_written_over_by_its_own_path_alone(overlay: Overlay) -> None:
    for path in (b"f", b"d/f"):
        overlay.makedirs(b"d", exist_ok=True)
        overlay.write_bytes(path, b"old")
        overlay.chmod(path, 0o750)
        overlay.link(path, path + b"-linked")
    for path in (
        b"/f",
        b"//f",
        b"./f",
        b"d//f",
        b"d/./f",
        b"d/../f",
        b"f/",
        b"d/f\0",
        b"/new",
        b"d//new",
        b"d/.",
        b"d/..",
    ):
        with pytest.raises(OptionsError):
            overlay.write_bytes(path, b"new")
    for path, number in ((b"f/f", errno.ENOTDIR), (b"d", errno.EISDIR), (b"d/" + b"n" * 256, errno.ENAMETOOLONG)):
        with pytest.raises(OSError, match=os.strerror(number)):
            overlay.write_bytes(path, b"new")
    assert sorted(overlay.find()) == [b"d", b"d/f", b"d/f-linked", b"f", b"f-linked"]
    for path in (b"f", b"d/f"):
        assert overlay.read_bytes(path) == b"old"
        overlay.write_bytes(path, b"new")
        assert overlay.read_bytes(path) == b"new"
        assert (overlay.stat(path).mode, overlay.stat(path).nlink) == (0o750, 1)
        # Other hard links keep what they were.
        assert overlay.read_bytes(path + b"-linked") == b"old"


def test_a_new_file_below_what_the_lower_has_is_a_step_of_the_overlay() -> None:
    lower = MemoryUpper()
    Overlay(MemoryUpper(), lower).makedirs(b"both")
    Overlay(MemoryUpper(), lower).write_bytes(b"both/lower", b"lower")
    overlay = Overlay(lower, MemoryUpper())
    overlay.chmod(b"both/lower", 0o700)
    overlay.unlink(b"both/lower")
    overlay.write_bytes(b"both/lower", b"new")
    overlay.write_bytes(b"both/new", b"new")
    with pytest.raises(FileNotFoundError):
        overlay.write_bytes(b"nowhere/new", b"new")
    overlay.unlink(b"both/lower")
    assert overlay.list(b"both") == [b"new"]


def test_a_huge_sparse_file_takes_no_memory(tmp_path: Path) -> None:
    with open(tmp_path / "big", "wb") as file:
        file.truncate(4 << 30)
    with LocalStorage(os.fsencode(tmp_path)) as lower:
        overlay = Overlay(lower, MemoryUpper())
        with overlay.open(b"big", "r+b") as file:
            file.seek(2 << 30)
            file.write(b"middle")
        assert overlay.stat(b"big").size == 4 << 30
        with overlay.open(b"big") as file:
            file.seek((2 << 30) - 1)
            assert file.read(8) == b"\0middle\0"
        overlay.truncate(b"new", 0) if overlay.exists(b"new") else overlay.create(b"new")
        overlay.truncate(b"new", 1 << 40)
        assert overlay.stat(b"new").size == 1 << 40


def test_a_tree_of_any_depth_is_removed(overlay: Overlay) -> None:
    path = b"/".join([b"d"] * 3000)
    overlay.makedirs(path)
    assert overlay.stat(path).kind is Kind.DIR
    overlay.remove_tree(b"d")
    assert overlay.list(b"") == []


def test_an_open_file_counts_as_an_operating_system_would_have_it(overlay: Overlay) -> None:
    with overlay.open(b"f", "wb") as file:
        assert not file.readable()
        file.write(b"0123")
        assert overlay.read_bytes(b"f") == b""
    assert overlay.read_bytes(b"f") == b"0123"
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")
    with overlay.open(b"f", "r+b", *()) as file:
        with pytest.raises(OSError, match=os.strerror(errno.EINVAL)):
            file.seek(-1)
        file.seek(10)
        assert file.read() == b""
        file.write(b"x")
    assert overlay.read_bytes(b"f") == b"0123\0\0\0\0\0\0x"
    lines = overlay.open(b"f", "wb")
    lines.writelines([b"a\n", b"b\n"])
    lines.close()
    with overlay.open(b"f") as file:
        assert list(file) == [b"a\n", b"b\n"]


def test_modes_owners_and_links_are_as_a_filesystem_has_them() -> None:
    overlay = Overlay(MemoryUpper(), MemoryUpper(umask=0o027))
    overlay.mkdir(b"d", 0o777)
    overlay.create(b"f", 0o666)
    assert (overlay.stat(b"d").mode, overlay.stat(b"f").mode) == (0o750, 0o640)
    overlay.chmod(b"d", 0o2770)
    overlay.mkdir(b"d/e")
    assert overlay.stat(b"d/e").mode == 0o2750
    overlay.link(b"f", b"g")
    assert overlay.stat(b"f").nlink == 2
    assert overlay.stat(b"f").inode == overlay.stat(b"g").inode
    overlay.rename(b"f", b"g")
    assert overlay.exists(b"f")
    overlay.unlink(b"f")
    assert overlay.stat(b"g").nlink == 1
    with pytest.raises(OSError, match=os.strerror(errno.ENOTSUP)):
        overlay.setxattr(b"g", b"trusted.x", b"")
    with pytest.raises(OSError, match=os.strerror(errno.ENAMETOOLONG)):
        overlay.create(b"n" * 256)


def test_a_layer_in_memory_is_a_lower_layer_as_well() -> None:
    lower = MemoryUpper()
    assert isinstance(lower, DetailedStorage)
    below = Overlay(MemoryUpper(), lower)
    below.write_bytes(b"f", b"lower")
    below.setxattr(b"f", b"user.note", b"x")
    overlay = Overlay(lower, MemoryUpper())
    overlay.chmod(b"f", 0o600)
    assert overlay.getxattr(b"f", b"user.note") == b"x"
    overlay.write_bytes(b"f", b"upper")
    assert (below.read_bytes(b"f"), overlay.read_bytes(b"f")) == (b"lower", b"upper")
    assert overlay.getxattr(b"f", b"user.note") == b"x"


def test_threads_may_share_an_overlay(overlay: Overlay) -> None:
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for step in range(100):
                path = b"shared/%d-%d" % (number, step)
                overlay.makedirs(b"shared", exist_ok=True)
                overlay.write_bytes(path, path)
                overlay.rename(path, path + b"!")
                assert overlay.read_bytes(path + b"!") == path
                overlay.list(b"shared")
                if step % 2:
                    overlay.unlink(path + b"!")
        except (AssertionError, OSError, RuntimeError) as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(overlay.list(b"shared")) == 8 * 50


def test_impossible_paths_are_refused_by_the_layer_itself() -> None:
    layer = MemoryUpper()
    layer.make_directory(b"d", 0o777, opaque=False)
    for path in (b"/d", b"..", b"d/../d", b"d/./a", b"d//a", b"d/", b".", b"x\0"):
        for act in (layer.look, layer.stat, layer.list, lambda at: layer.make_file(at, 0o666)):
            with pytest.raises(OptionsError):
                act(path)


def test_a_new_directory_that_is_moved_to_where_the_lower_has_one_hides_it_and_leaves_no_way_back() -> None:
    below = MemoryUpper()
    lower = Overlay(MemoryUpper(), below)
    lower.makedirs(b"d/sub")
    lower.write_bytes(b"d/x", b"lower")
    overlay = Overlay(below, MemoryUpper())
    overlay.makedirs(b"n/sub")
    overlay.write_bytes(b"n/sub/y", b"")
    overlay.remove_tree(b"d")
    overlay.rename(b"n", b"d")
    assert list(overlay.find()) == [b"d", b"d/sub", b"d/sub/y"]
    overlay.unlink(b"d/sub/y")
    overlay.rename(b"d/sub", b"sub")
    overlay.rmdir(b"d")
    assert list(overlay.find()) == [b"sub"]


def test_what_a_layer_knows_of_one_lower_it_does_not_say_of_another() -> None:
    layer, other = MemoryUpper(), MemoryUpper()
    Overlay(MemoryUpper(), layer).makedirs(b"d/sub")
    there = Overlay(MemoryUpper(), other)
    there.makedirs(b"d/sub")
    there.write_bytes(b"d/sub/x", b"other")
    assert Overlay(other, layer).read_bytes(b"d/sub/x") == b"other"
    Overlay(other, layer).unlink(b"d/sub/x")
    assert list(Overlay(other, layer).find()) == [b"d", b"d/sub"]
