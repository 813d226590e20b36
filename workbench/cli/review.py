"""`review`, by flags: what of the changes is accepted, decided by a program or path by path."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from anyio import get_cancelled_exc_class
from pydantic import ValidationError

from workbench.cli import output
from workbench.cli.content import Look, SideBySideOption, WordDiffOption
from workbench.cli.dialogue import Dialogue
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
from workbench.cli.report import comment_report, review_report
from workbench.cli.tables import print_table
from workbench.errors import OptionsError
from workbench.protocol.reports import DecisionsInput
from workbench.review.changeset import ChangeSet, Included
from workbench.review.comments import as_text
from workbench.review.decisions import Review, Verdict
from workbench.review.order import in_order
from workbench.workspace import Workspace


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
    take_comments: Annotated[
        bool,
        typer.Option(
            "--take-comments", metavar="", help="Print what you had to say to the agent, and forget it: for its prompt."
        ),
    ] = False,
    word_diff: WordDiffOption = False,
    side_by_side: SideBySideOption = False,
    include: IncludeOption = None,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Decide which changes are accepted; `workbench commit --accepted` lands exactly those.

    On a terminal it asks, file by file and hunk by hunk. With flags, or elsewhere, it asks nothing and shows what was
    decided. Decisions stay until you change them, or the change they are about does: q ends a review that the next one
    goes on with. Those of a FILE come first, then paths to accept, paths to reject, hunks to accept, hunks to reject.

    Ends with 0; 2 for a path or a hunk that isn't among the changes; 4 where something accepted can't land without
    something rejected.
    """
    context = Context(workspace, session, json, quiet)
    look = Look.of(words=word_diff, columns=side_by_side)
    flags = DecisionsInput(
        accept=tuple(accept or ()),
        reject=tuple(reject or ()),
        accept_hunks=tuple(accept_hunk or ()),
        reject_hunks=tuple(reject_hunk or ()),
    )
    if take_comments:
        run(_take_comments, context, context=context)
    elif flags == DecisionsInput() and not (decisions or json or quiet) and sys.stdin.isatty() and sys.stdout.isatty():
        run(_ask, context, include, look, context=context)
    else:
        run(_review, context, decisions, flags, include, context=context)


async def _ask(context: Context, include: list[str] | None, look: Look) -> None:
    async with context.open() as workspace:
        await ask(workspace, included(workspace.root, include) if include else None, look)


async def ask(workspace: Workspace, wanted: Included | None, look: Look) -> None:
    """Go through the changes with somebody at a terminal. Raises as `Workspace.review` and `Dialogue.run`."""
    begun = await workspace.review(wanted)
    if not begun.changes.shown:
        output.say("nothing to review")
        print_left(begun.changes.left)
        return
    conflicts = await workspace.conflicts(begun.changes)
    print_left(begun.changes.left)
    try:
        ended, accepted = await Dialogue(workspace, begun, conflicts, look).run()
    except get_cancelled_exc_class():
        output.say(f"what you decided is kept: `{output.command('review', workspace.session)}` goes on from there")
        raise
    print()
    print_table(workspace, ended, in_order(ended.changes.shown), fold=True)
    _say_what_next(workspace, ended, accepted, on_terminal=True)


async def _take_comments(context: Context) -> None:
    async with context.open() as workspace:
        taken = workspace.reviewing.comments.take()
        if context.json:
            output.write_json_list(map(comment_report, taken))
        else:
            output.write_patch(as_text(taken))


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
    print_table(workspace, review, shown)
    if context.quiet:
        return
    print_left(review.changes.left)
    _say_what_next(workspace, review, accepted)


def _say_what_next(workspace: Workspace, review: Review, accepted: ChangeSet, *, on_terminal: bool = False) -> None:
    shown = review.changes.shown
    undecided = sum(review.verdict(change) is Verdict.UNDECIDED for change in shown)
    landing = sum(not change.implied for change in accepted.changes)
    if undecided:
        again = output.command("review" if on_terminal else "review --accept PATH --reject PATH", workspace.session)
        output.say(f"{output.count(undecided, 'change')} not decided: {again}")
    if rejected := sum(review.verdict(change) is Verdict.REJECTED for change in shown):
        output.say(f"{output.count(rejected, 'change')} rejected")
    if comments := len(workspace.reviewing.comments.all()):
        run, take = (output.command(words, workspace.session) for words in ("run", "review --take-comments"))
        number = output.count(comments, "comment")
        output.say(f"{number} for the agent: the next `{run}` tells it; for another agent, `{take}` prints them")
    if landing:
        risky = " --allow-risky" if accepted.risky else ""
        # At a terminal a commit takes what its last review accepted.
        how = output.command(f"commit{'' if on_terminal else ' --accepted'}{risky}", workspace.session)
        diff, digest = output.command("diff --accepted", workspace.session), accepted.digest[:16]
        partly = sum(review.verdict(change) is Verdict.PART for change in shown)
        part = f", {partly} of {'it' if landing == 1 else 'them'} in part [~]" if partly else ""
        output.say(f"{output.count(landing, 'change')} accepted{part}: {diff}; digest {digest}")
        rest = ", and the rest stays in the overlay" if len(shown) > landing else ""
        output.say(f"`{how}` lands exactly this{rest}")
