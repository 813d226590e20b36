"""`/v1/transcripts`: what other coding agents kept of their sessions."""

from __future__ import annotations

import base64
import json
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from workbench.errors import OptionsError
from workbench.protocol.records import Frozen
from workbench.server.answers import ERRORS, WhileConnected, answer
from workbench.server.library import Form, Grouping, Library, Progress, Unread, UsageReport, Wanted
from workbench.server.streams import MEDIA_TYPE, stream, wants_stream
from workbench.transcripts import SessionHead, SessionListFailure
from workbench.transcripts.finding import Match, place_of
from workbench.transcripts.paging import TranscriptPage
from workbench.transcripts.tally import day_start

transcripts = APIRouter(prefix="/v1/transcripts", tags=["transcripts"], route_class=WhileConnected, responses=ERRORS)

_EVENTS: dict[type[Frozen], str] = {
    SessionHead: "session",
    SessionListFailure: "failure",
    Progress: "progress",
    Match: "match",
    Unread: "unread",
    UsageReport: "usage",
}
_STREAMED: dict[int | str, dict[str, Any]] = {200: {"content": {MEDIA_TYPE: {"schema": {"type": "string"}}}}}
_FORMS = {"markdown": ("text/markdown", "md"), "html": ("text/html", "html")}


class SessionsPage(Frozen):
    """A part of a listing, the last session worked on first; `next_cursor` is None at the end."""

    sessions: tuple[SessionHead, ...]
    failures: tuple[SessionListFailure, ...] = ()
    next_cursor: str | None = None


class SearchReport(Frozen):
    """Where a text was said; `unread` and `failures` are what couldn't be searched."""

    matches: tuple[Match, ...]
    unread: tuple[Unread, ...] = ()
    failures: tuple[SessionListFailure, ...] = ()


def _library(request: Request) -> Library:
    library = request.app.state.library
    assert isinstance(library, Library)
    return library


def _wanted(
    agent: Annotated[list[str] | None, Query(description="Only this agent's; may be repeated.")] = None,
    project: Annotated[str | None, Query(description="Only sessions that worked in this directory or below.")] = None,
    since: Annotated[str | None, Query(description="Only what was last active on this day or later.")] = None,
) -> Wanted:
    wanted = Wanted(
        agents=None if agent is None else tuple(agent),
        project=project,
        since=None if since is None else _moment("since", since),
    )
    wanted.check()
    return wanted


def _moment(name: str, text: str) -> datetime:
    try:
        return day_start(text)
    except OptionsError as error:
        raise OptionsError(f"{name}: {error.message}", hint=error.hint) from error


LibraryDependency = Annotated[Library, Depends(_library)]
WantedDependency = Annotated[Wanted, Depends(_wanted)]


@transcripts.get("", response_model=SessionsPage, responses=_STREAMED)
async def listing(
    request: Request,
    library: LibraryDependency,
    wanted: WantedDependency,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many, the newest.")] = 50,
    cursor: Annotated[str | None, Query(description="The `next_cursor` of the part before.")] = None,
) -> Response:
    """The sessions of every agent, newest first; as events, all of them in the order in which they are found."""
    if wants_stream(request):
        return stream(library.heads(wanted), _EVENTS)
    after = None if cursor is None else _after(cursor)
    heads, failures, more = await library.newest(wanted, limit, after)
    next_cursor = _cursor(heads[-1]) if more else None
    return answer(SessionsPage(sessions=tuple(heads), failures=tuple(failures), next_cursor=next_cursor))


@transcripts.get("/search", response_model=SearchReport, responses=_STREAMED)
async def search(
    request: Request,
    library: LibraryDependency,
    wanted: WantedDependency,
    text: Annotated[str, Query(min_length=1, max_length=1000, description="What to look for, in any case.")],
    limit: Annotated[int, Query(ge=1, le=200, description="How many places at most.")] = 50,
) -> Response:
    """Where people and agents said a text, the newest sessions first."""
    if not text.strip():
        raise OptionsError("text: there's nothing to look for in an empty one.")
    found = library.search(wanted, text, limit)
    if wants_stream(request):
        return stream(found, _EVENTS)
    async with aclosing(found):
        items = [item async for item in found]
    return answer(
        SearchReport(
            matches=tuple(item for item in items if isinstance(item, Match)),
            unread=tuple(item for item in items if isinstance(item, Unread)),
            failures=tuple(item for item in items if isinstance(item, SessionListFailure)),
        )
    )


@transcripts.get("/usage", response_model=UsageReport, responses=_STREAMED)
async def usage(
    request: Request,
    library: LibraryDependency,
    wanted: WantedDependency,
    by: Grouping = "day",
    until: Annotated[str | None, Query(description="Only what was used before this day.")] = None,
) -> Response:
    """Tokens and costs as the sessions recorded them; each response of a model counts once."""
    found = library.usage(wanted, by, None if until is None else _moment("until", until))
    if wants_stream(request):
        return stream(found, _EVENTS)
    async with aclosing(found):
        async for item in found:
            if isinstance(item, UsageReport):
                return answer(item)
    raise AssertionError("the last thing that it tells is the report")


@transcripts.get("/{agent}/{id:path}/export", responses={200: {"content": {"text/markdown": {}, "text/html": {}}}})
async def export(
    library: LibraryDependency, agent: str, id: str, form: Annotated[Form, Query(alias="format")] = "markdown"
) -> Response:
    """One session as a document: Markdown, or one HTML file that loads and runs nothing."""
    text = await library.document(agent, id, form)
    media_type, extension = _FORMS[form]
    headers = {
        "content-disposition": f'attachment; filename="session.{extension}"',
        "content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; sandbox",
    }
    return Response(text.encode("utf-8", "replace"), headers=headers, media_type=media_type)


@transcripts.get("/{agent}/{id:path}", response_model=TranscriptPage)
async def show(
    library: LibraryDependency,
    agent: str,
    id: str,
    limit: Annotated[int, Query(ge=1, le=1000, description="How many events.")] = 200,
    cursor: Annotated[str | None, Query(description="The `next_cursor` of the part before.")] = None,
) -> Response:
    """One session, by its id or the path of its file: who said what, which tools were called, what they changed."""
    return answer(await library.page(agent, id, cursor, limit))


def _cursor(head: SessionHead) -> str:
    at, path = place_of(head)
    return base64.urlsafe_b64encode(json.dumps([at.isoformat(), path]).encode()).decode()


def _after(cursor: str) -> tuple[datetime, str]:
    try:
        at, path = json.loads(base64.urlsafe_b64decode(cursor))
        return datetime.fromisoformat(at).astimezone(), str(path)
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise OptionsError("cursor: it's none of this listing.", hint="Take the `next_cursor` of a part.") from error
