"""Droid: one file of JSON lines a session, and its settings with the session's totals beside it."""

from __future__ import annotations

import re
from typing import ClassVar

from workbench.protocol.messages import Usage
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, stem
from workbench.transcripts.messages import tell_message
from workbench.transcripts.models import Capability, DocumentPointer
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends, small_document
from workbench.transcripts.values import block_text, count, mapping, moment, named, string

_REMINDER = re.compile(r"\s*<system-reminder>.*?</system-reminder>", re.DOTALL)


def typed(text: str) -> str:
    """What of a user message's text a person typed."""
    while found := _REMINDER.match(text):
        text = text[found.end() :]
    return text.strip("\ufeff \t\r\n")


class Droid(FileAdapter):
    """Sessions of Droid, under `sessions`."""

    agent = "droid"
    display_name = "Droid"
    capabilities: ClassVar[tuple[Capability, ...]] = (
        "prompts",
        "replies",
        "reasoning",
        "tool_calls",
        "edits",
        "usage",
        "times",
        "compactions",
    )
    directory = "sessions"

    def is_session(self, path: str, root: str) -> bool:
        """`*.jsonl`, in a project's directory or not."""
        return path.endswith(".jsonl") and len(path[len(root) :].strip("/").split("/")) <= 2

    def looks_right(self, ends: Ends) -> bool:
        """Its first line."""
        return any(record.get("type") == "session_start" and "id" in record for record in ends.head[:3])

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From its first line, and its first prompt."""
        facts = HeadFacts(session_id=stem(file.path))
        for record in ends.records:
            facts.seen(moment(record.get("timestamp")))
            message = mapping(record.get("message"))
            if record.get("type") == "session_start":
                facts.session_id = named(record.get("id")) or facts.session_id
                facts.cwd = named(record.get("cwd"))
                facts.title = named(record.get("sessionTitle")) or named(record.get("title"))
            elif message.get("role") == "user" and facts.first_prompt is None:
                facts.first_prompt = typed(block_text(message.get("content"), "text")) or None
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """All messages, and the totals of the settings."""
        recorder = reading.recorder
        recorder.session_id = stem(path)
        async for record in reading.records(path):
            value, kind, at = record.value, record.value.get("type"), moment(record.value.get("timestamp"))
            recorder.seen(at)
            if kind == "session_start":
                recorder.session_id = named(value.get("id")) or recorder.session_id
                recorder.cwd = named(value.get("cwd"))
                recorder.title = named(value.get("sessionTitle")) or named(value.get("title"))
            elif kind == "message":
                message = mapping(value.get("message"))
                key = named(value.get("id")) or str(record.source.offset)
                tell_message(
                    recorder, message.get("role"), message.get("content"), record.source, key=key, at=at, typed=typed
                )
            elif kind == "compaction_state":
                recorder.compaction(record.source, at=at)
        await self._totals(reading, f"{path.removesuffix('.jsonl')}.settings.json")

    async def _totals(self, reading: Reading, path: str) -> None:
        settings = await small_document(reading.platform, path)
        used = mapping(settings.get("tokenUsage"))
        if not used:
            return
        read, written = count(used.get("cacheReadTokens")), count(used.get("cacheCreationTokens"))
        usage = Usage(
            input_tokens=count(used.get("inputTokens")) + read + written,
            output_tokens=count(used.get("outputTokens")),
            reasoning_tokens=count(used.get("thinkingTokens")),
            cache_read_tokens=read,
            cache_write_tokens=written,
        )
        reading.recorder.request(
            f"{reading.recorder.session_id}:total",
            DocumentPointer(path=path, pointer="/tokenUsage"),
            at=reading.recorder.last_active_at,
            model=string(settings.get("model")) or None,
            usage=usage,
        )
