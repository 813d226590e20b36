"""`transcripts`: what other coding agents kept of their sessions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import StrEnum
from functools import partial
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from workbench.cli import output
from workbench.cli.foreign import AgentOption, SessionArgument, named_session, print_table, progress
from workbench.cli.formats import Format, FormatOption
from workbench.cli.importing import import_session
from workbench.cli.options import JsonOption, failing
from workbench.errors import OptionsError

if TYPE_CHECKING:
    from rich.progress import Progress

    from workbench.transcripts import SessionHead, SessionListFailure, SessionRef, Transcript
    from workbench.transcripts.finding import Match
    from workbench.transcripts.tally import Tally, UsageRow

_SHORTEST = 8

transcripts = typer.Typer(help="Read what other coding agents kept of their sessions.", no_args_is_help=True)
transcripts.command("import")(import_session)


class By(StrEnum):
    """What usage is grouped by."""

    DAY = "day"
    MODEL = "model"
    PROJECT = "project"
    AGENT = "agent"
    SESSION = "session"


@transcripts.command("list")
def show_all(
    agent: AgentOption = None,
    project: Annotated[
        str | None, typer.Option(metavar="DIR", help="Only sessions that worked in DIR or below.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="NUMBER", min=0, help="How many, the newest; 0 is all.")] = 50,
    json: JsonOption = False,
) -> None:
    """List sessions, the last one worked on first."""
    from workbench.transcripts.finding import Newest

    # In bytes: a character beyond Latin-1 makes each of a text take two of them, or four.
    texts = Newest(limit or None, lambda head: head.model_dump_json().encode())
    rows = Newest(limit or None, _row)
    with failing(json):
        with progress() as bar:
            failures = anyio.run(_listed, agent, project, texts.add if json else rows.add, bar)
        if json:
            told = map(bytes.decode, texts.first_to_last())
            output.write_json_texts(chain(told, (failure.model_dump_json() for failure in failures)))
            return
    _say_failures(failures)
    shown = rows.first_to_last()
    ids = _shown_ids([row[2] for row in shown if row[2]])
    head = ("AGENT", "LAST ACTIVE", "SESSION", "DIRECTORY", "TITLE")
    print_table(head, [(*row[:2], output.text(ids.get(row[2], "-")), *row[3:]) for row in shown], giving_way=(3, 4))
    if len(shown) < rows.seen:
        output.say(f"{rows.seen - len(shown):,} older ones aren't shown: --limit 0 shows all")


@transcripts.command()
def show(session: SessionArgument, agent: AgentOption = None, json: JsonOption = False) -> None:
    """Show one session: who said what, which tools were called, what it used."""
    from workbench.transcripts.exporting import to_markdown

    with failing(json):
        transcript = anyio.run(_loaded, session, agent)
        if json:
            output.write_json(transcript)
        else:
            print(output.visible(to_markdown(transcript).encode("utf-8", "replace")))


@transcripts.command()
def search(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="What to look for, in any case.")],
    agent: AgentOption = None,
    project: Annotated[
        str | None, typer.Option(metavar="DIR", help="Only sessions that worked in DIR or below.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Search what people asked and agents answered, in every session."""
    with failing(json):
        if not text.strip():
            raise OptionsError("There's nothing to look for in an empty text.")
        with progress() as bar:
            matches = anyio.run(partial(_searched, json=json), text, agent, project, bar)
        if json:
            output.write_json_list(matches)
    if not matches:
        raise typer.Exit(1)


