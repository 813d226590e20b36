"""`commit` and `revert`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import typer

from workbench.cli import output, terminal
from workbench.cli.failure import EXIT_ERROR
from workbench.cli.jobs import say_ended
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
    keep_small,
    run,
    terminal_name,
)
from workbench.cli.report import branch_report, commit_report, diff_report, revert_report
from workbench.errors import CommitError
from workbench.landing import Landed
from workbench.protocol.commands import Command
from workbench.review import diff as rendering
from workbench.review.branch import Branch
from workbench.review.changeset import ChangeSet
from workbench.workspace import Workspace


def commit(
    digest: Annotated[
        str, typer.Option("--digest", metavar="DIGEST", help="Land exactly what was shown under this digest.")
    ] = "",
    accepted: Annotated[
        bool, typer.Option("--accepted", metavar="", help="Land what `workbench review` accepted; the rest stays.")
    ] = False,
    include: IncludeOption = None,
    check: Annotated[
        str,
        typer.Option(
            "--check",
            metavar="CMD",
            help="First run this shell command in the sandbox, on what would land; it must pass.",
        ),
    ] = "",
    message: Annotated[
        str, typer.Option("-m", "--message", metavar="TEXT", help="What to keep with the commit, and in the audit log.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Only say what would land, or why it can't.")
    ] = False,
    branch: Annotated[
        str,
        typer.Option(
            "--git", metavar="BRANCH", help="Make a new branch with it in the repository instead; no file is touched."
        ),
    ] = "",
    author: Annotated[
        str, typer.Option("--author", metavar="'NAME <EMAIL>'", help="With --git: who wrote it; by itself you.")
    ] = "",
    keep_history: Annotated[
        bool, typer.Option("--keep-history", metavar="", help="With --git: the agent's own commits are on the branch.")
    ] = False,
    verify: Annotated[
        bool | None,
        typer.Option(
            "--verify/--no-verify",
            metavar="",
            help="Read back what landed and compare it with what was reviewed: by itself under 10,000 changes.",
        ),
    ] = None,
    allow_risky: Annotated[
        bool,
        typer.Option(
            "--allow-risky", metavar="", help="Also land paths that make a host run code or lead out of the workspace."
        ),
    ] = False,
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
    (no digest, one that was never shown, a risky path), 6 where the check failed; then nothing was applied. 1 also where
    what landed is no longer as it was reviewed.
    """
    context = Context(workspace, session, json, quiet)
    if sum(map(bool, (digest, accepted, include))) > 1:
        raise typer.BadParameter("--digest, --accepted and --include each go alone.")
    if author and not branch:
        raise typer.BadParameter("--author goes with --git.")
    if keep_history and not branch:
        raise typer.BadParameter("--keep-history goes with --git.")
    wanted = _Wanted(
        digest,
        accepted,
        include,
        check,
        message,
        dry_run,
        branch,
        author,
        keep_history,
        verify,
        allow_risky,
        yes,
        stop,
    )
    if run(_commit_some, context, wanted, context=context):
        raise typer.Exit(EXIT_ERROR)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What `commit` was asked for."""

    digest: str
    accepted: bool
    include: list[str] | None
    check: str
    message: str
    dry_run: bool
    branch: str
    author: str
    keep_history: bool
    verify: bool | None
    allow_risky: bool
    yes: bool
    stop: bool


async def _commit_some(context: Context, wanted: _Wanted) -> bool:
    """As `_commit`; where there is nothing to commit that is said, and no error."""
    try:
        return await _commit(context, wanted)
    except CommitError as error:
        if error.code != "nothing_to_commit":
            raise
    if context.json:
        output.write_json(commit_report(None, wanted.digest))
    else:
        output.say("nothing to commit")
    return False


async def _commit(context: Context, wanted: _Wanted) -> bool:
    """Whether what landed is something else by now."""
    async with context.open() as workspace:
        digest = require_accepted(workspace).digest if wanted.accepted else wanted.digest
        digest = digest or await _shown_digest(workspace, wanted.include, yes=wanted.yes)
        if wanted.dry_run:
            _print_rehearsed(context, workspace, await workspace.rehearse(digest, allow_risky=wanted.allow_risky))
            return False
        if wanted.check:
            await run_check(workspace, digest, wanted.check, quiet=context.quiet)
        if wanted.branch:
            made = await workspace.branch(
                digest,
                wanted.branch,
                message=wanted.message,
                author=wanted.author,
                allow_risky=wanted.allow_risky,
                keep_history=wanted.keep_history,
            )
            _print_branch(context, made, digest)
            return False
        landed = await workspace.commit(
            digest,
            allow_risky=wanted.allow_risky,
            force=wanted.stop,
            message=wanted.message,
            verify=wanted.verify,
        )
        keep_small(workspace)
    if context.json:
        output.write_json(commit_report(landed))
    else:
        print_landed(landed, quiet=context.quiet)
    return bool(landed.differs)


async def run_check(workspace: Workspace, digest: str, check: str, *, quiet: bool = False) -> None:
    """Run a shell command over what would land, its output on stderr. Raises as `Workspace.check`."""
    command = Command(("sh", "-c", check))
    with terminal.writer(2) as write:
        await workspace.check(
            digest, command, on_stdout=write, on_stderr=write, report=(lambda _: None) if quiet else output.say
        )


def _print_rehearsed(context: Context, workspace: Workspace, changes: ChangeSet) -> None:
    if context.json:
        output.write_json(diff_report(workspace, changes, changes.shown))
        return
    print_stat(workspace, changes)
    if not context.quiet:
        output.say(f"{output.count(len(changes.shown), 'change')} would land; nothing was applied")


def _print_branch(context: Context, made: Branch, digest: str) -> None:
    if context.json:
        output.write_json(branch_report(made, digest))
    elif not context.quiet:
        for path in made.uncommitted:
            output.say(f"on the branch, too, is what you changed and didn't commit: {output.path(path)}")
        if made.carried:
            output.say(f"{output.count(len(made.carried), 'commit')} of the agent's on it")
        output.say(f"branch {made.name} is at {made.commit[:12]}; the overlay keeps its changes")


def print_landed(landed: Landed, *, quiet: bool = False) -> None:
    """What has landed, and what hasn't, on stderr."""
    for path in landed.differs:
        output.say(
            f"DIFFERS {output.path(path)}: it isn't what landed there any more; somebody changed it at that moment"
        )
    if quiet:
        return
    changes = sum(not change.implied for change in landed.committed.changes)
    words = "had landed before" if landed.already else "landed"
    commit_id = landed.committed.commit_id
    output.say(f"{output.count(changes, 'change')} {words} as commit {commit_id}")
    if not landed.already:
        back = output.command(f"revert {commit_id}", landed.committed.session)
        output.say(f"to take that back: {back}")
    if landed.committed.weak:
        output.say(
            "this filesystem can't exchange two names, so an edit at the very moment of the commit could be missed"
        )
    say_ended(landed.ended)
    if landed.left.shown:
        stay = "stays" if len(landed.left.shown) == 1 else "stay"
        review = output.command("review", landed.committed.session)
        output.say(f"{output.count(len(landed.left.shown), 'other change')} {stay} in the overlay: {review}")
    print_left(landed.left.left)


