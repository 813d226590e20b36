"""Continue: one JSON document a session, and an index of all."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.transcripts.agents.amp import local_path
from workbench.transcripts.files import DocumentAdapter, HeadFacts, Reading, SessionFile, parent, stem
from workbench.transcripts.homes import join
from workbench.transcripts.messages import as_written, tell_call, tell_message
from workbench.transcripts.models import Capability, DocumentPointer
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import END_BYTES, Ends
from workbench.transcripts.values import (
    block_text,
    count,
    items,
    mapping,
    moment,
    money,
    named,
    parse_partial,
    string,
)

_INDEX = "sessions.json"
_FAILED = ("errored", "canceled", "cancelled")


class Continue(DocumentAdapter):
    """Sessions of Continue, under `sessions`."""

    agent = "continue"
    display_name = "Continue"
    capabilities: ClassVar[tuple[Capability, ...]] = (
        "prompts",
        "replies",
        "reasoning",
        "tool_calls",
        "edits",
        "usage",
        "costs",
        "times",
    )
    directory = "sessions"

    def is_session(self, path: str, root: str) -> bool:
        """`*.json`, right there, but for the index."""
        name = path[len(root) :].strip("/")
        return name.endswith(".json") and "/" not in name and name != _INDEX

    def looks_right(self, ends: Ends) -> bool:
        """The keys of a session."""
        return {"sessionId", "history"} <= mapping(ends.value).keys()

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From the document's beginning, and the index for its start."""
        session = mapping(ends.value)
        facts = HeadFacts(session_id=named(session.get("sessionId")) or stem(file.path))
        facts.title, facts.cwd = _title(session), local_path(session.get("workspaceDirectory"))
        facts.started_at = await _created(platform, file.path)
        for item in map(mapping, items(session.get("history"))):
            message = mapping(item.get("message"))
            if message.get("role") == "user" and facts.first_prompt is None:
                facts.first_prompt = as_written(block_text(message.get("content"), "text")) or None
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """All messages; usage is told of each, or of the session as a whole."""
        recorder = reading.recorder
        session = mapping(await reading.document(path))
        recorder.session_id = named(session.get("sessionId")) or stem(path)
        recorder.title, recorder.cwd = _title(session), local_path(session.get("workspaceDirectory"))
        recorder.seen(await _created(reading.platform, path))
        model = named(session.get("chatModelTitle"))
        counted = False
        for number, item in enumerate(map(mapping, items(session.get("history")))):
            source = DocumentPointer(path=path, pointer=f"/history/{number}")
            message = mapping(item.get("message"))
            key = f"{recorder.session_id}:{number}"
            self._message(reading, item, message, source, key)
            if isinstance(message.get("usage"), dict):
                counted = True
                used = message["usage"]
                recorder.request(key, source, model=named(used.get("model")) or model, usage=_usage(used))
        whole = session.get("usage")
        if isinstance(whole, dict) and whole and not counted:
            source = DocumentPointer(path=path, pointer="/usage")
            recorder.request(f"{recorder.session_id}:total", source, model=model, usage=_usage(whole))

    def _message(
        self, reading: Reading, item: dict[str, Any], message: dict[str, Any], source: DocumentPointer, key: str
    ) -> None:
        recorder = reading.recorder
        if text := string(mapping(item.get("reasoning")).get("text")):
            recorder.event("reasoning", source, text=text)
        if message.get("role") == "thinking":
            recorder.event("reasoning", source, text=block_text(message.get("content")))
            return
        tell_message(recorder, message.get("role"), message.get("content"), source, key=key)
        if named(item.get("conversationSummary")):
            recorder.compaction(source)
        states = {string(state.get("toolCallId")): state for state in map(mapping, items(item.get("toolCallStates")))}
        for number, call in enumerate(map(mapping, items(message.get("toolCalls")))):
            function = mapping(call.get("function"))
            id = named(call.get("id")) or f"{key}-{number}"
            tell_call(recorder, id, string(function.get("name")), function.get("arguments"), source)
            state = states.get(id, {})
            status = state.get("status")
            if status == "done" or status in _FAILED:
                outputs = [string(mapping(output).get("content")) for output in items(state.get("output"))]
                recorder.result(id, source, ok=status == "done", text="\n".join(outputs))
        if message.get("role") == "tool":
            id = string(message.get("toolCallId"))
            recorder.result(id, source, ok=True, text=block_text(message.get("content")))


def _title(session: dict[str, Any]) -> str | None:
    title = named(session.get("title"))
    return None if title in ("New Session", "Untitled Session") else title


def _usage(used: dict[str, Any]) -> Usage:
    """A session's as Continue counts it, a message's as the provider told it."""
    if "prompt_tokens" in used:
        details, written = mapping(used.get("prompt_tokens_details")), mapping(used.get("completion_tokens_details"))
        cents = money(used.get("cost_cents"))
        return Usage(
            input_tokens=count(used.get("prompt_tokens")),
            output_tokens=count(used.get("completion_tokens")),
            reasoning_tokens=count(written.get("reasoning_tokens")),
            cache_read_tokens=count(details.get("cached_tokens")),
            cache_write_tokens=count(details.get("cache_write_tokens")),
            # It's 0 for a model whose price isn't known.
            cost_usd=cents / 100 if cents else None,
        )
    details = mapping(used.get("promptTokensDetails"))
    return Usage(
        input_tokens=count(used.get("promptTokens")),
        output_tokens=count(used.get("completionTokens")),
        cache_read_tokens=count(details.get("cachedTokens")),
        cache_write_tokens=count(details.get("cacheWriteTokens")),
        cost_usd=money(used.get("totalCost")),
    )


async def _created(platform: SessionPlatform, path: str) -> datetime | None:
    """When the index says that a session was made."""
    try:
        data = await platform.fs.read(join(parent(path), _INDEX), length=END_BYTES)
    except OSError:
        return None
    for entry in map(mapping, items(parse_partial(data))):
        if entry.get("sessionId") == stem(path):
            return moment(entry.get("dateCreated"))
    return None
