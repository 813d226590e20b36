"""What a session of another agent comes to: messages that every model takes, and edits that lead from state to state."""

from __future__ import annotations

import base64
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.transcripts.homes import ANSWERED, ASKED, HOMES, T0, T1, T2, WHERE, document, lines
from tests.transcripts.reading_sessions import heads
from workbench.agent.repair import repaired
from workbench.agent.validation import is_plain_json
from workbench.importing.places import Places
from workbench.importing.planning import Plan, Status, plan
from workbench.protocol.messages import ChatMessage
from workbench.testing.conversations import session as stored_session
from workbench.transcripts import LocalPlatform, SessionRef, builtin_provider
from workbench.transcripts.changes import (
    Append,
    Cell,
    Deed,
    Delete,
    Diff,
    Insert,
    Patch,
    Replace,
    Replacement,
    Unrecorded,
    Write,
    changes_of_call,
)
from workbench.transcripts.importing import Edit, ImportedSession, load_to_import
from workbench.vfs.local import LocalStorage

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def read(agent: str, path: Path | str) -> ImportedSession:
    async def load() -> ImportedSession:
        found = await load_to_import(LocalPlatform(), SessionRef(agent=agent, path=str(path)))
        assert isinstance(found, ImportedSession), found
        return found

    return anyio.run(load)


def check(messages: Sequence[ChatMessage]) -> None:
    """Nothing is to be repaired, and every provider's rules are kept."""
    assert all(one is other for one, other in zip(repaired(messages), messages, strict=True))
    ids = [message.id for message in messages]
    calls = [call for message in messages for call in message.tool_calls]
    assert len({*ids, *(call.id for call in calls)}) == len(ids) + len(calls)
    assert all(name.replace("_", "").isalnum() and len(name) <= 64 for name in (*ids, *(call.id for call in calls)))
    assert all(message.role in ("user", "assistant", "tool") and message.provider_state is None for message in messages)
    assert not messages or messages[0].role == "user"
    for call in calls:
        assert call.arguments == json.loads(call.raw_arguments)
        assert is_plain_json(call.arguments)
    assert [ChatMessage.model_validate_json(message.model_dump_json()) for message in messages] == list(messages)


def claude(path: Path, *records: dict[str, Any]) -> ImportedSession:
    """A session of Claude Code with these records."""
    chain = {"sessionId": "s", "cwd": WHERE, "isSidechain": False}
    lines(path, *({"uuid": f"u{n}", "timestamp": T0, **chain, **record} for n, record in enumerate(records)))
    return read("claude-code", path)


def says(*content: object) -> dict[str, Any]:
    return {"type": "assistant", "message": {"id": "m", "role": "assistant", "model": "x", "content": list(content)}}


def asks(content: object, **more: Any) -> dict[str, Any]:
    return {"type": "user", "message": {"role": "user", "content": content}, **more}


