"""Listing sessions: what is asked for, what can't be read, how much is read, and how it ends."""

from __future__ import annotations

import contextlib
import json
import os
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import anyio
import fsspec
import pytest

from tests.transcripts.homes import ASKED, HOMES, T0, T2, claude_code, codex, lines
from workbench.errors import CapabilityUnsupportedError, OperationCancelledError
from workbench.testing import CountingPlatform
from workbench.transcripts import (
    AgentHome,
    CancelSignal,
    FsspecPlatform,
    HomeContext,
    LinePointer,
    LocalPlatform,
    Original,
    Provider,
    ReadFailed,
    RootMissing,
    SessionHead,
    SessionListFailure,
    SessionNotFound,
    SessionRef,
    SourceChanged,
    Transcript,
    find_adapter,
    is_session_head,
    list_sessions,
    read_original,
    session_adapter_home,
)
from workbench.transcripts.providers import default_providers

Item = SessionHead | SessionListFailure


def listed(platform: LocalPlatform | FsspecPlatform, **options: object) -> list[Item]:
    async def read() -> list[Item]:
        return [item async for item in list_sessions(platform, **options)]  # type: ignore[arg-type]

    return anyio.run(read)


@pytest.fixture
def user(tmp_path: Path) -> LocalPlatform:
    """A user with a session of Claude Code and one of Codex."""
    claude_code(tmp_path / ".claude")
    codex(tmp_path / ".codex")
    return LocalPlatform(env={}, home=str(tmp_path))


def test_every_agent_s_sessions_are_listed_and_missing_roots_are_items(user: LocalPlatform) -> None:
    """«Lists the sessions of each agent from its homes' roots, one head per session file», and missing roots."""
    items = listed(user)
    heads = [item for item in items if is_session_head(item)]
    assert {head.ref.agent for head in heads} >= {"claude-code", "codex"}
    assert {head.first_prompt for head in heads} == {ASKED}
    failures = [item for item in items if not is_session_head(item)]
    assert failures
    assert all(isinstance(item, SessionListFailure) and isinstance(item.error, RootMissing) for item in failures)


def test_sessions_are_listed_under_either_event_loop(user: LocalPlatform) -> None:
    async def read() -> list[str]:
        return [item.ref.path async for item in list_sessions(user) if is_session_head(item)]

    assert anyio.run(read, backend="trio") == anyio.run(read, backend="asyncio")


@pytest.mark.parametrize("name", ["codex", "codex-cli"])
def test_agents_are_named_by_their_id_or_by_another_name(user: LocalPlatform, name: str) -> None:
    """«Agents to list, by id or alias»."""
    heads = [item for item in listed(user, agents=[name, "codex"]) if is_session_head(item)]
    assert [head.ref.agent for head in heads] == ["codex"]


def test_an_agent_without_an_adapter_is_a_capability_that_is_unsupported(user: LocalPlatform) -> None:
    """«Throws capability-unsupported when a requested agent has no adapter»."""
    for options in ({"agents": ["nobody"]}, {"agents": ["codex"], "providers": [Provider()]}):
        with pytest.raises(CapabilityUnsupportedError) as raised:
            listed(user, **options)
        assert raised.value.code == "capability_unsupported"
    assert listed(user, providers=[]) == []


def test_the_running_total_is_told_after_each_root(user: LocalPlatform) -> None:
    """«Called with the running total of session files each time another root has been listed.»"""
    totals: list[int] = []
    items = listed(user, agents=["claude-code", "codex"], on_total=totals.append)
    assert len(totals) == 4  # two possible homes of the one, two roots of the other
    assert totals == sorted(totals)
    assert totals[-1] == sum(map(is_session_head, items)) == 2


def test_an_adapter_of_one_s_own_brings_its_home(tmp_path: Path) -> None:
    """«passes its own […] in the providers option»; «home rule, used instead of catalog's»."""

    class Mine(type(find_adapter("codex"))):  # type: ignore[misc]
        agent = "mine"

        @staticmethod
        def home(context: HomeContext) -> AgentHome:
            return AgentHome((context.under("elsewhere"),))

    codex(tmp_path / "elsewhere")
    provider = Provider(sessions={"mine": Mine()}, aliases={"my-agent": "mine"})
    platform = LocalPlatform(env={}, home=str(tmp_path))
    heads = [x for x in listed(platform, agents=["my-agent"], providers=[provider]) if is_session_head(x)]
    assert [head.ref.agent for head in heads] == ["mine"]


