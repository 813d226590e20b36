"""What of a tool's result a model gets to see."""

from __future__ import annotations

import json

EMPTY = "(no output)"
_NOTICE = "The result was longer than the limit; content is its beginning. Ask for less at a time."


def capped(content: str, limit: int) -> str:
    """`content`, or a JSON object that holds as much of its beginning as fits into `limit` bytes; negative is no limit.

    Models reject an empty result, so it's replaced by a few words. Where the limit is too small for the object alone, the
    object holds no content.
    """
    if not content.strip():
        return EMPTY
    total = len(content.encode(errors="replace"))
    if limit < 0 or total <= limit:
        return content

    def shown(characters: int) -> str:
        prefix = content[:characters]
        value = {"truncated": True, "total_bytes": total, "notice": _NOTICE, "content": prefix}
        return json.dumps(value, ensure_ascii=False)

    low, high = 0, min(len(content), limit)
    while low < high:
        middle = (low + high + 1) // 2
        if len(shown(middle).encode(errors="replace")) <= limit:
            low = middle
        else:
            high = middle - 1
    return shown(low)
