"""Claude Code: one JSONL file a session, subagents in files beside it (in it, before 2.0)."""

from __future__ import annotations

import re
from collections import deque
from datetime import datetime
from typing import Any

from workbench.protocol.messages import Usage
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, parent, stem
from workbench.transcripts.homes import AgentHome, join
from workbench.transcripts.messages import tell_call
from workbench.transcripts.models import CAPABILITIES, MAIN_LANE, Lane, Place
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Ends, small_document, walk
from workbench.transcripts.siblings import Siblings
from workbench.transcripts.values import block_text, count, items, mapping, moment, money, named, parse_partial, string

_TYPES = frozenset(
    (
        "user",
        "assistant",
        "system",
        "attachment",
        "progress",
        "summary",
        "custom-title",
        "ai-title",
        "agent-name",
        "last-prompt",
        "mode",
        "permission-mode",
        "queue-operation",
        "file-history-snapshot",
        "pr-link",
        "worktree-state",
    )
)
_NOT_TYPED = (
    "This session is being continued",
    "<local-command-",
    "[Request interrupted",
    "<task-notification>",
    "Stop hook feedback:",
    "<bash-input>",
    "<bash-stdout>",
    "<bash-stderr>",
    "Caveat: The messages below",
)
_ENVELOPE = re.compile(r"\s*<(system-reminder|ide_opened_file|ide_selection)>.*?</\1>", re.DOTALL)
_COMMAND = re.compile(r"<command-name>(.*?)</command-name>", re.DOTALL)
_ARGUMENTS = re.compile(r"<command-args>(.*?)</command-args>", re.DOTALL)
_RECENT = 1000


def typed(text: str) -> str:
    """What of a user message's text a person typed; "" where nothing is."""
    text = text.strip("\ufeff \t\r\n")
    while text.startswith("<") and (found := _ENVELOPE.match(text)):
        text = text[found.end() :].strip()
    if text.startswith(_NOT_TYPED):
        return ""
    if text.startswith("<command-") and (name := _COMMAND.search(text)):
        arguments = _ARGUMENTS.search(text)
        slash = name[1].strip()
        return f"{slash} {arguments[1]}".strip() if arguments else slash
    return text


class ClaudeCode(FileAdapter):
    """Sessions of Claude Code, under `projects/<encoded directory>/<uuid>.jsonl`."""

    agent = "claude-code"
    display_name = "Claude Code"
    capabilities = CAPABILITIES
    usage_words = (b"usage",)
    depth = 1  # what lies below the projects is no session by itself

    def __init__(self) -> None:
        self._beside = Siblings(_is_lane, _owner)

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """`projects` of each configuration directory; a home may also be named by that directory itself."""
        return tuple(path if stem(path) == "projects" else join(path, "projects") for path in home.paths)

    def is_session(self, path: str, root: str) -> bool:
        """Main transcripts, not those of subagents."""
        inside = path[len(root) :].strip("/").split("/")
        return len(inside) == 2 and inside[1].endswith(".jsonl") and not inside[1].startswith("agent-")

    def looks_right(self, ends: Ends) -> bool:
        """A record of a known type that belongs to a session, or a message in the API's form."""
        for record in ends.head[:5]:
            if string(record.get("type")) in _TYPES and "payload" not in record:
                message = mapping(record.get("message"))
                qwen = "parts" in message or "systemPayload" in record
                if "content" in message or (record.get("sessionId") and not qwen) or "leafUuid" in record:
                    return True
                if record.get("type") == "file-history-snapshot":
                    return True
        return False

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """Titles are appended late, so both ends are looked through; summaries of other sessions are passed over."""
        facts = HeadFacts(session_id=stem(file.path))
        titles = _Titles()
        slash: str | None = None
        for record in ends.records:
            facts.seen(moment(record.get("timestamp") or mapping(record.get("snapshot")).get("timestamp")))
            facts.cwd = facts.cwd or named(record.get("cwd"))
            titles.see(record)
            if facts.first_prompt is None and not record.get("isSidechain"):
                for text in _prompts(record):
                    if text.startswith("/"):
                        slash = slash or text
                    else:
                        facts.first_prompt = text
                        break
        facts.first_prompt = facts.first_prompt or slash
        facts.title = titles.best()
        return facts

    async def read(self, reading: Reading, path: str) -> None:
        """The main file, then those of its subagents."""
        pass_ = _Pass(reading, path, self._beside)
        await pass_.read_main()
        await pass_.read_lanes()


