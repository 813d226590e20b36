"""Anthropic's Messages, with signed thinking and cache marks."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, ClassVar

from workbench.models.adapter import WireModel
from workbench.models.cache_marks import placed
from workbench.models.reply import Call, OnDelta, Reply, joined
from workbench.models.sse import ServerEvent
from workbench.models.transcript import CallIds, arguments_of, packed, split, state_of, text_of
from workbench.models.wire import stream_error
from workbench.protocol.messages import ChatMessage, CompletionRequest, ImageAttachment, Thinking, Usage

_DEFAULT_MAX_TOKENS = 8_192
_SMALLEST_BUDGET = 1_024
_BUDGETS = {"low": 2_048, "medium": 8_192, "high": 24_576}
# The fields of a block of thinking that may, and must, come back, beside its type.
_THINKING = {"thinking": ("thinking", "signature"), "redacted_thinking": ("data",)}


class Anthropic(WireModel):
    """A model behind `POST /v1/messages`."""

    key_header = "x-api-key"
    key_prefix = ""
    headers: ClassVar[Mapping[str, str]] = {"anthropic-version": "2023-06-01"}

    def _path(self) -> str:
        return "/v1/messages"

    def _body(self, request: CompletionRequest) -> dict[str, Any]:
        max_tokens = request.max_tokens or _DEFAULT_MAX_TOKENS
        # Its names have no dots, where its routers' have.
        body: dict[str, Any] = {"model": self.name.replace(".", "-"), "max_tokens": max_tokens}
        system, rest = split(request.messages)
        marks = placed([message.cache_breakpoint for message in (*system, *rest)])
        if system:
            body["system"] = [
                _marked({"type": "text", "text": message.content}, mark)
                for message, mark in zip(system, marks, strict=False)
            ]
        body["messages"] = self._messages(rest, marks[len(system) :])
        if request.tools:
            body["tools"] = [
                {"name": tool.name, "description": tool.description, "input_schema": tool.parameters}
                for tool in request.tools
            ]
        if request.temperature is not None:
            body["temperature"] = request.temperature
        if request.thinking is not None:
            body.update(self._thinking(request.thinking, max_tokens))
        if self._stream:
            body["stream"] = True
        return body

    def _thinking(self, thinking: Thinking, max_tokens: int) -> dict[str, Any]:
        """The fields that ask for thinking, in the form that this model takes. Raises ModelRequestError."""
        if self.facts.thinking != "budget":
            if thinking.effort is None:
                raise self.refusal(
                    f"{self.name} takes no budget of thinking.", hint="Use an effort: low, medium or high."
                )
            return {
                "thinking": {"type": "adaptive", "display": "summarized"},
                "output_config": {"effort": thinking.effort},
            }
        budget = thinking.budget_tokens
        if budget is None:
            budget = min(_BUDGETS[thinking.effort or "medium"], max_tokens // 2)
        if not _SMALLEST_BUDGET <= budget < max_tokens:
            raise self.refusal(
                f"A budget of {budget} tokens of thinking doesn't go with {max_tokens} tokens of reply.",
                hint=f"It's at least {_SMALLEST_BUDGET}, and less than the reply's tokens.",
            )
        return {"thinking": {"type": "enabled", "budget_tokens": budget}}

    def _messages(self, messages: list[ChatMessage], marks: list[dict[str, Any] | None]) -> list[dict[str, Any]]:
        """User and assistant in turns: what stands side by side is one message, results before any text."""
        ids = CallIds(allowed=r"[A-Za-z0-9_-]{1,64}", length=64)
        built: list[dict[str, Any]] = []
        for message, mark in zip(messages, marks, strict=True):
            role = "assistant" if message.role == "assistant" else "user"
            blocks = self._assistant(message, ids) if role == "assistant" else self._user(message, ids)
            if mark is not None:
                self._mark(blocks, mark)
            if not built or built[-1]["role"] != role:
                built.append({"role": role, "content": blocks})
            elif role == "user" or not any(block["type"] == "tool_use" for block in built[-1]["content"]):
                built[-1]["content"] += blocks
            else:
                built.append({"role": role, "content": blocks})
        return built

    def _user(self, message: ChatMessage, ids: CallIds) -> list[dict[str, Any]]:
        images = [_image(image) for image in message.images]
        if message.role == "tool":
            result: dict[str, Any] = {
                "type": "tool_result",
                "tool_use_id": ids.of(message.tool_call_id or ""),
                "content": [{"type": "text", "text": text_of(message)}, *images] if images else text_of(message),
            }
            return [{**result, "is_error": True} if message.is_error else result]
        return (
            [*images, {"type": "text", "text": text_of(message)}] if message.content.strip() or not images else images
        )

    def _assistant(self, message: ChatMessage, ids: CallIds) -> list[dict[str, Any]]:
        state = state_of(message, self.provider, self.id) or {}
        theirs = state.get("ids", {})
        calls = [
            {
                "type": "tool_use",
                "id": ids.open(call.id, theirs.get(call.id, "")),
                "name": call.name,
                "input": arguments_of(call),
            }
            for call in message.tool_calls
        ]
        # As they came, but for the calls: those are last, and may have been mended since.
        blocks = [dict(block) for block in state.get("blocks", ()) if block["type"] != "text" or block["text"].strip()]
        if not any(block["type"] == "text" for block in blocks) and message.content.strip():
            blocks.append({"type": "text", "text": message.content})
        return [*blocks, *calls] or [{"type": "text", "text": text_of(message)}]

    @staticmethod
    def _mark(blocks: list[dict[str, Any]], mark: dict[str, Any]) -> None:
        """Put the mark on the last block that can carry one: thinking can't."""
        for block in reversed(blocks):
            if block["type"] not in _THINKING:
                block["cache_control"] = mark
                return

    def _reply(self, on_delta: OnDelta | None) -> Reply:
        return _MessagesReply(self.provider, on_delta)


