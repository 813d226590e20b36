"""GitHub Copilot CLI: a file of events a session, in a directory of its own since 1.0."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.protocol.signal import CancelSignal
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, parent, stem
from workbench.transcripts.homes import join
from workbench.transcripts.messages import as_written, tell_call, tell_user
from workbench.transcripts.models import CAPABILITIES, MAIN_LANE, Capability, Lane, Place, SessionListFailure
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import END_BYTES, Ends
from workbench.transcripts.values import block_text, count, items, mapping, moment, named, string

_NAME = re.compile(rb"^(?:name|summary):[ \t]*(.+?)[ \t]*$", re.MULTILINE)
_EVENTS = "events.jsonl"


class CopilotCli(FileAdapter):
    """Sessions of Copilot CLI, under `session-state`."""

    agent = "copilot-cli"
    display_name = "GitHub Copilot CLI"
    capabilities: ClassVar[tuple[Capability, ...]] = tuple(name for name in CAPABILITIES if name != "costs")
    directory = "session-state"

    def is_session(self, path: str, root: str) -> bool:
        """`<id>/events.jsonl`, or the older `<id>.jsonl`."""
        inside = path[len(root) :].strip("/").split("/")
        return inside[-1].endswith(".jsonl") and (len(inside) == 1 or (len(inside) == 2 and inside[1] == _EVENTS))

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """As its base; of a session in both forms the one in a directory."""
        found: list[SessionFile] = []
        async for item in super().files(platform, root, signal):
            if isinstance(item, SessionListFailure):
                yield item
            else:
                found.append(item)
        paths = {file.path for file in found}
        for file in found:
            if join(file.path.removesuffix(".jsonl"), _EVENTS) not in paths:
                yield file

    def looks_right(self, ends: Ends) -> bool:
        """Its first event."""
        return any(
            record.get("type") == "session.start" and isinstance(record.get("data"), dict) for record in ends.head[:3]
        )

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From its first event, the resumed ones, and its first prompt."""
        facts = HeadFacts(session_id=_id(file.path))
        for record in ends.records:
            data = mapping(record.get("data"))
            facts.seen(moment(record.get("timestamp")))
            if record.get("type") in ("session.start", "session.resume"):
                facts.session_id = named(data.get("sessionId")) or facts.session_id
                facts.cwd = facts.cwd or named(mapping(data.get("context")).get("cwd"))
            elif record.get("type") == "user.message" and facts.first_prompt is None:
                facts.first_prompt = as_written(string(data.get("content"))) or None
        facts.title = await _title(platform, file.path)
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """All events; usage is told once a run, where a run ended, and else only for what was written."""
        recorder = reading.recorder
        recorder.session_id = _id(path)
        recorder.title = await _title(reading.platform, path)
        pending: dict[str, tuple[Usage, Place, Any, str | None]] = {}
        async for record in reading.records(path):
            self._event(reading, record.value, record.source, pending)
        for id, (usage, source, at, model) in pending.items():
            recorder.request(id, source, at=at, model=model, usage=usage)

    def _event(
        self,
        reading: Reading,
        event: dict[str, Any],
        source: Place,
        pending: dict[str, tuple[Usage, Place, Any, str | None]],
    ) -> None:
        recorder = reading.recorder
        kind, data, at = string(event.get("type")), mapping(event.get("data")), moment(event.get("timestamp"))
        lane = named(data.get("parentToolCallId")) or MAIN_LANE
        if lane != MAIN_LANE and lane not in recorder.lanes:
            recorder.lane(Lane(id=lane, parent=MAIN_LANE, call_id=lane))
        recorder.seen(at)
        match kind:
            case "session.start" | "session.resume":
                about = mapping(data.get("context"))
                recorder.session_id = named(data.get("sessionId")) or recorder.session_id
                recorder.cwd = recorder.cwd or named(about.get("cwd"))
                recorder.branch = recorder.branch or named(about.get("branch"))
            case "user.message":
                tell_user(recorder, string(data.get("content")), source, lane=lane, at=at)
            case "assistant.message":
                self._reply(reading, data, source, lane, at, pending)
            case "assistant.reasoning":
                recorder.event("reasoning", source, lane=lane, at=at, text=string(data.get("content")))
            case "tool.execution_start":
                id = named(data.get("toolCallId")) or str(source.offset)
                if not recorder.knows_call(id):
                    name = string(data.get("toolName"))
                    tell_call(recorder, id, name, data.get("arguments"), source, lane=lane, at=at)
            case "tool.execution_complete":
                result = data.get("result")
                text = string(mapping(result).get("content")) or string(result) or block_text(result)
                ok = data.get("success") is not False
                recorder.result(string(data.get("toolCallId")), source, ok=ok, lane=lane, at=at, text=text)
            case "subagent.started":
                if id := string(data.get("toolCallId")):
                    recorder.lane(Lane(id=id, parent=MAIN_LANE, call_id=id, name=named(data.get("agentName"))))
            case "session.truncation" | "session.compaction_complete":
                recorder.compaction(source, lane=lane, at=at, trigger=named(data.get("performedBy")))
            case "session.error" | "abort":
                recorder.event(
                    "notice", source, lane=lane, at=at, text=string(data.get("message") or data.get("reason"))
                )
            case "session.shutdown":
                self._shutdown(reading, event, data, source, pending)

    def _reply(
        self,
        reading: Reading,
        data: dict[str, Any],
        source: Place,
        lane: str,
        at: Any,
        pending: dict[str, tuple[Usage, Place, Any, str | None]],
    ) -> None:
        recorder = reading.recorder
        if text := string(data.get("reasoningText")):
            recorder.event("reasoning", source, lane=lane, at=at, text=text)
        if text := string(data.get("content")):
            recorder.event("reply", source, lane=lane, at=at, text=text)
        for number, call in enumerate(map(mapping, items(data.get("toolRequests")))):
            id = named(call.get("toolCallId")) or f"{source.offset}-{number}"
            arguments = call.get("arguments")
            if isinstance(arguments, str) and arguments.startswith("{"):
                try:
                    arguments = json.loads(arguments)
                except (ValueError, RecursionError):
                    pass
            tell_call(recorder, id, string(call.get("name")), arguments, source, lane=lane, at=at)
        if written := count(data.get("outputTokens")):
            id = f"{recorder.session_id}:{named(data.get('messageId')) or source.offset}"
            pending[id] = (Usage(output_tokens=written), source, at, named(data.get("model")))

    def _shutdown(
        self,
        reading: Reading,
        event: dict[str, Any],
        data: dict[str, Any],
        source: Place,
        pending: dict[str, tuple[Usage, Place, Any, str | None]],
    ) -> None:
        """The usage of one run, by model, instead of what its messages told."""
        at = moment(event.get("timestamp"))
        for model, metrics in mapping(data.get("modelMetrics")).items():
            used = mapping(mapping(metrics).get("usage"))
            if not used:
                continue
            pending.clear()
            usage = Usage(
                input_tokens=count(used.get("inputTokens")),
                output_tokens=count(used.get("outputTokens")),
                cache_read_tokens=count(used.get("cacheReadTokens")),
                cache_write_tokens=count(used.get("cacheWriteTokens")),
            )
            id = f"{reading.recorder.session_id}:{named(event.get('id')) or source.offset}:{model}"
            reading.recorder.request(id, source, at=at, model=model, usage=usage)


def _id(path: str) -> str:
    return parent(path).rpartition("/")[2] if path.endswith(f"/{_EVENTS}") else stem(path)


async def _title(platform: SessionPlatform, path: str) -> str | None:
    if not path.endswith(f"/{_EVENTS}"):
        return None
    try:
        data = await platform.fs.read(join(parent(path), "workspace.yaml"), length=END_BYTES)
    except OSError:
        return None
    found = _NAME.search(data)
    return None if found is None else found[1].decode("utf-8", "replace").strip("'\" ") or None
