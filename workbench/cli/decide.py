"""`commit` and `discard`."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from workbench.cli import output
from workbench.cli.look import print_left, print_stat, require_accepted
from workbench.cli.options import (
    Context,
    ForceStopOption,
    IncludeOption,
    JsonOption,
    QuietOption,
    SessionOption,
    WorkspaceOption,
    included,
    run,
    terminal_name,
    workspace_path,
)
from workbench.cli.report import commit_report, discard_report
from workbench.errors import CommitError
from workbench.workspace import Workspace, let_go_replaced


def commit(
    digest: Annotated[
        str, typer.Option("--digest", metavar="DIGEST", help="Land exactly what was shown under this digest.")
    ] = "",
    allow_risky: Annotated[
        bool,
        typer.Option(
            "--allow-risky", metavar="", help="Also land paths that make a host run code or lead out of the workspace."
        ),
    ] = False,
    accepted: Annotated[
        bool, typer.Option("--accepted", metavar="", help="Land what `workbench review` accepted; the rest stays.")
    ] = False,
    include: IncludeOption = None,
    yes: Annotated[
        bool, typer.Option("--yes", metavar="", help="Answer questions with yes; it never stands for a digest.")
    ] = False,
    stop: ForceStopOption = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Land what was shown in the real workspace: all of it or nothing.

    Lands what --digest names, or with --accepted what `workbench review` accepted, else what the last full `workbench
    diff` on this terminal showed. Without any it shows a summary and asks; where it can't ask it refuses. What changed
    since stays in the overlay.

    Ends with 0 when it has landed, 3 where the real workspace changed meanwhile in a path of it, 4 where a rule refuses it
    (no digest, one that was never shown, a risky path); then nothing was applied.
    """
    context = Context(workspace, session, json, quiet)
    if sum(map(bool, (digest, accepted, include))) > 1:
        raise typer.BadParameter("--digest, --accepted and --include each go alone.")
    run(_commit, context, digest, accepted, include, allow_risky, yes, stop, context=context)


async def _commit(
    context: Context,
    digest: str,
    accepted: bool,
    include: list[str] | None,
    allow_risky: bool,
    yes: bool,
    stop: bool,
) -> None:
    async with context.open() as workspace:
        if accepted:
            digest = require_accepted(workspace).digest
        digest = digest or await _shown_digest(workspace, include, yes=yes)
        if not digest:
            if context.json:
                output.write_json(commit_report(None))
            else:
                output.say("nothing to commit")
            return
        landed = await workspace.commit(digest, allow_risky=allow_risky, force=stop)
    if context.json:
        output.write_json(commit_report(landed))
        return
    if context.quiet:
        return
    changes = sum(not change.implied for change in landed.committed.changes)
    if not landed.committed.changes:
        output.say("nothing to commit")
        return
    if not changes and not landed.already:
        output.say("nothing to commit")
    else:
        words = "had landed before" if landed.already else "landed"
        output.say(f"{output.count(changes, 'change')} {words} as commit {landed.committed.commit_id}")
    if landed.committed.weak:
        output.say(
            "this filesystem can't exchange two names, so an edit at the very moment of the commit could be missed"
        )
    if landed.ended_processes:
        output.say(f"ended {output.count(landed.ended_processes, 'process')} in the sandbox")
    if landed.left.shown:
        stay = "stays" if len(landed.left.shown) == 1 else "stay"
        what = "other change" if accepted else "later change"
        output.say(f"{output.count(len(landed.left.shown), what)} {stay} in the overlay: workbench diff")
    print_left(landed.left.left)


async def _shown_digest(workspace: Workspace, include: list[str] | None, *, yes: bool) -> str:
    terminal = terminal_name()
    last = workspace.shown.last(terminal) if terminal and not include else None
    if last is not None:
        return last.digest
    asked = included(workspace.root, include)
    changes = await workspace.changes(included=asked)
    if not changes.changes:
        return ""
    if yes or not sys.stdin.isatty():
        raise CommitError(
            "Nobody has been shown what would land.",
            code="digest_required",
            hint="Look with `workbench diff`, then name the digest: workbench commit --digest "
            "$(workbench diff --digest-only)",
        )
    print_stat(workspace, changes)
    if not typer.confirm(f"Commit {output.count(len(changes.shown), 'change')} to the real workspace?", err=True):
        raise typer.Exit(1)
    return workspace.reviewed(changes, terminal, asked)


def discard(
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
    """Drop everything the overlay holds; a checkpoint of it is kept, the real workspace isn't touched."""
    context = Context(workspace, session, json, quiet)
    run(_let_go, context, context=context) if replaced else run(_discard, context, yes, stop, context=context)


async def _let_go(context: Context) -> None:
    number = await let_go_replaced(workspace_path(context.workspace))
    if not context.quiet:
        output.say(f"let go of {output.count(number, 'workspace')} that stood here before")


async def _discard(context: Context, yes: bool, stop: bool) -> None:
    async with context.open() as workspace:
        if not yes and sys.stdin.isatty():
            changes = await workspace.changes()
            if changes.shown and not typer.confirm(f"Discard {output.count(len(changes.shown), 'change')}?", err=True):
                raise typer.Exit(1)
        discarded = await workspace.discard(force=stop)
    if context.json:
        output.write_json(discard_report(discarded))
    elif not context.quiet:
        kept = f"checkpoint {discarded.checkpoint[:12]} keeps what the overlay held"
        output.say(f"discarded {output.count(discarded.changes, 'change')}; {kept}")
        print_left(discarded.left.left)
