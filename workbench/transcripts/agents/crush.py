"""Crush: a database in each project, and a list of the projects."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.protocol.signal import CancelSignal
from workbench.transcripts.files import HeadFacts, Reading, SessionFile, parent
from workbench.transcripts.homes import AgentHome, join
from workbench.transcripts.messages import as_written, tell_call
from workbench.transcripts.models import (
    CAPABILITIES,
    MAIN_LANE,
    Capability,
    EventKind,
    Lane,
    RowPointer,
    SessionListFailure,
)
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import raise_if_cancelled, small_document
from workbench.transcripts.sqlite import Database, SqliteAdapter, json_list
from workbench.transcripts.values import count, items, mapping, moment, money, named, string

_SESSION = (
    "id",
    "parent_session_id",
    "title",
    "prompt_tokens",
    "completion_tokens",
    "cost",
    "created_at",
    "updated_at",
)
_MESSAGE = ("id", "role", "parts", "model", "is_summary_message", "created_at")
_ORDER = "WHERE session_id = ? ORDER BY created_at, rowid"


class Crush(SqliteAdapter):
    """Sessions of Crush, in `crush.db` of each project's data directory."""

    agent = "crush"
    display_name = "Crush"
    capabilities: ClassVar[tuple[Capability, ...]] = CAPABILITIES
    signs = ("sessions.prompt_tokens", "messages.parts")

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """Where the list of projects is."""
        return home.paths

    def is_session(self, path: str, root: str) -> bool:
        """The database of a project."""
        return path.endswith("/crush.db")

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """The sessions of each project on the list."""
        listed = items((await small_document(platform, join(root, "projects.json"))).get("projects"))
        places = [named(project.get("data_dir")) or _data(project.get("path")) for project in map(mapping, listed)]
        for place in (root, *dict.fromkeys(filter(None, places))):
            raise_if_cancelled(signal)
            path = join(str(place), "crush.db")
            try:
                stat = await platform.fs.stat(path)
            except (FileNotFoundError, NotADirectoryError):
                continue  # a project that was moved or deleted
            except OSError as error:
                yield self._failure(path, error)
                continue
            async for item in self.in_database(platform, SessionFile(path, stat), signal):
                yield item

    async def sessions(self, database: Database) -> list[tuple[str, HeadFacts]]:
        """Those that no other session started."""
        found = []
        async for row in database.select("sessions", _SESSION, "ORDER BY created_at, id"):
            if not row["parent_session_id"]:
                facts = HeadFacts(session_id=str(row["id"]), cwd=_project(database.path), title=named(row["title"]))
                facts.seen(moment(row["created_at"]))
                facts.seen(moment(row["updated_at"]))
                found.append((str(row["id"]), facts))
        return found

    async def first_prompt(self, database: Database, key: str) -> str | None:
        """The first text of a user."""
        rows = [row async for row in database.select("messages", ("role", "parts"), f"{_ORDER} LIMIT 5", (key,))]
        texts = (as_written(_text(row["parts"])) for row in rows if row["role"] == "user")
        return next(filter(None, texts), None)

    async def read_session(self, reading: Reading, database: Database, key: str) -> bool:
        """A session and those that it started, which are its lanes; usage is told of each as a whole."""
        recorder, found = reading.recorder, False
        rest = "WHERE id = ? OR parent_session_id = ? ORDER BY created_at, id"
        rows = [row async for row in database.select("sessions", _SESSION, rest, (key, key))]
        for row in sorted(rows, key=lambda row: row["id"] != key):
            lane = MAIN_LANE if row["id"] == key else str(row["id"])
            if lane == MAIN_LANE:
                found = True
                recorder.title, recorder.cwd = named(row["title"]), _project(database.path)
                recorder.seen(moment(row["created_at"]))
                recorder.seen(moment(row["updated_at"]))
            else:
                recorder.lane(Lane(id=lane, parent=MAIN_LANE, name=named(row["title"]), path=database.path))
            if not found:
                break
            raise_if_cancelled(reading.signal)
            await self._messages(reading, database, row, lane)
        return found

    async def _messages(self, reading: Reading, database: Database, session: dict[str, Any], lane: str) -> None:
        model: str | None = None
        async for row in database.select("messages", _MESSAGE, _ORDER, (session["id"],)):
            model = named(row["model"]) or model
            self._message(reading, row, database.pointer("messages", row["id"]), lane)
        usage = Usage(
            input_tokens=count(session["prompt_tokens"]),
            output_tokens=count(session["completion_tokens"]),
            cost_usd=money(session["cost"]),
        )
        if usage.input_tokens or usage.output_tokens:
            source = database.pointer("sessions", session["id"])
            at = moment(session["updated_at"])
            reading.recorder.request(f"{session['id']}:total", source, lane=lane, at=at, model=model, usage=usage)

    def _message(self, reading: Reading, row: dict[str, Any], source: RowPointer, lane: str) -> None:
        recorder, at = reading.recorder, moment(row["created_at"])
        if row["is_summary_message"]:
            recorder.compaction(source, lane=lane, at=at)
            return
        for number, part in enumerate(map(mapping, json_list(row["parts"]))):
            kind, data = part.get("type"), mapping(part.get("data"))
            text = string(data.get("text"))
            if kind == "text" and as_written(text):
                user = row["role"] == "user"
                told: EventKind = "prompt" if user and lane == MAIN_LANE else "context" if user else "reply"
                recorder.event(told, source, lane=lane, at=at, text=as_written(text))
            elif kind == "reasoning":
                recorder.event("reasoning", source, lane=lane, at=at, text=string(data.get("thinking")))
            elif kind == "tool_call":
                id = named(data.get("id")) or f"{row['id']}-{number}"
                tell_call(recorder, id, string(data.get("name")), data.get("input"), source, lane=lane, at=at)
            elif kind == "tool_result":
                ok, text = data.get("is_error") is not True, string(data.get("content"))
                recorder.result(string(data.get("tool_call_id")), source, ok=ok, lane=lane, at=at, text=text)


def _text(parts: object) -> str:
    texts = (mapping(part) for part in json_list(parts))
    return "\n".join(string(mapping(part.get("data")).get("text")) for part in texts if part.get("type") == "text")


def _data(project: object) -> str | None:
    path = named(project)
    return None if path is None else join(path, ".crush")


def _project(database: str) -> str:
    """The directory whose data directory a database is in."""
    folder = parent(database)
    return parent(folder) if folder.endswith("/.crush") else folder
