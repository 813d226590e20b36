"""`attempts`: what `run --attempts` left, each in a session of its own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from workbench.cli import output
from workbench.cli.failure import EXIT_ERROR, find_error
from workbench.cli.jobs import say_ended
from workbench.cli.options import Context, ForceStopOption, JsonOption, QuietOption, SessionOption, WorkspaceOption, run
from workbench.errors import StateError

if TYPE_CHECKING:
    from workbench.attempts import Attempts

attempts = typer.Typer(no_args_is_help=False)

NumberArgument = Annotated[int, typer.Argument(metavar="N", help="The attempt, as `workbench attempts` numbers it.")]


@attempts.callback(invoke_without_command=True)
def default(
    context: typer.Context,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
) -> None:
    """List the attempts of `run --attempts`: how each ended, and how big its change is.

    A star marks the one that the session was given. Each is a session of its own: `workbench diff --session NAME` shows what it
    did. `workbench attempts take N` offers another one instead, `workbench attempts drop` removes them all.
    """
    if context.invoked_subcommand is None:
        called = Context(workspace, session, json)
        run(_show, called, context=called)
        return
    # Said before a command's name they mean the same as after it.
    assert isinstance(context.command, typer.core.TyperGroup)
    said = {"workspace": workspace, "session": session, "json": json}
    context.default_map = dict.fromkeys(context.command.commands, said)


@attempts.command()
def take(
    number: NumberArgument,
    stop: ForceStopOption = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Give the session what an attempt left, files and conversation, instead of what it was given before.

    Where the session was worked on since, it's refused. What is there is kept first: `workbench redo` takes the files back.
    """
    called = Context(workspace, session, json, quiet)
    run(_take, called, number, stop, context=called)


@attempts.command()
def drop(
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Don't ask.")] = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove the sessions of all attempts, with what they hold; what the session was given stays."""
    called = Context(workspace, session, json, quiet)
    if run(_drop, called, yes, context=called):
        raise typer.Exit(EXIT_ERROR)


async def _show(context: Context) -> None:
    from workbench.attempts import Attempts
    from workbench.cli.attempts_report import attempt_report, print_table
    from workbench.protocol.attempts import AttemptsGroupReport, AttemptsReport

    async with context.open() as workspace:
        found = Attempts(workspace)
        groups, running = found.groups(), found.are_running()
    if context.json:
        told = tuple(
            AttemptsGroupReport(
                task=group.task,
                model=group.model,
                message_id=group.message_id,
                attempts=tuple(attempt_report(group, each, running=running) for each in group.attempts),
            )
            for group in groups
        )
        output.write_json(AttemptsReport(session=context.session, groups=told))
    elif not groups:
        run = output.command("run --attempts N TASK", context.session)
        output.say(f"there are no attempts: {run} makes some")
    else:
        print_table(groups, running=running, file=sys.stdout)


async def _take(context: Context, number: int, stop: bool) -> None:
    from workbench.agent.workspace_session import WorkspaceSession
    from workbench.attempts import Attempts
    from workbench.cli.report import rewind_report

    async with context.open() as workspace:
        found = Attempts(workspace)
        # First: a number that nobody has mustn't make a conversation.
        group, _ = found.find(number)
        with found.alone():
            async with WorkspaceSession.open_to_travel(workspace) as session:
                travelled = await found.take(session, number, force=stop)
    if context.json:
        output.write_json(rewind_report(travelled, 0))
    elif not context.quiet:
        say_ended(travelled.ended)
        output.say(f"attempt {number} is in the overlay: {output.command('review', context.session)}")
        output.say(f"{output.command(f'rewind {group.message_id}', context.session)} takes it back")


async def _drop(context: Context, yes: bool) -> bool:
    """Whether something couldn't be removed."""
    from workbench.attempts import Attempts
    from workbench.cli.report import error_fields
    from workbench.protocol.attempts import DroppedReport

    async with context.open() as workspace:
        found = Attempts(workspace)
        with found.alone():
            if not yes:
                _confirm(found, can_ask=sys.stdin.isatty() and not context.json)
            dropped = await found.drop()
    if context.json:
        failed = tuple(error_fields(error) for error in filter(None, map(find_error, dropped.failed)))
        output.write_json(DroppedReport(removed=tuple(dropped.removed), failed=failed))
        return bool(failed)
    for error in filter(None, map(find_error, dropped.failed)):
        output.error(error, as_json=False)
    if not context.quiet:
        output.say(f"removed {output.count(len(dropped.removed), 'session')}")
    return bool(dropped.failed)


def _confirm(found: Attempts, *, can_ask: bool) -> None:
    held = [attempt for group in found.groups() for attempt in group.attempts]
    if not held:
        return
    what = output.count(len(held), "attempt")
    if not can_ask:
        raise StateError(
            f"What {what} did would be lost.",
            code="confirmation_required",
            hint="Look with `workbench attempts` and `workbench diff --session NAME`, then say --yes.",
        )
    if not typer.confirm(f"Remove {what} with what they did?", err=True):
        raise typer.Exit(EXIT_ERROR)
