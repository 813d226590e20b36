"""Cline, Roo Code and Kilo Code: a directory a task in an editor's storage, and what Cline's command line keeps."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from typing import Any, ClassVar

from workbench.protocol.messages import Usage
from workbench.protocol.signal import CancelSignal
from workbench.transcripts.files import DocumentAdapter, HeadFacts, Reading, SessionFile, parent
from workbench.transcripts.homes import AgentHome, join
from workbench.transcripts.messages import tell_call, tell_message
from workbench.transcripts.models import CAPABILITIES, Capability, DocumentPointer, SessionListFailure
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import END_BYTES, Ends, small_document
from workbench.transcripts.values import block_text, count, items, mapping, moment, money, named, parse, string

_SHOWN, _SENT, _MESSAGES = (
    "ui_messages.json",
    ("api_conversation_history.json", "claude_messages.json"),
    ".messages.json",
)
_ENVIRONMENT = re.compile(r"<environment_details>.*?(</environment_details>|$)", re.DOTALL)
_TASK = re.compile(r"<(task|user_message|user_input|feedback)(?: [^>]*)?>(.*?)</\1>", re.DOTALL)
_DIRECTORY = re.compile(rb"Current (?:Working|Workspace) Directory \(([^)\"\\]+)\)")
_FAILED = ("error", "api_req_failed", "diff_error", "mistake_limit_reached")


def typed(text: str) -> str:
    """What of a user message's text a person typed."""
    text = _ENVIRONMENT.sub("", text)
    if found := _TASK.search(text):
        return found[2].strip()
    text = text.strip("\ufeff \t\r\n")
    return "" if text.startswith(("[", "<")) else text


class _Tasks(DocumentAdapter):
    """Tasks of one extension."""

    capabilities: ClassVar[tuple[Capability, ...]] = tuple(name for name in CAPABILITIES if name != "lanes")
    extension: ClassVar[str]

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """The extension's storage in each editor."""
        return tuple(join(path, "globalStorage", self.extension, "tasks") for path in home.paths)

    def is_session(self, path: str, root: str) -> bool:
        """What was shown of a task, or what was sent, or the messages that the command line keeps."""
        inside = path[len(root) :].strip("/").split("/")
        return len(inside) == 2 and (inside[1] in (_SHOWN, *_SENT) or inside[1].endswith(_MESSAGES))

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """As its base; one file of each task, preferring what was shown."""
        chosen: dict[str, SessionFile] = {}
        async for item in super().files(platform, root, signal):
            if isinstance(item, SessionListFailure):
                yield item
            elif parent(item.path) not in chosen or item.path.endswith(_SHOWN):
                chosen[parent(item.path)] = item
        for file in chosen.values():
            yield file

    def looks_right(self, ends: Ends) -> bool:
        """What was shown, or what was sent, or a command line's session."""
        if isinstance(ends.value, dict):
            return {"sessionId", "messages", "agent"} <= ends.value.keys()
        first = mapping(next(iter(items(ends.value)), None))
        return ("ts" in first and ("say" in first or "ask" in first)) or (
            first.get("role") == "user" and "<environment_details>" in block_text(first.get("content"))
        )

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """From what was shown first, and from the records beside it."""
        folder = parent(file.path)
        facts = HeadFacts(session_id=folder.rpartition("/")[2])
        document = mapping(ends.value)
        for number, message in enumerate(map(mapping, items(document.get("messages") if document else ends.value))):
            facts.seen(moment(message.get("ts")))
            facts.first_prompt = facts.first_prompt or _prompt(message, first=number == 0) or None
        facts.cwd, facts.title = await _about(platform, file.path)
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """The task's messages."""
        recorder = reading.recorder
        recorder.session_id = parent(path).rpartition("/")[2]
        recorder.cwd, recorder.title = await _about(reading.platform, path)
        value = await reading.document(path)
        inside = "/messages" if isinstance(value, dict) else ""
        for number, message in enumerate(map(mapping, items(mapping(value).get("messages") if inside else value))):
            source = DocumentPointer(path=path, pointer=f"{inside}/{number}")
            if "role" in message:
                self._sent(reading, message, source, number)
            elif message.get("partial") is not True:
                self._shown(reading, message, source, number)

    def _sent(self, reading: Reading, message: dict[str, Any], source: DocumentPointer, number: int) -> None:
        recorder, at = reading.recorder, moment(message.get("ts"))
        key = named(message.get("id")) or f"message-{number}"
        content = message.get("content")
        if isinstance(content, list):
            content = [_with_text(block) for block in content]
        tell_message(recorder, message.get("role"), content, source, key=key, at=at, typed=typed)
        used = message.get("metrics")
        if isinstance(used, dict):
            usage = Usage(
                input_tokens=count(used.get("inputTokens")),
                output_tokens=count(used.get("outputTokens")),
                cache_read_tokens=count(used.get("cacheReadTokens")),
                cache_write_tokens=count(used.get("cacheWriteTokens")),
                cost_usd=money(used.get("cost")),
            )
            model = named(mapping(message.get("modelInfo")).get("id"))
            recorder.request(key, source, at=at, model=model, usage=usage)

    def _shown(self, reading: Reading, message: dict[str, Any], source: DocumentPointer, number: int) -> None:
        recorder, at = reading.recorder, moment(message.get("ts"))
        kind, text = message.get("say") or message.get("ask"), string(message.get("text"))
        key = f"{recorder.session_id}:{message.get('ts')}:{number}"
        if prompt := _prompt(message, first=number == 0):
            recorder.event("prompt", source, at=at, text=prompt)
        elif kind in ("text", "completion_result") and message.get("type") == "say" and text:
            recorder.event("reply", source, at=at, text=text)
        elif kind == "reasoning":
            recorder.event("reasoning", source, at=at, text=text or string(message.get("reasoning")))
        elif kind == "tool":
            about = _parsed(text)
            tell_call(recorder, key, string(about.get("tool")), about, source, at=at)
        elif kind in ("command", "use_mcp_server", "browser_action_launch"):
            tell_call(recorder, key, string(kind), text, source, at=at)
        elif kind == "condense_context":
            recorder.compaction(source, at=at)
        elif kind in _FAILED:
            recorder.event("notice", source, at=at, text=text)
        elif kind in ("api_req_started", "deleted_api_reqs"):
            self._request(reading, _parsed(text), source, key, at)

    def _request(self, reading: Reading, told: dict[str, Any], source: DocumentPointer, key: str, at: Any) -> None:
        if "tokensIn" not in told and "tokensOut" not in told:
            return
        read, written = count(told.get("cacheReads")), count(told.get("cacheWrites"))
        usage = Usage(
            input_tokens=count(told.get("tokensIn")) + read + written,
            output_tokens=count(told.get("tokensOut")),
            cache_read_tokens=read,
            cache_write_tokens=written,
            cost_usd=money(told.get("cost")),
        )
        reading.recorder.request(key, source, at=at, model=named(told.get("model")), usage=usage)


