"""One scripted reply, as each wire format says it: what `StubModelServer` sends."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Event = tuple[str, Any]


@dataclass(frozen=True, kw_only=True, slots=True)
class StubUsage:
    """What a reply is said to have used; `input` includes what was read from or written to the cache."""

    input: int = 10
    output: int = 5
    reasoning: int = 0
    cache_read: int = 0
    cache_write: int = 0
    cost: float | None = None


@dataclass(frozen=True, slots=True)
class StubCall:
    """A tool call of a reply; `arguments` as a string go out as they are. `id` empty is one of the format's kind."""

    name: str
    arguments: Mapping[str, Any] | str = field(default_factory=dict)
    id: str = ""
    signature: str = ""

    @property
    def raw(self) -> str:
        """The arguments as text."""
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class StubReply:
    """One answer, and how the server misbehaves with it.

    `id` is the response's; empty is the format's own, the same for every one. `finish` is `stop`, `length` or
    `content_filter`; calls make a `stop` the format's own word for them. `signature` signs the reasoning. `edit` gets the
    events, `(name, data)` each, and returns those that are sent. `error` comes in the stream, after `error_after` events.
    `status`, `headers` and `body` answer something else instead.

    `piece` sends so many bytes at a time; `newline` ends lines; `comments` stand between all events. `cut_after` breaks
    the connection off after so many events, `end_after` ends the bytes there as if they were whole. `hold_after` waits
    there until the server is released, or the client has gone.
    """

    text: str = ""
    id: str = ""
    reasoning: str = ""
    signature: str = ""
    calls: Sequence[StubCall] = ()
    finish: str = "stop"
    usage: StubUsage | None = field(default_factory=StubUsage)
    image: bytes = b""
    edit: Callable[[list[Event]], list[Event]] | None = None
    error: Any = None
    error_after: int = 0
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    piece: int = 0
    newline: str = "\n"
    comments: bool = False
    cut_after: int | None = None
    end_after: int | None = None
    hold_after: int | None = None


def pieces(text: str) -> list[str]:
    """A text in a few pieces, as a model's tokens come."""
    size = max(1, len(text) // 3)
    return [text[start : start + size] for start in range(0, len(text), size)]


def encoded(event: Event, newline: str) -> bytes:
    """An event as bytes of the stream; its data is text, or is made JSON."""
    name, data = event
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False)
    lines = [f"event: {name}"] if name else []
    lines += [f"data: {line}" for line in text.split("\n")]
    return (newline.join(lines) + newline * 2).encode("utf-8", "surrogatepass")


class ChatFormat:
    """OpenAI's Chat Completions."""

    def stream(self, reply: StubReply, request: Mapping[str, Any]) -> list[Event]:
        """The chunks."""
        head = {"id": reply.id or "chatcmpl-1", "object": "chat.completion.chunk", "created": 1}
        head["model"] = request.get("model", "m")
        if reply.usage is not None and reply.usage.cost is not None:
            head["provider"] = "Backend"

        def chunk(delta: dict[str, Any], finish: str | None = None) -> Event:
            return "", {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}

        events = [chunk({"role": "assistant", "content": ""})]
        events += [chunk({"reasoning_content": piece}) for piece in pieces(reply.reasoning)]
        events += [chunk({"content": piece}) for piece in pieces(reply.text)]
        for index, call in enumerate(reply.calls):
            function = {"name": call.name, "arguments": ""}
            opened = {"index": index, "id": call.id or f"call_{index}", "type": "function", "function": function}
            events.append(chunk({"tool_calls": [opened]}))
            for piece in pieces(call.raw):
                events.append(chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}))
        events.append(chunk({}, self._finish(reply)))
        if reply.usage is not None and (request.get("stream_options") or {}).get("include_usage"):
            events.append(("", {**head, "choices": [], "usage": self._usage(reply.usage)}))
        return [*events, ("", "[DONE]")]

    def whole(self, reply: StubReply, request: Mapping[str, Any]) -> Any:
        """The body."""
        message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
        if reply.reasoning:
            message["reasoning_content"] = reply.reasoning
        if reply.calls:
            message["tool_calls"] = [
                {
                    "id": call.id or f"call_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.raw},
                }
                for index, call in enumerate(reply.calls)
            ]
        body = {
            "id": reply.id or "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": request.get("model", "m"),
            "choices": [{"index": 0, "message": message, "finish_reason": self._finish(reply)}],
        }
        return body if reply.usage is None else {**body, "usage": self._usage(reply.usage)}

    def error(self, error: Any) -> Event:
        """An error in the stream."""
        return "", {"error": error}

    def failure(self, status: int, message: str) -> Any:
        """The body of an answer of that status."""
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}

    @staticmethod
    def _finish(reply: StubReply) -> str:
        return "tool_calls" if reply.calls and reply.finish == "stop" else reply.finish

    @staticmethod
    def _usage(usage: StubUsage) -> dict[str, Any]:
        said: dict[str, Any] = {
            "prompt_tokens": usage.input,
            "completion_tokens": usage.output,
            "total_tokens": usage.input + usage.output,
            "prompt_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
            "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
        }
        return said if usage.cost is None else {**said, "cost": usage.cost}


