"""A model on the loopback, in the four wire formats that coding agents speak: it has one command run, then says so."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from tests.sandbox.egress.servers import Handler

COMMAND = "echo made by an agent > made-by-agent"
SAID = "The file is there now."

_SHELL = re.compile(r"bash|shell|exec_command|run_shell", re.IGNORECASE)


class ScriptedModel(Handler):
    """Answers what asks for a completion; whoever has no tool to run a command with, or has run it, gets a sentence."""

    def serve_v1(self, body: bytes) -> None:
        asked = json.loads(body or b"{}")
        path = self.path.partition("?")[0]
        if path.endswith("/messages"):
            self._stream(_anthropic(asked), asked, "event")
        elif path.endswith("/responses"):
            self._stream(_responses(asked), asked, "event")
        elif path.endswith("/chat/completions"):
            self._stream(_chat(asked), asked, "data")
        else:
            self.answer(b'{"input_tokens": 1, "data": []}', Content_Type="application/json")

    def serve_v1beta(self, body: bytes) -> None:
        asked = json.loads(body or b"{}")
        events = list(_gemini(asked))
        if ":stream" in self.path:
            self._stream(iter(events), {"stream": True}, "data")
        else:
            self.answer(json.dumps(events[-1]).encode(), Content_Type="application/json")

    def _stream(self, events: Iterator[dict[str, Any]], asked: dict[str, Any], kind: str) -> None:
        if not asked.get("stream"):
            self.answer(json.dumps(_whole(list(events))).encode(), Content_Type="application/json")
            return
        lines = []
        for event in events:
            named = f"event: {event['type']}\n" if kind == "event" else ""
            lines.append(f"{named}data: {json.dumps(event)}\n\n")
        ending = "data: [DONE]\n\n" if kind == "data" and "choices" in lines[-1] else ""
        self.answer("".join([*lines, ending]).encode(), Content_Type="text/event-stream")


def _whole(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a request without a stream gets: a sentence, since no agent asks so for its work."""
    if events[0].get("type") == "message_start":
        content = [{"type": "text", "text": SAID}]
        return {**events[0]["message"], "content": content, "stop_reason": "end_turn"}
    if "choices" in events[0]:
        message = {"role": "assistant", "content": SAID}
        return {
            **events[0],
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        }
    whole: dict[str, Any] = events[-1]["response"]
    return whole


def _call(tools: list[dict[str, Any]], has_run: bool) -> tuple[str, dict[str, Any]] | None:
    """The tool that runs a command, and what it's given; None where there's none, or it has run."""
    for tool in tools if not has_run else ():
        about = tool.get("function") or tool
        if not _SHELL.search(str(about.get("name", ""))) or tool.get("type") == "custom":
            continue
        schema = about.get("input_schema") or about.get("parameters") or about.get("parametersJsonSchema") or {}
        properties = schema.get("properties") or {}
        name = "cmd" if "cmd" in properties else "command"
        is_list = str((properties.get(name) or {}).get("type")).lower() == "array"
        arguments: dict[str, Any] = {name: ["sh", "-c", COMMAND] if is_list else COMMAND}
        for needed in schema.get("required") or ():
            arguments.setdefault(needed, False if properties[needed].get("type") == "boolean" else "as asked")
        return str(about["name"]), arguments
    return None


def _anthropic(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    has_run = "tool_result" in json.dumps(asked.get("messages"))
    call = _call(asked.get("tools") or [], has_run)
    usage = {"input_tokens": 10, "output_tokens": 5}
    message = {"id": "msg_1", "type": "message", "role": "assistant", "model": asked.get("model"), "usage": usage}
    yield {"type": "message_start", "message": {**message, "content": [], "stop_reason": None, "stop_sequence": None}}
    if call is None:
        block, delta = {"type": "text", "text": ""}, {"type": "text_delta", "text": SAID}
    else:
        block = {"type": "tool_use", "id": "toolu_1", "name": call[0], "input": {}}  # type: ignore[dict-item]
        delta = {"type": "input_json_delta", "partial_json": json.dumps(call[1])}
    yield {"type": "content_block_start", "index": 0, "content_block": block}
    yield {"type": "content_block_delta", "index": 0, "delta": delta}
    yield {"type": "content_block_stop", "index": 0}
    reason = {"stop_reason": "tool_use" if call else "end_turn", "stop_sequence": None}
    yield {"type": "message_delta", "delta": reason, "usage": {"output_tokens": 5}}
    yield {"type": "message_stop"}


def _responses(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    has_run = "_call_output" in json.dumps(asked.get("input"))
    call = _call(asked.get("tools") or [], has_run)
    if call is None:
        content = [{"type": "output_text", "text": SAID, "annotations": []}]
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}
    else:
        item = {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": call[0], "status": "completed"}
        item["arguments"] = json.dumps(call[1])
    usage = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15, "input_tokens_details": {"cached_tokens": 0}}
    usage["output_tokens_details"] = {"reasoning_tokens": 0}
    response = {"id": "resp_1", "object": "response", "created_at": 0, "model": asked.get("model"), "output": []}
    yield {"type": "response.created", "response": {**response, "status": "in_progress"}}
    yield {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}}
    if call is None:
        yield {
            "type": "response.output_text.delta",
            "item_id": "msg_1",
            "output_index": 0,
            "content_index": 0,
            "delta": SAID,
        }
    yield {"type": "response.output_item.done", "output_index": 0, "item": item}
    done = {**response, "status": "completed", "output": [item], "usage": usage}
    yield {"type": "response.completed", "response": done}


def _chat(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    has_run = any(message.get("role") == "tool" for message in asked.get("messages") or ())
    call = _call(asked.get("tools") or [], has_run)
    chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 0, "model": asked.get("model")}
    delta: dict[str, Any] = {"role": "assistant", "content": SAID}
    if call is not None:
        function = {"name": call[0], "arguments": json.dumps(call[1])}
        called = {"index": 0, "id": "call_1", "type": "function", "function": function}
        delta = {"role": "assistant", "content": None, "tool_calls": [called]}
    yield {**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls" if call else "stop"}]}
    yield {**chunk, "choices": [], "usage": {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}}


def _gemini(asked: dict[str, Any]) -> Iterator[dict[str, Any]]:
    has_run = "functionResponse" in json.dumps(asked.get("contents"))
    tools = [each for tool in asked.get("tools") or [] for each in tool.get("functionDeclarations") or []]
    call = _call(tools, has_run)
    part: dict[str, Any] = {"functionCall": {"name": call[0], "args": call[1]}} if call else {"text": SAID}
    usage = {"promptTokenCount": 10, "candidatesTokenCount": 5, "totalTokenCount": 15}
    candidate = {"content": {"role": "model", "parts": [part]}, "finishReason": "STOP", "index": 0}
    yield {"candidates": [candidate], "usageMetadata": usage, "modelVersion": "scripted"}