def test_an_adapter_may_list_by_an_iterator_that_is_no_generator(tmp_path: Path) -> None:
    class Nothing:
        def __aiter__(self) -> Nothing:
            return self

        async def __anext__(self) -> Item:
            raise StopAsyncIteration

    class Mine(type(find_adapter("codex"))):  # type: ignore[misc]
        def discover(self, *_: object, **__: object) -> Nothing:
            return Nothing()

    assert listed(LocalPlatform(env={}, home=str(tmp_path)), providers=[Provider(sessions={"codex": Mine()})]) == []


def test_a_home_is_the_adapter_s_own_else_the_catalog_s_else_unsupported() -> None:
    """«the adapter's own home rule, else the catalog's rule […]. Throws capability-unsupported when there is neither.»"""

    @dataclass
    class Someone:
        agent: str
        home: object = None

    context = HomeContext({"CODEX_HOME": "/c", "CLAUDE_CONFIG_DIR": "/a, /b/projects"}, "/home/me")
    assert session_adapter_home(Someone("codex"), context) == AgentHome(("/c",))  # type: ignore[arg-type]
    own = Someone("codex", lambda context: AgentHome((context.home,)))
    assert session_adapter_home(own, context) == AgentHome(("/home/me",))  # type: ignore[arg-type]
    claude = find_adapter("claude")
    assert claude.roots(session_adapter_home(claude, context)) == ("/a/projects", "/b/projects")
    with pytest.raises(CapabilityUnsupportedError):
        session_adapter_home(Someone("nobody"), context)  # type: ignore[arg-type]


def test_the_first_prompt_is_cut_to_500_characters_and_the_title_to_80(tmp_path: Path) -> None:
    """«The first real user prompt, cut to 500 characters»; «else the first real prompt, cut to 80 characters»."""
    record = {"type": "user", "sessionId": "s", "message": {"role": "user", "content": "word " * 400}}
    lines(tmp_path / ".claude" / "projects" / "p" / "s.jsonl", record)
    [head] = filter(is_session_head, listed(LocalPlatform(env={}, home=str(tmp_path)), agents=["claude"]))
    assert head.first_prompt is not None
    assert len(head.first_prompt) == 500
    assert head.title is not None
    assert len(head.title) == 80
    assert head.title.startswith("word word")


def test_times_are_those_of_records_and_the_file_s_where_there_are_none(tmp_path: Path) -> None:
    """«The last record time seen at either end of the file, else the file's modification time.»"""
    project = tmp_path / ".claude" / "projects" / "p"
    prompt = {"type": "user", "sessionId": "s", "message": {"role": "user", "content": "hello"}}
    lines(project / "timed.jsonl", {**prompt, "timestamp": T0}, {**prompt, "timestamp": T2})
    lines(project / "timeless.jsonl", prompt)
    for path in project.iterdir():
        os.utime(path, (10**9, 10**9))
    heads = filter(is_session_head, listed(LocalPlatform(env={}, home=str(tmp_path)), agents=["claude"]))
    timed, timeless = sorted(heads, key=lambda head: head.ref.path)
    assert (timed.started_at, timed.last_active_at) == (datetime.fromisoformat(T0), datetime.fromisoformat(T2))
    assert (timeless.started_at, timeless.last_active_at) == (None, datetime.fromtimestamp(10**9, UTC))


def test_a_head_is_found_where_no_whole_line_fits_what_is_read(tmp_path: Path) -> None:
    """«from the head and tail of its main file, without reading it fully»."""
    meta = {"id": "big", "timestamp": T0, "cwd": "/work", "base_instructions": {"text": "x" * 200_000}}
    end = {"timestamp": T2, "type": "event_msg", "payload": {"type": "agent_message", "message": "y" * 100_000}}
    path = tmp_path / ".codex" / "sessions" / "rollout-2026-03-01T10-00-00-big.jsonl"
    lines(path, {"timestamp": T0, "type": "session_meta", "payload": meta}, end)
    os.utime(path, (10**9, 10**9))
    [head] = filter(is_session_head, listed(LocalPlatform(env={}, home=str(tmp_path)), agents=["codex"]))
    assert (head.ref.session_id, head.cwd) == ("big", "/work")
    assert head.started_at == datetime.fromisoformat(T0)


