"""What a call is shown to make of files is what it makes of them, and showing it changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.tools.called import Called
from workbench.errors import ToolError, WorkbenchError
from workbench.protocol.messages import ToolCall
from workbench.tools.previews import preview
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio

MOVE = """\
*** Begin Patch
*** Update File: text
*** Move to: there/text
@@
-one
+ONE
*** Delete File: other
*** Add File: new
+made
*** End Patch
"""


def made(name: str, arguments: dict[str, Any] | None) -> ToolCall:
    return ToolCall(id="c", name=name, arguments=arguments, raw_arguments="")


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("write_file", {"path": "a/new", "content": "x\ny"}),
        ("write_file", {"path": "text", "content": ""}),
        ("write_file", {"path": "wide", "content": "ß\n"}),
        ("edit_file", {"path": "text", "old_text": "one", "new_text": "1"}),
        ("edit_file", {"path": "text", "old_text": "o", "new_text": "0", "replace_all": True}),
        ("edit_file", {"path": "crlf", "old_text": "a\nb", "new_text": "c\nd"}),
        ("apply_patch", {"patch": MOVE}),
    ],
)
async def test_a_preview_is_what_the_call_comes_to(
    workspace: Workspace, root: Path, call: Called, name: str, arguments: dict[str, Any]
) -> None:
    (root / "text").write_text("one\ntwo\n")
    (root / "other").write_text("other\n")
    (root / "crlf").write_bytes(b"a\r\nb\r\n")
    (root / "wide").write_bytes("é\n".encode("utf-16"))
    outcomes = await preview(workspace, made(name, arguments))
    assert outcomes
    assert (await workspace.changes()).changes == ()
    shown = b"".join(b"".join(outcome.patch()) for outcome in outcomes).decode()
    assert shown.count("--- ") == shown.count("+++ ") == len(outcomes)
    told = await call(name, **arguments)
    assert told == "\n".join(outcome.told for outcome in outcomes)
    for outcome in outcomes:
        assert (await workspace.files.kind(outcome.path) is None) == (outcome.after is None)
        if outcome.after is not None:
            assert await workspace.files.read(outcome.path) == outcome.after
        if outcome.source is not None:
            assert await workspace.files.kind(outcome.source) is None


async def test_a_diff_shows_text_whatever_its_encoding_and_says_what_is_binary(
    workspace: Workspace, root: Path
) -> None:
    (root / "wide").write_bytes("é\n".encode("utf-16"))
    (root / "binary").write_bytes(b"\0\1")
    (wide,) = await preview(workspace, made("write_file", {"path": "wide", "content": "ß\n"})) or ()
    assert "-é\n+ß\n" in b"".join(wide.patch()).decode()
    (binary,) = await preview(workspace, made("write_file", {"path": "binary", "content": "text\n"})) or ()
    assert b"Binary: 2 bytes before, 5 after" in b"".join(binary.patch())


async def test_a_call_that_would_fail_says_why_and_any_other_tool_has_no_preview(
    workspace: Workspace, root: Path
) -> None:
    (root / "text").write_text("one\n")
    assert await preview(workspace, made("shell", {"command": "rm text"})) is None
    with pytest.raises(ToolError, match="isn't in the file"):
        await preview(workspace, made("edit_file", {"path": "text", "old_text": "two", "new_text": "1"}))
    for arguments in ({"path": "text"}, {"path": "text", "content": 1}, None):
        with pytest.raises(ToolError, match="content"):
            await preview(workspace, made("write_file", arguments))
    with pytest.raises(WorkbenchError, match="isn't a path in the workspace"):
        await preview(workspace, made("write_file", {"path": "../out", "content": ""}))
    with pytest.raises(OSError, match="text"):
        await preview(workspace, made("write_file", {"path": "text/below", "content": ""}))
