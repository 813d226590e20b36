"""Checkpoints and rewinds, against a shadow repository over the whole workspace, as coding agents keep one, and a copy."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio

from tests.benchmarks.__main__ import make_repository, paired, run, scratch
from tests.benchmarks.rows import REPEATS, Row
from workbench import Workspace
from workbench.checkpoints import upkeep

FILES = 100_000
_STEPS = 300


class Shadow:
    """A bare repository of its own over a tree, with git's plumbing."""

    def __init__(self, tree: Path, directory: Path) -> None:
        self._environment = {
            "PATH": os.environ["PATH"],
            "HOME": "/nonexistent",
            "GIT_DIR": str(directory),
            "GIT_WORK_TREE": str(tree),
            "GIT_CONFIG_NOSYSTEM": "1",
            **{f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")},
        }
        self._tree = tree
        run("git", "init", "-q", "--bare", str(directory))
        self.git("config", "core.bare", "false")
        self.git("config", "gc.auto", "0")

    def git(self, *arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], env=self._environment, cwd=self._tree, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self) -> str:
        self.git("add", "-A")
        return self.git("commit-tree", "-m", "x", self.git("write-tree"))

    def back_to(self, commit: str) -> None:
        self.git("read-tree", "-u", "--reset", commit)


def change(directory: Path, count: int, seed: int) -> None:
    """Write so many files anew, in the places that `make_repository` has some."""
    dice = random.Random(seed)
    for number in range(count):
        place = directory / f"d{number % 100}"
        place.mkdir(exist_ok=True)
        (place / f"f{number // 100}.py").write_text(f"value = {dice.random()}\n" * 20)


class Session:
    """An open workspace, used from one event loop: no process is started for a checkpoint or a rewind."""

    def __init__(self, workspace: Workspace, call: Callable[..., object]) -> None:
        self.workspace = workspace
        self.upper = Path(workspace.overlay_path) / "upper"
        self.call = call
        self.checkpoint()

    def checkpoint(self) -> str:
        async def take() -> str:
            return (await self.workspace.checkpoint()).message_id

        return str(self.call(take))

    def rewind(self, message: str) -> None:
        async def go() -> None:
            await self.workspace.rewind(message)

        self.call(go)


@contextmanager
def session(repository: Path, name: str = "default") -> Iterator[Session]:
    with anyio.from_thread.start_blocking_portal() as portal:
        workspace = Workspace.open(repository, session=name)
        try:
            yield Session(workspace, portal.call)
        finally:
            workspace.close()


def travel() -> Iterator[Row]:
    """Taking checkpoints and going back to them in a big workspace."""
    with scratch(10) as few:
        many = few.parent / "many"
        make_repository(many, FILES)
        copy = few.parent / "copy"
        run("cp", "-a", str(many), str(copy))
        shutil.rmtree(copy / ".git")
        shadow = Shadow(copy, few.parent / "shadow.git")
        with session(many) as ours:
            change(ours.upper, 10, 10**6)
            change(copy, 10, 10**6)
            # What is cold is so once only.
            mine, theirs = paired(ours.checkpoint, shadow.commit, 1)
            yield Row(f"first checkpoint of 10 changes, {FILES:,} files", mine, "shadow: the same, cold", theirs)
            yield from _taking(ours, shadow, copy)
            for count in (10, 1000):
                yield from _going_back(ours, shadow, copy, count)
            yield from _copying(ours, many)
        with session(few, "flat") as small, session(many, "flat") as big:
            seeds = iter(range(10**6))

            def take(one: Session) -> None:
                change(one.upper, 10, next(seeds))
                one.checkpoint()

            mine, theirs = paired(lambda: take(big), lambda: take(small), REPEATS * 3)
            yield Row(f"checkpoint of 10 changes, {FILES:,} files", mine, "the same, 10 files", theirs)
            mine, theirs = paired(*(_there_and_back(one, 10) for one in (big, small)))
            yield Row(f"rewind of 10 changes, {FILES:,} files", mine, "the same, 10 files", theirs)
        yield from _growing(many)
    yield from _size()


