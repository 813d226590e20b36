"""`checkpoint`, `log`, `rewind`, `redo` and `fork`: going back and forth in what the overlay was."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Annotated

import typer

from workbench.checkpoints import upkeep
from workbench.checkpoints.history import RowKind
from workbench.cli import along, output
from workbench.cli.audit import show_audit, verify_audit
from workbench.cli.jobs import say_ended
from workbench.cli.options import Context, ForceStopOption, JsonOption, QuietOption, SessionOption, WorkspaceOption, run
from workbench.cli.places import inside
from workbench.cli.report import (
    checkpoint_report,
    entry_report,
    landed_report,
    preview_report,
    rewind_report,
    verify_report,
)
from workbench.protocol.reports import ForkReport, PathReport, PurgedReport, PurgeReport
from workbench.review import diff as rendering
from workbench.review.between import is_git_internal
from workbench.review.log import LogEntry
from workbench.timeline import Preview
from workbench.workspace import Travelled

_MOST = 50
_AGES = (("day", 86400), ("hour", 3600), ("minute", 60))
_SHOWN_LANDED = 20
_REDO = "redo"

StepOption = Annotated[
    int, typer.Option("--step", min=0, metavar="N", help="The state after this step of the message; 0 is before it.")
]
IdArgument = Annotated[str, typer.Argument(metavar="ID", help="A checkpoint, as `workbench log` names it.")]


def checkpoint(
    message_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="What to call it; by itself it's @ and a number.")
    ] = None,
    label: Annotated[str, typer.Option("--label", metavar="TEXT", help="What the log says about it.")] = "",
    replace: Annotated[
        bool, typer.Option("--replace", metavar="", help="Take the place of one of the same id.")
    ] = False,
    drop: Annotated[str, typer.Option("--drop", metavar="ID", help="Instead, drop a checkpoint.")] = "",
    purge: Annotated[
        list[str] | None,
        typer.Option("--purge", metavar="PATH", help="Instead, take a path out of every checkpoint of every session."),
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", metavar="", help="Instead, read all checkpoints and say which ones are whole.")
    ] = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Keep what the overlay holds at this moment, to rewind to."""
    context = Context(workspace, session, json, quiet)
    if sum(map(bool, (message_id or label or replace, drop, purge, verify))) > 1:
        raise typer.BadParameter("--drop, --purge and --verify each go alone.")
    if drop:
        run(_drop, context, drop, context=context)
    elif purge:
        run(purge_paths, context, purge, context=context)
    elif verify:
        if run(_verify, context, context=context):
            raise typer.Exit(1)
    else:
        run(_checkpoint, context, message_id, label, replace, context=context)


async def _checkpoint(context: Context, message_id: str | None, label: str, replace: bool) -> None:
    async with context.open() as workspace:
        taken = await workspace.checkpoint(message_id, label=label, replace=replace)
    if context.json:
        output.write_json(checkpoint_report(taken))
    elif not context.quiet:
        back = output.command(f"rewind {_argument(taken.message_id)}", context.session)
        output.say(f"kept; `{back}` goes back to it")


async def _drop(context: Context, message_id: str) -> None:
    async with context.open() as workspace:
        workspace.drop(message_id)
    if not context.quiet and not context.json:
        output.say(f"dropped {output.text(message_id)}; its contents go when the store is next packed together")


async def purge_paths(context: Context, named: Iterable[str]) -> None:
    """Take paths out of every checkpoint, and say how many held them."""
    purged = []
    async with context.open() as workspace:
        for name in named:
            path = name.encode(errors="surrogateescape")
            held = workspace.purge(path)
            purged.append(PurgedReport(**dict(PathReport.of(path)), checkpoints=held))
            if not context.quiet and not context.json:
                output.say(f"{output.count(held, 'checkpoint')} held {output.path(path)}; it's gone from them")
    if context.json:
        output.write_json(PurgeReport(purged=tuple(purged)))
    elif not context.quiet:
        output.say("what overlays hold now and what commits took out of the workspace isn't touched")


async def _verify(context: Context) -> bool:
    async with context.open() as workspace:
        found = upkeep.verify(workspace.store)
    if context.json:
        output.write_json(verify_report(found))
    else:
        for session, message, why in found.broken:
            print(f"{output.path(session.encode())} {output.path(message.encode(errors='replace'))}: {why}")
        print(f"{output.count(found.whole, 'checkpoint')} can be restored, {len(found.broken)} can't")
    return bool(found.broken or found.damage)


