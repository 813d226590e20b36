"""Gemini CLI: one file a session under its project's directory, JSON lines, before 0.40 one JSON document."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.protocol.signal import CancelSignal
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, parent, stem
from workbench.transcripts.homes import join
from workbench.transcripts.messages import tell_call, tell_user
from workbench.transcripts.models import (
    MAIN_LANE,
    Capability,
    DocumentPointer,
    Lane,
    SessionListFailure,
    Source,
)
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import END_BYTES, Ends, read_document_ends, read_ends, small_document, walk
from workbench.transcripts.values import block_text, count, is_name, items, mapping, moment, named, string

_NOT_TYPED = ("/", "?", "<session_context>", "<hook_context>")


def typed(text: str) -> str:
    """What of a user message's text a person asked for; commands to the program itself are no prompts."""
    text = text.strip("\ufeff \t\r\n")
    return "" if text.startswith(_NOT_TYPED) else text


def _parts(content: object) -> list[Any]:
    return [content] if isinstance(content, dict | str) else items(content)


def _text(content: object, *, thoughts: bool = False) -> str:
    """What the parts of a message say, or what they say of the model's thoughts."""
    return block_text([part for part in _parts(content) if (mapping(part).get("thought") is True) is thoughts])


class GeminiCli(FileAdapter):
    """Sessions of Gemini CLI, under `tmp/<project>/chats`."""

    agent = "gemini-cli"
    display_name = "Gemini CLI"
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
    directory = "tmp"

    def is_session(self, path: str, root: str) -> bool:
        """`<project>/chats/session-*`."""
        inside = path[len(root) :].strip("/").split("/")
        return (
            len(inside) == 3
            and inside[1] == "chats"
            and inside[2].startswith("session-")
            and inside[2].endswith((".json", ".jsonl"))
        )

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """As its base; of a session that was converted the new file."""
        found: list[SessionFile] = []
        async for item in super().files(platform, root, signal):
            if isinstance(item, SessionListFailure):
                yield item
            else:
                found.append(item)
        paths = {file.path for file in found}
        for file in found:
            if f"{file.path}l" not in paths:
                yield file

    async def ends(self, platform: SessionPlatform, file: SessionFile) -> Ends:
        """Of the older form the document's beginning stands in for its records."""
        if file.path.endswith(".jsonl"):
            return await read_ends(platform, file.path, file.stat.size)
        ends = await read_document_ends(platform, file.path, file.stat.size)
        document = mapping(ends.value)
        ends.head = [document, *map(mapping, items(document.get("messages")))] if document else []
        return ends

    def looks_right(self, ends: Ends) -> bool:
        """Its header."""
        return bool(ends.head) and {"sessionId", "projectHash"} <= ends.head[0].keys()

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From its header, its updates, and its first message that a person typed.

        Where nobody said anything yet there is none, for the agent neither: it begins a file when it goes on with a session
        and then writes to the one that the session has.
        """
        header = ends.head[0] if ends.head else {}
        if header.get("kind") == "subagent":
            return None
        facts = HeadFacts(session_id=named(header.get("sessionId")))
        facts.title = named(header.get("summary"))
        said = file.stat.size > END_BYTES
        for record in ends.records:
            update = mapping(record.get("$set"))
            facts.title = named(update.get("summary")) or facts.title
            for at in (record.get("startTime"), record.get("lastUpdated"), update.get("lastUpdated")):
                facts.seen(moment(at))
            for message in [record, *map(mapping, items(update.get("messages")))]:
                facts.seen(moment(message.get("timestamp")))
                said = said or message.get("type") == "gemini"
                if facts.first_prompt is None and message.get("type") == "user":
                    facts.first_prompt = typed(_text(message.get("content"))) or None
        if not said and facts.first_prompt is None:
            return None
        facts.cwd = await _directory(platform, file.path)
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """The session's file, then its subagents'."""
        pass_ = _Pass(reading, path)
        await pass_.read(path, MAIN_LANE)
        reading.recorder.cwd = await _directory(reading.platform, path)
        session = reading.recorder.session_id
        if not is_name(session):
            return
        folder = join(parent(path), session)
        for lane, entry in await walk(reading.platform, folder, depth=0, inside=1, signal=reading.signal):
            if not isinstance(entry, OSError) and lane.endswith(".jsonl"):
                reading.recorder.lane(Lane(id=stem(lane), parent=MAIN_LANE, path=lane))
                await pass_.read(lane, stem(lane))


async def _directory(platform: SessionPlatform, path: str) -> str | None:
    """The project's, from its marker, else from the registry of projects."""
    project = parent(parent(path))
    try:
        marked = await platform.fs.read(join(project, ".project_root"), length=4096)
    except OSError:
        marked = b""
    if marked.strip():
        return marked.decode("utf-8", "replace").strip()
    registry = await small_document(platform, join(parent(parent(project)), "projects.json"))
    slug = project.rpartition("/")[2]
    return next((place for place, name in mapping(registry.get("projects")).items() if name == slug), None)


