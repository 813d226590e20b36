from __future__ import annotations

import os
import socket
import stat
import threading
import time
from pathlib import Path

import pytest

from tests.checkpoints.layers import Layers, as_nobody, let_nobody_enter, show
from workbench.checkpoints import scan as scan_module
from workbench.checkpoints.manifest import Entry, Manifest, Omitted
from workbench.checkpoints.restore import restore
from workbench.checkpoints.scan import Budget, Hasher, scan
from workbench.errors import OverlayError
from workbench.vfs import syscalls
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper


class Counting(Hasher):
    """A sink that remembers what it was given."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []

    def blob(self, data: bytes) -> str:
        self.contents.append(data)
        return super().blob(data)


def entries_of(path: Path, sink: Hasher | None = None, **options: object) -> dict[bytes, Entry]:
    with LocalUpper(bytes(path)) as upper:
        return scan(upper, sink or Hasher(), boot_id="boot", **options)  # type: ignore[arg-type]


def age(path: Path, seconds: float = 3) -> int:
    """A moment on the filesystem's clock that is this much after the last change of `path`."""
    return path.lstat().st_ctime_ns + int(seconds * 1e9)


def test_an_empty_layer_has_its_root(tmp_path: Path) -> None:
    (entry,) = entries_of(tmp_path).values()
    assert (entry.path, entry.kind, entry.mode) == (b"", Kind.DIR, stat.S_IMODE(tmp_path.stat().st_mode))


def test_entries_come_in_bytewise_order_of_path(tmp_path: Path) -> None:
    for name in ("a/x", "a.b", "a", "Z"):
        if name == "a":
            continue
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    found = list(entries_of(tmp_path))
    assert found == sorted(found)
    assert found == [b"", b"Z", b"a", b"a.b", b"a/x"]


def test_what_git_cannot_hold_is_recorded(tmp_path: Path) -> None:
    (tmp_path / "setuid").write_text("x")
    (tmp_path / "setuid").chmod(0o4751)
    (tmp_path / "empty").mkdir(mode=0o700)
    os.mkfifo(tmp_path / "fifo", 0o640)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock"))
    (tmp_path / "dangling").symlink_to("nowhere")
    os.setxattr(tmp_path / "setuid", "user.note", b"a\0b")
    found = entries_of(tmp_path)
    assert found[b"setuid"].mode == 0o4751
    assert found[b"setuid"].xattrs == ((b"user.note", b"a\0b"),)
    assert found[b"empty"].kind is Kind.DIR
    assert found[b"fifo"].kind is Kind.FIFO
    assert found[b"fifo"].mode == 0o640
    assert found[b"sock"].kind is Kind.SOCKET
    assert found[b"dangling"].blob == Hasher().blob(b"nowhere")


def test_the_kernels_own_attributes_are_not_the_agents(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    os.setxattr(tmp_path / "d", "user.overlay.impure", b"y")
    os.setxattr(tmp_path / "d", "user.overlay.opaque", b"y")
    entry = entries_of(tmp_path)[b"d"]
    assert entry.opaque
    assert entry.xattrs == ()


@pytest.mark.parametrize("name", ["user.overlay.redirect", "user.overlay.metacopy"])
def test_a_layer_that_another_mount_wrote_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "f").write_text("")
    os.setxattr(tmp_path / "f", name, b"/elsewhere")
    with pytest.raises(OverlayError):
        entries_of(tmp_path)


def test_files_of_one_inode_share_a_group_and_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "b").write_text("linked")
    os.link(tmp_path / "b", tmp_path / "a")
    (tmp_path / "c").write_text("alone")
    sink = Counting()
    found = entries_of(tmp_path, sink)
    assert found[b"a"].link_group == found[b"b"].link_group == 1
    assert found[b"c"].link_group == 0
    assert sorted(sink.contents) == [b"alone", b"linked"]


def test_a_file_whose_other_name_is_elsewhere_is_alone(tmp_path: Path) -> None:
    (tmp_path / "layer").mkdir()
    (tmp_path / "outside").write_text("x")
    os.link(tmp_path / "outside", tmp_path / "layer" / "f")
    assert entries_of(tmp_path / "layer")[b"f"].link_group == 0


def test_holes_are_recorded(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 20)
        file.seek(512 << 10)
        file.write(b"x" * 4096)
    holes = entries_of(tmp_path)[b"sparse"].holes
    assert holes == ((0, 512 << 10), ((512 << 10) + 4096, (512 << 10) - 4096))


