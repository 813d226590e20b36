"""Other agents' sessions as the server reads them: as they come, in parts, and no more of one in memory than is asked for."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter
from typing import Literal, TypeVar

import anyio
from anyio import to_thread

from workbench.errors import OptionsError, SessionNotFoundError
from workbench.protocol.records import Frozen
from workbench.transcripts import (
    HostPlatform,
    ReadFailed,
    SessionHead,
    SessionListFailure,
    SessionNotFound,
    SessionReadError,
    SessionRef,
    Transcript,
    UnknownFormat,
    find_adapter,
    is_session_head,
    list_sessions,
)
from workbench.transcripts.exporting import to_html, to_markdown
from workbench.transcripts.failures import unread
from workbench.transcripts.finding import Match, Newest, add_up_sessions, place_of, search_sessions, worked_in
from workbench.transcripts.models import SessionUsage
from workbench.transcripts.paging import TranscriptPage, read_page
from workbench.transcripts.tally import Tally, UsageRow, total

T = TypeVar("T")

Grouping = Literal["day", "model", "project", "agent"]
Form = Literal["markdown", "html"]

_TELL_EVERY = 50


class Progress(Frozen):
    """How far something is: of `total`, None while that isn't known."""

    done: int
    total: int | None = None


class Unread(Frozen):
    """A session that couldn't be read, and why."""

    ref: SessionRef
    error: SessionReadError


