"""`python -m tests.benchmarks [NAME]...`: run measurements and print a table of their ratios."""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
from rich.console import Console
from rich.table import Table

from tests.benchmarks.agent import PEERS as AGENT_PEERS
from tests.benchmarks.agent import agent
from tests.benchmarks.checkpoints import checkpoints
from tests.benchmarks.peers import install_peers
from tests.benchmarks.rows import REPEATS, Row
from tests.benchmarks.sandbox import PEERS as SANDBOX_PEERS
from tests.benchmarks.sandbox import sandbox
from tests.benchmarks.transcripts import PEERS as TRANSCRIPTS_PEERS
from tests.benchmarks.transcripts import transcripts
from tests.benchmarks.vfs import PEERS as VFS_PEERS
from tests.benchmarks.vfs import vfs
from tests.conftest import git_in
from workbench import Workspace
from workbench.sandbox import images


def paired(ours: Callable[[], object], theirs: Callable[[], object], repeats: int = REPEATS) -> tuple[float, float]:
    """The medians in ms of two things done in turns."""
    measured: tuple[list[float], list[float]] = ([], [])
    for _ in range(repeats):
        for times, action in zip(measured, (ours, theirs), strict=True):
            start = time.perf_counter()
            action()
            times.append((time.perf_counter() - start) * 1000)
    return statistics.median(measured[0]), statistics.median(measured[1])


def run(*argv: str, cwd: Path | None = None) -> None:
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=cwd)


def make_repository(path: Path, files: int) -> None:
    for number in range(files):
        directory = path / f"d{number // 100}"
        if number % 100 == 0:
            directory.mkdir(parents=True)
        (directory / f"f{number % 100}.py").write_text(f"value = {number}\n" * 20)
    git = git_in(path)
    git("init", "-q", "-b", "main")
    # Else git collects garbage behind the measurement's back.
    git("config", "gc.auto", "0")
    git("config", "maintenance.auto", "false")
    git("add", "-A")
    git("commit", "-q", "-m", "first")


@contextlib.contextmanager
def scratch(files: int = 10) -> Iterator[Path]:
    """A repository of so many files and a state directory of its own; its sandbox is ended afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        repository = Path(directory) / "repo"
        make_repository(repository, files)
        before = os.environ.get("WORKBENCH_STATE")
        os.environ["WORKBENCH_STATE"] = str(Path(directory) / "state")
        try:
            yield repository
        finally:
            anyio.run(_stop, repository)
            if before is None:
                del os.environ["WORKBENCH_STATE"]
            else:
                os.environ["WORKBENCH_STATE"] = before


async def _stop(repository: Path) -> None:
    async with Workspace.open(repository) as workspace:
        await workspace.stop()


@contextlib.contextmanager
def container(*options: str) -> Iterator[str]:
    """A plain container that sleeps, for `docker exec`."""
    command = ["docker", "run", "-d", "--network", "none", *options, images.DEFAULT, "sleep", "3600"]
    name = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield name
    finally:
        run("docker", "rm", "-f", name)


def warm() -> Iterator[Row]:
    """A command in a warm sandbox as a whole process, against `docker exec`."""
    with scratch() as repository, container() as name:
        executable = str(Path(sys.executable).with_name("workbench"))
        ours = (executable, "exec", "-w", str(repository), "--", "true")
        run(*ours)
        whole, theirs = paired(lambda: run(*ours), lambda: run("docker", "exec", name, "true"))
        yield Row("workbench exec -- true, warm, whole process", whole, "docker exec, command line", theirs)


def open_session() -> Iterator[Row]:
    """Opening a session on many files, against few."""
    with scratch(10) as few:

        def open_one(repository: Path) -> None:
            Workspace.open(repository).close()

        with tempfile.TemporaryDirectory() as directory:
            many = Path(directory) / "repo"
            make_repository(many, 100_000)
            open_one(few)
            open_one(many)
            ours, theirs = paired(lambda: open_one(many), lambda: open_one(few), REPEATS * 4)
            yield Row("open a session on 100,000 files", ours, "on 10 files", theirs)


def inside() -> Iterator[Row]:
    """Work in the sandbox."""
    from tests.benchmarks.inside import inside as measured

    return measured()


def travel() -> Iterator[Row]:
    """Checkpoints and rewinds of a whole session."""
    from tests.benchmarks.travel import travel as measured

    return measured()


def commits() -> Iterator[Row]:
    """Landing what a session changed."""
    from tests.benchmarks.commits import commits as measured

    return measured()


MEASUREMENTS: dict[str, Callable[[], Iterator[Row]]] = {
    "warm": warm,
    "sandbox": sandbox,
    "open": open_session,
    "inside": inside,
    "vfs": vfs,
    "checkpoints": checkpoints,
    "travel": travel,
    "agent": agent,
    "commits": commits,
    "transcripts": transcripts,
}
PEERS = {"vfs": VFS_PEERS, "agent": AGENT_PEERS, "sandbox": SANDBOX_PEERS, "transcripts": TRANSCRIPTS_PEERS}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description="Ratios, not times.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--peers", action="store_true", help="install what is compared with")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(MEASUREMENTS):
        parser.error(f"there is no {', '.join(sorted(unknown))}")
    names = asked.names or list(MEASUREMENTS)
    if asked.peers:
        install_peers([peer for name in names for peer in PEERS.get(name, ())])
    table = Table("WHAT", "MS", "AGAINST", "MS", "RATIO", box=None, pad_edge=False)
    for name in names:
        for row in MEASUREMENTS[name]():
            table.add_row(*row.cells)
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
