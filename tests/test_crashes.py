"""A commit lands whole or not at all: killed at any moment, on a full disk, or where a permission is missing."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.conftest import make_tree
from tests.review.landing import calls, count_of, in_child, kill_at
from tests.sandbox.users import OrdinaryUser, ordinary_user
from tests.trees import snapshot
from tests.vfs.test_overlay_kernel import _tree as python_tree
from workbench.errors import CommitError
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper

SHOWN = """
rm -r docs; mkdir docs; echo shown > docs/new
echo shown > README.md; chmod 755 run.sh; rm empty; mkdir empty; echo shown > empty/file
rm link; ln -s run.sh link; mv src moved; echo shown > moved/main.py; mkdir -p fresh/tree; echo shown > fresh/tree/file
"""
LATER = """
echo later > README.md; rm fresh/tree/file; echo later > later; echo later > docs/later; mkdir link-to; mkfifo fifo
mkdir _notes; echo note > _notes/note; chmod 644 run.sh
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    make_tree(path)
    return path


@pytest.fixture
def bench(engine: None, state: Path, workspace: Path) -> Bench:
    return Bench(workspace)


def merged(bench: Bench) -> dict[str, dict[str, object]]:
    """The merged view as Python computes it; without times, and what is there is told of directories only by name."""
    with (
        LocalStorage(bench.workspace) as lower,
        LocalUpper(os.fsencode(os.path.join(bench.overlay, "upper"))) as upper,
    ):
        tree = python_tree(Overlay(lower, upper, scratch=b"no-scratch-here"))
    return {path: {name: told for name, told in facts.items() if name != "mtime"} for path, facts in tree.items()}


class Crash:
    """A commit in a process of its own, which is killed on the way."""

    def __init__(self, bench: Bench, workspace: Path) -> None:
        self.bench, self.workspace = bench, workspace
        self.old = snapshot(workspace, times=False)
        bench.sh(SHOWN)
        self.new = bench.inside()
        self.digest = bench.review()
        bench.sh(LATER)
        bench.changes()
        bench.stop()
        self.view = merged(bench)

    def commit(self, hook: Callable[[str], None]) -> None:
        with calls(hook):
            self.bench.commit(self.digest, allow_risky=True)

    def killed_at(self, number: int) -> bool:
        """Whether it was killed before its end."""
        return in_child(lambda: self.commit(kill_at(number))) != 0

    def tree(self) -> dict[bytes, object]:
        return dict(snapshot(self.workspace, times=False))


    def outcome(self) -> str:
        """What the next command finds, or makes of it: `old` or `new`, whole; the merged view is what it was."""
        self.bench.told()
        self.assert_tidy()
        tree = self.tree()
        assert tree in (self.old, self.new)
        assert merged(self.bench) == self.view
        return "old" if tree == self.old else "new"

    def assert_tidy(self) -> None:
        assert not [path for path in snapshot(self.workspace, times=False) if b".workbench-" in path]


def test_killed_at_any_moment_a_commit_is_whole_after_the_next_command(
    engine: None, state: Path, tmp_path: Path
) -> None:
    number, outcomes = 0, []
    while True:
        workspace = tmp_path / f"w{number}"
        make_tree(workspace)
        crash = Crash(Bench(workspace), workspace)
        # One that was undone can be done again, with the digest that was shown.
        while killed := crash.killed_at(number):
            outcomes.append(crash.outcome())
            number += 3 if outcomes[-1] == "old" else 14
            if outcomes[-1] == "new":
                break
        if not killed:
            break
        # What landed is landed: what came later is all that is left, and lands as well.
        assert crash.bench.told()[b"README.md"] == "modified"
        assert crash.bench.told()[b"fresh/tree/file"] == "deleted"
        crash.bench.commit()
        assert crash.bench.told() == {}
    assert crash.outcome() == "new"
    assert outcomes == sorted(outcomes, key=["old", "new"].index)
    assert outcomes.count("old") > 10
    assert outcomes.count("new") > 3
