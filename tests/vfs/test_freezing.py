from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.vfs.worlds import OverlayWorld, fill_lower
from workbench.testing import freeze
from workbench.vfs.layers import Upper
from workbench.vfs.local import LocalStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper


@pytest.fixture(params=["disk", "memory"])
def overlay(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Overlay]:
    for name in ("lower", "upper", "work"):
        (tmp_path / name).mkdir()
    fill_lower(tmp_path / "lower")
    with (
        LocalStorage(os.fsencode(tmp_path / "lower")) as lower,
        LocalUpper(os.fsencode(tmp_path / "upper"), work=os.fsencode(tmp_path / "work")) as disk,
    ):
        upper: Upper = disk if request.param == "disk" else MemoryUpper()
        yield Overlay(lower, upper)


def test_a_frozen_overlay_shows_the_same_and_all_of_it_from_below(overlay: Overlay) -> None:
    overlay.unlink(b"f")
    overlay.link(b"a/f", b"a/g")
    overlay.chmod(b"a/b", 0o1751)
    overlay.utime(b"a/b", 5)
    overlay.setxattr(b"d", b"user.note", b"new")
    overlay.makedirs(b"_notes/deep")
    overlay.write_bytes(b"_notes/deep/plan", b"scratch")
    frozen = freeze(overlay)
    assert OverlayWorld(frozen).tree() == OverlayWorld(overlay).tree()
    assert frozen.read_bytes(b"_notes/deep/plan") == b"scratch"
    assert frozen.lower.stat(b"a/f").inode == frozen.lower.stat(b"a/g").inode
    assert frozen.upper.entries(b"") == []
    frozen.remove_tree(b"a")
    assert overlay.exists(b"a/b")
    twice = freeze(frozen)
    assert not twice.exists(b"a")
    assert twice.upper.entries(b"") == []


def test_what_a_frozen_overlay_has_on_disk_goes_with_it(overlay: Overlay, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    real = __import__("tempfile").mkdtemp
    monkeypatch.setattr("tempfile.mkdtemp", lambda **options: made.append(real(**options)) or made[-1])
    frozen = freeze(freeze(overlay))
    frozen.write_bytes(b"new", b"")
    del frozen
    gc.collect()
    assert len(made) in (0, 2)
    assert not any(os.path.exists(path) for path in made)
