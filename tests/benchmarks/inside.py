"""What people do with a repository in a sandbox, against a bind mount of a copy in a container, and the same outside."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import anyio

from tests.benchmarks.__main__ import container, run, scratch
from tests.benchmarks.rows import REPEATS, Row
from workbench import Command, Workspace
from workbench.mounting import SandboxOptions

_BACKENDS = ("docker", "namespace")
_BOUND, _OUTSIDE = "a bind mount of a copy, in a container", "the same outside"
_PLACE = "/copy"

# The time of the command alone: what starts it differs.
_TIMED = """\
import subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print((time.perf_counter() - start) * 1000)
"""

_TEST = """\
import pathlib, shutil, unittest

class Case{number}(unittest.TestCase):
    def test(self):
        place = pathlib.Path("out{number}")
        place.mkdir()
        for number in range(20):
            (place / f"{{number}}.txt").write_text("x" * 1000)
        self.assertEqual(sum(len(path.read_text()) for path in place.iterdir()), 20_000)
        shutil.rmtree(place)
"""

_COMMANDS = {
    "status": ("git", "status", "--short"),
    "search": ("rg", "-c", "value = 1"),
    "build": ("python3", "-m", "compileall", "-q", "-f", "--invalidation-mode", "unchecked-hash", "."),
    "tests": ("python3", "-m", "unittest", "discover", "-q", "-s", "tests", "-t", "."),
}

Timed = Callable[[tuple[str, ...]], Awaitable[float]]


def inside(files: int = 5_000, tests: int = 100, repeats: int = REPEATS) -> Iterator[Row]:
    """Medians of so many rounds, in which all take turns, in a repository of so many files and tests."""
    with scratch(files) as repository:
        _write_tests(repository / "tests", tests)
        copies = {name: repository.parent / name for name in (_BOUND, _OUTSIDE)}
        for copy in copies.values():
            run("cp", "-a", str(repository), str(copy))
        user = f"{os.getuid()}:{os.getgid()}"
        with container("-v", f"{copies[_BOUND]}:{_PLACE}", "-w", _PLACE, "-u", user, "-e", "HOME=/tmp") as name:
            bound = ("docker", "exec", name, "python3")
            for what, times in anyio.run(_measure, repository, bound, copies[_OUTSIDE], repeats).items():
                for backend in _BACKENDS:
                    for against in (_BOUND, _OUTSIDE):
                        yield Row(f"{what}, {files:,} files, {backend}", times[backend], against, times[against])


def _write_tests(directory: Path, count: int) -> None:
    directory.mkdir()
    (directory / "__init__.py").touch()
    for number in range(count):
        (directory / f"test_{number}.py").write_text(_TEST.format(number=number))


async def _measure(repository: Path, bound: tuple[str, ...], copy: Path, repeats: int) -> dict[str, dict[str, float]]:
    async with contextlib.AsyncExitStack() as stack:
        subjects: dict[str, Timed] = {}
        for backend in _BACKENDS:
            subjects[backend] = await stack.enter_async_context(_in_sandbox(repository, backend))
        subjects[_BOUND] = _as_process(bound, None)
        subjects[_OUTSIDE] = _as_process((sys.executable,), copy)
        found = {}
        for what, argv in _COMMANDS.items():
            times: dict[str, list[float]] = {name: [] for name in subjects}
            # The first time everybody has to look at the files.
            for number in range(repeats + 1):
                for name, timed in subjects.items():
                    took = await timed(argv)
                    if number:
                        times[name].append(took)
            found[what] = {name: statistics.median(each) for name, each in times.items()}
        return found


@contextlib.asynccontextmanager
async def _in_sandbox(repository: Path, backend: str) -> AsyncIterator[Timed]:
    options = SandboxOptions(backend=backend)
    async with Workspace.open(repository, session=backend, options=options) as workspace:

        async def timed(argv: tuple[str, ...]) -> float:
            result = await client.run(Command(("python3", "-c", _TIMED, *argv), output_limit=1024))
            assert result.exit_code == 0, result
            return float(result.stdout)

        try:
            async with await workspace.sandbox() as client:
                yield timed
        finally:
            await workspace.stop(force=True)


def _as_process(python: tuple[str, ...], place: Path | None) -> Timed:
    async def timed(argv: tuple[str, ...]) -> float:
        done = subprocess.run([*python, "-c", _TIMED, *argv], check=True, capture_output=True, cwd=place)
        return float(done.stdout)

    return timed
