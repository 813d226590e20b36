"""Qwen Code: one file of JSON lines a session, a tree of records of which one branch is the conversation."""

from __future__ import annotations

from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, stem
from workbench.transcripts.messages import tell_call, tell_user
from workbench.transcripts.models import MAIN_LANE, Capability, Lane, Place
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends
from workbench.transcripts.trees import Branches
from workbench.transcripts.values import block_text, count, items, mapping, moment, named, string

_INJECTED = ("goal_runtime", "cron", "notification")
_NO_LEAF = ("session_artifact_snapshot",)


def _typed(record: dict[str, Any]) -> str:
    """What a person typed, where a record is a prompt."""
    if record.get("type") != "user" or record.get("subtype") in _INJECTED:
        return ""
    shown = named(mapping(record.get("systemPayload")).get("displayText"))
    return (shown or block_text(mapping(record.get("message")).get("parts"))).strip("\ufeff \t\r\n")


class QwenCode(FileAdapter):
    """Sessions of Qwen Code, under `projects/<directory>/chats`."""

    agent = "qwen-code"
    display_name = "Qwen Code"
    capabilities: ClassVar[tuple[Capability, ...]] = (
        "prompts",
        "replies",
        "reasoning",
        "tool_calls",
        "edits",
        "usage",
        "times",
        "lanes",
        "compactions",
    )
    directory = "projects"

    def is_session(self, path: str, root: str) -> bool:
        """`<directory>/chats/*.jsonl`, archived ones too."""
        inside = path[len(root) :].strip("/").split("/")
        return path.endswith(".jsonl") and (
            (len(inside) == 3 and inside[1] == "chats") or (len(inside) == 4 and inside[1:3] == ["chats", "archive"])
        )

    def looks_right(self, ends: Ends) -> bool:
        """Records of a tree whose messages have parts, or its system records."""
        for record in ends.head[:5]:
            if {"uuid", "sessionId", "type"} <= record.keys() and "payload" not in record:
                message = mapping(record.get("message"))
                return "parts" in message or ("systemPayload" in record and "content" not in message)
        return False

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """The last title, and the first prompt that a person typed."""
        facts = HeadFacts(session_id=stem(file.path))
        for record in ends.records:
            facts.seen(moment(record.get("timestamp")))
            facts.cwd = facts.cwd or named(record.get("cwd"))
            facts.title = _title(record) or facts.title
            facts.first_prompt = facts.first_prompt or _typed(record) or None
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """All records; those off the branch that the session ended on are abandoned."""
        recorder = reading.recorder
        recorder.session_id = stem(path)
        branches = Branches()
        titles: dict[str, str] = {}
        async for record in reading.records(path):
            value = record.value
            uuid = string(value.get("uuid"))
            branches.add(uuid, named(value.get("parentUuid")), leaf=value.get("subtype") not in _NO_LEAF)
            recorder.seen(moment(value.get("timestamp")))
            recorder.cwd = recorder.cwd or named(value.get("cwd"))
            recorder.branch = recorder.branch or named(value.get("gitBranch"))
            if title := _title(value):
                titles[uuid] = title
            recorder.begin(uuid or str(record.source), anew=False)
            self._record(reading, value, record.source)
        dead = branches.dead()
        recorder.abandon(dead)
        recorder.title = next((title for uuid, title in reversed(titles.items()) if uuid not in dead), None)

    def _record(self, reading: Reading, record: dict[str, Any], source: Place) -> None:
        recorder = reading.recorder
        kind, at = record.get("type"), moment(record.get("timestamp"))
        parts = [mapping(part) for part in items(mapping(record.get("message")).get("parts"))]
        if kind == "user":
            if text := _typed(record):
                recorder.event("prompt", source, at=at, text=text)
            else:
                tell_user(recorder, block_text(parts), source, at=at, typed=lambda text: "")
        elif kind == "assistant":
            self._reply(reading, record, parts, source)
        elif kind == "tool_result":
            outcome = mapping(record.get("toolCallResult"))
            for part in parts:
                answer = mapping(part.get("functionResponse"))
                response = mapping(answer.get("response"))
                id = named(answer.get("id")) or string(outcome.get("callId"))
                failed = "error" in response or outcome.get("status") in ("error", "cancelled")
                text = string(response.get("output") or response.get("error"))
                recorder.result(id, source, ok=not failed, at=at, text=text)
        elif record.get("subtype") == "chat_compression":
            recorder.compaction(source, at=at)
        elif record.get("subtype") == "ui_telemetry":
            self._aside(reading, record, source)

    def _aside(self, reading: Reading, record: dict[str, Any], source: Place) -> None:
        """A response that a subagent got, of which nothing but what it used is told here."""
        event = mapping(mapping(record.get("systemPayload")).get("uiEvent"))
        name = named(event.get("subagent_name"))
        lane = named(event.get("subagent_id")) or name
        if lane is None or event.get("event.name") != "qwen-code.api_response":
            return
        reading.recorder.lane(Lane(id=lane, parent=MAIN_LANE, name=name))
        usage = _usage(
            event.get("input_token_count"),
            event.get("output_token_count"),
            event.get("thoughts_token_count"),
            event.get("cached_content_token_count"),
            event.get("total_token_count"),
        )
        id, at = named(record.get("uuid")) or str(source.offset), moment(record.get("timestamp"))
        reading.recorder.request(id, source, lane=lane, at=at, model=named(event.get("model")), usage=usage)

    def _reply(self, reading: Reading, record: dict[str, Any], parts: list[dict[str, Any]], source: Place) -> None:
        recorder, at = reading.recorder, moment(record.get("timestamp"))
        uuid = named(record.get("uuid")) or str(source.offset)
        for number, part in enumerate(parts):
            if text := string(part.get("text")):
                recorder.event("reasoning" if part.get("thought") is True else "reply", source, at=at, text=text)
            if isinstance(part.get("functionCall"), dict):
                call = part["functionCall"]
                id = named(call.get("id")) or f"{uuid}-{number}"
                tell_call(recorder, id, string(call.get("name")), call.get("args"), source, at=at)
        used = record.get("usageMetadata")
        if isinstance(used, dict):
            usage = _usage(
                used.get("promptTokenCount"),
                used.get("candidatesTokenCount"),
                used.get("thoughtsTokenCount"),
                used.get("cachedContentTokenCount"),
                used.get("totalTokenCount"),
            )
            recorder.request(uuid, source, at=at, model=named(record.get("model")), usage=usage)


def _usage(prompt: object, candidates: object, thoughts: object, cached: object, total: object) -> Usage:
    # A provider of OpenAI's kind counts its thoughts among the candidates, Gemini beside them: the total tells.
    among = count(total) == count(prompt) + count(candidates)
    return Usage(
        input_tokens=count(prompt),
        output_tokens=count(candidates) + (0 if among else count(thoughts)),
        reasoning_tokens=count(thoughts),
        cache_read_tokens=count(cached),
    )


def _title(record: dict[str, Any]) -> str | None:
    about = mapping(record.get("systemPayload"))
    return named(about.get("customTitle")) if record.get("subtype") in ("custom_title", "auto_title") else None
