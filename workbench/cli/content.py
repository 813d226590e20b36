"""How the content of changes is shown to people: as a patch, word by word, or side by side."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Annotated

import typer

from workbench.cli import output
from workbench.review import diff as rendering
from workbench.review import words
from workbench.review.changeset import Change
from workbench.review.lines import Hunk
from workbench.vfs.storage import Kind
from workbench.workspace import Workspace

_MARKED = re.compile(r"(\[-.*?-\]|\{\+.*?\+\})")

WordDiffOption = Annotated[
    bool, typer.Option("--word-diff", metavar="", help="Show what changed within lines, as [-old-]{+new+}.")
]
SideBySideOption = Annotated[
    bool, typer.Option("--side-by-side", metavar="", help="Show old and new beside each other, in colour.")
]


class Look(Enum):
    """How hunks are shown."""

    PATCH = "patch"
    WORDS = "words"
    COLUMNS = "columns"

    @classmethod
    def of(cls, *, words: bool, columns: bool) -> Look:
        """What two options say together. Raises typer.BadParameter where that's both."""
        if words and columns:
            raise typer.BadParameter("--word-diff and --side-by-side each go alone.")
        return cls.WORDS if words else cls.COLUMNS if columns else cls.PATCH


def show(workspace: Workspace, changes: Iterable[Change], look: Look) -> None:
    """Whole changes on stdout. Raises as `diff.unified`."""
    for change in changes:
        if look is Look.COLUMNS:
            show_head(workspace, change)
            show_hunks(change, rendering.hunks_of(change, workspace.lower, workspace.store), look)
        else:
            # Nobody reads base85; what lands is under the digest all the same.
            binary = look is Look.PATCH and not sys.stdout.isatty()
            rendered = words.render if look is Look.WORDS else Hunk.render
            _write(_patch(workspace, change, binary=binary, rendered=rendered), look)


def show_hunks(change: Change, hunks: Iterable[Hunk], look: Look) -> None:
    """Hunks of a change on stdout."""
    if look is Look.COLUMNS:
        from workbench.cli.columns import print_columns  # only here: Pygments takes its time

        print_columns(change.path, hunks)
        return
    for hunk in hunks:
        _write(words.render(hunk) if look is Look.WORDS else hunk.render(), look)


def show_head(workspace: Workspace, change: Change) -> None:
    """What a patch of a change says before its hunks: names, modes, that it's binary. Raises as `diff.unified`."""
    _write(_patch(workspace, change, binary=False, rendered=lambda _: ()), Look.PATCH)


def not_in_a_patch(change: Change) -> str:
    """What git's format has no words for: directories by themselves, and their modes."""
    old, new = change.old, change.new
    if new is not None and new.kind is Kind.DIR:
        if old is not None and old.kind is Kind.DIR:
            return f"directory mode {old.mode:o} to {new.mode:o}"
        return f"new directory, mode {new.mode:o}"
    return "removed directory" if new is None and old is not None and old.kind is Kind.DIR else ""


def _patch(
    workspace: Workspace, change: Change, *, binary: bool, rendered: Callable[[Hunk], Iterable[bytes]]
) -> Iterable[bytes]:
    return rendering.unified((change,), workspace.lower, workspace.store, binary=binary, rendered=rendered)


def _write(lines: Iterable[bytes], look: Look) -> None:
    if look is Look.PATCH or not (sys.stdout.isatty() and output.colours()):
        output.write_patch(lines)
        return
    for chunk in lines:
        for line in chunk.splitlines():
            print(_with_marks_coloured(output.visible(line)))


def _with_marks_coloured(line: str) -> str:
    if line.startswith("@@"):
        return output.coloured(line)
    return _MARKED.sub(lambda found: output.red(found[0]) if found[0].startswith("[") else output.green(found[0]), line)
