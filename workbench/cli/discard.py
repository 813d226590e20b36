"""`discard`: drop what the overlay holds, all of it or some."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from workbench.cli import output
from workbench.cli.jobs import say_ended
from workbench.cli.look import print_left
from workbench.cli.options import (
    Context,
    ForceStopOption,
    JsonOption,
    QuietOption,
    SessionOption,
    WorkspaceOption,
    run,
    workspace_path,
)
from workbench.cli.places import inside
from workbench.cli.report import discard_report
from workbench.errors import OptionsError
from workbench.protocol.reports import LetGoReport
from workbench.review.changeset import Change, ChangeSet
from workbench.review.concerned import at, is_at
from workbench.review.decisions import Review, Verdict
from workbench.workspace import let_go_replaced


def discard(
    only: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Drop only what changed there, named as git takes names."),
    ] = None,
    rejected: Annotated[
        bool, typer.Option("--rejected", metavar="", help="Drop what `workbench review` rejected as a whole.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", metavar="", help="Don't ask; without a terminal nothing is asked.")
    ] = False,
    stop: ForceStopOption = False,
    replaced: Annotated[
        bool,
        typer.Option(
            "--replaced", metavar="", help="Let go of the overlay of a directory that was replaced at this path."
        ),
    ] = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Drop everything the overlay holds, or some of it; a checkpoint of it is kept, the real workspace isn't touched.

    What was renamed goes back as a whole, whichever of its names is given.
    """
    context = Context(workspace, session, json, quiet)
    if (replaced + rejected + bool(only)) > 1:
        raise typer.BadParameter("Paths, --rejected and --replaced can't be given together.")
    if replaced:
        run(_let_go, context, context=context)
    else:
        run(_discard, context, only or [], rejected, yes, stop, context=context)


async def _let_go(context: Context) -> None:
    number = await let_go_replaced(workspace_path(context.workspace))
    if context.json:
        output.write_json(LetGoReport(let_go=number))
    elif not context.quiet:
        output.say(f"let go of {output.count(number, 'workspace')} that stood here before")


async def _discard(context: Context, named: list[str], rejected: bool, yes: bool, stop: bool) -> None:
    async with context.open() as workspace:
        asks = not yes and sys.stdin.isatty()
        only = [inside(workspace.root, name) for name in named]
        if only or rejected or asks:
            review = await workspace.review()
            for path in only:
                _require_changed(review.changes, path)
            found = _rejected(review) if rejected else at(review.changes, only or [b""])
            if rejected:
                only = [change.path for change in found]
            if asks and found and not typer.confirm(f"Discard {output.count(len(found), 'change')}?", err=True):
                raise typer.Exit(1)
        discarded = await workspace.discard(only=only, force=stop)
    if context.json:
        output.write_json(discard_report(discarded))
    elif not context.quiet:
        say_ended(discarded.ended)
        what = output.count(discarded.changes, "change") if discarded.changes or not only else "what isn't listed"
        stays = f", {output.count(len(discarded.left.shown), 'change')} left" if only else ""
        output.say(f"discarded {what}{stays}; `{output.command('redo', context.session)}` takes that back")
        if not only:
            print_left(discarded.left.left)


def _rejected(review: Review) -> list[Change]:
    """What was rejected as a whole. Raises OptionsError where nothing was."""
    found = [change for change in review.changes.shown if review.verdict(change) is Verdict.REJECTED]
    if not found:
        raise OptionsError("No change was rejected as a whole.", hint="`workbench review` shows all, and decides.")
    return found


def _require_changed(changes: ChangeSet, path: bytes) -> None:
    if not at(changes, [path]) and not any(is_at(one.path, path) or is_at(path, one.path) for one in changes.left):
        raise OptionsError(
            f"Nothing changed at '{output.path(path)}'.", hint="`workbench diff --stat` names the changed paths."
        )
