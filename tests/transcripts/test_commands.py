"""`workbench transcripts`, as a person and as a program uses it."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from tests.checkpoints.layers import as_nobody, let_nobody_enter
from tests.conftest import ROOT
from tests.transcripts.homes import ANSWERED, ASKED, T0, claude_code, codex, lines
from tests.waiting import wait_until
from workbench.cli.transcripts import transcripts


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user with a session of Claude Code and one of Codex."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PWD", str(tmp_path))
    claude_code(tmp_path / ".claude")
    codex(tmp_path / ".codex")
    return tmp_path


def ran(*arguments: str, code: int = 0) -> Result:
    result = CliRunner().invoke(transcripts, list(arguments))
    assert result.exit_code == code, result.output
    return result


def told(*arguments: str) -> Any:
    return json.loads(ran(*arguments, "--json").stdout)


def test_sessions_are_listed_for_people_and_for_programs(home: Path) -> None:
    head, *rows = ran("list").stdout.splitlines()
    assert head.split("\t")[0] == "AGENT"
    assert sorted(row.split("\t")[0] for row in rows) == ["claude-code", "codex"]
    assert all(row.endswith(ASKED) for row in rows)
    assert {item["ref"]["session_id"] for item in told("list")} == {"c1", "x1"}
    assert [item["ref"]["agent"] for item in told("list", "--agent", "claude")] == ["claude-code"]
    assert len(told("list", "--limit", "1")) == 1
    assert len(told("list", "--project", "/work")) == 2
    assert told("list", "--project", "/work/proj") == []


def on_a_terminal(columns: int, *arguments: str) -> list[str]:
    """What a person sees of it, in lines."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1", "TERM": "dumb"}
    argv = [sys.executable, "-m", "workbench", "transcripts", *arguments]
    with subprocess.Popen(argv, env=environment, cwd=ROOT, stdout=slave, stderr=subprocess.DEVNULL) as process:
        os.close(slave)
        seen = b""
        # Where the other end is closed, a terminal's reader gets an error.
        with contextlib.suppress(OSError):
            while piece := os.read(master, 65_536):
                seen += piece
        assert process.wait() == 0
    os.close(master)
    return seen.decode().replace("\r", "").splitlines()


def test_on_a_narrow_terminal_only_directories_and_titles_are_cut(home: Path) -> None:
    long = {"type": "user", "sessionId": "d1", "timestamp": T0, "cwd": "/work/" + "deep/" * 30, "message": {}}
    long["message"] = {"role": "user", "content": "many words " * 20}
    id = "0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f"
    lines(home / ".claude" / "projects" / "p" / f"{id}.jsonl", long)
    for columns in (80, 140):
        _, *rows = on_a_terminal(columns, "list")
        [row] = [row for row in rows if "deep" in row]
        assert row.startswith("claude-code 2026-03-")
        assert f" {id[:8]} /work/deep" in row
        assert row.count("…") == 2
        assert len(row.rstrip()) <= columns
    [row] = [row for row in on_a_terminal(60, "usage", "--by", "project") if "/work/project" in row]
    assert row.split()[1:] == ["2", "2", "260", "40", "60", "?"]


def test_what_can_t_be_read_is_an_item_for_programs_and_said_to_people(home: Path) -> None:
    folder = home / ".codex" / "sessions" / "rollout-2026-03-02T10-00-00-z.jsonl.zst"
    folder.write_bytes(b"\x28\xb5\x2f\xfd" + b"damaged" * 20)
    assert "can't be read" in ran("list").stderr
    assert [item["error"]["_tag"] for item in told("list") if "error" in item] == ["ReadFailed"]


