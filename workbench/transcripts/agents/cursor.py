"""Cursor: agents' transcripts in lines, the command line's databases, and the editor's one database."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.protocol.signal import CancelSignal
from workbench.transcripts.agents.amp import local_path
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, parent, stem
from workbench.transcripts.homes import AgentHome, join
from workbench.transcripts.messages import as_written, tell_call, tell_message, tell_user
from workbench.transcripts.models import MAIN_LANE, Capability, Lane, RowPointer, SessionListFailure, SessionRef
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends, read_ends, walk
from workbench.transcripts.sqlite import Database, SqliteAdapter, json_object, split
from workbench.transcripts.values import block_text, count, items, mapping, moment, named, string

_STORE, _EDITOR = "store.db", "state.vscdb"
_QUERY = re.compile(r"<user_query>(.*?)</user_query>", re.DOTALL)
_LINK = re.compile(rb"[\x0a\x12]\x20(.{32})", re.DOTALL)
_FEW = 200


def typed(text: str) -> str:
    """What of a user message's text a person typed."""
    if found := _QUERY.search(text):
        return found[1].strip()
    text = text.strip("\ufeff \t\r\n")
    return "" if text.startswith("<") else text


class Cursor(SqliteAdapter):
    """Sessions of Cursor, in each of its three stores."""

    agent = "cursor"
    display_name = "Cursor"
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
    signs = ("blobs.data", "meta.value")

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """Transcripts, the command line's chats, the editor's storage."""
        return tuple(join(path, name) for path in home.paths for name in ("projects", "chats", "globalStorage"))

    def is_session(self, path: str, root: str) -> bool:
        """By the store that the root is."""
        inside = path[len(root) :].strip("/").split("/")
        if inside[-1] == _STORE:
            return len(inside) == 3
        if inside[-1] == _EDITOR:
            return len(inside) == 1
        return (
            inside[-1].endswith(".jsonl")
            and inside[1:2] == ["agent-transcripts"]
            and (len(inside) == 3 or (len(inside) == 4 and inside[2] == stem(path)))
        )

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """Transcripts as they are, databases by the sessions in them."""
        async for file in FileAdapter.files(self, platform, root, signal):
            if isinstance(file, SessionListFailure) or file.path.endswith(".jsonl"):
                yield file
            else:
                async for found in self.in_database(platform, file, signal):
                    yield found

    async def ends(self, platform: SessionPlatform, file: SessionFile) -> Ends:
        """Of a transcript."""
        return Ends([]) if file.facts is not None else await read_ends(platform, file.path, file.stat.size)

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """What the database told, or a transcript's first prompt: it has no times, and no directory."""
        if file.facts is not None:
            return await super().head(platform, file, ends)
        facts = HeadFacts(session_id=stem(file.path))
        for record in ends.records:
            if record.get("role") == "user" and facts.first_prompt is None:
                facts.first_prompt = typed(block_text(mapping(record.get("message")).get("content"), "text")) or None
        return facts

    def looks_right(self, ends: Ends) -> bool:
        """Messages that have a role, and nothing else that names them."""
        return any(
            record.get("role") in ("user", "assistant")
            and isinstance(mapping(record.get("message")).get("content"), list)
            and "type" not in record
            for record in ends.head[:3]
        )

    async def detect(self, platform: SessionPlatform, ref: SessionRef) -> bool:
        """Of each store."""
        if ref.path.endswith(".jsonl"):
            return await FileAdapter.detect(self, platform, ref)
        if split(ref.path)[0].endswith(_EDITOR) and platform.sqlite is not None:
            try:
                return bool(await Database(platform.sqlite, split(ref.path)[0]).columns("cursorDiskKV"))
            except OSError:
                return False
        return await super().detect(platform, ref)

    async def sessions(self, database: Database) -> list[tuple[str, HeadFacts]]:
        """The one of a store, or the editor's."""
        if database.path.endswith(_STORE):
            meta = await _meta(database)
            facts = HeadFacts(session_id=named(meta.get("agentId")), title=named(meta.get("name")))
            # No record tells when it was worked on last; the file's time does.
            facts.started_at = moment(meta.get("createdAt"))
            return [(facts.session_id or parent(database.path).rpartition("/")[2], facts)]
        found = []
        async for row in database.select("cursorDiskKV", ("key", "value"), "WHERE key GLOB 'composerData:*'"):
            composer = json_object(row["value"])
            if not (composer.get("fullConversationHeadersOnly") or composer.get("conversation")):
                continue  # opened, and never used
            key = str(row["key"]).partition(":")[2]
            facts = HeadFacts(session_id=key, title=named(composer.get("name")), cwd=_workspace(composer))
            facts.seen(moment(composer.get("createdAt")))
            facts.seen(moment(composer.get("lastUpdatedAt")))
            found.append((key, facts))
        return found

    async def first_prompt(self, database: Database, key: str) -> str | None:
        """Of the editor's sessions the first bubble that a user typed."""
        if database.path.endswith(_STORE):
            return None
        composer = await _value(database, f"composerData:{key}")
        for bubble in map(mapping, items(composer.get("conversation"))):
            if bubble.get("type") == 1 and _bubble_text(bubble):
                return _bubble_text(bubble)
        for header in map(mapping, items(composer.get("fullConversationHeadersOnly"))[:5]):
            if header.get("type", 1) == 1:
                bubble = await _value(database, f"bubbleId:{key}:{string(header.get('bubbleId'))}")
                if bubble.get("type") == 1 and _bubble_text(bubble):
                    return _bubble_text(bubble)
        return None

    async def read(self, reading: Reading, path: str) -> None:
        """A transcript and those of its subagents, or a session of a database."""
        if not path.endswith(".jsonl"):
            await super().read(reading, path)
            return
        reading.recorder.session_id = stem(path)
        await self._transcript(reading, path, MAIN_LANE)
        for other, entry in await walk(
            reading.platform, join(parent(path), "subagents"), depth=0, inside=1, signal=reading.signal
        ):
            if not isinstance(entry, OSError) and other.endswith(".jsonl"):
                reading.recorder.lane(Lane(id=stem(other), parent=MAIN_LANE, path=other))
                await self._transcript(reading, other, stem(other))

    async def _transcript(self, reading: Reading, path: str, lane: str) -> None:
        async for record in reading.records(path):
            content = mapping(record.value.get("message")).get("content")
            key = f"{lane}-{record.source.offset}"
            role = record.value.get("role")
            tell_message(reading.recorder, role, content, record.source, key=key, lane=lane, typed=typed)

    async def read_session(self, reading: Reading, database: Database, key: str) -> bool:
        """From a store's messages, or from the editor's bubbles."""
        if database.path.endswith(_STORE):
            return await self._store(reading, database)
        recorder = reading.recorder
        source = database.pointer("cursorDiskKV", f"composerData:{key}")
        found = await database.first("cursorDiskKV", ("value",), "WHERE key = ?", (source.key,))
        if found is None:
            return False
        composer = json_object(found["value"])
        if not composer:
            recorder.skip(source, "not an object")
        recorder.title, recorder.cwd = named(composer.get("name")), _workspace(composer)
        recorder.seen(moment(composer.get("createdAt")))
        recorder.seen(moment(composer.get("lastUpdatedAt")))
        model = named(mapping(composer.get("modelConfig")).get("modelName"))
        for bubble in map(mapping, items(composer.get("conversation"))):
            self._bubble(reading, bubble, string(bubble.get("bubbleId")), source, model)
        for header in map(mapping, items(composer.get("fullConversationHeadersOnly"))):
            id = string(header.get("bubbleId"))
            pointer = database.pointer("cursorDiskKV", f"bubbleId:{key}:{id}")
            if bubble := await _value(database, pointer.key):
                self._bubble(reading, bubble, id, pointer, model)
        return True

    def _bubble(self, reading: Reading, bubble: dict[str, Any], id: str, source: RowPointer, model: str | None) -> None:
        recorder = reading.recorder
        at = moment(bubble.get("createdAt")) or moment(bubble.get("timestamp"))
        recorder.seen(at)
        text = _bubble_text(bubble)
        if thought := string(mapping(bubble.get("thinking")).get("text")):
            recorder.event("reasoning", source, at=at, text=thought)
        if bubble.get("type") == 1:
            recorder.cwd = recorder.cwd or named(bubble.get("workspaceProjectDir"))
            tell_user(recorder, text, source, at=at)
        elif text:
            recorder.event("reply", source, at=at, text=text)
        tool = bubble.get("toolFormerData")
        if isinstance(tool, dict) and tool.get("name"):
            given = tool.get("rawArgs") or tool.get("params")
            call = named(tool.get("toolCallId")) or id
            tell_call(recorder, call, string(tool.get("name")), given, source, at=at)
            if tool.get("status") in ("completed", "error", "cancelled"):
                ok = tool["status"] == "completed"
                recorder.result(call, source, ok=ok, at=at, text=string(tool.get("result")))
        used = mapping(bubble.get("tokenCount"))
        usage = Usage(input_tokens=count(used.get("inputTokens")), output_tokens=count(used.get("outputTokens")))
        if not usage.is_empty:  # newer versions write zeros: nothing is known
            model = named(mapping(bubble.get("modelInfo")).get("modelName")) or model
            recorder.request(f"{recorder.session_id}:{id}", source, at=at, model=model, usage=usage)

    async def _store(self, reading: Reading, database: Database) -> bool:
        """The messages of a store, in the order that its nodes link them, else that of its rows."""
        recorder = reading.recorder
        meta = await _meta(database)
        recorder.session_id = named(meta.get("agentId")) or parent(database.path).rpartition("/")[2]
        recorder.title = named(meta.get("name"))
        recorder.seen(moment(meta.get("createdAt")))
        links: dict[str, list[str]] = {}
        messages: dict[str, None] = {}
        async for row in database.select("blobs", ("id", "data"), "ORDER BY rowid"):
            data = row["data"]
            if isinstance(data, bytes) and data.startswith(b"{"):
                messages[str(row["id"])] = None
            elif isinstance(data, bytes):
                links[str(row["id"])] = [found.hex() for found in _LINK.findall(data)]
        order = list(dict.fromkeys(_linked(string(meta.get("latestRootBlobId")), links, messages))) or list(messages)
        for start in range(0, len(order), _FEW):
            few = order[start : start + _FEW]
            marks = ", ".join("?" * len(few))
            rows = database.select("blobs", ("id", "data"), f"WHERE id IN ({marks})", few)
            found = {str(row["id"]): row["data"] async for row in rows}
            for id in few:
                message = json_object(found.get(id))
                source = database.pointer("blobs", id)
                role, content = message.get("role"), message.get("content")
                role = "assistant" if role == "tool" else role
                tell_message(recorder, role, content, source, key=id[:12], typed=typed)
        return True


