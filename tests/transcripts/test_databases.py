"""Sessions that live in databases: lanes, orders, both generations of a store, columns that aren't there."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.transcripts.homes import ASKED, HOMES, document, opencode
from tests.transcripts.reading_sessions import heads, loaded, texts
from workbench.transcripts import (
    LocalPlatform,
    Original,
    RowPointer,
    SessionNotFound,
    SessionRef,
    find_adapter,
    read_original,
)


def execute(path: Path, *statements: tuple[str, tuple[object, ...]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        for statement, parameters in statements:
            database.execute(statement, parameters)


def test_opencode_s_sessions_of_both_stores_are_listed_each_once(tmp_path: Path) -> None:
    opencode(tmp_path)
    storage = tmp_path / "storage"
    times = {"created": 1772359200000, "updated": 1772359300000}
    for id, parent in (("old", None), ("child", "old")):
        session = {"id": id, "projectID": "p", "parentID": parent, "directory": "/work", "title": id, "time": times}
        document(storage / "session" / "p" / f"ses_{id}.json", session)
        document(storage / "message" / id / f"msg_{id}.json", {"id": f"m{id}", "role": "user", "time": times})
        document(storage / "part" / f"m{id}" / "prt_1.json", {"id": "p1", "type": "text", "text": f"ask {id}"})
    found = heads("opencode", tmp_path)
    assert [(head.ref.session_id, head.first_prompt) for head in found] == [("s1", ASKED), ("old", "ask old")]
    transcript = loaded("opencode", found[1].ref.path)
    assert texts(transcript, "prompt") == ["ask old"]
    assert [lane.id for lane in transcript.lanes] == ["main", "child"]


def test_opencode_s_subagents_are_lanes(tmp_path: Path) -> None:
    opencode(tmp_path)
    data = json.dumps({"role": "assistant", "tokens": {"input": 7, "output": 1}})
    execute(
        tmp_path / "opencode.db",
        ("INSERT INTO session VALUES ('s2', 'p', 's1', '/work', 'look (@explore)', 1772359200000, 1772359201000)", ()),
        ("INSERT INTO message VALUES ('m9', 's2', 1, 1, ?)", (data,)),
    )
    [head] = heads("opencode", tmp_path)
    transcript = loaded("opencode", head.ref.path)
    assert {request.id: request.lane for request in transcript.requests} == {"m2": "main", "m9": "s2"}


def test_opencode_s_calls_have_times_of_their_own_and_tell_which_file_is_new(tmp_path: Path) -> None:
    opencode(tmp_path)
    state = {
        "status": "completed",
        "input": {"filePath": "new.py"},
        "metadata": {"filepath": "/work/project/new.py", "exists": False},
        "time": {"start": 1772359200006, "end": 1772359200008},
    }
    data = json.dumps({"type": "tool", "tool": "write", "callID": "c2", "state": state})
    execute(tmp_path / "opencode.db", ("INSERT INTO part VALUES ('p6', 'm2', 's1', 1, 1, ?)", (data,)))
    [head] = heads("opencode", tmp_path)
    transcript = loaded("opencode", head.ref.path)
    assert [(edit.path, edit.action) for edit in transcript.edits] == [
        ("/work/project/a.py", "update"),
        ("/work/project/new.py", "add"),
    ]
    times = [event.at.microsecond // 1000 for event in transcript.events if event.call_id == "c2" and event.at]
    assert times == [6, 8]


def test_a_session_that_a_database_lost_is_not_found(tmp_path: Path) -> None:
    opencode(tmp_path)
    path = f"{tmp_path}/opencode.db#nobody"
    assert anyio.run(
        find_adapter("opencode").load, LocalPlatform(), SessionRef(agent="", path=path)
    ) == SessionNotFound(path=path)


def test_a_row_is_read_back_with_its_json_parsed(tmp_path: Path) -> None:
    opencode(tmp_path)
    [head] = heads("opencode", tmp_path)
    [request] = loaded("opencode", head.ref.path).requests
    assert request.source == RowPointer(path=f"{tmp_path}/opencode.db", table="message", key="m2")
    original = anyio.run(read_original, LocalPlatform(), request.source)
    assert isinstance(original, Original)
    assert original.value["data"]["modelID"] == "gpt-5.5"


def _node(*links: str) -> bytes:
    return b"".join(b"\x0a\x20" + bytes.fromhex(link) for link in links)


def test_cursor_s_store_is_read_in_the_order_of_its_links(tmp_path: Path) -> None:
    ids = {name: f"{number:064x}" for number, name in enumerate(("root", "ask", "call", "say", "unlinked"), 1)}
    messages: dict[str, dict[str, Any]] = {
        "say": {"role": "assistant", "content": [{"type": "text", "text": "done"}]},
        "unlinked": {"role": "user", "content": [{"type": "text", "text": "taken back"}]},
        "call": {
            "role": "assistant",
            "content": [
                {"type": "tool-call", "toolCallId": "c1", "toolName": "edit_file", "args": {"target_file": "a.py"}}
            ],
        },
        "ask": {"role": "user", "content": "<user_query>\nfix it\n</user_query>"},
    }
    meta = {"agentId": "agent-1", "name": "Fix", "createdAt": 1772359200000, "latestRootBlobId": ids["root"]}
    path = tmp_path / "chats" / "hash" / "agent-1" / "store.db"
    execute(
        path,
        ("CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT)", ()),
        ("CREATE TABLE blobs(id TEXT PRIMARY KEY, data BLOB)", ()),
        ("INSERT INTO meta VALUES ('0', ?)", (json.dumps(meta).encode().hex(),)),
        *(
            ("INSERT INTO blobs VALUES (?, ?)", (ids[name], json.dumps(message).encode()))
            for name, message in messages.items()
        ),
        ("INSERT INTO blobs VALUES (?, ?)", (ids["root"], _node(ids["ask"], ids["call"], ids["say"]))),
    )
    [head] = heads("cursor", tmp_path)
    assert (head.ref.session_id, head.title) == ("agent-1", "Fix")
    transcript = loaded("cursor", head.ref.path)
    assert [event.kind for event in transcript.events] == ["prompt", "tool_call", "reply"]
    assert texts(transcript, "prompt") == ["fix it"]
    assert [edit.path for edit in transcript.edits] == ["a.py"]


def test_cursor_s_transcripts_have_their_subagents_as_lanes(tmp_path: Path) -> None:
    folder = tmp_path / "projects" / "work" / "agent-transcripts" / "t1"
    for path, text in (
        (folder / "t1.jsonl", "<user_query>ask</user_query>"),
        (folder / "subagents" / "x.jsonl", "look"),
    ):
        document(path, {"role": "user", "message": {"content": [{"type": "text", "text": text}]}})
    [head] = heads("cursor", tmp_path)
    assert head.first_prompt == "ask"
    transcript = loaded("cursor", head.ref.path)
    assert [lane.id for lane in transcript.lanes] == ["main", "x"]
    assert texts(transcript, "prompt") == ["ask"]


def test_crush_s_and_zed_s_subagents_are_lanes(tmp_path: Path) -> None:
    for agent, folder, statement in (
        ("crush", "", "INSERT INTO sessions VALUES ('h2', 'h1', 'look', 0, 5, 1, 0.1, 1772359200, 1772359201)"),
        ("zed", "threads", "INSERT INTO threads VALUES ('z2', 'look', '2026', 'json', '{\"messages\": []}', 'z1', '')"),
    ):
        home = tmp_path / agent
        home.mkdir()
        HOMES[agent](home)
        execute(next((home / folder).glob("*.db")), (statement, ()))
        [head] = heads(agent, home)
        transcript = loaded(agent, head.ref.path)
        assert [(lane.id, lane.name) for lane in transcript.lanes[1:]] == [(statement.split("'")[1], "look")]


def test_goose_s_totals_count_where_it_kept_no_ledger(tmp_path: Path) -> None:
    HOMES["goose"](tmp_path)
    execute(
        tmp_path / "sessions" / "sessions.db",
        ("DROP TABLE usage_ledger", ()),
        ("ALTER TABLE sessions ADD COLUMN accumulated_input_tokens", ()),
        ("ALTER TABLE sessions ADD COLUMN accumulated_output_tokens", ()),
        ("UPDATE sessions SET accumulated_input_tokens = 50, accumulated_output_tokens = 6", ()),
    )
    [head] = heads("goose", tmp_path)
    [request] = loaded("goose", head.ref.path).requests
    assert (request.usage.input_tokens, request.usage.output_tokens) == (50, 6)


_ODD = (None, -1.5, "text", "[[1]]", '{"role": 3, "time": {"created": 1e99}}', b"\xff\0")


@pytest.mark.parametrize("agent", ["opencode", "cursor", "goose", "crush", "zed"])
def test_columns_that_are_missing_or_hold_anything_never_raise(agent: str, tmp_path: Path) -> None:
    """Each column of each table in turn: gone, and with values of every kind."""
    HOMES[agent](tmp_path)
    [path] = [path for path in tmp_path.rglob("*") if path.suffix in (".db", ".vscdb")]
    good = path.read_bytes()
    with contextlib.closing(sqlite3.connect(path)) as database:
        tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        columns = [(t, row[1]) for t in tables for row in database.execute(f"PRAGMA table_info({t})")]
    keys = [head.ref.path for head in heads(agent, tmp_path)]
    for table, column in columns:
        for number, odd in enumerate(("a column that is gone", *_ODD)):
            path.write_bytes(good)
            change = (f"UPDATE OR REPLACE {table} SET {column} = ?", (odd,))
            if number == 0:
                change = (f"ALTER TABLE {table} RENAME COLUMN {column} TO gone", ())
            with contextlib.suppress(sqlite3.IntegrityError):
                execute(path, change)
            heads(agent, tmp_path)
            for key in keys:
                ref = SessionRef(agent=agent, path=key)
                anyio.run(find_adapter(agent).load, LocalPlatform(), ref)
