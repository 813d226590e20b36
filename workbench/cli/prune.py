"""`prune`: removing what nobody has used for long."""

from __future__ import annotations

import os
import re
import sys
import time
from typing import Annotated

import typer
from rich.filesize import decimal

from workbench.cli import output
from workbench.cli.failure import EXIT_ERROR, find_error
from workbench.cli.options import Context, JsonOption, QuietOption, WorkspaceOption, failing, run, workspace_path
from workbench.cli.report import error_fields
from workbench.cli.session_list import age, contents
from workbench.cli.travel import purge_paths
from workbench.errors import OptionsError, StateError, WorkbenchError
from workbench.protocol.reports import PathReport
from workbench.protocol.session_reports import PrunedCommitReport, PrunedSessionReport, PruneReport
from workbench.pruning import Old, Prunable, prunable, prune
from workbench.session_reports import session_report
from workbench.state import StateDirectory

_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def _seconds(text: str) -> int:
    found = re.fullmatch(r"(\d{1,9}) ?(s|min|m|h|d|w)", text.strip())
    if found is None:
        raise typer.BadParameter(f"{text!r} is no age: say 30d, 12h or 90min.")
    return int(found[1]) * _SECONDS[found[2]]


def command(
    older_than: Annotated[
        int | None,
        typer.Option("--older-than", metavar="AGE", parser=_seconds, help="Not used for so long: 30d, 12h, 90min."),
    ] = None,
    purge: Annotated[
        list[str] | None,
        typer.Option("--purge", metavar="PATH", help="Instead, take a path out of every checkpoint of the workspace."),
    ] = None,
    with_changes: Annotated[
        bool, typer.Option("--with-changes", metavar="", help="Also sessions that hold what was never landed.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar="", help="Only say what would be removed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Don't ask before changes are lost.")] = False,
    everywhere: Annotated[bool, typer.Option("--all", metavar="", help="In every workspace of yours.")] = False,
    workspace: WorkspaceOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Remove sessions that nobody has used for long, with their checkpoints; those that hold changes only when asked.

    Also what commits that landed before every checkpoint kept to be reverted, and what is left of workspaces whose directory
    is gone. A session whose sandbox runs is kept. The real workspace isn't touched.

    With --purge a secret leaves what every session can be rewound to; what overlays hold now stays.

    Ends with 0 when it's done, 1 where something couldn't be removed, 4 where changes would be lost and nobody said --yes.
    """
    if purge:
        if older_than is not None or with_changes or dry_run or everywhere:
            raise typer.BadParameter("--purge goes alone.")
        context = Context(workspace, json=json, quiet=quiet)
        run(purge_paths, context, purge, context=context)
        return
    if older_than is None:
        raise typer.BadParameter("Say --older-than AGE, or --purge PATH.")
    with failing(json):
        if everywhere and workspace is not None:
            raise OptionsError("--all and -w can't be said together.", hint="Leave one of them away.")
        state = StateDirectory.open()
        root = None if everywhere else os.path.realpath(workspace_path(workspace))
        before_ns = time.time_ns() - older_than * 1_000_000_000
        found = prunable(state, before_ns, root=root, with_changes=with_changes)
        if not dry_run:
            if found.held and not yes:
                _confirm(found.held, can_ask=sys.stdin.isatty() and not json)
            found = prune(state, found, before_ns)
    if json:
        output.write_json(_report(found, dry_run))
    elif not quiet:
        _say(found, dry_run)
    for error in found.failed if not json else ():
        output.error(_known(error), as_json=False)
    if found.failed:
        raise typer.Exit(EXIT_ERROR)


def _confirm(held: tuple[Old, ...], *, can_ask: bool) -> None:
    sessions = output.count(len(held), "session")
    if not can_ask:
        raise StateError(
            f"What {sessions} hold{'s' if len(held) == 1 else ''} and was never landed would be lost.",
            code="confirmation_required",
            hint="Look with --dry-run and `workbench diff --session NAME`, then say --yes.",
        )
    for old in held:
        output.say(f"{_named(old)} holds {contents(old.session)}, which would be lost")
    if not typer.confirm(f"Remove {sessions} with what they hold?", err=True):
        raise typer.Exit(EXIT_ERROR)


def _say(found: Prunable, dry_run: bool) -> None:
    would = "would remove" if dry_run else "removed"
    for old in found.sessions:
        lost = f", with {contents(old.session)} never landed" if old.session.holds else ""
        output.say(f"{would} {_named(old)}{lost}")
    for old in found.kept:
        output.say(f"kept {_named(old)}: {old.reason}")
    for commit in found.commits:
        output.say(f"{would} what commit {commit.commit_id} kept to be reverted ({decimal(commit.size)})")
    for workspace in found.emptied:
        output.say(f"{would} all that was left of {output.path(workspace.root)}, which is gone")
    sessions = output.count(len(found.sessions), "session")
    output.say(f"{'would free' if dry_run else 'freed'} {decimal(found.size)} of {sessions} and their commits")


def _named(old: Old) -> str:
    last = age(time.time_ns() - old.session.touched_ns) if old.session.touched_ns else "?"
    return f"session {old.session.name} of {output.path(old.workspace.root)} (last used {last} ago)"


def _report(found: Prunable, dry_run: bool) -> PruneReport:
    now = time.time_ns()

    def told(old: Old) -> PrunedSessionReport:
        plain = session_report(old.workspace, old.session, now)
        return PrunedSessionReport(**dict(plain), reason=old.reason or None)

    return PruneReport(
        dry_run=dry_run,
        removed=tuple(map(told, found.sessions)),
        kept=tuple(map(told, found.kept)),
        commits=tuple(
            PrunedCommitReport(
                commit_id=commit.commit_id, workspace=PathReport.of(commit.workspace.root), size=commit.size
            )
            for commit in found.commits
        ),
        workspaces=tuple(PathReport.of(workspace.root) for workspace in found.emptied),
        freed=found.size,
        failed=tuple(error_fields(_known(error)) for error in found.failed),
    )


def _known(error: WorkbenchError | OSError) -> WorkbenchError:
    found = find_error(error)
    assert found is not None
    return found