async def _shown_digest(workspace: Workspace, include: list[str] | None, *, yes: bool) -> str:
    terminal = terminal_name()
    last = workspace.shown.last(terminal) if terminal and not include else None
    if last is not None:
        return last.digest
    asked = included(workspace.root, include)
    changes = await workspace.changes(included=asked)
    if not changes.changes:
        return workspace.reviewed(changes)
    if yes or not sys.stdin.isatty():
        refusal = CommitError(
            "Nobody has been shown what would land.",
            code="digest_required",
            hint="Decide with `workbench review`, then `workbench commit --accepted`; or name the digest of all: "
            "workbench commit --digest $(workbench diff --digest-only)",
        )
        workspace.audit.append("refusal", session=workspace.session, code=refusal.code)
        raise refusal
    print_stat(workspace, changes)
    if not typer.confirm(f"Commit {output.count(len(changes.shown), 'change')} to the real workspace?", err=True):
        raise typer.Exit(1)
    return workspace.reviewed(changes, terminal, asked)


def revert(
    commit_id: Annotated[
        str, typer.Argument(metavar="COMMIT", help="Its id, as `workbench commit` said, or a beginning.")
    ],
    message: Annotated[
        str, typer.Option("-m", "--message", metavar="TEXT", help="What to keep with the commit, and in the audit log.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Only say what would change, or why it can't.")
    ] = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Take a commit back in the real workspace: all of it or nothing. A revert can be reverted.

    Ends with 0; 3 where the real workspace changed since in a path of it, 4 where what was there before isn't kept any
    more; then nothing was applied.
    """
    context = Context(workspace, session, json, quiet)
    run(_revert, context, commit_id, message, dry_run, context=context)


async def _revert(context: Context, commit_id: str, message: str, dry_run: bool) -> None:
    async with context.open() as workspace:
        changes, reverted = await workspace.revert(commit_id, message=message, dry_run=dry_run)
        if context.json:
            output.write_json(revert_report(changes, reverted))
        elif not context.quiet:
            for line in b"".join(rendering.name_status(changes.changes)).splitlines():
                print(output.visible(line))
            what = "would be taken back; nothing was applied" if reverted is None else "taken back"
            as_commit = f" as commit {reverted.commit_id}" if reverted else ""
            output.say(f"{output.count(len(changes.changes), 'change')} {what}{as_commit}")
