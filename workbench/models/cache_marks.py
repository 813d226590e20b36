"""Cache marks as Anthropic takes them, wherever they're sent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.protocol.messages import CacheBreakpoint

_MOST = 4


def placed(breakpoints: Sequence[CacheBreakpoint | None], *, hours: bool = True) -> list[dict[str, Any] | None]:
    """The mark of each message: at most four, the first and the last ones, and none for an hour after a shorter one."""
    marked = [position for position, breakpoint in enumerate(breakpoints) if breakpoint is not None]
    kept = set(marked if len(marked) <= _MOST else [marked[0], *marked[1 - _MOST :]])
    marks: list[dict[str, Any] | None] = []
    was_short = not hours
    for position, breakpoint in enumerate(breakpoints):
        if breakpoint is None or position not in kept:
            marks.append(None)
            continue
        was_short = was_short or breakpoint.ttl == "5m"
        marks.append({"type": "ephemeral"} if was_short else {"type": "ephemeral", "ttl": "1h"})
    return marks
