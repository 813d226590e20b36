"""Goose: a database of sessions."""

from __future__ import annotations

from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.transcripts.files import HeadFacts, Reading
from workbench.transcripts.messages import as_written, tell_call
from workbench.transcripts.models import Capability, RowPointer
from workbench.transcripts.sqlite import Database, SqliteAdapter, json_list, json_object
from workbench.transcripts.values import block_text, count, mapping, moment, money, named, string

_SESSION = (
    "id",
    "name",
    "description",
    "session_type",
    "working_dir",
    "created_at",
    "updated_at",
    "parent_session_id",
    "model_config_json",
    "accumulated_input_tokens",
    "accumulated_output_tokens",
    "accumulated_cost",
)
_LEDGER = (
    "id",
    "created_timestamp",
    "model",
    "input_tokens",
    "output_tokens",
    "cache_read_tokens",
    "cache_write_tokens",
    "cost",
)
_HIDDEN = ("sub_agent", "hidden")


class Goose(SqliteAdapter):
    """Sessions of Goose, in `sessions/sessions.db`."""

    agent = "goose"
    display_name = "Goose"
    capabilities: ClassVar[tuple[Capability, ...]] = (
        "prompts",
        "replies",
        "reasoning",
        "tool_calls",
        "edits",
        "usage",
        "costs",
        "times",
    )
    directory = "sessions"
    signs = ("sessions.working_dir", "messages.content_json")
    depth = 0

    def is_session(self, path: str, root: str) -> bool:
        """The database."""
        return path[len(root) :].strip("/") == "sessions.db"

    async def sessions(self, database: Database) -> list[tuple[str, HeadFacts]]:
        """Those that a person or a schedule began."""
        found = []
        async for row in database.select("sessions", _SESSION, "ORDER BY id"):
            if row["session_type"] in _HIDDEN or row["parent_session_id"]:
                continue
            facts = HeadFacts(session_id=str(row["id"]), cwd=named(row["working_dir"]))
            facts.title = named(row["name"]) or named(row["description"])
            facts.seen(moment(row["created_at"]))
            facts.seen(moment(row["updated_at"]))
            found.append((str(row["id"]), facts))
        return found

    async def first_prompt(self, database: Database, key: str) -> str | None:
        """The first text of a user that was shown."""
        wanted, order = ("role", "content_json", "metadata_json"), "WHERE session_id = ? ORDER BY id LIMIT 20"
        rows = [row async for row in database.select("messages", wanted, order, (key,))]
        shown = (row for row in rows if row["role"] == "user" and _is_shown(row))
        texts = (as_written(block_text(json_list(row["content_json"]), "text")) for row in shown)
        return next(filter(None, texts), None)

    async def read_session(self, reading: Reading, database: Database, key: str) -> bool:
        """The messages that were shown, and what the ledger, or else the session, tells of usage."""
        recorder = reading.recorder
        session = await database.first("sessions", _SESSION, "WHERE id = ?", (key,))
        if session is None:
            return False
        recorder.title = named(session["name"]) or named(session["description"])
        recorder.cwd = named(session["working_dir"])
        recorder.seen(moment(session["created_at"]))
        recorder.seen(moment(session["updated_at"]))
        wanted = ("id", "role", "content_json", "created_timestamp", "metadata_json")
        async for row in database.select("messages", wanted, "WHERE session_id = ? ORDER BY id", (key,)):
            if _is_shown(row):
                self._message(reading, row, database.pointer("messages", row["id"]))
        model = named(json_object(session["model_config_json"]).get("model_name"))
        if not await self._ledger(reading, database, key) and session["accumulated_input_tokens"] is not None:
            usage = Usage(
                input_tokens=count(session["accumulated_input_tokens"]),
                output_tokens=count(session["accumulated_output_tokens"]),
                cost_usd=money(session["accumulated_cost"]),
            )
            source = database.pointer("sessions", key)
            recorder.request(f"{key}:total", source, at=recorder.last_active_at, model=model, usage=usage)
        return True

    async def _ledger(self, reading: Reading, database: Database, key: str) -> bool:
        found = False
        if "session_id" not in await database.columns("usage_ledger"):
            return False
        async for row in database.select("usage_ledger", _LEDGER, "WHERE session_id = ? ORDER BY id", (key,)):
            found = True
            usage = Usage(
                input_tokens=count(row["input_tokens"]),
                output_tokens=count(row["output_tokens"]),
                cache_read_tokens=count(row["cache_read_tokens"]),
                cache_write_tokens=count(row["cache_write_tokens"]),
                cost_usd=money(row["cost"]),
            )
            reading.recorder.request(
                f"{key}:{row['id']}",
                database.pointer("usage_ledger", row["id"]),
                at=moment(row["created_timestamp"]),
                model=named(row["model"]),
                usage=usage,
            )
        return found

    def _message(self, reading: Reading, row: dict[str, Any], source: RowPointer) -> None:
        recorder, at = reading.recorder, moment(row["created_timestamp"])
        recorder.seen(at)
        for number, part in enumerate(map(mapping, json_list(row["content_json"]))):
            kind, text = part.get("type"), string(part.get("text"))
            if kind == "text" and text.strip():
                said = as_written(text)
                recorder.event("prompt" if row["role"] == "user" else "reply", source, at=at, text=said)
            elif kind == "thinking":
                recorder.event("reasoning", source, at=at, text=string(part.get("thinking")))
            elif kind == "toolRequest":
                call = mapping(mapping(part.get("toolCall")).get("value"))
                id = named(part.get("id")) or f"{row['id']}-{number}"
                tell_call(recorder, id, string(call.get("name")), call.get("arguments"), source, at=at)
            elif kind == "toolResponse":
                result = mapping(part.get("toolResult"))
                value = result.get("value")
                ok = result.get("status") == "success" and mapping(value).get("isError") is not True
                content = mapping(value).get("content") if isinstance(value, dict) else value
                recorder.result(string(part.get("id")), source, ok=ok, at=at, text=block_text(content, "text"))


def _is_shown(row: dict[str, Any]) -> bool:
    return json_object(row["metadata_json"]).get("userVisible") is not False
