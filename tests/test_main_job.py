"""exec, diff, commit: what the merged view holds is what lands."""

from __future__ import annotations

import hashlib
import json
import os
import random
import stat
from pathlib import Path

import pytest

from tests.bench import Bench
from tests.trees import Node, snapshot
from tests.vfs import kernel_history
from tests.vfs.kernel_history import History
from tests.vfs.test_overlay_kernel import _tree as python_tree
from workbench.review.changeset import Left
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.upper import LocalUpper

_RUN_HISTORY = """
import json, os, sys
os.umask(0o022)
history = History(b".", int(sys.argv[1]))
for _ in range(int(sys.argv[2])):
    history.step()
print(json.dumps(tree(b".")))
"""


def _history_source() -> str:
    source = Path(kernel_history.__file__).read_text()
    return source.partition('if __name__ == "__main__":')[0] + _RUN_HISTORY


@pytest.fixture
def bench(engine, state, tmp_path):
    return Bench(tmp_path / "w")


import contextlib
@pytest.mark.parametrize("seed", range(int(os.environ.get("S0","0")), int(os.environ.get("S1","3"))))
def test_random(bench, tmp_path, seed):
    w = tmp_path / "w"
    w.mkdir()
    here = os.getcwd()
    os.umask(0o022)
    maker = History(os.fsencode(w), seed)
    for _ in range(300):
        with contextlib.suppress(OSError):
            maker.random.choice([maker.do_mkdir, maker.do_create, maker.do_create, maker.do_symlink, maker.do_utime])()
    before = snapshot(w)
    for round in range(3):
        kernel = json.loads(bench.python(_history_source(), str(seed * 10 + round), "120"))
        bench_ov = bench.overlay
        with LocalStorage(os.fsencode(w)) as lower, LocalUpper(os.fsencode(bench_ov + "/upper")) as upper:
            assert python_tree(Overlay(lower, upper, scratch=b"none")) == kernel
        assert snapshot(w) == before
        view = bench.inside(times=True)
        changes = bench.changes()
        landed = bench.commit(allow_risky=True)
        after = snapshot(w, times=False)
        left = {one.path: one.reason for one in changes.left}
        def out(path):
            return any(path == l or path.startswith(l + b"/") for l in left)
        for path in sorted({*view, *after}):
            if out(path): continue
            a = view.get(path); b = after.get(path)
            if a: 
                m = a.mode
                if stat.S_ISREG(a.kind): m &= 0o1777
                a = a._replace(mode=m, mtime_ns=0)
            if a and b and stat.S_ISDIR(a.kind) and a.mode != b.mode and a.mode & 0o1777 == b.mode & 0o1777:
                continue
            assert a == b, (round, path, a, b)
        before = snapshot(w)
        again = bench.inside(times=False)
        view = {k: v._replace(mtime_ns=0) for k, v in view.items()}
        for path in sorted({*view, *again}):
            a, b = view.get(path), again.get(path)
            if a and stat.S_ISDIR(a.kind) and b: a, b = a._replace(mtime_ns=0), b._replace(mtime_ns=0)
            assert a == b, ("view", round, path, a, b, left.get(path))
        print(len(changes.changes), left)
        assert not bench.changes().changes, bench.changes().changes
