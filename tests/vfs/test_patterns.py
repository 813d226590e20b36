from __future__ import annotations

import fnmatch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.errors import OptionsError
from workbench.vfs import patterns
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay


@pytest.fixture
def overlay() -> Overlay:
    lower = MemoryUpper()
    below = Overlay(MemoryUpper(), lower, scratch=b"")
    for path in (b"a.py", b"src/b.py", b"src/deep/er/c.py", b"src/.hidden/d.py", b"src/_old/e.py", b"x/src/f.py"):
        below.makedirs(path.rpartition(b"/")[0], exist_ok=True)
        below.create(path)
    below.symlink(b"src", b"link")
    return Overlay(lower, MemoryUpper(), hide_hidden_paths=True)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (b"*.py", [b"a.py"]),
        (b"**/*.py", None),
        (b"**", None),
        (b"**/**/c.py", [b"src/deep/er/c.py"]),
        (b"src/**/c.py", [b"src/deep/er/c.py"]),
        (b"**/src/*.py", [b"src/b.py", b"x/src/f.py"]),
        (b"**/er", [b"src/deep/er"]),
        (b"src/.*/d.py", [b"src/.hidden/d.py"]),
        (b"src/*/d.py", [b"src/.hidden/d.py"]),
        (b"link/*.py", []),
        (b"li*", [b"link"]),
        (b"link", [b"link"]),
        (b"a.py/*", []),
        (b"missing/**", []),
        (b"**/deep/**", [b"src/deep/er", b"src/deep/er/c.py"]),
        (b"", []),
    ],
)
def test_patterns_find_what_they_say(overlay: Overlay, pattern: bytes, expected: list[bytes] | None) -> None:
    if expected is None:
        everything = list(overlay.find())
        expected = sorted(path for path in everything if pattern == b"**" or path.endswith(b".py"))
    assert overlay.glob(pattern) == expected


def test_a_character_of_several_bytes_is_one_and_a_stray_byte_too() -> None:
    overlay = Overlay(MemoryUpper(), MemoryUpper())
    for name in ("é".encode(), b"\xff", b"e", b"\xff\xfe", b"[x]", b"a\nb"):
        overlay.create(name)
    assert overlay.glob(b"?") == [b"e", "é".encode(), b"\xff"]
    assert overlay.glob("[é]".encode()) == ["é".encode()]
    assert overlay.glob(b"[[]x]") == [b"[x]"]
    assert overlay.glob(b"a?b") == [b"a\nb"]
    assert overlay.glob(b"\xff*") == [b"\xff", b"\xff\xfe"]


_names = st.lists(st.sampled_from([b"a", b".", b"*", b"\n", "é".encode(), b"\xc3", b"\xa9", b"\xff"]), max_size=6).map(
    b"".join
)


@given(_names, _names)
def test_a_pattern_fits_the_same_names_whether_it_is_compared_by_bytes_or_by_characters(
    pattern: bytes, name: bytes
) -> None:
    def text(value: bytes) -> str:
        return value.decode("utf-8", "surrogateescape")

    assert patterns.matcher(pattern)(name) == fnmatch.fnmatchcase(text(name), text(pattern))


def test_hidden_paths_are_found_only_where_the_pattern_names_them(overlay: Overlay) -> None:
    overlay.makedirs(b"src/_new/sub")
    overlay.create(b"src/_new/sub/g.py")
    overlay.create(b"src/_new.py")
    assert overlay.glob(b"src/_*") == [b"src/_old"]
    assert overlay.glob(b"**/g.py") == []
    assert [path for path in overlay.find(b"src") if b"_new" in path] == []
    assert [here for here, _, _ in overlay.walk(b"src") if b"_new" in here] == []
    assert overlay.glob(b"src/_new/**/*.py") == [b"src/_new/sub/g.py"]
    assert overlay.glob(b"src/_new.py") == [b"src/_new.py"]
    # Also where it's named in a directory that was listed for the component before.
    assert overlay.glob(b"**/_new.py") == [b"src/_new.py"]
    assert overlay.glob(b"**/_new/sub/*") == [b"src/_new/sub/g.py"]
    overlay.unlink(b"src/_old/e.py")
    assert overlay.glob(b"**/e.py") == []
    assert list(overlay.find(b"src/_new")) == [b"src/_new/sub", b"src/_new/sub/g.py"]


@pytest.mark.parametrize("pattern", [b"/etc/*", b"../*", b"a//*", b"*/", b"*\0"])
def test_a_pattern_that_leaves_the_root_is_refused(overlay: Overlay, pattern: bytes) -> None:
    with pytest.raises(OptionsError):
        overlay.glob(pattern)
