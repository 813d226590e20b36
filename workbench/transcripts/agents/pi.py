"""Pi, and what is made from it: one file of JSON lines a session, a tree of entries since its second version."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, UnknownGenerationError, stem
from workbench.transcripts.messages import as_written, tell_call, tell_message
from workbench.transcripts.models import Capability, Place
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends
from workbench.transcripts.recorder import Recorder
from workbench.transcripts.trees import Branches
from workbench.transcripts.values import block_text, count, mapping, moment, money, named, string

_NEWEST = 3


class Pi(FileAdapter):
    """Sessions of Pi, under `sessions/<directory>`."""

    agent = "pi"
    display_name = "Pi"
    capabilities: ClassVar[tuple[Capability, ...]] = (
        "prompts",
        "replies",
        "reasoning",
        "tool_calls",
        "edits",
        "usage",
        "costs",
        "times",
        "compactions",
    )
    directory = "sessions"
    usage_words = (b"usage", b"session")

    def is_session(self, path: str, root: str) -> bool:
        """`<directory>/*.jsonl`."""
        return path.endswith(".jsonl") and len(path[len(root) :].strip("/").split("/")) == 2

    def looks_right(self, ends: Ends) -> bool:
        """Its first line, or the second."""
        return any({"id", "cwd"} <= record.keys() and record.get("type") == "session" for record in ends.head[:2])

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From its first line, its last name, and its first prompt."""
        facts = HeadFacts(session_id=stem(file.path))
        for record in ends.records:
            facts.seen(moment(record.get("timestamp")))
            message = mapping(record.get("message"))
            if record.get("type") == "session":
                facts.session_id = named(record.get("id")) or facts.session_id
                facts.cwd = named(record.get("cwd")) or facts.cwd
            elif record.get("type") in ("session_info", "title"):
                facts.title = named(record.get("name") or record.get("title")) or facts.title
            elif message.get("role") == "user" and facts.first_prompt is None:
                facts.first_prompt = as_written(block_text(message.get("content"), "text")) or None
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """All entries; those off the branch that the session ended on are abandoned. Raises as its base."""
        recorder = reading.recorder
        recorder.session_id = stem(path)
        branches = Branches()
        unknown = ""
        async for batch in reading.batches(path):
            for record in batch:
                value, kind = record.value, record.value.get("type")
                at = moment(value.get("timestamp"))
                recorder.seen(at)
                if kind == "session":
                    if count(value.get("version")) > _NEWEST:
                        unknown = f"version {count(value['version'])}"
                    recorder.session_id = named(value.get("id")) or recorder.session_id
                    recorder.cwd = named(value.get("cwd")) or recorder.cwd
                    continue
                if id := string(value.get("id")):
                    branches.add(id, named(value.get("parentId")))
                    recorder.begin(id, anew=False)
                else:
                    recorder.end()
                if kind == "message":
                    _tell(recorder, value, mapping(value.get("message")), record.source, at)
                elif kind in ("session_info", "title"):
                    recorder.title = named(value.get("name") or value.get("title")) or recorder.title
                elif kind == "compaction":
                    recorder.compaction(record.source, at=at, tokens_before=count(value.get("tokensBefore")) or None)
        if unknown:
            raise UnknownGenerationError(unknown)
        recorder.abandon(branches.dead())


def _tell(
    recorder: Recorder, entry: dict[str, Any], message: dict[str, Any], source: Place, at: datetime | None
) -> None:
    role, content = message.get("role"), message.get("content")
    key = named(entry.get("id")) or str(source.offset)
    if role == "assistant":
        tell_message(recorder, role, content, source, key=key, at=at)
        used = message.get("usage")
        if isinstance(used, dict):
            _tell_usage(recorder, entry, message, used, source, at)
    elif role == "user":
        tell_message(recorder, role, content, source, key=key, at=at)
    elif role == "toolResult":
        text = block_text(content, "text") if recorder.keep else ""
        ok = message.get("isError") is not True
        recorder.result(string(message.get("toolCallId")), source, ok=ok, at=at, text=text)
    elif role == "bashExecution":
        tell_call(recorder, key, "bash", {"command": message.get("command")}, source, at=at)
        ok = message.get("exitCode") in (0, None)
        recorder.result(key, source, ok=ok, at=at, text=string(message.get("output")))
    if message.get("stopReason") == "error":
        recorder.event("notice", source, at=at, text=string(message.get("errorMessage")))


def _tell_usage(
    recorder: Recorder,
    entry: dict[str, Any],
    message: dict[str, Any],
    used: dict[str, Any],
    source: Place,
    at: datetime | None,
) -> None:
    read, written = count(used.get("cacheRead")), count(used.get("cacheWrite"))
    put, got = count(used.get("input")) + read + written, count(used.get("output"))
    if put or got:  # of a request that nobody answered all is 0
        usage = Usage(
            input_tokens=put,
            output_tokens=got,
            cache_read_tokens=read,
            cache_write_tokens=written,
            cost_usd=money(mapping(used.get("cost")).get("total")),
        )
        # A fork copies entries with their times; ids are short, and were none once.
        id = f"{entry.get('timestamp')}:{entry.get('id')}"
        recorder.request(id, source, at=at, model=named(message.get("model")), usage=usage)