class UsageReport(Frozen):
    """What models used, by group and in all; `unread` is what couldn't be counted."""

    by: Grouping
    rows: tuple[UsageRow, ...]
    total: UsageRow
    unread: tuple[Unread, ...] = ()
    failures: tuple[SessionListFailure, ...] = ()


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which sessions: of these agents (None is all), that worked in `project` or below, last active at `since` or later."""

    agents: tuple[str, ...] | None = None
    project: str | None = None
    since: datetime | None = None

    def check(self) -> None:
        """Raises OptionsError, CapabilityUnsupportedError."""
        for agent in self.agents or ():
            find_adapter(agent)
        if self.project is not None and not os.path.isabs(self.project):
            raise OptionsError(f"project: {self.project!r} is no absolute path.")

    def has(self, head: SessionHead) -> bool:
        """Whether a session is one of them."""
        return (self.project is None or worked_in(head, self.project)) and (
            self.since is None or head.last_active_at >= self.since
        )


class Library:
    """The sessions of every agent on a platform. It writes nothing."""

    def __init__(self, platform: HostPlatform) -> None:
        self._platform = platform
        # By agent and id, by agent and path: what somebody was shown is opened without listing all again.
        self._known: dict[tuple[str, str], dict[str, SessionRef]] = {}
        # A document is made of a whole session: one in memory at a time.
        self._whole = anyio.Semaphore(1)

    async def heads(self, wanted: Wanted) -> AsyncGenerator[SessionHead | SessionListFailure | Progress, None]:
        """Sessions and failures as they come, and how many sessions were looked at."""
        seen, told = 0, 0
        async with aclosing(list_sessions(self._platform, agents=wanted.agents)) as items:
            async for item in items:
                if not is_session_head(item):
                    yield item
                    continue
                seen += 1
                self._learn(item.ref)
                if wanted.has(item):
                    yield item
                if seen - told >= _TELL_EVERY:
                    told = seen
                    yield Progress(done=seen)
        yield Progress(done=seen, total=seen)

    async def newest(
        self, wanted: Wanted, limit: int, after: tuple[datetime, str] | None
    ) -> tuple[list[SessionHead], list[SessionListFailure], bool]:
        """The sessions worked on last, of those before the place `after`; all failures; whether there are more."""
        newest: Newest[SessionHead] = Newest(limit, lambda head: head)

        def see(head: SessionHead) -> None:
            if after is None or place_of(head) < after:
                newest.add(head)

        failures = await self._all(wanted, see)
        return newest.first_to_last(), failures, newest.seen > limit

    async def page(self, agent: str, id: str, cursor: str | None, limit: int) -> TranscriptPage:
        """A part of one session. Raises as `_read`."""

        async def read(ref: SessionRef) -> TranscriptPage | SessionReadError:
            return await read_page(self._platform, ref, cursor=cursor, limit=limit)

        return await self._read(agent, id, read)

    async def document(self, agent: str, id: str, form: Form) -> str:
        """One session as a document. Raises as `_read`."""

        async def read(ref: SessionRef) -> Transcript | SessionReadError:
            return await find_adapter(ref.agent).load(self._platform, ref)

        async with self._whole:
            transcript = await self._read(agent, id, read)
            return await to_thread.run_sync(to_html if form == "html" else to_markdown, transcript)

    async def search(
        self, wanted: Wanted, text: str, limit: int
    ) -> AsyncGenerator[Match | Unread | SessionListFailure | Progress, None]:
        """Where people and agents said a text, the newest sessions first, until there are `limit` places."""
        newest = Newest(None, lambda head: head.ref)
        for failure in await self._all(wanted, newest.add):
            yield failure
        left = limit
        refs = newest.first_to_last()
        async with aclosing(search_sessions(self._platform, text, refs, most=limit)) as results:
            async for number, (ref, matches) in _numbered(results):
                if not isinstance(matches, tuple):
                    yield Unread(ref=ref, error=matches)
                    continue
                for match in matches[:left]:
                    yield match
                left -= len(matches[:left])
                if not left:
                    return
                yield Progress(done=number, total=len(refs))

    async def usage(
        self, wanted: Wanted, by: Grouping, until: datetime | None
    ) -> AsyncGenerator[UsageReport | Progress, None]:
        """What models used since and until then, each response once: how far it is, then the report."""
        tally = Tally(by, since=wanted.since, until=until)
        begun: list[tuple[datetime, SessionRef]] = []
        failures = await self._all(
            wanted, lambda head: begun.append((head.started_at or head.last_active_at, head.ref))
        )
        begun.sort(key=itemgetter(0))
        unread: list[Unread] = []
        refs = [ref for _, ref in begun]
        async with aclosing(add_up_sessions(self._platform, refs)) as results:
            async for number, (ref, used) in _numbered(results):
                if isinstance(used, SessionUsage):
                    tally.add(used)
                else:
                    unread.append(Unread(ref=ref, error=used))
                yield Progress(done=number, total=len(refs))
        rows = tally.rows()
        yield UsageReport(by=by, rows=rows, total=total(rows), unread=tuple(unread), failures=tuple(failures))

    async def _all(self, wanted: Wanted, see: Callable[[SessionHead], None]) -> list[SessionListFailure]:
        """Show each session as it's found; what can't be listed is returned."""
        failures = []
        async with aclosing(self.heads(wanted)) as items:
            async for item in items:
                if isinstance(item, SessionHead):
                    see(item)
                elif isinstance(item, SessionListFailure):
                    failures.append(item)
        return failures

    async def _read(self, agent: str, id: str, read: Callable[[SessionRef], Awaitable[T | SessionReadError]]) -> T:
        """What `read` makes of the session that is called `id`, or, where several are, of the file that is.

        Raises CapabilityUnsupportedError, SessionNotFoundError, OptionsError (session_ambiguous), TranscriptError.
        """
        agent = find_adapter(agent).agent
        if len(known := self._known.get((agent, id), {})) == 1:
            [ref] = known.values()
            found = await read(ref)
            if not isinstance(found, SessionNotFound):
                return _good(found)
        refs: list[SessionRef] = []
        await self._all(Wanted(agents=(agent,)), lambda head: refs.append(head.ref))
        # At once: somebody else may be looking for another of them.
        self._known = {key: refs for key, refs in self._known.items() if key[0] != agent}
        for ref in refs:
            self._learn(ref)
        known = self._known.get((agent, id), {})
        if not known:
            raise SessionNotFoundError(
                f"No session of {agent} is called {id!r}.", hint="/v1/transcripts lists their ids and files."
            )
        if len(known) > 1:
            raise OptionsError(
                f"{len(known)} sessions of {agent} are called {id!r}.",
                code="session_ambiguous",
                hint=f"Name one by its file: {', '.join(list(known)[:3])}.",
            )
        [ref] = known.values()
        return _good(await read(ref))

    def _learn(self, ref: SessionRef) -> None:
        # As they are told: what is no text has another form there.
        told = SessionRef.model_validate_json(ref.model_dump_json())
        for name in {told.path, told.session_id or told.path}:
            self._known.setdefault((ref.agent, name), {})[ref.path] = ref


def _good(found: T | SessionReadError) -> T:
    if isinstance(found, SessionNotFound | ReadFailed | UnknownFormat):
        raise unread(found)
    return found


async def _numbered(results: AsyncIterator[T]) -> AsyncIterator[tuple[int, T]]:
    number = 0
    async for result in results:
        number += 1
        yield number, result
