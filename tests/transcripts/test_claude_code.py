"""Sessions of Claude Code: what is told twice counts once, and what nobody typed is no prompt."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.transcripts.homes import T0, T1, lines
from tests.transcripts.reading_sessions import heads, loaded, texts
from workbench.transcripts import LocalPlatform, fold
from workbench.transcripts.agents.claude_code import typed


def user(content: object, uuid: str = "u", **more: object) -> dict[str, Any]:
    return {"type": "user", "uuid": uuid, "sessionId": "s", "timestamp": T0, "message": {"content": content}, **more}


def reply(id: str, output: int, content: list[object] | None = None, **more: object) -> dict[str, Any]:
    message = {
        "id": id,
        "model": "claude",
        "content": content or [],
        "usage": {"input_tokens": 5, "output_tokens": output},
    }
    return {"type": "assistant", "uuid": f"a{id}", "sessionId": "s", "timestamp": T1, "message": message, **more}


@pytest.fixture
def session(tmp_path: Path) -> Path:
    return tmp_path / "projects" / "-x" / "s.jsonl"


def test_of_a_response_s_snapshots_the_greatest_counts(session: Path) -> None:
    lines(session, reply("m1", 1), reply("m1", 30), reply("m1", 2), reply("m2", 7))
    transcript = loaded("claude-code", session)
    assert [(request.id, request.usage.output_tokens) for request in transcript.requests] == [("m1", 30), ("m2", 7)]


def test_a_sidechain_that_replays_its_parent_under_another_request_counts_nothing(session: Path) -> None:
    copy = reply("m1", 30, requestId="r2", isSidechain=True)
    lines(session, copy, reply("m1", 30, requestId="r1"))
    [request] = loaded("claude-code", session).requests
    assert request.lane == "main"


def test_subagents_are_lanes_with_their_usage_and_no_sessions(session: Path) -> None:
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "done"}
    lines(
        session,
        user("delegate"),
        reply("m1", 3, [{"type": "tool_use", "id": "t1", "name": "Task", "input": {}}]),
        user([result], toolUseResult={"agentId": "abc"}),
        user([result], toolUseResult={"agentId": "old"}),
    )
    inside = [user("look", agentId="abc", isSidechain=True), reply("m2", 4, isSidechain=True)]
    lines(session.parent / "s" / "subagents" / "agent-abc.jsonl", *inside)
    lines(session.parent / "agent-old.jsonl", reply("m3", 5, isSidechain=True))
    lines(session.parent / "agent-unnamed.jsonl", reply("m4", 6, isSidechain=True))
    lines(session.parent / "agent-other.jsonl", {**reply("m5", 6, isSidechain=True), "sessionId": "another"})
    transcript = loaded("claude-code", session)
    assert [(lane.id, lane.call_id) for lane in transcript.lanes] == [
        ("main", None),
        ("abc", "t1"),
        ("old", "t1"),
        ("unnamed", None),
    ]
    assert {request.id: request.lane for request in transcript.requests} == {
        "m1": "main",
        "m2": "abc",
        "m3": "old",
        "m4": "unnamed",
    }
    assert texts(transcript, "prompt") == ["delegate"]
    assert [head.ref.session_id for head in heads("claude-code", session.parents[2])] == ["s"]


def test_a_subagent_s_file_that_comes_later_is_found_however_old_its_directory_was(session: Path) -> None:
    lines(session, user("delegate"), reply("m1", 3))
    os.utime(session.parent, (10**9, 10**9))
    platform = LocalPlatform()
    assert len(loaded("claude-code", session, platform).lanes) == 1
    lines(session.parent / "agent-late.jsonl", reply("m2", 5, isSidechain=True))
    assert [lane.id for lane in loaded("claude-code", session, platform).lanes] == ["main", "late"]
    lines(session.parent / "agent-later.jsonl", reply("m3", 5, isSidechain=True))
    assert len(loaded("claude-code", session, platform).lanes) == 3


TYPED = [
    ("\ufeff hello ", "hello"),
    ("<system-reminder>x</system-reminder>\nreal", "real"),
    ("<ide_opened_file>The user opened a.py</ide_opened_file>\nreal", "real"),
    ("<ide_selection>a</ide_selection><system-reminder>b</system-reminder>", ""),
    ("<command-name>/review</command-name><command-args>it</command-args>", "/review it"),
    ("<command-message>x</command-message>\n<command-name>/init</command-name>", "/init"),
    ("<local-command-stdout>ok</local-command-stdout>", ""),
    ("<local-command-caveat>Caveat</local-command-caveat>", ""),
    ("Caveat: The messages below were generated", ""),
    ("[Request interrupted by user]", ""),
    ("This session is being continued from a previous conversation", ""),
    ("<bash-input>ls</bash-input>", ""),
    ("<div>is this right?</div>", "<div>is this right?</div>"),
]


@pytest.mark.parametrize(("text", "expected"), TYPED)
def test_a_prompt_is_what_a_person_typed(text: str, expected: str) -> None:
    assert typed(text) == expected


def test_the_first_prompt_is_a_real_one_and_a_command_where_there_is_none(session: Path) -> None:
    command = user("<command-name>/clear</command-name>")
    injected = [user("meta", isMeta=True), user("side", isSidechain=True), user("summary", isCompactSummary=True)]
    lines(session, command, *injected)
    lines(session.parent / "t.jsonl", command, *injected, user([{"type": "text", "text": "real"}]))
    assert [head.first_prompt for head in heads("claude-code", session.parents[2])] == ["/clear", "real"]


def test_what_was_typed_while_a_tool_ran_is_a_prompt(session: Path) -> None:
    queued = {"type": "attachment", "timestamp": T1, "attachment": {"type": "queued_command", "prompt": "and this"}}
    lines(session, user("first"), queued, {**queued, "attachment": {"type": "file", "prompt": "no"}})
    assert texts(loaded("claude-code", session), "prompt") == ["first", "and this"]


TITLES: list[tuple[list[dict[str, Any]], str | None]] = [
    ([{"type": "custom-title", "customTitle": "mine"}, {"type": "ai-title", "aiTitle": "made"}], "mine"),
    ([{"type": "ai-title", "aiTitle": "old"}, {"type": "ai-title", "aiTitle": "made"}], "made"),
    ([{"type": "summary", "summary": "of this", "leafUuid": "u"}], "of this"),
    ([{"type": "summary", "summary": "of another", "leafUuid": "elsewhere"}], None),
    (
        [
            {
                "type": "system",
                "content": "<command-name>/rename</command-name><command-args>named</command-args>",
            }
        ],
        "named",
    ),
]


@pytest.mark.parametrize(("records", "title"), TITLES)
@pytest.mark.parametrize("first", [True, False])
def test_the_title_is_the_session_s_own(
    session: Path, records: list[dict[str, Any]], title: str | None, first: bool
) -> None:
    lines(session, *((*records, user("hello")) if first else (user("hello"), *records)))
    assert loaded("claude-code", session).title == title
    assert heads("claude-code", session.parents[2])[0].title == (title or "hello")


def test_a_compaction_is_told_and_its_summary_is_no_prompt(session: Path) -> None:
    boundary = {
        "type": "system",
        "subtype": "compact_boundary",
        "timestamp": T1,
        "compactMetadata": {"trigger": "auto", "preTokens": 9},
    }
    lines(session, user("hello"), boundary, user("This session is being continued", isCompactSummary=True))
    transcript = loaded("claude-code", session)
    [compaction] = transcript.compactions
    assert (compaction.trigger, compaction.tokens_before) == ("auto", 9)
    assert texts(transcript, "prompt") == ["hello"]


def test_the_directory_is_that_of_the_records_not_of_the_folder_s_name(session: Path) -> None:
    lines(session, {"type": "mode"}, user("hello", cwd="/work/a-b_c"))
    assert heads("claude-code", session.parents[2])[0].cwd == "/work/a-b_c"
    assert loaded("claude-code", session).cwd == "/work/a-b_c"


def test_errors_that_the_client_made_up_are_no_replies_and_cost_nothing(session: Path) -> None:
    made_up = reply("x", 9, [{"type": "text", "text": "API Error"}])
    made_up["message"]["model"] = "<synthetic>"
    lines(session, user("hello"), made_up)
    transcript = loaded("claude-code", session)
    assert transcript.requests == ()
    assert texts(transcript, "notice") == ["API Error"]


def test_what_failed_wrote_nothing(session: Path) -> None:
    def call(id: str, path: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": "Edit", "input": {"file_path": path}}

    def result(id: str, failed: bool) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": id, "is_error": failed, "content": "x"}

    lines(session, reply("m", 1, [call("1", "/a"), call("2", "/b")]), user([result("1", True), result("2", False)]))
    transcript = loaded("claude-code", session)
    assert [edit.path for edit in transcript.edits] == ["/b"]
    assert fold(transcript).failed_calls == 1
