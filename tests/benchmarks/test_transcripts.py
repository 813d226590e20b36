"""The benchmark of other agents' sessions measures what it says, at a size that takes no time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.benchmarks import transcripts
from tests.benchmarks.large_sessions import LARGE, make_large
from tests.benchmarks.sessions import Sizes, make_sessions
from tests.transcripts.reading_sessions import heads, loaded

TINY = Sizes(sessions=20, every=10, large=900_000)


def test_ours_is_measured_and_what_is_not_installed_is_said() -> None:
    found = list(transcripts.rows(TINY, 1, peers=("a-peer-that-is-not-there",)))
    assert [(row.what.split(" 20 ")[0], row.against) for row in found] == [
        ("list", "ai-r"),
        ("list", "a tenth of them"),
        ("usage of", "ccusage"),
        ("usage of", "a tenth of them"),
        ("search", ""),
        ("search", "a tenth of them"),
    ]
    assert [row.note for row in found[::2]] == [
        "it isn't installed: run with --peers",
        "it isn't installed: run with --peers",
        "no peer that needs no index",
    ]
    assert all(row.ours_ms > 0 for row in found)
    assert all(row.theirs_ms > 0 for row in found[1::2])


def test_a_summary_is_measured_against_loading_for_each_agent_of_large_sessions() -> None:
    found = list(transcripts.summaries(60_000, 1))
    assert [row.what.split()[5].rstrip(",") for row in found[::2]] == sorted(LARGE)
    assert all(row.what.endswith("its JSON alone") for row in found[1::2])
    assert all(row.ours_ms > 0 and row.theirs_ms > 0 for row in found)


@pytest.mark.parametrize("agent", sorted(LARGE))
def test_a_large_session_that_is_made_is_read_as_a_real_one_is(agent: str, tmp_path: Path) -> None:
    path = make_large(agent, tmp_path, 60_000)
    assert path.read_bytes() == make_large(agent, tmp_path / "again", 60_000).read_bytes()
    transcript = loaded(agent, path)
    assert transcript.skipped == ()
    assert {"prompts", "replies", "usage", "tool_calls", "times"} <= set(transcript.capabilities)
    assert len(transcript.requests) > 5


def test_the_sessions_that_are_made_are_read_as_real_ones_are(tmp_path: Path) -> None:
    """The same each time, every record known, the large ones as large as they are to be."""
    size = make_sessions(tmp_path / "once", TINY)
    assert make_sessions(tmp_path / "again", TINY) == size
    found = [*heads("claude-code", tmp_path / "once" / ".claude"), *heads("codex", tmp_path / "once" / ".codex")]
    assert len(found) == TINY.sessions
    assert sum(head.size_bytes >= TINY.large for head in found) == TINY.sessions // TINY.every
    for head in found:
        transcript = loaded(head.ref.agent, head.ref.path)
        assert transcript.skipped == ()
        assert transcript.title is not None or head.ref.agent == "codex" or len(transcript.requests) < 5
        assert {"prompts", "replies", "usage", "tool_calls", "times"} <= set(transcript.capabilities)
    (lane,) = (tmp_path / "once").rglob("agent-*.jsonl")
    assert json.loads(lane.read_text().splitlines()[0])["isSidechain"] is True
