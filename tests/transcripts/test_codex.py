"""Rollouts of Codex: totals that only grow by what was used, copies, compressed files, subagents, pages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.transcripts.homes import T0, T1, codex, lines
from tests.transcripts.reading_sessions import heads, loaded, texts
from workbench.transcripts import LocalPlatform, ReadFailed, SessionRef, Transcript, find_adapter, fold


def record(kind: str, at: str = T0, **payload: object) -> dict[str, Any]:
    return {"timestamp": at, "type": kind, "payload": payload}


def event(kind: str, at: str = T1, **payload: object) -> dict[str, Any]:
    return record("event_msg", at, type=kind, **payload)


def tokens(total: int | None, last: int = 0, at: str = T1) -> dict[str, Any]:
    def usage(count: int) -> dict[str, int]:
        return {"input_tokens": count, "output_tokens": count // 10, "total_tokens": count + count // 10}

    info = {"total_token_usage": None if total is None else usage(total), "last_token_usage": usage(last)}
    return event("token_count", at, info=info)


def rollout(home: Path, id: str, *records: object, folder: str = "sessions/2026/03/01", meta: object = None) -> Path:
    path = home / folder / f"rollout-2026-03-01T10-00-00-{id}.jsonl"
    lines(path, record("session_meta", id=id, timestamp=T0, cwd="/work", **(meta or {})), *records)  # type: ignore[dict-item]
    return path


def inputs(path: Path) -> list[int]:
    return [request.usage.input_tokens for request in loaded("codex", path).requests]


COUNTED = [
    ("repeats add nothing", [tokens(100), tokens(100), tokens(150), tokens(150)], [100, 50]),
    ("a smaller total is a new count", [tokens(100), tokens(40), tokens(70)], [100, 40, 30]),
    ("without a total the last one counts", [tokens(None, 30), tokens(None, 20)], [30, 20]),
    ("nothing told is nothing", [event("token_count", info=None), tokens(None)], []),
]


@pytest.mark.parametrize(("what", "records", "expected"), COUNTED, ids=[what for what, _, _ in COUNTED])
def test_totals_count_by_what_they_grow(
    tmp_path: Path, what: str, records: list[dict[str, Any]], expected: list[int]
) -> None:
    assert inputs(rollout(tmp_path, "x", *records)) == expected


def test_a_fork_counts_only_what_it_added_to_what_it_copied(tmp_path: Path) -> None:
    rollout(tmp_path, "parent", tokens(100), tokens(150), tokens(400))
    copied = [tokens(100, at=T0), tokens(150, at=T0)]
    fork = rollout(tmp_path, "fork", *copied, tokens(170), meta={"forked_from_id": "parent"})
    assert inputs(fork) == [20]
    orphan = rollout(tmp_path, "orphan", *copied, meta={"forked_from_id": "nobody"})
    assert inputs(orphan) == [100, 50]


def test_subagents_are_lanes_with_their_usage_and_no_sessions(tmp_path: Path) -> None:
    spawned = event("collab_agent_spawn_end", call_id="c1", new_thread_id="child")
    parent = rollout(tmp_path, "parent", event("user_message", message="go"), tokens(100), spawned)
    source = {"subagent": {"thread_spawn": {"parent_thread_id": "parent", "depth": 1}}}
    told = event("agent_message", message="found it")
    meta = {"source": source, "agent_nickname": "scout"}
    rollout(tmp_path, "child", event("user_message", message="look"), tokens(100), tokens(130), told, meta=meta)
    transcript = loaded("codex", parent)
    assert [(lane.id, lane.call_id, lane.name) for lane in transcript.lanes[1:]] == [("child", "c1", "scout")]
    assert [(request.lane, request.usage.input_tokens) for request in transcript.requests] == [
        ("main", 100),
        ("child", 30),
    ]
    assert texts(transcript, "prompt") == ["go"]
    assert [head.ref.session_id for head in heads("codex", tmp_path)] == ["parent"]


def test_a_subagent_s_rollout_is_found_again_once_it_was_compressed(tmp_path: Path) -> None:
    spawned = event("collab_agent_spawn_end", call_id="c1", new_thread_id="child")
    parent = rollout(tmp_path, "parent", event("user_message", message="go"), tokens(100), spawned)
    child = rollout(tmp_path, "child", tokens(30), meta={"parent_thread_id": "parent", "thread_source": "subagent"})
    platform = LocalPlatform()
    before = loaded("codex", parent, platform)
    assert [lane.path for lane in before.lanes] == [None, str(child)]
    packed = child.with_name(f"{child.name}.zst")
    packed.write_bytes(zstandard.ZstdCompressor().compress(child.read_bytes()))
    child.unlink()
    after = loaded("codex", parent, platform)
    assert [lane.path for lane in after.lanes] == [None, str(packed)]
    assert fold(after).usage == fold(before).usage


def test_a_home_is_looked_through_once_for_many_forks(tmp_path: Path) -> None:
    rollout(tmp_path, "parent", tokens(100))
    forks = [rollout(tmp_path, f"fork{number}", tokens(100), meta={"forked_from_id": "parent"}) for number in range(5)]
    lost = rollout(tmp_path, "lost", tokens(100), meta={"forked_from_id": "nobody"})
    platform = LocalPlatform()
    listed: list[str] = []
    inner = platform.fs

    class Fs:
        stat, read = inner.stat, inner.read

        @staticmethod
        async def list(path: str) -> object:
            listed.append(path)
            return await inner.list(path)

    platform.fs = Fs()  # type: ignore[assignment]
    for path in (*forks, lost, lost):
        assert loaded("codex", path, platform).session_id
    assert len(listed) == len(set(listed))


def test_what_two_streams_tell_is_said_once(tmp_path: Path) -> None:
    def item(kind: str, text: str) -> dict[str, Any]:
        return event("item_completed", item={"type": kind, "content": [{"type": "text", "text": text}]})

    def message(role: str, text: str) -> dict[str, Any]:
        return record("response_item", type="message", role=role, content=[{"type": "input_text", "text": text}])

    path = rollout(
        tmp_path,
        "pages",
        message("user", "<environment_context><cwd>/work</cwd></environment_context>"),
        message("user", "fix it"),
        item("UserMessage", "fix it"),
        item("AgentMessage", "done"),
        message("assistant", "done"),
        event("user_message", message="fix it"),
        message("user", "fix it"),
        message("user", "# AGENTS.md instructions"),
    )
    transcript = loaded("codex", path)
    assert texts(transcript, "prompt") == ["fix it", "fix it"]
    assert texts(transcript, "reply") == ["done"]
    assert heads("codex", tmp_path)[0].first_prompt == "fix it"


def test_a_compressed_rollout_reads_as_the_plain_one(tmp_path: Path) -> None:
    codex(tmp_path)
    [plain] = tmp_path.rglob("*.jsonl")
    before, [head] = loaded("codex", plain), heads("codex", tmp_path)
    packed = plain.with_name(f"{plain.name}.zst")
    packed.write_bytes(zstandard.ZstdCompressor().compress(plain.read_bytes()))
    assert [each.ref.path for each in heads("codex", tmp_path)] == [str(plain)]  # the plain one goes before
    plain.unlink()
    [again] = heads("codex", tmp_path)
    assert (again.ref.session_id, again.first_prompt, again.cwd) == (head.ref.session_id, head.first_prompt, head.cwd)
    after = loaded("codex", packed)
    ref = {"ref": SessionRef(agent="codex", path="")}

    def numbers(transcript: Transcript) -> object:
        summary = fold(transcript).model_copy(update=ref)
        return summary.model_dump(exclude={"requests"}), [request.usage for request in summary.requests]

    assert numbers(after) == numbers(before)


def test_a_compressed_rollout_is_a_failure_where_nothing_can_decode_it(tmp_path: Path) -> None:
    import anyio

    from workbench.transcripts import SessionListFailure

    path = tmp_path / "sessions" / "rollout-2026-03-01T10-00-00-z.jsonl.zst"
    path.parent.mkdir()
    path.write_bytes(zstandard.ZstdCompressor().compress(b'{"type":"session_meta","payload":{"id":"z"}}\n'))

    async def read() -> None:
        platform = LocalPlatform()
        platform.decompress = None  # type: ignore[assignment]
        adapter = find_adapter("codex")
        [item] = [item async for item in adapter.discover(platform, str(path.parent))]
        assert isinstance(item, SessionListFailure)
        assert isinstance(item.error, ReadFailed)
        assert isinstance(await adapter.load(platform, SessionRef(agent="codex", path=str(path))), ReadFailed)

    anyio.run(read)


def test_a_small_file_that_claims_to_be_huge_takes_little_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "sessions" / "rollout-2026-03-01T10-00-00-bomb.jsonl.zst"
    path.parent.mkdir()
    compressor = zstandard.ZstdCompressor(level=19).compressobj()
    with path.open("wb") as file:
        for _ in range(100):
            file.write(compressor.compress(b"x" * (1 << 20)))
        file.write(compressor.flush())
    assert path.stat().st_size < 100_000
    tracemalloc.start()
    try:
        heads("codex", tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 40 << 20


def test_a_rollout_that_is_archived_and_active_is_listed_once(tmp_path: Path) -> None:
    path = rollout(tmp_path, "x", tokens(100))
    archived = tmp_path / "archived_sessions" / path.name
    archived.parent.mkdir()
    archived.write_bytes(path.read_bytes())
    rollout(tmp_path, "y", tokens(100), folder="archived_sessions")
    assert [head.ref.session_id for head in heads("codex", tmp_path)] == ["x", "y"]


def test_what_a_patch_did_goes_before_what_it_was_to_do(tmp_path: Path) -> None:
    patch = "*** Begin Patch\n*** Update File: a\n*** Move to: b\n*** Delete File: c\n*** End Patch"

    def call(id: str, arguments: object) -> dict[str, Any]:
        return record("response_item", type="function_call", name="shell", call_id=id, arguments=arguments)

    transcript = loaded(
        "codex",
        rollout(
            tmp_path,
            "x",
            call("1", '{"command": ["apply_patch", "*** Begin Patch\\n*** Add File: n\\n*** End Patch"]}'),
            call("2", patch),
            call("3", patch),
            event("patch_apply_end", call_id="3", success=True, changes={"/work/d": {"type": "add"}}),
            call("4", patch),
            event("patch_apply_end", call_id="4", success=False, changes={}),
        ),
    )
    assert [(edit.call_id, edit.action, edit.path, edit.moved_to) for edit in transcript.edits] == [
        ("1", "add", "n", None),
        ("2", "move", "a", "b"),
        ("2", "delete", "c", None),
        ("3", "add", "/work/d", None),
    ]


def test_usage_that_only_response_records_tell_counts_by_response(tmp_path: Path) -> None:
    def used(response: str, count: int) -> dict[str, Any]:
        return record("token_usage_record", response_id=response, turn_id="t", usage={"input_tokens": count})

    assert inputs(rollout(tmp_path, "x", used("r1", 10), used("r1", 10), used("r2", 20))) == [10, 20]
    assert inputs(rollout(tmp_path, "y", used("r1", 10), tokens(10))) == [10]


def test_the_rollouts_of_before_the_envelope_are_read(tmp_path: Path) -> None:
    path = tmp_path / "sessions" / "rollout-2025-05-01T10-00-00-old.jsonl"
    lines(
        path,
        {"id": "old", "timestamp": T0, "instructions": None, "git": {"branch": "main"}},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hi"}]},
    )
    transcript = loaded("codex", path)
    assert (transcript.session_id, texts(transcript, "prompt"), texts(transcript, "reply")) == (
        "old",
        ["hello"],
        ["hi"],
    )
    assert heads("codex", tmp_path)[0].first_prompt == "hello"


def test_a_generation_that_is_not_read_is_a_value(tmp_path: Path) -> None:
    """«or a format generation this adapter does not know»."""
    import anyio

    from workbench.transcripts import UnknownFormat

    for agent, record, generation in (
        ("codex", {"session": {"id": "x"}, "items": []}, "one document, of 2025"),
        ("pi", {"type": "session", "version": 4, "id": "x", "cwd": "/work"}, "version 4"),
    ):
        path = tmp_path / f"{agent}.jsonl"
        lines(path, record)
        ref = SessionRef(agent=agent, path=str(path))
        expected = UnknownFormat(path=str(path), agent=agent, generation=generation)
        assert anyio.run(find_adapter(agent).load, LocalPlatform(), ref) == expected
        assert expected.model_dump(mode="json")["_tag"] == "UnknownFormat"


def test_links_that_go_in_circles_are_walked_once(tmp_path: Path) -> None:
    rollout(tmp_path, "x", tokens(100))
    sessions = tmp_path / "sessions"
    (sessions / "2026" / "again").symlink_to(sessions)
    (sessions / "self").symlink_to(sessions / "self")
    assert [head.ref.session_id for head in heads("codex", tmp_path)] == ["x"]
