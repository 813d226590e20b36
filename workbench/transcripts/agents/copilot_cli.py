"""GitHub Copilot CLI: a file of events a session, in a directory of its own since 1.0."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
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


@dataclass(slots=True)
class _Run:
    """What a run used: `written` is what its messages tell, until something else does; `is_told` of each response."""

    written: dict[str, tuple[Usage, Place, Any, str | None]] = field(default_factory=dict)
    is_told: bool = False


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
        """All events; usage is told of each response, before that once a run, where it ended, else only what was written."""
        recorder = reading.recorder
        recorder.session_id = _id(path)
        recorder.title = await _title(reading.platform, path)
        run = _Run()
        async for record in reading.records(path):
            self._event(reading, record.value, record.source, run)
        for id, (usage, source, at, model) in run.written.items():
            recorder.request(id, source, at=at, model=model, usage=usage)

    def _event(
        self,
        reading: Reading,
        event: dict[str, Any],
        source: Place,
        run: _Run,
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
                self._reply(reading, data, source, lane, at, run)
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
                ok = ok and mapping(data.get("shellExecution")).get("exitCode") in (0, None)
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
            case "session.usage_record":
                self._response(reading, event, mapping(data.get("usage")), source, lane, run)
            case "session.shutdown":
                self._shutdown(reading, event, data, source, run)

    def _reply(
        self,
        reading: Reading,
        data: dict[str, Any],
        source: Place,
        lane: str,
        at: Any,
        run: _Run,
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
        if not run.is_told and (written := count(data.get("outputTokens"))):
            id = f"{recorder.session_id}:{named(data.get('messageId')) or source.offset}"
            run.written[id] = (Usage(output_tokens=written), source, at, named(data.get("model")))

    def _response(
        self,
        reading: Reading,
        event: dict[str, Any],
        used: dict[str, Any],
        source: Place,
        lane: str,
        run: _Run,
    ) -> None:
        recorder, about = reading.recorder, mapping(used.get("accounting"))
        run.is_told = True
        run.written.clear()
        id = named(about.get("usageId")) or named(event.get("id")) or str(source.offset)
        id = f"{named(about.get('sourceSessionId')) or recorder.session_id}:{id}"
        at, model = moment(event.get("timestamp")), named(used.get("model"))
        recorder.request(id, source, lane=lane, at=at, model=model, usage=_usage(used))

    def _shutdown(
        self,
        reading: Reading,
        event: dict[str, Any],
        data: dict[str, Any],
        source: Place,
        run: _Run,
    ) -> None:
        """The usage of one run, by model, instead of what its messages told.

        Where each response is told of, this is that of all runs so far.
        """
        if run.is_told:
            run.is_told = False
            return
        at = moment(event.get("timestamp"))
        for model, metrics in mapping(data.get("modelMetrics")).items():
            used = mapping(mapping(metrics).get("usage"))
            if not used:
                continue
            run.written.clear()
            id = f"{reading.recorder.session_id}:{named(event.get('id')) or source.offset}:{model}"
            reading.recorder.request(id, source, at=at, model=model, usage=_usage(used))


def _usage(used: dict[str, Any]) -> Usage:
    return Usage(
        input_tokens=count(used.get("inputTokens")),
        output_tokens=count(used.get("outputTokens")),
        reasoning_tokens=count(used.get("reasoningTokens")),
        cache_read_tokens=count(used.get("cacheReadTokens")),
        cache_write_tokens=count(used.get("cacheWriteTokens")),
    )


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
