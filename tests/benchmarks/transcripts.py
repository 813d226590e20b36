"""Other agents' sessions listed, added up and searched, in whole processes, in turns with tools that do the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio

from tests.benchmarks.large_sessions import LARGE, make_large
from tests.benchmarks.peers import command_of
from tests.benchmarks.rows import Row
from tests.benchmarks.sessions import Sizes, make_sessions
from workbench.transcripts import LocalPlatform, SessionRef, SummarizingAdapter, Transcript, find_adapter, fold
from workbench.transcripts.values import parse_fast

PEERS = ("npm:ccusage@20.0.24", "agent-session-reader")
FULL = Sizes(sessions=int(os.environ.get("WORKBENCH_SESSIONS", "10000")), every=1_000, large=100_000_000)
LARGE_BYTES = 20_000_000
ROUNDS = int(os.environ.get("WORKBENCH_ROUNDS", "3"))

_OWN = (sys.executable, "-m", "workbench", "transcripts")
_WANTED = "question 0 of session 1:"


@dataclass(frozen=True)
class _Task:
    """What ours does, what a peer does, and what of either's answer has to be the same; `why_alone`, where there is no peer."""

    what: str
    ours: tuple[str, ...]
    told: Callable[[Any], object]
    peer: str = ""
    script: str = ""
    theirs: tuple[str, ...] = ()
    they_told: Callable[[Any], object] = len
    why_alone: str = ""


_TASKS = (
    _Task("list", ("list", "--limit", "0"), len, "agent-session-reader", "ai-r", ("list", "--json")),
    _Task(
        "usage of",
        ("usage", "--by", "day"),
        lambda said: said[-1]["output_tokens"],
        "npm:ccusage@20.0.24",
        "ccusage",
        ("daily", "--json", "--offline"),
        lambda said: said["totals"]["outputTokens"],
    ),
    _Task("search", ("search", _WANTED), len, why_alone="no peer that needs no index"),
)


@dataclass
class _Took:
    """The least of several processes: time and processor time in ms, their memory at its most in MB; and the last answer."""

    time: float = float("inf")
    processor: float = float("inf")
    memory: float = float("inf")
    answer: Any = None

    def run(self, argv: Sequence[str], environment: Mapping[str, str]) -> None:
        """Once more."""
        done = subprocess.run(
            [sys.executable, "-c", _MEASURE, *argv], env=environment, check=True, capture_output=True, text=True
        )
        time, processor, memory, out = json.loads(done.stdout)
        self.time, self.processor, self.memory = (
            min(time, self.time),
            min(processor, self.processor),
            min(memory, self.memory),
        )
        self.answer = json.loads(out)


_MEASURE = """
import json, resource, subprocess, sys, time
start = time.perf_counter()
out = subprocess.run(sys.argv[1:], check=True, capture_output=True, text=True).stdout
took = (time.perf_counter() - start) * 1000
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([took, (used.ru_utime + used.ru_stime) * 1000, used.ru_maxrss / 1024, out]))
"""


def transcripts() -> Iterator[Row]:
    """At full size, which is more than a gigabyte."""
    yield from summaries(LARGE_BYTES, ROUNDS)
    yield from rows(FULL, ROUNDS)


def summaries(size: int, rounds: int) -> Iterator[Row]:
    """Processor time of a summary against that of the loaded transcript, folded, for one large session of each agent.

    And that of parsing its JSON alone: no summary can be faster that looks at every record.
    """
    for agent in LARGE:
        with tempfile.TemporaryDirectory() as directory:
            ref = SessionRef(agent=agent, path=str(make_large(agent, Path(directory), size)))
            parsed, summarized, folded = anyio.run(_read_in_turns, ref, rounds)
        what = f"summary of a session of {agent}, {size / 1e6:.0f} MB: processor time"
        yield Row(what, summarized, "load and fold", folded)
        yield Row(f"{what}, its JSON alone", parsed, "load and fold", folded)


async def _read_in_turns(ref: SessionRef, rounds: int) -> tuple[float, float, float]:
    """The least processor time of parsing, of a summary, and of a folded transcript, in ms; what these tell is the same."""
    adapter, platform = find_adapter(ref.agent), LocalPlatform()
    assert isinstance(adapter, SummarizingAdapter)
    lines = Path(ref.path).read_bytes().splitlines()
    best = [float("inf")] * 3
    for _ in range(rounds):
        started = time.process_time()
        for line in lines:
            parse_fast(line)
        begun = time.process_time()
        summary = await adapter.summarize(platform, ref)
        summarized = time.process_time()
        transcript = await adapter.load(platform, ref)
        assert isinstance(transcript, Transcript)
        folded = fold(transcript)
        ended = time.process_time()
        took = [(begun - started) * 1000, (summarized - begun) * 1000, (ended - summarized) * 1000]
        best = list(map(min, best, took))
        assert summary == folded
    return best[0], best[1], best[2]


def rows(sizes: Sizes, rounds: int, peers: Sequence[str] = PEERS) -> Iterator[Row]:
    """Each of ours in turns with its peer, and its memory against that for a tenth of the sessions."""
    with tempfile.TemporaryDirectory() as directory:
        home, small = Path(directory) / "all", Path(directory) / "tenth"
        size = make_sessions(home, sizes)
        make_sessions(small, replace(sizes, sessions=max(sizes.sessions // 10, 1)))
        for task in _TASKS:
            what = f"{task.what} {sizes.sessions:,} sessions, {size / 1e9:.1f} GB"
            yield from _of(task, what, home, small, rounds, task.peer if task.peer in peers else "")


def _of(task: _Task, what: str, home: Path, small: Path, rounds: int, peer: str) -> Iterator[Row]:
    ours, theirs, tenth = _Took(), _Took(), _Took()
    found = command_of(peer, task.script) if peer else None
    for _ in range(rounds):
        ours.run((*_OWN, *task.ours, "--json"), _environment(home))
        tenth.run((*_OWN, *task.ours, "--json"), _environment(small))
        if found is not None:
            argv, environment = found
            theirs.run((*argv, *task.theirs), {**_environment(home), **environment})
    if found is None:
        note = task.why_alone or "it isn't installed: run with --peers"
        yield Row(what, ours.time, task.script, 0, note)
    else:
        same = "" if task.told(ours.answer) == task.they_told(theirs.answer) else ", another answer"
        yield Row(what, ours.time, f"{task.script}{same}", theirs.time)
        yield Row(f"{what}: processor time", ours.processor, task.script, theirs.processor)
        yield Row(f"{what}: memory (MB)", ours.memory, task.script, theirs.memory)
    yield Row(f"{what}: memory (MB)", ours.memory, "a tenth of them", tenth.memory)


def _environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("CLAUDE", "CODEX", "XDG_"))}
    return {**kept, "HOME": str(home), "PWD": str(home), "TZ": "UTC"}
