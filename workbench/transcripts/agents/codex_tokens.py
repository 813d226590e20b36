"""What a thread of Codex used, told by totals that only grow and that its forks begin with copies of."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from workbench.protocol.messages import Usage
from workbench.transcripts.files import Reading
from workbench.transcripts.models import Place
from workbench.transcripts.reading import Content
from workbench.transcripts.recorder import Recorder
from workbench.transcripts.values import count, mapping, named, parse

Counts = tuple[int, ...]

_NAMES = (
    "input_tokens",
    "cached_input_tokens",
    "cache_write_input_tokens",
    "output_tokens",
    "reasoning_output_tokens",
    "total_tokens",
)
_ALL = 5


class TokenCounts:
    """The requests of one thread, found in its counts and told to a recorder.

    `copied` are the totals that the thread may begin with because it copied them: those of its parent.
    """

    def __init__(self, recorder: Recorder, lane: str) -> None:
        self._recorder, self._lane = recorder, lane
        self.copied: list[Counts] = []
        self._total: Counts | None = None
        self._counted = 0
        self._by_response: dict[str, tuple[Usage, Place, datetime | None]] = {}

    def count(
        self, payload: dict[str, Any], thread: str, source: Place, *, at: datetime | None, model: str | None
    ) -> None:
        """A `token_count`: what the total grew by; an unchanged one is a repeat, a smaller one a new count."""
        info = mapping(payload.get("info"))
        total = _counts(info.get("total_token_usage"))
        if total is None:
            used = _counts(info.get("last_token_usage"))
        elif not self.copied and total == self._total:
            return
        else:
            if self.copied and self.copied[0] == total:
                self.copied.pop(0)
                self._total = total
                return
            self.copied = []
            before = self._total
            self._total = total
            restarted = before is not None and total[_ALL] < before[_ALL]
            used = total if before is None or restarted else tuple(map(lambda a, b: max(0, a - b), total, before))
        if used is None or not any(used):
            return
        self._counted += 1
        model = named(info.get("model")) or model
        self._recorder.request(
            f"{thread}:{self._counted}", source, lane=self._lane, at=at, model=model, usage=_usage(used)
        )

    def response(self, payload: dict[str, Any], source: Place, at: datetime | None) -> None:
        """A `token_usage_record`: a response's own usage, else what its turn used so far."""
        own = _counts(payload.get("usage"))
        used = own or _counts(payload.get("turn_token_usage"))
        id = named(payload.get("response_id")) if own is not None else named(payload.get("turn_id"))
        if used is not None and id is not None:
            self._by_response[id] = (_usage(used), source, at)

    def end(self, model: str | None) -> None:
        """Responses only count where no totals were told."""
        if not self._counted:
            for id, (usage, source, at) in self._by_response.items():
                self._recorder.request(id, source, lane=self._lane, at=at, model=model, usage=usage)


async def totals(reading: Reading, path: str) -> list[Counts]:
    """The totals that a rollout tells, in their order. Raises OSError, and the signal's reason."""
    found = []
    async for lines in Content(reading.platform, path, signal=reading.signal).lines():
        for line in lines:
            if b'"total_token_usage"' in line.data:
                try:
                    info = mapping(mapping(mapping(parse(line.data)).get("payload")).get("info"))
                except ValueError:
                    continue
                if (total := _counts(info.get("total_token_usage"))) is not None:
                    found.append(total)
    return found


def _counts(usage: object) -> Counts | None:
    """The counters of a usage object, its total worked out where it isn't told."""
    if not isinstance(usage, dict):
        return None
    *counts, total = [count(usage.get(name)) for name in _NAMES]
    return (*counts, total or counts[0] + counts[3])


def _usage(counts: Counts) -> Usage:
    return Usage(
        input_tokens=counts[0],
        cache_read_tokens=counts[1],
        cache_write_tokens=counts[2],
        output_tokens=counts[3],
        reasoning_tokens=counts[4],
    )
