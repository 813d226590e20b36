"""OpenCode: a database since 1.2, a tree of JSON files before; both are read, what is in both counts once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.protocol.signal import CancelSignal
from workbench.transcripts.files import HeadFacts, Reading, SessionFile, parent, stem
from workbench.transcripts.homes import AgentHome, join
from workbench.transcripts.messages import as_written, tell_call
from workbench.transcripts.models import (
    CAPABILITIES,
    MAIN_LANE,
    Capability,
    DocumentPointer,
    Lane,
    SessionListFailure,
    SessionRef,
    Source,
)
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends, raise_if_cancelled, small_document, walk
from workbench.transcripts.recorder import Recorder
from workbench.transcripts.siblings import Siblings
from workbench.transcripts.sqlite import Database, SqliteAdapter, json_object, split
from workbench.transcripts.values import count, is_name, mapping, moment, money, named, parse_partial, string

_DEFAULT_TITLE = "New session - "
_SESSION = ("id", "parent_id", "directory", "title", "time_created", "time_updated")


class OpenCode(SqliteAdapter):
    """Sessions of OpenCode, in `opencode.db` and under `storage`."""

    agent = "opencode"
    display_name = "OpenCode"
    capabilities: ClassVar[tuple[Capability, ...]] = CAPABILITIES
    signs = ("session.directory", "message.data", "part.message_id")

    def __init__(self) -> None:
        self._children = Siblings(lambda name: name.endswith(".json"), _parent_of)

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """Its data directory."""
        return home.paths

    def is_session(self, path: str, root: str) -> bool:
        """A database, of any channel, or a session of the older form."""
        inside = path[len(root) :].strip("/").split("/")
        if len(inside) == 1:
            return inside[0].startswith("opencode") and inside[0].endswith(".db")
        return len(inside) == 4 and inside[:2] == ["storage", "session"] and inside[3].endswith(".json")

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """Those of databases, then those of files that no database has."""
        ids: set[str | None] = set()
        databases = await walk(platform, root, depth=0, signal=signal)
        trees = await walk(platform, join(root, "storage", "session"), depth=1, inside=2, signal=signal)
        for path, found in (*databases, *trees):
            if isinstance(found, OSError):
                if not isinstance(found, FileNotFoundError):
                    yield self._failure(path, found)
            elif path.endswith(".db") and self.is_session(path, root):
                async for item in self.in_database(platform, SessionFile(path, found.stat), signal):
                    if isinstance(item, SessionFile):
                        ids.add(split(item.path)[1])
                    yield item
            elif path.endswith(".json") and self.is_session(path, root):
                raise_if_cancelled(signal)
                facts = await self._tree_head(platform, path)
                if facts is not None and facts.session_id not in ids:
                    yield SessionFile(path, found.stat, facts)

    async def sessions(self, database: Database) -> list[tuple[str, HeadFacts]]:
        """Those that no other session started."""
        found = []
        async for row in database.select("session", _SESSION, "ORDER BY id"):
            if row["parent_id"] is None:
                key = str(row["id"])
                facts = HeadFacts(session_id=key, cwd=named(row["directory"]), title=_title(row["title"]))
                facts.seen(moment(row["time_created"]))
                facts.seen(moment(row["time_updated"]))
                found.append((key, facts))
        return found

    async def first_prompt(self, database: Database, key: str) -> str | None:
        """What was typed into the first message of a user."""
        order = "WHERE session_id = ? ORDER BY time_created, id LIMIT 5"
        messages = [row async for row in database.select("message", ("id", "data"), order, (key,))]
        for message in messages:
            if json_object(message["data"]).get("role") == "user":
                parts = database.select("part", ("data",), "WHERE message_id = ? ORDER BY id", (message["id"],))
                texts = [_typed(json_object(part["data"])) async for part in parts]
                if any(texts):
                    return next(filter(None, texts))
        return None

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From the database, or as the tree told it."""
        return file.facts if file.path.endswith(".json") else await super().head(platform, file, ends)

    async def _tree_head(self, platform: SessionPlatform, path: str) -> HeadFacts | None:
        session = await small_document(platform, path)
        if not session or named(session.get("parentID")):
            return None
        times = mapping(session.get("time"))
        facts = HeadFacts(session_id=named(session.get("id")) or stem(path), cwd=named(session.get("directory")))
        facts.title = _title(session.get("title"))
        facts.seen(moment(times.get("created")))
        facts.seen(moment(times.get("updated")))
        storage = parent(parent(parent(path)))
        if not is_name(str(facts.session_id)):
            return facts
        messages = join(storage, "message", str(facts.session_id))
        for message_path, found in await walk(platform, messages, depth=0, inside=2):
            if isinstance(found, OSError):
                break
            message = await small_document(platform, message_path)
            if message.get("role") != "user":
                continue
            texts = [_typed(part) for _, part in await _parts(platform, storage, message, message_path)]
            if any(texts):
                facts.first_prompt = next(filter(None, texts))
                break
        return facts

    async def detect(self, platform: SessionPlatform, ref: SessionRef) -> bool:
        """Also a session's file of the older form."""
        if ref.path.endswith(".json"):
            session = await small_document(platform, ref.path)
            return {"id", "projectID", "time"} <= session.keys()
        return await super().detect(platform, ref)

    async def read(self, reading: Reading, path: str) -> None:
        """From the database, or from the tree."""
        if not path.endswith(".json"):
            await super().read(reading, path)
            return
        session = mapping(await reading.document(path))
        recorder = reading.recorder
        recorder.session_id = named(session.get("id")) or stem(path)
        recorder.title, recorder.cwd = _title(session.get("title")), named(session.get("directory"))
        for key in ("created", "updated"):
            recorder.seen(moment(mapping(session.get("time")).get(key)))
        await self._read_tree(reading, parent(parent(parent(path))), recorder.session_id, MAIN_LANE)
        for other in await self._children.of(reading.platform, parent(path), recorder.session_id):
            about = await small_document(reading.platform, other)
            lane = named(about.get("id")) or stem(other)
            recorder.lane(Lane(id=lane, parent=MAIN_LANE, name=_title(about.get("title")), path=other))
            await self._read_tree(reading, parent(parent(parent(path))), lane, lane)

    async def _read_tree(self, reading: Reading, storage: str, session: str, lane: str) -> None:
        if not is_name(session):
            return
        messages = join(storage, "message", session)
        for path, found in await walk(reading.platform, messages, depth=0, inside=2, signal=reading.signal):
            if isinstance(found, OSError):
                if isinstance(found, FileNotFoundError):
                    return
                raise found
            message = mapping(await reading.document(path))
            source = DocumentPointer(path=path, pointer="")
            self._message(reading, message, named(message.get("id")) or stem(path), source, lane)
            for part_path, part in await _parts(reading.platform, storage, message, path):
                self._part(reading, message, part, DocumentPointer(path=part_path, pointer=""), lane)

    async def read_session(self, reading: Reading, database: Database, key: str) -> bool:
        """A session and those that it started, which are its lanes."""
        recorder = reading.recorder
        found = False
        lanes = {key: MAIN_LANE}
        async for row in database.select("session", _SESSION, "WHERE id = ? OR parent_id = ? ORDER BY id", (key, key)):
            if row["id"] == key:
                found = True
                recorder.title, recorder.cwd = _title(row["title"]), named(row["directory"])
                recorder.seen(moment(row["time_created"]))
                recorder.seen(moment(row["time_updated"]))
            else:
                lane = str(row["id"])
                lanes[lane] = lane
                recorder.lane(Lane(id=lane, parent=MAIN_LANE, name=_title(row["title"]), path=database.path))
        for session, lane in lanes.items() if found else ():
            raise_if_cancelled(reading.signal)
            await self._read_rows(reading, database, session, lane)
        return found

    async def _read_rows(self, reading: Reading, database: Database, session: str, lane: str) -> None:
        order = "WHERE session_id = ? ORDER BY time_created, id"
        async for row in database.select("message", ("id", "data"), order, (session,)):
            message = json_object(row["data"])
            self._message(reading, message, str(row["id"]), database.pointer("message", row["id"]), lane)
            parts = database.select("part", ("id", "data"), "WHERE message_id = ? ORDER BY id", (row["id"],))
            async for part in parts:
                source = database.pointer("part", part["id"])
                self._part(reading, message, json_object(part["data"]), source, lane)

    def _message(self, reading: Reading, message: dict[str, Any], id: str, source: Source, lane: str) -> None:
        recorder = reading.recorder
        at = moment(mapping(message.get("time")).get("created"))
        recorder.seen(at)
        recorder.seen(moment(mapping(message.get("time")).get("completed")))
        if isinstance(message.get("error"), dict):
            error = message["error"]
            text = string(mapping(error.get("data")).get("message")) or string(error.get("name"))
            recorder.event("notice", source, lane=lane, at=at, text=text)
        used = message.get("tokens")
        if message.get("role") == "assistant" and isinstance(used, dict):
            cache, thoughts = mapping(used.get("cache")), count(used.get("reasoning"))
            read, written = count(cache.get("read")), count(cache.get("write"))
            usage = Usage(
                input_tokens=count(used.get("input")) + read + written,
                output_tokens=count(used.get("output")) + thoughts,
                reasoning_tokens=thoughts,
                cache_read_tokens=read,
                cache_write_tokens=written,
                # A subscription's requests carry 0, which is no cost that is known.
                cost_usd=money(message.get("cost")) or None,
            )
            recorder.request(id, source, lane=lane, at=at, model=named(message.get("modelID")), usage=usage)

    def _part(self, reading: Reading, message: dict[str, Any], part: dict[str, Any], source: Source, lane: str) -> None:
        recorder, kind = reading.recorder, part.get("type")
        at = moment(mapping(part.get("time")).get("start")) or moment(mapping(message.get("time")).get("created"))
        if kind == "text" and message.get("role") == "user":
            typed = _typed(part) if lane == MAIN_LANE else ""
            recorder.event(
                "prompt" if typed else "context", source, lane=lane, at=at, text=typed or string(part.get("text"))
            )
        elif kind == "text" and string(part.get("text")):
            recorder.event("reply", source, lane=lane, at=at, text=string(part.get("text")))
        elif kind == "reasoning":
            recorder.event("reasoning", source, lane=lane, at=at, text=string(part.get("text")))
        elif kind == "compaction":
            trigger = "auto" if part.get("auto") is True else "manual"
            recorder.compaction(source, lane=lane, at=at, trigger=trigger)
        elif kind == "tool":
            self._tool(recorder, part, source, lane, at)

    def _tool(self, recorder: Recorder, part: dict[str, Any], source: Source, lane: str, at: datetime | None) -> None:
        state = mapping(part.get("state"))
        times, about = mapping(state.get("time")), mapping(state.get("metadata"))
        id = named(part.get("callID")) or named(part.get("id")) or str(source)
        at = moment(times.get("start")) or at
        tell_call(recorder, id, string(part.get("tool")), state.get("input"), source, lane=lane, at=at)
        if state.get("status") in ("completed", "success", "error"):
            ok = state.get("status") != "error" and about.get("exit") in (None, 0)
            text = string(state.get("output") or state.get("error"))
            recorder.result(id, source, ok=ok, lane=lane, at=moment(times.get("end")) or at, text=text)
        if about.get("exists") is False and (path := named(about.get("filepath"))):
            recorder.forget_edits(id)
            recorder.edit(path, source, action="add", call_id=id, lane=lane, at=at)


def _typed(part: dict[str, Any]) -> str:
    """What a part of a user's message shows that was typed."""
    if part.get("type") != "text" or part.get("synthetic") or part.get("ignored"):
        return ""
    return as_written(string(part.get("text")))


def _parent_of(data: bytes) -> str:
    """The session that started the one of a file of the older form."""
    return string(mapping(parse_partial(data)).get("parentID"))


def _title(title: object) -> str | None:
    text = named(title)
    return None if text is None or text.startswith(_DEFAULT_TITLE) else text


async def _parts(
    platform: SessionPlatform, storage: str, message: dict[str, Any], path: str
) -> list[tuple[str, dict[str, Any]]]:
    """The parts of a message's directory; of the first layout, where they lie together, those that name it."""
    id = named(message.get("id")) or stem(path)
    if not is_name(id):
        return []
    for directory, own, inside in ((join(storage, "part", id), True, 2), (join(storage, "part"), False, 1)):
        found = await walk(platform, directory, depth=0, inside=inside)
        paths = [path for path, entry in found if not isinstance(entry, OSError)]
        if paths:
            parts = [(path, await small_document(platform, path)) for path in paths]
            return [(path, part) for path, part in parts if own or part.get("messageID") == id]
    return []
