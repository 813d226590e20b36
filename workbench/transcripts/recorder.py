"""What adapters tell of a session while they read it, kept whole for a transcript or as numbers for a summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from workbench.protocol.messages import Usage
from workbench.transcripts.models import (
    CAPABILITIES,
    MAIN_LANE,
    CallRecord,
    Capability,
    Compaction,
    EditAction,
    EventKind,
    FileEdit,
    Lane,
    ModelRequest,
    Place,
    SessionPrompt,
    SessionPromptsOptions,
    SessionRef,
    SessionSummaryWithPrompts,
    SessionUsage,
    SkippedRecord,
    Source,
    SourcePointer,
    Transcript,
    TranscriptEvent,
    UsedRequest,
)
from workbench.transcripts.values import MAX_TEXT

_SHOWN_BY: dict[str, Capability] = {"prompt": "prompts", "reply": "replies", "reasoning": "reasoning"}


@dataclass(slots=True)
class _Group:
    """What one message of the agent's gave; replaced as a whole where the agent wrote it anew."""

    # There are as many as records, each with little in it.
    counts: dict[EventKind, int] = field(default_factory=dict)
    events: list[TranscriptEvent] | None = None
    prompts: list[tuple[str, datetime | None]] | None = None


@dataclass(slots=True)
class _Request:
    lane: str
    at: datetime | None
    model: str | None
    usage: Usage
    source: Source


@dataclass(slots=True)
class _Edit:
    lane: str
    path: str
    action: EditAction
    source: Source
    call_id: str | None
    at: datetime | None
    moved_to: str | None


@dataclass(slots=True)
class _Call:
    lane: str
    name: str
    source: Source
    at: datetime | None
    arguments: str
    ok: bool | None = None
    result: str = ""
    result_source: SourcePointer | None = None


def _pointer(source: Source) -> SourcePointer:
    return source.pointer() if isinstance(source, Place) else source


def total_usage(requests: Iterable[ModelRequest]) -> Usage:
    """The sum: an unknown cost of a request that used anything makes the sum's unknown."""
    used = [usage for usage in (request.usage for request in requests) if usage.input_tokens or usage.output_tokens]
    costs = [usage.cost_usd for usage in used]
    return Usage(
        input_tokens=sum(usage.input_tokens for usage in used),
        output_tokens=sum(usage.output_tokens for usage in used),
        reasoning_tokens=sum(usage.reasoning_tokens for usage in used),
        cache_read_tokens=sum(usage.cache_read_tokens for usage in used),
        cache_write_tokens=sum(usage.cache_write_tokens for usage in used),
        cost_usd=None if None in costs or not costs else sum(cost for cost in costs if cost is not None),
    )