def test_an_unreadable_file_is_an_item_and_the_listing_goes_on(tmp_path: Path) -> None:
    """«an unreadable file is a failure item and listing goes on»."""
    claude_code(tmp_path / ".claude")
    project = tmp_path / ".claude" / "projects" / "-work-project"
    os.mkfifo(project / "a-pipe.jsonl")
    (project / "dangling.jsonl").symlink_to(tmp_path / "nothing")
    (project / "loop").symlink_to(project)
    (tmp_path / ".claude" / "projects" / "file").write_text("not a directory")

    class Refusing(LocalPlatform):
        def __init__(self) -> None:
            super().__init__(env={}, home=str(tmp_path))
            inner = self.fs

            class Fs:
                stat, list = inner.stat, inner.list

                @staticmethod
                async def read(path: str, *, offset: int = 0, length: int | None = None) -> bytes:
                    if path.endswith("c1.jsonl"):
                        raise PermissionError(13, "Permission denied", path)
                    return await inner.read(path, offset=offset, length=length)

            self.fs = Fs()  # type: ignore[assignment]

    lines(project / "z.jsonl", {"type": "user", "sessionId": "z", "message": {"content": "still here"}})
    items = listed(Refusing(), agents=["claude"])
    assert [item.first_prompt for item in items if is_session_head(item)] == ["still here"]
    errors = [item.error for item in items if isinstance(item, SessionListFailure)]
    assert [(error.errno, error.path) for error in errors if isinstance(error, ReadFailed)] == [
        (13, str(project / "c1.jsonl"))
    ]
    assert json.loads(errors[0].model_dump_json())["_tag"] == "ReadFailed"
    assert isinstance(errors[-1], RootMissing)


def test_leaving_the_loop_stops_the_reads(tmp_path: Path) -> None:
    """«leaving the loop stops the reads»."""
    for number in range(20):
        record = {"type": "user", "sessionId": "s", "message": {"content": f"prompt {number}"}}
        lines(tmp_path / ".claude" / "projects" / "p" / f"{number:02}.jsonl", record)

    async def leave() -> list[str]:
        platform = CountingPlatform()
        platform.home = str(tmp_path)
        async with aclosing(list_sessions(platform, agents=["claude"])) as found:
            async for _ in found:
                break
        return [path for path, _, _ in platform.reads]

    assert [os.path.basename(path) for path in anyio.run(leave)] == ["00.jsonl"]


@pytest.mark.parametrize("reason", [None, KeyError("mine")])
def test_an_abort_raises_its_reason(user: LocalPlatform, reason: BaseException | None) -> None:
    signal = CancelSignal()

    async def read() -> None:
        async for _ in list_sessions(user, agents=["claude", "codex"], signal=signal):
            signal.cancel(reason)

    with pytest.raises(type(reason) if reason else OperationCancelledError) as raised:
        anyio.run(read)
    assert reason is None or raised.value is reason


@dataclass(frozen=True)
class _Plain:
    """A platform that only has files."""

    fs: object
    env: dict[str, str]
    home: str
    decompress: None = None
    sqlite: None = None


def test_a_platform_of_files_alone_serves_those_who_need_no_more(user: LocalPlatform, tmp_path: Path) -> None:
    """«Present when the host can decode a compressed session file» and «when the host has SQLite», and else None."""
    plain = _Plain(user.fs, {}, user.home)
    heads = [item for item in listed(plain, agents=["claude", "codex"]) if is_session_head(item)]  # type: ignore[arg-type]
    assert len(heads) == 2


@pytest.mark.parametrize("agent", sorted(HOMES))
def test_sessions_are_read_through_whatever_filesystem_holds_them(agent: str, tmp_path: Path) -> None:
    HOMES[agent](tmp_path)
    adapter = find_adapter(agent)
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    for path in tmp_path.rglob("*"):
        if path.is_file():
            memory.pipe(f"/home/{path.relative_to(tmp_path)}", path.read_bytes())

    async def read(platform: object, home: str) -> tuple[list[Item], list[object]]:
        roots = adapter.roots(AgentHome((home,)))
        found = [x for root in roots async for x in adapter.discover(platform, root)]  # type: ignore[arg-type]
        loaded = [await adapter.load(platform, x.ref) for x in found if is_session_head(x)]  # type: ignore[arg-type]
        return found, [[e.text for e in x.events] if isinstance(x, Transcript) else x for x in loaded]

    remote, texts = anyio.run(read, FsspecPlatform(memory), "/home")
    local, expected = anyio.run(read, LocalPlatform(), str(tmp_path))
    if not any(path.suffix in (".db", ".vscdb") for path in tmp_path.rglob("*")):
        assert texts == expected
        assert sum(map(is_session_head, remote)) == sum(map(is_session_head, local)) > 0
    else:  # this platform has no SQLite, and says so
        errors = [item.error for item in remote if isinstance(item, SessionListFailure)]
        assert any(isinstance(error, ReadFailed) and "SQLite" in error.message for error in errors)


