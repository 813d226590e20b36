"""A part of a session's events, read without the rest: memory is that of the part, however long the session is."""

from __future__ import annotations

import bisect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from pydantic import AwareDatetime, Field

from workbench.errors import OptionsError
from workbench.protocol.messages import Usage
from workbench.protocol.records import Frozen
from workbench.transcripts.diffs import FileDiff, diffs_of_call
from workbench.transcripts.files import FileAdapter, Reading
from workbench.transcripts.homes import Provider
from workbench.transcripts.listing import find_adapter
from workbench.transcripts.models import (
    MAIN_LANE,
    CallRecord,
    Capability,
    EventKind,
    FileEdit,
    Lane,
    Place,
    SessionReadError,
    SessionRef,
    Source,
    Transcript,
    TranscriptEvent,
)
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.recorder import Recorder, total_usage

Position = tuple[int, int]
"""Of an event: which of the agent's messages it's of, and which it is of those that this message gave."""


class TranscriptPage(Frozen):
    """A part of a session.

    `events` are this part's, `tool_calls`, `edits` and `diffs` those of its calls; all else is of the whole session: `edited`
    how often each file was written, `skipped` how many records couldn't be read. `next_cursor` is what the following part is
    asked for with, None at the end.
    """

    ref: SessionRef
    session_id: str
    title: str | None = None
    cwd: str | None = None
    branch: str | None = None
    started_at: AwareDatetime | None = None
    last_active_at: AwareDatetime | None = None
    capabilities: tuple[Capability, ...] = ()
    lanes: tuple[Lane, ...] = ()
    models: tuple[str, ...] = ()
    usage: Usage = Usage()
    edited: Mapping[str, int] = Field(default_factory=dict)
    skipped: int = 0
    events: tuple[TranscriptEvent, ...] = ()
    tool_calls: tuple[CallRecord, ...] = ()
    edits: tuple[FileEdit, ...] = ()
    diffs: tuple[FileDiff, ...] = ()
    next_cursor: str | None = None


async def read_page(
    platform: SessionPlatform,
    ref: SessionRef,
    *,
    cursor: str | None = None,
    limit: int = 200,
    providers: Sequence[Provider] | None = None,
) -> TranscriptPage | SessionReadError:
    """The part of a session that a cursor leads to, from the beginning without one, of at most so many events.

    The session is read whole for each part, since later records tell of earlier ones. Failures are values.

    Raises:
        OptionsError: the cursor is none of ours.
        CapabilityUnsupportedError: the session's agent has no adapter.
    """
    window = _Window(ref, _position(cursor), limit)
    adapter = find_adapter(ref.agent, providers=providers)
    if isinstance(adapter, FileAdapter):
        failure = await adapter.tell(Reading(platform, window), ref)
        return window.page() if failure is None else failure
    transcript = await adapter.load(platform, ref)
    return _cut(transcript, window.start[1], limit) if isinstance(transcript, Transcript) else transcript