def test_an_entry_is_trusted_once_its_change_is_two_seconds_older_than_the_scan(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("content")
    with LocalUpper(os.fsencode(tmp_path)) as upper:
        if syscalls.filesystem_type(upper.root_fd) == scan_module.TMPFS_MAGIC:
            pytest.skip("nothing on a tmpfs is trusted")
    entries = entries_of(tmp_path)
    fresh = Manifest(entries, {}, "boot", age(tmp_path / "f", 1))
    old = Manifest(entries, {}, "boot", age(tmp_path / "f", 3))
    for previous, reads in ((fresh, 1), (old, 0)):
        sink = Counting()
        assert entries_of(tmp_path, sink, previous=previous) == entries
        assert len(sink.contents) == reads


def test_after_a_reboot_everything_is_read_again(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("content")
    previous = Manifest(entries_of(tmp_path), {}, "the boot before", age(tmp_path / "f"))
    sink = Counting()
    entries_of(tmp_path, sink, previous=previous)
    assert sink.contents == [b"content"]


def test_a_rewrite_that_keeps_size_and_mtime_is_seen(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("before")
    previous = Manifest(entries_of(tmp_path), {}, "boot", age(path))
    status = path.stat()
    while path.stat().st_ctime_ns == status.st_ctime_ns:
        path.write_text("after!")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert entries_of(tmp_path, previous=previous)[b"f"].blob == Hasher().blob(b"after!")


def test_what_an_earlier_scan_kept_and_the_store_lost_is_read_again(tmp_path: Path) -> None:
    class Forgetful(Counting):
        def has(self, blob: str) -> bool:
            return False

    (tmp_path / "f").write_text("content")
    sink = Forgetful()
    entries_of(tmp_path, sink, previous=Manifest(entries_of(tmp_path), {}, "boot", age(tmp_path / "f")))
    assert sink.contents == [b"content"]


def test_a_file_that_changes_under_the_read_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("first")

    class Meddling(Counting):
        def blob(self, data: bytes) -> str:
            blob = super().blob(data)
            if len(self.contents) == 1:
                path.write_text("second, longer")
            return blob

    sink = Meddling()
    entry = entries_of(tmp_path, sink)[b"f"]
    assert entry.blob == Hasher().blob(b"second, longer")
    assert not entry.omitted


def test_a_file_that_always_changes_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text("first")

    class Meddling(Counting):
        def blob(self, data: bytes) -> str:
            path.write_bytes(data + b"+")
            return super().blob(data)

    entry = entries_of(tmp_path, Meddling())[b"f"]
    assert entry.omitted == Omitted.UNSTABLE
    assert not entry.blob


def test_a_file_that_becomes_a_symlink_or_a_fifo_is_never_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "outside").write_text("secret")
    layer = tmp_path / "layer"
    layer.mkdir()
    (layer / "f").write_text("x")
    (layer / "g").write_text("x")
    real = os.open

    def swap(path: object, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == b"f" and not (layer / "f").is_symlink():
            (layer / "f").unlink()
            (layer / "f").symlink_to("../outside")
        if path == b"g" and not (layer / "g").is_fifo():
            (layer / "g").unlink()
            os.mkfifo(layer / "g")
        return real(path, flags, mode, dir_fd=dir_fd)  # type: ignore[arg-type]

    monkeypatch.setattr(scan_module.os, "open", swap)
    sink = Counting()
    found = entries_of(layer, sink)
    assert found[b"f"].omitted == found[b"g"].omitted == Omitted.UNSTABLE
    assert b"secret" not in sink.contents


def test_what_is_over_a_budget_is_said(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(b"x" * 200)
    (tmp_path / "d").mkdir()
    for number in range(10):
        (tmp_path / "d" / f"f{number}").write_bytes(b"y" * 50)
    found = entries_of(tmp_path, budget=Budget(file_bytes=100, total_bytes=220))
    assert found[b"big"].omitted == Omitted.TOO_BIG
    assert [found[b"d/f%d" % n].omitted for n in range(10)] == [""] * 4 + [Omitted.OVER_BUDGET] * 6
    for budget in (Budget(entries=8), Budget(path_bytes=20)):
        found = entries_of(tmp_path, budget=budget)
        assert found[b"d"].omitted == Omitted.OVER_BUDGET
        assert not any(path.startswith(b"d/") for path in found)


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_a_device_node_is_left_out_and_a_whiteout_is_not(tmp_path: Path) -> None:
    os.mknod(tmp_path / "device", stat.S_IFCHR | 0o600, os.makedev(1, 3))
    os.mknod(tmp_path / "white", stat.S_IFCHR, 0)
    os.link(tmp_path / "white", tmp_path / "white2")
    found = entries_of(tmp_path)
    assert found[b"device"].omitted == Omitted.DEVICE
    assert found[b"white"].kind is Kind.WHITEOUT
    assert found[b"white"].link_group == found[b"white2"].link_group == 0


def test_thousands_of_levels_and_paths_beyond_the_kernels_limit_come_back(layers: Layers) -> None:
    depth = 3000
    fd = os.open(layers.upper, os.O_RDONLY)
    for level in range(depth):
        name = b"level-%d" % level
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    with open(os.open(b"leaf", os.O_WRONLY | os.O_CREAT, dir_fd=fd), "wb") as file:
        file.write(b"deep down")
    os.close(fd)
    (layers.upper / "loop").symlink_to(".")
    full = layers.take(epoch_ns=None)
    assert len(full.manifest.entries) == depth + 3
    expected = show(layers.upper)
    with LocalUpper(bytes(layers.upper)) as upper:
        empty = Manifest({b"": full.manifest.entries[b""]})
        restore(str(layers.upper), upper, empty, layers.store, current=full.manifest)
        assert os.listdir(layers.upper) == []
        restore(str(layers.upper), upper, full.manifest, layers.store)
    assert show(layers.upper) == expected


def test_a_layer_that_changes_all_the_time_can_be_scanned(tmp_path: Path) -> None:
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            directory = tmp_path / f"d{number % 7}"
            directory.mkdir(exist_ok=True)
            (directory / "f").write_text(str(number))
            (directory / "f").unlink()
            directory.rmdir()

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        end = time.monotonic() + 0.5
        while time.monotonic() < end:
            assert b"" in entries_of(tmp_path)
    finally:
        stop.set()
        thread.join()


def locked_tree(top: Path) -> None:
    (top / "locked" / "in").mkdir(parents=True)
    (top / "locked" / "in" / "file").write_text("kept")
    (top / "secret").write_text("hidden")
    os.setxattr(top / "secret", "user.a", b"b")
    for path in (top / "locked" / "in" / "file", top / "locked" / "in", top / "locked", top / "secret"):
        os.chown(path, 65534, 65534)
    (top / "secret").chmod(0)
    (top / "locked" / "in").chmod(0o100)
    (top / "locked").chmod(0)


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_what_its_owner_locked_is_opened_up_offline_only_and_locked_again(tmp_path: Path) -> None:
    locked_tree(tmp_path)
    let_nobody_enter(tmp_path)

    def check() -> None:
        found = entries_of(tmp_path)
        assert found[b"locked"].omitted == found[b"secret"].omitted == Omitted.UNREADABLE
        found = entries_of(tmp_path, offline=True)
        assert found[b"locked/in/file"].blob == Hasher().blob(b"kept")
        assert found[b"secret"].blob == Hasher().blob(b"hidden")
        assert found[b"secret"].xattrs == ((b"user.a", b"b"),)
        assert [found[p].mode for p in (b"locked", b"locked/in", b"secret")] == [0, 0o100, 0]
        for path in (b"locked", b"secret"):
            assert found[path].ctime_ns == os.lstat(os.path.join(bytes(tmp_path), path)).st_ctime_ns

    assert as_nobody(check) == 0
    assert stat.S_IMODE((tmp_path / "locked").stat().st_mode) == 0
    assert stat.S_IMODE((tmp_path / "locked" / "in").stat().st_mode) == 0o100
    assert stat.S_IMODE((tmp_path / "secret").stat().st_mode) == 0


@pytest.mark.root
@pytest.mark.usefixtures("root")
def test_what_belongs_to_another_is_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "others").mkdir(mode=0o700)
    (tmp_path / "others" / "f").write_text("x")
    (tmp_path / "root-only").write_text("x")
    (tmp_path / "root-only").chmod(0o600)
    (tmp_path / "no-entry").mkdir()
    (tmp_path / "no-entry" / "f").write_text("x")
    (tmp_path / "no-entry").chmod(0o744)
    let_nobody_enter(tmp_path)

    def check() -> None:
        found = entries_of(tmp_path, offline=True)
        assert found.keys() == {b"", b"others", b"root-only", b"no-entry"}
        assert {found[p].omitted for p in (b"others", b"root-only", b"no-entry")} == {Omitted.UNREADABLE}

    assert as_nobody(check) == 0
