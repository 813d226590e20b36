"""Reading and changing files as a model does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.tools.called import Called
from workbench.tools.standard import workspace_tools
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio


def merged(workspace: Workspace, path: str) -> bytes:
    return workspace.view.read_bytes(os.fsencode(path))


async def test_lines_are_read_with_their_numbers_and_in_parts(root: Path, call: Called) -> None:
    (root / "a").write_text("one\ntwo\n\nfour")
    assert await call("read_file", path="a") == "1\tone\n2\ttwo\n3\t\n4\tfour"
    assert await call("read_file", path="./a", first_line=2, lines=2) == "2\ttwo\n3\t\n[lines 2 to 3 of 4]"
    assert "only 4 lines" in await call("read_file", path=str(root / "a"), first_line=5)


async def test_a_result_is_bounded_however_long_the_file_or_its_lines_are(root: Path, call: Called) -> None:
    (root / "many").write_text("line\n" * 100_000)
    (root / "long").write_text("x" * 1_000_000)
    (root / "huge").write_bytes(b"")
    os.truncate(root / "huge", 1 << 40)
    many, long = await call("read_file", path="many", lines=100_000), await call("read_file", path="long")
    assert len(many) < 50_000
    assert "of 100000]" in many
    assert len(long) < 50_000
    assert "more characters" in long
    assert "grep" in await call.refused("read_file", path="huge")


async def test_an_image_is_told_from_other_binary_files(root: Path, call: Called) -> None:
    (root / "i.png").write_bytes(b"\x89PNG\r\n\x1a\n\0\0")
    (root / "b").write_bytes(b"\0\1\2")
    (root / "large.jpg").write_bytes(b"\xff\xd8\xff".ljust(4 << 20))
    assert "too large" in await call.refused("read_file", path="large.jpg")
    image = await call.result("read_file", path="i.png")
    assert image.images[0].media_type == "image/png"
    assert "image/png" in image.content
    assert "binary" in await call.refused("read_file", path="b")


async def test_a_file_is_written_with_its_directories_and_nothing_of_it_is_in_the_real_workspace(
    root: Path, workspace: Workspace, call: Called
) -> None:
    assert await call("write_file", path="new/deep/file", content="one\n") == "Wrote new/deep/file: 1 line."
    assert merged(workspace, "new/deep/file") == b"one\n"
    assert list(root.iterdir()) == []
    assert "Replaced" in await call("write_file", path="new/deep/file", content="")
    assert merged(workspace, "new/deep/file") == b""


@pytest.mark.parametrize("name", ["..", "../a", "/etc/passwd", "a/../../b", "nul\0", "\ud800"])
async def test_a_path_that_leads_out_is_refused_with_what_to_do(name: str, call: Called) -> None:
    for tool, more in (("read_file", {}), ("write_file", {"content": ""}), ("list_files", {})):
        assert "isn't a path in the workspace" in await call.refused(tool, path=name, **more)


async def test_a_symlink_is_followed_inside_the_workspace_and_never_out_of_it(
    root: Path, workspace: Workspace, call: Called, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("secret")
    (root / "real").write_text("real\n")
    for name, target in (
        ("in", "real"),
        ("out", "../outside"),
        ("absolute", str(tmp_path / "outside")),
        ("round", "round"),
    ):
        os.symlink(target, root / name)
    assert await call("read_file", path="in") == "1\treal"
    await call("write_file", path="in", content="changed\n")
    assert merged(workspace, "real") == b"changed\n"
    assert workspace.view.readlink(b"in") == b"real"
    for name in ("out", "absolute", "round"):
        await call.refused("read_file", path=name)
        await call.refused("write_file", path=name, content="x")
    assert (tmp_path / "outside").read_text() == "secret"


async def test_a_name_that_is_shown_escaped_is_understood_as_shown(
    root: Path, workspace: Workspace, call: Called
) -> None:
    for name in (b"new\nline", b"\xff\xfe", b"back\\slash"):
        (Path(os.fsdecode(os.fsencode(root) + b"/" + name))).write_text("content\n")
    for shown in (await call("list_files")).splitlines():
        assert await call("read_file", path=shown) == "1\tcontent"


async def test_a_passage_is_replaced_where_it_is_exactly_once(root: Path, workspace: Workspace, call: Called) -> None:
    (root / "a").write_text("one\ntwo\ntwo\n")
    assert "2 times, at lines 2, 3" in await call.refused("edit_file", path="a", old_text="two", new_text="2")
    assert "isn't in the file" in await call.refused("edit_file", path="a", old_text="three", new_text="3")
    await call.refused("edit_file", path="a", old_text="", new_text="3")
    await call.refused("edit_file", path="a", old_text="one", new_text="one")
    await call.refused("edit_file", path="missing", old_text="one", new_text="1")
    assert "2 times" in await call("edit_file", path="a", old_text="two", new_text="2", replace_all=True)
    assert not (await call("edit_file", path="a", old_text="one\n2", new_text="1\\1")).endswith("gave.")
    assert merged(workspace, "a") == b"1\\1\n2\n"


@pytest.mark.parametrize(
    ("before", "old", "new", "after"),
    [
        ("def f():\n    a\n    b\n", "def f():\n  a\n  b", "def f():\n  c", "def f():\n  c\n"),
        ("if x:\n        a\n        b\nend\n", "    a\n    b", "    c\n    d", "if x:\n        c\n        d\nend\n"),
        ("  a\n  b\n", "      a\n      b\n", "      a\n        c\n", "  a\n    c\n"),
        ("a  \nb\t\n", "a\nb", "c", "c\n"),
    ],
)
async def test_a_passage_with_other_white_space_is_found_and_that_is_said(
    root: Path, workspace: Workspace, call: Called, before: str, old: str, new: str, after: str
) -> None:
    (root / "a").write_text(before)
    assert "other white space" in await call("edit_file", path="a", old_text=old, new_text=new)
    assert merged(workspace, "a").decode() == after


@pytest.mark.parametrize(
    ("content", "old", "new", "expected"),
    [
        (b"one\r\ntwo\r\nthree\r\n", "one\ntwo", "1\n2", b"1\r\n2\r\nthree\r\n"),
        (b"one\r\ntwo\nthree\r\n", "two", "2\n2", b"one\r\n2\r\n2\nthree\r\n"),
        (b"one\ntwo\r\n", "one\ntwo", "1\n2", b"1\n2\r\n"),
        (b"\xef\xbb\xbfone\n", "one", "\u00fc", b"\xef\xbb\xbf\xc3\xbc\n"),
        (b"\xe4\nrest\xff\n", "rest", "\u00fc", b"\xe4\n\xfc\xff\n"),
        ("\ufeffone\r\n".encode("utf-16-le"), "one", "\u20ac", "\ufeff\u20ac\r\n".encode("utf-16-le")),
    ],
)
async def test_encoding_and_line_endings_stay(
    root: Path, workspace: Workspace, call: Called, content: bytes, old: str, new: str, expected: bytes
) -> None:
    (root / "a").write_bytes(content)
    await call("read_file", path="a")
    await call("edit_file", path="a", old_text=old, new_text=new)
    assert merged(workspace, "a") == expected


async def test_a_character_that_the_encoding_lacks_is_refused(root: Path, workspace: Workspace, call: Called) -> None:
    (root / "a").write_bytes(b"\xe4\n")
    assert "latin-1" in await call.refused("edit_file", path="a", old_text="\u00e4", new_text="\u20ac")
    assert merged(workspace, "a") == b"\xe4\n"


async def test_a_file_that_changed_since_it_was_read_is_changed_only_after_its_difference_was_shown(
    root: Path, workspace: Workspace, call: Called
) -> None:
    (root / "a").write_text("one\ntwo\n")
    await call("read_file", path="a")
    workspace.view.write_bytes(b"a", b"one\nperson's\n")
    patch = "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n-one\n+1\n two\n"
    refused = await call.refused("edit_file", path="a", old_text="one", new_text="1")
    assert "-two" in refused
    assert "+person's" in refused
    workspace.view.write_bytes(b"a", b"again\n")
    assert "+again" in await call.refused("write_file", path="a", content="mine\n")
    workspace.view.write_bytes(b"a", b"one\ntwo\n")
    assert "-again" in await call.refused("apply_patch", patch=patch)
    assert merged(workspace, "a") == b"one\ntwo\n"
    await call("apply_patch", patch=patch)
    await call("edit_file", path="a", old_text="1", new_text="one")
    assert merged(workspace, "a") == b"one\ntwo\n"


async def test_two_sessions_tools_know_what_each_has_read(root: Path, workspace: Workspace, call: Called) -> None:
    other = Called(workspace_tools(workspace))
    (root / "a").write_text("one\n")
    await call("read_file", path="a")
    await other("write_file", path="a", content="other\n")
    await other("write_file", path="a", content="other again\n")
    await call.refused("write_file", path="a", content="mine\n")


async def test_arguments_are_checked_and_said_by_name(call: Called) -> None:
    assert "first_line" in await call.refused("read_file", path="a", first_line=0)
    assert "nothing: " in await call.refused("read_file", path="a", nothing=1)
    assert await call.refused("read_file") == "path: Field required"


async def test_a_directory_is_listed_without_what_is_ignored(root: Path, call: Called) -> None:
    (root / ".gitignore").write_text("built\n")
    for name in ("built", "src/deep/deeper"):
        (root / name).mkdir(parents=True)
    (root / "built" / "x").touch()
    (root / "src" / "a").touch()
    assert await call("list_files") == ".gitignore\nsrc/\n  a\n  deep/\n    ... 1 more\n[... more was left out]"
    assert "built/" in await call("list_files", ignored=True)
    assert await call("list_files", path="src/deep/deeper") == "The directory is empty."
    assert "No such file" in await call.refused("list_files", path="missing")


async def test_what_a_model_is_offered_is_the_same_at_every_start(workspace: Workspace) -> None:
    first, second = ([tool.schema for tool in workspace_tools(workspace)] for _ in range(2))
    assert first == second
    for schema in first:
        assert schema.description
        assert schema.parameters["type"] == "object"
        assert schema.parameters["additionalProperties"] is False
        assert all(
            "description" in field and "title" not in field for field in schema.parameters["properties"].values()
        )