def test_a_session_is_shown_by_its_id_its_beginning_or_its_file(home: Path) -> None:
    path = home / ".claude" / "projects" / "-work-project" / "c1.jsonl"
    for named in ("c1", "c", str(path)):
        shown = ran("show", named).stdout
        assert ASKED in shown
        assert ANSWERED in shown
    assert told("show", "x1")["session_id"] == "x1"
    assert "session_not_found" in ran("show", "nobody", code=1).stderr
    assert "2 sessions" in ran("show", "", code=2).stderr


def test_what_was_said_is_searched(home: Path) -> None:
    assert len(ran("search", "FIX the").stdout.splitlines()) == 2
    assert [match["event"]["kind"] for match in told("search", "done", "--agent", "codex")] == ["reply"]
    assert ran("search", "nothing of this", code=1).stdout == ""
    ran("search", " ", code=2)


def test_usage_is_added_up_and_copies_count_once(home: Path) -> None:
    original = home / ".claude" / "projects" / "-work-project" / "c1.jsonl"
    (original.parent / "copy.jsonl").write_bytes(original.read_bytes())
    for by, names in (
        ("agent", {"claude-code", "codex", "total"}),
        ("model", {"claude-opus-4-8", "gpt-5.5", "total"}),
        ("project", {"/work/project", "total"}),
    ):
        rows = {row["name"]: row for row in told("usage", "--by", by)}
        assert rows.keys() == names
        assert (rows["total"]["input_tokens"], rows["total"]["output_tokens"]) == (260, 60)
    assert told("usage", "--since", "2026-04-01")[-1]["requests"] == 0
    assert told("usage", "--until", "2026-04-01")[-1]["requests"] == 2
    assert "COST" in ran("usage").stdout.splitlines()[0]
    ran("usage", "--since", "yesterday", code=2)


def test_costs_are_those_recorded_else_worked_out_from_prices(home: Path, tmp_path: Path) -> None:
    record = {
        "type": "assistant",
        "sessionId": "p",
        "timestamp": T0,
        "costUSD": 0.5,
        "message": {"id": "paid", "model": "m", "usage": {"input_tokens": 1, "output_tokens": 1}},
    }
    lines(home / ".claude" / "projects" / "p" / "p.jsonl", record)
    [row, _] = told("usage", "--by", "agent", "--agent", "claude")
    assert (row["cost_usd"], row["without_cost"]) == (0.5, 1)
    assert ran("usage", "--by", "agent", "--agent", "claude").stdout.splitlines()[1].endswith("$0.50+")
    prices = tmp_path / "prices.json"
    prices.write_text(
        json.dumps(
            {
                "claude-opus-4-8": {
                    "input_cost_per_token": 0.01,
                    "output_cost_per_token": 0.1,
                    "cache_read_input_token_cost": 0.001,
                }
            }
        )
    )
    [row, _] = told("usage", "--by", "agent", "--agent", "claude", "--prices", str(prices))
    # 10 fresh and 100 written at 0.01, 20 read at 0.001, 30 out at 0.1
    assert (row["cost_usd"], row["without_cost"]) == (pytest.approx(0.5 + 1.1 + 0.02 + 3.0), 0)
    prices.write_text("[]")
    ran("usage", "--prices", str(prices), code=2)


