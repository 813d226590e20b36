"""A small home of each agent with one session in it, as that agent writes them.

In every one a user asks to "fix the parser", is answered "Done.", and a file is written by a tool call where the agent
records such; the models' answers cost 130 tokens in, 20 of them cached, and 30 out, wherever it tells.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import sqlite3
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import anyio
import zstandard

from workbench.agent.stores import FileSessionStore
from workbench.protocol.messages import ChatMessage, Role, ToolCall, Usage
from workbench.protocol.sessions import SessionDetail

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


def gemini_cli(home: Path) -> None:
    project = home / "tmp" / "project"
    call = {"id": "call_1", "name": "write_file", "args": {"file_path": "/work/project/a.py"}, "status": "success"}
    used = {"input": 130, "cached": 20, "output": 25, "thoughts": 5, "tool": 0, "total": 160}
    reply = {"id": "g2", "timestamp": T1, "type": "gemini", "content": ANSWERED, "tokens": used, "model": "gemini-3"}
    lines(
        project / "chats" / "session-2026-03-01T10-00-g1.jsonl",
        {"sessionId": "g1", "projectHash": "h", "startTime": T0, "lastUpdated": T0, "kind": "main"},
        {"$set": {"messages": [{"id": "g0", "timestamp": T0, "type": "user", "content": "<session_context>..."}]}},
        {"id": "g1", "timestamp": T0, "type": "user", "content": [{"text": ASKED}]},
        {**reply, "content": ""},
        {**reply, "toolCalls": [call]},
        {"$set": {"lastUpdated": T2}},
    )
    (project / ".project_root").write_text(WHERE)


def qwen_code(home: Path) -> None:
    chain = {"sessionId": "q1", "cwd": WHERE, "version": "0.20.0", "gitBranch": "main"}
    used = {
        "promptTokenCount": 130,
        "cachedContentTokenCount": 20,
        "candidatesTokenCount": 25,
        "thoughtsTokenCount": 5,
        "totalTokenCount": 160,
    }
    call = {"functionCall": {"id": "call_1", "name": "write_file", "args": {"file_path": "/work/project/a.py"}}}
    result = {"functionResponse": {"id": "call_1", "name": "write_file", "response": {"output": "ok"}}}

    def record(number: int, kind: str, at: str, role: str, parts: list[object], **more: object) -> dict[str, object]:
        before = f"u{number - 1}" if number > 1 else None
        message = {"role": role, "parts": parts}
        about = {"uuid": f"u{number}", "parentUuid": before, "timestamp": at, "type": kind, "message": message}
        return {**about, **chain, **more}

    lines(
        home / "projects" / "-work-project" / "chats" / "q1.jsonl",
        record(1, "user", T0, "user", [{"text": ASKED}]),
        record(2, "assistant", T1, "model", [call], model="coder", usageMetadata=used),
        record(3, "tool_result", T1, "user", [result], toolCallResult={"callId": "call_1", "status": "success"}),
        record(4, "assistant", T2, "model", [{"text": ANSWERED}], model="coder"),
    )


def copilot_cli(home: Path) -> None:
    def event(kind: str, at: str, **data: object) -> dict[str, object]:
        return {"type": kind, "data": data, "id": f"{kind}-{at}", "timestamp": at, "parentId": None}

    used = {"inputTokens": 130, "cacheReadTokens": 20, "cacheWriteTokens": 0, "outputTokens": 30}
    call = {"toolCallId": "call_1", "name": "create", "arguments": {"path": "/work/project/a.py"}}
    lines(
        home / "session-state" / "p1" / "events.jsonl",
        event("session.start", T0, sessionId="p1", version=1, startTime=T0, context={"cwd": WHERE, "branch": "main"}),
        event("user.message", T0, content=ASKED, transformedContent=f"<context/>{ASKED}"),
        event("assistant.message", T1, messageId="m1", content="", toolRequests=[call], outputTokens=20),
        event("tool.execution_complete", T1, toolCallId="call_1", success=True, result={"content": "ok"}),
        event("assistant.message", T2, messageId="m2", content=ANSWERED, toolRequests=[], outputTokens=10),
        event("session.shutdown", T2, modelMetrics={"gpt-5": {"requests": {"count": 2}, "usage": used}}),
    )


def pi(home: Path) -> None:
    used = {"input": 10, "cacheRead": 20, "cacheWrite": 100, "output": 30, "totalTokens": 160, "cost": {"total": 0.01}}
    call = {"type": "toolCall", "id": "call_1", "name": "write", "arguments": {"path": "/work/project/a.py"}}
    reply = {"role": "assistant", "model": "claude-opus-4-8", "usage": used, "content": [call]}

    def entry(number: int, at: str, message: dict[str, object]) -> dict[str, object]:
        before = f"{number - 1:08x}" if number > 1 else None
        return {"type": "message", "id": f"{number:08x}", "parentId": before, "timestamp": at, "message": message}

    lines(
        home / "sessions" / "--work-project--" / "2026-03-01T10-00-00-000Z_i1.jsonl",
        {"type": "session", "version": 3, "id": "i1", "timestamp": T0, "cwd": WHERE},
        entry(1, T0, {"role": "user", "content": [{"type": "text", "text": ASKED}]}),
        entry(2, T1, {**reply, "content": [call, {"type": "text", "text": ANSWERED}]}),
        entry(3, T2, {"role": "toolResult", "toolCallId": "call_1", "content": [{"type": "text", "text": "ok"}]}),
    )


def droid(home: Path) -> None:
    def message(id: str, at: str, role: str, *content: object) -> dict[str, object]:
        return {"type": "message", "id": id, "timestamp": at, "message": {"role": role, "content": list(content)}}

    folder = home / "sessions" / "work-project"
    reminder = f"<system-reminder>\nBe brief.\n</system-reminder>\n\n{ASKED}"
    call = {"type": "tool_use", "id": "call_1", "name": "Create", "input": {"file_path": "/work/project/a.py"}}
    lines(
        folder / "d1.jsonl",
        {"type": "session_start", "id": "d1", "title": "New Session", "sessionTitle": "Parser", "cwd": WHERE},
        message("m1", T0, "user", {"type": "text", "text": reminder}),
        message("m2", T1, "assistant", call),
        message("m3", T1, "user", {"type": "tool_result", "tool_use_id": "call_1", "content": "ok"}),
        message("m4", T2, "assistant", {"type": "text", "text": ANSWERED}),
    )
    used = {"inputTokens": 10, "outputTokens": 30, "cacheCreationTokens": 100, "cacheReadTokens": 20}
    document(folder / "d1.settings.json", {"model": "claude-opus-4-8", "tokenUsage": used})


def kimi(home: Path) -> None:
    def wire(at: float, kind: str, **payload: object) -> dict[str, object]:
        return {"timestamp": 1772359200.0 + at, "message": {"type": kind, "payload": payload}}

    used = {"input_other": 10, "input_cache_read": 20, "input_cache_creation": 100, "output": 30}
    function = {"name": "WriteFile", "arguments": json.dumps({"path": "/work/project/a.py"})}
    hashed = hashlib.md5(WHERE.encode(), usedforsecurity=False).hexdigest()
    lines(
        home / "sessions" / hashed / "k1" / "wire.jsonl",
        {"type": "metadata", "protocol_version": "1.9"},
        wire(0, "TurnBegin", user_input=ASKED),
        wire(1, "ToolCall", type="function", id="call_1", function=function),
        wire(2, "ToolResult", tool_call_id="call_1", return_value={"is_error": False, "output": "ok"}),
        wire(3, "ContentPart", type="text", text=ANSWERED),
        wire(4, "StatusUpdate", token_usage=used, message_id="m1"),
        wire(5, "StatusUpdate", token_usage=used, message_id="m1"),
    )
    document(home / "sessions" / hashed / "k1" / "state.json", {"version": 1, "custom_title": "Parser"})
    document(home / "kimi.json", {"work_dirs": [{"path": WHERE}]})


def _task(folder: Path) -> None:
    def say(at: int, kind: str, text: object) -> dict[str, object]:
        shown = text if isinstance(text, str) else json.dumps(text)
        return {"ts": 1772359200000 + at, "type": "say", "say": kind, "text": shown}

    used = {"tokensIn": 10, "tokensOut": 30, "cacheReads": 20, "cacheWrites": 100, "cost": 0.01}
    document(
        folder / "ui_messages.json",
        [
            say(0, "text", ASKED),
            say(1, "api_req_started", used),
            say(2, "tool", {"tool": "newFileCreated", "path": "a.py"}),
            {**say(3, "text", "Don"), "partial": True},
            say(4, "completion_result", ANSWERED),
        ],
    )
    details = f"<environment_details>\n# Current Working Directory ({WHERE}) Files\n</environment_details>"
    sent = [{"type": "text", "text": f"<task>\n{ASKED}\n</task>"}, {"type": "text", "text": details}]
    document(folder / "api_conversation_history.json", [{"role": "user", "content": sent}])


def cline(home: Path) -> None:
    _task(home / "globalStorage" / "saoudrizwan.claude-dev" / "tasks" / "1772359200000")


def roo_code(home: Path) -> None:
    _task(home / "globalStorage" / "rooveterinaryinc.roo-cline" / "tasks" / "r1")


def kilo_code(home: Path) -> None:
    _task(home / "globalStorage" / "kilocode.kilo-code" / "tasks" / "k1")


def amp(home: Path) -> None:
    call = {"type": "tool_use", "id": "call_1", "name": "create_file", "input": {"path": "/work/project/a.py"}}
    done = {"type": "tool_result", "toolUseID": "call_1", "run": {"status": "done", "result": {"ok": True}}}
    used = {"cacheReadInputTokens": 20, "cacheCreationInputTokens": 100, "inputTokens": 10, "outputTokens": 30}
    ledger = {"id": "e1", "timestamp": T1, "model": "claude", "tokens": {"input": 10, "output": 30}, "toMessageId": 1}
    document(
        home / "threads" / "T-a1.json",
        {
            "v": 5,
            "id": "T-a1",
            "created": 1772359200000,
            "title": "Parser",
            "env": {"initial": {"trees": [{"displayName": "project", "uri": f"file://{WHERE}"}]}},
            "messages": [
                {"role": "user", "messageId": 0, "content": [{"type": "text", "text": ASKED}]},
                {"role": "assistant", "messageId": 1, "content": [call], "usage": used},
                {"role": "user", "messageId": 2, "content": [done]},
                {"role": "assistant", "messageId": 3, "content": [{"type": "text", "text": ANSWERED}]},
            ],
            "usageLedger": {"events": [ledger]},
        },
    )


def continue_dev(home: Path) -> None:
    function = {"name": "create_new_file", "arguments": json.dumps({"filepath": "a.py"})}
    call = {"id": "call_1", "type": "function", "function": function}
    state = {"toolCallId": "call_1", "status": "done", "output": [{"content": "ok"}]}
    used = {"promptTokens": 130, "completionTokens": 30, "promptTokensDetails": {"cachedTokens": 20}, "totalCost": 0.01}
    document(
        home / "sessions" / "n1.json",
        {
            "sessionId": "n1",
            "title": "Parser",
            "workspaceDirectory": f"file://{WHERE}",
            "history": [
                {"message": {"role": "user", "content": ASKED}, "contextItems": []},
                {"message": {"role": "assistant", "content": "", "toolCalls": [call]}, "toolCallStates": [state]},
                {"message": {"role": "assistant", "content": ANSWERED}},
            ],
            "usage": used,
        },
    )
    document(
        home / "sessions" / "sessions.json", [{"sessionId": "n1", "title": "Parser", "dateCreated": "1772359200000"}]
    )


def aider(home: Path) -> None:
    (home / ".aider.chat.history.md").write_text(
        f"""
