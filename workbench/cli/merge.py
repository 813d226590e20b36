"""`merge`: what a person changed meanwhile comes into the overlay."""

from __future__ import annotations

from typing import Annotated

import typer

from workbench.cli import output
from workbench.cli.failure import EXIT_CONFLICT
from workbench.cli.jobs import say_ended
from workbench.cli.options import (
    Context,
    ForceStopOption,
    JsonOption,
    QuietOption,
    SessionOption,
    WorkspaceOption,
    run,
)
from workbench.cli.places import inside
from workbench.cli.report import merge_report


def merge(
    ours: Annotated[
        list[str] | None,
        typer.Option("--ours", metavar="PATH", help="At and below this path the overlay's version is meant."),
    ] = None,
    theirs: Annotated[
        list[str] | None,
        typer.Option("--theirs", metavar="PATH", help="At and below this path the real workspace's version is meant."),
    ] = None,
    stop: ForceStopOption = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Bring what you changed in the real workspace meanwhile into the overlay, so that both can land.

    Text files that conflict are merged line by line; where both sides changed the same lines, conflict markers are left in
    the overlay, and nothing lands before they're gone. What can't be merged is listed: say --ours or --theirs. The real
    workspace isn't touched. Only conflicting paths are: --ours . means all of them.

    Ends with 0 when nothing conflicts any more, 3 where something is left to resolve.
    """
    context = Context(workspace, session, json, quiet)
    if run(_merge, context, ours or [], theirs or [], stop, context=context):
        raise typer.Exit(EXIT_CONFLICT)


async def _merge(context: Context, ours: list[str], theirs: list[str], stop: bool) -> bool:
    """Whether something is left to resolve."""
    async with context.open() as workspace:
        named = [[inside(workspace.root, name) for name in names] for names in (ours, theirs)]
        done, ended = await workspace.merge(ours=named[0], theirs=named[1], force=stop)
    if context.json:
        output.write_json(merge_report(done, ended))
    else:
        for path in done.marked:
            output.say(
                f"CONFLICT in {output.path(path)}: both sides changed the same lines; edit what's between the markers"
            )
        for path, why in done.unmerged.items():
            output.say(f"CONFLICT {output.path(path)} ({why}): say --ours or --theirs, or put it back as it was")
        if not context.quiet:
            say_ended(ended)
            if not (done.merged or done.taken or done.unmerged):
                output.say("there is nothing to merge")
                return False
            clean = len(done.merged) - len(done.marked)
            output.say(f"{output.count(clean, 'file')} merged, {len(done.taken)} taken as they are on one side")
            review = output.command("review", workspace.session)
            if done.marked:
                shell = output.command("shell", workspace.session)
                output.say(f"the markers are in the overlay: edit them with o in `{review}`, or inside `{shell}`")
            elif not done.unmerged:
                output.say(f"look at it again: {review}")
    return bool(done.marked or done.unmerged)
