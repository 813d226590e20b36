"""The benchmark of sandboxes measures what it says, with few commands."""

from __future__ import annotations

from tests.benchmarks import inside, sandbox
from tests.needed import need_program


def test_a_row_for_each_backend_and_each_way_has_a_ratio(engine: None) -> None:
    need_program("bwrap")
    rows = list(sandbox.rows(1, 2, peers=()))
    assert [(row.what, row.against) for row in rows] == [
        (f"{what}, {backend}", against)
        for what, against in (
            ("a command in a warm sandbox", "docker exec, command line"),
            ("from nothing to the first answer", "docker run --rm IMAGE true"),
        )
        for backend in ("docker", "namespace")
    ]
    assert all(row.ours_ms > 0 and row.theirs_ms > 0 and not row.note for row in rows)


def test_work_in_each_backend_is_measured_against_a_bind_mount_and_the_same_outside(engine: None) -> None:
    need_program("bwrap")
    need_program("rg")
    rows = list(inside.inside(20, 2, 1))
    assert [(row.what, row.against) for row in rows] == [
        (f"{what}, 20 files, {backend}", against)
        for what in ("status", "search", "build", "tests")
        for backend in ("docker", "namespace")
        for against in ("a bind mount of a copy, in a container", "the same outside")
    ]
    assert all(row.ours_ms > 0 and row.theirs_ms > 0 for row in rows)
