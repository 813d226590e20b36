"""Overlay on layers made by hand; test_overlay_kernel.py compares it with the kernel."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import pytest

from workbench.errors import OptionsError, OverlayError
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind, Stat, Storage
from workbench.vfs.syscalls import RENAME_EXCHANGE, renameat2
from workbench.vfs.upper import LocalUpper


@dataclass
class Layers:
    lower: Path
    upper: Path
    overlay: Overlay

    def whiteout(self, path: str) -> None:
        fd = os.open((self.upper / path).parent, os.O_RDONLY)
        self.overlay.upper.make_whiteout(fd, os.fsencode(os.path.basename(path)))
        os.close(fd)

    def opaque(self, path: str) -> None:
        os.setxattr(self.upper / path, "user.overlay.opaque", b"y")


def _fill(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    (tmp_path / "lower").mkdir()
    (tmp_path / "upper").mkdir()
    with (
        LocalStorage(os.fsencode(tmp_path / "lower")) as lower,
        LocalUpper(os.fsencode(tmp_path / "upper")) as upper,
    ):
        yield Layers(tmp_path / "lower", tmp_path / "upper", Overlay(lower, upper))


def _read(overlay: Overlay, path: bytes) -> bytes:
    with overlay.open(path) as file:
        return file.read()


def test_an_upper_file_stands_before_the_lower_one(layers: Layers) -> None:
    _fill(layers.lower, {"d/a": "lower", "d/b": "lower"})
    _fill(layers.upper, {"d/b": "upper", "d/c": "upper"})
    assert layers.overlay.list(b"d") == [b"a", b"b", b"c"]
    contents = [_read(layers.overlay, b"d/" + name) for name in (b"a", b"b", b"c")]
    assert contents == [b"lower", b"upper", b"upper"]


def test_a_deleted_path_is_gone_with_all_that_was_below(layers: Layers) -> None:
    _fill(layers.lower, {"d/e/f": "lower", "g": "lower"})
    layers.whiteout("d")
    layers.whiteout("g")
    for path in (b"d", b"d/e", b"d/e/f", b"g"):
        assert not layers.overlay.exists(path)
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            layers.overlay.open(path)
    with pytest.raises(FileNotFoundError):
        layers.overlay.list(b"d")
    assert list(layers.overlay.walk()) == [(b"", [], [])]


def test_a_deleted_then_recreated_directory_hides_what_was_in_it(layers: Layers) -> None:
    _fill(layers.lower, {"d/old": "lower", "d/e/old": "lower"})
    _fill(layers.upper, {"d/new": "upper", "d/e/new": "upper"})
    layers.opaque("d")
    assert layers.overlay.list(b"d") == [b"e", b"new"]
    # Below, too, though the inner directory carries no mark.
    assert layers.overlay.list(b"d/e") == [b"new"]
    for path in (b"d/old", b"d/e/old"):
        with pytest.raises(FileNotFoundError):
            layers.overlay.stat(path)


@pytest.mark.parametrize("kind", ["file", "symlink"])
def test_a_directory_in_place_of_something_else_shows_only_itself(layers: Layers, kind: str) -> None:
    _fill(layers.lower, {"elsewhere/old": "lower"})
    if kind == "file":
        (layers.lower / "d").write_text("lower")
    else:
        (layers.lower / "d").symlink_to("elsewhere")
    _fill(layers.upper, {"d/new": "upper", "d/e/new": "upper"})
    assert layers.overlay.list(b"d") == [b"e", b"new"]
    assert layers.overlay.list(b"d/e") == [b"new"]
    for path in (b"d/old", b"d/e/old", b"d/missing/deeper"):
        with pytest.raises(FileNotFoundError):
            layers.overlay.stat(path)
        with pytest.raises(FileNotFoundError):
            layers.overlay.list(path)


def test_a_file_in_place_of_a_directory_has_nothing_below(layers: Layers) -> None:
    _fill(layers.lower, {"d/old": "lower"})
    (layers.upper / "d").write_text("upper")
    for method in (layers.overlay.stat, layers.overlay.list, layers.overlay.open):
        with pytest.raises(NotADirectoryError) as caught:
            method(b"d/old")
        assert caught.value.filename == b"d/old"
    with pytest.raises(NotADirectoryError):
        layers.overlay.list(b"d")


def test_a_path_through_a_lower_file_is_not_a_directory(layers: Layers) -> None:
    _fill(layers.lower, {"d/file": "lower"})
    _fill(layers.upper, {"d/new": "upper"})
    for path in (b"d/file/x", b"d/file/x/y"):
        with pytest.raises(NotADirectoryError):
            layers.overlay.stat(path)


def test_a_whiteout_in_the_lower_layer_hides_as_the_kernel_has_it(layers: Layers) -> None:
    fd = os.open(layers.lower, os.O_RDONLY)
    layers.overlay.upper.make_whiteout(fd, b"odd")
    os.close(fd)
    assert not layers.overlay.exists(b"odd")
    assert layers.overlay.list(b"") == []


def test_wrong_kinds_are_refused(layers: Layers) -> None:
    for root, suffix in ((layers.lower, "-lower"), (layers.upper, "-upper")):
        (root / f"d{suffix}").mkdir()
        (root / f"l{suffix}").symlink_to("nowhere")
        os.mkfifo(root / f"p{suffix}")
        (root / f"f{suffix}").write_text("x")
    for layer in (b"-lower", b"-upper"):
        codes = {b"d": errno.EISDIR, b"l": errno.ELOOP, b"p": errno.EINVAL}
        for name, code in codes.items():
            with pytest.raises(OSError, match=os.strerror(code)) as caught:
                layers.overlay.open(name + layer)
            assert (caught.value.errno, caught.value.filename) == (code, name + layer)
        with pytest.raises(OSError, match="Invalid argument"):
            layers.overlay.readlink(b"f" + layer)
        assert layers.overlay.readlink(b"l" + layer) == b"nowhere"
        assert layers.overlay.stat(b"p" + layer).kind is Kind.FIFO
    with pytest.raises(OptionsError):
        layers.overlay.stat(b"../lower")


@pytest.mark.parametrize(("name", "is_dir"), [("user.overlay.redirect", True), ("user.overlay.metacopy", False)])
def test_layers_that_only_other_mount_options_make_are_refused(layers: Layers, name: str, is_dir: bool) -> None:
    entry = layers.upper / "entry"
    if is_dir:
        entry.mkdir()
    else:
        entry.write_text("")
    os.setxattr(entry, name, b"/elsewhere")
    with pytest.raises(OverlayError) as caught:
        layers.overlay.list(b"entry") if is_dir else layers.overlay.open(b"entry")
    assert caught.value.code == "layer_unsupported"


def test_links_are_resolved_in_the_merged_view(layers: Layers) -> None:
    _fill(layers.lower, {"a/file": "lower"})
    (layers.lower / "to-a").symlink_to("a")
    (layers.lower / "to-gone").symlink_to("a/file")
    _fill(layers.upper, {"b/file": "upper"})
    (layers.upper / "to-b").symlink_to("b")
    (layers.upper / "to-a").symlink_to("to-b")
    assert layers.overlay.resolve(b"to-a/file") == b"b/file"
    (layers.upper / "a").mkdir()
    layers.whiteout("a/file")
    with pytest.raises(FileNotFoundError):
        layers.overlay.resolve(b"to-gone")


def test_the_scratch_directory_is_read_by_name_and_never_listed(layers: Layers) -> None:
    _fill(layers.upper, {"_notes/plan": "notes", "d/_notes": "upper", "_posts/new": "upper"})
    assert layers.overlay.list(b"") == [b"_posts", b"d"]
    assert layers.overlay.list(b"d") == [b"_notes"]
    assert layers.overlay.list(b"_notes") == [b"plan"]
    assert _read(layers.overlay, b"_notes/plan") == b"notes"
    assert [parent for parent, _, _ in layers.overlay.walk()] == [b"", b"_posts", b"d"]


def test_hidden_paths_are_the_new_ones_that_start_with_one_underscore(layers: Layers) -> None:
    _fill(layers.lower, {"_old/x": "lower", "d/_kept": "lower"})
    _fill(layers.upper, {"_old/_new": "u", "_new/x": "u", "_new/_y": "u", "d/_kept": "u", "__init__.py": "u"})
    overlay = Overlay(layers.overlay.lower, layers.overlay.upper, hide_hidden_paths=True)
    assert overlay.list(b"") == [b"__init__.py", b"_old", b"d"]
    assert overlay.list(b"_old") == [b"x"]
    assert overlay.list(b"d") == [b"_kept"]
    assert overlay.list(b"_new") == [b"_y", b"x"]
    assert _read(overlay, b"_new/_y") == b"u"


def test_a_walk_is_sorted_and_does_not_enter_what_is_taken_out(layers: Layers) -> None:
    _fill(layers.lower, {"b/x": "l", "a/y": "l", "c": "l", "skip/z": "l"})
    _fill(layers.upper, {"b/w": "u"})
    (layers.upper / "link").symlink_to("a")
    steps = []
    for step in layers.overlay.walk():
        steps.append((step[0], list(step[1]), step[2]))
        if b"skip" in step[1]:
            step[1].remove(b"skip")
    assert steps == [
        (b"", [b"a", b"b", b"skip"], [b"c", b"link"]),
        (b"a", [], [b"y"]),
        (b"b", [], [b"w", b"x"]),
    ]
    with pytest.raises(FileNotFoundError):
        next(layers.overlay.walk(b"missing"))


def test_a_thousand_levels_of_either_layer_are_walked(layers: Layers, nest: Callable[[Path, bytes, int], int]) -> None:
    os.close(nest(layers.lower, b"level", 1000))
    os.close(nest(layers.upper, b"level", 1000))
    assert sum(1 for _ in layers.overlay.walk()) == 1001


class _Interrupted:
    """A lower layer in whose first listing something else happens."""

    def __init__(self, storage: Storage, happen: Callable[[], None]) -> None:
        self.storage = storage
        self.happen: Callable[[], None] | None = happen

    def stat(self, path: bytes) -> Stat:
        return self.storage.stat(path)

    def open(self, path: bytes) -> BinaryIO:
        return self.storage.open(path)

    def readlink(self, path: bytes) -> bytes:
        return self.storage.readlink(path)

    def list(self, path: bytes) -> list[bytes]:
        names = self.storage.list(path)
        if self.happen is not None:
            happen, self.happen = self.happen, None
            happen()
        return names


def test_a_listing_during_a_deletion_shows_no_deleted_name_again(layers: Layers) -> None:
    _fill(layers.lower, {"d/a": "lower", "d/b": "lower"})
    (layers.upper / "d").mkdir()
    layers.whiteout("d/a")
    layers.whiteout("d/b")

    def delete_as_the_kernel_does() -> None:
        # It exchanges the directory for an empty opaque one before it clears the whiteouts.
        (layers.upper / "spare").mkdir()
        layers.opaque("spare")
        root = layers.overlay.upper.root_fd
        renameat2(root, b"spare", root, b"d", RENAME_EXCHANGE)
        shutil.rmtree(layers.upper / "spare")

    overlay = Overlay(_Interrupted(layers.overlay.lower, delete_as_the_kernel_does), layers.overlay.upper)
    assert overlay.list(b"d") == []
