"""Codex CLI: one rollout a thread, in JSONL, compressed once it is old; forks and subagents copy their parent's."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any

from workbench.protocol.signal import CancelSignal
from workbench.transcripts.agents.codex_rollouts import FOLDERS, Rollouts, is_rollout, thread_id
from workbench.transcripts.agents.codex_tokens import TokenCounts, totals
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, UnknownGenerationError
from workbench.transcripts.homes import AgentHome, join
from workbench.transcripts.messages import tell_call
from workbench.transcripts.models import CAPABILITIES, MAIN_LANE, EditAction, EventKind, Lane, Place, SessionListFailure
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends
from workbench.transcripts.values import block_text, items, mapping, moment, named, parse, string

_DAY = re.compile(r"rollout-(\d{4})-(\d\d)-(\d\d)")
_REQUEST_MARKER = "## My request for Codex:"
_ENVELOPE = re.compile(
    r"\s*<(recommended_plugins|environment_context|user_instructions|INSTRUCTIONS|skills_instructions)>.*?</\1>",
    re.DOTALL,
)
_NOT_TYPED = (
    "# AGENTS.md",
    "<user_instructions>",
    "<INSTRUCTIONS>",
    "<environment_context>",
    "<turn_aborted>",
    "<skill>",
    "<subagent_notification>",
    "<goal_context>",
    "<codex_internal_context",
    "<permissions instructions>",
)
_EXIT = re.compile(r"(?:Process exited with code|Exit code:|exit code:?) (-?\d+)")
_CALLS = frozenset(
    ("function_call", "custom_tool_call", "local_shell_call", "web_search_call", "tool_search_call", "tool_call")
)
_RESULTS = frozenset(("function_call_output", "custom_tool_call_output", "tool_search_output", "tool_result"))
_ACTIONS: dict[str, EditAction] = {"add": "add", "delete": "delete", "update": "update"}


def typed(text: str) -> str:
    """What of a user message's text a person typed; "" where nothing is."""
    if _REQUEST_MARKER in text:
        text = text.partition(_REQUEST_MARKER)[2]
    text = text.strip("\ufeff \t\r\n")
    while text.startswith("<") and (found := _ENVELOPE.match(text)):
        text = text[found.end() :].strip()
    return "" if text.startswith(_NOT_TYPED) else text