def _linked(root: str, links: dict[str, list[str]], messages: dict[str, None]) -> list[str]:
    """The messages below a node, each before those that follow it."""
    found, seen, pending = [], set(), [root]
    while pending:
        at = pending.pop()
        if at in seen:
            continue
        seen.add(at)
        if at in messages:
            found.append(at)
        pending.extend(reversed(links.get(at, [])))
    return found


async def _meta(database: Database) -> dict[str, Any]:
    """What a store says of itself: JSON, in hexadecimal digits."""
    row = await database.first("meta", ("value",), "WHERE key = '0'")
    value = None if row is None else row["value"]
    try:
        return json_object(bytes.fromhex(string(value)))
    except ValueError:
        return json_object(value)


async def _value(database: Database, key: str) -> dict[str, Any]:
    """The object that the editor keeps under a key; {} where there is none."""
    row = await database.first("cursorDiskKV", ("value",), "WHERE key = ?", (key,))
    return {} if row is None else json_object(row["value"])


def _bubble_text(bubble: dict[str, Any]) -> str:
    return as_written(string(bubble.get("text")) or string(bubble.get("rawText")) or string(bubble.get("content")))


def _workspace(composer: dict[str, Any]) -> str | None:
    uri = mapping(mapping(composer.get("workspaceIdentifier")).get("uri"))
    return named(uri.get("fsPath")) or local_path(uri.get("path"))
