"""A reply as it grows: what every wire format's pieces are put together with."""

from __future__ import annotations

import json
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench.models.sse import ServerEvent
from workbench.protocol.messages import (
    CompletionResponse,
    ImageAttachment,
    ProviderState,
    TokenDelta,
    ToolCall,
    Usage,
)

Kind = Literal["text", "reasoning"]
OnDelta = Callable[[TokenDelta], None]

_FINISH = {
    **dict.fromkeys(("stop", "end_turn", "stop_sequence", "completed", "eos"), "stop"),
    **dict.fromkeys(("tool_calls", "tool_use", "function_call"), "tool_calls"),
    **dict.fromkeys(("length", "max_tokens", "max_output_tokens", "model_context_window_exceeded"), "length"),
    **dict.fromkeys(("content_filter", "refusal", "safety", "recitation", "blocklist", "spii"), "content_filter"),
    **dict.fromkeys(("prohibited_content", "image_safety", "language"), "content_filter"),
}
_STRAY = "\"' \t\r\n"
_THINK, _THOUGHT = "<think>", "</think>"


def parse_arguments(raw: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """The arguments of a call: none at all are an empty object; None where they aren't one."""
    if isinstance(raw, dict):
        return raw
    text = (raw or "").strip()
    if not text.strip(_STRAY):
        return {}
    try:
        value, end = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return None
    # Some servers leave a stray quote behind the object, or put it into a string.
    if text[end:].strip(_STRAY):
        return None
    if isinstance(value, str):
        return parse_arguments(value) if value != text else None
    if value is None:
        return {}
    return value if isinstance(value, dict) else None


def new_call_id() -> str:
    """An id of our own for a call, fit for every provider that takes any."""
    return f"call_{uuid.uuid4().hex[:24]}"


def joined(text: str) -> str:
    """Surrogate pairs that came as two escapes put together, a lone one replaced: what UTF-8 can carry."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def _text_or_none(value: str | None) -> str | None:
    """The value, which came from outside and may be anything. Raises TypeError."""
    if value is None or isinstance(value, str):
        return value
    raise TypeError(f"{value!r} is no text")


@dataclass(slots=True)
class Call:
    """A call that is still being received; `theirs` is the provider's id of it, empty where it has none."""

    theirs: str = ""
    name: str = ""
    index: int | None = None
    pieces: list[str] = field(default_factory=list)
    given: dict[str, Any] | None = None
    id: str = field(default_factory=new_call_id)

    @property
    def raw(self) -> str:
        """The arguments as they came."""
        return joined("".join(self.pieces)) if self.given is None else json.dumps(self.given, ensure_ascii=False)

    @property
    def is_complete(self) -> bool:
        """Whether its arguments are an object that nothing can be added to."""
        return self.given is not None or (bool(self.raw.strip()) and parse_arguments(self.raw) is not None)

    def built(self, *, cut: bool) -> ToolCall:
        """The call; of one that the reply's end may have `cut` off, no arguments aren't an empty object."""
        raw = self.raw
        arguments = self.given if self.given is not None else parse_arguments(raw)
        if cut and not raw.strip():
            arguments = None
        return ToolCall(id=self.id, name=self.name, arguments=arguments, raw_arguments=raw)


class Reply(ABC):
    """What has come of a reply so far; each wire format has its own kind, which takes in the events.

    `begun_at` is the moment of the first token, None before it. `done` says that nothing more will come. `usage` holds what
    the provider reported so far, without our own clock; `hour_writes` the tokens it cached for an hour; `state` what it
    needs back.
    """

    def __init__(self, on_delta: OnDelta | None = None) -> None:
        self._on_delta = on_delta
        self._pending: list[TokenDelta] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._held = {"text": "", "reasoning": ""}
        self._opening: str | None = None
        self.calls: list[Call] = []
        self.images: list[ImageAttachment] = []
        self._finish: str | None = None
        self.begun_at: float | None = None
        self.done = False
        self.usage = Usage()
        self.hour_writes = 0
        self.state: bytes | None = None

    @property
    def finish(self) -> str | None:
        """The provider's reason for the end, None while none was said."""
        return self._finish

    @finish.setter
    def finish(self, reason: str | None) -> None:
        self._finish = _text_or_none(reason)

    @property
    def finished(self) -> bool:
        """Whether the provider said that it's the whole reply."""
        return self.done or self.finish is not None

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._text)

    @property
    def reasoning(self) -> str:
        """The visible reasoning so far."""
        return "".join(self._reasoning)

    @abstractmethod
    def event(self, event: ServerEvent) -> None:
        """An event of a stream. Raises ModelRequestError, and what reading wrong data raises."""

    @abstractmethod
    def whole(self, body: Any) -> None:
        """The JSON of an answer in one piece. Raises as `event` does."""

    def begin(self) -> None:
        """Note the moment of the first token."""
        if self.begun_at is None:
            self.begun_at = time.monotonic()

    def open_call(self, theirs: str = "", name: str = "", index: int | None = None) -> Call:
        """A further call."""
        self.begin()
        self.calls.append(Call(_text_or_none(theirs) or "", _text_or_none(name) or "", index))
        return self.calls[-1]

    def add_text(self, text: str) -> None:
        """A piece of the visible reply."""
        self._add("text", self._text, text)

    def add_reasoning(self, text: str) -> None:
        """A piece of visible reasoning."""
        self._add("reasoning", self._reasoning, text)

    def add_tagged_text(self, text: str) -> None:
        """As `add_text`, of a model that may begin with reasoning between <think> tags."""
        if not text or (self._opening is None and self._text):
            return self.add_text(text)
        pending = (self._opening or "") + text
        start = pending.lstrip()
        if not start.startswith(_THINK):
            if _THINK.startswith(start):
                self._opening = pending
                return None
            self._opening = None
            return self.add_text(pending)
        thought, found, after = start[len(_THINK) :].partition(_THOUGHT)
        if found:
            self._opening = None
            self.add_reasoning(thought)
            return self.add_text(after.lstrip())
        # What may be the first half of the closing tag waits for the rest.
        keep = next((n for n in range(len(_THOUGHT) - 1, 0, -1) if thought.endswith(_THOUGHT[:n])), 0)
        said = thought[: len(thought) - keep]
        self.add_reasoning(said)
        self._opening = _THINK + thought[len(said) :]
        return None

    def flush(self) -> None:
        """The end: what was held back is let go."""
        opening, self._opening = self._opening, None
        if opening and opening.lstrip().startswith(_THINK):
            self.add_reasoning(opening.lstrip()[len(_THINK) :])
        elif opening:
            self.add_text(opening)
        if self._held["text"]:
            self._say("text", self._text, "\ufffd")
        if self._held["reasoning"]:
            self._say("reasoning", self._reasoning, "\ufffd")

    def _add(self, kind: Kind, pieces: list[str], text: str) -> None:
        text = self._held[kind] + text
        cut = bool(text) and "\ud800" <= text[-1] <= "\udbff"
        self._held[kind] = text[-1] if cut else ""
        self._say(kind, pieces, joined(text[:-1] if cut else text))

    def _say(self, kind: Kind, pieces: list[str], text: str) -> None:
        if not text:
            return
        self.begin()
        pieces.append(text)
        self._pending.append(TokenDelta(kind=kind, text=text))

    def deliver(self) -> None:
        """Hand on the pieces that have come since the last time. Raises what the one who gets them raises."""
        pending, self._pending = self._pending, []
        if self._on_delta is not None:
            for delta in pending:
                self._on_delta(delta)

    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The calls; the last one of a reply that hit its limit may be cut, and one that can't be read is."""
        cut = self.finish is not None and _FINISH.get(self.finish.lower()) == "length"
        last = len(self.calls) - 1
        return tuple(call.built(cut=cut and number == last) for number, call in enumerate(self.calls))

    def finish_reason(self, calls: Iterable[ToolCall]) -> str:
        """`stop`, `tool_calls`, `length`, `content_filter`, or the provider's own; calls say themselves that there are some."""
        calls = tuple(calls)
        reason = _FINISH.get((self.finish or "stop").lower(), self.finish or "stop")
        if reason in ("length", "content_filter"):
            return reason
        if calls:
            return "length" if calls[-1].arguments is None else "tool_calls"
        return "stop" if reason == "tool_calls" else reason

    def response(self, provider: str, model: str, usage: Usage) -> CompletionResponse:
        """The whole reply, with its `usage`."""
        calls = self.tool_calls()
        state = None if self.state is None else ProviderState(provider=provider, model=model, data=self.state)
        return CompletionResponse(
            content=self.text,
            reasoning=self.reasoning or None,
            tool_calls=calls,
            images=tuple(self.images),
            usage=usage,
            finish_reason=self.finish_reason(calls),
            provider_state=state,
        )