class Codex(FileAdapter):
    """Rollouts of Codex, under `sessions/YYYY/MM/DD` and `archived_sessions`."""

    agent = "codex"
    display_name = "Codex CLI"
    capabilities = CAPABILITIES
    usage_words = (
        b"token_count",
        b"token_usage_record",
        b"turn_context",
        b"session_meta",
        b"collab_agent_spawn_end",
        b"sub_agent_activity",
        b"agent_id",
        b'"model"',  # of the time before envelopes
        b"instructions",
        b"items",
    )

    def __init__(self) -> None:
        self._rollouts = Rollouts()

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """The active and the archived rollouts."""
        return tuple(join(path, name) for path in home.paths for name in FOLDERS)

    def is_session(self, path: str, root: str) -> bool:
        """A rollout by its name."""
        return is_rollout(path)

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """As its base; of a rollout that is there twice the plain one, and the active one."""
        found: list[SessionFile] = []
        async for item in super().files(platform, root, signal):
            if isinstance(item, SessionListFailure):
                yield item
            else:
                found.append(item)
        plain = {file.path for file in found}
        for file in found:
            twice = file.path.endswith(".zst") and file.path.removesuffix(".zst") in plain
            if not twice and not await self._is_active(platform, file.path, root):
                yield file

    async def _is_active(self, platform: SessionPlatform, path: str, root: str) -> bool:
        """Whether an archived rollout is among the active ones too."""
        name = path.rpartition("/")[2]
        day = _DAY.match(name)
        if not root.endswith("/archived_sessions") or day is None:
            return False
        try:
            await platform.fs.stat(join(root.removesuffix("archived_sessions"), "sessions", *day.groups(), name))
        except OSError:
            return False
        return True

    def looks_right(self, ends: Ends) -> bool:
        """Its envelopes, or the header and items of the time before them."""
        for record in ends.head[:3]:
            if isinstance(record.get("payload"), dict) and record.get("type") in (
                "session_meta",
                "turn_context",
                "response_item",
                "event_msg",
            ):
                return True
            if {"id", "timestamp", "instructions"} <= record.keys() and "type" not in record:
                return True
        return False

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """The first `session_meta` is this rollout's, later ones are copied; a subagent's rollout is a lane of another."""
        facts = HeadFacts()
        meta: dict[str, Any] | None = None
        item_prompt: str | None = None
        for record in ends.records:
            facts.seen(moment(record.get("timestamp")))
            payload = mapping(record.get("payload"))
            if meta is None and record.get("type") == "session_meta":
                meta = payload
            elif facts.cwd is None and record.get("type") == "turn_context":
                facts.cwd = named(payload.get("cwd"))
            if payload.get("type") == "thread_name_updated":
                facts.title = named(payload.get("thread_name")) or facts.title
            if facts.first_prompt is None:
                facts.first_prompt = typed(_typed_event(payload)) or None
            if item_prompt is None and _message(record).get("role") == "user":
                item_prompt = typed(block_text(_message(record).get("content"))) or None
        meta = mapping(meta) or (ends.head[0] if ends.head and "instructions" in ends.head[0] else {})
        if _parent_of_subagent(meta) is not None:
            return None
        facts.session_id = named(meta.get("id")) or thread_id(file.path)
        facts.cwd = named(meta.get("cwd")) or facts.cwd
        facts.first_prompt = facts.first_prompt or item_prompt
        facts.started_at = moment(meta.get("timestamp")) or facts.started_at
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """The thread's rollout, then those of the subagents that it names."""
        first = _Thread(reading, path, MAIN_LANE, self._rollouts)
        await first.read()
        reading.recorder.session_id = first.id
        reading.recorder.title = first.name
        pending = [(thread, first.id, MAIN_LANE) for thread in first.spawned.items()]
        seen = {first.id}
        while pending:
            (child, call), before, lane = pending.pop(0)
            if child in seen:
                continue
            seen.add(child)
            rollout = await self._rollouts.find(reading, path, child)
            if rollout is None:
                continue
            thread = _Thread(reading, rollout, child, self._rollouts, parent=before)
            reading.recorder.lane(Lane(id=child, parent=lane, call_id=call, path=rollout))
            await thread.read()
            if thread.nickname:
                reading.recorder.lane(Lane(id=child, name=thread.nickname))
            pending.extend((spawned, child, child) for spawned in thread.spawned.items())


def _parent_of_subagent(meta: dict[str, Any]) -> str | None:
    """The thread that a subagent's was spawned by; None where it is nobody's."""
    subagent = mapping(meta.get("source")).get("subagent")
    if subagent is None and meta.get("thread_source") != "subagent":
        return None
    spawn = mapping(mapping(subagent).get("thread_spawn"))
    return named(spawn.get("parent_thread_id")) or named(meta.get("parent_thread_id"))


def _typed_event(payload: dict[str, Any]) -> str:
    """What an event says that the user typed."""
    if payload.get("type") == "user_message":
        return string(payload.get("message"))
    item = mapping(payload.get("item"))
    if payload.get("type") == "item_completed" and item.get("type") == "UserMessage":
        return block_text(item.get("content"))
    return ""


def _message(record: dict[str, Any]) -> dict[str, Any]:
    """The message that a record is, in an envelope or, as once, without."""
    if record.get("type") == "response_item":
        payload = mapping(record.get("payload"))
        return payload if payload.get("type", "message") == "message" else {}
    return record if record.get("type", "message") == "message" and "role" in record else {}


class _Echoes:
    """A text that two streams of records carry counts once, whichever comes first."""

    def __init__(self) -> None:
        self._open: tuple[dict[str, int], dict[str, int]] = ({}, {})

    def is_new(self, text: str, stream: int) -> bool:
        """Whether the other stream hasn't told this text already."""
        key = text.strip()[:512]
        own, other = self._open[stream], self._open[1 - stream]
        if waiting := other.get(key, 0):
            other[key] = waiting - 1
            return False
        own[key] = own.get(key, 0) + 1
        return True


