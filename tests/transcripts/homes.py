"""A small home of each agent with one session in it, as that agent writes them.

In every one a user asks to "fix the parser", is answered "Done.", and a file is written by a tool call where the agent
records such; the models' answers cost 130 tokens in, 20 of them cached, and 30 out, wherever it tells.
"""

from __future__ import annotations

import json
from pathlib import Path

ASKED, ANSWERED, WHERE = "fix the parser", "Done.", "/work/project"
T0, T1, T2 = "2026-03-01T10:00:00.000Z", "2026-03-01T10:00:05.000Z", "2026-03-01T10:00:09.000Z"


def lines(path: Path, *records: object) -> None:
    """A file of JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def document(path: Path, value: object) -> None:
    """A file that is one JSON document."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def claude_code(home: Path) -> None:
    chain = {"sessionId": "c1", "cwd": WHERE, "gitBranch": "main", "version": "2.1.0", "isSidechain": False}
    used = {"input_tokens": 10, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 100, "output_tokens": 30}
    answer = {"id": "msg_1", "role": "assistant", "model": "claude-opus-4-8", "usage": used}
    call = {"type": "tool_use", "id": "toolu_1", "name": "Write", "input": {"file_path": "/work/project/a.py"}}
    lines(
        home / "projects" / "-work-project" / "c1.jsonl",
        {"type": "user", "uuid": "u1", "timestamp": T0, "message": {"role": "user", "content": ASKED}, **chain},
        {"type": "assistant", "uuid": "u2", "timestamp": T1, "message": {**answer, "content": [call]}, **chain},
        {
            "type": "user",
            "uuid": "u3",
            "timestamp": T1,
            "message": {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "ok"}],
            },
            "toolUseResult": {"type": "create", "filePath": "/work/project/a.py"},
            **chain,
        },
        {
            "type": "assistant",
            "uuid": "u4",
            "timestamp": T2,
            "message": {**answer, "content": [{"type": "text", "text": ANSWERED}]},
            **chain,
        },
    )


def codex(home: Path) -> None:
    used = {
        "input_tokens": 130,
        "cached_input_tokens": 20,
        "output_tokens": 30,
        "reasoning_output_tokens": 5,
        "total_tokens": 160,
    }
    patch = "*** Begin Patch\n*** Add File: a.py\n+x\n*** End Patch"
    lines(
        home / "sessions" / "2026" / "03" / "01" / "rollout-2026-03-01T10-00-00-x1.jsonl",
        {"timestamp": T0, "type": "session_meta", "payload": {"id": "x1", "timestamp": T0, "cwd": WHERE}},
        {"timestamp": T0, "type": "turn_context", "payload": {"turn_id": "t1", "cwd": WHERE, "model": "gpt-5.5"}},
        {"timestamp": T0, "type": "event_msg", "payload": {"type": "user_message", "message": ASKED}},
        {
            "timestamp": T0,
            "type": "response_item",
            "payload": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": ASKED}]},
        },
        {
            "timestamp": T1,
            "type": "response_item",
            "payload": {"type": "custom_tool_call", "name": "apply_patch", "call_id": "1", "input": patch},
        },
        {
            "timestamp": T1,
            "type": "response_item",
            "payload": {"type": "custom_tool_call_output", "call_id": "1", "output": "ok"},
        },
        {
            "timestamp": T2,
            "type": "event_msg",
            "payload": {"type": "token_count", "info": {"total_token_usage": used, "last_token_usage": used}},
        },
        {
            "timestamp": T2,
            "type": "response_item",
            "payload": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": ANSWERED}]},
        },
    )


HOMES = {"claude-code": claude_code, "codex": codex}
