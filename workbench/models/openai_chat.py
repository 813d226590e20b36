"""OpenAI's Chat Completions, and every server that speaks it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from workbench.errors import ModelRequestError
from workbench.models.adapter import WireModel
from workbench.models.catalog import UNKNOWN, ModelFacts
from workbench.models.profiles import PROFILES, Profile
from workbench.models.reply import Call, OnDelta, Reply
from workbench.models.sse import ServerEvent
from workbench.models.transcript import (
    CallIds,
    arguments_of,
    data_url,
    image_of,
    packed,
    split,
    state_of,
    text_of,
)
from workbench.models.wire import Endpoint, stream_error
from workbench.protocol.messages import (
    CacheBreakpoint,
    ChatMessage,
    CompletionRequest,
    CompletionResponse,
    ToolSchema,
    Usage,
)

# Windows are larger than this many tokens. Below it, a count that is too small says nothing.
_SMALLEST_WINDOW = 1_024
_REASONING_FIELDS = ("reasoning_content", "reasoning", "reasoning_text")


class OpenAIChat(WireModel):
    """A model behind `POST /chat/completions`."""

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        profile: Profile = PROFILES["compatible"],
        facts: ModelFacts = UNKNOWN,
        stream: bool = True,
    ) -> None:
        """`profile` is the server's dialect; the rest is as for every wire. Raises OptionsError."""
        super().__init__(model, endpoint, facts=facts, stream=stream)
        self.profile = profile

    async def generate(self, request: CompletionRequest, on_delta: OnDelta | None = None) -> CompletionResponse:
        """As every wire's; ModelRequestError (context_overflow) also where the server answered to a part of the request."""
        response = await super().generate(request, on_delta)
        if self.profile.cuts:
            self._check_window(request, response.usage)
        return response

    def _check_window(self, request: CompletionRequest, usage: Usage) -> None:
        """Compare what the server counted with its window, and with the words that were sent. Raises ModelRequestError."""
        counted, window = usage.input_tokens, self.facts.context_window
        # A word is a token at least, so fewer tokens than words are those of another, shorter conversation.
        words = sum(len(message.content.split()) for message in request.messages)
        if window is not None and counted > window:
            what = f"its window of {window:,} tokens can't hold the {counted:,} that were sent"
        elif 0 < counted < words and words > _SMALLEST_WINDOW:
            what = f"it read {counted:,} tokens of a conversation of {words:,} words"
        else:
            return
        error = ModelRequestError(
            f"{self.provider} left out a part of the conversation: {what}.",
            code="context_overflow",
            provider=self.provider,
            hint="Give the server a larger window for this model, or start a new session.",
        )
        error.usage = usage
        raise error

    def _path(self) -> str:
        return "/chat/completions"

    def _body(self, request: CompletionRequest) -> dict[str, Any]:
        profile = self.profile
        body: dict[str, Any] = {"model": self.name, "messages": self._messages(request)}
        if request.tools:
            body["tools"] = [tool_schema(tool) for tool in request.tools]
        elif profile.empty_tools and any(message.tool_calls for message in request.messages):
            body["tools"] = []
        if request.max_tokens is not None:
            body[profile.max_tokens] = request.max_tokens
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.thinking is not None:
            body.update(self._thinking(request))
        if self._stream:
            body["stream"] = True
            if profile.stream_usage:
                body["stream_options"] = {"include_usage": True}
        return body

    def _thinking(self, request: CompletionRequest) -> dict[str, Any]:
        """The fields that ask for reasoning. Raises ModelRequestError where there are none."""
        thinking, profile = request.thinking, self.profile
        if thinking is None or profile.thinking is None:
            raise self.refusal(
                f"{profile.name} servers can't be asked to think in this API.",
                hint=f'Leave thinking out; or, where it has them, use its Responses: api = "responses" in '
                f"[providers.{self.provider}].",
            )
        if thinking.effort not in profile.efforts:
            asked = "no budget of thinking" if thinking.effort is None else f"no {thinking.effort} effort"
            raise self.refusal(
                f"{self.provider} takes {asked}.", hint=f"Use an effort: {' or '.join(profile.efforts)}."
            )
        fields: dict[str, Any] = {"reasoning_effort": thinking.effort}
        if profile.thinking == "deepseek":
            fields["thinking"] = {"type": "enabled"}
        elif profile.thinking == "template":
            # Older servers know it in this place only.
            fields["chat_template_kwargs"] = {"enable_thinking": True, "reasoning_effort": thinking.effort}
        return fields

    def _messages(self, request: CompletionRequest) -> list[dict[str, Any]]:
        return [message for message, _ in self._built(request)]

    def _built(self, request: CompletionRequest) -> list[tuple[dict[str, Any], CacheBreakpoint | None]]:
        """The messages, each with the cache mark that is asked for."""
        system, rest = split(request.messages)
        ids = CallIds(allowed=self.profile.call_id, length=self.profile.call_id_length)
        built: list[tuple[dict[str, Any], CacheBreakpoint | None]] = []
        if system:
            # Some servers take one system message only, and only at the start.
            said = "\n\n".join(message.content for message in system)
            built.append(({"role": self.profile.system, "content": said}, system[-1].cache_breakpoint))
        images: list[dict[str, Any]] = []
        for number, message in enumerate(rest):
            if message.role == "assistant":
                body = self._assistant(message, ids, with_tools=bool(request.tools))
            elif message.role == "tool":
                body = {"role": "tool", "tool_call_id": ids.of(message.tool_call_id or ""), "content": text_of(message)}
                images += _images(message)
            else:
                body = {"role": "user", "content": self._user(message)}
            built.append((body, message.cache_breakpoint))
            # A result can't hold images here: they follow the last one of the reply.
            if images and (number + 1 == len(rest) or rest[number + 1].role != "tool"):
                built.append(({"role": "user", "content": [_text("Images of these results:"), *images]}, None))
                images = []
        return built

    def _user(self, message: ChatMessage) -> str | list[dict[str, Any]]:
        if not message.images:
            return text_of(message)
        return [*([_text(message.content)] if message.content.strip() else []), *_images(message)]

    def _assistant(self, message: ChatMessage, ids: CallIds, *, with_tools: bool) -> dict[str, Any]:
        state = state_of(message, self.provider, self.id) or {}
        theirs, extra = state.get("ids", {}), state.get("extra", {})
        # One string, never parts, which some models start to imitate; null where there are only calls.
        body: dict[str, Any] = {"role": "assistant", "content": message.content if message.content.strip() else None}
        if message.tool_calls:
            body["tool_calls"] = [
                {
                    "id": ids.open(call.id, theirs.get(call.id, "")),
                    "type": "function",
                    "function": {
                        "name": call.name,
                        "arguments": json.dumps(arguments_of(call), ensure_ascii=False),
                    },
                    **extra.get(call.id, {}),
                }
                for call in message.tool_calls
            ]
        elif body["content"] is None:
            body["content"] = text_of(message)
        body.update(state.get("fields", {}))
        if self.profile.echo_reasoning and (with_tools or message.tool_calls):
            body.setdefault(self.profile.echo_reasoning, "")
        return body

    def _reply(self, on_delta: OnDelta | None) -> Reply:
        return ChatReply(self.provider, on_delta, echo_reasoning=self.profile.echo_reasoning)


