"""P6 as a property: whatever was done, wherever one goes, the merged view is what it was when it was recorded."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from tests.checkpoints.layers import Operations, Shown, fill
from tests.trees import snapshot
from tests.worked import Worked
from workbench.errors import CheckpointError, CommitError

SEEDS = st.integers(0, 10**6)


class Histories(RuleBasedStateMachine):
    """Operations, checkpoints, rewinds (of single paths, too), redos, forks, commits, discards, in any order."""

    fresh: Callable[[], Path]

    @initialize()
    def begin(self) -> None:
        top = self.fresh()
        workspace = top / "w"
        workspace.mkdir()
        fill(workspace)
        self.worked = Worked(workspace, top / "merged")
        self.number = 0
        self.commits = 0
        # By session, id and how many commits there were; forks take their parents' along.
        self.recorded: dict[str, tuple[int, dict[bytes, Shown]]] = {}
        self.redo: list[tuple[int, dict[bytes, Shown]]] = []
        self.real = snapshot(workspace)
        self._record()

    def _record(self) -> str:
        self.number += 1
        message = f"m{self.number}"
        self.worked.checkpoint(message)
        self.recorded[message] = (self.commits, self.worked.view())
        return message

    def _require(self, expected: tuple[int, dict[bytes, Shown]]) -> None:
        commits, view = expected
        now = self.worked.view()
        if commits != self.commits:
            now, view = across(now), across(view)
        assert now == view

    @rule(seed=SEEDS, count=st.integers(1, 12))
    def work(self, seed: int, count: int) -> None:
        with self.worked.mounted() as merged:
            Operations(merged, seed).run(count)

    @rule()
    def checkpoint(self) -> None:
        self._record()

    @rule(data=st.data())
    def rewind(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(sorted(self.recorded)))
        here = (self.commits, self.worked.view())
        self.worked.rewind(message)
        self._require(self.recorded[message])
        self._remember(here)

    def _remember(self, here: tuple[int, dict[bytes, Shown]]) -> None:
        """Where there was nothing to do, there's nothing to take back."""
        if self.worked.redo_levels() > len(self.redo):
            self.redo.append(here)
        else:
            self._require(here)

    @rule(data=st.data())
    def rewind_one_path(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(sorted(self.recorded)))
        there = self.recorded[message][1]
        before = self.worked.view()
        path = data.draw(st.sampled_from(sorted((there.keys() | before.keys()) - {b""})))
        try:
            self.worked.rewind(message, only=[path])
        except CheckpointError:
            # Something that was made since is in the way of its directory; then nothing has changed.
            above = [path.rsplit(b"/", count)[0] for count in range(1, path.count(b"/") + 1)]
            assert any(each in before and not stat.S_ISDIR(before[each].mode) for each in above)
        else:
            now = self.worked.view()
            assert part(now, path, is_inside=True) == part(there, path, is_inside=True)
            assert part(now, path, is_inside=False) == part(before, path, is_inside=False)
        self._remember((self.commits, before))

    @precondition(lambda self: self.redo)
    @rule()
    def go_back(self) -> None:
        self.worked.redo()
        self._require(self.redo.pop())

    @rule()
    def discard(self) -> None:
        here = (self.commits, self.worked.view())
        self.worked.discard()
        self._remember(here)

    @precondition(lambda self: self.commits < 4)
    @rule()
    def commit(self) -> None:
        before = self.worked.view()
        if not self.worked.changes().changes:
            with pytest.raises(CommitError, match="nothing to commit"):
                self.worked.commit(allow_risky=True)
            return
        self.worked.commit(allow_risky=True)
        self.commits += 1
        self.real = snapshot(self.worked.workspace)
        assert landed(self.worked.view()) == landed(before)

    @rule(data=st.data())
    def fork(self, data: st.DataObject) -> None:
        message = data.draw(st.sampled_from(sorted(self.recorded)))
        self.number += 1
        self.worked = self.worked.fork(message, f"s{self.number}")
        self._require(self.recorded[message])
        # What the other session recorded since lies on another branch.
        order = [each for each in self.recorded if int(each[1:]) <= int(message[1:])]
        self.recorded = {each: self.recorded[each] for each in order}
        self.redo = []

    @rule()
    def the_workspace_is_untouched(self) -> None:
        assert snapshot(self.worked.workspace) == self.real


def part(view: dict[bytes, Shown], path: bytes, *, is_inside: bool) -> dict[bytes, Shown]:
    """What is at and below a path, or all else but the directories above it."""
    found = {}
    for each, shown in across(view).items():
        if (each == path or each.startswith(path + b"/")) is is_inside and not path.startswith(each + b"/") and each:
            found[each] = shown
    return found


def across(view: dict[bytes, Shown]) -> dict[bytes, Shown]:
    """What holds across a commit too: it sets the times of real directories, and links to a real file are broken by it."""
    return {
        path: shown._replace(mtime_ns=0, link=b"") if shown.mode & 0o170000 == 0o040000 else shown._replace(link=b"")
        for path, shown in view.items()
    }


def landed(view: dict[bytes, Shown]) -> dict[bytes, tuple[int, bytes]]:
    """What a commit promises to keep: neither owners nor attributes nor times are part of what's reviewed."""
    return {path: (shown.mode & ~0o6000, shown.content) for path, shown in view.items()}


@pytest.mark.root
def test_wherever_one_goes_the_view_is_what_was_recorded(state: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    made: list[Path] = []

    def fresh() -> Path:
        made.append(tmp_path_factory.mktemp("history"))
        return made[-1]

    class Machine(Histories):
        pass

    Machine.fresh = staticmethod(fresh)
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=int(os.environ.get("WORKBENCH_EXAMPLES", "12")),
            stateful_step_count=14,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
        ),
    )
    for path in made:
        subprocess.run(["rm", "-rf", path], check=True)
