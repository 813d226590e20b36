"""The benchmark of the agent measures what it says, at a size that takes no time."""

from __future__ import annotations

from tests.benchmarks import agent


def test_ours_is_measured_and_what_is_not_installed_is_said() -> None:
    rows = list(agent.rows((2, 4), 5, 1, peers=("a-peer-that-is-not-there",)))
    assert [(row.what, row.against) for row in rows] == [
        ("a step of the loop, 2 steps", "a-peer-that-is-not-there"),
        ("a step of the loop, 4 steps", "a-peer-that-is-not-there"),
        ("a step of the loop, 4 steps", "2 steps"),
        ("a step's memory, 2 steps (kB)", "a-peer-that-is-not-there"),
        ("a step's memory, 4 steps (kB)", "a-peer-that-is-not-there"),
        ("a step's memory, 4 steps (kB)", "2 steps"),
        ("each of 5 idle sessions (kB)", "a-peer-that-is-not-there"),
    ]
    for row in rows:
        assert row.ours_ms >= 0
        if row.against.startswith("a-peer"):
            assert row.note == "it isn't installed: run with --peers"
        else:
            assert row.theirs_ms > 0


def test_the_stored_sessions_are_loaded() -> None:
    (row,) = agent.stored(10, 1)
    assert row.ours_ms > 0
    assert row.theirs_ms > 0
