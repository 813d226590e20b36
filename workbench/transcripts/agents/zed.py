"""Zed: a database of threads, each one compressed JSON document."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.transcripts.files import HeadFacts, Reading
from workbench.transcripts.messages import as_written, tell_call, tell_user
from workbench.transcripts.models import MAIN_LANE, Capability, Lane, RowPointer
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.sqlite import Database, SqliteAdapter, json_object
from workbench.transcripts.values import count, items, mapping, moment, named, string

_THREAD = ("id", "summary", "updated_at", "created_at", "data_type", "data", "parent_id", "folder_paths")
_LARGEST = 64 << 20


class Zed(SqliteAdapter):
    """Threads of Zed, in `threads/threads.db`."""

    agent = "zed"
    display_name = "Zed"
    capabilities: ClassVar[tuple[Capability, ...]] = (
        "prompts",
        "replies",
        "reasoning",
        "tool_calls",
        "edits",
        "usage",
        "times",
        "lanes",
    )
    directory = "threads"
    signs = ("threads.data_type", "threads.data")
    depth = 0

    def is_session(self, path: str, root: str) -> bool:
        """The database."""
        return path[len(root) :].strip("/") == "threads.db"

    async def sessions(self, database: Database) -> list[tuple[str, HeadFacts]]:
        """Those that no other thread started. What was asked is inside the threads, which a listing doesn't open."""
        found = []
        wanted = tuple(name for name in _THREAD if name != "data")
        async for row in database.select("threads", wanted, "ORDER BY updated_at, id"):
            if not row["parent_id"]:
                cwd = _folder(row["folder_paths"])
                facts = HeadFacts(session_id=str(row["id"]), title=named(row["summary"]), cwd=cwd)
                facts.seen(moment(row["created_at"]))
                facts.last_at = moment(row["updated_at"])
                found.append((str(row["id"]), facts))
        return found

    async def read_session(self, reading: Reading, database: Database, key: str) -> bool:
        """A thread and those that it started, which are its lanes."""
        recorder, found = reading.recorder, False
        rest = "WHERE id = ?"
        if "parent_id" in await database.columns("threads"):
            rest = "WHERE ? IN (id, parent_id) ORDER BY id"
        rows = [row async for row in database.select("threads", _THREAD, rest, (key,))]
        for row in sorted(rows, key=lambda row: row["id"] != key):
            lane = MAIN_LANE if row["id"] == key else str(row["id"])
            thread = await _thread(reading.platform, row)
            source = database.pointer("threads", row["id"])
            if lane == MAIN_LANE:
                found = True
                recorder.title = named(row["summary"]) or named(thread.get("title"))
                recorder.cwd = _folder(row["folder_paths"]) or _worktree(thread)
                recorder.seen(moment(row["created_at"]))
                recorder.seen(moment(row["updated_at"]))
            elif found:
                recorder.lane(Lane(id=lane, parent=MAIN_LANE, name=named(row["summary"]), path=database.path))
            else:
                break
            if not thread:
                recorder.skip(source, "not a document of a thread")
            self._messages(reading, thread, source, lane)
        return found

    def _messages(self, reading: Reading, thread: dict[str, Any], source: RowPointer, lane: str) -> None:
        recorder = reading.recorder
        model = named(mapping(thread.get("model")).get("model"))
        for number, message in enumerate(items(thread.get("messages"))):
            user, agent = mapping(mapping(message).get("User")), mapping(mapping(message).get("Agent"))
            for part in map(mapping, items(user.get("content"))):
                if "Text" in part:
                    tell_user(recorder, string(part["Text"]), source, lane=lane)
            self._reply(reading, agent, source, lane, number)
            if "segments" in mapping(message):
                self._older(reading, mapping(message), source, lane)
        used = mapping(thread.get("request_token_usage"))
        for id, usage in used.items():
            key = f"{recorder.session_id}:{lane}:{id}"
            recorder.request(key, source, lane=lane, model=model, usage=_usage(mapping(usage)))
        whole = mapping(thread.get("cumulative_token_usage"))
        if not used and any(count(value) for value in whole.values()):
            key = f"{recorder.session_id}:{lane}:total"
            recorder.request(key, source, lane=lane, model=model, usage=_usage(whole))

    def _reply(self, reading: Reading, agent: dict[str, Any], source: RowPointer, lane: str, number: int) -> None:
        recorder = reading.recorder
        results = mapping(agent.get("tool_results"))
        for place, part in enumerate(map(mapping, items(agent.get("content")))):
            if text := string(part.get("Text")):
                recorder.event("reply", source, lane=lane, text=text)
            elif "Thinking" in part:
                thought = part["Thinking"]
                text = string(thought) or string(mapping(thought).get("text"))
                recorder.event("reasoning", source, lane=lane, text=text)
            elif "ToolUse" in part:
                call = mapping(part["ToolUse"])
                id = named(call.get("id")) or f"{number}-{place}"
                tell_call(recorder, id, string(call.get("name")), call.get("input"), source, lane=lane)
                result = mapping(results.get(id))
                if result:
                    text = json.dumps(result.get("content"), ensure_ascii=False) if recorder.keep else ""
                    recorder.result(id, source, ok=result.get("is_error") is not True, lane=lane, text=text)

    def _older(self, reading: Reading, message: dict[str, Any], source: RowPointer, lane: str) -> None:
        """A message of the format before 0.3."""
        recorder = reading.recorder
        texts = [string(mapping(segment).get("text")) for segment in items(message.get("segments"))]
        text = "\n".join(filter(None, texts))
        if string(message.get("role")).lower() == "user":
            tell_user(recorder, text, source, lane=lane)
        elif as_written(text):
            recorder.event("reply", source, lane=lane, text=text)
        for number, call in enumerate(map(mapping, items(message.get("tool_uses")))):
            id = named(call.get("id")) or f"{message.get('id')}-{number}"
            tell_call(recorder, id, string(call.get("name")), call.get("input"), source, lane=lane)


async def _thread(platform: SessionPlatform, row: dict[str, Any]) -> dict[str, Any]:
    """A row's document; {} where it is none, or too large. Raises OSError where this host can't decode it."""
    data = row["data"]
    if row["data_type"] != "zstd" or not isinstance(data, bytes):
        return json_object(data)
    if platform.decompress is None:
        raise OSError("this host can't decode a compressed session")

    async def given() -> AsyncIterator[bytes]:
        yield data

    pieces, size = [], 0
    try:
        async for piece in platform.decompress(given()):
            pieces.append(piece)
            size += len(piece)
            if size > _LARGEST:
                return {}
    except OSError:
        return {}
    return json_object(b"".join(pieces))


def _usage(used: dict[str, Any]) -> Usage:
    read, written = count(used.get("cache_read_input_tokens")), count(used.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=count(used.get("input_tokens")) + read + written,
        output_tokens=count(used.get("output_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
    )


def _folder(paths: object) -> str | None:
    """The first of the folders that a row names, one a line."""
    text = named(paths)
    return None if text is None else text.splitlines()[0]


def _worktree(thread: dict[str, Any]) -> str | None:
    trees = items(mapping(thread.get("initial_project_snapshot")).get("worktree_snapshots"))
    return next((named(mapping(tree).get("abs_path") or mapping(tree).get("worktree_path")) for tree in trees), None)
