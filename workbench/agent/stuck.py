"""Noticing that a model repeats itself."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from workbench.agent.permissions import call_digest
from workbench.protocol.messages import ToolCall, ToolResult

_NUDGE_AT = 3
_END_AT = 5
NUDGE = (
    "[You have made exactly this call several times in a row, with exactly this result. "
    "Do something else, or say what stops you.]"
)


class Progress(Enum):
    """What a reply's calls say about the run."""

    MOVING = "moving"
    NUDGE = "nudge"
    STUCK = "stuck"


class StuckDetector:
    """Counts replies in a row whose calls, and the results of these, are those of the reply before.

    The third such reply is worth one nudge; the fifth ends the run.
    """

    def __init__(self) -> None:
        self._last: tuple[tuple[str, bool, str], ...] = ()
        self._count = 0

    def judge(self, calls: Sequence[ToolCall], results: Sequence[ToolResult]) -> Progress:
        """What the calls of one more reply and their results mean."""
        step = tuple(
            (call_digest(call), result.ok, result.model_content) for call, result in zip(calls, results, strict=True)
        )
        self._count = self._count + 1 if step == self._last else 1
        self._last = step
        if self._count >= _END_AT:
            return Progress.STUCK
        return Progress.NUDGE if self._count == _NUDGE_AT else Progress.MOVING
