"""What the specification of listing promises of failures, aborts, platforms and sizes, a sentence of it in each docstring."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio
import pytest
import zstandard

from tests.transcripts.homes import HOMES, claude_code, codex, lines
from workbench.errors import CapabilityUnsupportedError, OperationCancelledError
from workbench.testing import CountingPlatform, SessionAdapterContract
from workbench.testing.session_adapter_contract import END_BYTES
from workbench.transcripts import (
    AgentHome,
    CancelSignal,
    HomeContext,
    LinePointer,
    LocalPlatform,
    Original,
    Provider,
    ReadFailed,
    RootMissing,
    SessionAdapter,
    SessionHead,
    SessionListFailure,
    SessionNotFound,
    SessionPromptsOptions,
    SessionReadError,
    SessionRef,
    SessionSummaryWithPrompts,
    SourceChanged,
    Transcript,
    UnknownFormat,
    find_adapter,
    fold,
    is_session_head,
    list_sessions,
    read_original,
    session_adapter_home,
    session_prompts,
)
from workbench.transcripts.agents.claude_code import ClaudeCode
from workbench.transcripts.platform import SessionEntry, SessionFs, SessionStat

HUGE = (3 << 30) if os.environ.get("WORKBENCH_SUITES") == "full" else (200 << 20)


class MineError(Exception):
    """A caller's own reason, or a defect."""


@dataclass
class Through:
    """A platform of files alone, on which something happens at each call: all that an adapter is given goes through it."""

    fs: SessionFs
    happens: Callable[[str, str], None] = lambda what, path: None
    env: dict[str, str] = field(default_factory=dict)
    home: str = "/nowhere"
    decompress: None = None
    sqlite: None = None

    def __post_init__(self) -> None:
        inner, platform = self.fs, self

        class Fs:
            async def stat(self, path: str) -> SessionStat:
                platform.happens("stat", path)
                return await inner.stat(path)

            async def list(self, path: str) -> tuple[SessionEntry, ...]:
                platform.happens("list", path)
                return await inner.list(path)

            async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
                platform.happens("read", path)
                return await inner.read(path, offset=offset, length=length)

        self.fs = Fs()


def failing(error: BaseException, *, at: str = "") -> Callable[[str, str], None]:
    def happens(what: str, path: str) -> None:
        if what == "read" and at in path:
            raise error

    return happens


@pytest.fixture
def session(tmp_path: Path) -> Path:
    claude_code(tmp_path / ".claude")
    return tmp_path / ".claude" / "projects" / "-work-project" / "c1.jsonl"


def ways(adapter: SessionAdapter, platform: Any, path: Path, **more: Any) -> dict[str, Callable[[], Awaitable[object]]]:
    """Everything that reads a session."""
    ref = SessionRef(agent=adapter.agent, path=str(path))

    async def discovered() -> object:
        return [item async for item in adapter.discover(platform, str(path.parents[1]), **more)]

    async def listed() -> object:
        platform.home = str(path.parents[3])
        return [item async for item in list_sessions(platform, agents=[adapter.agent], **more)]

    async def original() -> object:
        return await read_original(platform, LinePointer(path=str(path), offset=0, length=2), **more)

    assert isinstance(adapter, ClaudeCode)
    return {
        "load": lambda: adapter.load(platform, ref, **more),
        "summarize": lambda: adapter.summarize(platform, ref, **more),
        "discover": discovered,
        "list": listed,
        "read_original": original,
    }


WAYS = ("load", "summarize", "discover", "list", "read_original")


@pytest.mark.parametrize("way", WAYS)
def test_an_expected_failure_is_a_value(session: Path, way: str) -> None:
    """«Expected failures are values: a file that disappeared, an IO error, …» and «an unreadable file is a failure item»."""
    platform = Through(LocalPlatform().fs, failing(OSError(5, "Input/output error")))
    found: Any = anyio.run(ways(find_adapter("claude"), platform, session)[way])
    if isinstance(found, list):
        found = next(
            x.error for x in found if isinstance(x, SessionListFailure) and not isinstance(x.error, RootMissing)
        )
    assert found == ReadFailed(path=str(session), message="Input/output error", errno=5)


