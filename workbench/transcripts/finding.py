"""Finding one session by what a person knows of it, and text in all of them."""

from __future__ import annotations

import heapq
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from datetime import datetime
from operator import itemgetter
from typing import Generic, TypeVar

import anyio

from workbench.errors import OptionsError, SessionNotFoundError
from workbench.protocol.records import Frozen
from workbench.transcripts.adapter import SummarizingAdapter
from workbench.transcripts.files import FileAdapter, Reading
from workbench.transcripts.folding import fold
from workbench.transcripts.homes import Provider, join
from workbench.transcripts.listing import find_adapter, is_session_head, list_sessions
from workbench.transcripts.models import (
    MAIN_LANE,
    EventKind,
    Place,
    SessionHead,
    SessionReadError,
    SessionRef,
    SessionSummary,
    SessionUsage,
    Source,
    Transcript,
    TranscriptEvent,
)
from workbench.transcripts.platform import HostPlatform
from workbench.transcripts.providers import default_providers
from workbench.transcripts.recorder import Recorder
from workbench.transcripts.values import MAX_TEXT

T = TypeVar("T")

_AROUND = 60
_AT_ONCE = 8


async def find_session(
    platform: HostPlatform,
    named: str,
    *,
    agents: Sequence[str] | None = None,
    providers: Sequence[Provider] | None = None,
) -> SessionRef:
    """A session by the path of its file, by its id, or by the beginning of that.

    Raises:
        SessionNotFoundError: there is none.
        OptionsError: several begin so.
        CapabilityUnsupportedError: an agent of `agents` has no adapter.
    """
    offered = default_providers() if providers is None else providers
    if "/" in named and (ref := await _detect(platform, named, agents, offered)) is not None:
        return ref
    found: dict[str, SessionHead] = {}
    async with aclosing(list_sessions(platform, agents=agents, providers=offered)) as items:
        async for item in items:
            if is_session_head(item) and (item.ref.session_id or "").startswith(named):
                found[item.ref.path] = item
    exact = [head.ref for head in found.values() if head.ref.session_id == named]
    matching = exact or [head.ref for head in found.values()]
    if not matching:
        raise SessionNotFoundError(
            f"No session is called {named!r}.", hint="'workbench transcripts list' shows their ids and files."
        )
    if len(matching) > 1:
        raise OptionsError(
            f"{len(matching)} sessions are called {named!r}.",
            hint=f"Name one by its file: {', '.join(ref.path for ref in matching[:3])}.",
        )
    return matching[0]


async def _detect(
    platform: HostPlatform, path: str, agents: Sequence[str] | None, providers: Sequence[Provider]
) -> SessionRef | None:
    names = [agent for provider in providers for agent in provider.sessions] if agents is None else agents
    for name in dict.fromkeys(names):
        adapter = find_adapter(name, providers=providers)
        if await adapter.detect(platform, SessionRef(agent="", path=path)):
            return SessionRef(agent=adapter.agent, path=path)
    return None


class Match(Frozen):
    """A place in a session that has the text that was looked for."""

    ref: SessionRef
    event: TranscriptEvent
    excerpt: str


async def search_sessions(
    platform: HostPlatform,
    text: str,
    refs: Sequence[SessionRef],
    *,
    most: int | None = None,
    providers: Sequence[Provider] | None = None,
) -> AsyncGenerator[tuple[SessionRef, tuple[Match, ...] | SessionReadError], None]:
    """Where what people and agents said has a text, in whatever case, in each of many sessions, in their order.

    `most` is how many places of one session are kept, the first ones; None is all.
    """

    async def search(ref: SessionRef) -> tuple[Match, ...] | SessionReadError:
        return await _search_session(platform, _Searcher(ref, text.casefold(), most), providers)

    async for ref, found in _each(refs, search):
        yield ref, found


async def _search_session(
    platform: HostPlatform, searcher: _Searcher, providers: Sequence[Provider] | None
) -> tuple[Match, ...] | SessionReadError:
    ref = searcher.ref
    adapter = find_adapter(ref.agent, providers=providers)
    if isinstance(adapter, FileAdapter):
        failure = await adapter.tell(Reading(platform, searcher), ref)
        return tuple(searcher.matches) if failure is None else failure
    transcript = await adapter.load(platform, ref)
    if not isinstance(transcript, Transcript):
        return transcript
    for event in transcript.events:
        searcher.look(event.kind, event.text, event)
    return tuple(searcher.matches)