def log(
    number: Annotated[
        int, typer.Option("-n", "--number", min=0, metavar="N", help="The newest N; 0 is all of them.")
    ] = _MOST,
    graph: Annotated[bool, typer.Option("--graph", metavar="", help="Draw where lines part.")] = False,
    steps: Annotated[bool, typer.Option("--steps", metavar="", help="Unfold the steps of messages.")] = False,
    commits: Annotated[bool, typer.Option("--commits", metavar="", help="What landed, instead.")] = False,
    audit: Annotated[
        bool,
        typer.Option(
            "--audit",
            metavar="",
            help="What landed, was approved, refused, rewound and dropped, by whom, and what led to it.",
        ),
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", metavar="", help="With --audit: whether that is still what was written.")
    ] = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
) -> None:
    """The session's checkpoints, newest first: what you can rewind to."""
    context = Context(workspace, session, json)
    if verify and not audit:
        raise typer.BadParameter("--verify goes with --audit.")
    if audit and verify:
        if run(verify_audit, context, context=context):
            raise typer.Exit(1)
    elif audit:
        run(show_audit, context, number, context=context)
    elif commits:
        run(_landed, context, number, context=context)
    else:
        run(_log, context, number, graph, steps, context=context)


async def _log(context: Context, number: int, graph: bool, steps: bool) -> None:
    async with context.open() as workspace:
        entries = workspace.timeline.log(most=number, with_forks=graph or context.json)
        results = {
            each: await along.results(workspace, each) for each in {entry.checkpoint.session for entry in entries}
        }
        if context.json:
            output.write_json_list([entry_report(entry, _result(entry, results)) for entry in entries])
            return
        width = max((len(_argument(entry.checkpoint.message_id)) for entry in entries), default=0)
        for entry in entries:
            for line in _lines(entry, min(width, 40), _result(entry, results), graph=graph, steps=steps):
                print(line)
        if number and len(entries) == number:
            print(output.dim(f"older ones: {output.command('log -n 0', workspace.session)}"))


def _result(entry: LogEntry, results: Mapping[str, Mapping[str, str]]) -> str | None:
    """How the run of a message ended, empty where it hasn't, None where there was none."""
    is_message = entry.checkpoint.purpose.kind is RowKind.MESSAGE
    return results[entry.checkpoint.session].get(entry.checkpoint.message_id) if is_message else None


def _lines(entry: LogEntry, width: int, result: str | None, *, graph: bool, steps: bool) -> Iterable[str]:
    checkpoint = entry.checkpoint
    mark = ("| * " if entry.is_left else "*   ") if graph else ""
    margin = ("| | " if entry.is_left else "|   ") if graph else ""
    counts = " ".join(
        f"{sign}{count}" for sign, count in (("+", entry.added), ("~", entry.modified), ("-", entry.removed)) if count
    )
    folded = f" ({output.count(len(entry.steps), 'step')})" if entry.steps and not steps else ""
    ended = f"  run: {result or 'not ended'}" if result is not None else ""
    named = output.text(_argument(checkpoint.message_id)).ljust(width)
    line = f"{mark}{output.bold(named)}  {age(checkpoint.created_at):>14}  {counts:<10}  "
    yield (line + output.text(checkpoint.label or _said(checkpoint.purpose.kind)) + folded + ended).rstrip()
    if steps:
        for each in entry.steps:
            named = f"  step {each.purpose.step}".ljust(width)
            yield f"{margin}{named}  {age(each.created_at):>14}  {output.text(each.label)}".rstrip()
    for name in entry.forks:
        yield f"{margin}  forked: {name}"


def _said(kind: RowKind) -> str:
    return "" if kind is RowKind.MESSAGE else kind.value


def _argument(message_id: str) -> str:
    """An id as it's typed: in quotes where a shell would take it apart."""
    plain = all(character.isalnum() or character in "@%+=:,./_-" for character in message_id)
    return message_id if plain else "'" + message_id.replace("'", "'\\''") + "'"


def age(created_ns: int) -> str:
    """`5 minutes ago`, of a moment in ns since the epoch."""
    seconds = max(0, time.time() - created_ns / 1e9)
    for unit, length in _AGES:
        if seconds >= length:
            return f"{output.count(int(seconds // length), unit)} ago"
    return "just now"


async def _landed(context: Context, number: int) -> None:
    async with context.open() as workspace:
        found = workspace.timeline.landed()[: number or None]
    if context.json:
        output.write_json_list([landed_report(committed, messages) for committed, messages in found])
        return
    for committed, _ in found:
        changes = sum(not change.implied for change in committed.changes)
        # A revert is of no session.
        of = f", session {committed.session}" if committed.session else ""
        said = f"{output.count(changes, 'change')}{of}"
        print(f"{output.bold(committed.commit_id)}  {age(committed.created_ns):>14}  {said}")
        if committed.message:
            print(f"  {output.text(committed.message)}")