_FAILURES = (
    RootMissing(path="/p"),
    ReadFailed(path="/p", message="Input/output error", errno=5),
    SessionNotFound(path="/p"),
    SourceChanged(path="/p"),
    UnknownFormat(path="/p", agent="codex", generation="9"),
)


@pytest.mark.parametrize("failure", _FAILURES, ids=lambda failure: failure.tag)
def test_a_failure_says_in_json_too_what_it_is(failure: Any) -> None:
    """«each `path` and `tag` (`_tag` in JSON), its own name»."""
    told = json.loads(failure.model_dump_json())
    assert (next(iter(told)), told["_tag"], told["path"]) == ("_tag", type(failure).__name__, "/p")
    assert "tag" not in told
    assert type(failure).model_validate(told) == failure


def test_the_running_total_counts_files_that_can_t_be_read_too(session: Path) -> None:
    """«the running total of session files each time another root has been listed»."""
    (session.parent / "d.jsonl").write_bytes(session.read_bytes())
    platform = Through(LocalPlatform().fs, failing(OSError(5, "Input/output error"), at="d.jsonl"))
    platform.home = str(session.parents[3])
    totals: list[int] = []

    async def read() -> int:
        listing = list_sessions(platform, agents=["claude"], on_total=totals.append)
        return sum([is_session_head(item) async for item in listing])

    assert (anyio.run(read), totals[-1]) == (1, 2)


def test_an_adapter_without_a_home_can_t_be_listed(session: Path) -> None:
    """«required for an agent catalog has no rule for»; «Throws capability-unsupported when there is neither»."""

    class Homeless(ClaudeCode):
        agent = "homeless"

    async def read() -> None:
        async for _ in list_sessions(LocalPlatform(), providers=[Provider(sessions={"homeless": Homeless()})]):
            pass

    with pytest.raises(CapabilityUnsupportedError):
        anyio.run(read)


@pytest.mark.parametrize("compressed", [False, True])
def test_reading_a_record_back_tells_how_far_it_is(session: Path, compressed: bool) -> None:
    """«ReadOriginalOptions: progress?»"""
    path, record = session, session.read_bytes().partition(b"\n")[0]
    if compressed:
        path = session.with_suffix(".zst")
        path.write_bytes(zstandard.compress(session.read_bytes()))
    source = LinePointer(path=str(path), offset=0, length=len(record), compressed=compressed)
    told: list[tuple[int, int]] = []

    async def read() -> Any:
        return await read_original(LocalPlatform(), source, progress=lambda *at: told.append(at))

    assert anyio.run(read) == Original(value=json.loads(record))
    assert told
    assert all(0 < done <= total for done, total in told)


@pytest.mark.parametrize("way", WAYS)
def test_only_defects_raise(session: Path, way: str) -> None:
    """«only defects throw»: what no file can cause isn't taken for one."""
    platform = Through(LocalPlatform().fs, failing(MineError()))
    with pytest.raises(MineError):
        anyio.run(ways(find_adapter("claude"), platform, session)[way])


@pytest.mark.parametrize("reason", [None, MineError("mine")])
@pytest.mark.parametrize("way", WAYS)
def test_an_abort_raises_the_caller_s_reason_at_any_time(session: Path, way: str, reason: MineError | None) -> None:
    """«An abort rejects with signal.reason», before the first read and during one."""
    if way == "read_original":
        when = ("before",)
    else:
        # A second chunk, and a second file.
        filler = json.dumps({"type": "filler", "text": "x" * 2_000_000})
        session.write_text(f"{session.read_text()}{filler}\n")
        (session.parent / "d.jsonl").write_bytes(session.read_bytes())
        when = ("before", "during")
    for moment in when:
        signal = CancelSignal()
        platform = Through(LocalPlatform().fs)
        if moment == "before":
            signal.cancel(reason)
        else:
            platform.happens = lambda what, path, signal=signal: signal.cancel(reason) if what == "read" else None  # type: ignore[misc]
        with pytest.raises(MineError if reason else OperationCancelledError) as raised:
            anyio.run(ways(find_adapter("claude"), platform, session, signal=signal)[way])
        assert reason is None or raised.value is reason


