"""The table that a review opens on: every change with what was decided of it, most pressing first."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby

from workbench.cli import output
from workbench.review import diff as rendering
from workbench.review.changeset import Change
from workbench.review.decisions import Review, Verdict
from workbench.review.order import Group, group_of, is_folded
from workbench.workspace import Workspace

_MARKS = {Verdict.ACCEPTED: "[x]", Verdict.REJECTED: "[-]", Verdict.PART: "[~]", Verdict.UNDECIDED: "[ ]"}
_HEADINGS = {
    Group.RISKY: "Risky: would make a host run code or lead out of the workspace",
    Group.SOURCE: "Source",
    Group.TEST: "Tests",
    Group.LOCK: "Lock files",
    Group.GENERATED: "Generated",
}
_NAMED = 4
"""Names of folded changes in one line."""


def table(
    workspace: Workspace, review: Review, shown: Sequence[Change], *, fold: bool = False, numbered: bool = False
) -> Iterator[str]:
    """A line for each change with what was decided of it, under a heading for each group.

    With `fold` lock files and generated ones are a line for each verdict. With `numbered` each has its number, from 1 on.
    Raises as `diff.stat`.
    """
    open_ones = [change for change in shown if not (fold and is_folded(change))]
    rows = dict(zip(open_ones, rendering.stat(open_ones, workspace.lower, workspace.store), strict=False))
    numbers = {change.path: number for number, change in enumerate(shown, 1)} if numbered else {}
    width = len(str(len(shown)))
    for group, members in groupby(shown, group_of):
        changes = list(members)
        if changes[0] in rows:
            yield output.bold(_HEADINGS[group])
            for change in changes:
                number = f"{numbers[change.path]:>{width}} " if numbered else ""
                yield number + _line(review, change, rows[change])
        else:
            yield output.bold(f"{_HEADINGS[group]}, folded")
            yield from _folded(review, changes, numbers, width)


def print_table(
    workspace: Workspace, review: Review, shown: Sequence[Change], *, fold: bool = False, numbered: bool = False
) -> None:
    """`table` on stdout."""
    for line in table(workspace, review, shown, fold=fold, numbered=numbered):
        print(line)


def row(workspace: Workspace, review: Review, change: Change) -> str:
    """The line of one change. Raises as `diff.stat`."""
    return _line(review, change, next(rendering.stat((change,), workspace.lower, workspace.store)))


def _line(review: Review, change: Change, stat: bytes) -> str:
    executable = "  executable now" if change.new_executable else ""
    return f"{_MARKS[review.verdict(change)]}{output.visible(stat.rstrip(bytes((10,))))}{executable}"


def _folded(review: Review, changes: Iterable[Change], numbers: Mapping[bytes, int], width: int) -> Iterator[str]:
    by_verdict: dict[Verdict, list[Change]] = {}
    for change in changes:
        by_verdict.setdefault(review.verdict(change), []).append(change)
    for verdict, found in by_verdict.items():
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        names = [output.path(change.path) for change in found[:_NAMED]]
        if numbers:
            # The first number stands where those of the other lines do.
            names[1:] = [f"{numbers[change.path]} {name}" for change, name in zip(found[1:], names[1:], strict=False)]
            yield f"{numbers[found[0].path]:>{width}} {_MARKS[verdict]} {', '.join(names)}{more}"
        else:
            yield f"{_MARKS[verdict]} {', '.join(names)}{more}"