class _Window(Recorder):
    """Keeps the texts of the first `size` events from a position on, and of the calls among them.

    Which events those are isn't known before the end: an agent may write a message anew, or add to an older one. So the
    ones that were seen last give way, and the part ends before the first that did.
    """

    def __init__(self, ref: SessionRef, start: Position, size: int) -> None:
        super().__init__(ref, keep=True)
        self.start = start
        self._size = size
        self._number = 0
        self._numbers: dict[str, int] = {}
        self._kept: list[tuple[Position, TranscriptEvent]] = []
        self._calls_kept: set[str] = set()
        self._next: Position | None = None

    def begin(self, key: str, *, anew: bool = True) -> None:
        """What follows belongs to the agent's message of this key, and replaces what it gave before, or adds to it."""
        super().begin(key, anew=anew)
        self._number = self._numbers.setdefault(key, len(self._all) - 1)
        if anew:
            for pair in [pair for pair in self._kept if pair[0][0] == self._number]:
                self._kept.remove(pair)
                self._forget(pair[1])

    def end(self) -> None:
        """What follows belongs to no message in particular."""
        super().end()
        self._number = len(self._all) - 1

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
        """One thing that happened."""
        self.seen(at)
        counts = self._open.counts
        position = (self._number, sum(counts.values()))
        counts[kind] = counts.get(kind, 0) + 1
        if position < self.start or (self._next is not None and position >= self._next):
            return
        pointer = source.pointer() if isinstance(source, Place) else source
        shown = text[: self._longest]
        event = TranscriptEvent(lane=lane, kind=kind, source=pointer, at=at, text=shown, call_id=call_id)
        bisect.insort(self._kept, (position, event), key=lambda pair: pair[0])
        if kind == "tool_call" and call_id is not None:
            self._calls_kept.add(call_id)
        if len(self._kept) > self._size:
            self._next, last = self._kept.pop()
            self._forget(last)

    def call(
        self,
        id: str,
        name: str,
        source: Source,
        *,
        lane: str = MAIN_LANE,
        at: datetime | None = None,
        arguments: str = "",
    ) -> None:
        """A tool call; the event too."""
        super().call(id, name, source, lane=lane, at=at, arguments=arguments)
        self._shorten(id)

    def result(
        self,
        id: str,
        source: Source,
        *,
        ok: bool | None,
        lane: str = MAIN_LANE,
        at: datetime | None = None,
        text: str = "",
    ) -> None:
        """A tool call's result; the event too."""
        super().result(id, source, ok=ok, lane=lane, at=at, text=text)
        self._shorten(id)

    def skip(self, source: Source, reason: str) -> None:
        """A record that can't be read."""
        self._skipped_count += 1

    def _forget(self, event: TranscriptEvent) -> None:
        if event.kind == "tool_call" and event.call_id is not None:
            self._calls_kept.discard(event.call_id)
            self._shorten(event.call_id)

    def _shorten(self, id: str) -> None:
        call = self._calls.get(id)
        if call is not None and id not in self._calls_kept:
            call.arguments = call.result = ""

    def page(self) -> TranscriptPage:
        """The part."""
        dead = {self._numbers[key] for key in self._abandoned if key in self._numbers}
        whole = self.transcript()
        calls = tuple(call for call in whole.tool_calls if call.id in self._calls_kept)
        return _page(
            whole,
            events=tuple(
                event.model_copy(update={"abandoned": True}) if position[0] in dead else event
                for position, event in self._kept
            ),
            calls=calls,
            skipped=self._skipped_count,
            following=self._next,
        )


def _cut(transcript: Transcript, start: int, limit: int) -> TranscriptPage:
    events = transcript.events[start : start + limit]
    ids = {event.call_id for event in events if event.kind == "tool_call"}
    return _page(
        transcript,
        events=events,
        calls=tuple(call for call in transcript.tool_calls if call.id in ids),
        skipped=len(transcript.skipped),
        following=(0, start + limit) if start + limit < len(transcript.events) else None,
    )


def _page(
    whole: Transcript,
    *,
    events: tuple[TranscriptEvent, ...],
    calls: tuple[CallRecord, ...],
    skipped: int,
    following: Position | None,
) -> TranscriptPage:
    ids = {call.id for call in calls}
    edits = tuple(edit for edit in whole.edits if edit.call_id in ids)
    wrote = {edit.call_id for edit in edits}
    return TranscriptPage.model_construct(
        ref=whole.ref,
        session_id=whole.session_id,
        title=whole.title,
        cwd=whole.cwd,
        branch=whole.branch,
        started_at=whole.started_at,
        last_active_at=whole.last_active_at,
        capabilities=whole.capabilities,
        lanes=whole.lanes,
        models=tuple(dict.fromkeys(request.model for request in whole.requests if request.model)),
        usage=total_usage(whole.requests),
        edited=dict(Counter(edit.path for edit in whole.edits)),
        skipped=skipped,
        events=events,
        tool_calls=calls,
        edits=edits,
        diffs=tuple(diff for call in calls if call.id in wrote for diff in diffs_of_call(call)),
        next_cursor=None if following is None else f"{following[0]}.{following[1]}",
    )


_CURSOR = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})")


def _position(cursor: str | None) -> Position:
    if cursor is None:
        return (0, 0)
    if (said := _CURSOR.fullmatch(cursor)) is None:
        raise OptionsError(
            f"cursor: {cursor[:40]!r} is none.", hint="Take the `next_cursor` of the part before, or none."
        )
    return int(said[1]), int(said[2])
