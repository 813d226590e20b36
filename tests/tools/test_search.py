"""Finding files and lines as a model does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tools.called import Called
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio


async def test_paths_are_found_in_the_merged_view(root: Path, workspace: Workspace, call: Called) -> None:
    (root / "src").mkdir()
    (root / "src" / "a.py").touch()
    workspace.view.write_bytes(b"src/b.py", b"")
    assert await call("glob", pattern="**/*.py") == "src/a.py\nsrc/b.py"
    assert await call("glob", pattern="*.c") == "Nothing fits the pattern."
    for number in range(600):
        (root / f"many{number}").touch()
    assert (await call("glob", pattern="many*")).endswith("[only the first 500 are shown]")


async def test_lines_are_found_with_their_file_and_number(root: Path, workspace: Workspace, call: Called) -> None:
    (root / "a.py").write_text("one\nNeedle (1)\n")
    (root / "b.txt").write_bytes(b"needle (1)\xff\n")
    (root / "c").write_bytes(b"\0needle")
    workspace.view.write_bytes(b"new", b"needle (2)\n")
    assert (
        await call("grep", pattern=r"needle \(1") == "b.txt:1:needle (1)\ufffd\n[binary files that weren't searched: 1]"
    )
    found = await call("grep", pattern="needle (", literal=True, ignore_case=True, names="*[ew.py]")
    assert found == "a.py:2:Needle (1)\nnew:1:needle (2)"
    assert await call("grep", pattern="needle", path="a.py") == "No line matches."
    assert "regular expression" in await call.refused("grep", pattern="(")
    (root / "many").write_text("many\n" * 1000)
    assert (await call("grep", pattern="^many$")).count("many:") == 200
