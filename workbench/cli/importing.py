"""`transcripts import`: going on in a session of one's own where another agent stopped."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from workbench.cli import output
from workbench.cli.foreign import AgentOption, SessionArgument, named_session, print_table, progress
from workbench.cli.options import JsonOption, QuietOption, WorkspaceOption, failing, workspace_path
from workbench.importing.parts import Part
from workbench.protocol.reports import ImportedEditReport, ImportReport, PathReport
from workbench.sessions import named
from workbench.warm import workspace_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.progress import Progress

    from workbench.importing.planning import Plan
    from workbench.importing.session import Imported
    from workbench.transcripts.importing import ImportedSession

_NAMED = 20
_LEFT_OUT = ("conflict", "outside", "unrecorded")


def import_session(
    session: SessionArgument,
    agent: AgentOption = None,
    name: Annotated[
        str, typer.Option("--session", metavar="NAME", help="The new session; by default named after the agent's.")
    ] = "",
    from_dir: Annotated[
        str | None,
        typer.Option(
            "--from-dir",
            metavar="DIR",
            help="Which recorded directory the workspace stands for; else the session's own.",
        ),
    ] = None,
    only: Annotated[Part | None, typer.Option("--only", help="Only the conversation, or only the files.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Only say what would become of it.")] = False,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make a session from another agent's: its conversation, and its edits as checkpoints to rewind to and review.

    The edits that the records hold go into the new session's overlay, reply by reply; those that don't fit what is there are
    left out and named. Nothing of the workspace changes. Without -w it's the repository that the agent worked in.
    """
    with failing(json):
        with progress() as bar:
            found = anyio.run(_loaded, session, agent, bar)
            root = os.path.realpath(_workspace(workspace, found, quiet=quiet or json))
            report = anyio.run(_report, found, root, name, from_dir, only, dry_run, bar)
        if json:
            output.write_json(report)
            return
    if not quiet:
        _say(report)


async def _loaded(named: str, agents: Sequence[str] | None, bar: Progress) -> ImportedSession:
    from workbench.transcripts import LocalPlatform
    from workbench.transcripts.failures import unread
    from workbench.transcripts.finding import find_session
    from workbench.transcripts.importing import ImportedSession, load_to_import

    platform = LocalPlatform()
    ref = await find_session(platform, named_session(named), agents=agents)
    task = bar.add_task("Reading", total=None)
    loaded = await load_to_import(platform, ref, told=lambda done, total: bar.update(task, completed=done, total=total))
    bar.remove_task(task)
    if isinstance(loaded, ImportedSession):
        return loaded
    raise unread(loaded)


def _workspace(named: str | None, found: ImportedSession, *, quiet: bool) -> bytes:
    """What was named, else the repository that the agent worked in, where that is here."""
    cwd = found.transcript.cwd
    if named is None and cwd is not None and os.path.isabs(cwd) and "\0" not in cwd and os.path.isdir(cwd):
        return workspace_of(os.fsencode(cwd))
    path = workspace_path(named)
    if named is None and not quiet:
        where = (
            f"the agent's directory {output.text(cwd)} isn't here" if cwd else "the agent's directory isn't recorded"
        )
        output.say(f"{where}: {output.path(os.path.realpath(path))} is taken for it")
    return path


async def _report(
    found: ImportedSession,
    root: bytes,
    name: str,
    from_dir: str | None,
    only: Part | None,
    dry_run: bool,
    bar: Progress,
) -> ImportReport:
    from workbench.importing.places import Places
    from workbench.importing.planning import plan
    from workbench.importing.session import free_name, import_session
    from workbench.vfs.local import LocalStorage

    transcript = found.transcript
    name = name or free_name([each for each, _ in named(root=root)], transcript.ref.agent, transcript.session_id)
    task = bar.add_task("Replaying", total=None)

    def told(done: int, total: int) -> None:
        bar.update(task, completed=done, total=total)

    if not dry_run:
        made = await import_session(
            root, found, session=name, from_dir=from_dir, only=only, told=told, report=output.say
        )
        return _of(found, root, name, made.plan, made=made)
    edits = found.edits if only is not Part.CONVERSATION else ()
    with LocalStorage(root) as storage:
        planned = plan(edits, Places.of(root, transcript.cwd, from_dir), storage, told=told)
    return _of(found, root, name, planned, messages=len(found.messages) if only is not Part.FILES else 0)


def _of(
    found: ImportedSession, root: bytes, name: str, planned: Plan, *, made: Imported | None = None, messages: int = 0
) -> ImportReport:
    return ImportReport(
        dry_run=made is None,
        session=name,
        workspace=PathReport.of(root),
        agent=found.transcript.ref.agent,
        source_id=found.transcript.session_id,
        messages=made.messages if made is not None else messages,
        checkpoints=made.checkpoints if made is not None else 0,
        commands=found.commands,
        counts={status.value: number for status, number in planned.counts.items()},
        edits=tuple(
            ImportedEditReport(
                path=edit.path,
                action=edit.action,
                status=edit.status.value,
                reason=edit.reason or None,
                message_id=edit.message_id,
            )
            for edit in planned.edits
        ),
    )


def _say(report: ImportReport) -> None:
    print_table(("EDITS", "NUMBER"), [(status, f"{number:,}") for status, number in report.counts.items()], right=(1,))
    left_out = [edit for edit in report.edits if edit.status in _LEFT_OUT]
    for edit in left_out[:_NAMED]:
        output.say(f"{edit.status}: {edit.action} {output.text(edit.path)}: {edit.reason}")
    if len(left_out) > _NAMED:
        output.say(f"and {len(left_out) - _NAMED:,} more, which --json names")
    if report.commands:
        output.say(f"{output.count(report.commands, 'shell call')}: what they changed isn't in the records")
    messages = output.count(report.messages, "message")
    if report.dry_run:
        output.say(f"session {report.session} would have {messages}")
        return
    made = f"session {report.session}: {messages}, {output.count(report.checkpoints, 'checkpoint')}"
    output.say(f"{made}; {output.command('log', report.session)}")