class ResponsesFormat:
    """OpenAI's Responses."""

    def stream(self, reply: StubReply, request: Mapping[str, Any]) -> list[Event]:
        """The named events."""
        body = self.whole(reply, request)
        started = {**body, "status": "in_progress", "output": [], "usage": None}
        events: list[dict[str, Any]] = [{"type": "response.created", "response": started}]
        for index, item in enumerate(body["output"]):
            place = {"output_index": index, "item_id": item["id"]}
            events.append(
                {"type": "response.output_item.added", "output_index": index, "item": self._begun(item)},
            )
            if item["type"] == "reasoning":
                for piece in pieces(reply.reasoning):
                    kind = "response.reasoning_summary_text.delta"
                    events.append({"type": kind, **place, "summary_index": 0, "delta": piece})
            elif item["type"] == "message":
                part = {"type": "output_text", "text": "", "annotations": []}
                events.append({"type": "response.content_part.added", **place, "content_index": 0, "part": part})
                for piece in pieces(reply.text):
                    delta = {"content_index": 0, "delta": piece, "logprobs": []}
                    events.append({"type": "response.output_text.delta", **place, **delta})
            else:
                for piece in pieces(item["arguments"]):
                    events.append({"type": "response.function_call_arguments.delta", **place, "delta": piece})
                done = {"arguments": item["arguments"], "name": item["name"]}
                events.append({"type": "response.function_call_arguments.done", **place, **done})
            events.append({"type": "response.output_item.done", "output_index": index, "item": item})
        kind = "response.completed" if body["status"] == "completed" else "response.incomplete"
        events.append({"type": kind, "response": body})
        return [(event["type"], {**event, "sequence_number": number}) for number, event in enumerate(events)]

    def whole(self, reply: StubReply, request: Mapping[str, Any]) -> Any:
        """The response."""
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(reply.finish)
        output: list[dict[str, Any]] = []
        if reply.reasoning or reply.signature:
            summary = [{"type": "summary_text", "text": reply.reasoning}] if reply.reasoning else []
            thought = {"type": "reasoning", "id": f"rs_{reply.id or 1}", "summary": summary}
            output.append({**thought, "encrypted_content": reply.signature or None})
        if reply.text:
            part = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
            shown = {"type": "message", "id": f"msg_{reply.id or 1}", "role": "assistant", "status": "completed"}
            output.append({**shown, "content": [part]})
        for index, call in enumerate(reply.calls):
            ids = {"id": f"fc_{reply.id}{index}", "call_id": call.id or f"call_{index}"}
            made = {"type": "function_call", **ids, "name": call.name, "arguments": call.raw, "status": "completed"}
            output.append(made)
        return {
            "id": reply.id or "resp_1",
            "object": "response",
            "created_at": 1,
            "model": request.get("model", "m"),
            "status": "incomplete" if reason else "completed",
            "incomplete_details": {"reason": reason} if reason else None,
            "error": None,
            "instructions": None,
            "metadata": {},
            "output": output,
            "parallel_tool_calls": True,
            "temperature": 1.0,
            "tool_choice": "auto",
            "tools": [],
            "top_p": 1.0,
            "usage": None if reply.usage is None else self._usage(reply.usage),
        }

    def error(self, error: Any) -> Event:
        """An error in the stream."""
        said = error if isinstance(error, dict) else {"message": str(error)}
        return "error", {"type": "error", "code": None, "param": None, "sequence_number": 99, **said}

    def failure(self, status: int, message: str) -> Any:
        """The body of an answer of that status."""
        return {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}

    @staticmethod
    def _begun(item: dict[str, Any]) -> dict[str, Any]:
        empty: dict[str, dict[str, Any]] = {
            "message": {"content": []},
            "function_call": {"arguments": ""},
            "reasoning": {"summary": []},
        }
        return {**item, **empty[item["type"]], "status": "in_progress"}

    @staticmethod
    def _usage(usage: StubUsage) -> dict[str, Any]:
        return {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cache_read, "cache_write_tokens": usage.cache_write},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.input + usage.output,
        }


