"""Amp: one JSON document a thread."""

from __future__ import annotations

from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from workbench.protocol.messages import Usage
from workbench.transcripts.files import DocumentAdapter, HeadFacts, Reading, SessionFile, stem
from workbench.transcripts.messages import as_written, tell_message
from workbench.transcripts.models import Capability, DocumentPointer
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends
from workbench.transcripts.values import block_text, count, items, mapping, moment, named


class Amp(DocumentAdapter):
    """Threads of Amp, under `threads`."""

    agent = "amp"
    display_name = "Amp"
    capabilities: ClassVar[tuple[Capability, ...]] = (
        "prompts",
        "replies",
        "reasoning",
        "tool_calls",
        "edits",
        "usage",
        "times",
    )
    directory = "threads"

    def is_session(self, path: str, root: str) -> bool:
        """`*.json`, right there."""
        return path.endswith(".json") and "/" not in path[len(root) :].strip("/")

    def looks_right(self, ends: Ends) -> bool:
        """The keys of a thread."""
        thread = mapping(ends.value)
        return {"id", "messages"} <= thread.keys() and (
            "v" in thread or "env" in thread or "agentMode" in thread or str(thread.get("id")).startswith("T-")
        )

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From the document's beginning."""
        thread = mapping(ends.value)
        facts = HeadFacts(session_id=named(thread.get("id")) or stem(file.path))
        facts.started_at = moment(thread.get("created"))
        facts.title = named(thread.get("title"))
        facts.cwd = _directory(thread)
        for message in map(mapping, items(thread.get("messages"))):
            facts.seen(_time(message))
            if message.get("role") == "user" and facts.first_prompt is None:
                facts.first_prompt = as_written(block_text(_content(message), "text")) or None
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """All messages; what the thread's ledger tells of usage goes before what its messages do."""
        recorder = reading.recorder
        thread = mapping(await reading.document(path))
        recorder.session_id = named(thread.get("id")) or stem(path)
        recorder.title, recorder.cwd = named(thread.get("title")), _directory(thread)
        recorder.seen(moment(thread.get("created")))
        told: dict[str, tuple[DocumentPointer, dict[str, Any]]] = {}
        for number, message in enumerate(map(mapping, items(thread.get("messages")))):
            source = DocumentPointer(path=path, pointer=f"/messages/{number}")
            key = f"{recorder.session_id}:{message.get('messageId', number)}"
            tell_message(recorder, message.get("role"), _content(message), source, key=key, at=_time(message))
            if isinstance(message.get("usage"), dict):
                told[str(message.get("messageId", number))] = source, message["usage"]
        events = items(mapping(thread.get("usageLedger")).get("events"))
        for number, event in enumerate(map(mapping, events)):
            tokens = mapping(event.get("tokens"))
            _, about = told.get(str(event.get("toMessageId")), (None, {}))
            source = DocumentPointer(path=path, pointer=f"/usageLedger/events/{number}")
            self._request(reading, str(event.get("id") or number), source, event, about, tokens)
        if not events:
            for message_id, (source, about) in told.items():
                tokens = {"input": about.get("inputTokens"), "output": about.get("outputTokens")}
                self._request(reading, message_id, source, about, about, tokens)

    def _request(
        self,
        reading: Reading,
        key: str,
        source: DocumentPointer,
        event: dict[str, Any],
        about: dict[str, Any],
        tokens: dict[str, Any],
    ) -> None:
        read, written = count(about.get("cacheReadInputTokens")), count(about.get("cacheCreationInputTokens"))
        usage = Usage(
            input_tokens=count(tokens.get("input")) + read + written,
            output_tokens=count(tokens.get("output")),
            cache_read_tokens=read,
            cache_write_tokens=written,
        )
        id = f"{reading.recorder.session_id}:{key}"
        at, model = moment(event.get("timestamp")), named(event.get("model"))
        reading.recorder.request(id, source, at=at, model=model, usage=usage)


def _content(message: dict[str, Any]) -> object:
    return message.get("content") if "content" in message else message.get("text")


def _time(message: dict[str, Any]) -> Any:
    sent, used = mapping(message.get("meta")).get("sentAt"), mapping(message.get("usage")).get("timestamp")
    return moment(sent) or moment(used) or moment(message.get("createdAt"))


def _directory(thread: dict[str, Any]) -> str | None:
    trees = items(mapping(mapping(thread.get("env")).get("initial")).get("trees"))
    return local_path(mapping(next(iter(trees), None)).get("uri"))


def local_path(uri: object) -> str | None:
    """The path that a `file:` address names, a path itself; None for anything else."""
    text = named(uri)
    if text is None or not text.startswith("file:"):
        return text
    try:
        return unquote(urlsplit(text).path) or None
    except ValueError:
        return None