def test_a_record_is_read_back_until_its_file_changes(tmp_path: Path) -> None:
    """«SourceChanged means those bytes are no longer one JSON value, because the file changed»."""
    claude_code(tmp_path)
    path = tmp_path / "projects" / "-work-project" / "c1.jsonl"

    async def read() -> None:
        transcript = await find_adapter("claude").load(LocalPlatform(), SessionRef(agent="", path=str(path)))
        assert isinstance(transcript, Transcript)
        source = transcript.events[-1].source
        assert isinstance(source, LinePointer)
        original = await read_original(LocalPlatform(), source)
        assert isinstance(original, Original)
        assert original.value["uuid"] == "u4"
        path.write_bytes(b"x" + path.read_bytes())
        assert await read_original(LocalPlatform(), source) == SourceChanged(path=str(path))
        assert await read_original(LocalPlatform(), source.model_copy(update={"offset": 10**9})) == SourceChanged(
            path=str(path)
        )
        path.unlink()
        assert await read_original(LocalPlatform(), source) == SessionNotFound(path=str(path))
        denied = source.model_copy(update={"path": str(tmp_path)})
        assert isinstance(await read_original(LocalPlatform(), denied), ReadFailed)

    anyio.run(read)


def test_a_name_that_is_not_utf_8_is_listed_and_shown(tmp_path: Path) -> None:
    claude_code(tmp_path / ".claude")
    project = os.fsencode(tmp_path / ".claude" / "projects" / "-work-project")
    os.rename(project, os.path.join(os.path.dirname(project), b"caf\xe9"))
    [head] = filter(is_session_head, listed(LocalPlatform(env={}, home=str(tmp_path)), agents=["claude"]))
    assert os.fsencode(head.ref.path).endswith(b"caf\xe9/c1.jsonl")
    assert "caf\ufffd/c1.jsonl" in head.model_dump_json()


def test_a_database_that_somebody_writes_is_read_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "it's 100% #1?.db"

    async def rows() -> list[tuple[object, ...]]:
        return [row async for row in LocalPlatform().sqlite.rows(str(path), "SELECT * FROM t WHERE a > ?", (0,))]

    with sqlite3.connect(path) as writer:
        writer.execute("PRAGMA journal_mode=WAL")
        writer.execute("CREATE TABLE t(a, b)")
        writer.execute("INSERT INTO t VALUES (1, CAST(x'ff' AS TEXT))")
        writer.commit()
        assert anyio.run(rows) == [(1, "\ufffd")]
    writer.close()
    before = sorted(os.listdir(tmp_path))
    assert anyio.run(rows) == [(1, "\ufffd")]
    assert sorted(os.listdir(tmp_path)) == before
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(OSError, match="not a database"):
        anyio.run(rows)


@pytest.mark.parametrize("name", [b"col\xf7mn", b"c\x80\xfflumn"])
def test_a_database_whose_names_are_no_text_can_t_be_read_and_that_is_a_value(tmp_path: Path, name: bytes) -> None:
    import sqlite3

    path = tmp_path / "s.db"
    with sqlite3.connect(path) as writer:
        writer.execute("CREATE TABLE messages(column)")
        writer.execute("INSERT INTO messages VALUES (1)")
        writer.commit()
    writer.close()
    path.write_bytes(path.read_bytes().replace(b"column", name[:6].ljust(6, b"x")))

    async def rows(statement: str) -> list[tuple[object, ...]]:
        return [row async for row in LocalPlatform().sqlite.rows(str(path), statement)]

    for statement in ("PRAGMA table_info(messages)", "SELECT * FROM messages", "SELECT nothing FROM messages"):
        with contextlib.suppress(OSError):
            anyio.run(rows, statement)


def test_registered_adapters_come_through_an_entry_point(
    user: LocalPlatform, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_adapter.py").write_text(
        "from workbench.transcripts import AgentHome, find_adapter, builtin_provider\n"
        "class Theirs(type(builtin_provider().sessions['codex'])):\n"
        "    agent = 'theirs'\n"
        "    home = staticmethod(lambda context: AgentHome((context.under('.codex'),)))\n"
    )
    about = tmp_path / "theirs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[workbench.session_adapters]\ntheirs = their_adapter:Theirs\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    default_providers.cache_clear()
    try:
        heads = [item for item in listed(user, agents=["theirs"]) if is_session_head(item)]
    finally:
        default_providers.cache_clear()
    assert [head.ref.agent for head in heads] == ["theirs"]
