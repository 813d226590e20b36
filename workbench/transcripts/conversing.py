"""A transcript's conversation as messages that any model can go on from."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from workbench.protocol.messages import ChatMessage, ImageAttachment, ToolCall
from workbench.transcripts.models import MAIN_LANE, CallRecord, SourcePointer, Transcript, TranscriptEvent
from workbench.transcripts.values import MAX_TEXT, parse, without_surrogates

_NO_NAME = re.compile("[^A-Za-z0-9_-]")
_NAME_CHARACTERS = 64
_LEVELS = 80
_EMPTY = "(no output)"
_NO_RESULT = "No result of this call was recorded."
_CUT = "\n[The rest of it was left out.]"
_BEGUN = "What was asked for isn't in the records of this session."
_SUMMARY = "Summary of the conversation so far:"


@dataclass(frozen=True, slots=True)
class Enclosed:
    """What a transcript leaves to its records: images, by where they stand, and summaries, by that of their compaction."""

    images: Mapping[SourcePointer, tuple[ImageAttachment, ...]] = field(default_factory=dict)
    summaries: Mapping[SourcePointer, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """One of the agent's messages: its id, that of the user's message before it, when it was, and the agent's call ids."""

    id: str
    message_id: str
    at: datetime | None
    calls: frozenset[str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, each call followed by its result, and the agent's among them in order."""

    messages: tuple[ChatMessage, ...]
    replies: tuple[Reply, ...]


def conversation(transcript: Transcript, enclosed: Enclosed) -> Conversation:
    """The main lane's, as far as it wasn't taken back.

    What agents put before the model by themselves is left out, and so is reasoning, with what only its provider could read.
    What was compacted stays, since it can be gone back to, and its summary follows it.
    """
    building = _Building(transcript, enclosed)
    events = [event for event in transcript.events if event.lane == MAIN_LANE and not event.abandoned]
    for number, event in enumerate(events):
        building.add(event, events[number + 1 : number + 4])
    building.close()
    return Conversation(tuple(building.messages), tuple(building.replies))


class _Building:
    """The messages so far, and the reply that is being put together."""

    def __init__(self, transcript: Transcript, enclosed: Enclosed) -> None:
        self.messages: list[ChatMessage] = []
        self.replies: list[Reply] = []
        self._known = {call.id: call for call in transcript.tool_calls}
        self._images = dict(enclosed.images)
        self._summaries = enclosed.summaries
        self._title = transcript.title
        self._at = transcript.started_at or datetime.fromtimestamp(0, UTC)
        self._told: set[str] = set()
        self._asked = ""
        self._texts: list[str] = []
        self._calls: list[CallRecord] = []
        self._answered = False
        self._since: datetime | None = None

    def add(self, event: TranscriptEvent, following: Sequence[TranscriptEvent]) -> None:
        """The next event."""
        if event.kind == "prompt":
            self.close()
            self._ask(event.text, self._images.pop(event.source, ()), event.at)
        elif event.kind == "reply" and event.text.strip():
            if self._calls:
                self.close()
            self._since = self._since or event.at
            self._texts.append(event.text)
        elif event.kind == "tool_call" and (call := self._known.get(event.call_id or "")) is not None:
            self._call(call)
        elif event.kind == "tool_result":
            self._answered = self._answered or any(call.id == event.call_id for call in self._calls)
        elif event.kind == "compaction":
            self.close()
            if summary := self._summaries.get(event.source) or _told_after(following):
                self._ask(f"{_SUMMARY}\n\n{summary}", (), event.at)

    def _call(self, call: CallRecord) -> None:
        if call.id in self._told:
            return
        if self._answered:
            self.close()
        self._told.add(call.id)
        self._since = self._since or call.at
        self._calls.append(call)

    def _ask(self, text: str, images: tuple[ImageAttachment, ...], at: datetime | None) -> None:
        if text.strip() or images:
            self._asked = self._put("user", text, at, images=images)

    def close(self) -> None:
        """End the reply: its message, and the results of its calls."""
        if self._texts or self._calls:
            if not self._asked:
                self._ask(self._title or _BEGUN, (), self._since)
            calls = [(_tool_call(call), call) for call in self._calls]
            id = self._put(
                "assistant", "\n\n".join(self._texts), self._since, tool_calls=tuple(made for made, _ in calls)
            )
            told = frozenset(call.id for call in self._calls)
            self.replies.append(Reply(id, self._asked, self._since, told))
            for made, call in calls:
                images = () if call.result_source is None else self._images.pop(call.result_source, ())
                self._put(
                    "tool",
                    _result(call),
                    call.at,
                    tool_call_id=made.id,
                    is_error=call.ok is False or (call.ok is None and not call.result.strip()),
                    images=images,
                )
        self._texts, self._calls, self._answered, self._since = [], [], False, None

    def _put(self, role: str, content: str, at: datetime | None, **fields: object) -> str:
        self._at = at or self._at
        id = f"msg_{uuid.uuid4().hex}"
        made = {"id": id, "role": role, "content": without_surrogates(content), "created_at": self._at, **fields}
        self.messages.append(ChatMessage.model_validate(made))
        return id


def _told_after(following: Sequence[TranscriptEvent]) -> str:
    """The summary that an agent put before the model in the user's name, right after it compacted."""
    for event in following:
        if event.kind == "context" and event.text.strip():
            return event.text
        if event.kind != "notice":
            break
    return ""


def _tool_call(call: CallRecord) -> ToolCall:
    given = _arguments(call.arguments)
    name = _NO_NAME.sub("_", call.name)[:_NAME_CHARACTERS] or "unnamed"
    raw = json.dumps(given, ensure_ascii=False)
    return ToolCall(id=f"call_{uuid.uuid4().hex}", name=name, arguments=given, raw_arguments=raw)


def _arguments(text: str) -> dict[str, object]:
    """The arguments as an object, which all formats ask for; what is none becomes the one value of it."""
    if not text.strip():
        return {}
    try:
        given = parse(text.encode("utf-8", "replace"))
    except ValueError:
        given = None
    if isinstance(given, dict) and _is_flat(given):
        return given
    return {"input": without_surrogates(text)}


def _is_flat(value: object) -> bool:
    """Whether a value is nested little enough for every store and provider, and has finite numbers only."""
    level: list[object] = [value]
    for _ in range(_LEVELS):
        if any(isinstance(one, float) and not -1e308 < one < 1e308 for one in level):
            return False
        level = [below for one in level for below in _below(one)]
        if not level:
            return True
    return False


def _below(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value


def _result(call: CallRecord) -> str:
    if not call.result.strip():
        return _NO_RESULT if call.ok is None else _EMPTY
    return call.result if len(call.result) <= MAX_TEXT else call.result[:MAX_TEXT] + _CUT