class _Searcher(Recorder):
    """Keeps nothing of a session but what has the text."""

    def __init__(self, ref: SessionRef, wanted: str, most: int | None) -> None:
        super().__init__(ref, keep=False)
        self._wanted = wanted
        self._most = most
        self.matches: list[Match] = []

    def event(
        self,
        kind: EventKind,
        source: Source,
        *,
        lane: str = MAIN_LANE,
        at: datetime | None = None,
        text: str = "",
        call_id: str | None = None,
    ) -> None:
        pointer = source.pointer() if isinstance(source, Place) else source
        self.look(kind, text, TranscriptEvent(lane=lane, kind=kind, source=pointer, at=at))

    def look(self, kind: EventKind, text: str, event: TranscriptEvent) -> None:
        """Keep the event where it's something that was said, and has the text."""
        if kind not in ("prompt", "reply") or (self._most is not None and len(self.matches) >= self._most):
            return
        at = text.casefold().find(self._wanted)
        if at >= 0:
            excerpt = text[max(0, at - _AROUND) : at + len(self._wanted) + _AROUND]
            shown = event.model_copy(update={"text": text[:MAX_TEXT]})
            self.matches.append(Match(ref=self.ref, event=shown, excerpt=" ".join(excerpt.split())))


class Newest(Generic[T]):
    """Of the sessions of a listing those worked on last, `most` of them (None is all), and of each only what `kept` makes."""

    def __init__(self, most: int | None, kept: Callable[[SessionHead], T]) -> None:
        self._most = most
        self._kept = kept
        self._heap: list[tuple[tuple[datetime, str], int, T]] = []
        self.seen = 0

    def add(self, head: SessionHead) -> None:
        """A session, in whatever order they come."""
        self.seen += 1
        if self._most is None or len(self._heap) < self._most:
            heapq.heappush(self._heap, (place_of(head), self.seen, self._kept(head)))
        elif self._heap and place_of(head) > self._heap[0][0]:
            heapq.heapreplace(self._heap, (place_of(head), self.seen, self._kept(head)))

    def first_to_last(self) -> list[T]:
        """The last one worked on first."""
        return [kept for _, _, kept in sorted(self._heap, key=itemgetter(0, 1), reverse=True)]


def place_of(head: SessionHead) -> tuple[datetime, str]:
    """Where a session stands among all."""
    return head.last_active_at, head.ref.path


def worked_in(head: SessionHead, directory: str) -> bool:
    """Whether a session worked in a directory, or below it."""
    wanted = os.path.abspath(directory)
    return head.cwd is not None and (head.cwd == wanted or head.cwd.startswith(join(wanted, "")))


async def add_up_sessions(
    platform: HostPlatform, refs: Sequence[SessionRef], *, providers: Sequence[Provider] | None = None
) -> AsyncGenerator[tuple[SessionRef, SessionUsage | SessionReadError], None]:
    """What many sessions used, in their order, each in the fastest way that its adapter has."""

    async def add_up(ref: SessionRef) -> SessionUsage | SessionReadError:
        adapter = find_adapter(ref.agent, providers=providers)
        if isinstance(adapter, FileAdapter):
            return await adapter.add_up(platform, ref)
        summary: SessionSummary | Transcript | SessionReadError
        if isinstance(adapter, SummarizingAdapter):
            summary = await adapter.summarize(platform, ref)
        elif isinstance(summary := await adapter.load(platform, ref), Transcript):
            summary = fold(summary)
        return SessionUsage.of(summary) if isinstance(summary, SessionSummary) else summary

    async for ref, used in _each(refs, add_up):
        yield ref, used


async def _each(
    refs: Sequence[SessionRef], work: Callable[[SessionRef], Awaitable[T]]
) -> AsyncGenerator[tuple[SessionRef, T], None]:
    """Do something for each, a few at the same time; the results in their order."""
    for start in range(0, len(refs), _AT_ONCE):
        few = refs[start : start + _AT_ONCE]
        found: dict[int, T] = {}

        async def do(number: int, ref: SessionRef, found: dict[int, T]) -> None:
            found[number] = await work(ref)

        async with anyio.create_task_group() as tasks:
            for number, ref in enumerate(few):
                tasks.start_soon(do, number, ref, found)
        for number, ref in enumerate(few):
            yield ref, found[number]