def _taking(ours: Session, shadow: Shadow, copy: Path) -> Iterator[Row]:
    seeds = iter(range(10**6))

    def prepare() -> None:
        seed = next(seeds)
        change(ours.upper, 10, seed)
        change(copy, 10, seed)

    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(REPEATS):
        prepare()
        for found, one in zip(times, paired(ours.checkpoint, shadow.commit, 1), strict=True):
            found.append(one)
    mine, theirs = (sorted(found)[len(found) // 2] for found in times)
    yield Row(f"checkpoint of 10 changes, {FILES:,} files", mine, "shadow: add -A, write-tree, commit-tree", theirs)


def _there_and_back(one: Session, count: int) -> Callable[[], None]:
    """What goes to the other one of two checkpoints that differ in so many files, each time it's called."""
    at = []
    for seed in (1, 2):
        change(one.upper, count, seed)
        at.append(one.checkpoint())
    turns = iter(range(10**6))
    return lambda: one.rewind(at[next(turns) % 2])


def _growing(many: Path) -> Iterator[Row]:
    """How the times grow with what is changed: tenfold is a ratio of 10 or less."""
    with session(many, "few") as few, session(many, "more") as more:
        sizes = ((more, 1000), (few, 100))
        seeds = iter(range(10**6))
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(REPEATS):
            for one, count in sizes:
                change(one.upper, count, next(seeds))
            for found, measured in zip(times, paired(more.checkpoint, few.checkpoint, 1), strict=True):
                found.append(measured)
        mine, theirs = (sorted(found)[len(found) // 2] for found in times)
        yield Row(f"checkpoint of 1,000 changes, {FILES:,} files", mine, "of 100 changes", theirs)
        mine, theirs = paired(*(_there_and_back(one, count) for one, count in sizes))
        yield Row(f"rewind of 1,000 changes, {FILES:,} files", mine, "of 100 changes", theirs)


def _going_back(ours: Session, shadow: Shadow, copy: Path, count: int) -> Iterator[Row]:
    shadow_at = []
    for seed in (1, 2):
        change(copy, count, seed)
        shadow_at.append(shadow.commit())
    others = iter(range(10**6))
    mine, theirs = paired(_there_and_back(ours, count), lambda: shadow.back_to(shadow_at[next(others) % 2]))
    yield Row(f"rewind of {count:,} changes, {FILES:,} files", mine, "shadow: read-tree -u --reset", theirs)


def _copying(ours: Session, many: Path) -> Iterator[Row]:
    seeds = iter(range(10**6))

    def take() -> None:
        change(ours.upper, 10, next(seeds))
        ours.checkpoint()

    target = many.parent / "copied"

    def copy() -> None:
        run("cp", "-a", "--reflink=auto", str(many), str(target))

    # A hundred thousand files once: this takes a thousand times as long, whatever the noise.
    mine, theirs = paired(take, copy, 1)
    shutil.rmtree(target)
    yield Row(f"checkpoint of 10 changes, {FILES:,} files", mine, "cp -a --reflink=auto", theirs)


def _size() -> Iterator[Row]:
    """What the store takes after many checkpoints, in kB where other rows have ms."""
    with scratch(1500) as repository:
        names = [f"d{number // 100}/f{number % 100}.py" for number in range(1500)]
        yield _size_row(repository, names, "written anew", _written_anew)
    with scratch(10) as repository:
        # Real source, where git's deltas have something to find.
        names = sorted(path.name for path in Path(os.__file__).parent.glob("*.py"))
        for name in names:
            shutil.copy(Path(os.__file__).with_name(name), repository)
        yield _size_row(repository, names, "edited", _edited)


def _size_row(repository: Path, names: list[str], what: str, written: Callable[[bytes, random.Random], bytes]) -> Row:
    compressed = 0
    dice = random.Random(0)
    with session(repository) as ours:
        for _ in range(_STEPS):
            for name in dice.sample(names, 5):
                here = ours.upper / name
                here.parent.mkdir(exist_ok=True)
                content = written((here if here.exists() else repository / name).read_bytes(), dice)
                compressed += len(zlib.compress(content))
                here.write_bytes(content)
            ours.checkpoint()
        upkeep.collect(ours.workspace.store)
        packs = Path(ours.workspace.store.pack_directory).glob("*.pack")
        taken = sum(pack.stat().st_size for pack in packs)
    what = f"store after {_STEPS} checkpoints of 5 files {what} (kB)"
    return Row(what, taken / 1e3, "the files, compressed (kB)", compressed / 1e3)


def _written_anew(_: bytes, dice: random.Random) -> bytes:
    """Nothing of before, and hardly to be compressed: the worst that can be."""
    return "".join(f"line {dice.randrange(10**9)}\n" for _ in range(60)).encode()


def _edited(before: bytes, dice: random.Random) -> bytes:
    """Three lines replaced by four."""
    lines = before.splitlines(keepends=True)
    at = dice.randrange(len(lines) + 1)
    lines[at : at + 3] = [f"    value_{dice.randrange(10**6)} = {dice.randrange(10**6)}\n".encode() for _ in range(4)]
    return b"".join(lines)