class Recorder:
    """Takes what an adapter reads, in the order of its records; gives a transcript, or a summary.

    `keep` is False where only numbers are wanted: then texts other than prompts need not be made. Texts are cut to `longest`
    characters, None leaves them whole. The times that events and requests carry widen `started_at` and `last_active_at`.
    """

    def __init__(
        self,
        ref: SessionRef,
        *,
        keep: bool,
        prompts: SessionPromptsOptions | None = None,
        session_id: str = "",
        longest: int | None = MAX_TEXT,
    ) -> None:
        self.ref = ref
        self.keep = keep
        self._longest = longest
        self.session_id = session_id or ref.session_id or ""
        self.title: str | None = None
        self.cwd: str | None = None
        self.branch: str | None = None
        self.started_at: datetime | None = None
        self.last_active_at: datetime | None = None
        self.lanes: dict[str, Lane] = {}
        self._asked = prompts
        self._groups: dict[str, _Group] = {}
        self._open = self._loose = _Group()
        self._all = [self._open]
        self._abandoned: set[str] = set()
        self._times = False
        self._last_seen: datetime | None = None
        self._requests: dict[str, _Request] = {}
        self._calls: dict[str, _Call] = {}
        self._edits: dict[tuple[str | None, str, str], _Edit] = {}
        self._compactions: list[Compaction] = []
        self._skipped: list[SkippedRecord] = []
        self._skipped_count = 0

    def seen(self, at: datetime | None) -> None:
        """A time of the session."""
        if at is None or at is self._last_seen:
            return
        self._times = True
        self._last_seen = at
        if self.started_at is None or at < self.started_at:
            self.started_at = at
        if self.last_active_at is None or at > self.last_active_at:
            self.last_active_at = at

    def lane(self, lane: Lane) -> None:
        """A line of work; what becomes known of one later completes it."""
        known = self.lanes.get(lane.id)
        if known is not None:
            lane = known.model_copy(update={key: value for key, value in lane if value is not None})
        self.lanes[lane.id] = lane

    def begin(self, key: str, *, anew: bool = True) -> None:
        """What follows belongs to the agent's message of this key, and replaces what it gave before, or adds to it."""
        if self._abandoned:
            self._abandoned.discard(key)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group()
            self._all.append(group)
        elif anew:
            group.counts.clear()
            group.events = group.prompts = None
        self._open = group

    def end(self) -> None:
        """What follows belongs to no message in particular."""
        if self._open is not self._loose:
            self._open = self._loose = _Group()
            self._all.append(self._open)

    def abandon(self, keys: Iterable[str]) -> None:
        """The conversation was taken back to before these messages: their prompts don't count."""
        self._abandoned.update(keys)

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
        if at is not self._last_seen:
            self.seen(at)
        group = self._open
        group.counts[kind] = group.counts.get(kind, 0) + 1
        if kind == "prompt" and lane == MAIN_LANE:
            prompt = (self._kept_prompt(text), at)
            if group.prompts is None:
                group.prompts = [prompt]
            else:
                group.prompts.append(prompt)
        if self.keep:
            event = TranscriptEvent(
                lane=lane,
                kind=kind,
                source=_pointer(source),
                at=at,
                text=text[: self._longest],
                call_id=call_id,
                abandoned=False,
            )
            if group.events is None:
                group.events = [event]
            else:
                group.events.append(event)

    def _kept_prompt(self, text: str) -> str:
        if self.keep:
            return text[:MAX_TEXT]
        if self._asked is None:
            return ""
        most = self._asked.max_characters
        return text[: MAX_TEXT if most is None else min(most, MAX_TEXT)]

    def wants_request(self, id: str, lane: str, output_tokens: int) -> bool:
        """Whether a record of a response would change what is known of it; its usage need not be made else."""
        known = self._requests.get(id)
        if known is None or known.usage.output_tokens < output_tokens:
            return True
        return lane == MAIN_LANE != known.lane

    def request(
        self,
        id: str,
        source: Source,
        *,
        lane: str = MAIN_LANE,
        at: datetime | None = None,
        model: str | None = None,
        usage: Usage,
    ) -> None:
        """What a response used. Of several records of one response the one with the most output tokens counts."""
        self.seen(at)
        known = self._requests.get(id)
        if known is None:
            self._requests[id] = _Request(lane, at, model, usage, source)
            return
        if lane == MAIN_LANE:
            known.lane = lane
        known.at = known.at or at
        known.model = known.model or model
        if usage.output_tokens > known.usage.output_tokens:
            known.usage, known.source = usage, source

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
        self.event("tool_call", source, lane=lane, at=at, call_id=id)
        known = self._calls.get(id)
        if known is not None:
            known.name = name or known.name
            known.arguments = arguments[: self._longest] or known.arguments
            return
        self._calls[id] = _Call(lane, name, source, at, arguments[: self._longest] if self.keep else "")

    def has_words(self) -> bool:
        """Whether anybody said anything so far."""
        return any("prompt" in group.counts or "reply" in group.counts for group in self._all)

    def knows_call(self, id: str) -> bool:
        """Whether this call was told already, where an agent records it twice."""
        return id in self._calls

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
        """A tool call's result; the event too. Of a call that isn't known only the event is kept."""
        self.event("tool_result", source, lane=lane, at=at, call_id=id)
        call = self._calls.get(id)
        if call is not None:
            call.ok = ok
            if self.keep:
                call.result, call.result_source = text[: self._longest], _pointer(source)

    def failed(self, id: str, *, failed: bool) -> None:
        """Whether a call failed, where something else than its result tells."""
        if (call := self._calls.get(id)) is not None:
            call.ok = not failed

    def edit(
        self,
        path: str,
        source: Source,
        *,
        action: EditAction = "update",
        call_id: str | None = None,
        lane: str = MAIN_LANE,
        at: datetime | None = None,
        moved_to: str | None = None,
    ) -> None:
        """A tool call wrote a file; it counts unless that call turns out to have failed."""
        if not path:
            return
        place = "" if call_id is not None else str(source)
        self._edits[call_id, path, place] = _Edit(lane, path, action, source, call_id, at, moved_to)

    def forget_edits(self, call_id: str) -> None:
        """A better record of what this call wrote follows."""
        for key in [key for key in self._edits if key[0] == call_id]:
            del self._edits[key]

    def compaction(
        self,
        source: Source,
        *,
        lane: str = MAIN_LANE,
        at: datetime | None = None,
        trigger: str | None = None,
        tokens_before: int | None = None,
    ) -> None:
        """A compaction; the event too."""
        self.event("compaction", source, lane=lane, at=at)
        self._compactions.append(
            Compaction(lane=lane, source=_pointer(source), at=at, trigger=trigger, tokens_before=tokens_before)
        )

    def skip(self, source: Source, reason: str) -> None:
        """A record that can't be read."""
        self._skipped_count += 1
        if self.keep:
            self._skipped.append(SkippedRecord(source=_pointer(source), reason=reason))

    def transcript(self) -> Transcript:
        """All of it."""
        dead = {id(self._groups[key]) for key in self._abandoned if key in self._groups}
        events: list[TranscriptEvent] = []
        for group in self._all:
            if group.events is None:
                continue
            if id(group) in dead:
                events.extend(event.model_copy(update={"abandoned": True}) for event in group.events)
            else:
                events.extend(group.events)
        return Transcript.model_construct(
            ref=self.ref,
            session_id=self.session_id,
            title=self.title,
            cwd=self.cwd,
            branch=self.branch,
            started_at=self.started_at,
            last_active_at=self.last_active_at,
            capabilities=self._capabilities(),
            lanes=self._lanes(),
            events=tuple(events),
            requests=self._all_requests(),
            tool_calls=tuple(
                CallRecord(
                    id=key,
                    lane=call.lane,
                    name=call.name,
                    source=_pointer(call.source),
                    at=call.at,
                    arguments=call.arguments,
                    ok=call.ok,
                    result=call.result,
                    result_source=call.result_source,
                )
                for key, call in self._calls.items()
            ),
            edits=tuple(
                FileEdit(
                    lane=edit.lane,
                    path=edit.path,
                    action=edit.action,
                    source=_pointer(edit.source),
                    call_id=edit.call_id,
                    at=edit.at,
                    moved_to=edit.moved_to,
                )
                for edit in self._good_edits()
            ),
            compactions=tuple(self._compactions),
            skipped=tuple(self._skipped),
        )

    def summary(self) -> SessionSummaryWithPrompts:
        """The numbers."""
        dead = {id(self._groups[key]) for key in self._abandoned if key in self._groups}
        alive = (group for group in self._all if group.prompts is not None and id(group) not in dead)
        prompts = [prompt for group in alive for prompt in group.prompts or ()]
        most = None if self._asked is None else self._asked.max_prompts
        requests = self._all_requests()
        return SessionSummaryWithPrompts.model_construct(
            ref=self.ref,
            session_id=self.session_id,
            title=self.title,
            cwd=self.cwd,
            branch=self.branch,
            started_at=self.started_at,
            last_active_at=self.last_active_at,
            capabilities=self._capabilities(),
            lanes=len(self._lanes()),
            events=self._counts(),
            requests=requests,
            usage=total_usage(requests),
            tool_calls=dict(Counter(call.name for call in self._calls.values())),
            failed_calls=sum(call.ok is False for call in self._calls.values()),
            edited=dict(Counter(edit.path for edit in self._good_edits())),
            compactions=len(self._compactions),
            skipped=self._skipped_count,
            prompt_count=len(prompts),
            prompts=()
            if self._asked is None
            else tuple(SessionPrompt(text=text, at=at) for text, at in prompts[:most]),
        )

    def used(self) -> SessionUsage:
        """What was used."""
        requests = [UsedRequest(id, each.at, each.model, each.usage) for id, each in self._requests.items()]
        return SessionUsage(self.ref, self.session_id, self.cwd, self.last_active_at, requests)

    def _all_requests(self) -> tuple[ModelRequest, ...]:
        return tuple(
            ModelRequest(
                id=id,
                lane=request.lane,
                source=_pointer(request.source),
                usage=request.usage,
                model=request.model,
                at=request.at,
            )
            for id, request in self._requests.items()
        )

    def _counts(self) -> dict[EventKind, int]:
        counts: dict[EventKind, int] = {}
        for group in self._all:
            for kind, number in group.counts.items():
                counts[kind] = counts.get(kind, 0) + number
        return counts

    def _lanes(self) -> tuple[Lane, ...]:
        return (self.lanes.get(MAIN_LANE, Lane(id=MAIN_LANE)), *(x for k, x in self.lanes.items() if k != MAIN_LANE))

    def _good_edits(self) -> list[_Edit]:
        calls = self._calls
        return [
            edit
            for edit in self._edits.values()
            if edit.call_id is None or edit.call_id not in calls or calls[edit.call_id].ok is not False
        ]

    def _capabilities(self) -> tuple[Capability, ...]:
        shown: set[Capability] = {_SHOWN_BY[kind] for kind in self._counts() if kind in _SHOWN_BY}
        if self._calls:
            shown.add("tool_calls")
        if self._good_edits():
            shown.add("edits")
        if self._requests:
            shown.add("usage")
        if any(request.usage.cost_usd is not None for request in self._requests.values()):
            shown.add("costs")
        if self._times:
            shown.add("times")
        if len(self._lanes()) > 1:
            shown.add("lanes")
        if self._compactions:
            shown.add("compactions")
        return tuple(name for name in CAPABILITIES if name in shown)
