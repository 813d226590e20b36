"""Workbench's own sessions: one JSON document each, in the state directory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.protocol.signal import CancelSignal
from workbench.transcripts.files import DocumentAdapter, HeadFacts, Reading, SessionFile, parent
from workbench.transcripts.homes import AgentHome, join
from workbench.transcripts.messages import as_written, tell_call
from workbench.transcripts.models import Capability, DocumentPointer, SessionListFailure
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends, walk
from workbench.transcripts.values import count, items, mapping, moment, money, named, string

_FILE = "session.json"


class Workbench(DocumentAdapter):
    """Sessions of workbench, of every workspace and of none."""

    agent = "workbench"
    display_name = "workbench"
    capabilities: ClassVar[tuple[Capability, ...]] = (
        "prompts",
        "replies",
        "tool_calls",
        "edits",
        "usage",
        "costs",
        "times",
    )

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """The state directory."""
        return home.paths

    def is_session(self, path: str, root: str) -> bool:
        """`sessions/<name>/session.json`."""
        inside = path[len(root) :].strip("/").split("/")
        return len(inside) >= 3 and inside[-1] == _FILE and inside[-3] == "sessions"

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """Those of the state directory itself and of each workspace; overlays, which can be huge, aren't looked into."""
        try:
            is_link = (await platform.fs.stat(join(root, "workspaces"))).is_link
            workspaces = () if is_link else await platform.fs.list(join(root, "workspaces"))
        except OSError:
            workspaces = ()
        names = [workspace.name for workspace in workspaces if not workspace.stat.is_link]
        for place in (root, *(join(root, "workspaces", name) for name in names)):
            for path, found in await walk(platform, join(place, "sessions"), depth=1, inside=1, signal=signal):
                if isinstance(found, OSError):
                    if not isinstance(found, FileNotFoundError | NotADirectoryError):
                        yield self._failure(path, found)
                elif self.is_session(path, root):
                    yield SessionFile(path, found.stat)

    def looks_right(self, ends: Ends) -> bool:
        """The fields of a stored session."""
        return {"id", "is_running", "message_count", "created_at"} <= mapping(ends.value).keys()

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From the document's beginning."""
        session = mapping(ends.value)
        facts = HeadFacts(session_id=named(session.get("id")) or _name(file.path))
        facts.title, facts.cwd = named(session.get("title")), named(session.get("workspace"))
        facts.seen(moment(session.get("created_at")))
        facts.seen(moment(session.get("updated_at")))
        for message in map(mapping, items(session.get("messages"))):
            if message.get("role") == "user" and facts.first_prompt is None:
                facts.first_prompt = as_written(string(message.get("content"))) or None
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """All messages, and the session's usage as a whole."""
        recorder = reading.recorder
        session = mapping(await reading.document(path))
        recorder.session_id = named(session.get("id")) or _name(path)
        recorder.title, recorder.cwd = named(session.get("title")), named(session.get("workspace"))
        recorder.seen(moment(session.get("created_at")))
        recorder.seen(moment(session.get("updated_at")))
        for field in ("messages", "pending"):
            for number, message in enumerate(map(mapping, items(session.get(field)))):
                self._message(reading, message, DocumentPointer(path=path, pointer=f"/{field}/{number}"))
        used = session.get("usage")
        if isinstance(used, dict):
            usage = Usage(
                input_tokens=count(used.get("input_tokens")),
                output_tokens=count(used.get("output_tokens")),
                reasoning_tokens=count(used.get("reasoning_tokens")),
                cache_read_tokens=count(used.get("cache_read_tokens")),
                cache_write_tokens=count(used.get("cache_write_tokens")),
                cost_usd=money(used.get("cost_usd")),
            )
            if not usage.is_empty:
                source = DocumentPointer(path=path, pointer="/usage")
                model = named(session.get("model"))
                at = recorder.last_active_at
                recorder.request(f"{recorder.session_id}:total", source, at=at, model=model, usage=usage)

    def _message(self, reading: Reading, message: dict[str, Any], source: DocumentPointer) -> None:
        recorder, at = reading.recorder, moment(message.get("created_at"))
        role, text = message.get("role"), string(message.get("content"))
        if role == "user":
            recorder.event("prompt", source, at=at, text=as_written(text))
        elif role == "system":
            recorder.event("context", source, at=at, text=text)
        elif role == "assistant" and text:
            recorder.event("reply", source, at=at, text=text)
        elif role == "tool":
            id = string(message.get("tool_call_id"))
            recorder.result(id, source, ok=message.get("is_error") is not True, at=at, text=text)
        for number, call in enumerate(map(mapping, items(message.get("tool_calls")))):
            id = named(call.get("id")) or f"{source.pointer}-{number}"
            given = call.get("arguments") if call.get("arguments") is not None else call.get("raw_arguments")
            tell_call(recorder, id, string(call.get("name")), given, source, at=at)


def _name(path: str) -> str:
    return parent(path).rpartition("/")[2]
