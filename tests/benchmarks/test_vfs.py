"""The benchmark of the virtual filesystem measures what it says, at a size that takes no time."""

from __future__ import annotations

import os

import pytest

from tests.benchmarks import vfs


@pytest.fixture(scope="module")
def rows() -> dict[tuple[str, str], vfs.Row]:
    return {(row.what, row.against): row for row in vfs.rows(vfs.TINY, 1, peers=())}


def test_every_operation_of_ours_is_measured(rows: dict[tuple[str, str], vfs.Row]) -> None:
    for name in ("upper on disk", "upper in memory", "fsspec face, upper in memory"):
        measured = [what for what, _ in rows if what.endswith(f": {name}")]
        assert len(set(measured)) == 13
    assert all(row.ours_ms > 0 for row in rows.values())


def test_the_bare_calls_are_measured_for_what_has_a_number_to_reach(rows: dict[tuple[str, str], vfs.Row]) -> None:
    measured = {what.removesuffix(": bare calls on disk") for what, _ in rows if what.endswith(": bare calls on disk")}
    assert measured == set(vfs._CALLS["calls on disk"][1])


def test_a_row_has_a_ratio_or_says_why_not(rows: dict[tuple[str, str], vfs.Row]) -> None:
    for (_, against), row in rows.items():
        assert bool(row.note) != bool(row.theirs_ms)
        assert "Error" not in row.note
        assert "instead of" not in row.note
        if against.startswith("fsspec"):
            assert row.note in ("", "it writes in place", "it works on a copy", "it has no lower layer")


@pytest.mark.root
def test_the_kernels_overlay_is_measured(rows: dict[tuple[str, str], vfs.Row]) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    notes = {row.note for (_, against), row in rows.items() if against == "kernel"}
    if any(note and note != "mounting needs root" for note in notes) and os.environ.get("CI") != "true":
        pytest.skip(f"the kernel's overlay can't be mounted here: {notes}")
    assert notes == {""}


def test_another_answer_is_no_measurement() -> None:
    told: list[dict[str, float | str]] = [{"read": 1.0}, {"read": "it answers 1 instead of 2"}]
    assert vfs._median(told, "read") == "it answers 1 instead of 2"
