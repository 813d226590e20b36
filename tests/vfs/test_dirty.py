from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from workbench.vfs import dirty
from workbench.vfs.session import OverlayDirectory


@pytest.fixture
def overlay(tmp_path: Path) -> OverlayDirectory:
    return OverlayDirectory.create(str(tmp_path / "overlay"), "default")


def test_what_was_noted_since_a_moment_is_known(overlay: OverlayDirectory) -> None:
    assert overlay.dirty.known() is None
    overlay.dirty.note([b"nobody asked"])
    assert overlay.dirty.known() is None
    overlay.dirty.begin("1")
    assert overlay.dirty.known() == ("1", frozenset())
    overlay.dirty.note([b"a", b"b/c\xff\n"])
    overlay.dirty.note([b"", b"a"])
    assert OverlayDirectory.open(overlay.path).dirty.known() == ("1", {b"a", b"b/c\xff\n", b""})
    overlay.dirty.begin("2")
    assert overlay.dirty.known() == ("2", frozenset())
    overlay.dirty.forget()
    overlay.dirty.forget()
    assert overlay.dirty.known() is None


def test_whoever_takes_the_lock_without_a_promise_ends_the_record(overlay: OverlayDirectory) -> None:
    overlay.dirty.begin("1")
    overlay.take_lock(notes=True).close()
    assert overlay.dirty.known() == ("1", frozenset())
    overlay.take_lock().close()
    assert overlay.dirty.known() is None
    overlay.dirty.begin("1")
    with overlay.lock():
        assert overlay.dirty.known() is None


@pytest.mark.parametrize("size", range(1, 8))
def test_a_record_that_was_cut_short_tells_nothing(overlay: OverlayDirectory, size: int) -> None:
    overlay.dirty.begin("1")
    overlay.dirty.note([b"path"])
    path = Path(overlay.path, "dirty")
    cut = path.read_bytes()[:-size]
    path.write_bytes(cut)
    assert overlay.dirty.known() == (("1", frozenset()) if cut.endswith(b"\x001\0") else None)


def test_a_record_of_another_boot_tells_nothing(overlay: OverlayDirectory) -> None:
    overlay.dirty.begin("1")
    path = Path(overlay.path, "dirty")
    _, rest = path.read_bytes().split(b"\0", 1)
    path.write_bytes(b"00000000-0000-4000-8000-000000000000\0" + rest)
    assert overlay.dirty.known() is None


def test_a_record_that_grows_beyond_reason_tells_nothing(
    overlay: OverlayDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    overlay.dirty.begin("1")
    monkeypatch.setattr(dirty, "_MOST_BYTES", 1000)
    for number in range(200):
        overlay.dirty.note([b"path%d" % number])
    assert overlay.dirty.known() is None
    assert not os.path.exists(os.path.join(overlay.path, "dirty"))


def test_a_record_that_there_is_no_room_for_tells_nothing_and_fails_nothing(overlay: OverlayDirectory) -> None:
    overlay.dirty.begin("1")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        overlay.dirty.begin("2")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert overlay.dirty.known() is None
