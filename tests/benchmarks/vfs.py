"""The virtual filesystem against the kernel's overlay, fsspec's filesystems and its peers, each in a fresh process."""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.benchmarks.peers import told
from tests.benchmarks.rows import REPEATS, Row

PEERS = ("sandfs", "agentfs-sdk", "deepagents", "pyfakefs", "just-bash")
"""Distributions, each also the name of a subject."""

_PAIRS = {
    "disk": ("upper on disk", ("kernel", "fsspec local")),
    "memory": ("upper in memory", ("fsspec memory", *PEERS)),
    "face": ("fsspec face, upper in memory", ("fsspec local", "fsspec memory")),
}

_CALLS = {
    "calls on disk": (
        "kernel",
        (
            "read lower files",
            "read them back",
            "list directories",
            "read below changed directories",
            "list changed directories",
            "glob",
        ),
    ),
    "calls in memory": ("sandfs", ("delete lower files",)),
}
"""What the bare system calls take: what is beyond a ratio of theirs isn't theirs to give, whoever makes them."""


class Size(NamedTuple):
    """How many small files, how many directories of a hundred more, how many bytes of a big one."""

    small: int
    directories: int
    big: int


FULL = Size(1000, 1000, 1 << 30)
TINY = Size(20, 2, 1 << 20)


def make_lower(path: Path, size: Size) -> None:
    """The tree that every subject works on."""
    for number in range(10):
        directory = path / "small" / f"d{number}"
        directory.mkdir(parents=True)
        for other in range(size.small // 10):
            (directory / f"f{other}.py").write_text("value = 1\n" * 200)
    for number in range(size.directories):
        directory = path / "many" / f"d{number}"
        directory.mkdir(parents=True)
        for other in range(100):
            (directory / f"f{other}.py").write_text("pass\n")
    with (path / "big").open("wb") as file:
        for _ in range(size.big >> 20):
            file.write(os.urandom(1 << 20))


def rows(size: Size, rounds: int, peers: tuple[str, ...] = PEERS) -> Iterator[Row]:
    """Medians of so many rounds, in which the subjects take turns."""
    answers: dict[str, list[dict[str, float | str]]] = {}
    others = {against for _, each in _PAIRS.values() for against in each if against in peers or against not in PEERS}
    subjects = sorted({*_PAIRS, *_CALLS, *others})
    with tempfile.TemporaryDirectory() as directory:
        lower = Path(directory) / "lower"
        make_lower(lower, size)
        for _ in range(rounds):
            for subject in subjects:
                answers.setdefault(subject, []).append(_round(subject, lower, Path(directory)))
    for ours, (name, compared) in _PAIRS.items():
        for what in answers[ours][0]:
            for against in filter(others.__contains__, compared):
                yield _row(answers, what, ours, name, against)
    for ours, (against, asked) in _CALLS.items():
        for what in asked if against in others else ():
            yield _row(answers, what, ours, f"bare {ours}", against)


def _row(answers: dict[str, list[dict[str, float | str]]], what: str, ours: str, name: str, against: str) -> Row:
    mine, theirs = _median(answers[ours], what), _median(answers[against], what)
    assert isinstance(mine, float), (ours, what, mine)
    row = Row(f"{what}: {name}", mine, against, theirs if isinstance(theirs, float) else 0)
    return row if isinstance(theirs, float) else row._replace(note=theirs)


def _median(told: list[dict[str, float | str]], what: str) -> float | str:
    found = [each.get(what, each.get("", "")) for each in told]
    times = [each for each in found if isinstance(each, float)]
    return (
        statistics.median(times)
        if len(times) == len(found)
        else str(next(each for each in found if isinstance(each, str)))
    )


def _round(subject: str, lower: Path, directory: Path) -> dict[str, float | str]:
    apart = ["unshare", "--mount"] if subject == "kernel" else []
    if apart and os.geteuid() != 0:
        return {"": "mounting needs root"}
    with tempfile.TemporaryDirectory(dir=directory) as place:
        return told("subject.py", subject, str(lower), place, peer=subject if subject in PEERS else "", apart=apart)


def vfs() -> Iterator[Row]:
    """All of it."""
    yield from rows(FULL, max(3, REPEATS // 3))
