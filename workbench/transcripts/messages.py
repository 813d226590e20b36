"""Messages made of blocks, the form that most agents keep: told to a recorder in one way."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

from workbench.transcripts.edits import written_files
from workbench.transcripts.models import MAIN_LANE, Source
from workbench.transcripts.recorder import Recorder
from workbench.transcripts.values import block_text, items, mapping, named, string

_CALLS = ("tool_use", "toolCall", "tool_call", "tool-call", "server_tool_use")
_RESULTS = ("tool_result", "toolResult", "tool-result")


def as_written(text: str) -> str:
    """What a person typed, where an agent puts nothing else into a message."""
    return text.strip("\ufeff \t\r\n")


def tell_call(
    recorder: Recorder,
    id: str,
    name: str,
    arguments: object,
    source: Source,
    *,
    lane: str = MAIN_LANE,
    at: datetime | None = None,
) -> None:
    """A tool call, and the files that it is to write."""
    text = arguments if isinstance(arguments, str) else ""
    if recorder.keep and not text and arguments is not None:
        text = json.dumps(arguments, ensure_ascii=False)
    recorder.call(id, name, source, lane=lane, at=at, arguments=text)
    for path, action, moved_to in written_files(name, arguments):
        recorder.edit(path, source, action=action, call_id=id, lane=lane, at=at, moved_to=moved_to)


def tell_user(
    recorder: Recorder,
    text: str,
    source: Source,
    *,
    lane: str = MAIN_LANE,
    at: datetime | None = None,
    typed: Callable[[str], str] = as_written,
) -> None:
    """A text in the user's name: a prompt where a person typed some of it, else context."""
    if prompt := typed(text):
        recorder.event("prompt" if lane == MAIN_LANE else "context", source, lane=lane, at=at, text=prompt)
    elif text:
        recorder.event("context", source, lane=lane, at=at, text=text)


def tell_message(
    recorder: Recorder,
    role: object,
    content: object,
    source: Source,
    *,
    key: str,
    lane: str = MAIN_LANE,
    at: datetime | None = None,
    typed: Callable[[str], str] = as_written,
) -> None:
    """A message of a user or an agent, a string or blocks. `key` names it, for calls that have no id."""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else items(content)
    for number, block in enumerate(blocks):
        block = {"type": "text", "text": block} if isinstance(block, str) else mapping(block)
        kind = block.get("type")
        if kind == "text":
            text = string(block.get("text"))
            if role == "user":
                tell_user(recorder, text, source, lane=lane, at=at, typed=typed)
            elif role == "assistant" and text:
                recorder.event("reply", source, lane=lane, at=at, text=text)
        elif kind in ("thinking", "reasoning", "redacted_thinking"):
            text = string(block.get("thinking") or block.get("text"))
            recorder.event("reasoning", source, lane=lane, at=at, text=text)
        elif kind in _CALLS:
            id = named(block.get("id")) or named(block.get("toolCallId")) or f"{key}-{number}"
            name = string(block.get("name") or block.get("toolName"))
            given = next((block[key] for key in ("input", "arguments", "args") if key in block), None)
            tell_call(recorder, id, name, given, source, lane=lane, at=at)
        elif kind in _RESULTS:
            _tell_result(recorder, block, source, lane, at)


def _tell_result(recorder: Recorder, block: dict[str, Any], source: Source, lane: str, at: datetime | None) -> None:
    id = next((block[key] for key in ("tool_use_id", "toolUseID", "toolCallId") if named(block.get(key))), "")
    run = mapping(block.get("run"))
    failed = block.get("is_error") or block.get("isError") or run.get("status") in ("error", "cancelled")
    text = ""
    if recorder.keep:
        output = next((x for x in (block.get("content"), run.get("result"), block.get("output")) if x is not None), "")
        text = block_text(output, "text") or (json.dumps(output, ensure_ascii=False) if mapping(output) else "")
    recorder.result(string(id), source, ok=not failed, lane=lane, at=at, text=text)