def test_a_file_beside_a_session_may_fail_one_reading_and_not_the_listing(session: Path) -> None:
    """«the pass may read fewer files than load […], so an IO error on one of those can fail load»."""
    lane = session.with_suffix("") / "subagents" / "agent-a.jsonl"
    lines(lane, {"type": "user", "isSidechain": True, "sessionId": "c1", "message": {"content": "look"}})
    platform = Through(LocalPlatform().fs, failing(OSError(5, "Input/output error"), at="agent-a.jsonl"))
    readings = ways(find_adapter("claude"), platform, session)
    assert isinstance(anyio.run(readings["load"]), ReadFailed)
    items: Any = anyio.run(readings["discover"])
    assert [is_session_head(item) for item in items] == [True]


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_whether_a_file_is_an_agent_s_is_told_by_its_ends(agent: str, tmp_path: Path) -> None:
    """«Whether ref.path is a session of this agent; cheap, for refs whose agent is unknown.»"""
    HOMES[agent](tmp_path)
    adapter = find_adapter(agent)

    async def read() -> None:
        roots = adapter.roots(AgentHome((str(tmp_path),)))
        [head] = [x for root in roots async for x in adapter.discover(LocalPlatform(), root) if is_session_head(x)]
        path = Path(head.ref.path)
        if path.suffix == ".jsonl":
            path.write_bytes(path.read_bytes() + b'{"type":"filler"}\n' * 100_000)
        platform = CountingPlatform()
        assert await adapter.detect(platform, SessionRef(agent="", path=head.ref.path))
        assert sum(length for _, _, length in platform.reads) <= 2 * END_BYTES

    anyio.run(read)


def test_a_listing_reads_no_more_of_a_huge_file_than_its_ends(tmp_path: Path) -> None:
    """«reading at most 64 KB from each end of a file», of one that nobody could read whole."""
    claude_code(tmp_path / ".claude")
    project = tmp_path / ".claude" / "projects" / "-work-project"
    with (project / "c1.jsonl").open("ab") as file:
        file.truncate(3 << 30)
        file.seek(0, os.SEEK_END)
        file.write(b'\n{"type":"ai-title","aiTitle":"at the end","timestamp":"2026-04-01T00:00:00Z"}\n')
    platform = CountingPlatform()
    platform.home = str(tmp_path)

    async def read() -> list[SessionHead]:
        return [item async for item in list_sessions(platform, agents=["claude"]) if is_session_head(item)]

    [head] = anyio.run(read)
    assert (head.title, head.last_active_at) == ("at the end", datetime(2026, 4, 1, tzinfo=UTC))
    assert head.size_bytes > 3 << 30
    assert sorted(length for _, _, length in platform.reads) == [END_BYTES, END_BYTES]


