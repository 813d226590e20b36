"""Globs, text search and trees over the merged view."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from workbench.errors import OptionsError
from workbench.vfs.local import LocalStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.search import Match, glob, grep, tree

FILES = {
    ".gitignore": b"*.log\n/build/\nnode_modules\n!keep.log\n",
    ".git/config": b"needle",
    "README.md": b"a needle here\n",
    "debug.log": b"needle\n",
    "keep.log": b"needle\n",
    "build/out.py": b"needle\n",
    "src/main.py": b"import os\nneedle = 1\n",
    "src/build/kept.py": b"pass\n",
    "src/.gitignore": b"generated.py\n!debug.log\n",
    "src/generated.py": b"needle\n",
    "src/debug.log": b"needle\n",
    "src/node_modules/x/index.js": b"needle\n",
    "docs/guide.md": b"Needle\n",
}


@pytest.fixture
def overlay(tmp_path: Path) -> Iterator[Overlay]:
    for name, content in FILES.items():
        path = tmp_path / "lower" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    with LocalStorage(os.fsencode(tmp_path / "lower")) as lower:
        yield Overlay(lower, MemoryUpper())


def found(overlay: Overlay, pattern: bytes, **options: object) -> list[bytes]:
    return [match.path for match in grep(overlay, pattern, **options).matches]  # type: ignore[arg-type]


def test_a_glob_leaves_out_what_the_ignore_rules_of_the_view_ignore(overlay: Overlay) -> None:
    assert glob(overlay, b"**/*.py").paths == (b"src/build/kept.py", b"src/main.py")
    assert glob(overlay, b"**/*.log").paths == (b"keep.log", b"src/debug.log")
    assert b"src/generated.py" in glob(overlay, b"**/*.py", ignored=True).paths
    assert glob(overlay, b"build/*.py").paths == (b"build/out.py",)
    assert not [path for path in glob(overlay, b"**").paths if path.startswith(b".git/")]


def test_rules_that_were_changed_in_the_overlay_hold(overlay: Overlay) -> None:
    overlay.write_bytes(b".gitignore", b"*.md\n")
    overlay.unlink(b"src/.gitignore")
    assert glob(overlay, b"**/*.md").paths == ()
    assert b"src/generated.py" in glob(overlay, b"**/*.py").paths
    overlay.unlink(b".gitignore")
    overlay.symlink(b"/etc/passwd", b".gitignore")
    assert glob(overlay, b"**/*.md").paths == (b"README.md", b"docs/guide.md")


def test_a_glob_says_when_there_is_more(overlay: Overlay) -> None:
    assert glob(overlay, b"**/*.py", limit=2).complete
    cut = glob(overlay, b"**/*.py", limit=1)
    assert (cut.paths, cut.complete) == ((b"src/build/kept.py",), False)


def test_text_is_found_line_by_line(overlay: Overlay) -> None:
    result = grep(overlay, b"needle")
    assert result.matches == (
        Match(b"README.md", 1, b"a needle here", False),
        Match(b"keep.log", 1, b"needle", False),
        Match(b"src/debug.log", 1, b"needle", False),
        Match(b"src/main.py", 2, b"needle = 1", False),
    )
    assert (result.complete, result.binary, result.unread) == (True, 0, ())
    assert found(overlay, b"^needle$") == [b"keep.log", b"src/debug.log"]
    assert found(overlay, b"NEEDLE", ignore_case=True, names=b"*.md") == [b"README.md", b"docs/guide.md"]
    assert found(overlay, b"needle", path=b"src") == [b"src/debug.log", b"src/main.py"]
    assert found(overlay, b"needle", path=b"debug.log") == [b"debug.log"]
    assert len(found(overlay, b"needle", ignored=True)) == 9
    overlay.unlink(b"README.md")
    overlay.write_bytes(b"new", b"x\r\nneedle\r\n")
    assert found(overlay, b"^needle$", path=b"new") == [b"new"]
    assert b"README.md" not in found(overlay, b"needle")


def test_a_literal_is_no_expression_and_a_wrong_expression_is_said(overlay: Overlay) -> None:
    overlay.write_bytes(b"code", b"f(x)\n")
    assert found(overlay, b"f(x)", literal=True) == [b"code"]
    with pytest.raises(OptionsError):
        grep(overlay, b"f(")
    with pytest.raises(FileNotFoundError):
        grep(overlay, b"x", b"gone")


def test_matches_and_lines_are_bounded(overlay: Overlay) -> None:
    overlay.write_bytes(b"many", b"hit\n" * 1000)
    result = grep(overlay, b"hit", b"many", limit=10)
    assert ([match.line for match in result.matches], result.complete) == (list(range(1, 11)), False)
    assert grep(overlay, b"hit", b"many", limit=1000).complete
    overlay.write_bytes(b"long", b"a" * 5000 + b"hit" + b"b" * 5000 + b"\nhit\n")
    first, second = grep(overlay, b"hit", b"long", columns=100).matches
    assert (first.line, len(first.text), first.cut) == (1, 100, True)
    assert b"hit" in first.text
    assert second == Match(b"long", 2, b"hit", False)


def test_a_line_without_an_end_is_searched_in_pieces(overlay: Overlay) -> None:
    overlay.write_bytes(b"one-line", b"a" * (3 << 20) + b"hit\nhit")
    assert [(match.line, match.cut) for match in grep(overlay, b"hit", b"one-line").matches] == [(1, True), (2, False)]


def test_binary_files_are_counted_and_what_is_no_file_is_passed_over(overlay: Overlay) -> None:
    overlay.write_bytes(b"image", b"\x89PNG\0needle\n")
    overlay.symlink(b"README.md", b"link")
    overlay.symlink(b"/etc", b"out")
    result = grep(overlay, b"needle")
    assert result.binary == 1
    assert not {b"image", b"link"} & {match.path for match in result.matches}


def test_scratch_is_not_searched(overlay: Overlay) -> None:
    overlay.makedirs(b"_notes")
    overlay.write_bytes(b"_notes/plan.md", b"needle\n")
    assert b"_notes/plan.md" not in found(overlay, b"needle")
    assert found(overlay, b"needle", path=b"_notes") == [b"_notes/plan.md"]


def test_a_tree_has_a_line_for_each_entry(overlay: Overlay) -> None:
    overlay.symlink(b"src", b"link")
    overlay.write_bytes(b"odd\nname", b"")
    result = tree(overlay)
    assert result.lines == (
        ".gitignore",
        "README.md",
        "docs/",
        "  guide.md",
        "keep.log",
        "link -> src",
        "odd\\nname",
        "src/",
        "  .gitignore",
        "  build/",
        "    kept.py",
        "  debug.log",
        "  main.py",
    )
    assert result.complete


def test_a_tree_counts_what_it_leaves_out(overlay: Overlay) -> None:
    assert tree(overlay, b"src", depth=1).lines == (".gitignore", "build/", "  ... 1 more", "debug.log", "main.py")
    assert tree(overlay, width=1).lines == (".gitignore", "... 4 more")
    cut = tree(overlay, limit=3)
    assert (cut.lines, cut.complete) == ((".gitignore", "README.md", "docs/"), False)
    size = len(tree(overlay).lines)
    assert (tree(overlay, limit=size).complete, tree(overlay, limit=size - 1).complete) == (True, False)
    with pytest.raises(NotADirectoryError):
        tree(overlay, b"README.md")


def test_a_very_deep_tree_is_searched(tmp_path: Path) -> None:
    (tmp_path / "lower").mkdir()
    with LocalStorage(os.fsencode(tmp_path / "lower")) as lower:
        overlay = Overlay(lower, MemoryUpper())
        deep = b"/".join([b"d"] * 1100)
        overlay.makedirs(deep)
        overlay.write_bytes(deep + b"/x", b"needle")
        assert [match.path for match in grep(overlay, b"needle").matches] == [deep + b"/x"]
        assert glob(overlay, b"**/x").paths == (deep + b"/x",)
        assert not tree(overlay, depth=2000).complete
