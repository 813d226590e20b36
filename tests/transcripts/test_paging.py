"""Sessions in parts: put together they are the whole, and each costs memory for itself alone."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import anyio
import pytest

from tests.transcripts.homes import HOMES, T0, lines
from tests.transcripts.reading_sessions import heads, loaded
from workbench.errors import OptionsError
from workbench.transcripts import LocalPlatform, Provider, SessionRef, Transcript, find_adapter
from workbench.transcripts.diffs import diffs_of_call
from workbench.transcripts.models import CallRecord, LinePointer
from workbench.transcripts.paging import TranscriptPage, read_page


def page(ref: SessionRef, cursor: str | None = None, limit: int = 200) -> TranscriptPage:
    found = anyio.run(lambda: read_page(LocalPlatform(), ref, cursor=cursor, limit=limit))
    assert isinstance(found, TranscriptPage), found
    return found


def pages(ref: SessionRef, limit: int) -> list[TranscriptPage]:
    found = [page(ref, limit=limit)]
    while (cursor := found[-1].next_cursor) is not None:
        found.append(page(ref, cursor, limit))
    return found


def assert_whole(ref: SessionRef, whole: Transcript, limit: int) -> None:
    parts = pages(ref, limit)
    assert tuple(event for part in parts for event in part.events) == whole.events
    assert all(len(part.events) <= limit for part in parts)
    calls = {call.id: call for part in parts for call in part.tool_calls}
    assert calls == {call.id: call for call in whole.tool_calls}
    told = {event.call_id for event in whole.events if event.kind == "tool_call"}
    edits = [edit for part in parts for edit in part.edits]
    assert sorted(edits, key=str) == sorted((edit for edit in whole.edits if edit.call_id in told), key=str)
    for part in parts:
        assert (part.session_id, part.title, part.cwd, part.lanes, part.skipped) == (
            whole.session_id,
            whole.title,
            whole.cwd,
            whole.lanes,
            len(whole.skipped),
        )


@pytest.mark.parametrize("agent", HOMES)
def test_the_parts_of_a_session_are_the_whole(agent: str, tmp_path: Path) -> None:
    HOMES[agent](tmp_path)
    for head in heads(agent, tmp_path):
        whole = loaded(agent, head.ref.path)
        for limit in (1, 2, 3, 1000):
            assert_whole(head.ref, whole, limit)


SAMPLES = [
    ("claude-code", "claude_code/claude-code-viewer/sample-project/fe5e1c67-53e7-4862-81ae-d0e013e3270b.jsonl"),
    ("claude-code", "claude_code/agent-sessions/claude/subagent/0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f.jsonl"),
    ("gemini-cli", "gemini_cli/agent-sessions/gemini/jsonl_v040.jsonl"),
    ("gemini-cli", "gemini_cli/agent-sessions/gemini/large.json"),
]


@pytest.mark.parametrize(("agent", "name"), SAMPLES)
def test_the_parts_of_real_sessions_are_the_whole(samples: Path, agent: str, name: str) -> None:
    ref = SessionRef(agent=agent, path=str(samples / name))
    whole = loaded(agent, ref.path)
    for limit in (7, 100):
        assert_whole(ref, whole, limit)


def test_a_message_that_is_written_anew_is_in_one_part_and_once(tmp_path: Path) -> None:
    """Gemini CLI writes a message again as it grows, also after others have followed."""

    def said(id: str, text: str) -> dict[str, object]:
        return {"id": id, "timestamp": T0, "type": "gemini", "content": text, "model": "m"}

    path = tmp_path / "tmp" / "project" / "chats" / "session-2026-03-01T10-00-g1.jsonl"
    begin = {"sessionId": "g1", "projectHash": "h", "startTime": T0, "lastUpdated": T0, "kind": "main"}
    lines(path, begin, said("a", "one"), said("b", "two"), said("c", "three"), said("a", "first"), said("b", "second"))
    ref = SessionRef(agent="gemini-cli", path=str(path))
    whole = loaded("gemini-cli", path)
    assert [event.text for event in whole.events] == ["first", "second", "three"]
    for limit in (1, 2, 3):
        assert_whole(ref, whole, limit)


def test_an_adapter_of_somebody_else_s_is_read_in_parts_too(tmp_path: Path) -> None:
    HOMES["claude-code"](tmp_path)
    [head] = heads("claude-code", tmp_path)

    class Other:
        """All that the protocol asks for, and no base class."""

        agent = "claude-code"
        load = staticmethod(find_adapter("claude-code").load)

    providers = (Provider(sessions={"claude-code": Other()}),)  # type: ignore[dict-item]
    whole = loaded("claude-code", head.ref.path)
    found, cursor = [], None
    while True:

        async def read(cursor: str | None = cursor) -> object:
            return await read_page(LocalPlatform(), head.ref, cursor=cursor, limit=3, providers=providers)

        part = anyio.run(read)
        assert isinstance(part, TranscriptPage)
        found.extend(part.events)
        if (cursor := part.next_cursor) is None:
            break
    assert tuple(found) == whole.events


def test_a_cursor_of_nobody_s_is_refused() -> None:
    for cursor in ("", "1", "-1.0", "1.0.0", "1.x", "²2.0", "9" * 30 + ".1"):
        with pytest.raises(OptionsError, match="cursor"):
            page(SessionRef(agent="claude-code", path="/nowhere"), cursor)


def test_a_part_of_100_mb_takes_memory_for_the_part(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    text = "x" * 60_000

    def record(number: int) -> str:
        call = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": {"command": text[:5_000]}}
        content: list[object] = [{"type": "text", "text": f"{number} {text}"}, call]
        message = {"id": f"m{number}", "role": "assistant", "content": content}
        return json.dumps({"type": "assistant", "sessionId": "b", "timestamp": T0, "message": message})

    with open(path, "w") as file:
        for number in range(1_600):
            file.write(record(number) + "\n")
    assert path.stat().st_size > 100_000_000
    ref = SessionRef(agent="claude-code", path=str(path))
    tracemalloc.start()
    try:
        part = page(ref, "0.2000", 50)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(part.events) == 50
    assert peak < 24_000_000


def call(name: str, **arguments: object) -> CallRecord:
    source = LinePointer(path="/x", offset=0, length=1)
    return CallRecord(id="c", lane="main", name=name, source=source, arguments=json.dumps(arguments))


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (call("Write", file_path="a", content="1\n2\n"), "+1\n+2"),
        (call("Edit", file_path="a", old_string="1\n2\n3", new_string="1\nx\n3"), "@@\n 1\n-2\n+x\n 3"),
        (call("Edit", file_path="a", old_string="1\n", new_string="1\n1\n"), "@@\n 1\n+1"),
        (call("Edit", file_path="a", old_string="x", new_string="y", replace_all=True), "@@ everywhere @@\n-x\n+y"),
        (call("insert", path="a", insert_line=3, insert_text="new"), "@@ after line 3 @@\n+new"),
        (call("delete_file", path="a"), "@@ deleted @@"),
    ],
)
def test_an_edit_is_told_as_lines_of_a_diff(made: CallRecord, expected: str) -> None:
    [diff] = diffs_of_call(made)
    assert (diff.path, diff.text) == ("a", expected)


def test_of_what_its_arguments_don_t_tell_there_is_no_diff() -> None:
    assert diffs_of_call(call("Read", file_path="a")) == ()
    cut = call("Write", file_path="a", content="1").model_copy(update={"arguments": '{"file_path": "a", "content": "1'})
    assert diffs_of_call(cut) == ()