def rewind(
    message_id: IdArgument,
    only: Annotated[
        list[str] | None,
        typer.Option("--path", metavar="PATH", help="Only this path, named from the workspace's root; all else stays."),
    ] = None,
    step: StepOption = 0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", metavar="", help="Only show, as a patch, what would change in the overlay.")
    ] = False,
    stop: ForceStopOption = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Make the overlay what it was at a checkpoint; `workbench redo` takes that back.

    To before a message of yours to an agent, the conversation goes along; with --path or --step it stays. What is there is
    kept first. The real workspace isn't touched: what was committed since is taken back in the overlay,
    and lands when you commit that.
    """
    context = Context(workspace, session, json, quiet)
    paths = [name.encode(errors="surrogateescape") for name in only or []]
    run(_rewind, context, message_id, step, paths, dry_run, stop, context=context)


async def _rewind(context: Context, message_id: str, step: int, only: list[bytes], dry_run: bool, stop: bool) -> None:
    async with context.open() as workspace:
        if dry_run:
            print_preview(context, await workspace.preview(message_id, step=step, only=only))
            return
        if only or step:
            _say(context, await workspace.rewind(message_id, step=step, only=only, force=stop))
        else:
            _say(context, *await along.rewind(workspace, message_id, force=stop))


def redo(
    stop: ForceStopOption = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Take back the last rewind or discard; once more, the one before it."""
    context = Context(workspace, session, json, quiet)
    run(_redo, context, stop, context=context)


async def _redo(context: Context, stop: bool) -> None:
    async with context.open() as workspace:
        travelled, messages = await along.redo(workspace, force=stop)
    # What takes it back is no other redo: that would go to before the rewind that came before.
    words = "" if travelled is None or messages else f"rewind {_argument(travelled.journey.before)}"
    _say(context, travelled, messages, back=True, redo=words)


def fork(
    message_id: IdArgument,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="What to call the new session.")] = "",
    step: StepOption = 0,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Start another session from a checkpoint; this one stays as it is."""
    context = Context(workspace, session, json, quiet)
    run(_fork, context, message_id, step, name, context=context)


async def _fork(context: Context, message_id: str, step: int, name: str) -> None:
    async with context.open() as workspace:
        name = name or workspace.free_session()
        await along.fork(workspace, message_id, name, step=step)
    if context.json:
        output.write_json(ForkReport(session=name, message_id=message_id))
    elif not context.quiet:
        output.say(f"session {name} starts there: {output.command('exec', name)} -- COMMAND")


def print_preview(context: Context, preview: Preview, form: str = "patch") -> None:
    """What a journey would change, or what lies between two checkpoints."""
    shown = [change for change in preview.changes if not change.implied]
    if context.json:
        output.write_json(preview_report(preview, shown))
        return
    files = [change for change in shown if not is_git_internal(change.path)]
    internal = len(shown) - len(files) if files else 0
    shown = files or shown
    if form == "stat":
        output.write_patch(rendering.stat(shown, preview.old, preview.new))
    elif form.startswith("name-status"):
        output.write_patch(rendering.name_status(shown, nul=form.endswith("-z")))
    else:
        output.write_patch(rendering.unified(shown, preview.old, preview.new, binary=False))
    if not context.quiet:
        if internal:
            output.say(f"and {output.count(internal, 'change')} in .git, not shown here")
        _say_left(preview.target.left, preview.target.without_repository)


def _say(
    context: Context, travelled: Travelled | None, messages: int = 0, *, back: bool = False, redo: str = _REDO
) -> None:
    if context.json:
        output.write_json(rewind_report(travelled, messages))
    else:
        takes_back = f"`{output.command(redo, context.session)}`" if redo else ""
        say_travelled(travelled, messages, back=back, quiet=context.quiet, redo=takes_back)


def say_travelled(
    travelled: Travelled | None,
    messages: int,
    *,
    redo: str,
    back: bool = False,
    quiet: bool = False,
) -> None:
    """How the files went, where they did, and how many messages were taken back, or are `back`.

    `redo` takes that back; empty where no one command does.
    """
    if quiet:
        return
    journey = travelled.journey if travelled is not None else None
    if journey is not None:
        _say_left(journey.left, journey.without_repository)
    if travelled is not None:
        say_ended(travelled.ended)
    if messages:
        output.say(f"{output.count(messages, 'message')} {'brought' if back else 'taken'} back")
    removed, restored = (journey.removed, journey.restored) if journey is not None else ((), ())
    if removed or restored:
        gone, back_again = (sum(not is_git_internal(path) for path in paths) for paths in (removed, restored))
        git = ", .git too" if gone + back_again < len(removed) + len(restored) else ""
        takes_back = f"; {redo} takes that back" if redo else ""
        output.say(f"{output.count(back_again, 'path')} restored, {gone:,} removed{git}{takes_back}")
    elif not messages:
        output.say("nothing had to change")


def _say_left(left: tuple[bytes, ...], without_repository: bool) -> None:
    for path in left[:_SHOWN_LANDED]:
        output.say(f"stays as it is, since it was changed after a commit landed there: {output.path(path)}")
    if len(left) > _SHOWN_LANDED:
        output.say(f"and {len(left) - _SHOWN_LANDED:,} more")
    if without_repository:
        output.say("what commands did to the repository's .git stays away: the real one moved on since")


async def difference(context: Context, old: str, new: str | None, only: Iterable[str], form: str) -> bool:
    """Show what lies between two checkpoints, or one and now, at some paths or at all; whether anything does."""
    async with context.open() as workspace:
        preview = await workspace.difference(old, new, only=[inside(workspace.root, name) for name in only])
        print_preview(context, preview, form)
        return bool(preview.changes)
