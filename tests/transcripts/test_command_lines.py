"""Forms of Copilot CLI, Cline, Continue and Pi that today's versions write."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.transcripts.homes import ANSWERED, ASKED, T0, T1, T2, document, lines
from tests.transcripts.reading_sessions import heads, loaded, texts
from workbench.protocol.messages import Usage


def test_copilot_s_responses_count_once_where_each_is_told_and_the_end_of_a_run_sums_up_all_runs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "session-state" / "p1" / "events.jsonl"

    def event(number: int, kind: str, **data: object) -> dict[str, object]:
        return {"type": kind, "data": data, "id": f"e{number}", "timestamp": T0, "parentId": None}

    def used(number: int) -> dict[str, object]:
        accounting = {"sourceSessionId": "p1", "sequence": number, "usageId": f"r{number}"}
        return {"model": "gpt-5", **tokens(1), "accounting": accounting}

    def tokens(times: int) -> dict[str, int]:
        kinds = {"inputTokens": 130, "outputTokens": 30, "cacheReadTokens": 20, "reasoningTokens": 5}
        return {kind: times * number for kind, number in kinds.items()}

    message: dict[str, Any] = {"model": "gpt-5", "content": ANSWERED, "outputTokens": 30}
    shell: dict[str, Any] = {"toolCallId": "call_1", "toolName": "bash", "arguments": {"command": "false"}}
    lines(
        path,
        event(1, "session.start", sessionId="p1", version=1, context={"cwd": "/work"}),
        event(2, "user.message", content=ASKED),
        event(3, "session.usage_record", usage=used(1)),
        event(4, "assistant.message", messageId="m1", **message),
        event(5, "tool.execution_start", **shell),
        event(6, "tool.execution_complete", toolCallId="call_1", success=True, shellExecution={"exitCode": 1}),
        event(7, "session.shutdown", modelMetrics={"gpt-5": {"usage": tokens(1)}}),
        event(8, "session.resume"),
        event(9, "session.usage_record", usage=used(2)),
        event(10, "assistant.message", messageId="m2", **message),
        event(11, "session.shutdown", modelMetrics={"gpt-5": {"usage": tokens(2)}}),
    )
    transcript = loaded("copilot-cli", path)
    one = Usage(input_tokens=130, output_tokens=30, cache_read_tokens=20, reasoning_tokens=5)
    assert [(request.id, request.usage) for request in transcript.requests] == [("p1:r1", one), ("p1:r2", one)]
    assert [call.ok for call in transcript.tool_calls] == [False]


def test_cline_s_command_line_wraps_a_prompt_and_keeps_several_results_of_a_call(tmp_path: Path) -> None:
    folder = tmp_path / "sessions" / "s1"
    call = {"type": "tool_use", "id": "call_1", "name": "run_commands", "input": {"commands": ["true", "false"]}}
    results = [
        {"query": "true", "result": "well", "success": True},
        {"query": "false", "result": "2", "success": False},
    ]
    result = {"type": "tool_result", "tool_use_id": "call_1", "name": "run_commands", "content": results}
    prompt = {"type": "text", "text": f'<user_input mode="act">{ASKED}</user_input>'}
    messages = [
        {"id": "1", "role": "user", "content": [prompt], "ts": 1772359200000},
        {"id": "2", "role": "assistant", "content": [call], "ts": 1772359201000},
        {"id": "3", "role": "user", "content": [result], "ts": 1772359202000},
    ]
    document(folder / "s1.messages.json", {"version": 1, "sessionId": "s1", "messages": messages})
    document(folder / "s1.json", {"session_id": "s1", "cwd": "/work"})
    [head] = heads("cline", tmp_path)
    assert head.first_prompt == ASKED
    transcript = loaded("cline", head.ref.path)
    assert texts(transcript, "prompt") == [ASKED]
    assert [(call.ok, call.result) for call in transcript.tool_calls] == [(False, "well\n2")]


def test_continue_s_messages_have_the_usage_that_the_provider_told(tmp_path: Path) -> None:
    path = tmp_path / "sessions" / "s1.json"
    used = {
        "prompt_tokens": 130,
        "completion_tokens": 30,
        "prompt_tokens_details": {"cached_tokens": 20, "cache_write_tokens": 10},
        "completion_tokens_details": {"reasoning_tokens": 5},
        "model": "gpt-5",
    }
    history = [
        {"message": {"role": "user", "content": ASKED}},
        {"message": {"role": "assistant", "content": ANSWERED, "usage": {**used, "cost_cents": 0}}},
        {"message": {"role": "assistant", "content": ANSWERED, "usage": {**used, "cost_cents": 2}}},
    ]
    whole = {"totalCost": 0.02, "promptTokens": 260, "completionTokens": 60}
    document(path, {"sessionId": "s1", "workspaceDirectory": "/work", "history": history, "usage": whole})
    told = Usage(input_tokens=130, output_tokens=30, reasoning_tokens=5, cache_read_tokens=20, cache_write_tokens=10)
    assert [(request.model, request.usage) for request in loaded("continue", path).requests] == [
        ("gpt-5", told),
        ("gpt-5", told.model_copy(update={"cost_usd": 0.02})),
    ]


def test_pi_s_requests_that_nobody_answered_are_told_of_and_count_as_none(tmp_path: Path) -> None:
    path = tmp_path / "sessions" / "--work--" / "s1.jsonl"
    nothing = {"input": 0, "output": 0, "cacheRead": 0, "cacheWrite": 0, "cost": {"total": 0}}
    failed = {"role": "assistant", "content": [], "model": "m", "usage": nothing, "stopReason": "error"}
    reply = {**failed, "usage": {**nothing, "output": 3}, "stopReason": "stop"}
    lines(
        path,
        {"type": "session", "version": 3, "id": "s1", "timestamp": T0, "cwd": "/work"},
        {
            "type": "message",
            "id": "1",
            "parentId": None,
            "timestamp": T0,
            "message": {"role": "user", "content": ASKED},
        },
        {
            "type": "message",
            "id": "2",
            "parentId": "1",
            "timestamp": T1,
            "message": {**failed, "errorMessage": "refused"},
        },
        {"type": "message", "id": "3", "parentId": "2", "timestamp": T2, "message": reply},
    )
    transcript = loaded("pi", path)
    assert texts(transcript, "notice") == ["refused"]
    assert [request.usage.output_tokens for request in transcript.requests] == [3]
