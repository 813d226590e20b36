"""What a conversation is made of, and what crosses the boundary to a model and to a tool."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, Field, PlainSerializer, field_validator, model_validator

from workbench.protocol.records import Frozen, readable

Role = Literal["system", "user", "assistant", "tool"]
Effort = Literal["low", "medium", "high"]

# The largest count that every reader of JSON reads as it was written.
_MOST_TOKENS = 2**53 - 1


class ImageAttachment(Frozen):
    """An image of a message; `data` is base64 in JSON."""

    media_type: str
    data: bytes


class CacheBreakpoint(Frozen):
    """The provider is asked to cache the request up to the message that carries it."""

    ttl: Literal["5m", "1h"] = "5m"


class ProviderState(Frozen):
    """What a provider needs back byte for byte, such as signed reasoning; dropped for any other provider or model."""

    provider: str
    model: str
    data: bytes


class ToolCall(Frozen):
    """A call that a model asks for.

    `id` is ours and unique in the session; the provider's lives in `provider_state`. `arguments` is None where
    `raw_arguments` isn't a JSON object: such a call is never run.
    """

    id: str
    name: str
    arguments: dict[str, Any] | None
    raw_arguments: str


class ChatMessage(Frozen):
    """One message of a conversation; `tool_call_id` is the call that a message of role `tool` answers."""

    id: str
    role: Role
    content: str = ""
    images: tuple[ImageAttachment, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    is_error: bool = False
    cache_breakpoint: CacheBreakpoint | None = None
    provider_state: ProviderState | None = None
    created_at: AwareDatetime


class Usage(Frozen):
    """What one or several model calls used.

    `input_tokens` include cached ones, `output_tokens` reasoning. `provider` is the backend that answered, `latency` the
    seconds to the first token, `duration` those to the last. None is unknown.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    cost_usd: float | None = None
    provider: str | None = None
    latency: float | None = None
    duration: float | None = None
    tokens_per_second: float | None = None

    @field_validator("cost_usd", "latency", "duration", "tokens_per_second")
    @classmethod
    def _known(cls, value: float | None) -> float | None:
        """What nothing can cost or take is unknown: it must not fill a budget up again, or make of every sum no number."""
        return value if value is not None and math.isfinite(value) and value >= 0 else None

    @field_validator("input_tokens", "output_tokens", "reasoning_tokens", "cache_read_tokens", "cache_write_tokens")
    @classmethod
    def _counted(cls, value: int) -> int:
        return min(max(value, 0), _MOST_TOKENS)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was reported at all; such a usage adds nothing to a sum, not even an unknown cost."""
        return self == Usage()

    def __add__(self, other: Usage) -> Usage:
        """The sum. An unknown cost makes the sum unknown; what belongs to one call only is kept where both agree."""
        if self.is_empty:
            return other
        if other.is_empty:
            return self
        known = self.cost_usd is not None and other.cost_usd is not None
        durations = [usage.duration for usage in (self, other) if usage.duration is not None]
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            reasoning_tokens=self.reasoning_tokens + other.reasoning_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            cost_usd=(self.cost_usd or 0.0) + (other.cost_usd or 0.0) if known else None,
            provider=self.provider if self.provider == other.provider else None,
            duration=sum(durations) if len(durations) == 2 else None,
        )


class ToolSchema(Frozen):
    """What a tool is called with. Models are sent the first three fields only.

    `parameters` is a JSON schema. `parallel` says that the tool may run beside other calls of its reply; calls that share
    the value of an argument named in `resources` take turns.
    """

    name: str
    description: str
    parameters: dict[str, Any]
    permission: Literal["auto", "ask"] = "auto"
    parallel: bool = False
    resources: tuple[str, ...] = ()


class ToolExecutionResult(Frozen):
    """What a tool returns: `content` and `images` for the model, `data` for clients only.

    `is_error` is an expected failure; `terminate` ends the run after the results of this reply.
    """

    content: str
    data: Any = None
    is_error: bool = False
    terminate: bool = False
    images: tuple[ImageAttachment, ...] = ()


class ErrorInfo(Frozen):
    """An error as it crosses a boundary; `stack` only of an exception outside tools, and never from a server."""

    code: str
    message: str
    hint: str | None = None
    stack: str | None = None


class ToolResult(Frozen):
    """What became of a call: the full `content`, or `error` where `ok` is False.

    `model_content` is what the model got, capped, which is the tool message's content.
    """

    call_id: str
    name: str
    ok: bool
    content: str = ""
    error: ErrorInfo | None = None
    model_content: str
    data: Annotated[Any, PlainSerializer(readable, when_used="json-unless-none")] = None


class ModelInfo(Frozen):
    """What is known of a model; None is unknown. `supports_tools` False: it's offered none, with a notice."""

    id: str
    provider: str
    label: str | None = None
    context_window: int | None = None
    supports_tools: bool | None = None
    supports_reasoning: bool | None = None


class Thinking(Frozen):
    """How much a model reasons: by effort or by a budget of tokens, made by the two class methods."""

    effort: Effort | None = None
    budget_tokens: int | None = Field(default=None, gt=0)

    @model_validator(mode="after")
    def _one_of_both(self) -> Thinking:
        if (self.effort is None) == (self.budget_tokens is None):
            raise ValueError("thinking is either by effort or by a budget of tokens")
        return self

    @classmethod
    def by_effort(cls, effort: Effort) -> Thinking:
        """Low, medium or high, as the provider understands it."""
        return cls(effort=effort)

    @classmethod
    def by_budget(cls, tokens: int) -> Thinking:
        """At most so many tokens of reasoning in a reply."""
        return cls(budget_tokens=tokens)


class CompletionRequest(Frozen):
    """One request to a model; None leaves the model's default.

    An API that can't do the `thinking` asked for raises ModelRequestError (`invalid_request`); it's never ignored.
    """

    model: str
    messages: tuple[ChatMessage, ...]
    tools: tuple[ToolSchema, ...] = ()
    temperature: float | None = None
    max_tokens: int | None = None
    thinking: Thinking | None = None


class CompletionResponse(Frozen):
    """A whole reply.

    `finish_reason` is `stop`, `tool_calls`, `length`, `content_filter`, `error`, or the provider's own.
    """

    content: str = ""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    images: tuple[ImageAttachment, ...] = ()
    usage: Usage = Usage()
    finish_reason: str
    provider_state: ProviderState | None = None


class TokenDelta(Frozen):
    """A piece of a reply, as it comes."""

    kind: Literal["text", "reasoning"]
    text: str


def now() -> datetime:
    """This moment, in UTC."""
    return datetime.now(UTC)
