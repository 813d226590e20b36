"""Gemini CLI's sessions that were gone on with, and Qwen Code's usage: as today's versions write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.transcripts.homes import ANSWERED, ASKED, T0, T1, T2, lines
from tests.transcripts.reading_sessions import heads, loaded, texts
from workbench.transcripts import Lane

HEADER = {"sessionId": "g1", "projectHash": "h", "startTime": T0, "lastUpdated": T0, "kind": "main"}
FUNCTION = {"id": "call_1", "name": "write_file", "args": {"file_path": "/work/a.py"}}
RESPONSE = {"functionResponse": {"id": "call_1", "name": "write_file", "response": {"output": "written"}}}
# What it makes of a reply once the session is gone on with: parts as the model's API has them, and no usage.
BARE_REPLY = {
    "id": "g2",
    "timestamp": T2,
    "type": "gemini",
    "content": [{"text": "hm", "thought": True}, {"text": ANSWERED}, {"functionCall": FUNCTION}],
}
BARE: list[dict[str, Any]] = [
    {"id": "g1", "timestamp": T2, "type": "user", "content": [{"text": ASKED}]},
    BARE_REPLY,
    {"id": "g2_response", "timestamp": T2, "type": "user", "content": [RESPONSE]},
    {"id": "g3", "timestamp": T2, "type": "user", "content": [RESPONSE]},
]


def test_gemini_s_session_that_was_gone_on_with_loses_nothing_and_tells_nothing_twice(tmp_path: Path) -> None:
    path = tmp_path / "session-1.jsonl"
    shown = {"filePath": "/work/a.py", "fileDiff": "+1", "isNewFile": True}
    call = {**FUNCTION, "status": "success", "timestamp": T1, "result": [RESPONSE], "resultDisplay": shown}
    reply = {
        "id": "g2",
        "timestamp": T1,
        "type": "gemini",
        "content": ANSWERED,
        "thoughts": [{"subject": "", "description": "hm", "timestamp": T1}],
        "tokens": {"input": 130, "output": 25, "cached": 20, "thoughts": 5, "tool": 0, "total": 160},
        "model": "gemini-3",
    }
    lines(
        path,
        HEADER,
        {"id": "g1", "timestamp": T0, "type": "user", "content": [{"text": ASKED}]},
        reply,
        {**reply, "toolCalls": [call]},
        {"id": "g3", "timestamp": T1, "type": "user", "content": [RESPONSE]},
        {**HEADER, "startTime": T2},
        {"$set": {"messages": BARE}},
        {"id": "g4", "timestamp": T2, "type": "user", "content": [{"text": "and now?"}]},
    )
    transcript = loaded("gemini-cli", path)
    kinds = [event.kind for event in transcript.events]
    assert kinds == ["prompt", "reasoning", "reply", "tool_call", "tool_result", "prompt"]
    assert not any(event.abandoned for event in transcript.events)
    assert texts(transcript, "reply") == [ANSWERED]
    assert [(edit.path, edit.action) for edit in transcript.edits] == [("/work/a.py", "add")]
    assert [request.usage.input_tokens for request in transcript.requests] == [130]


def test_a_file_of_gemini_s_in_which_nobody_said_anything_is_no_session(tmp_path: Path) -> None:
    """Going on with a session it begins a file of the same id, and then writes to the one that is there."""
    chats = tmp_path / "tmp" / "project" / "chats"
    context = {"id": "c", "timestamp": T1, "type": "user", "content": [{"text": "<session_context>\nToday is a day."}]}
    lines(chats / "session-2026-03-01T10-00-g1.jsonl", HEADER, {"$set": {"messages": [context]}}, *BARE)
    lines(chats / "session-2026-03-01T10-01-g1.jsonl", HEADER, {"$set": {"messages": [context]}})
    assert [head.first_prompt for head in heads("gemini-cli", tmp_path)] == [ASKED]


def test_gemini_s_messages_as_the_api_has_them_are_read_where_there_are_no_others(tmp_path: Path) -> None:
    path = tmp_path / "session-1.jsonl"
    lines(path, HEADER, {"$set": {"messages": BARE}})
    transcript = loaded("gemini-cli", path)
    kinds = [event.kind for event in transcript.events]
    assert kinds == ["prompt", "reasoning", "reply", "tool_call", "tool_result"]
    assert (texts(transcript, "reasoning"), texts(transcript, "reply")) == (["hm"], [ANSWERED])
    assert [(call.ok, call.result) for call in transcript.tool_calls] == [(True, "written")]
    assert [edit.path for edit in transcript.edits] == ["/work/a.py"]


@pytest.mark.parametrize(("total", "output"), [(170, 40), (175, 45), (0, 45)])
def test_qwen_s_thoughts_count_once_whether_among_the_candidates_or_beside_them(
    tmp_path: Path, total: int, output: int
) -> None:
    path = tmp_path / "q1.jsonl"
    used = {"promptTokenCount": 130, "candidatesTokenCount": 40, "thoughtsTokenCount": 5, "totalTokenCount": total}
    message = {"role": "model", "parts": [{"text": ANSWERED}]}
    record = {"uuid": "u1", "sessionId": "q1", "timestamp": T0, "type": "assistant", "model": "coder"}
    lines(path, {**record, "message": message, "usageMetadata": used})
    [request] = loaded("qwen-code", path).requests
    assert (request.usage.output_tokens, request.usage.reasoning_tokens) == (output, 5)


def test_qwen_s_subagents_are_lanes_with_what_they_used(tmp_path: Path) -> None:
    """Of the main conversation's responses the same event tells, beside the message."""
    path = tmp_path / "q1.jsonl"
    main = {
        "event.name": "qwen-code.api_response",
        "response_id": "r1",
        "model": "coder",
        "input_token_count": 130,
        "output_token_count": 30,
        "cached_content_token_count": 20,
        "thoughts_token_count": 5,
        "total_token_count": 160,
    }
    aside = {**main, "response_id": "r2", "subagent_name": "memory-extractor", "subagent_id": "memory-extractor-1"}
    called = {"event.name": "qwen-code.tool_call", "subagent_name": "memory-extractor"}
    used = {"promptTokenCount": 130, "candidatesTokenCount": 30, "thoughtsTokenCount": 5, "totalTokenCount": 160}
    reply = {"type": "assistant", "model": "coder", "message": {"role": "model", "parts": [{"text": ANSWERED}]}}
    records: list[dict[str, Any]] = [
        {"type": "system", "subtype": "ui_telemetry", "systemPayload": {"uiEvent": main}},
        {**reply, "usageMetadata": used},
        {"type": "system", "subtype": "ui_telemetry", "systemPayload": {"uiEvent": aside}},
        {"type": "system", "subtype": "ui_telemetry", "systemPayload": {"uiEvent": called}},
    ]
    chain = [
        {"uuid": f"u{number}", "parentUuid": f"u{number - 1}" if number else None, "sessionId": "q1", "timestamp": T0}
        for number in range(len(records))
    ]
    lines(path, *({**one, **record} for one, record in zip(chain, records, strict=True)))
    transcript = loaded("qwen-code", path)
    lane = Lane(id="memory-extractor-1", parent="main", name="memory-extractor")
    assert transcript.lanes == (Lane(id="main"), lane)
    assert [(request.lane, request.usage.output_tokens) for request in transcript.requests] == [
        ("main", 30),
        ("memory-extractor-1", 30),
    ]