def calls(id: str, name: str, **given: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": id, "name": name, "input": given}


def answers(id: str, content: object = "ok", **more: Any) -> dict[str, Any]:
    return asks([{"type": "tool_result", "tool_use_id": id, "content": content, **more}])


@pytest.mark.parametrize("agent", HOMES)
def test_every_agent_s_session_becomes_a_conversation(agent: str, tmp_path: Path) -> None:
    HOMES[agent](tmp_path)
    [head] = heads(agent, tmp_path)
    found = read(agent, head.ref.path)
    check(found.messages)
    said = [(message.role, message.content) for message in found.messages if message.role != "tool"]
    assert said[0] == ("user", ASKED)
    assert ("assistant", ANSWERED) in said
    assert all(edit.path.endswith("a.py") or isinstance(edit.deed, Patch) for edit in found.edits)


def test_every_sample_becomes_a_conversation_and_a_plan(samples: Path) -> None:
    seen = 0

    async def load() -> None:
        nonlocal seen
        for adapter in builtin_provider().sessions.values():
            folder = samples / adapter.agent.replace("-", "_")
            for path in sorted(folder.rglob("*")) if folder.is_dir() else ():
                ref = SessionRef(agent=adapter.agent, path=str(path))
                if path.suffix not in (".jsonl", ".json", ".md", ".db"):
                    continue
                if not await adapter.detect(LocalPlatform(), ref):
                    continue
                found = await load_to_import(LocalPlatform(), ref)
                if not isinstance(found, ImportedSession):
                    continue
                seen += 1
                check(found.messages)
                with tempfile.TemporaryDirectory() as root, LocalStorage(os.fsencode(root)) as storage:
                    planned = plan(found.edits, Places.of(os.fsencode(root), found.transcript.cwd, None), storage)
                assert len(planned.edits) >= len(found.edits)
                asked = {message.id for message in found.messages if message.role == "user"}
                assert {step.message_id for step in planned.steps} <= asked

    anyio.run(load)
    assert seen > 50


def test_calls_have_their_results_wherever_those_were_recorded(tmp_path: Path) -> None:
    found = claude(
        tmp_path / "s.jsonl",
        asks("go"),
        says({"type": "text", "text": "I'll look."}, calls("a", "Read", file_path="x"), calls("b", "mcp.odd name")),
        answers("b", "two", is_error=True),
        asks("one thing more"),
        answers("a", "one"),
        says(calls("c", "Bash", command="sleep 9")),
        says({"type": "text", "text": "  "}),
        says({"type": "thinking", "thinking": "hm", "signature": "opaque"}),
    )
    check(found.messages)
    shape = [(m.role, m.content, m.is_error, [call.name for call in m.tool_calls]) for m in found.messages]
    assert shape == [
        ("user", "go", False, []),
        ("assistant", "I'll look.", False, ["Read", "mcp_odd_name"]),
        ("tool", "one", False, []),
        ("tool", "two", True, []),
        ("user", "one thing more", False, []),
        ("assistant", "", False, ["Bash"]),
        ("tool", "No result of this call was recorded.", True, []),
    ]
    assert found.commands == 1


def test_texts_are_whole_and_long_results_are_cut_and_say_so(tmp_path: Path) -> None:
    long = "äb\n" * 40_000
    found = claude(
        tmp_path / "s.jsonl",
        asks("go"),
        says(calls("a", "Write", file_path=f"{WHERE}/x", content=long)),
        answers("a", long),
        says({"type": "text", "text": long}),
    )
    check(found.messages)
    [edit] = found.edits
    assert edit.deed == Write(long)
    assert found.messages[3].content == long
    assert found.messages[2].content.startswith(long[:30_000])
    assert found.messages[2].content.endswith("left out.]")


def test_images_are_kept_where_the_records_hold_them(tmp_path: Path) -> None:
    def image(data: bytes, kind: str = "image/png") -> dict[str, Any]:
        source = {"type": "base64", "media_type": kind, "data": base64.b64encode(data).decode()}
        return {"type": "image", "source": source}

    found = claude(
        tmp_path / "s.jsonl",
        asks(
            [{"type": "text", "text": "look"}, image(PIXEL), image(PIXEL), image(b"no image"), image(b"", "image/gif")]
        ),
        says(calls("a", "Read", file_path="x.png")),
        {**answers("a", [image(PIXEL, "image/jpeg")]), "toolUseResult": {"type": "image", "file": {"base64": "AA=="}}},
    )
    check(found.messages)
    asked, _, answered = found.messages
    assert [(each.media_type, each.data) for each in asked.images] == [("image/png", PIXEL)]
    assert [(each.media_type, each.data) for each in answered.images] == [("image/png", PIXEL)]


def test_our_own_sessions_images_come_along(tmp_path: Path) -> None:
    path = tmp_path / "sessions" / "s" / "session.json"
    image = {"media_type": "image/png", "data": base64.urlsafe_b64encode(PIXEL).decode()}
    kept = json.loads(stored_session("s").model_dump_json())
    kept["messages"] = [{"id": "m", "role": "user", "content": "look", "images": [image], "created_at": T0}]
    document(path, kept)
    [message] = read("workbench", path).messages
    assert [each.data for each in message.images] == [PIXEL]


def test_what_was_compacted_stays_and_its_summary_follows(tmp_path: Path) -> None:
    found = claude(
        tmp_path / "s.jsonl",
        asks("first"),
        says({"type": "text", "text": "done"}),
        {"type": "system", "subtype": "compact_boundary", "compactMetadata": {"trigger": "auto"}},
        asks("This session is being continued from before. They did the first.", isCompactSummary=True),
        asks("second"),
        says({"type": "text", "text": "done too"}),
    )
    check(found.messages)
    assert [message.content[:12] for message in found.messages] == [
        "first",
        "done",
        "Summary of t",
        "second",
        "done too",
    ]
    assert "They did the first." in found.messages[2].content


def test_a_summary_is_read_from_its_record(tmp_path: Path) -> None:
    path = tmp_path / "2026_i.jsonl"
    said = {"role": "user", "content": [{"type": "text", "text": "first"}]}
    lines(
        path,
        {"type": "session", "version": 3, "id": "i", "timestamp": T0, "cwd": WHERE},
        {"type": "message", "id": "1", "parentId": None, "timestamp": T0, "message": said},
        {
            "type": "compaction",
            "id": "2",
            "parentId": "1",
            "timestamp": T1,
            "summary": "They asked.",
            "tokensBefore": 9,
        },
        {"type": "message", "id": "3", "parentId": "2", "timestamp": T2, "message": {**said, "content": "second"}},
    )
    messages = read("pi", path).messages
    check(messages)
    assert [message.content.rpartition("\n")[2] for message in messages] == ["first", "They asked.", "second"]


def test_what_was_injected_or_taken_back_is_left_out(tmp_path: Path) -> None:
    found = claude(
        tmp_path / "s.jsonl",
        asks("<system-reminder>Be brief.</system-reminder>"),
        asks("Caveat: The messages below were made by a command", isMeta=True),
        says({"type": "text", "text": "Hello."}),
    )
    check(found.messages)
    assert [(m.role, "isn't in the records" in m.content) for m in found.messages] == [
        ("user", True),
        ("assistant", False),
    ]


SHAPES: list[tuple[str, object, Deed]] = [
    ("Write", {"file_path": "p", "content": "x"}, Write("x")),
    ("create_new_file", {"filepath": "p", "contents": "x"}, Write("x")),
    ("WriteFile", {"path": "p", "content": "x", "mode": "append"}, Append("x")),
    ("Edit", {"file_path": "p", "old_string": "a", "new_string": "b"}, Replace((Replacement("a", "b"),))),
    (
        "edit",
        {"filePath": "p", "oldString": "a", "newString": "b", "replaceAll": True},
        Replace((Replacement("a", "b", True),)),
    ),
    ("edit", {"path": "p", "edits": [{"oldText": "a", "newText": "b"}]}, Replace((Replacement("a", "b"),))),
    ("StrReplaceFile", {"path": "p", "edit": {"old": "a", "new": "b"}}, Replace((Replacement("a", "b"),))),
    (
        "MultiEdit",
        {
            "file_path": "p",
            "edits": [
                {"old_string": "a", "new_string": "b"},
                {"old_string": "c", "new_string": "", "replace_all": True},
            ],
        },
        Replace((Replacement("a", "b"), Replacement("c", "", True))),
    ),
    (
        "str_replace_editor",
        {"command": "str_replace", "path": "p", "old_str": "a", "new_str": "b"},
        Replace((Replacement("a", "b"),)),
    ),
    ("str_replace_editor", {"command": "insert", "path": "p", "insert_line": 2, "new_str": "x"}, Insert(2, "x")),
    ("str_replace_editor", {"command": "create", "path": "p", "file_text": "x"}, Write("x")),
    (
        "replace_in_file",
        {"path": "p", "diff": "------- SEARCH\na\nb\n=======\nc\n+++++++ REPLACE"},
        Replace((Replacement("a\nb", "c"),)),
    ),
    (
        "apply_diff",
        {"path": "p", "diff": "<<<<<<< SEARCH\n:start_line:4\n-------\na\n=======\n>>>>>>> REPLACE\n"},
        Replace((Replacement("a", ""),)),
    ),
    ("editedExistingFile", {"path": "p", "diff": "@@ -1 +1 @@\n-a\n+b"}, Diff("@@ -1 +1 @@\n-a\n+b")),
    (
        "NotebookEdit",
        {"notebook_path": "p", "cell_id": "c1", "new_source": "x", "edit_mode": "insert"},
        Cell("c1", "x", "insert", "code"),
    ),
    ("delete_file", {"target_file": "p"}, Delete()),
    ("edit_existing_file", {"filepath": "p", "changes": "// ... existing code ..."}, Unrecorded()),
]


@pytest.mark.parametrize(("name", "arguments", "deed"), SHAPES)
def test_what_tools_do_is_told_from_their_arguments(name: str, arguments: object, deed: Deed) -> None:
    [change] = changes_of_call(name, json.dumps(arguments))
    assert (change.path, change.deed) == ("p", deed)


def test_patches_are_found_in_whatever_carries_them() -> None:
    patch = "*** Begin Patch\n*** Add File: p\n+x\n*** End Patch"
    script = f"cd sub && apply_patch <<'EOF'\n{patch}\nEOF\necho done"
    for arguments in (
        patch,
        json.dumps({"input": patch}),
        json.dumps({"command": ["bash", "-lc", script], "workdir": "/elsewhere"}),
    ):
        [change] = changes_of_call("any", arguments)
        assert change.deed == Patch(patch)
    assert change.directory == "/elsewhere"
    assert changes_of_call("any", "*** Begin Patch\n" * 1000) == ()


def test_codex_s_records_of_changes_stand_where_no_call_tells_of_them(tmp_path: Path) -> None:
    changes = {
        f"{WHERE}/a.py": {"type": "update", "unified_diff": "@@ -1 +1 @@\n-a\n+b\n", "move_path": f"{WHERE}/b.py"},
        f"{WHERE}/new": {"type": "add", "content": "x"},
        f"{WHERE}/gone": {"type": "delete", "content": "x"},
    }
    path = tmp_path / "rollout-2026-03-01T10-00-00-x1.jsonl"
    lines(
        path,
        {"timestamp": T0, "type": "session_meta", "payload": {"id": "x1", "timestamp": T0, "cwd": WHERE}},
        {"timestamp": T0, "type": "event_msg", "payload": {"type": "user_message", "message": ASKED}},
        {
            "timestamp": T1,
            "type": "event_msg",
            "payload": {"type": "patch_apply_end", "call_id": "1", "success": True, "changes": changes},
        },
        {"timestamp": T2, "type": "event_msg", "payload": {"type": "agent_message", "message": ANSWERED}},
    )
    found = read("codex", path)
    assert {edit.path.rpartition("/")[2]: type(edit.deed) for edit in found.edits} == {
        "a.py": Diff,
        "new": Write,
        "gone": Delete,
    }


def test_a_record_tells_what_a_call_s_arguments_don_t(tmp_path: Path) -> None:
    path = tmp_path / "rollout-2026-03-01T10-00-00-x1.jsonl"
    call = {"type": "function_call", "name": "write_file", "call_id": "1", "arguments": json.dumps({"path": "a.py"})}
    done = {"type": "patch_apply_end", "call_id": "1", "success": True}
    lines(
        path,
        {"timestamp": T0, "type": "session_meta", "payload": {"id": "x1", "timestamp": T0, "cwd": WHERE}},
        {"timestamp": T0, "type": "event_msg", "payload": {"type": "user_message", "message": ASKED}},
        {"timestamp": T1, "type": "response_item", "payload": call},
        {
            "timestamp": T1,
            "type": "event_msg",
            "payload": {**done, "changes": {"a.py": {"type": "add", "content": "x"}}},
        },
    )
    [edit] = read("codex", path).edits
    assert (edit.path, edit.deed, edit.action) == ("a.py", Write("x"), "add")


def test_aider_s_passages_are_taken_from_its_replies(tmp_path: Path) -> None:
    path = tmp_path / ".aider.chat.history.md"
    block = "src/a.py\n```python\n<<<<<<< SEARCH\nold\n=======\nnew\n>>>>>>> REPLACE\n```"
    path.write_text(
        f"# aider chat started at 2026-03-01 10:00:00\n\n#### {ASKED}\n\nHere it is.\n\n{block}\n\n> Applied edit to src/a.py\n"
    )
    [edit] = read("aider", path).edits
    assert (edit.path, edit.deed) == ("src/a.py", Replace((Replacement("old", "new"),)))


def test_subagents_edits_belong_to_the_reply_that_started_them(tmp_path: Path) -> None:
    folder = tmp_path / "projects" / "p"
    told = {"toolUseResult": {"agentId": "x"}}
    lane = {"sessionId": "s", "isSidechain": True, "agentId": "x", "uuid": "l1", "timestamp": T1, "cwd": WHERE}
    lines(
        folder / "s" / "subagents" / "agent-x.jsonl", {**says(calls("in", "Write", file_path="a", content="1")), **lane}
    )
    found = claude(
        folder / "s.jsonl",
        asks("go"),
        says(calls("t", "Task", prompt="do it")),
        {**answers("t"), **told},
        says(calls("out", "Write", file_path="a", content="2")),
        answers("out"),
    )
    assert [edit.deed for edit in found.edits] == [Write("1"), Write("2")]
    assert found.edits[0].reply_id == found.messages[1].id
    assert found.edits[1].reply_id == found.messages[3].id


# What becomes of edits


def edits(*deeds: tuple[str, Deed], action: Any = "update") -> list[Edit]:
    """Edits of files in the workspace, each of a reply of its own."""
    return [
        Edit(message_id="m", reply_id=f"r{number}", tool="Edit", path=path, deed=deed, action=action)
        for number, (path, deed) in enumerate(deeds)
    ]


def planned(root: Path, made: Sequence[Edit]) -> Plan:
    with LocalStorage(os.fsencode(root)) as storage:
        return plan(made, Places.of(os.fsencode(root), WHERE, None), storage)


def outcome(made: Plan) -> dict[bytes, bytes | None]:
    """What the files that are touched come to in the end."""
    files = {**made.before.files}
    for step in made.steps:
        files.update(step.files)
    return files


def statuses(made: Plan) -> list[str]:
    return [edit.status.value for edit in made.edits]


REPLACED = edits(
    ("a", Replace((Replacement("one", "two"),))),
    ("a", Replace((Replacement("two", "three\nfour"),))),
)


@pytest.mark.parametrize(
    ("content", "expected", "before"),
    [
        ("one\n", ["applied", "applied"], {}),
        ("two\n", ["already", "applied"], {b"a": b"one\n"}),
        ("three\nfour\n", ["already", "already"], {b"a": b"one\n"}),
        ("three\nfour\nand a person's\n", ["already", "already"], {b"a": b"one\nand a person's\n"}),
        ("else\n", ["conflict", "conflict"], {}),
    ],
)
def test_an_edit_is_applied_is_there_already_or_conflicts(
    tmp_path: Path, content: str, expected: list[str], before: dict[bytes, bytes]
) -> None:
    (tmp_path / "a").write_text(content)
    made = planned(tmp_path, REPLACED)
    assert statuses(made) == expected
    assert made.before.files == before
    if "conflict" not in expected:
        rest = content.removeprefix("one").removeprefix("two").removeprefix("three\nfour")
        assert outcome(made) == {b"a": f"three\nfour{rest}".encode()}


def test_what_is_there_already_isn_t_done_twice_beside_a_conflict(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a\nx\n")
    made = planned(tmp_path, edits(("a", Replace((Replacement("q", "r"),))), ("a", Append("x\n"))))
    assert (statuses(made), outcome(made)) == (["conflict", "already"], {})


def test_a_file_that_was_made_and_is_another_now_isn_t_written_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a person's")
    assert statuses(planned(tmp_path, edits(("a", Write("new")), action="add"))) == ["conflict"]
    assert statuses(planned(tmp_path, edits(("a", Write("a person's")), action="add"))) == ["already"]
    made = planned(tmp_path, edits(("a", Write("new"))))
    assert (statuses(made), outcome(made)) == (["applied"], {b"a": b"new"})


def test_a_file_that_was_made_wasn_t_there_before(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("two")
    made = planned(
        tmp_path, [*edits(("a", Write("one")), action="add"), *edits(("a", Replace((Replacement("one", "two"),))))]
    )
    assert (statuses(made), made.before.files) == (["already", "already"], {b"a": None})


@pytest.mark.parametrize(
    ("deed", "before", "after"),
    [
        (Append("more\n"), "a\n", "a\nmore\n"),
        (Insert(1, "b"), "a\nc\n", "a\nb\nc\n"),
        (Diff("@@ -1,2 +1,2 @@\n a\n-b\n+c\n"), "a\nb\n", "a\nc\n"),
        (Diff("--- a/x\n+++ b/x\n@@ -1 +1,2 @@\n-b\n\\ No newline at end of file\n+b\n+c\n"), "b", "b\nc\n"),
        (Patch("*** Begin Patch\n*** Update File: a\n@@\n-b\n+c\n*** End Patch"), "a\r\nb\r\n", "a\r\nc\r\n"),
        (Replace((Replacement("x", "y", True),)), "x x", "y y"),
    ],
)
def test_each_kind_of_edit_goes_both_ways(tmp_path: Path, deed: Deed, before: str, after: str) -> None:
    path = tmp_path / "a"
    path.write_text(before, newline="")
    made = planned(tmp_path, edits(("a", deed)))
    assert (statuses(made), outcome(made)) == (["applied"], {b"a": after.encode()})
    path.write_text(after, newline="")
    made = planned(tmp_path, edits(("a", deed)))
    assert (statuses(made), made.before.files) == (["already"], {b"a": before.encode()})


def test_files_are_made_moved_and_deleted_by_a_patch(tmp_path: Path) -> None:
    patch = (
        "*** Begin Patch\n*** Add File: sub/new\n+x\n*** Update File: a\n*** Move to: b\n@@\n-one\n+two\n"
        "*** Delete File: gone\n*** End Patch"
    )
    (tmp_path / "a").write_text("one\n")
    (tmp_path / "gone").write_text("!")
    made = planned(tmp_path, edits(("", Patch(patch))))
    assert [(edit.path, edit.action, edit.status.value) for edit in made.edits] == [
        ("sub/new", "add", "applied"),
        ("a", "move", "applied"),
        ("gone", "delete", "applied"),
    ]
    assert outcome(made) == {b"sub/new": b"x\n", b"a": None, b"b": b"two\n", b"gone": None}
    assert made.steps[0].moves == [(b"a", b"b")]
    (tmp_path / "a").unlink()
    (tmp_path / "gone").unlink()
    (tmp_path / "b").write_text("two\n")
    made = planned(tmp_path, edits(("", Patch(patch))))
    assert statuses(made) == ["applied", "already", "already"]
    assert (made.before.moves, made.before.files) == ([(b"b", b"a")], {b"a": b"one\n", b"b": None})


def test_a_notebook_s_cell_is_replaced_and_what_is_none_conflicts(tmp_path: Path) -> None:
    cells = [{"cell_type": "code", "id": "c1", "metadata": {}, "source": "1", "outputs": [1], "execution_count": 1}]
    (tmp_path / "n.ipynb").write_text(json.dumps({"cells": cells, "nbformat": 4}))
    made = planned(
        tmp_path,
        edits(
            ("n.ipynb", Cell("c1", "2", "replace", "code")),
            ("n.ipynb", Cell("c1", "# 3", "insert", "markdown")),
            ("n.ipynb", Cell("c9", "", "delete", "code")),
        ),
    )
    assert statuses(made) == ["applied", "applied", "conflict"]
    [content] = outcome(made).values()
    assert content is not None
    found = json.loads(content)["cells"]
    assert [(cell["cell_type"], cell["source"], cell.get("outputs")) for cell in found] == [
        ("code", "2", []),
        ("markdown", "# 3", None),
    ]


def test_what_can_t_be_edited_conflicts_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "dir").mkdir()
    (tmp_path / "binary").write_bytes(b"\0\1")
    os.mkfifo(tmp_path / "fifo")
    replaced = Replace((Replacement("a", "b"),))
    made = planned(
        tmp_path,
        edits(
            ("dir", Write("x")),
            ("binary", replaced),
            ("fifo", Write("x")),
            ("missing", replaced),
            ("binary/below", Write("x")),
            ("x" * 300, Write("x")),
            ("f", Write("x")),
            ("f/below", Write("x")),
            ("", Patch("*** Begin Patch\nnonsense\n*** End Patch")),
            ("unknown", Unrecorded()),
        ),
    )
    assert statuses(made) == ["conflict"] * 6 + ["applied", "conflict", "conflict", "unrecorded"]
    assert all(edit.reason for edit in made.edits if edit.status is not Status.APPLIED)


# Paths


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ("a/b", b"a/b"),
        (f"{WHERE}/a", b"a"),
        (f"file://{WHERE}/a%20b", b"a b"),
        (f"{WHERE}/x/../a", b"a"),
        (WHERE, None),
        (f"{WHERE}x/a", None),
        ("../a", None),
        (f"{WHERE}/../../../../etc/passwd", None),
        ("/etc/passwd", None),
        ("~/a", b"~/a"),
        ("a\0b", None),
        ("C:\\a", None),
        ("a\ud800", None),
        ("", None),
    ],
)
def test_recorded_paths_lie_below_the_session_s_directory(recorded: str, expected: bytes | None) -> None:
    assert Places.of(b"/srv/here", WHERE, None).locate(recorded) == expected


