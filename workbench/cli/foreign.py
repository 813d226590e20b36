"""What the commands over other agents' sessions share: which one is meant, tables and bars."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from workbench.cli import output

if TYPE_CHECKING:
    from rich.progress import Progress

_NARROWEST = 16

AgentOption = Annotated[
    list[str] | None, typer.Option("--agent", metavar="NAME", help="Only this agent's sessions; may be repeated.")
]
SessionArgument = Annotated[str, typer.Argument(metavar="SESSION", help="A session's id, its beginning, or its file.")]


def named_session(name: str) -> str:
    """A session's name, as it was given; where that is a symlink to a file, what it leads to, which may be read then."""
    return os.path.realpath(name) if "/" in name and os.path.islink(name) else name


def progress() -> Progress:
    """Shown while somebody waits at a terminal.

    What is printed meanwhile goes above it where that is the same terminal, and where it always went else. JSON is written
    once it has ended.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True, no_color=not output.colours(sys.stderr))
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    return Progress(
        *columns,
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),
        disable=not console.is_terminal,
    )


def print_table(
    head: Sequence[str], rows: Sequence[Sequence[str]], right: Iterable[int] = (), giving_way: Sequence[int] = ()
) -> None:
    """Rows under a head, in columns on a terminal, else with tabs between them; columns of numbers are to the `right`.

    Where a terminal is too narrow the columns that are `giving_way` are cut, and no others.
    """
    if not sys.stdout.isatty():
        for row in (head, *rows):
            print("\t".join(row))
        return
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(no_color=not output.colours())
    widths = [max(map(cell_len, column)) for column in zip(head, *rows, strict=True)]
    too_wide = sum(widths) + len(head) - 1 - console.width
    for _ in range(too_wide if giving_way else 0):
        widest = max(giving_way, key=lambda number: widths[number])
        widths[widest] = max(_NARROWEST, widths[widest] - 1)
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    numbers = set(right)
    for number, name in enumerate(head):
        justify: Literal["left", "right"] = "right" if number in numbers else "left"
        table.add_column(name, justify=justify, no_wrap=True, width=widths[number], overflow="ellipsis")
    for row in rows:
        table.add_row(*map(Text, row))
    # What doesn't fit however narrow they are runs over the edge: nothing that was asked for is left out.
    console.print(table, width=max(console.width, sum(widths) + len(head) - 1), crop=False)