class ChatReply(Reply):
    """A reply that comes as chunks with a delta, or as one body with a message."""

    def __init__(self, provider: str, on_delta: OnDelta | None = None, *, echo_reasoning: str | None = None) -> None:
        super().__init__(on_delta)
        self._provider = provider
        self._echo_reasoning = echo_reasoning
        self._extra: dict[str, dict[str, Any]] = {}

    def event(self, event: ServerEvent) -> None:
        """A chunk of the stream; `[DONE]` ends it. Raises ModelRequestError for an error in it."""
        if event.data.strip() == "[DONE]":
            self.done = True
        else:
            self.chunk(json.loads(event.data), "delta")

    def whole(self, body: Any) -> None:
        """A reply in one piece. Raises ModelRequestError for an error instead of it."""
        self.chunk(body, "message")
        if self.choice(body) is not None:
            self.finish = self.finish or "stop"
            self.done = True

    def chunk(self, chunk: dict[str, Any], part: str) -> None:
        """One chunk, whose choice carries what is new in `part`."""
        choice = self.choice(chunk) or {}
        # The usage may ride on the choice, or in a field of the server's own; each replaces the one before.
        own = chunk.get("x_groq") or {}
        usage = chunk.get("usage") or choice.get("usage") or (own.get("usage") if isinstance(own, dict) else None)
        if usage:
            self.usage = self.read_usage(usage, chunk)
        error = chunk.get("error") or choice.get("error")
        if error:
            raise stream_error(self._provider, error)
        message = choice.get(part) or choice.get("message" if part == "delta" else "delta") or {}
        self._take(message)
        finish = choice.get("finish_reason")
        if finish == "error":
            raise stream_error(self._provider, "the reply ended with an error")
        if finish:
            self.finish = finish

    def choice(self, chunk: dict[str, Any]) -> dict[str, Any] | None:
        """The first choice; None where there is none, or the list is null, or missing."""
        choices = chunk.get("choices")
        return choices[0] if choices else None

    def read_usage(self, usage: Mapping[str, Any], chunk: Mapping[str, Any]) -> Usage:
        """What the usage says."""
        asked, answered = usage.get("prompt_tokens_details") or {}, usage.get("completion_tokens_details") or {}
        cached = asked.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or usage.get("cached_tokens") or 0
        return Usage(
            input_tokens=usage.get("prompt_tokens") or 0,
            output_tokens=usage.get("completion_tokens") or 0,
            reasoning_tokens=answered.get("reasoning_tokens") or 0,
            cache_read_tokens=max(cached, self.usage.cache_read_tokens),
            cache_write_tokens=asked.get("cache_write_tokens") or 0,
        )

    def _take(self, message: dict[str, Any]) -> None:
        for name in _REASONING_FIELDS:
            if isinstance(message.get(name), str) and message[name]:
                self.add_reasoning(message[name])
                break
        self._content(message.get("content"))
        if message.get("refusal"):
            self.add_text(message["refusal"])
            self.finish = "content_filter"
        for number, fragment in enumerate(message.get("tool_calls") or ()):
            self._fragment(fragment, number)
        for image in message.get("images") or ():
            self._image(image)

    def _content(self, content: Any) -> None:
        if isinstance(content, str):
            self.add_tagged_text(content)
        for part in content if isinstance(content, list) else ():
            if part.get("type") == "thinking":
                for thought in part.get("thinking") or ():
                    self.add_reasoning(thought.get("text") or "")
            elif isinstance(part.get("text"), str):
                self.add_tagged_text(part["text"])

    def _image(self, part: dict[str, Any]) -> None:
        image = image_of((part.get("image_url") or {}).get("url") or "")
        if image is not None:
            self.begin()
            self.images.append(image)

    def _fragment(self, fragment: dict[str, Any], number: int) -> None:
        function = fragment.get("function") or {}
        theirs, name, arguments = fragment.get("id") or "", function.get("name") or "", function.get("arguments")
        index = fragment.get("index")
        call = self._call_of(theirs, name, index if isinstance(index, int) else None)
        call.name = call.name or name
        if isinstance(arguments, dict):
            call.given = arguments
        elif arguments:
            call.pieces.append(arguments if isinstance(arguments, str) else json.dumps(arguments))
        if fragment.get("extra_content"):
            self._extra[call.id] = {"extra_content": fragment["extra_content"]}

    def _call_of(self, theirs: str, name: str, index: int | None) -> Call:
        """The call that a fragment belongs to: a known id says it, a new one opens another; indexes are seldom right."""
        if theirs:
            known = [call for call in self.calls if call.theirs == theirs]
            same = [call for call in known if call.index == index]
            # Some servers give every call of a reply the same id.
            is_another = bool(name) and bool(known) and (not same or same[-1].is_complete)
            if known and not is_another:
                return (same or known)[-1]
            return self.open_call(theirs, name, index)
        if name and not (self.calls and self.calls[-1].name == name and not self.calls[-1].is_complete):
            is_new = index is None or all(call.index != index for call in self.calls) or self.calls[-1].is_complete
            if is_new:
                return self.open_call(theirs, name, index)
        if not self.calls:
            return self.open_call(theirs, name, index)
        indexes = [call.index for call in self.calls]
        if index in indexes and len(set(indexes)) == len(indexes):
            return self.calls[indexes.index(index)]
        return self.calls[-1]

    def flush(self) -> None:
        """The end: what the server needs back is put together."""
        super().flush()
        state: dict[str, Any] = {"ids": {call.id: call.theirs for call in self.calls if call.theirs}}
        state["extra"] = self._extra
        state["fields"] = self.fields()
        state = {name: value for name, value in state.items() if value}
        self.state = packed(state) if state else None

    def fields(self) -> dict[str, Any]:
        """Fields of the message that the server needs back as they are."""
        if self._echo_reasoning and self.reasoning:
            return {self._echo_reasoning: self.reasoning}
        return {}


def tool_schema(tool: ToolSchema) -> dict[str, Any]:
    """A tool as this format describes it."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.parameters},
    }


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _images(message: ChatMessage) -> list[dict[str, Any]]:
    return [{"type": "image_url", "image_url": {"url": data_url(image)}} for image in message.images]