def test_a_session_is_exported_as_json_whole_and_as_it_is_shown_to_programs(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "c1.json"
    ran("export", "c1", "--format", "json", "-o", str(target))
    assert (
        json.loads(target.read_text())
        == json.loads(ran("export", "c1", "--format", "json").stdout)
        == told("show", "c1")
    )


def test_a_session_is_exported_as_markdown_and_as_html_that_runs_nothing(home: Path, tmp_path: Path) -> None:
    attack = "<script>alert(1)</script> ![x](http://example.com/x.png) [y](javascript:alert(2)) `code`"
    record = {"type": "user", "sessionId": "a", "timestamp": T0, "message": {"content": attack}}
    lines(home / ".claude" / "projects" / "p" / "a.jsonl", record)
    assert f"\n{attack}\n" in ran("export", "a").stdout
    assert len({ran("export", "a", *more).stdout for more in ((), ("--format", "md"), ("--format", "markdown"))}) == 1
    assert "markdown, json, html" in ran("export", "a", "--format", "pdf", code=2).stderr
    target = tmp_path / "a.html"
    ran("export", "a", "--format", "html", "-o", str(target))
    written = target.read_text()
    assert "<script" not in written
    assert "<img" not in written
    assert 'href="javascript' not in written
    assert "<code>code</code>" in written
    assert "default-src 'none'" in written
    ran("export", "a", "-o", str(target), code=1)
    assert target.read_text() == written


LONG = """
from pathlib import Path
import anyio
from workbench.transcripts import AgentHome, builtin_provider

class Long(type(builtin_provider().sessions["codex"])):
    agent = "long"
    home = staticmethod(lambda context: AgentHome((context.home,)))

    async def discover(self, platform, root, *, signal=None):
        Path(root, "begun").touch()
        await anyio.sleep_forever()
        yield
"""


@pytest.mark.parametrize("arguments", [("list",), ("list", "--json"), ("usage",), ("search", "text")])
def test_ctrl_c_ends_a_listing_that_takes_long(home: Path, arguments: tuple[str, ...]) -> None:
    """«leaving the loop stops the reads»."""
    (home / "their_long.py").write_text(LONG)
    about = home / "long-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: long\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[workbench.session_adapters]\nlong = their_long:Long\n")
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{home}"}
    argv = [sys.executable, "-m", "workbench", "transcripts", *arguments]
    process = subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for root in (home / "sessions", home / "archived_sessions"):
            root.mkdir()
        wait_until((home / "sessions" / "begun").exists, "the listing is at it")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in err


def test_sessions_are_read_in_a_home_where_nothing_may_be_written(home: Path) -> None:
    """«It lists, stats and reads; nothing here writes.»"""
    for path in (home, *home.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)

    def look() -> None:
        assert sorted(item["ref"]["session_id"] for item in told("list")) == ["c1", "x1"]
        assert told("usage")[-1]["name"] == "total"
        assert ANSWERED in ran("show", "c1").stdout

    before = sorted(home.rglob("*"))
    try:
        if os.geteuid() == 0:
            look()  # what it imports on the way can't be read by nobody
            let_nobody_enter(home)
            assert as_nobody(look) == 0
        else:
            look()
    finally:
        for path in (home, *home.rglob("*")):
            path.chmod(path.stat().st_mode | 0o200)
    assert sorted(home.rglob("*")) == before


@pytest.mark.parametrize("arguments", [("list", "--json"), ("usage", "--json"), ("search", "parser")])
def test_who_waits_at_a_terminal_sees_how_far_it_is_and_what_is_told_goes_where_it_is_to(
    home: Path, arguments: tuple[str, ...]
) -> None:
    argv = [sys.executable, "-m", "workbench", "transcripts", *arguments]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "40"}
    piped = subprocess.run(argv, env=environment, cwd=ROOT, check=True, capture_output=True, text=True)
    assert "Listing" not in piped.stdout + piped.stderr
    for both in (False, True):
        master, slave = pty.openpty()
        stdout = slave if both else subprocess.PIPE
        with subprocess.Popen(argv, env=environment, cwd=ROOT, stdout=stdout, stderr=slave, text=True) as process:
            os.close(slave)
            seen = b""
            with contextlib.suppress(OSError):
                while piece := os.read(master, 65_536):
                    seen += piece
            out, _ = process.communicate(timeout=120)
        os.close(master)
        assert process.returncode == 0, seen
        assert b"Listing" in seen
        if not both:
            assert out == piped.stdout
        elif "--json" in arguments:
            told = seen.decode().replace("\r", "")
            assert json.loads(told[told.index("[{") : told.rindex("]") + 1]) == json.loads(piped.stdout)
        else:
            assert b"codex" in seen or b"2026-03-01" in seen