def _is_lane(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith("agent-") and name.endswith(".jsonl")


def _owner(data: bytes) -> str:
    """The session that a subagent's file belongs to: its first record says."""
    return string(mapping(parse_partial(data.partition(b"\n")[0])).get("sessionId"))


class _Titles:
    """The title that counts: the user's last one, else the last one that was made, else a summary of this session."""

    def __init__(self) -> None:
        self._custom: str | None = None
        self._made: str | None = None
        self._summaries: dict[str, str] = {}
        self._recent: deque[str] = deque(maxlen=_RECENT)
        self._own: str | None = None

    def see(self, record: dict[str, Any]) -> None:
        kind = record.get("type")
        if kind == "custom-title":
            self._custom = named(record.get("customTitle")) or self._custom
        elif kind == "ai-title":
            self._made = named(record.get("aiTitle")) or self._made
        elif kind == "summary":
            leaf = string(record.get("leafUuid"))
            self._summaries[leaf] = string(record.get("summary"))
            if leaf and leaf in self._recent:
                self._own = self._summaries[leaf] or self._own
        elif kind == "system" and "/rename" in string(record.get("content")):
            slash = typed(string(record.get("content")))
            if slash.startswith("/rename "):
                self._custom = slash.removeprefix("/rename ").strip() or self._custom
        uuid = string(record.get("uuid"))
        self._recent.append(uuid)
        if uuid and uuid in self._summaries:
            self._own = self._summaries[uuid] or self._own

    def best(self) -> str | None:
        return self._custom or self._made or self._own


def _prompts(record: dict[str, Any]) -> list[str]:
    """What a record shows that the user typed."""
    if record.get("type") == "attachment":
        attachment = mapping(record.get("attachment"))
        if attachment.get("type") != "queued_command":
            return []
        texts = [block_text(attachment.get("prompt"), "text")]
    elif record.get("type") != "user" or record.get("isMeta") or record.get("isCompactSummary"):
        return []
    else:
        content = mapping(record.get("message")).get("content")
        if isinstance(content, str):
            texts = [content]
        else:
            blocks = [mapping(block) for block in items(content)]
            texts = [string(block.get("text")) for block in blocks if block.get("type") == "text"]
    return [text for text in map(typed, texts) if text]


class _Pass:
    """One reading of a session's files."""

    def __init__(self, reading: Reading, path: str, beside: Siblings) -> None:
        self._reading = reading
        self._recorder = reading.recorder
        self._recorder.session_id = stem(path)
        self._path = path
        self._beside = beside
        self._agents: dict[str, str | None] = {}
        self._inline: dict[str, str] = {}
        self._titles = _Titles()

    async def read_main(self) -> None:
        async for batch in self._reading.batches(self._path):
            for record in batch:
                if not self._reading.only_usage:
                    self._titles.see(record.value)
                self._record(record.value, record.source, None)
        self._recorder.title = self._titles.best()

    async def read_lanes(self) -> None:
        """Files of the session's own directory, and, of the older form, those beside it that carry its id."""
        platform, folder = self._reading.platform, self._path.removesuffix(".jsonl")
        found: list[str] = []
        for path, entry in await walk(platform, join(folder, "subagents"), inside=2, signal=self._reading.signal):
            if not isinstance(entry, OSError) and _is_lane(path):
                found.append(path)
            elif isinstance(entry, OSError) and not isinstance(entry, FileNotFoundError | NotADirectoryError):
                raise entry
        inside = {stem(path) for path in found}
        beside = await self._beside.of(platform, parent(self._path), self._recorder.session_id)
        found.extend(path for path in beside if stem(path) not in inside)
        for path in found:
            agent = stem(path).removeprefix("agent-")
            about = await small_document(platform, f"{path.removesuffix('.jsonl')}.meta.json")
            kind = named(about.get("agentType"))
            self._recorder.lane(Lane(id=agent, parent=MAIN_LANE, call_id=self._agents.get(agent), name=kind, path=path))
            async for record in self._reading.records(path):
                self._record(record.value, record.source, agent)

    def _record(self, record: dict[str, Any], source: Place, lane: str | None) -> None:
        recorder = self._recorder
        kind = record.get("type")
        at = moment(record.get("timestamp"))
        message = mapping(record.get("message"))
        if "toolUseResult" in record or "data" in record:
            self._find_agents(record)
        lane = self._lane_of(record) if lane is None else lane
        if lane == MAIN_LANE:
            recorder.cwd = recorder.cwd or named(record.get("cwd"))
            recorder.branch = recorder.branch or named(record.get("gitBranch"))
        if at is not None:
            recorder.seen(at)
        if kind == "assistant" or (kind is None and message.get("role") == "assistant"):
            self._assistant(record, message, source, lane, at)
        elif kind == "user":
            self._user(record, message, source, lane, at)
        elif kind == "system":
            if record.get("subtype") == "compact_boundary":
                about = mapping(record.get("compactMetadata"))
                recorder.compaction(
                    source,
                    lane=lane,
                    at=at,
                    trigger=named(about.get("trigger")),
                    tokens_before=count(about.get("preTokens")) or None,
                )
            else:
                text = string(record.get("content")) if recorder.keep else ""
                recorder.event("notice", source, lane=lane, at=at, text=text)
        elif kind == "attachment":
            for text in _prompts(record):
                recorder.event("prompt", source, lane=lane, at=at, text=text)
        elif kind == "file-history-snapshot":
            recorder.seen(moment(mapping(record.get("snapshot")).get("timestamp")))

    def _find_agents(self, record: dict[str, Any]) -> None:
        result, data = record.get("toolUseResult"), record.get("data")
        agent = result.get("agentId") if isinstance(result, dict) else None
        call: str | None = None
        if agent is None and isinstance(data, dict) and data.get("type") == "agent_progress":
            agent, call = data.get("agentId"), named(record.get("parentToolUseID"))
        elif isinstance(agent, str):
            content = items(mapping(record.get("message")).get("content"))
            call = next((named(mapping(block).get("tool_use_id")) for block in content), call)
        if isinstance(agent, str) and agent and "/" not in agent:
            self._agents[agent] = self._agents.get(agent) or call

    def _lane_of(self, record: dict[str, Any]) -> str:
        """Main, or the subagent whose records stand in this same file."""
        if not record.get("isSidechain"):
            return MAIN_LANE
        uuid, before = string(record.get("uuid")), string(record.get("parentUuid"))
        lane = named(record.get("agentId")) or self._inline.get(before) or f"sidechain-{uuid[:8]}"
        self._inline[uuid] = lane
        if lane not in self._recorder.lanes:
            self._recorder.lane(Lane(id=lane, parent=MAIN_LANE, path=self._path))
        return lane

    def _assistant(
        self, record: dict[str, Any], message: dict[str, Any], source: Place, lane: str, at: datetime | None
    ) -> None:
        recorder = self._recorder
        model = named(message.get("model"))
        content = message.get("content")
        if model == "<synthetic>" or record.get("isApiErrorMessage"):
            recorder.event("notice", source, lane=lane, at=at, text=block_text(content, "text"))
            return
        if isinstance(content, str) and content:
            recorder.event("reply", source, lane=lane, at=at, text=content)
        for number, block in enumerate(() if self._reading.only_usage else items(content)):
            self._block(mapping(block), f"{source.offset}-{number}", source, lane, at)
        usage = message.get("usage")
        if isinstance(usage, dict) and usage:
            id = named(message.get("id")) or named(record.get("requestId")) or named(record.get("uuid"))
            id = id or f"{recorder.session_id}:{lane}:{source.offset}"
            if recorder.wants_request(id, lane, count(usage.get("output_tokens"))):
                told = _usage(usage, record)
                recorder.request(id, source, lane=lane, at=at, model=model, usage=told)

    def _block(self, block: dict[str, Any], place: str, source: Place, lane: str, at: datetime | None) -> None:
        recorder = self._recorder
        kind = block.get("type")
        if kind == "text":
            recorder.event("reply", source, lane=lane, at=at, text=string(block.get("text")))
        elif kind in ("thinking", "redacted_thinking"):
            recorder.event("reasoning", source, lane=lane, at=at, text=string(block.get("thinking")))
        elif kind in ("tool_use", "server_tool_use"):
            id = named(block.get("id")) or place
            tell_call(recorder, id, string(block.get("name")), block.get("input"), source, lane=lane, at=at)

    def _user(
        self, record: dict[str, Any], message: dict[str, Any], source: Place, lane: str, at: datetime | None
    ) -> None:
        recorder = self._recorder
        blocks = items(message.get("content"))
        only_results = bool(blocks)
        for block in map(mapping, blocks):
            if block.get("type") != "tool_result":
                only_results = False
            else:
                id = string(block.get("tool_use_id"))
                text = block_text(block.get("content"), "text") if recorder.keep else ""
                recorder.result(id, source, ok=not block.get("is_error"), lane=lane, at=at, text=text)
                result = mapping(record.get("toolUseResult"))
                if result.get("type") == "create" and (path := named(result.get("filePath"))):
                    recorder.edit(path, source, action="add", call_id=id or None, lane=lane, at=at)
        prompts = () if only_results else _prompts(record)
        for text in prompts:
            recorder.event("prompt" if lane == MAIN_LANE else "context", source, lane=lane, at=at, text=text)
        if not prompts and not only_results and (text := block_text(message.get("content"), "text")):
            recorder.event("context", source, lane=lane, at=at, text=text)


def _usage(usage: dict[str, Any], record: dict[str, Any]) -> Usage:
    read, written = count(usage.get("cache_read_input_tokens")), count(usage.get("cache_creation_input_tokens"))
    return Usage(
        input_tokens=count(usage.get("input_tokens")) + read + written,
        output_tokens=count(usage.get("output_tokens")),
        reasoning_tokens=count(mapping(usage.get("output_tokens_details")).get("thinking_tokens")),
        cache_read_tokens=read,
        cache_write_tokens=written,
        cost_usd=money(record.get("costUSD")),
    )