class MessagesFormat:
    """Anthropic's Messages."""

    def stream(self, reply: StubReply, request: Mapping[str, Any]) -> list[Event]:
        """The named events."""
        body = self.whole(reply, request)
        begun = {**body, "content": [], "stop_reason": None, "usage": {**body["usage"], "output_tokens": 1}}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}, {"type": "ping"}]
        for index, block in enumerate(body["content"]):
            kind = block["type"]
            empty: dict[str, dict[str, Any]] = {
                "text": {"text": ""},
                "thinking": {"thinking": "", "signature": ""},
                "tool_use": {"input": {}},
            }
            events.append({"type": "content_block_start", "index": index, "content_block": {**block, **empty[kind]}})
            deltas: list[dict[str, Any]]
            if kind == "text":
                deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
            elif kind == "thinking":
                deltas = [{"type": "thinking_delta", "thinking": piece} for piece in pieces(block["thinking"])]
                deltas += [{"type": "signature_delta", "signature": piece} for piece in pieces(block["signature"])]
            else:
                call = reply.calls[index - len(body["content"])]
                raw = call.raw if call.raw != "{}" else ""
                deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(raw)]
            events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
            events.append({"type": "content_block_stop", "index": index})
        delta = {"stop_reason": body["stop_reason"], "stop_sequence": None}
        output = {"output_tokens": body["usage"]["output_tokens"]}
        events.append({"type": "message_delta", "delta": delta, "usage": output})
        events.append({"type": "message_stop"})
        return [(event["type"], event) for event in events]

    def whole(self, reply: StubReply, request: Mapping[str, Any]) -> Any:
        """The message."""
        content: list[dict[str, Any]] = []
        if reply.reasoning or reply.signature:
            content.append({"type": "thinking", "thinking": reply.reasoning, "signature": reply.signature})
        if reply.text:
            content.append({"type": "text", "text": reply.text})
        for index, call in enumerate(reply.calls):
            given = call.arguments if not isinstance(call.arguments, str) else {}
            content.append(
                {"type": "tool_use", "id": call.id or f"toolu_{index}", "name": call.name, "input": dict(given)}
            )
        words = {"stop": "tool_use" if reply.calls else "end_turn", "length": "max_tokens", "content_filter": "refusal"}
        usage = reply.usage or StubUsage(input=0, output=0)
        return {
            "id": reply.id or "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request.get("model", "m"),
            "content": content,
            "stop_reason": words.get(reply.finish, reply.finish),
            "stop_sequence": None,
            "usage": {
                "input_tokens": usage.input - usage.cache_read - usage.cache_write,
                "output_tokens": usage.output,
                "cache_read_input_tokens": usage.cache_read,
                "cache_creation_input_tokens": usage.cache_write,
            },
        }

    def error(self, error: Any) -> Event:
        """An error in the stream."""
        said = error if isinstance(error, dict) else {"type": "api_error", "message": str(error)}
        return "error", {"type": "error", "error": said}

    def failure(self, status: int, message: str) -> Any:
        """The body of an answer of that status."""
        kinds = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}
        return {"type": "error", "error": {"type": kinds.get(status, "invalid_request_error"), "message": message}}


