"""The agent's loop and sessions against those of others; and how long stored sessions take to load."""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio

from tests.benchmarks.peers import told
from tests.benchmarks.rows import REPEATS, Row
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.stores import FileSessionStore
from workbench.protocol.session_ids import file_name
from workbench.testing.conversations import session

PEERS = ("pydantic-ai-slim", "openai-agents", "mini-swe-agent")
"""Distributions, each also the name of a subject."""

_OURS = "workbench"
_LENGTHS = (50, 1000)
_SESSIONS = 1_000
_STORED = 10_000


def rows(lengths: tuple[int, ...], sessions: int, rounds: int, peers: tuple[str, ...] = PEERS) -> Iterator[Row]:
    """Medians of so many rounds, in which the subjects take turns, each in a fresh process.

    Of a step the time that the processor worked, and the memory at the most.
    """
    timed: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for subject in (_OURS, *peers):
            asked = "time", ",".join(map(str, lengths)), str(sessions)
            timed.setdefault(subject, []).append(_told(subject, *asked))
    peaks = {subject: [_peaks(subject, lengths)] for subject in (_OURS, *peers)}
    for answers, what in ((timed, "a step of the loop, {} steps"), (peaks, "a step's memory, {} steps (kB)")):
        for length in lengths:
            yield from _against(answers, str(length), what.format(f"{length:,}"))
        few, many = (_number(answers[_OURS], str(length)) for length in (lengths[0], lengths[-1]))
        yield Row(what.format(f"{lengths[-1]:,}"), many, f"{lengths[0]:,} steps", few)
    yield from _against(timed, "memory", f"each of {sessions:,} idle sessions (kB)")


def _told(subject: str, *asked: str) -> dict[str, Any]:
    return told("agent_subject.py", subject, *asked, peer="" if subject == _OURS else subject)


def _peaks(subject: str, lengths: tuple[int, ...]) -> dict[str, Any]:
    """By the length of a run, each in a process of its own."""
    found: dict[str, Any] = {}
    for length in lengths:
        found.update(_told(subject, "peak", str(length)))
    return found


def _against(answers: dict[str, list[dict[str, Any]]], key: str, what: str) -> Iterator[Row]:
    """Ours against each peer's."""
    ours = _number(answers[_OURS], key)
    for peer in (subject for subject in answers if subject != _OURS):
        theirs = _median(answers[peer], key)
        row = Row(what, ours, peer, theirs if isinstance(theirs, float) else 0)
        yield row if isinstance(theirs, float) else row._replace(note=theirs)


def stored(count: int, rounds: int) -> Iterator[Row]:
    """Loading so many stored sessions of ten messages each, against reading the same files as JSON and no more: the time that
    the processor worked."""
    with tempfile.TemporaryDirectory() as directory:
        sessions = Path(directory) / "sessions"
        text = session("s", "a", "b").model_dump_json()
        for number in range(count):
            place = sessions / file_name(f"tenant/{number}")
            place.mkdir(parents=True)
            (place / "session.json").write_text(text.replace('"id":"s"', f'"id":"tenant/{number}"', 1))
        loaded, read = [], []
        for _ in range(rounds):
            start = time.process_time()
            anyio.run(_load, directory, count)
            loaded.append((time.process_time() - start) * 1000)
            start = time.process_time()
            # Kept, as ours are: what is garbage at once costs the collector nothing.
            kept = [json.loads((sessions / name / "session.json").read_bytes()) for name in os.listdir(sessions)]
            read.append((time.process_time() - start) * 1000)
            assert len(kept) == count
        yield Row(f"{count:,} stored sessions, loaded", statistics.median(loaded), "json.loads of the same files",
                  statistics.median(read))  # fmt: skip


async def _load(directory: str, count: int) -> None:
    async with SessionManager(
        models=ModelRegistry(), default_workspace="/w", store=FileSessionStore(directory)
    ) as manager:
        assert len(manager.list()) == count


def _median(answers: list[dict[str, Any]], key: str) -> float | str:
    found = [each.get(key, each.get("", "")) for each in answers]
    wrong = [each for each in found if not isinstance(each, float)]
    return str(wrong[0]) if wrong else statistics.median(found)


def _number(answers: list[dict[str, Any]], key: str) -> float:
    found = _median(answers, key)
    assert isinstance(found, float), found
    return found


def agent() -> Iterator[Row]:
    """All of it."""
    yield from rows(_LENGTHS, _SESSIONS, max(3, REPEATS // 5))
    yield from stored(_STORED, max(3, REPEATS // 5))
