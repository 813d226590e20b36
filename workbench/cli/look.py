"""`status` and `diff`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from workbench import warm
from workbench.cli import output
from workbench.cli.content import Look, SideBySideOption, WordDiffOption, not_in_a_patch, show
from workbench.cli.options import (
    Context,
    IncludeOption,
    JsonOption,
    QuietOption,
    SessionOption,
    WorkspaceOption,
    included,
    run,
    terminal_name,
)
from workbench.cli.places import inside
from workbench.cli.report import diff_report, status_report
from workbench.cli.travel import difference
from workbench.errors import CommitError
from workbench.protocol.records import ShownRecord
from workbench.protocol.reports import DiffReport
from workbench.review import diff as rendering
from workbench.review.changeset import Change, ChangeSet, Left, LeftPath
from workbench.review.similar import with_similar_renames
from workbench.vfs import paths
from workbench.workspace import Workspace, WorkspaceStatus

_LEFT_WORDS = {
    Left.SCRATCH: "notes in the scratch directory",
    Left.IGNORED: "ignored by the project's own rules",
    Left.REPOSITORY: "part of a git repository",
    Left.FIFO: "a FIFO",
    Left.SOCKET: "a socket",
    Left.DEVICE: "a device node",
    Left.SETID: "only its setuid or setgid bit is new",
    Left.MOUNT_POINT: "below a mount point",
    Left.OMITTED: "too big or unreadable to keep",
    Left.UNREADABLE: "not readable by you",
}


def status(
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
) -> None:
    """What the overlay holds, what runs, and what to do next."""
    context = Context(workspace, session, json)
    run(_status, context, context=context)


async def _status(context: Context) -> None:
    async with context.open() as workspace:
        now = warm.counted(workspace.overlay_path)[0]
        found = await workspace.status()
        warm.note_counted(workspace.overlay_path, now, len(found.changes.shown), found.changes.checkpoint)
        if context.json:
            output.write_json(status_report(workspace, found))
            return
        print_state(workspace, found)
        print()
        _print_next(found, workspace.session)


def print_state(workspace: Workspace, status: WorkspaceStatus) -> None:
    """What there is of a session, on stdout."""
    changes = status.changes
    print(f"{output.bold('workspace')}  {output.path(workspace.root)}")
    print(f"{output.bold('session')}    {workspace.session}")
    print(f"{output.bold('sandbox')}    {_sandbox_words(status)}")
    found = f"{output.count(len(changes.shown), 'change')}, not landed yet" if changes.shown else "none"
    print(f"{output.bold('changes')}    {found}")
    for line in _left_lines(changes.left):
        print(f"  {line}")
    for point in status.mount_points:
        print(f"  {output.path(point)} is a mount point: an empty directory in the sandbox, and nothing in it lands")
    if status.lower_changed:
        print("  The real workspace changed under the sandbox; its next command sees it as it is now.")
    if status.conflicts:
        print(f"{output.bold('conflicts')}  changed in the real workspace meanwhile, so these can't land:")
        for path in status.conflicts:
            print(f"  {output.path(path)}")
    if status.unresolved:
        print(f"{output.bold('unresolved')} conflict markers of a merge, to be edited before these can land:")
        for path in status.unresolved:
            print(f"  {output.path(path)}")


def _print_next(status: WorkspaceStatus, session: str) -> None:
    if not status.changes.changes:
        steps = {"exec": "run a command; nothing of the workspace changes"}
    else:
        steps = {
            "review": "look at the changes, and decide which may land",
            "diff": "see them all as a patch",
            **(
                {"merge": "bring those into the overlay, to be reviewed with the rest"}
                if status.conflicts
                else {"commit": "land them, all or none"}
            ),
            "discard": "drop them",
        }
    typed = [output.command(words, session) + (" -- COMMAND" if words == "exec" else "") for words in steps]
    width = max(map(len, typed))
    for number, (command, what) in enumerate(zip(typed, steps.values(), strict=True)):
        print(f"{'' if number else 'Next:':<5} {command:<{width}}  {what}")


def _sandbox_words(status: WorkspaceStatus) -> str:
    if not status.sandbox.backend:
        return "none yet"
    if not status.sandbox.running:
        return f"{status.sandbox.backend}, stopped"
    jobs = output.count(status.sandbox.jobs, "command") if status.sandbox.jobs else "idle"
    return f"{status.sandbox.backend}, running ({jobs})"


def diff(
    only: Annotated[
        list[str] | None, typer.Argument(metavar="PATH", help="Show only these paths, from the current directory.")
    ] = None,
    stat: Annotated[bool, typer.Option("--stat", metavar="", help="A line for each file.")] = False,
    name_status: Annotated[
        bool, typer.Option("--name-status", metavar="", help="Letter and name of each file.")
    ] = False,
    nul: Annotated[
        bool, typer.Option("-z", metavar="", help="With --name-status: names as they are, each ended by a NUL.")
    ] = False,
    word_diff: WordDiffOption = False,
    side_by_side: SideBySideOption = False,
    exit_code: Annotated[
        bool, typer.Option("--exit-code", metavar="", help="Exit with 1 where there are changes.")
    ] = False,
    digest_only: Annotated[
        bool, typer.Option("--digest-only", metavar="", help="Print only the digest, for a commit.")
    ] = False,
    accepted: Annotated[
        bool, typer.Option("--accepted", metavar="", help="Only what `workbench review` accepted.")
    ] = False,
    schema: Annotated[
        bool, typer.Option("--schema", metavar="", help="Print the JSON schema of what --json prints, and end.")
    ] = False,
    include: IncludeOption = None,
    old: Annotated[
        str, typer.Option("--from", metavar="ID", help="Show instead what changed in the overlay since a checkpoint.")
    ] = "",
    new: Annotated[
        str, typer.Option("--to", metavar="ID", help="With --from: up to this checkpoint, instead of to now.")
    ] = "",
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Show what would change in the real workspace, as a patch in git's format.

    Ends with 0, and with --exit-code with 1 where there are changes.

    The full diff is what a following `workbench commit` on this terminal lands.
    """
    if schema:
        output.write_schema(DiffReport)
        return
    context = Context(workspace, session, json, quiet)
    form = "digest" if digest_only else "stat" if stat else "name-status" if name_status else "patch"
    if nul and (form != "name-status" or json):
        raise typer.BadParameter("-z is for --name-status alone.")
    if nul:
        form = "name-status -z"
    look = Look.of(words=word_diff, columns=side_by_side)
    if look is not Look.PATCH and (form != "patch" or json or old):
        raise typer.BadParameter("--word-diff and --side-by-side show a full diff of the overlay, for people.")
    if accepted and include:
        raise typer.BadParameter("what was accepted is as it was reviewed: say --include to `workbench review`.")
    if new and not old:
        raise typer.BadParameter("--to needs --from.")
    if old:
        if digest_only or accepted or include:
            raise typer.BadParameter("--from goes with none of --digest-only, --accepted and --include.")
        found = run(difference, context, old, new or None, only or [], form, context=context)
    else:
        found = run(_diff, context, only or [], form, look, accepted, include, context=context)
    if exit_code and found:
        raise typer.Exit(1)


