"""Checkpoints of an upper layer, against what git takes for the same."""

from __future__ import annotations

import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.benchmarks.rows import REPEATS, Row
from tests.conftest import git_in
from workbench.checkpoints.store import CheckpointStore
from workbench.vfs.local import LocalStorage
from workbench.vfs.upper import LocalUpper

_FRESH, _WORKSPACE, _CHANGES = 20_000, 100_000, 10


def checkpoints() -> Iterator[Row]:
    """A checkpoint of many new files, and one of few changes in a large workspace."""
    with tempfile.TemporaryDirectory() as directory:
        yield _fresh(Path(directory))
    with tempfile.TemporaryDirectory() as directory:
        yield _few(Path(directory))


def _fresh(base: Path) -> Row:
    upper, lower = base / "upper", base / "lower"
    lower.mkdir()
    _fill(upper, _FRESH)

    def ours(number: int) -> float:
        with CheckpointStore(base / f"store{number}") as store:
            return _take(store, upper, lower, "first")

    def theirs(number: int) -> float:
        git = _git(upper)
        took = _timed(lambda: (git("add", "-A"), git("commit", "-q", "-m", "first")))
        shutil.rmtree(upper / ".git")
        return took

    return Row(f"checkpoint of a fresh upper of {_FRESH:,} files", *_medians(ours, "git add -A, commit", theirs))


def _few(base: Path) -> Row:
    shadow, upper, lower = base / "shadow", base / "upper", base / "lower"
    lower.mkdir()
    upper.mkdir()
    _fill(shadow, _WORKSPACE)
    git = _git(shadow)
    git("add", "-A")
    git("commit", "-q", "-m", "first")
    with CheckpointStore(base / "store") as store:
        _take(store, upper, lower, "first")

        def ours(number: int) -> float:
            _change(upper, number)
            return _take(store, upper, lower, f"m{number}")

        def theirs(number: int) -> float:
            _change(shadow, number)
            return _timed(lambda: (git("add", "-A"), git("commit", "-q", "-m", f"m{number}")))

        what = f"checkpoint of {_CHANGES} changes in a workspace of {_WORKSPACE:,} files"
        return Row(what, *_medians(ours, "git add -A, commit in a warm shadow repository", theirs))


def _medians(ours: Callable[[int], float], against: str, theirs: Callable[[int], float]) -> tuple[float, str, float]:
    measured = [(ours(number), theirs(number)) for number in range(min(REPEATS, 5))]
    return statistics.median(each[0] for each in measured), against, statistics.median(each[1] for each in measured)


def _fill(root: Path, files: int) -> None:
    for number in range(files):
        directory = root / f"d{number // 1000}" / f"e{number // 100 % 10}"
        if number % 100 == 0:
            directory.mkdir(parents=True)
        (directory / f"f{number % 100}.py").write_text(
            "".join(f"def f{number}_{line}(x):\n    return x * {number * line}\n" for line in range(12))
        )


def _change(root: Path, number: int) -> None:
    (root / "d0" / "e0").mkdir(parents=True, exist_ok=True)
    for each in range(_CHANGES):
        (root / "d0" / "e0" / f"f{each}.py").write_text(f"value = {number * each}\n" * 20)


def _take(store: CheckpointStore, upper: Path, lower: Path, message_id: str) -> float:
    with LocalUpper(os.fsencode(upper)) as upper_layer, LocalStorage(os.fsencode(lower)) as lower_layer:
        return _timed(
            lambda: store.take("default", upper_layer, lower_layer, message_id=message_id, epoch_ns=None, offline=True)
        )


def _git(root: Path) -> Callable[..., object]:
    git = git_in(root)
    git("init", "-q", "-b", "main")
    # Else git collects garbage behind the measurement's back.
    git("config", "gc.auto", "0")
    git("config", "maintenance.auto", "false")
    return git


def _timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1000
