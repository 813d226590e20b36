"""Finding one session by what a person knows of it, and text in all of them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import aclosing

import anyio

from workbench.errors import OptionsError, SessionNotFoundError
from workbench.protocol.records import Frozen
from workbench.transcripts.adapter import SummarizingAdapter
from workbench.transcripts.folding import fold
from workbench.transcripts.homes import Provider, join
from workbench.transcripts.listing import find_adapter, is_session_head, list_sessions
from workbench.transcripts.models import (
    SessionHead,
    SessionListFailure,
    SessionReadError,
    SessionRef,
    SessionSummary,
    Transcript,
    TranscriptEvent,
)
from workbench.transcripts.platform import HostPlatform
from workbench.transcripts.providers import default_providers

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
    heads: Sequence[SessionHead],
    *,
    providers: Sequence[Provider] | None = None,
    on_done: Callable[[], None] = lambda: None,
) -> AsyncIterator[Match]:
    """Where what people and agents said has a text, in whatever case; a session that can't be read has it nowhere."""
    wanted = text.casefold()
    for head in heads:
        transcript = await find_adapter(head.ref.agent, providers=providers).load(platform, head.ref)
        on_done()
        if isinstance(transcript, Transcript):
            for match in _matches(transcript, wanted):
                yield match


def _matches(transcript: Transcript, wanted: str) -> Iterator[Match]:
    for event in transcript.events:
        if event.kind in ("prompt", "reply"):
            at = event.text.casefold().find(wanted)
            if at >= 0:
                excerpt = event.text[max(0, at - _AROUND) : at + len(wanted) + _AROUND]
                yield Match(ref=transcript.ref, event=event, excerpt=" ".join(excerpt.split()))


def newest_first(items: Sequence[SessionHead | SessionListFailure]) -> list[SessionHead]:
    """The sessions of a listing, the last one worked on first."""
    return sorted(filter(is_session_head, items), key=lambda head: head.last_active_at, reverse=True)


def worked_in(head: SessionHead, directory: str) -> bool:
    """Whether a session worked in a directory, or below it."""
    wanted = os.path.abspath(directory)
    return head.cwd is not None and (head.cwd == wanted or head.cwd.startswith(join(wanted, "")))


async def summarize_session(
    platform: HostPlatform, ref: SessionRef, *, providers: Sequence[Provider] | None = None
) -> SessionSummary | SessionReadError:
    """A session's numbers, in the fastest way that its adapter has."""
    adapter = find_adapter(ref.agent, providers=providers)
    if isinstance(adapter, SummarizingAdapter):
        return await adapter.summarize(platform, ref)
    loaded = await adapter.load(platform, ref)
    return fold(loaded) if isinstance(loaded, Transcript) else loaded


async def summarize_sessions(
    platform: HostPlatform, refs: Sequence[SessionRef], *, providers: Sequence[Provider] | None = None
) -> AsyncIterator[tuple[SessionRef, SessionSummary | SessionReadError]]:
    """The numbers of many sessions, in their order; a few are read at the same time."""
    for start in range(0, len(refs), _AT_ONCE):
        few = refs[start : start + _AT_ONCE]
        found: dict[int, SessionSummary | SessionReadError] = {}

        async def summarize(number: int, ref: SessionRef, found: dict[int, SessionSummary | SessionReadError]) -> None:
            found[number] = await summarize_session(platform, ref, providers=providers)

        async with anyio.create_task_group() as tasks:
            for number, ref in enumerate(few):
                tasks.start_soon(summarize, number, ref, found)
        for number, ref in enumerate(few):
            yield ref, found[number]
