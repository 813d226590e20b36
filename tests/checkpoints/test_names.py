from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.checkpoints import names

DISGUISES = [
    b".git",
    b".GIT",
    b".gIt",
    b"git~1",
    b"GIT~1",
    b".git.",
    b".git ",
    b".git. . ",
    b".git::$INDEX_ALLOCATION",
    b".git:stream",
    ".g\u200cit".encode(),
    "\u200c.git".encode(),
    ".git\ufeff".encode(),
    b".git\\x",
    b".gitmodules",
    b".GitModules ",
    b"gitmod~1",
    b"gi7eba~1",
    b"gi7eb~12",
    b".gitattributes",
    b"GITATT~2",
    b"gi7d29~1",
]

components = st.binary(min_size=1, max_size=255).filter(
    lambda name: b"/" not in name and b"\0" not in name and name not in (b".", b"..")
)
nasty = st.lists(
    st.sampled_from(
        [b".git", b"GIT", b"~1", b"%", b"%2E", b"\\", b"\n", b"\xff", b".", b" ", b":", "\u200c".encode(), b"a"]
    ),
    min_size=1,
    max_size=6,
).map(b"".join)


@given(components | nasty.filter(lambda name: name not in (b".", b"..")), st.booleans())
def test_every_name_comes_back(name: bytes, symlink: bool) -> None:
    escaped = names.escape(name, symlink=symlink)
    assert names.unescape(escaped) == name
    escaped.decode("utf-8")
    assert not any(byte < 0x20 or byte in b"\x7f\\/" for byte in escaped)


@given(components, components)
def test_no_two_names_become_one(one: bytes, other: bytes) -> None:
    assert (names.escape(one) == names.escape(other, symlink=True)) == (one == other)


@pytest.mark.parametrize("name", DISGUISES)
def test_no_disguise_of_git_survives(name: bytes) -> None:
    escaped = names.escape(name)
    assert escaped.startswith(b"%")
    assert names.unescape(escaped) == name


@pytest.mark.parametrize(
    "name", [b"a.py", b"100 days", b".gitignore", b"report..final.md", b"[...slug]", "größe".encode(), b"-x"]
)
def test_an_ordinary_name_stands_as_it_is(name: bytes) -> None:
    assert names.escape(name) == name


def test_symlinks_have_more_forbidden_names() -> None:
    assert names.escape(b".gitignore", symlink=True) == b"%2Egitignore"


@pytest.mark.parametrize("name", [b"", b".", b"..", b"a/b", b"a\0b"])
def test_what_is_no_name_is_refused(name: bytes) -> None:
    with pytest.raises(ValueError, match="no name"):
        names.escape(name)


@pytest.mark.parametrize("name", [b"%", b"%4", b"%zz", b"%2e", b"a%"])
def test_what_was_never_escaped_is_refused(name: bytes) -> None:
    with pytest.raises(ValueError, match="hex digits"):
        names.unescape(name)


@given(st.binary(min_size=1, max_size=60))
def test_a_reference_holds_letters_digits_and_escapes_only(name: bytes) -> None:
    reference = names.escape_reference(name)
    assert reference.isascii()
    assert all(character.isalnum() or character in "-_%" for character in reference)
    assert names.unescape(reference.encode()) == name