class _Pass:
    def __init__(self, reading: Reading, path: str) -> None:
        self._reading = reading
        self._recorder = reading.recorder
        self._recorder.session_id = stem(path)
        self._live: dict[str, None] = {}  # in the order in which they were first written
        self._known: set[str] = set()
        self._unanswered: set[str] = set()

    async def read(self, path: str, lane: str) -> None:
        self._live = {}
        if path.endswith(".json"):
            document = mapping(await self._reading.document(path))
            self._update(document, DocumentPointer(path=path, pointer=""), lane)
            for number, message in enumerate(items(document.get("messages"))):
                self._message(mapping(message), DocumentPointer(path=path, pointer=f"/messages/{number}"), lane)
            return
        async for record in self._reading.records(path):
            value = record.value
            if "$set" in value:
                update = mapping(value["$set"])
                self._update(update, record.source, lane)
                if isinstance(update.get("messages"), list):
                    self._recorder.abandon(self._live)
                    self._live = {}
                    for message in map(mapping, update["messages"]):
                        self._again(message, record.source, lane)
            elif "$rewindTo" in value:
                self._rewind(string(value["$rewindTo"]), lane)
            elif "type" in value:
                self._message(value, record.source, lane)
            else:
                self._update(value, record.source, lane)

    def _update(self, update: dict[str, Any], source: Source, lane: str) -> None:
        for key in ("startTime", "lastUpdated"):
            self._recorder.seen(moment(update.get(key)))
        if lane == MAIN_LANE:
            self._recorder.session_id = named(update.get("sessionId")) or self._recorder.session_id
            self._recorder.title = named(update.get("summary")) or self._recorder.title

    def _rewind(self, id: str, lane: str) -> None:
        key = f"{lane}:{id}"
        live = list(self._live)
        start = live.index(key) if key in self._live else 0
        self._recorder.abandon(live[start:])
        self._live = dict.fromkeys(live[:start])

    def _again(self, message: dict[str, Any], source: Source, lane: str) -> None:
        """A message of a whole new list. One that was told before is told there with less: its calls bare, no usage."""
        key = f"{lane}:{named(message.get('id'))}"
        if key not in self._known:
            self._message(message, source, lane)
            return
        self._recorder.begin(key, anew=False)
        self._recorder.end()
        self._live[key] = None

    def _message(self, message: dict[str, Any], source: Source, lane: str) -> None:
        recorder = self._recorder
        kind, at, id = message.get("type"), moment(message.get("timestamp")), named(message.get("id")) or str(source)
        key = f"{lane}:{id}"
        recorder.begin(key)
        self._known.add(key)
        self._live.setdefault(key)
        content = message.get("content")
        text = _text(content)
        if kind == "user":
            tell_user(recorder, text, source, lane=lane, at=at, typed=typed)
            for part in _parts(content):
                self._answer(mapping(mapping(part).get("functionResponse")), source, lane, at)
        elif kind == "gemini":
            for thought in map(mapping, items(message.get("thoughts"))):
                said = f"{string(thought.get('subject'))}: {string(thought.get('description'))}".strip(": ")
                recorder.event("reasoning", source, lane=lane, at=at, text=said)
            if thinking := _text(content, thoughts=True):
                recorder.event("reasoning", source, lane=lane, at=at, text=thinking)
            if text:
                recorder.event("reply", source, lane=lane, at=at, text=text)
            bare = [part["functionCall"] for part in map(mapping, _parts(content)) if "functionCall" in part]
            for number, call in enumerate(map(mapping, items(message.get("toolCalls")) or bare)):
                self._call(call, f"{id}-{number}", source, lane, at)
            if isinstance(message.get("tokens"), dict):
                model = named(message.get("model"))
                usage = _usage(message["tokens"])
                recorder.request(f"{recorder.session_id}:{key}", source, lane=lane, at=at, model=model, usage=usage)
        elif kind in ("info", "error", "warning"):
            recorder.event("notice", source, lane=lane, at=at, text=text)

    def _call(self, call: dict[str, Any], place: str, source: Source, lane: str, at: datetime | None) -> None:
        recorder = self._recorder
        id, at = named(call.get("id")) or place, moment(call.get("timestamp")) or at
        tell_call(recorder, id, string(call.get("name")), call.get("args"), source, lane=lane, at=at)
        status, shown = call.get("status"), call.get("resultDisplay")
        if status not in ("success", "error", "cancelled"):
            self._unanswered.add(id)
            return
        text = ""
        if recorder.keep:
            text = shown if isinstance(shown, str) else json.dumps(call.get("result"), ensure_ascii=False)
        recorder.result(id, source, ok=status == "success", lane=lane, at=at, text=text)
        self._unanswered.discard(id)
        path = named(mapping(shown).get("filePath"))
        if path is not None and mapping(shown).get("isNewFile") is True:
            recorder.forget_edits(id)
            recorder.edit(path, source, action="add", call_id=id, lane=lane, at=at)

    def _answer(self, answer: dict[str, Any], source: Source, lane: str, at: datetime | None) -> None:
        """The result that the model was given of a call, where nothing else tells of it."""
        id, response = string(answer.get("id")), mapping(answer.get("response"))
        if id in self._unanswered:
            self._unanswered.discard(id)
            text = string(response.get("output") or response.get("error"))
            self._recorder.result(id, source, ok="error" not in response, lane=lane, at=at, text=text)


def _usage(tokens: dict[str, Any]) -> Usage:
    return Usage(
        input_tokens=count(tokens.get("input")) + count(tokens.get("tool")),
        output_tokens=count(tokens.get("output")) + count(tokens.get("thoughts")),
        reasoning_tokens=count(tokens.get("thoughts")),
        cache_read_tokens=count(tokens.get("cached")),
    )
