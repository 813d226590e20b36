"""`review`, by flags: what of the changes is accepted, decided by a program or path by path."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated

import typer
from pydantic import ValidationError

from workbench.cli import output
from workbench.cli.look import print_left, print_risks
from workbench.cli.options import (
    Context,
    IncludeOption,
    JsonOption,
    QuietOption,
    SessionOption,
    WorkspaceOption,
    included,
    run,
)
from workbench.cli.places import inside
from workbench.cli.report import review_report
from workbench.errors import OptionsError
from workbench.protocol.reports import DecisionsInput
from workbench.review import diff as rendering
from workbench.review.changeset import Change, ChangeSet
from workbench.review.decisions import Review, Verdict
from workbench.review.order import Group, group_of, in_order
from workbench.workspace import Workspace

_MARKS = {Verdict.ACCEPTED: "[x]", Verdict.REJECTED: "[-]", Verdict.PART: "[~]", Verdict.UNDECIDED: "[ ]"}
_HEADINGS = {
    Group.RISKY: "Risky: would make a host run code or lead out of the workspace",
    Group.SOURCE: "Source",
    Group.TEST: "Tests",
    Group.LOCK: "Lock files",
    Group.GENERATED: "Generated",
}


def review(
    accept: Annotated[
        list[str] | None,
        typer.Option("--accept", metavar="PATH", help="Accept every change at and below this path; . is all of them."),
    ] = None,
    reject: Annotated[
        list[str] | None, typer.Option("--reject", metavar="PATH", help="Reject every change at and below this path.")
    ] = None,
    accept_hunk: Annotated[
        list[str] | None,
        typer.Option("--accept-hunk", metavar="ID", help="Accept one hunk, by its id or 8 digits of it."),
    ] = None,
    reject_hunk: Annotated[
        list[str] | None, typer.Option("--reject-hunk", metavar="ID", help="Reject one hunk.")
    ] = None,
    decisions: Annotated[
        str,
        typer.Option(
            "--decisions",
            metavar="FILE",
            help='Decisions as JSON, of the keys "accept", "reject", "accept_hunks", "reject_hunks" (lists); - is stdin.',
        ),
    ] = "",
    include: IncludeOption = None,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Decide which changes are accepted; `workbench commit --accepted` lands exactly those.

    Without flags it shows what was decided. Decisions stay until you change them, or the change they are about does.
    Those of a FILE come first, then paths to accept, paths to reject, hunks to accept, hunks to reject.

    Ends with 0; 2 for a path or a hunk that isn't among the changes; 4 where something accepted can't land without
    something rejected.
    """
    context = Context(workspace, session, json, quiet)
    run(
        _review,
        context,
        decisions,
        DecisionsInput(
            accept=tuple(accept or ()),
            reject=tuple(reject or ()),
            accept_hunks=tuple(accept_hunk or ()),
            reject_hunks=tuple(reject_hunk or ()),
        ),
        include,
        context=context,
    )


async def _review(context: Context, file: str, flags: DecisionsInput, include: list[str] | None) -> None:
    given = _read(file) if file else DecisionsInput()
    async with context.open() as workspace:
        begun = await workspace.review(included(workspace.root, include) if include else None)
        # In a file paths are relative to the root, on a command line to where one is.
        _decide(begun, given, [(name.encode(errors="surrogateescape")) for name in (*given.accept, *given.reject)])
        _decide(begun, flags, [inside(workspace.root, name) for name in (*flags.accept, *flags.reject)])
        accepted = workspace.reviewing.keep(begun)
        if context.json:
            output.write_json(review_report(workspace, begun, accepted))
        else:
            _print(context, workspace, begun, accepted)


def _read(file: str) -> DecisionsInput:
    try:
        if file == "-":
            content = sys.stdin.buffer.read()
        else:
            with open(file, "rb") as stream:
                content = stream.read()
        return DecisionsInput.model_validate_json(content)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise OptionsError(
            f"The decisions in {file} can't be read: {where or 'JSON'}: {first['msg']}.",
            hint='They look like {"accept": ["src"], "reject": [], "accept_hunks": ["0123456789abcdef"]}.',
        ) from error


def _decide(review: Review, given: DecisionsInput, named: list[bytes]) -> None:
    for number, path in enumerate(named):
        review.decide(path.rstrip(b"/") if path != b"." else b"", number < len(given.accept))
    for name in given.accept_hunks:
        review.decide_hunk(name, True)
    for name in given.reject_hunks:
        review.decide_hunk(name, False)


def _print(context: Context, workspace: Workspace, review: Review, accepted: ChangeSet) -> None:
    shown = in_order(review.changes.shown)
    print_risks(shown)
    for line in table(workspace, review, shown):
        print(line)
    if context.quiet:
        return
    print_left(review.changes.left)
    undecided = sum(review.verdict(change) is Verdict.UNDECIDED for change in shown)
    landing = sum(not change.implied for change in accepted.changes)
    if undecided:
        output.say(f"{output.count(undecided, 'change')} not decided: workbench review --accept PATH, --reject PATH")
    if landing:
        digest = accepted.digest[:16]
        risky = " --allow-risky" if accepted.risky else ""
        output.say(f"{output.count(landing, 'change')} accepted: workbench diff --accepted; digest {digest}")
        output.say(f"`workbench commit --accepted{risky}` lands exactly this, and the rest stays in the overlay")


def table(workspace: Workspace, review: Review, shown: list[Change]) -> Iterator[str]:
    """A line for each change with what was decided of it, under a heading for each group."""
    stats = rendering.stat(shown, workspace.lower, workspace.store)
    last = None
    for change, row in zip(shown, stats, strict=False):
        group = group_of(change)
        if group is not last:
            yield output.bold(f"{_HEADINGS[group]}")
            last = group
        mark = _MARKS[review.verdict(change)]
        executable = "  executable now" if change.new_executable else ""
        yield f"{mark}{output.visible(row.rstrip(bytes((10,))))}{executable}"