# aider chat started at 2026-03-01 10:00:00

> Main model: gpt-5.5 with diff edit format

#### {ASKED}

{ANSWERED}

> Tokens: 130 sent, 20 cache hit, 30 received. Cost: $0.01 message, $0.02 session.
> Applied edit to a.py
"""
    )


def _database(path: Path, schema: str, **tables: list[tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.executescript(schema)
        for name, rows in tables.items():
            for row in rows:
                database.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)


def opencode(home: Path) -> None:
    t0 = 1772359200000
    used = {"input": 10, "output": 25, "reasoning": 5, "cache": {"read": 20, "write": 100}}
    state = {"status": "completed", "input": {"filePath": "/work/project/a.py"}, "output": "ok"}
    user = {"role": "user", "time": {"created": t0}}
    reply = {"role": "assistant", "time": {"created": t0 + 5}, "modelID": "gpt-5.5", "tokens": used, "cost": 0.01}
    parts = (
        ("p1", "m1", {"type": "text", "text": "a reminder", "synthetic": True}),
        ("p2", "m1", {"type": "text", "text": ASKED}),
        ("p3", "m2", {"type": "tool", "tool": "write", "callID": "c1", "state": state}),
        ("p4", "m2", {"type": "step-finish", "tokens": used, "cost": 0.01}),
        ("p5", "m2", {"type": "text", "text": ANSWERED}),
    )
    _database(
        home / "opencode.db",
        """
        CREATE TABLE session(id TEXT PRIMARY KEY, project_id, parent_id, directory, title, time_created, time_updated);
        CREATE TABLE message(id TEXT PRIMARY KEY, session_id, time_created, time_updated, data);
        CREATE TABLE part(id TEXT PRIMARY KEY, message_id, session_id, time_created, time_updated, data);
        """,
        session=[("s1", "p", None, WHERE, "New session - 2026-03-01T10:00:00.000Z", t0, t0 + 9)],
        message=[("m1", "s1", t0, t0, json.dumps(user)), ("m2", "s1", t0 + 5, t0 + 5, json.dumps(reply))],
        part=[(id, message, "s1", t0, t0, json.dumps(data)) for id, message, data in parts],
    )
    # What the migration left behind of the same session counts once.
    session = {"id": "s1", "projectID": "p", "directory": WHERE, "time": {"created": t0, "updated": t0 + 9}}
    document(home / "storage" / "session" / "p" / "ses_s1.json", session)


def cursor(home: Path) -> None:
    bubbles = {
        "b1": {"type": 1, "text": ASKED, "createdAt": T0},
        "b2": {
            "type": 2,
            "createdAt": T1,
            "tokenCount": {"inputTokens": 0, "outputTokens": 0},
            "toolFormerData": {
                "name": "edit_file",
                "toolCallId": "c1",
                "rawArgs": json.dumps({"target_file": "a.py"}),
                "status": "completed",
                "result": "ok",
            },
        },
        "b3": {"type": 2, "text": ANSWERED, "createdAt": T2},
    }
    composer = {
        "composerId": "o1",
        "name": "Parser",
        "createdAt": 1772359200000,
        "fullConversationHeadersOnly": [{"bubbleId": id, "type": bubble["type"]} for id, bubble in bubbles.items()],
        "workspaceIdentifier": {"uri": {"fsPath": WHERE}},
    }
    rows = [("composerData:o1", json.dumps(composer)), ("composerData:unused", json.dumps({"composerId": "unused"}))]
    rows += [(f"bubbleId:o1:{id}", json.dumps(bubble)) for id, bubble in bubbles.items()]
    _database(
        home / "globalStorage" / "state.vscdb",
        "CREATE TABLE cursorDiskKV(key TEXT PRIMARY KEY, value BLOB); CREATE TABLE ItemTable(key TEXT, value BLOB);",
        cursorDiskKV=list(reversed(rows)),
    )


def goose(home: Path) -> None:
    call = {"status": "success", "value": {"name": "developer__write", "arguments": {"path": "/work/project/a.py"}}}
    result = {"status": "success", "value": [{"type": "text", "text": "ok"}]}
    said = (
        ("user", [{"type": "text", "text": ASKED}], {"userVisible": True}),
        ("user", [{"type": "text", "text": "an instruction"}], {"userVisible": False}),
        ("assistant", [{"type": "toolRequest", "id": "c1", "toolCall": call}], {}),
        ("user", [{"type": "toolResponse", "id": "c1", "toolResult": result}], {}),
        ("assistant", [{"type": "text", "text": ANSWERED}], {}),
    )
    _database(
        home / "sessions" / "sessions.db",
        """
        CREATE TABLE sessions(id TEXT PRIMARY KEY, name, session_type, working_dir, created_at, updated_at);
        CREATE TABLE messages(id INTEGER PRIMARY KEY, session_id, role, content_json, created_timestamp, metadata_json);
        CREATE TABLE usage_ledger(id INTEGER PRIMARY KEY, session_id, created_timestamp, model, input_tokens,
                                  output_tokens, cache_read_tokens, cache_write_tokens, cost);
        """,
        sessions=[
            ("20260301_1", "Parser", "user", WHERE, "2026-03-01 10:00:00", "2026-03-01 10:00:09"),
            ("20260301_2", "", "sub_agent", WHERE, "2026-03-01 10:00:00", "2026-03-01 10:00:09"),
        ],
        messages=[
            (number, "20260301_1", role, json.dumps(content), 1772359200, json.dumps(about))
            for number, (role, content, about) in enumerate(said)
        ],
        usage_ledger=[(1, "20260301_1", 1772359200, "gpt-5.5", 130, 30, 20, 0, 0.01)],
    )


def crush(home: Path) -> None:
    said = (
        ("user", [{"type": "text", "data": {"text": ASKED}}]),
        (
            "assistant",
            [
                {
                    "type": "tool_call",
                    "data": {"id": "c1", "name": "write", "input": json.dumps({"file_path": "a.py"})},
                }
            ],
        ),
        ("tool", [{"type": "tool_result", "data": {"tool_call_id": "c1", "content": "ok"}}]),
        ("assistant", [{"type": "text", "data": {"text": ANSWERED}}, {"type": "finish", "data": {"reason": "stop"}}]),
    )
    _database(
        home / "crush.db",
        """
        CREATE TABLE sessions(id TEXT PRIMARY KEY, parent_session_id, title, message_count, prompt_tokens,
                              completion_tokens, cost, created_at, updated_at);
        CREATE TABLE messages(id TEXT PRIMARY KEY, session_id, role, parts, model, created_at);
        CREATE TABLE files(id TEXT PRIMARY KEY, session_id, path, content, version);
        """,
        sessions=[("h1", None, "Parser", 4, 0, 0, 0.0, 1772359200, 1772359209)],
        messages=[
            (f"m{number}", "h1", role, json.dumps(parts), "gpt-5.5", 1772359200 + number)
            for number, (role, parts) in enumerate(said)
        ],
    )
    document(home / "projects.json", {"projects": [{"path": "/work/gone", "data_dir": "/work/gone/.crush"}]})


def zed(home: Path) -> None:
    result = {"tool_use_id": "c1", "is_error": False, "content": {"Text": "ok"}}
    call = {"id": "c1", "name": "edit_file", "input": {"path": "a.py"}}
    used = {"input_tokens": 10, "cache_read_input_tokens": 20, "cache_creation_input_tokens": 100, "output_tokens": 30}
    thread = {
        "version": "0.3.0",
        "title": "Parser",
        "model": {"provider": "anthropic", "model": "claude-opus-4-8"},
        "messages": [
            {"User": {"id": "u1", "content": [{"Text": ASKED}]}},
            {"Agent": {"content": [{"ToolUse": call}, {"Text": ANSWERED}], "tool_results": {"c1": result}}},
            "Resume",
        ],
        "request_token_usage": {"u1": used},
    }
    data = zstandard.ZstdCompressor().compress(json.dumps(thread).encode())
    _database(
        home / "threads" / "threads.db",
        """
        CREATE TABLE threads(id TEXT PRIMARY KEY, summary TEXT NOT NULL, updated_at TEXT NOT NULL,
                             data_type TEXT NOT NULL, data BLOB NOT NULL, parent_id TEXT, folder_paths TEXT);
        """,
        threads=[("z1", "Parser", T2, "zstd", data, None, WHERE)],
    )


def workbench(home: Path) -> None:
    def message(number: int, role: Role, content: str, **more: Any) -> ChatMessage:
        at = datetime.fromisoformat(T0) + timedelta(seconds=number)
        return ChatMessage(id=f"m{number}", role=role, content=content, created_at=at, **more)

    call = ToolCall(id="c1", name="write_file", arguments={"path": "a.py"}, raw_arguments="")
    messages = (
        message(1, "user", ASKED),
        message(2, "assistant", "", tool_calls=(call,)),
        message(3, "tool", "ok", tool_call_id="c1"),
        message(4, "assistant", ANSWERED),
    )
    session = SessionDetail(
        id="w1",
        title="Parser",
        workspace=WHERE,
        model="gpt-5.5",
        is_running=False,
        message_count=4,
        usage=Usage(input_tokens=130, cache_read_tokens=20, output_tokens=30),
        tenant_id=None,
        created_at=datetime.fromisoformat(T0),
        updated_at=datetime.fromisoformat(T2),
        system_prompt=None,
        messages=messages,
        pending=(),
    )
    anyio.run(FileSessionStore(home / "workspaces" / "project-1").save, session)


HOMES = {
    "workbench": workbench,
    "zed": zed,
    "crush": crush,
    "goose": goose,
    "cursor": cursor,
    "opencode": opencode,
    "aider": aider,
    "amp": amp,
    "claude-code": claude_code,
    "cline": cline,
    "codex": codex,
    "continue": continue_dev,
    "copilot-cli": copilot_cli,
    "droid": droid,
    "gemini-cli": gemini_cli,
    "kilo-code": kilo_code,
    "kimi": kimi,
    "pi": pi,
    "qwen-code": qwen_code,
    "roo-code": roo_code,
}
