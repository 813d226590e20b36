"""Commits, against what else brings a merged tree into a directory: rsync, and git's checkout. Durable on both sides."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.benchmarks.__main__ import make_repository, paired, run, scratch
from tests.benchmarks.rows import REPEATS, Row
from tests.benchmarks.travel import FILES, Session, change, session
from tests.conftest import git_in

_MANY = 10_000
_FEW_REPEATS = max(3, REPEATS // 5)


def commits() -> Iterator[Row]:
    """Landing ten changes in a big workspace, and ten thousand."""
    with scratch(10) as few:
        many = few.parent / "many"
        make_repository(many, FILES)
        merged, target = few.parent / "merged", few.parent / "target"
        for copy in (merged, target):
            run("cp", "-a", str(many), str(copy))
            shutil.rmtree(copy / ".git")
        with session(many) as ours, session(few) as small:
            yield from _ten(ours, small, merged, target)
            yield from _ten_thousand(ours, merged, target)


def _rsync(merged: Path, target: Path) -> None:
    """Bring what changed over, and have it on disk as a commit has."""
    run("rsync", "-a", "--delete", f"{merged}/", f"{target}/")
    run("sync", "-f", str(target))


def _ten(ours: Session, small: Session, merged: Path, target: Path) -> Iterator[Row]:
    what = f"commit of 10 changes, {FILES:,} files"
    if shutil.which("rsync") is None:
        yield Row(what, 0.0, "rsync -a --delete, sync", 0.0, "rsync isn't installed")
    else:
        mine, theirs = _prepared(
            lambda seed: (change(ours.upper, 10, seed), change(merged, 10, seed)),
            lambda: land(ours),
            lambda: _rsync(merged, target),
            _FEW_REPEATS,
        )
        yield Row(what, mine, "rsync -a --delete, sync", theirs)
    mine, theirs = _prepared(
        lambda seed: (change(ours.upper, 10, seed), change(small.upper, 10, seed)),
        lambda: land(ours),
        lambda: land(small),
        REPEATS,
    )
    yield Row(what, mine, "the same, 10 files", theirs)


def _ten_thousand(ours: Session, merged: Path, target: Path) -> Iterator[Row]:
    what = f"commit of {_MANY:,} changes, {FILES:,} files"
    if shutil.which("rsync") is not None:
        mine, theirs = _prepared(
            lambda seed: (change(ours.upper, _MANY, seed), change(merged, _MANY, seed)),
            lambda: land(ours),
            lambda: _rsync(merged, target),
            3,
        )
        yield Row(what, mine, "rsync -a --delete, sync", theirs)
    git = git_in(target)
    git("init", "-q", "-b", "main")
    git("add", "-A")
    git("commit", "-q", "-m", "0")

    def prepare(seed: int) -> None:
        change(ours.upper, _MANY, seed)
        git("checkout", "-q", "-B", f"next{seed}", "main")
        change(target, _MANY, seed)
        git("commit", "-q", "-a", "-m", "next")
        git("checkout", "-q", "main")
        prepared.append(f"next{seed}")

    prepared: list[str] = []

    def check_out() -> None:
        git("checkout", "-q", prepared[-1])
        run("sync", "-f", str(target))

    mine, theirs = _prepared(prepare, lambda: land(ours), check_out, 3)
    yield Row(what, mine, "git checkout, sync", theirs)


def land(one: Session) -> None:
    """Look at what there is, and land it."""

    async def go() -> None:
        changes = await one.workspace.changes()
        await one.workspace.commit(one.workspace.reviewed(changes), allow_risky=True)

    one.call(go)


def _prepared(
    prepare: Callable[[int], object], ours: Callable[[], object], theirs: Callable[[], object], repeats: int
) -> tuple[float, float]:
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        prepare(next(_seeds))
        for found, one in zip(times, paired(ours, theirs, 1), strict=True):
            found.append(one)
    first, second = (sorted(found)[len(found) // 2] for found in times)
    return first, second


_seeds = iter(range(10**6))
