"""Prompt-cache marks: in requests only, never in History."""

from __future__ import annotations

from collections.abc import Sequence

from workbench.protocol.messages import CacheBreakpoint, ChatMessage

_MARK = {"cache_breakpoint": CacheBreakpoint()}


def marked(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The messages with marks on a system prompt and on the last, where that has content.

    Messages of which one carries a mark already are returned unchanged.
    """
    if any(message.cache_breakpoint for message in messages):
        return tuple(messages)
    result = list(messages)
    if result and result[0].role == "system":
        result[0] = result[0].model_copy(update=_MARK)
    if result and result[-1].role != "system" and (result[-1].content or result[-1].images):
        result[-1] = result[-1].model_copy(update=_MARK)
    return tuple(result)