class Cline(_Tasks):
    """Tasks of Cline, and sessions of its command line."""

    agent = "cline"
    display_name = "Cline"
    extension = "saoudrizwan.claude-dev"

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """Also where the command line keeps its own."""
        return (*super().roots(home), *(join(path, name) for path in home.paths for name in ("tasks", "sessions")))


class RooCode(_Tasks):
    """Tasks of Roo Code."""

    agent = "roo-code"
    display_name = "Roo Code"
    extension = "rooveterinaryinc.roo-cline"


class KiloCode(_Tasks):
    """Tasks of Kilo Code, the extension."""

    agent = "kilo-code"
    display_name = "Kilo Code"
    extension = "kilocode.kilo-code"


def _with_text(block: object) -> object:
    """A result as it has one text; the command line keeps one for each thing that a call did."""
    parts = [mapping(part) for part in items(mapping(block).get("content"))]
    if mapping(block).get("type") != "tool_result" or not parts or not all("result" in part for part in parts):
        return block
    text = "\n".join(block_text(part["result"]) for part in parts)
    failed = any(part.get("success") is False for part in parts)
    return {**mapping(block), "content": text, "is_error": mapping(block).get("is_error") or failed}


def _prompt(message: dict[str, Any], *, first: bool) -> str:
    """What a message shows that a person typed: the task, an answer, or a message that was sent."""
    if "role" in message:
        return typed(block_text(message.get("content"), "text")) if message["role"] == "user" else ""
    if message.get("say") in ("task", "user_feedback") or (first and message.get("say") == "text"):
        return string(message.get("text")).strip()
    return ""


async def _about(platform: SessionPlatform, path: str) -> tuple[str | None, str | None]:
    """A task's directory and title, from the records beside it."""
    folder = parent(path)
    if path.endswith(_MESSAGES):
        about = await small_document(platform, f"{path.removesuffix(_MESSAGES)}.json")
        title = named(mapping(about.get("metadata")).get("title"))
        return named(about.get("cwd")) or named(about.get("workspace_root")), title
    history = await small_document(platform, join(folder, "history_item.json"))
    if cwd := named(history.get("workspace")):
        return cwd, named(history.get("task"))
    for name in _SENT:
        try:
            data = await platform.fs.read(join(folder, name), length=END_BYTES)
        except OSError:
            continue
        if found := _DIRECTORY.search(data):
            return found[1].decode("utf-8", "replace"), named(history.get("task"))
    return None, named(history.get("task"))


def _parsed(text: str) -> dict[str, Any]:
    try:
        return mapping(parse(text.encode("utf-8", "replace")))
    except ValueError:
        return {}