async def _diff(
    context: Context, only: list[str], form: str, look: Look, accepted: bool, include: list[str] | None
) -> bool:
    async with context.open() as workspace:
        wanted = [inside(workspace.root, name) for name in only]
        asked = included(workspace.root, include)
        kept = require_accepted(workspace) if accepted else None
        changes = workspace.reviewing.stands_for(kept) if kept else await workspace.changes(included=asked)
        shown = [change for change in changes.shown if is_wanted(change, wanted)]
        full = form == "patch" and not only and not context.json
        terminal = terminal_name() if full else ""
        digest = (
            workspace.reviewing.show(kept, changes, terminal) if kept else workspace.reviewed(changes, terminal, asked)
        )
        if form == "digest":
            print(digest)
        elif context.json:
            output.write_json(diff_report(workspace, changes, shown))
        elif form == "stat":
            output.write_patch(rendering.stat(_as_seen(workspace, shown), workspace.lower, workspace.store))
        elif form.startswith("name-status"):
            output.write_patch(rendering.name_status(_as_seen(workspace, shown), nul=form.endswith("-z")))
        else:
            conflicting = await print_patch(workspace, changes, shown, look, quiet=context.quiet)
            if context.quiet:
                pass
            elif only:
                number = output.count(len(changes.shown), "change")
                whole = output.command("diff", workspace.session)
                output.say(f"showed {len(shown):,} of {number}: a commit lands all that a full `{whole}` showed")
            elif changes.changes and not conflicting:
                _say_how_to_land(changes, workspace.session)
        return bool(shown)


