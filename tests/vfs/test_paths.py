from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import OptionsError
from workbench.vfs import paths, syscalls

Nest = Callable[[Path, bytes, int], int]

components = st.binary(min_size=1, max_size=20).map(lambda raw: raw.replace(b"/", b"_").replace(b"\0", b"_"))
names = components.filter(lambda name: name not in (b".", b".."))


@given(st.lists(names, max_size=6))
def test_joining_the_parts_of_a_path_gives_the_path(parts: list[bytes]) -> None:
    path = b"/".join(parts)
    assert paths.parts(path) == tuple(parts)
    assert paths.join(*parts) == path
    assert paths.join(paths.parent(path), paths.name(path)) == path


@pytest.mark.parametrize("path", [b"/", b"/a", b"a/", b"a//b", b".", b"..", b"a/../b", b"./a", b"a/.", b"a\0b"])
def test_an_impossible_path_is_refused(path: bytes) -> None:
    with pytest.raises(OptionsError) as caught:
        paths.parts(path)
    assert caught.value.code == "invalid_options"
    with pytest.raises(OptionsError):
        paths.join(b"a", path)


@pytest.mark.parametrize(
    "path", [b"report..final.md", b"[...slug]", b"...", b"..a", b"-", b" ", b"a\nb", b"\xff", b"~"]
)
def test_an_odd_name_is_a_name(path: bytes) -> None:
    assert paths.parts(path) == (path,)


def test_below_is_by_component_and_not_by_prefix() -> None:
    assert paths.is_below(b"a/b", b"a")
    assert paths.is_below(b"a", b"")
    assert not paths.is_below(b"a-evil/b", b"a")
    assert not paths.is_below(b"a", b"a")
    assert not paths.is_below(b"", b"")


@given(st.binary(max_size=30), st.binary(max_size=30))
def test_no_two_paths_look_alike(one: bytes, other: bytes) -> None:
    assert (paths.display(one) == paths.display(other)) == (one == other)


@given(st.one_of(st.binary(max_size=30), st.text(max_size=30).map(lambda text: text.encode("utf-8", "replace"))))
def test_a_displayed_path_is_one_printable_line(path: bytes) -> None:
    assert paths.display(path).isprintable()
    paths.display(path).encode()


def test_what_is_readable_stays_as_it_is() -> None:
    assert paths.display("docs/für dich/日本.md".encode()) == "docs/für dich/日本.md"
    assert paths.display(b"a\nb\xff\\n") == "a\\nb\\xff\\\\n"
    assert paths.display("\u202egpj.exe".encode()) == "\\u202egpj.exe"


@pytest.fixture
def root(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.mark.parametrize(("name", "levels"), [(b"d", 1500), (b"n" * 255, 40), (b"x" * 100, 120)])
def test_a_path_longer_than_the_kernel_takes_is_opened(
    tmp_path: Path, root: int, nest: Nest, resolver: str, name: bytes, levels: int
) -> None:
    path = b"/".join([name] * levels)
    os.close(nest(tmp_path, name, levels))
    fd = paths.open_below(root, path, os.O_RDONLY | os.O_DIRECTORY)
    os.close(os.open(b"file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    assert os.listdir(fd) == ["file"]
    os.close(fd)
    os.close(paths.open_below(root, path + b"/file", os.O_RDONLY))
    with pytest.raises(FileNotFoundError) as caught:
        paths.open_below(root, path + b"/missing", os.O_RDONLY)
    assert caught.value.filename == path + b"/missing"


def test_a_symlink_in_the_way_is_not_a_directory(tmp_path: Path, root: int, resolver: str) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "link").symlink_to("real")
    for flags in (os.O_RDONLY, os.O_PATH, os.O_RDONLY | os.O_DIRECTORY):
        with pytest.raises(NotADirectoryError):
            paths.open_below(root, b"link/file", flags)
    with pytest.raises(NotADirectoryError):
        paths.open_below(root, b"link", os.O_RDONLY | os.O_DIRECTORY)


def test_a_symlink_at_the_end_is_a_loop_unless_it_is_what_was_asked_for(
    tmp_path: Path, root: int, resolver: str
) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "link").symlink_to("nowhere")
    with pytest.raises(OSError, match="symbolic") as caught:
        paths.open_below(root, b"d/link", os.O_RDONLY)
    assert (caught.value.errno, caught.value.filename) == (errno.ELOOP, b"d/link")
    os.close(paths.open_below(root, b"d/link", os.O_PATH))


def test_a_symlink_in_the_way_is_told_from_one_at_the_end_though_they_come_and_go(
    tmp_path: Path, root: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_text("x")
    (tmp_path / "door").symlink_to("real")
    opening = syscalls.openat2

    def swap_after(dir_fd: int, path: bytes, flags: int, mode: int = 0) -> int:
        try:
            return opening(dir_fd, path, flags, mode)
        finally:
            if os.path.islink(tmp_path / "door"):
                os.unlink(tmp_path / "door")
                os.rename(tmp_path / "real", tmp_path / "door")

    monkeypatch.setattr(syscalls, "openat2", swap_after)
    os.close(paths.open_below(root, b"door/file", os.O_RDONLY))


def test_the_root_opens_as_itself(tmp_path: Path, root: int, resolver: str) -> None:
    fd = paths.open_below(root, b"", os.O_PATH)
    assert os.path.samestat(os.fstat(fd), os.fstat(root))
    os.close(fd)