class _Thread:
    """One reading of one rollout."""

    def __init__(
        self, reading: Reading, path: str, lane: str, rollouts: Rollouts, *, parent: str | None = None
    ) -> None:
        self._reading = reading
        self._recorder = reading.recorder
        self._path = path
        self._lane = lane
        self._rollouts = rollouts
        self._parent = parent
        self.id = thread_id(path)
        self.name: str | None = None
        self.nickname: str | None = None
        self.spawned: dict[str, str | None] = {}
        self._has_meta = False
        self._model: str | None = None
        self._tokens = TokenCounts(reading.recorder, lane)
        self._prompts, self._replies = _Echoes(), _Echoes()

    async def read(self) -> None:
        """All of it."""
        unknown = ""
        async for batch in self._reading.batches(self._path):
            for record in batch:
                value, source = record.value, record.source
                at = moment(value.get("timestamp"))
                self._recorder.seen(at)
                kind, payload = value.get("type"), mapping(value.get("payload"))
                if kind == "response_item":
                    self._item(payload, source, at)
                elif kind == "event_msg":
                    self._event(payload, source, at)
                elif kind == "turn_context":
                    self._model = named(payload.get("model")) or self._model
                    self._place(payload)
                elif kind == "session_meta" or (not self._has_meta and "instructions" in value and "type" not in value):
                    await self._meta(payload or value)
                elif kind == "compacted":
                    self._recorder.compaction(source, lane=self._lane, at=at)
                elif kind == "token_usage_record":
                    self._tokens.response(payload, source, at)
                elif "session" in value and "items" in value:
                    unknown = "one document, of 2025"
                elif not payload:
                    self._model = named(value.get("model")) or self._model
                    self._item(value, source, at)
        if unknown:
            raise UnknownGenerationError(unknown)
        self._tokens.end(self._model)

    async def _meta(self, meta: dict[str, Any]) -> None:
        if self._has_meta:
            return
        self._has_meta = True
        self.id = named(meta.get("id")) or self.id
        self.nickname = named(meta.get("agent_nickname"))
        self._recorder.seen(moment(meta.get("timestamp")))
        self._place(meta)
        if self._lane == MAIN_LANE:
            self._recorder.branch = named(mapping(meta.get("git")).get("branch"))
        before = self._parent or _parent_of_subagent(meta) or named(meta.get("forked_from_id"))
        before = before or named(meta.get("parent_thread_id"))
        if before is not None and before != self.id:
            rollout = await self._rollouts.find(self._reading, self._path, before)
            if rollout is not None:
                self._tokens.copied = await totals(self._reading, rollout)

    def _place(self, about: dict[str, Any]) -> None:
        if self._lane == MAIN_LANE:
            self._recorder.cwd = self._recorder.cwd or named(about.get("cwd"))

    def _event(self, payload: dict[str, Any], source: Place, at: Any) -> None:
        recorder, lane, kind = self._recorder, self._lane, payload.get("type")
        if kind == "token_count":
            self._tokens.count(payload, self.id, source, at=at, model=self._model)
        elif kind == "user_message":
            self._typed(string(payload.get("message")), source, at)
        elif kind == "agent_message":
            self._say(string(payload.get("message")), 0, source, at)
        elif kind == "patch_apply_end":
            self._patched(payload, source, at)
        elif kind == "exec_command_end":
            recorder.failed(string(payload.get("call_id")), failed=payload.get("exit_code") != 0)
        elif kind == "thread_name_updated":
            self.name = named(payload.get("thread_name")) or self.name
        elif kind == "collab_agent_spawn_end":
            self._spawn(payload.get("new_thread_id"), payload.get("call_id"))
        elif kind == "sub_agent_activity":
            self._spawn(payload.get("agent_thread_id"), None)
        elif kind in ("error", "turn_aborted"):
            text = string(payload.get("message") or payload.get("reason"))
            recorder.event("notice", source, lane=lane, at=at, text=text)
        elif kind == "item_completed":
            item = mapping(payload.get("item"))
            if item.get("type") == "UserMessage":
                self._typed(block_text(item.get("content")), source, at)
            elif item.get("type") == "AgentMessage":
                self._say(block_text(item.get("content")), 0, source, at)
            elif item.get("type") == "FileChange":
                self._patched(
                    {"call_id": item.get("id"), "success": item.get("status") != "failed", **item}, source, at
                )

    def _typed(self, said: str, source: Place, at: Any) -> None:
        if text := typed(said):
            self._prompt(text, 0, source, at)

    def _prompt(self, text: str, stream: int, source: Place, at: Any) -> None:
        if self._prompts.is_new(text, stream):
            kind: EventKind = "prompt" if self._lane == MAIN_LANE else "context"
            self._recorder.event(kind, source, lane=self._lane, at=at, text=text)

    def _say(self, text: str, stream: int, source: Place, at: Any) -> None:
        if text and self._replies.is_new(text, stream):
            self._recorder.event("reply", source, lane=self._lane, at=at, text=text)

    def _item(self, item: dict[str, Any], source: Place, at: Any) -> None:
        recorder, lane = self._recorder, self._lane
        kind = string(item.get("type")) or "message"
        if kind == "message":
            text = block_text(item.get("content"))
            if item.get("role") == "assistant":
                self._say(text, 1, source, at)
            elif item.get("role") == "user" and (prompt := typed(text)):
                self._prompt(prompt, 1, source, at)
            elif text:
                recorder.event("context", source, lane=lane, at=at, text=text)
        elif kind == "reasoning":
            recorder.event("reasoning", source, lane=lane, at=at, text=block_text(item.get("summary")))
        elif kind in _CALLS:
            self._call(item, kind, source, at)
        elif kind in _RESULTS:
            self._result(item, source, at)

    def _call(self, item: dict[str, Any], kind: str, source: Place, at: Any) -> None:
        id = named(item.get("call_id")) or named(item.get("id")) or f"{self.id}:{source.offset}"
        name = named(item.get("name")) or named(mapping(item.get("function")).get("name")) or kind.removesuffix("_call")
        given = next((item[key] for key in ("arguments", "input", "action") if item.get(key) is not None), "")
        tell_call(self._recorder, id, name, given, source, lane=self._lane, at=at)

    def _result(self, item: dict[str, Any], source: Place, at: Any) -> None:
        id = string(item.get("call_id"))
        output = item.get("output") if "output" in item else item.get("result")
        text, ok = _outcome(output)
        self._recorder.result(id, source, ok=ok, lane=self._lane, at=at, text=text)
        if "agent_id" in text:
            try:
                self._spawn(mapping(parse(text.encode())).get("agent_id"), id)
            except ValueError:
                return

    def _spawn(self, thread: object, call: object) -> None:
        if id := named(thread):
            self.spawned[id] = self.spawned.get(id) or named(call)

    def _patched(self, payload: dict[str, Any], source: Place, at: Any) -> None:
        id = string(payload.get("call_id"))
        if payload.get("success") is False:
            self._recorder.failed(id, failed=True)
            return
        changes = payload.get("changes")
        listed = [(string(mapping(change).get("path")), mapping(change)) for change in items(changes)]
        named_ = [(path, mapping(change)) for path, change in mapping(changes).items()]
        if listed or named_:
            self._recorder.forget_edits(id)
        for path, change in listed + named_:
            kind = change.get("type") or mapping(change.get("kind")).get("type") or change.get("kind")
            moved_to = named(change.get("move_path"))
            self._recorder.edit(
                path,
                source,
                action="move" if moved_to else _ACTIONS.get(string(kind), "update"),
                call_id=id or None,
                lane=self._lane,
                at=at,
                moved_to=moved_to,
            )


def _outcome(output: object) -> tuple[str, bool | None]:
    """A result's text, and whether it tells of success."""
    if isinstance(output, str) and output.startswith("{"):
        try:
            output = parse(output.encode("utf-8", "replace"))
        except ValueError:
            pass
    fields = mapping(output)
    text = output if isinstance(output, str) else block_text(output)
    text = text or string(fields.get("output")) or string(fields.get("content")) or string(fields.get("text"))
    if not text and fields:
        text = json.dumps(fields, ensure_ascii=False)
    code = mapping(fields.get("metadata")).get("exit_code", fields.get("exitCode"))
    if isinstance(code, int):
        return text, code == 0
    if isinstance(fields.get("success"), bool):
        return text, fields["success"]
    begins = text[:512]
    told = _EXIT.search(begins) if "code" in begins else None  # which is quicker to tell
    return text, told is None or told[1] == "0"
