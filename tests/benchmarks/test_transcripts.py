"""The benchmark of other agents' sessions measures what it says, at a size that takes no time."""

from __future__ import annotations

import json
from pathlib import Path

from tests.benchmarks import transcripts
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
