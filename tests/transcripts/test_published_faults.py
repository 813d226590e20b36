"""What went wrong in other readers of sessions, by their public reports, and where it's tested that it doesn't here.

Counted twice or too little:
    text and tool calls of one response, each with its usage; the first, partial snapshot of a streamed response:
        test_claude_code: of a response's snapshots the greatest counts; test_samples: responses count once
    a sidechain that replays its parent under new request ids: test_claude_code: a sidechain that replays its parent
    a total that is told again, or begins anew: test_codex: totals count by what they grow
    what a fork or a subagent copied of its parent: test_codex: a fork counts only what it added; test_samples: the oracles
    a session handed on, its whole conversation copied into a new file: here
Listed wrongly:
    subagents' files as sessions: test_claude_code and test_codex: subagents are lanes
    sessions that share an id, of which one is dropped: here
    directories guessed from a folder's name: test_claude_code: the directory is that of the records
    one of two stores overlooked: test_databases: sessions of both stores; compressed ones overlooked: test_codex
    a session that had just changed, never looked at again: here
    a database's time taken for that of its sessions: here
Read wrongly:
    files beyond what a string can hold, shown as empty or not found: test_promises: a session of any size
    one malformed line, at which another surface gives up: here
    half of a surrogate pair, at which output fails: here; a byte order mark: test_damage: a strange file
    users' turns without the agent's: test_samples: prompts, usage and calls, of captured sessions
"""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from tests.transcripts.homes import ANSWERED, ASKED, HOMES, claude_code, lines
from tests.transcripts.reading_sessions import heads, loaded
from workbench.cli.transcripts import transcripts
from workbench.transcripts import LocalPlatform, SessionHead, is_session_head, list_sessions
from workbench.transcripts.finding import add_up_sessions
from workbench.transcripts.models import SessionUsage
from workbench.transcripts.tally import Tally, total


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A session of Claude Code in a home that commands read."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PWD", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    claude_code(tmp_path / ".claude")
    return tmp_path / ".claude" / "projects" / "-work-project" / "c1.jsonl"


def test_a_session_handed_on_in_a_new_file_counts_once(session: Path) -> None:
    """The new file has another session's id on every record, and the same messages."""
    records = [json.loads(line) for line in session.read_text().splitlines()]
    handed_on = [{**record, "sessionId": "c2", "sessionKind": "bg"} for record in records]
    lines(session.parent / "c2.jsonl", *handed_on)
    tally = Tally("agent")

    refs = [head.ref for head in heads("claude-code", session.parents[2])]

    async def add_up() -> None:
        assert [ref.session_id for ref in refs] == ["c1", "c2"]
        async for _, used in add_up_sessions(LocalPlatform(), refs):
            assert isinstance(used, SessionUsage)
            tally.add(used)

    anyio.run(add_up)
    counted = total(tally.rows())
    once = loaded("claude-code", session).requests
    assert (counted.requests, counted.input_tokens) == (len(once), sum(each.usage.input_tokens for each in once))


def test_sessions_that_share_an_id_are_listed_each(session: Path) -> None:
    """An id isn't what a session is: a resumed one has another's, a copied folder has all of them."""
    other = session.parents[1] / "-elsewhere" / session.name
    other.parent.mkdir()
    other.write_bytes(session.read_bytes())
    assert [head.ref.path for head in heads("claude-code", session.parents[2])] == [str(other), str(session)]


def test_a_session_is_read_anew_each_time(session: Path) -> None:
    platform = LocalPlatform()
    before = loaded("claude-code", session, platform)
    was = session.stat()
    lines(
        session.parent / "more.jsonl",
        {"type": "user", "sessionId": "c1", "message": {"content": "one more"}},
    )
    session.write_bytes(session.read_bytes() + (session.parent / "more.jsonl").read_bytes())
    os.utime(session, ns=(was.st_atime_ns, was.st_mtime_ns))
    after = loaded("claude-code", session, platform)
    assert len(after.events) == len(before.events) + 1


def test_a_database_s_sessions_have_times_of_their_own(tmp_path: Path) -> None:
    HOMES["opencode"](tmp_path)
    (path,) = tmp_path.rglob("*.db")
    [before] = heads("opencode", tmp_path)
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(session)")]
        row = dict(zip(columns, database.execute("SELECT * FROM session").fetchone(), strict=True))
        row |= {"id": "ses_later", "time_created": 1_800_000_000_000, "time_updated": 1_800_000_001_000}
        database.execute(f"INSERT INTO session VALUES ({','.join('?' * len(row))})", tuple(row.values()))
    database.close()
    found = {head.ref.session_id: head.last_active_at for head in heads("opencode", tmp_path)}
    assert found.pop("ses_later") > before.last_active_at
    assert list(found.values()) == [before.last_active_at]


@pytest.mark.parametrize(
    "line",
    [b"{not JSON", b'{"type":"user","sessionId":"c1","message":{"content":"half \\ud83d of a pair"}}'],
    ids=["malformed", "half of a surrogate pair"],
)
def test_one_strange_line_costs_nothing_on_any_surface(session: Path, line: bytes, tmp_path: Path) -> None:
    good = session.read_bytes()
    middle = good.index(b"\n", len(good) // 2) + 1
    session.write_bytes(good[:middle] + line + b"\n" + good[middle:])

    def ran(*arguments: str) -> str:
        result = CliRunner().invoke(transcripts, list(arguments))
        assert result.exit_code == 0, result.output
        return result.stdout

    assert ASKED in ran("list")
    for form in ("markdown", "html", "json"):
        target = tmp_path / f"exported.{form}"
        ran("export", "c1", "--format", form, "-o", str(target))
        assert ANSWERED in target.read_text(encoding="utf-8")
    assert ANSWERED in ran("show", "c1")
    assert ANSWERED in ran("show", "c1", "--json")
    assert ran("search", ANSWERED)
    assert json.loads(ran("usage", "--json"))[-1]["requests"] == 1
    report = json.loads(ran("import", "c1", "--dry-run", "--json", "-w", str(tmp_path)))
    assert report["messages"] > 1


def test_every_agent_s_sessions_are_looked_for(tmp_path: Path) -> None:
    """None is passed over in silence: what isn't there is an item too."""

    async def read() -> set[str]:
        platform = LocalPlatform(env={}, home=str(tmp_path))
        return {
            item.ref.agent if is_session_head(item) else item.agent
            async for item in list_sessions(platform)
            if isinstance(item, SessionHead) or item.error.tag == "RootMissing"
        }

    assert anyio.run(read) == set(HOMES) - {"aider"}  # whose sessions lie where one works