def test_where_a_session_s_directory_lies_is_seen(tmp_path: Path) -> None:
    root = tmp_path / "repo"
    (root / "sub").mkdir(parents=True)
    here = os.fsencode(root)
    below = Places.of(here, str(root / "sub"), None)
    assert (below.locate("a"), below.locate(f"{root}/a"), below.locate("../a")) == (b"sub/a", b"a", b"a")
    above = Places.of(here, str(tmp_path), None)
    assert (above.locate("a"), above.locate("repo/a")) == (None, b"a")
    assert Places.of(here, "C:\\work", None).locate("C:\\work\\a\\b") == b"a/b"
    assert Places.of(here, "C:\\work", None).locate("a\\b") == b"a/b"
    given = Places.of(here, WHERE, "/work")
    assert (given.locate("a"), given.locate("/work/b"), given.locate(f"{root}/b")) == (b"project/a", b"b", None)


_NAME = st.one_of(
    st.sampled_from(
        ["..", ".", "", "~", ".git", ".GIT", "git~1", ".g\u200cit", "hooks", "link", "up", "a", "\0", "a\\..\\b", "C:"]
    ),
    st.text(max_size=6),
)


@pytest.fixture(scope="module")
def trap() -> Iterator[Path]:
    """A workspace with symlinks out of it, and into its repository."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "repo"
        (root / ".git" / "hooks").mkdir(parents=True)
        (root / "a").mkdir()
        (root / "link").symlink_to("/etc")
        (root / "up").symlink_to("..")
        (root / "hooks").symlink_to(".git/hooks")
        yield root


@settings(max_examples=300, deadline=None)
@given(
    parts=st.lists(_NAME, max_size=6),
    start=st.sampled_from(["", "/", f"{WHERE}/", "file://", "C:\\", f"{WHERE}/../"]),
    directory=st.sampled_from(["", "/", "..", "link", ".git"]),
)
def test_no_path_leads_out_or_into_a_repository(trap: Path, parts: list[str], start: str, directory: str) -> None:
    made = Edit(
        message_id="m",
        reply_id="r",
        tool="Write",
        path=start + "/".join(parts),
        deed=Write("x"),
        action="add",
        directory=directory,
    )
    for where in (None, "/"):
        with LocalStorage(os.fsencode(trap)) as storage:
            found = plan([made], Places.of(os.fsencode(trap), WHERE, where), storage)
        [edit] = found.edits
        assert edit.status in (Status.APPLIED, Status.OUTSIDE, Status.CONFLICT)
        for step in found.steps:
            for path in step.files:
                names = path.split(b"/")
                assert not {b"", b".", b"..", b".git"} & set(names)
                assert names[0] not in (b"link", b"up", b"hooks")
                assert b"\0" not in path


def test_the_usual_traps_are_named_as_outside(trap: Path) -> None:
    traps = ("../x", "/etc/passwd", "link/passwd", "up/x", ".git/hooks/pre-commit", "hooks/pre-commit", ".GIT/config")
    made = planned(trap, edits(*((path, Write("x")) for path in traps)))
    assert statuses(made) == ["outside"] * len(traps)
    assert not made.steps
    assert [edit.path for edit in made.edits] == list(traps)


# Whole lives of a file

_LINE = st.text(alphabet="abcdefgh", min_size=1, max_size=3)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_wherever_the_workspace_stands_in_an_agent_s_work_it_ends_with_all_of_it(data: st.DataObject) -> None:
    """An agent's true edits, and a workspace as it was before them, after some, or after all of them."""
    number = 0

    def fresh() -> str:
        nonlocal number
        number += 1
        return f"{data.draw(_LINE)}{number}\n"

    content: str | None = None if data.draw(st.booleans()) else "".join(fresh() for _ in range(4))
    states, made = [content], []
    for step in range(data.draw(st.integers(1, 5))):
        kind = (
            "write" if not content else data.draw(st.sampled_from(["replace", "replace", "insert", "write", "append"]))
        )
        before, deed = content, None
        if content is None or kind == "write":
            content = "".join(fresh() for _ in range(3))
            deed = Write(content)
        elif kind == "append":
            added = fresh()
            content, deed = content + added, Append(added)
        elif kind == "insert":
            added = fresh()
            content, deed = added + content, Insert(0, added)
        else:
            old = data.draw(st.sampled_from(content.splitlines(keepends=True)))
            new = fresh() if data.draw(st.booleans()) else old + fresh()
            content, deed = content.replace(old, new), Replace((Replacement(old, new),))
        action = "add" if before is None else "update"
        made.append(Edit("m", f"r{step}", "Edit", "a", deed, action))  # type: ignore[arg-type]
        states.append(content)
    count = data.draw(st.integers(0, len(made)))
    with tempfile.TemporaryDirectory() as directory:
        if (there := states[count]) is not None:
            (Path(directory) / "a").write_text(there)
        found = planned(Path(directory), made)
        shown = outcome(found).get(b"a", None if there is None else there.encode())
    assert {edit.status for edit in found.edits} <= {Status.APPLIED, Status.ALREADY}
    assert shown == (content or "").encode()