@transcripts.command()
def usage(
    by: Annotated[
        By, typer.Option("--by", metavar="WHAT", help="What to add up by: day, model, project, agent or session.")
    ] = By.DAY,
    agent: AgentOption = None,
    project: Annotated[
        str | None, typer.Option(metavar="DIR", help="Only sessions that worked in DIR or below.")
    ] = None,
    since: Annotated[str | None, typer.Option(metavar="DAY", help="Only what was used from this day on.")] = None,
    until: Annotated[str | None, typer.Option(metavar="DAY", help="Only what was used before this day.")] = None,
    prices: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Prices of models, as LiteLLM publishes them, where no cost was recorded."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Add up the tokens and costs that the sessions recorded; each model response counts once.

    Costs are those that agents recorded; with --prices the others are worked out.
    """
    from workbench.transcripts.tally import Prices, Tally, day_start, total

    with failing(json):
        known = None
        if prices is not None:
            with open(prices, "rb") as file:
                known = Prices.parse(file.read())
        tally = Tally(
            by.value,
            prices=known,
            since=None if since is None else day_start(since),
            until=None if until is None else day_start(until),
        )
        with progress() as bar:
            anyio.run(_tallied, tally, agent, project, bar)
        rows = tally.rows()
        if json:
            output.write_json_list((*rows, total(rows)))
            return
    _print_usage(by.value, (*rows, total(rows)))
    if known is None and any(row.without_cost for row in rows):
        output.say("? and + are requests whose cost no agent recorded: --prices FILE works them out")


@transcripts.command()
def export(
    session: SessionArgument,
    form: FormatOption = Format.MARKDOWN,
    file: Annotated[
        str | None, typer.Option("-o", "--output", metavar="FILE", help="Where to; else to stdout.")
    ] = None,
    agent: AgentOption = None,
) -> None:
    """Export one session as a document."""
    from workbench.transcripts.exporting import to_html, to_markdown

    with failing(False):
        transcript = anyio.run(_loaded, session, agent)
        if form is Format.JSON and file is None:
            output.write_json(transcript)
            return
        if form is Format.JSON:
            text = f"{transcript.model_dump_json(indent=2)}\n"
        else:
            text = to_html(transcript) if form is Format.HTML else to_markdown(transcript)
        if file is None:
            sys.stdout.write(output.visible(text.encode("utf-8", "replace")) if sys.stdout.isatty() else text)
            return
        with open(file, "x", encoding="utf-8", errors="replace") as written:
            written.write(text)
    output.say(f"{output.path(file.encode('utf-8', 'surrogateescape'))} is written")


def _row(head: SessionHead) -> tuple[str, str, str, str, str]:
    when = f"{head.last_active_at.astimezone():%Y-%m-%d %H:%M}"
    return head.ref.agent, when, head.ref.session_id or "", output.text(head.cwd or "-"), output.text(head.title or "-")


async def _listed(
    agents: Sequence[str] | None, project: str | None, see: Callable[[SessionHead], None], bar: Progress
) -> list[SessionListFailure]:
    """Show each session as it's found; what can't be read is returned."""
    from workbench.transcripts import LocalPlatform, RootMissing, SessionListFailure, list_sessions
    from workbench.transcripts.finding import worked_in
    from workbench.transcripts.listing import session_roots

    platform, failures = LocalPlatform(), []
    task = bar.add_task("Listing", total=len(session_roots(platform, agents=agents)))

    def listed(total: int) -> None:
        bar.update(task, advance=1, description=f"Listing, {total:,} sessions so far")

    async for item in list_sessions(platform, agents=agents, on_total=listed):
        if isinstance(item, SessionListFailure):
            if not isinstance(item.error, RootMissing):
                failures.append(item)
        elif project is None or worked_in(item, project):
            see(item)
    bar.remove_task(task)
    return failures


async def _loaded(named: str, agents: Sequence[str] | None) -> Transcript:
    from workbench.transcripts import LocalPlatform, Transcript, find_adapter
    from workbench.transcripts.failures import unread
    from workbench.transcripts.finding import find_session

    platform = LocalPlatform()
    ref = await find_session(platform, named_session(named), agents=agents)
    loaded = await find_adapter(ref.agent).load(platform, ref)
    if isinstance(loaded, Transcript):
        return loaded
    raise unread(loaded)


async def _searched(
    text: str, agents: Sequence[str] | None, project: str | None, bar: Progress, *, json: bool
) -> list[Match]:
    from workbench.transcripts import LocalPlatform
    from workbench.transcripts.failures import unread
    from workbench.transcripts.finding import Newest, search_sessions

    newest = Newest(None, lambda head: head.ref)
    failures = await _listed(agents, project, newest.add, bar)
    refs = newest.first_to_last()
    if not json:
        _say_failures(failures)
    task = bar.add_task("Searching", total=len(refs))
    found: list[Match] = []
    async for ref, matches in search_sessions(LocalPlatform(), text, refs):
        bar.advance(task)
        if not isinstance(matches, tuple):
            output.say(unread(matches).message)
            continue
        found.extend(matches)
        for match in matches if not json else ():
            when = f"{match.event.at.astimezone():%Y-%m-%d} " if match.event.at is not None else ""
            name = output.text(f"{ref.agent} {ref.session_id or ref.path}")
            print(f"{name}: {when}{match.event.kind}: {output.text(match.excerpt)}")
    return found


async def _tallied(tally: Tally, agents: Sequence[str] | None, project: str | None, bar: Progress) -> None:
    from workbench.transcripts import LocalPlatform
    from workbench.transcripts.failures import unread
    from workbench.transcripts.finding import add_up_sessions
    from workbench.transcripts.models import SessionUsage

    found: list[tuple[datetime, SessionRef]] = []
    failures = await _listed(
        agents, project, lambda head: found.append((head.started_at or head.last_active_at, head.ref)), bar
    )
    _say_failures(failures)
    found.sort(key=itemgetter(0))
    task = bar.add_task("Adding up", total=len(found))
    async for _, used in add_up_sessions(LocalPlatform(), [ref for _, ref in found]):
        bar.advance(task)
        if isinstance(used, SessionUsage):
            tally.add(used)
        else:
            output.say(unread(used).message)


def _shown_ids(ids: Sequence[str]) -> dict[str, str]:
    """Ids as they are shown: whole to programs, to people their beginning as far as it tells them apart."""
    length = max(map(len, ids), default=0)
    if sys.stdout.isatty():
        length = next((n for n in range(_SHORTEST, length) if len({id[:n] for id in ids}) == len(set(ids))), length)
    return {id: id[:length] for id in ids}


def _say_failures(failures: Iterable[SessionListFailure]) -> None:
    for failure in failures:
        shown = output.path(failure.error.path.encode("utf-8", "surrogateescape"))
        output.say(f"{shown} can't be read: {getattr(failure.error, 'message', failure.error.tag)}")


def _print_usage(by: str, rows: Sequence[UsageRow]) -> None:
    head = (by.upper(), "SESSIONS", "REQUESTS", "INPUT", "CACHED", "OUTPUT", "COST")
    print_table(
        head,
        [
            (
                output.text(row.name),
                f"{row.sessions:,}",
                f"{row.requests:,}",
                f"{row.input_tokens:,}",
                f"{row.cache_read_tokens:,}",
                f"{row.output_tokens:,}",
                _cost(row),
            )
            for row in rows
        ],
        right=range(1, len(head)),
        giving_way=(0,),
    )


def _cost(row: UsageRow) -> str:
    """What is known of it; a plus says that some requests have no cost."""
    if row.without_cost == row.requests:
        return "?"
    return f"${row.cost_usd:,.2f}{'+' if row.without_cost else ''}"