class GeminiFormat:
    """Google's Gemini."""

    def stream(self, reply: StubReply, request: Mapping[str, Any]) -> list[Event]:
        """The chunks; the last one often has a signature and no text."""
        parts: list[dict[str, Any]] = [{"text": piece, "thought": True} for piece in pieces(reply.reasoning)]
        parts += [{"text": piece} for piece in pieces(reply.text)]
        parts += self._rest(reply)
        usage = reply.usage
        chunks: list[dict[str, Any]] = []
        for part in parts:
            chunks.append({"candidates": [{"index": 0, "content": {"role": "model", "parts": [part]}}]})
        last: dict[str, Any] = {"index": 0, "finishReason": self._finish(reply)}
        if reply.signature and not reply.calls:
            last["content"] = {"role": "model", "parts": [{"text": "", "thoughtSignature": reply.signature}]}
        chunks.append({"candidates": [last]})
        if usage is not None:
            chunks = [{**chunk, "usageMetadata": self._usage(usage)} for chunk in chunks]
        same = {"modelVersion": "m", **({"responseId": reply.id} if reply.id else {})}
        return [("", {**chunk, **same}) for chunk in chunks]

    def whole(self, reply: StubReply, request: Mapping[str, Any]) -> Any:
        """The body."""
        parts: list[dict[str, Any]] = [{"text": reply.reasoning, "thought": True}] if reply.reasoning else []
        signed = {"thoughtSignature": reply.signature} if reply.signature and not reply.calls else {}
        parts += [{"text": reply.text, **signed}] if reply.text else []
        parts += self._rest(reply)
        candidate = {"index": 0, "content": {"role": "model", "parts": parts}, "finishReason": self._finish(reply)}
        body: dict[str, Any] = {"candidates": [candidate], "modelVersion": "m"}
        if reply.id:
            body["responseId"] = reply.id
        return body if reply.usage is None else {**body, "usageMetadata": self._usage(reply.usage)}

    def error(self, error: Any) -> Event:
        """An error in the stream."""
        return "", {"error": error}

    def failure(self, status: int, message: str) -> Any:
        """The body of an answer of that status."""
        words = {401: "UNAUTHENTICATED", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}
        return {"error": {"code": status, "message": message, "status": words.get(status, "INVALID_ARGUMENT")}}

    @staticmethod
    def _rest(reply: StubReply) -> list[dict[str, Any]]:
        parts: list[dict[str, Any]] = []
        if reply.image:
            data = base64.b64encode(reply.image).decode()
            parts.append({"inlineData": {"mimeType": "image/png", "data": data}})
        for index, call in enumerate(reply.calls):
            function: dict[str, Any] = {"name": call.name}
            if call.arguments:
                function["args"] = json.loads(call.raw)
            if call.id:
                function["id"] = call.id
            # Of calls side by side only the first is signed.
            signature = call.signature or (reply.signature if index == 0 else "")
            parts.append({"functionCall": function, **({"thoughtSignature": signature} if signature else {})})
        return parts

    @staticmethod
    def _finish(reply: StubReply) -> str:
        return {"stop": "STOP", "length": "MAX_TOKENS", "content_filter": "SAFETY"}.get(reply.finish, reply.finish)

    @staticmethod
    def _usage(usage: StubUsage) -> dict[str, Any]:
        return {
            "promptTokenCount": usage.input,
            "candidatesTokenCount": usage.output - usage.reasoning,
            "thoughtsTokenCount": usage.reasoning,
            "cachedContentTokenCount": usage.cache_read,
            "totalTokenCount": usage.input + usage.output,
        }


Format = ChatFormat | ResponsesFormat | MessagesFormat | GeminiFormat


def format_of(path: str) -> Format | None:
    """The wire format that a path belongs to; None for any other path."""
    path = path.partition("?")[0]
    if path.endswith("/chat/completions"):
        return ChatFormat()
    if path.endswith("/responses"):
        return ResponsesFormat()
    if path.endswith("/messages"):
        return MessagesFormat()
    return GeminiFormat() if path.endswith(("streamGenerateContent", "generateContent")) else None
