"""`sessions`: every session of this user, whatever became of its directory, and what is done to one by its name."""

from __future__ import annotations

import os
import sys
import time
from functools import partial
from typing import Annotated

import anyio
import typer

from workbench.cli import output
from workbench.cli.agent_run import ModelOption
from workbench.cli.chat import Wishes, converse
from workbench.cli.failure import EXIT_ERROR, find_error
from workbench.cli.formats import Format, FormatOption
from workbench.cli.options import (
    BackendOption,
    Context,
    JsonOption,
    QuietOption,
    WorkspaceOption,
    failing,
    workspace_path,
)
from workbench.cli.session_list import contents, show_all, titled
from workbench.cli.session_names import NameArgument, find
from workbench.cli.session_show import document, print_session, report
from workbench.deletion import collect, require_removable
from workbench.deletion import delete as remove
from workbench.errors import OptionsError, StateError, WorkbenchError
from workbench.mounting import SandboxOptions
from workbench.protocol.reports import PathReport
from workbench.protocol.session_reports import DeletedReport, RenamedReport
from workbench.session_reports import conversation, detail_of, session_report
from workbench.sessions import Session, WorkspaceSessions, survey
from workbench.state import StateDirectory

sessions = typer.Typer()


@sessions.callback(invoke_without_command=True)
def default(context: typer.Context, workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """List all sessions; look at one, go on with it, export its conversation, rename or delete it.

    A session is an overlay and, where an agent worked on it, the conversation. By itself this lists those of every workspace
    of this user; with -w those of one.
    """
    if context.invoked_subcommand is None:
        show_list(workspace=workspace, json=json)
        return
    # Said before a command's name they mean the same as after it.
    assert isinstance(context.command, typer.core.TyperGroup)
    context.default_map = {name: {"workspace": workspace, "json": json} for name in context.command.commands}


@sessions.command("list")
def show_list(workspace: WorkspaceOption = None, json: JsonOption = False) -> None:
    """List all sessions: where they work, how old and how big they are, what they hold, what runs, what was talked about.

    Those of every workspace of this user; with -w those of one. Nothing is started, and no workspace is searched through.
    """
    with failing(json):
        root = None if workspace is None else os.path.realpath(workspace_path(workspace))
        found = survey(StateDirectory.open(), root=root)
    show_all(found, json=json)


@sessions.command()
def show(
    name: NameArgument,
    messages: Annotated[
        bool, typer.Option("--messages", metavar="", help="Instead, print the whole conversation.")
    ] = False,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
) -> None:
    """Show one session: where it works, what it holds, what was said last in its conversation, and what to do next."""
    with failing(json):
        if messages and json:
            raise OptionsError(
                "--messages and --json can't be said together.", hint="`sessions export --format json` prints all."
            )
        found, session = find(name, workspace)
        if messages:
            print(anyio.run(document, session, Format.MARKDOWN))
        elif json:
            output.write_json(report(found, session))
        else:
            print_session(found, session)


@sessions.command()
def resume(
    name: NameArgument, model: ModelOption = "", backend: BackendOption = "auto", workspace: WorkspaceOption = None
) -> None:
    """Go on with a session: `workbench chat` in it, at the terminal, wherever its workspace is."""
    with failing(False):
        found, session = find(name, workspace)
    options = SandboxOptions(backend=backend)
    converse(Context(os.fsdecode(found.root), session.name), options, Wishes(model=model))


@sessions.command()
def export(
    name: NameArgument,
    form: FormatOption = Format.MARKDOWN,
    file: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Where to, a new file; else to stdout.")
    ] = None,
    workspace: WorkspaceOption = None,
) -> None:
    """Export the conversation of a session as a document."""
    with failing(False):
        _, session = find(name, workspace)
        if form is Format.JSON and file is None:
            output.write_json(detail_of(session))
            return
        text = anyio.run(document, session, form)
        if file is None:
            sys.stdout.write(text)
            return
        with open(file, "x", encoding="utf-8") as written:
            written.write(text)
    output.say(f"{output.path(os.fsencode(file))} is written")


@sessions.command()
def rename(
    name: NameArgument,
    title: Annotated[str, typer.Argument(metavar="TITLE", help="What its conversation is called in the list.")],
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Give the conversation of a session another title; the session keeps its NAME, by which its files are kept."""
    from workbench.agent.titles import rename_stored  # what agents need takes a while to import

    with failing(json):
        found, session = find(name, workspace)
        detail_of(session)
        title = anyio.run(rename_stored, found.directory, session.name, " ".join(title.split()))
    if json:
        output.write_json(RenamedReport(session=session.name, workspace=PathReport.of(found.root), title=title))
    elif not quiet:
        output.say(f"session {session.name} is titled {title}")


@sessions.command()
def delete(
    name: NameArgument,
    with_changes: Annotated[
        bool, typer.Option("--with-changes", metavar="", help="Also if it holds what was never landed.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Don't ask.")] = False,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove a session: its overlay, its checkpoints and its conversation. The real workspace isn't touched.

    What was never landed is only removed with --with-changes. Its sandbox ends, unless something runs in it: then nothing is
    removed. What it landed stays, and can be reverted.
    """
    with failing(json):
        found, session = find(name, workspace)
        require_removable(found, session, with_changes=with_changes)
        if not yes:
            _confirm(found, session, can_ask=sys.stdin.isatty() and not json)
        removed = DeletedReport(**dict(session_report(found, session, time.time_ns())))
        anyio.run(partial(remove, StateDirectory.open(), found, session, with_changes=with_changes))
        _collect(found, quiet=json or quiet)
    if json:
        output.write_json(removed)
    elif not quiet:
        output.say(f"removed session {session.name} of {output.path(found.root)}")


def _collect(found: WorkspaceSessions, *, quiet: bool) -> None:
    """The session has gone: what goes wrong here is said, and no more than that."""
    try:
        collect(found)
    except (WorkbenchError, OSError) as raised:
        error = find_error(raised)
        if error is not None and not quiet:
            output.say("the contents of its checkpoints stay until the store is put together again")
            output.error(error, as_json=False)


def _confirm(found: WorkspaceSessions, session: Session, *, can_ask: bool) -> None:
    what = f"Session {session.name} of {output.path(found.root)}"
    if not can_ask:
        raise StateError(
            f"{what} would be removed, and nothing brings it back.",
            code="confirmation_required",
            hint=f"Look with `workbench sessions show {session.name}`, then say --yes.",
        )
    talk = conversation(session)
    held = [
        f"{contents(session)} that {'was' if session.changes == 1 else 'were'} never landed" if session.holds else "",
        output.count(session.checkpoints, "checkpoint") if session.checkpoints else "",
        f"the conversation {titled(talk)}" if talk is not None else "",
    ]
    output.say(f"{what} holds {', '.join(filter(None, held)) or 'nothing'}")
    if not typer.confirm("Remove it for good?", err=True):
        raise typer.Exit(EXIT_ERROR)
