"""Hunks side by side, in the colours of their language: what was there on the left, what comes on the right."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable

from rich.console import Console
from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from workbench.cli import output, terminal
from workbench.review.lines import Hunk
from workbench.review.words import Run, changed_words, runs
from workbench.vfs import paths

_THEME = "ansi_dark"
_TAB = 8
_GOES, _COMES = "red", "green"
_WORD = "bold reverse"

_Row = tuple[Text | None, Text | None]


def print_columns(path: bytes, hunks: Iterable[Hunk]) -> None:
    """Hunks of the file at a path on stdout; in colour on a terminal, unless NO_COLOR says no."""
    coloured = output.colours()
    console = Console(
        file=sys.stdout,
        width=terminal.size(sys.stdout.fileno())[1] if sys.stdout.isatty() else None,
        no_color=not coloured,
        force_terminal=coloured,
        highlight=False,
        soft_wrap=False,
    )
    lexer = Syntax.guess_lexer(paths.display(paths.name(path)))
    for hunk in hunks:
        console.print(Text(output.visible(b"".join(hunk.head()).rstrip(b"\n")), style="cyan"))
        console.print(_table(hunk, lexer))


def _table(hunk: Hunk, lexer: str) -> Table:
    table = Table.grid(padding=(0, 1), expand=True)
    for _ in range(2):
        table.add_column(justify="right", style="dim", no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(ratio=1, overflow="fold")
    old_at, new_at = hunk.old_start, hunk.new_start
    for run in runs(hunk):
        for left, right in _rows(run, lexer):
            table.add_row(
                *_cells(left, old_at, Text("-", _GOES) if run.is_changed else ""),
                *_cells(right, new_at, Text("+", _COMES) if run.is_changed else ""),
            )
            old_at += left is not None
            new_at += right is not None
    return table


def _cells(line: Text | None, number: int, mark: Text | str) -> tuple[str, Text | str, Text | str]:
    return ("", "", "") if line is None else (str(number), mark, line)


def _rows(run: Run, lexer: str) -> Iterable[_Row]:
    olds, news = list(map(_shown, run.old)), list(map(_shown, run.new))
    left, right = _highlighted(olds, lexer), _highlighted(news, lexer)
    if run.is_changed:
        for number, (old, new) in enumerate(zip(olds, news, strict=False)):
            for old_from, old_to, new_from, new_to in _changed(old, new):
                left[number].stylize(f"{_GOES} {_WORD}", old_from, old_to)
                right[number].stylize(f"{_COMES} {_WORD}", new_from, new_to)
    return itertools.zip_longest(left, right)


def _shown(line: bytes) -> str:
    return output.visible(line.rstrip(b"\n")).expandtabs(_TAB)


def _highlighted(lines: list[str], lexer: str) -> list[Text]:
    found = Syntax("", lexer, theme=_THEME, background_color="default").highlight("\n".join(lines))
    found.no_wrap, found.justify = False, "left"
    split = list(found.split("\n", allow_blank=True))
    # A lexer may end its text with a newline of its own, or leave empty lines out.
    return split[: len(lines)] if [line.plain for line in split[: len(lines)]] == lines else list(map(Text, lines))


def _changed(old: str, new: str) -> Iterable[tuple[int, int, int, int]]:
    """As `changed_words`, in characters."""
    olds, news = old.encode(), new.encode()
    for old_from, old_to, new_from, new_to in changed_words(olds, news):
        yield (
            len(olds[:old_from].decode(errors="replace")),
            len(olds[:old_to].decode(errors="replace")),
            len(news[:new_from].decode(errors="replace")),
            len(news[:new_to].decode(errors="replace")),
        )
