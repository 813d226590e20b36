"""exec, diff, commit: what the merged view holds is what lands, and nothing else does."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import stat
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.conftest import ROOT, Cli
from tests.trees import Node, snapshot
from tests.vfs import kernel_history
from tests.vfs.kernel_history import History
from tests.vfs.test_overlay_kernel import _tree as python_tree
from workbench.errors import CommitError
from workbench.review.changeset import Left, LeftPath
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper

Tree = dict[bytes, Node]

ODD_NAMES = (
    b"new\nline",
    b"not-utf8-\xff\xfe\x80",
    b"n" * 255,
    "日本語 ünï".encode(),
    b"co:lon",
    b"com,ma",
    b"back\\slash",
    b" sp ace ",
    b"-leading",
    b"--",
    b"quo'te\"$HOME`x`*?[a]",
    b"tab\tand\x01control\x7f",
    b".hidden",
    b"...",
    b"~",
    b"_private",
    b".workbench-not-ours",
    b"user.overlay.opaque",
)

_MAKE_ODD_NAMES = """
import os, sys
for directory in (b".", b"d", b"odd-" + b"x" * 200):
    os.makedirs(directory, exist_ok=True)
    for number, name in enumerate(eval(sys.argv[1])):
        path = os.path.join(directory, name)
        if number % 3 == 0:
            os.makedirs(os.path.join(path, name))
        elif number % 3 == 1:
            os.symlink(name, path)
        if number % 3:
            os.symlink(name, path + b"~"[: len(name) < 255])  if len(name) < 255 and number % 3 == 2 else None
        if number % 3 == 2:
            with open(path, "wb") as file:
                file.write(name)
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    path = tmp_path / "w"
    path.mkdir()
    return path


@pytest.fixture
def bench(engine: None, state: Path, workspace: Path) -> Bench:
    return Bench(workspace)


def landable(view: Tree, left: Iterable[LeftPath]) -> Tree:
    """What a workspace has to be after a commit of a merged view: the view, without what never lands.

    `left` are the paths that were named as staying; setuid and setgid bits of files never land either.
    """
    stays = {one.path for one in left if one.reason is not Left.SETID}
    expected = {}
    for path, node in view.items():
        above = path
        while above and above not in stays:
            above = above.rpartition(b"/")[0]
        if not above:
            mode = node.mode & 0o1777 if stat.S_ISREG(node.kind) else node.mode
            expected[path] = node._replace(mode=mode)
    return expected


# The merged view, and random histories


_RUN_HISTORY = """
os.umask(0o022)
history = History(b".", int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    history.step()
print(json.dumps(tree(b".")))
"""


def _history_source() -> str:
    source = Path(kernel_history.__file__).read_text()
    return source.partition('if __name__ == "__main__":')[0] + _RUN_HISTORY


@pytest.mark.parametrize("seed", [2, 11, 14])
def test_a_random_history_shows_lands_and_goes_on_as_the_kernel_shows_it(
    bench: Bench, workspace: Path, seed: int
) -> None:
    maker = History(os.fsencode(workspace), seed)
    for _ in range(300):
        with contextlib.suppress(OSError):
            maker.random.choice([maker.do_mkdir, maker.do_create, maker.do_create, maker.do_symlink, maker.do_link])()
    for turn in range(2):
        before = snapshot(workspace)
        kernels = json.loads(bench.python(_history_source(), str(seed * 10 + turn), "120"))
        with (
            LocalStorage(os.fsencode(workspace)) as lower,
            LocalUpper(os.fsencode(os.path.join(bench.overlay, "upper"))) as upper,
        ):
            assert python_tree(Overlay(lower, upper, scratch=b"no-scratch-here")) == kernels
        assert snapshot(workspace) == before
        view = bench.inside()
        left = bench.changes().left
        assert {one.reason for one in left} <= {Left.FIFO, Left.SETID}
        bench.commit(allow_risky=True)
        after = snapshot(workspace, times=False)
        # A kept FIFO keeps the directory that it was in, and what it took the place of.
        named = {one.path for one in left}
        assert {path: node for path, node in after.items() if not _at_or_above(path, named)} == {
            path: node for path, node in landable(view, left).items() if not _at_or_above(path, named)
        }
        assert bench.inside() == view
        assert bench.told() == {}


def _at_or_above(path: bytes, named: set[bytes]) -> bool:
    return any(name == path or name.startswith(path + b"/" if path else b"") or path.startswith(name + b"/") for name in named)
