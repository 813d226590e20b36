"""Patches in both forms, held against what git and diff make."""

from __future__ import annotations

import difflib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tools.called import Called
from workbench.errors import ToolError
from workbench.tools import hunks, patches
from workbench.tools.text import Text
from workbench.workspace import Workspace

pytestmark = pytest.mark.anyio

LINES = st.lists(st.sampled_from(["a", "b", "  c", "", "-- x", "++ y", "@@ -1 +1 @@", "\\ d", "*** End"]), max_size=12)


@given(old=LINES, new=LINES, ends=st.tuples(st.booleans(), st.booleans()), context=st.integers(0, 3))
def test_what_difflib_says_of_two_texts_leads_from_one_to_the_other(
    old: list[str], new: list[str], ends: tuple[bool, bool], context: int
) -> None:
    before, after = ("".join(f"{line}\n" for line in lines) for lines in (old, new))
    before, after = (text if end or not text else text[:-1] for text, end in zip((before, after), ends, strict=True))
    if before == after:
        return
    said = []
    pair = (before.splitlines(keepends=True), after.splitlines(keepends=True))
    for line in difflib.unified_diff(*pair, "a/f", "b/f", n=context):
        said.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    (file,) = patches.parse("".join(said))
    assert (file.old, file.new) == ("f", "f")
    assert hunks.apply(Text(before), file.hunks, "f") == after


@pytest.mark.parametrize("options", [[], ["-M"], ["-U0"], ["--binary", "--full-index"]])
async def test_what_git_says_of_two_trees_leads_from_one_to_the_other(
    root: Path, workspace: Workspace, call: Called, options: list[str]
) -> None:
    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "core.autocrlf=false"]
        done = subprocess.run(["git", *identity, *arguments], cwd=root, capture_output=True, check=True)
        return done.stdout.decode("utf-8", "surrogateescape")

    git("init", "-q")
    before = {
        "kept": "1\n2\n3\n" * 9,
        "gone": "x\n",
        "moved": "m\n" * 30,
        "\u00fc b": "sp ace\n",
        "tab\t": "t\n",
        "crlf": "a\r\nb\r\n",
    }
    for name, content in before.items():
        (root / name).write_bytes(content.encode())
    git("add", "-A")
    git("commit", "-qm", "first")
    after = {
        "kept": "1\n2\n3\n" * 4 + "new\n" + "1\n2\n3\n" * 5 + "end",
        "sub/moved": "m\n" * 29 + "n\n",
        "\u00fc b": "SP ACE\n",
        "tab\t": "t\nu",
        "crlf": "a\r\nB\r\n",
        "run": "#!/bin/sh\n",
        "empty": "",
    }
    for name in before:
        (root / name).unlink()
    (root / "sub").mkdir()
    for name, content in after.items():
        (root / name).write_bytes(content.encode())
    (root / "run").chmod(0o755)
    git("add", "-A")
    patch = git("diff", "--cached", *options)
    git("reset", "-q", "--hard")
    await call("apply_patch", patch=patch)
    wanted = {os.fsencode(name): content.encode() for name, content in after.items()}
    found = {path: workspace.view.read_bytes(path) for path in map(os.fsencode, after)}
    assert found == wanted
    for name in ("gone", "moved"):
        assert workspace.view.kind(os.fsencode(name)) is None
    assert workspace.view.stat(b"run").mode & 0o111


PLAIN = """*** Begin Patch
*** Update File: a.py
@@ class A
@@     def f(self):
-        return 1
+        return 2
*** Add File: sub/new
+one
+
+two
*** Delete File: gone
*** Update File: moved
*** Move to: sub/moved
@@
 first
-second
+2nd
*** End of File
*** End Patch
"""


async def test_the_plain_form_changes_adds_deletes_and_moves(root: Path, workspace: Workspace, call: Called) -> None:
    (root / "a.py").write_text("def f(self):\n        return 1\nclass A:\n    def f(self):\n        return 1\n")
    (root / "gone").touch()
    (root / "moved").write_text("first\nsecond\nfirst\nsecond\n")
    told = await call("apply_patch", patch="Here it is:\n" + PLAIN)
    assert told.splitlines() == ["Changed a.py.", "Added sub/new.", "Deleted gone.", "Moved moved to sub/moved."]
    assert tree_of(workspace) == {
        "a.py": "def f(self):\n        return 1\nclass A:\n    def f(self):\n        return 2\n",
        "sub/new": "one\n\ntwo\n",
        "sub/moved": "first\nsecond\nfirst\n2nd\n",
    }


def tree_of(workspace: Workspace) -> dict[str, str]:
    found = [path for path in workspace.view.find(b"") if workspace.view.stat(path).kind.value == "file"]
    return {path.decode(): workspace.view.read_bytes(path).decode() for path in found}


@pytest.mark.parametrize(
    "damage",
    [
        ("-second", "-third"),
        ("*** Delete File: gone", "*** Delete File: missing"),
        ("*** Add File: sub/new", "*** Add File: a.py"),
        ("*** Add File: sub/new", "*** Add File: ../new"),
        ("*** Delete File: gone", "*** Delete File: a.py"),
        ("*** End Patch", ""),
        ("+one", "one"),
        ("*** Delete File: gone", "*** Delete Everything"),
        (PLAIN, ""),
        (PLAIN, "*** Begin Patch\n*** End Patch"),
        (PLAIN, "--- a/gone\n+++ b/gone\n@@ -1 +1 @@\n same\n"),
        (PLAIN, "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n"),
        (PLAIN, "diff --git a/b b/b\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZ\n"),
    ],
)
async def test_a_patch_of_which_a_part_does_not_fit_changes_nothing(
    root: Path, workspace: Workspace, call: Called, damage: tuple[str, str]
) -> None:
    (root / "a.py").write_text("class A:\n    def f(self):\n        return 1\n")
    (root / "gone").write_text("same\n")
    (root / "moved").write_text("first\nsecond\n")
    before = tree_of(workspace)
    assert damage[0] in PLAIN
    await call.refused("apply_patch", patch=PLAIN.replace(*damage))
    assert tree_of(workspace) == before


def test_wrong_line_numbers_and_white_space_are_put_up_with() -> None:
    text = Text("a\n    b  \nc\na\n    b\nd\n")
    (file,) = patches.parse("--- a/f\n+++ b/f\n@@ -70,3 +70,3 @@\n a\n-b\n+B\n d\n")
    assert hunks.apply(text, file.hunks, "f") == "a\n    b  \nc\na\nB\nd\n"
    (nearest,) = patches.parse("--- a/f\n+++ b/f\n@@ -3,2 +3,2 @@\n a\n-    b\n+B\n")
    assert hunks.apply(text, nearest.hunks, "f") == "a\n    b  \nc\na\nB\nd\n"
    with pytest.raises(ToolError, match="f has these lines nowhere"):
        hunks.apply(text, patches.parse("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-z\n+y\n")[0].hunks, "f")


@given(st.text(alphabet=st.sampled_from('ab+-@ \n\\*/"dfi0123,'), max_size=200))
def test_no_text_is_more_than_an_error(text: str) -> None:
    for patch in (text, f"*** Begin Patch\n{text}", f"--- a/f\n+++ b/f\n{text}", f"diff --git {text}"):
        try:
            files = patches.parse(patch)
        except ToolError:
            continue
        for file in files:
            try:
                hunks.apply(Text("a\nb\n"), file.hunks, "f")
            except ToolError:
                pass