class _MessagesReply(Reply):
    def __init__(self, provider: str, on_delta: OnDelta | None = None) -> None:
        super().__init__(on_delta)
        self._provider = provider
        # Each field in pieces: a block may come in a hundred thousand.
        self._blocks: dict[int, dict[str, list[str]]] = {}
        self._kinds: dict[int, str] = {}
        self._calls: dict[int, Call] = {}
        self._counts: dict[str, Any] = {}

    def event(self, event: ServerEvent) -> None:
        """An event; those of a kind that isn't known say nothing. Raises ModelRequestError for `error`."""
        data = json.loads(event.data)
        kind = data.get("type") or event.name
        if kind == "message_start":
            self._count((data.get("message") or {}).get("usage"))
        elif kind == "content_block_start":
            self._start(data.get("index"), data.get("content_block") or {})
        elif kind == "content_block_delta":
            self._delta(data.get("index"), data.get("delta") or {})
        elif kind == "message_delta":
            self._count(data.get("usage"))
            self.finish = (data.get("delta") or {}).get("stop_reason") or self.finish
        elif kind == "message_stop":
            self.finish = self.finish or "end_turn"
            self.done = True
        elif kind == "error" or "error" in data:
            raise stream_error(self._provider, data.get("error"))

    def whole(self, body: Any) -> None:
        """A message in one piece. Raises ModelRequestError for an error instead of it."""
        if body.get("type") == "error" or "content" not in body:
            raise stream_error(self._provider, body.get("error") or body)
        self._count(body.get("usage"))
        for index, block in enumerate(body["content"]):
            self._start(index, block)
        self.finish = body.get("stop_reason") or "end_turn"
        self.done = True

    def _start(self, index: Any, block: dict[str, Any]) -> None:
        kind = block.get("type")
        if kind == "tool_use":
            call = self._calls[index] = self.open_call(block.get("id") or "", block.get("name") or "")
            # It begins empty, and what it holds comes after; a whole message has it at once.
            call.given = block.get("input") or None
        elif kind == "text":
            self._kinds[index], self._blocks[index] = "text", {"text": []}
            self._delta(index, {"type": "text_delta", "text": block.get("text")})
        elif kind in _THINKING:
            self._kinds[index] = kind
            self._blocks[index] = {name: [block.get(name) or ""] for name in _THINKING[kind]}
            self.begin()
            self.add_reasoning(block.get("thinking") or "")

    def _delta(self, index: Any, delta: dict[str, Any]) -> None:
        kind = delta.get("type")
        if kind == "input_json_delta" and index in self._calls:
            self._calls[index].pieces.append(delta.get("partial_json") or "")
        elif index not in self._blocks:
            return
        elif kind == "text_delta":
            self._blocks[index]["text"].append(delta.get("text") or "")
            self.add_text(delta.get("text") or "")
        elif kind == "thinking_delta":
            self._blocks[index]["thinking"].append(delta.get("thinking") or "")
            self.add_reasoning(delta.get("thinking") or "")
        elif kind == "signature_delta":
            self._blocks[index]["signature"].append(delta.get("signature") or "")

    def _count(self, usage: dict[str, Any] | None) -> None:
        """Its counts are sums so far: each replaces the one before."""
        self._counts.update({name: value for name, value in (usage or {}).items() if value is not None})
        counts = self._counts
        read, write = counts.get("cache_read_input_tokens", 0), counts.get("cache_creation_input_tokens", 0)
        self.hour_writes = (counts.get("cache_creation") or {}).get("ephemeral_1h_input_tokens") or 0
        self.usage = Usage(
            input_tokens=counts.get("input_tokens", 0) + read + write,
            output_tokens=counts.get("output_tokens", 0),
            reasoning_tokens=(counts.get("output_tokens_details") or {}).get("thinking_tokens") or 0,
            cache_read_tokens=read,
            cache_write_tokens=write,
        )

    def flush(self) -> None:
        """The end: what must come back unchanged is put together; thinking without a signature never may."""
        super().flush()
        blocks = [
            {"type": self._kinds[index], **{name: joined("".join(pieces)) for name, pieces in block.items()}}
            for index, block in sorted(self._blocks.items())
        ]
        blocks = [block for block in blocks if _may_return(block)]
        state: dict[str, Any] = {"ids": {call.id: call.theirs for call in self.calls if call.theirs}}
        if any(block["type"] in _THINKING for block in blocks):
            state["blocks"] = blocks
        self.state = packed(state) if state["ids"] or "blocks" in state else None


def _may_return(block: dict[str, str]) -> bool:
    if block["type"] == "thinking":
        return bool(block["signature"])
    return bool(block["data"]) if block["type"] == "redacted_thinking" else bool(block["text"].strip())


def _marked(block: dict[str, Any], mark: dict[str, Any] | None) -> dict[str, Any]:
    return block if mark is None else {**block, "cache_control": mark}


def _image(image: ImageAttachment) -> dict[str, Any]:
    data = base64.b64encode(image.data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": image.media_type, "data": data}}
