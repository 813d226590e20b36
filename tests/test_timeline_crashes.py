"""A rewind, a redo and a discard killed at any moment are brought to their end by the next command, or had not begun."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests.checkpoints.layers import Shown, fill
from tests.review.landing import calls, in_child, kill_at
from tests.test_timeline import plain, without_directory_times
from tests.worked import Worked
from workbench.errors import OverlayError

STRIDE = int(os.environ.get("WORKBENCH_STRIDE", "7"))
"""Of all the calls that change something, how many lie between two that a process is killed at."""


@pytest.fixture
def worked(state: Path, tmp_path: Path) -> Worked:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    workspace = tmp_path / "w"
    workspace.mkdir()
    fill(workspace)
    made = Worked(workspace, tmp_path / "merged")
    made.checkpoint("start")
    with made.mounted() as merged:
        (merged / "README").write_text("landed")
        shutil.rmtree(merged / "docs")
    made.commit()
    with made.mounted() as merged:
        (merged / "README").write_text("later")
        (merged / "new" / "deep").mkdir(parents=True)
        (merged / "new" / "deep" / "file").write_text("new")
        (merged / "src" / "a.py").chmod(0o600)
        os.link(merged / "run", merged / "run2")
        merged.chmod(0o700)
    made.checkpoint("later")
    return made


def rewind(worked: Worked) -> None:
    worked.rewind("start")


def rewind_one(worked: Worked) -> None:
    worked.rewind("start", only=[b"docs"])


def redo(worked: Worked) -> None:
    worked.redo()


def discard(worked: Worked) -> None:
    worked.discard()


def discard_one(worked: Worked) -> None:
    worked.do(lambda workspace: workspace.discard(only=[b"new"]))


def fork(worked: Worked, name: str) -> None:
    worked.fork("start", name)


@pytest.mark.parametrize("act", [rewind, rewind_one, redo, discard, discard_one])
def test_killed_at_any_moment_it_is_whole_after_the_next_command(worked: Worked, act: Callable[[Worked], None]) -> None:
    if act is redo:
        worked.rewind("start")
    old = worked.view()
    levels = worked.redo_levels()
    seen: set[str] = set()
    number = 0
    while in_child(partial(_killed, worked, act, number)) != 0:
        # Any command will do.
        worked.told()
        view = worked.view()
        if worked.redo_levels() == levels:
            assert view == old
            seen.add("old")
        else:
            assert worked.redo_levels() == levels + (-1 if act is redo else 1)
            assert not os.path.exists(os.path.join(worked.overlay, "journey.json"))
            assert not os.path.exists(os.path.join(worked.overlay, "restore"))
            _require(act, view)
            seen.add("new")
            # And it's taken back whole.
            if act is redo:
                worked.rewind("start")
            else:
                worked.redo()
            assert without_directory_times(worked.view()) == without_directory_times(old)
            old, levels = worked.view(), worked.redo_levels()
        number += STRIDE
    assert seen == {"old", "new"}


def test_a_fork_killed_at_any_moment_is_whole_or_can_be_made_again_under_its_name(worked: Worked) -> None:
    worked.rewind("start")
    expected = plain(worked.view())
    worked.redo()
    old = worked.view()
    is_there = is_not_there = False
    number = 0
    while in_child(partial(_killed, worked, partial(fork, name=f"side{number}"), number)) != 0:
        try:
            side = worked.fork("start", f"side{number}")
            is_not_there = True
        except OverlayError:
            # Opening it, as any command does, brings it to its end.
            side = Worked(Path(os.fsdecode(worked.workspace)), worked.mount, f"side{number}")
            is_there = True
        assert plain(side.view()) == expected
        number += STRIDE
    assert is_there
    assert is_not_there
    assert worked.view() == old


def _killed(worked: Worked, act: Callable[[Worked], None], number: int) -> None:
    with calls(kill_at(number)):
        act(worked)


def _require(act: Callable[[Worked], None], view: dict[bytes, Shown]) -> None:
    """What each arrives at."""
    readme = {rewind: b"lower README\n", discard: b"landed"}.get(act, b"later")
    assert view[b"README"].content == readme
    assert (b"docs/old/y" in view) == (act in (rewind, rewind_one))
    assert (b"new/deep/file" in view) == (act in (rewind_one, redo))
    assert (view[b""].mode & 0o7777 == 0o700) == (act in (rewind_one, redo, discard_one))
