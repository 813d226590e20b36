"""Kimi CLI and Kimi Code: a directory a session, with a file of what went over the wire between agent and interface."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.protocol.signal import CancelSignal
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, parent
from workbench.transcripts.homes import join
from workbench.transcripts.messages import tell_call, tell_message, tell_user
from workbench.transcripts.models import CAPABILITIES, MAIN_LANE, Capability, Lane, Place, SessionListFailure
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends, small_document, walk
from workbench.transcripts.values import block_text, count, items, mapping, moment, named, string

_WIRE, _CONTEXT = "wire.jsonl", "context.jsonl"
_INJECTED = ("<system-reminder>", "<system>")


def typed(text: str) -> str:
    """What of a user message's text a person typed."""
    text = text.strip("\ufeff \t\r\n")
    return "" if text.startswith(_INJECTED) else text


def _prompt(record: dict[str, Any]) -> str:
    """What a record of any of the forms shows that a person typed."""
    message = mapping(record.get("message"))
    if record.get("type") in ("turn.prompt", "turn.steer"):
        origin = mapping(record.get("origin")).get("kind", "user")
        return typed(block_text(record.get("input"))) if origin == "user" else ""
    if message.get("type") == "TurnBegin":
        return typed(block_text(mapping(message.get("payload")).get("user_input")))
    return typed(block_text(record.get("content"))) if record.get("role") == "user" else ""


class Kimi(FileAdapter):
    """Sessions of Kimi CLI and Kimi Code, under `sessions`."""

    agent = "kimi"
    display_name = "Kimi"
    capabilities: ClassVar[tuple[Capability, ...]] = tuple(name for name in CAPABILITIES if name != "costs")
    directory = "sessions"

    def is_session(self, path: str, root: str) -> bool:
        """The main agent's wire, else the context, else the file alone of the first sessions."""
        inside = path[len(root) :].strip("/").split("/")
        return (
            (len(inside) == 3 and inside[2] in (_WIRE, _CONTEXT))
            or (len(inside) == 5 and inside[2:] == ["agents", "main", _WIRE])
            or (len(inside) == 2 and inside[1].endswith(".jsonl"))
        )

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """As its base; a context only where there is no wire."""
        found: list[SessionFile] = []
        async for item in super().files(platform, root, signal):
            if isinstance(item, SessionListFailure):
                yield item
            else:
                found.append(item)
        paths = {file.path for file in found}
        for file in found:
            if not file.path.endswith(f"/{_CONTEXT}") or join(parent(file.path), _WIRE) not in paths:
                yield file

    def looks_right(self, ends: Ends) -> bool:
        """The first record of a wire, or the control records of a context."""
        first = ends.head[0] if ends.head else {}
        role = string(first.get("role"))
        return ("protocol_version" in first and first.get("type") in ("metadata", "hello")) or role in (
            "_system_prompt",
            "_checkpoint",
            "_usage",
        )

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From the records and from the state beside them."""
        facts = HeadFacts(session_id=_id(file.path))
        for record in ends.records:
            facts.seen(_time(record))
            facts.cwd = facts.cwd or _cwd(record)
            facts.first_prompt = facts.first_prompt or _prompt(record) or None
        facts.title, facts.cwd = await _state(platform, file.path, facts.cwd)
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """The main agent's records, those of other agents; a wire that tells no words has them in its context."""
        recorder = reading.recorder
        recorder.session_id = _id(path)
        await _Pass(reading, MAIN_LANE).read(path)
        folder = parent(path)
        if path.endswith(f"/{_WIRE}") and not recorder.has_words():
            try:
                await _Pass(reading, MAIN_LANE).read(join(folder, _CONTEXT))
            except FileNotFoundError:
                pass
        if path.endswith("/agents/main/wire.jsonl"):
            for other, entry in await walk(reading.platform, parent(folder), depth=1, inside=1, signal=reading.signal):
                name = parent(other).rpartition("/")[2]
                if not isinstance(entry, OSError) and other.endswith(f"/{_WIRE}") and name != "main":
                    recorder.lane(Lane(id=name, parent=MAIN_LANE, path=other))
                    await _Pass(reading, name).read(other)
        recorder.title, recorder.cwd = await _state(reading.platform, path, recorder.cwd)


