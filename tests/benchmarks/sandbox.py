"""Sandboxes of ours against the engine's own ways of running a command, and those of others, each in a fresh process."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator
from typing import Any

from tests.benchmarks.peers import told
from tests.benchmarks.rows import REPEATS, Row
from workbench.sandbox import images

PEERS = ("docker", "swe-rex", "llm-sandbox", "inspect-ai")
"""Distributions."""

_OURS = ("docker", "namespace")
# A name to show, the subject, and the distribution that it needs.
_OTHERS = (
    ("docker exec, SDK", "sdk", "docker"),
    ("docker exec, command line", "command line", ""),
    ("SWE-ReX, in a container", "swe-rex", "swe-rex"),
    ("SWE-ReX, local, confined by nothing", "swe-rex local", "swe-rex"),
    ("llm-sandbox", "llm-sandbox", "llm-sandbox"),
    ("Inspect, local, confined by nothing", "inspect-ai", "inspect-ai"),
)
_WHAT = {"warm": "a command in a warm sandbox", "cold": "from nothing to the first answer"}
_ENGINES_COLD = "docker run --rm IMAGE true"


def rows(rounds: int, repeats: int, peers: tuple[str, ...] = PEERS) -> Iterator[Row]:
    """Medians of so many rounds, in which the subjects take turns; of each the median of so many commands."""
    others = [each for each in _OTHERS if each[2] in ("", *peers)]
    answers: dict[str, list[dict[str, Any]]] = {}
    for _ in range(rounds):
        for subject, peer in (*((each, "") for each in _OURS), *((subject, peer) for _, subject, peer in others)):
            with tempfile.TemporaryDirectory() as directory:
                answer = told("sandbox_subject.py", subject, images.DEFAULT, directory, str(repeats), peer=peer)
            answers.setdefault(subject, []).append(answer)
    for what, words in _WHAT.items():
        for ours in _OURS:
            mine = _median(answers[ours], what)
            assert isinstance(mine, float), (ours, mine)
            for name, subject, _ in others:
                if (what, subject) == ("cold", "sdk"):
                    continue
                against = _ENGINES_COLD if (what, subject) == ("cold", "command line") else name
                theirs = _median(answers[subject], what)
                row = Row(f"{words}, {ours}", mine, against, theirs if isinstance(theirs, float) else 0)
                yield row if isinstance(theirs, float) else row._replace(note=theirs)


def _median(told: list[dict[str, Any]], what: str) -> float | str:
    found = [each.get(what, each.get("", "")) for each in told]
    reasons = [each for each in found if not isinstance(each, float)]
    return str(reasons[0]) if reasons else statistics.median(found)


def sandbox() -> Iterator[Row]:
    """All of it."""
    yield from rows(max(3, REPEATS // 3), REPEATS * 4)
