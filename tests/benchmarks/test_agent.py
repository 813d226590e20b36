"""The benchmark of the agent measures what it says, at a size that takes no time."""

from __future__ import annotations

from tests.benchmarks import agent


def test_ours_is_measured_and_what_is_not_installed_is_said() -> None:
    rows = list(agent.rows((2, 4), 5, 1, peers=("a-peer-that-is-not-there",)))
    assert [row.what for row in rows] == [
        "a step of the loop, 2 steps",
        "a step of the loop, 4 steps",
        "each of 5 idle sessions (kB)",
        "a step of the loop, 4 steps",
    ]
    for row in rows[:3]:
        assert row.note == "it isn't installed: run with --peers"
        assert row.ours_ms >= 0
    assert rows[3].theirs_ms > 0


def test_the_stored_sessions_are_loaded() -> None:
    (row,) = agent.stored(10, 1)
    assert row.ours_ms > 0
    assert row.theirs_ms > 0