class _Endless:
    """Files as they are but for one, which has a block again and again, up to a size."""

    def __init__(self, path: str, size: int, record: dict[str, Any]) -> None:
        self._fs = LocalPlatform().fs
        self._path, self._size = path, size
        self._block = f"{json.dumps(record)}\n".encode() * 20

    async def stat(self, path: str) -> SessionStat:
        if path != self._path:
            return await self._fs.stat(path)
        return SessionStat("file", self._size, datetime.now(UTC))

    async def list(self, path: str) -> tuple[SessionEntry, ...]:
        return await self._fs.list(path)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        if path != self._path:
            return await self._fs.read(path, offset=offset, length=length)
        wanted = max(0, self._size - offset if length is None else min(length, self._size - offset))
        start = offset % len(self._block)
        return (self._block * (wanted // len(self._block) + 2))[start : start + wanted]


_LONG = "x" * 100_000
_RESULTS: dict[str, dict[str, Any]] = {
    "claude-code": {
        "type": "user",
        "sessionId": "s",
        "cwd": "/work",
        "message": {"content": [{"type": "tool_result", "tool_use_id": "t", "content": _LONG}]},
    },
    "codex": {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "t", "output": _LONG}},
    "pi": {
        "type": "message",
        "message": {"role": "toolResult", "toolCallId": "t", "content": [{"type": "text", "text": _LONG}]},
    },
    "gemini-cli": {
        "id": "g",
        "type": "gemini",
        "content": "",
        "toolCalls": [{"id": "t", "name": "read", "args": {}, "status": "success", "resultDisplay": _LONG}],
    },
    "qwen-code": {
        "type": "tool_result",
        "sessionId": "s",
        "cwd": "/work",
        "message": {"parts": [{"functionResponse": {"id": "t", "response": {"output": _LONG}}}]},
    },
}


@pytest.mark.parametrize("agent", sorted(_RESULTS))
@pytest.mark.parametrize("way", ["load", "summarize", "add_up"])
def test_a_session_of_any_size_is_read_in_bounded_memory(tmp_path: Path, way: str, agent: str) -> None:
    """«the state it holds grows with the session's requests, lanes and tool calls, never with its bytes»."""
    path = tmp_path / "s.jsonl"
    adapter = find_adapter(agent)
    size = HUGE if agent == "claude-code" else 60 << 20
    platform = Through(_Endless(str(path), size, _RESULTS[agent]))
    tracemalloc.start()
    try:
        read = getattr(adapter, way)
        found = anyio.run(read, platform, SessionRef(agent=agent, path=str(path)))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    if isinstance(found, Transcript):
        found = fold(found)
    if isinstance(found, SessionSummaryWithPrompts):
        # Gemini CLI's is one message, written again and again.
        assert found.events["tool_result"] > (0 if agent == "gemini-cli" else size // 101_000)
        assert found.skipped == 0
    assert found.session_id == "s"
    # An event of the transcript for each 100 KB.
    assert peak < (10 << 20) + size // 50


@pytest.mark.parametrize("agent", ["claude-code", "codex", "pi", "gemini-cli", "amp", "aider"])
def test_a_read_only_file_system_serves_those_who_need_no_more(agent: str, tmp_path: Path) -> None:
    """«listing, stat and reads, never writes […] and so does a read-only file system such as a browser's»."""
    HOMES[agent](tmp_path)
    adapter = find_adapter(agent)
    calls: set[str] = set()
    platform = Through(LocalPlatform().fs, lambda what, path: calls.add(what))

    async def read() -> None:
        roots = adapter.roots(AgentHome((str(tmp_path),)))
        [head] = [x for root in roots async for x in adapter.discover(platform, root) if is_session_head(x)]
        transcript = await adapter.load(platform, head.ref)
        assert isinstance(transcript, Transcript)
        assert transcript.events
        for event in transcript.events:
            assert isinstance(await read_original(platform, event.source), Original)

    anyio.run(read)
    assert calls == {"stat", "list", "read"}


def test_every_read_goes_through_the_platform(tmp_path: Path) -> None:
    """«Every read goes through the platform passed to the call»: nothing is told of files that only this machine has."""

    async def nothing(path: str, **_: object) -> Any:
        raise FileNotFoundError(2, "No such file or directory", path)

    class Nothing:
        stat = list = read = staticmethod(nothing)

    platform = Through(Nothing())  # type: ignore[arg-type]
    platform.home = str(tmp_path)
    for make, folder in ((claude_code, ".claude"), (codex, ".codex")):
        make(tmp_path / folder)

    async def read() -> list[SessionHead | SessionListFailure]:
        return [item async for item in list_sessions(platform)]

    items = anyio.run(read)
    assert items
    assert all(isinstance(item, SessionListFailure) and isinstance(item.error, RootMissing) for item in items)


def test_a_caller_may_walk_an_adapter_s_roots_itself(session: Path) -> None:
    """«For a caller that walks an adapter's roots itself, for example to report progress per root»."""
    adapter = find_adapter("claude")
    home = session_adapter_home(adapter, HomeContext({}, str(session.parents[3])))

    async def read() -> dict[str, int]:
        platform = LocalPlatform()
        return {
            root: sum([is_session_head(item) async for item in adapter.discover(platform, root)])
            for root in adapter.roots(home)
        }

    found = anyio.run(read)
    assert sorted(found.values()) == [0, 1]


def test_the_agents_listed_are_those_of_the_providers(session: Path) -> None:
    """«Agents to list, by id or alias; defaults to every agent in providers.sessions.»"""
    codex(session.parents[3] / ".codex")
    platform = LocalPlatform(env={}, home=str(session.parents[3]))
    only = [Provider(sessions={"codex": find_adapter("codex")})]

    async def read() -> set[str]:
        return {x.ref.agent async for x in list_sessions(platform, providers=only) if is_session_head(x)}

    assert anyio.run(read) == {"codex"}


def test_a_head_tells_what_the_file_is_and_where(session: Path) -> None:
    """«The agent's own title, else the first real prompt»; «The reference to a Session. It carries the CodingAgentId»."""

    async def read() -> SessionHead:
        platform = LocalPlatform(env={}, home=str(session.parents[3]))
        async with aclosing(list_sessions(platform, agents=["claude-code"])) as found:
            return await anext(item async for item in found if is_session_head(item))

    head = anyio.run(read)
    assert head.ref == SessionRef(agent="claude-code", path=str(session), session_id="c1")
    assert head.size_bytes == session.stat().st_size
    assert head.title == head.first_prompt


def test_the_prompts_of_a_summary_are_those_of_its_transcript_under_the_same_caps(session: Path) -> None:
    """«under the given caps, by the same rule sessionPrompts applies to the loaded transcript»."""
    adapter = find_adapter("claude")
    assert isinstance(adapter, ClaudeCode)
    caps = SessionPromptsOptions(max_prompts=1, max_characters=3)

    async def read() -> tuple[object, object]:
        ref = SessionRef(agent="claude-code", path=str(session))
        transcript = await adapter.load(LocalPlatform(), ref)
        summary = await adapter.summarize(LocalPlatform(), ref, prompts=caps)
        assert isinstance(transcript, Transcript)
        assert isinstance(summary, SessionSummaryWithPrompts)
        return summary.prompts, session_prompts(transcript, caps)

    told, expected = anyio.run(read)
    assert told == expected
    assert [len(prompt.text) for prompt in told] == [3]  # type: ignore[attr-defined]


class _WithoutPrompts(ClaudeCode):
    async def summarize(self, *given: Any, **more: Any) -> SessionSummaryWithPrompts | SessionReadError:
        return await super().summarize(*given, **{**more, "prompts": None})


class _OfAll(ClaudeCode):
    """Reads each file whole to list it."""

    async def ends(self, platform: Any, file: Any) -> Any:
        await platform.fs.read(file.path)
        return await super().ends(platform, file)


class _Raising(ClaudeCode):
    """Raises what it should return."""

    async def load(self, *given: Any, **more: Any) -> Transcript | SessionReadError:
        loaded = await super().load(*given, **more)
        if not isinstance(loaded, Transcript):
            raise FileNotFoundError(loaded.path)
        return loaded


class _Deaf(ClaudeCode):
    """Isn't ended by a signal."""

    async def load(self, *given: Any, **more: Any) -> Transcript | SessionReadError:
        return await super().load(*given, **{**more, "signal": None})


class _Boasting(ClaudeCode):
    """Its transcripts list more than its files show."""

    async def load(self, *given: Any, **more: Any) -> Transcript | SessionReadError:
        loaded = await super().load(*given, **more)
        shown = self.capabilities
        return loaded.model_copy(update={"capabilities": shown}) if isinstance(loaded, Transcript) else loaded


class _Silent(ClaudeCode):
    """Says nothing of a root that isn't there."""

    async def discover(self, *given: Any, **more: Any) -> AsyncIterator[SessionHead | SessionListFailure]:
        async for item in super().discover(*given, **more):
            if is_session_head(item):
                yield item


BROKEN: list[tuple[type[ClaudeCode], str]] = [
    (_WithoutPrompts, "test_a_summary_is_the_folded_transcript"),
    (_OfAll, "test_a_listing_reads_64_kb_of_each_end_at_most"),
    (_Raising, "test_a_session_that_is_gone_is_a_value"),
    (_Deaf, "test_a_cancelled_signal_raises_its_reason"),
    (_Boasting, "test_a_transcript_lists_what_its_files_show"),
    (_Silent, "test_a_missing_root_is_an_item"),
]


@pytest.mark.parametrize(("adapter", "test"), BROKEN, ids=[test for _, test in BROKEN])
def test_the_conformance_suite_fails_an_adapter_that_breaks_a_promise(
    adapter: type[ClaudeCode], test: str, tmp_path: Path
) -> None:
    """«an implementation that leaves them out fails the conformance suite», and so does each other one that breaks a rule."""

    class Suite(SessionAdapterContract):
        def make_adapter(self) -> SessionAdapter:
            return adapter()

        def make_home(self, directory: Path) -> None:
            claude_code(directory)

    with pytest.raises((AssertionError, FileNotFoundError)):
        getattr(Suite(), test)(tmp_path)
