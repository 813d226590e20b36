"""The audit log says what was done, and shows where it was tampered with."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from workbench.errors import StateError
from workbench.review.audit import AuditLog, counted
from workbench.review.changeset import Change, ChangeKind


@pytest.fixture
def log(tmp_path: Path) -> AuditLog:
    made = AuditLog(str(tmp_path))
    for number in range(4):
        change = Change(b"a", ChangeKind.ADDED, None, None)
        made.append(
            "commit",
            session="s",
            commit_id=f"c{number}",
            message="x" * 3000 * number,
            counts=counted([change] * number),
        )
    return made


def test_what_was_done_is_read_back_in_order_with_its_counts(log: AuditLog) -> None:
    records = list(log.records())
    assert [record.commit_id for record in records] == ["c0", "c1", "c2", "c3"]
    assert records[3].counts == {"added": 3}
    assert records[0].user == records[3].user
    verified = log.verify()
    assert (verified.lines, verified.wrong) == (4, 0)


@pytest.mark.parametrize("how", ["changed", "removed", "inserted", "swapped"])
def test_a_line_that_was_tampered_with_shows(log: AuditLog, tmp_path: Path, how: str) -> None:
    path = tmp_path / "audit.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    if how == "changed":
        lines[1] = lines[1].replace(b'"c1"', b'"c9"')
    elif how == "removed":
        del lines[1]
    elif how == "inserted":
        lines.insert(2, lines[1])
    else:
        lines[1], lines[2] = lines[2], lines[1]
    path.write_bytes(b"".join(lines))
    assert log.verify().wrong in (2, 3)
    # It goes on from what stands there: what was wrong stays visible.
    log.append("discard", session="s")
    assert log.verify().wrong in (2, 3)


def test_a_line_that_cant_be_read_is_named(log: AuditLog, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"action":"commit"', b'"action":', 1))
    assert log.verify().wrong == 1
    with pytest.raises(StateError):
        list(log.records())


def test_a_line_torn_at_any_offset_never_reads_back_and_the_next_one_follows_the_last_whole_one(
    log: AuditLog, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    whole = path.read_bytes()
    last = whole.rstrip(b"\n").rfind(b"\n") + 1
    for end in range(last, len(whole), 997):
        path.write_bytes(whole[:end])
        assert len(list(log.records())) == 3
        log.append("discard", session="s")
        assert [record.action for record in log.records()] == ["commit"] * 3 + ["discard"]
        assert log.verify().wrong == 0


def test_many_writers_at_once_make_one_chain(tmp_path: Path) -> None:
    def write() -> None:
        for _ in range(20):
            AuditLog(str(tmp_path)).append("commit", session="s")

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    verified = AuditLog(str(tmp_path)).verify()
    assert (verified.lines, verified.wrong) == (80, 0)