async def count_changes(workspace: Workspace) -> int:
    """How many paths the overlay changes, remembered for as long as nothing in it does; no sandbox is ended to tell.

    Raises as `Workspace.checkpoint`.
    """
    now = warm.counted(workspace.overlay_path)[0]
    changes = await workspace.changes(may_stop=False)
    warm.note_counted(workspace.overlay_path, now, len(changes.shown), changes.checkpoint)
    return len(changes.shown)


async def print_patch(
    workspace: Workspace, changes: ChangeSet, shown: list[Change], look: Look, *, quiet: bool = False
) -> list[bytes]:
    """Those of a change set that are to be shown, with what a patch has no words for; the paths that can't land."""
    print_risks(shown)
    show(workspace, _as_seen(workspace, shown), look)
    if quiet:
        return []
    conflicting = await workspace.conflicts(changes)
    _say_rest(changes, shown, conflicting)
    if conflicting:
        output.say(f"`{output.command('merge', workspace.session)}` brings what changed there into the overlay")
    return conflicting


def _as_seen(workspace: Workspace, shown: list[Change]) -> tuple[Change, ...]:
    return with_similar_renames(shown, workspace.lower, workspace.store)


def require_accepted(workspace: Workspace) -> ShownRecord:
    """What `review` accepted. Raises CommitError (digest_required) where that's nothing, or has landed."""
    kept = workspace.reviewing.accepted()
    if kept is None:
        raise CommitError(
            "Nothing is accepted.",
            code="digest_required",
            hint="Decide with `workbench review`; without a terminal with its --accept PATH.",
        )
    return kept


def print_risks(shown: list[Change]) -> None:
    """Why each risky change is, before its content, on stderr."""
    for change in shown:
        if change.risk:
            output.say(f"RISKY {output.path(change.path)}: {change.risk}")


def _say_rest(changes: ChangeSet, shown: list[Change], conflicting: list[bytes]) -> None:
    for change in shown:
        if line := not_in_a_patch(change):
            output.say(f"{line}: {output.path(change.path)}")
        if change.new_executable:
            output.say(f"executable now: {output.path(change.path)}")
        if change.drops_setid:
            output.say(f"setuid or setgid stays behind: {output.path(change.path)}")
    print_left(changes.left)
    for path in conflicting:
        output.say(f"CONFLICT {output.path(path)}: changed in the real workspace meanwhile, so this can't land")


def _say_how_to_land(changes: ChangeSet, session: str) -> None:
    digest = changes.digest[:16]
    # Only on a terminal does a commit know what was shown last.
    named = "" if terminal_name() else f" --digest {digest}"
    risky = " --allow-risky" if changes.risky else ""
    output.say(f"digest {digest}; `{output.command(f'commit{named}{risky}', session)}` lands exactly this")


def is_wanted(change: Change, only: list[bytes]) -> bool:
    """Whether a change is at or below one of these paths, of which none means all."""
    if not only:
        return True
    return any(path == wanted or paths.is_below(path, wanted) for wanted in only for path, _, _ in change.steps())


def print_stat(workspace: Workspace, changes: ChangeSet) -> None:
    """A summary of a change set, on stdout."""
    print_risks(list(changes.shown))
    output.write_patch(rendering.stat(changes.shown, workspace.lower, workspace.store))
    print_left(changes.left)


def print_left(left: tuple[LeftPath, ...]) -> None:
    """What stays in the overlay, a line for each reason, on stderr."""
    for line in _left_lines(left):
        output.say(line)


def _left_lines(left: tuple[LeftPath, ...]) -> Iterator[str]:
    for reason, words in _LEFT_WORDS.items():
        found = [one for one in left if one.reason is reason]
        if found:
            names = ", ".join(output.path(one.path) for one in found[:3]) + (", …" if len(found) > 3 else "")
            yield f"stays in the overlay, {words}: {names} ({_entries(sum(one.count for one in found))})"


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number:,} entries"