class _Pass:
    """One reading of one file."""

    def __init__(self, reading: Reading, lane: str) -> None:
        self._reading = reading
        self._recorder = reading.recorder
        self._lane = lane
        self._model: str | None = None

    async def read(self, path: str) -> None:
        async for record in self._reading.records(path):
            value, source = record.value, record.source
            at = _time(value)
            self._recorder.seen(at)
            self._model = named(value.get("model")) or named(value.get("modelAlias")) or self._model
            if self._lane == MAIN_LANE:
                self._recorder.cwd = self._recorder.cwd or _cwd(value)
            message = mapping(value.get("message"))
            if text := _prompt(value):
                tell_user(self._recorder, text, source, lane=self._lane, at=at)
            elif "payload" in message:
                self._wire(string(message.get("type")), mapping(message["payload"]), source, at)
            elif value.get("type") == "context.append_loop_event":
                self._loop(mapping(value.get("event")), source, at)
            elif value.get("type") in ("context.apply_compaction", "full_compaction.complete"):
                before = count(value.get("tokensBefore")) or None
                self._recorder.compaction(source, lane=self._lane, at=at, tokens_before=before)
            elif "role" in value:
                self._context(value, source, at)

    def _wire(self, kind: str, payload: dict[str, Any], source: Place, at: Any) -> None:
        recorder, lane = self._recorder, self._lane
        if kind == "ContentPart":
            self._part(payload, source, at)
        elif kind == "ToolCall":
            function = mapping(payload.get("function"))
            id = named(payload.get("id")) or str(source.offset)
            tell_call(recorder, id, string(function.get("name")), function.get("arguments"), source, lane=lane, at=at)
        elif kind == "ToolResult":
            value = mapping(payload.get("return_value"))
            text = block_text(value.get("output")) or string(value.get("message"))
            ok = value.get("is_error") is not True
            recorder.result(string(payload.get("tool_call_id")), source, ok=ok, lane=lane, at=at, text=text)
        elif kind == "StatusUpdate" and isinstance(payload.get("token_usage"), dict):
            used = payload["token_usage"]
            names = ("input_other", "input_cache_read", "input_cache_creation", "output")
            id = f"{recorder.session_id}:{named(payload.get('message_id')) or source.offset}"
            usage = _usage(*(count(used.get(name)) for name in names))
            recorder.request(id, source, lane=lane, at=at, model=self._model, usage=usage)
        elif kind == "CompactionBegin":
            recorder.compaction(source, lane=lane, at=at)

    def _loop(self, event: dict[str, Any], source: Place, at: Any) -> None:
        recorder, lane, kind = self._recorder, self._lane, event.get("type")
        if kind == "content.part":
            self._part(mapping(event.get("part")), source, at)
        elif kind == "tool.call":
            id = named(event.get("toolCallId")) or str(source.offset)
            tell_call(recorder, id, string(event.get("name")), event.get("args"), source, lane=lane, at=at)
        elif kind == "tool.result":
            result = mapping(event.get("result"))
            text, ok = block_text(result.get("output")), result.get("isError") is not True
            recorder.result(string(event.get("toolCallId")), source, ok=ok, lane=lane, at=at, text=text)
        elif kind == "step.end" and isinstance(event.get("usage"), dict):
            used = event["usage"]
            names = ("inputOther", "inputCacheRead", "inputCacheCreation", "output")
            id = f"{recorder.session_id}:{lane}:{named(event.get('uuid')) or source.offset}"
            usage = _usage(*(count(used.get(name)) for name in names))
            recorder.request(id, source, lane=lane, at=at, model=self._model, usage=usage)

    def _part(self, part: dict[str, Any], source: Place, at: Any) -> None:
        if part.get("type") == "think":
            self._recorder.event("reasoning", source, lane=self._lane, at=at, text=string(part.get("think")))
        elif text := string(part.get("text")):
            self._recorder.event("reply", source, lane=self._lane, at=at, text=text)

    def _context(self, record: dict[str, Any], source: Place, at: Any) -> None:
        recorder, lane, role = self._recorder, self._lane, record.get("role")
        if role == "tool":
            text = block_text(record.get("content"))
            ok = not text.startswith("<system>ERROR")
            recorder.result(string(record.get("tool_call_id")), source, ok=ok, lane=lane, at=at, text=text)
        elif role == "user":
            recorder.event("context", source, lane=lane, at=at, text=block_text(record.get("content")))
        elif role == "assistant":
            for part in map(mapping, items(record.get("content"))):
                self._part(part, source, at)
            if isinstance(record.get("content"), str):
                tell_message(recorder, role, record["content"], source, key=str(source.offset), lane=lane, at=at)
            for number, call in enumerate(map(mapping, items(record.get("tool_calls")))):
                function = mapping(call.get("function"))
                id = named(call.get("id")) or f"{source.offset}-{number}"
                name = string(function.get("name"))
                tell_call(recorder, id, name, function.get("arguments"), source, lane=lane, at=at)


def _usage(other: int, read: int, written: int, output: int) -> Usage:
    return Usage(
        input_tokens=other + read + written, output_tokens=output, cache_read_tokens=read, cache_write_tokens=written
    )


def _time(record: dict[str, Any]) -> Any:
    return moment(record.get("timestamp") or record.get("time") or record.get("created_at"))


def _cwd(record: dict[str, Any]) -> str | None:
    disclosed = mapping(record.get("environmentDisclosure"))
    return named(record.get("cwd")) or named(disclosed.get("cwd")) if "type" in record else None


def _folder(path: str) -> str:
    """The session's directory; of the first sessions, which had none, what it would have been."""
    if path.endswith("/agents/main/wire.jsonl"):
        return path.removesuffix("/agents/main/wire.jsonl")
    return parent(path) if path.endswith((f"/{_WIRE}", f"/{_CONTEXT}")) else path.removesuffix(".jsonl")


def _id(path: str) -> str:
    return _folder(path).rpartition("/")[2].removeprefix("session_")


async def _state(platform: SessionPlatform, path: str, cwd: str | None) -> tuple[str | None, str | None]:
    """A session's title and directory, from its state and from the list of directories, else as known."""
    folder = _folder(path)
    state = await small_document(platform, join(folder, "state.json"))
    cwd = named(state.get("workDir")) or cwd
    if cwd is None:
        known = await small_document(platform, join(parent(parent(parent(folder))), "kimi.json"))
        hashed = parent(folder).rpartition("/")[2].rpartition("_")[2]
        for place in map(mapping, items(known.get("work_dirs"))):
            name = string(place.get("path"))
            if hashlib.md5(name.encode("utf-8", "replace"), usedforsecurity=False).hexdigest() == hashed:
                cwd = name
    return named(state.get("custom_title")) or named(state.get("title")), cwd
