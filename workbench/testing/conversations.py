"""Conversations that the conformance suites keep: with everything in them that is easily lost on the way."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import Any

from workbench.protocol.messages import (
    CacheBreakpoint,
    ChatMessage,
    ImageAttachment,
    ProviderState,
    ToolCall,
    Usage,
)
from workbench.protocol.sessions import SessionDetail

_LONG = "🙂" * 256
SESSION_IDS = (
    "plain",
    "PLAIN",
    "tenant-7/conversation-1",
    "tenant-7%2Fconversation-1",
    "tenant-7",
    ".",
    "..",
    "../tenant-7",
    ".hidden",
    "/",
    "-",
    " ",
    "line\nline",
    "nul\0",
    "ümlaut 你好 🙂",
    "u\u0308mlaut 你好 🙂",
    "x" * 256,
    "x" * 255 + "y",
    _LONG,
    hashlib.sha256(_LONG.encode()).hexdigest(),
    f"sha256={hashlib.sha256(_LONG.encode()).hexdigest()}",
    "session.json",
    "events.jsonl",
)
"""All of them ids, and no two the same."""

_AT = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)


def message(id: str, content: str = "", **fields: Any) -> ChatMessage:
    """A user's message, unless the fields say otherwise."""
    return ChatMessage.model_validate({"id": id, "role": "user", "content": content, "created_at": _AT, **fields})


def run(name: str) -> tuple[ChatMessage, ...]:
    """The messages of one run: a user's with an image, a reply with calls, their results, a last reply."""
    call = ToolCall(
        id=f"{name}-call",
        name="write",
        arguments={"path": "a", "deep": [{"n": 1.5, "none": None}]},
        raw_arguments='{"path":"a","deep":[{"n":1.5,"none":null}]}',
    )
    cut = ToolCall(id=f"{name}-cut", name="write", arguments=None, raw_arguments='{"path": "a')
    return (
        message(
            f"{name}-user",
            "nul \0, newline \r\n, quotes \"', separator \u2028, 你好 🙂",
            images=(ImageAttachment(media_type="image/png", data=bytes(range(256))),),
            cache_breakpoint=CacheBreakpoint(ttl="1h"),
        ),
        message(
            f"{name}-reply",
            role="assistant",
            tool_calls=(call, cut),
            provider_state=ProviderState(provider="p", model="m", data=b"\0\xff\xfe signed"),
        ),
        message(f"{name}-result", "done", role="tool", tool_call_id=call.id),
        message(f"{name}-error", "cut", role="tool", tool_call_id=cut.id, is_error=True),
        message(f"{name}-last", "Done.", role="assistant"),
    )


def session(id: str, *runs: str, **fields: Any) -> SessionDetail:
    """A session with the messages of these runs, unless the fields say otherwise."""
    messages = tuple(each for name in runs for each in run(name))
    return SessionDetail.model_validate(
        {
            "id": id,
            "title": "A title, 你好",
            "workspace": "/tmp/w 你",
            "model": "m",
            "is_running": False,
            "message_count": len(messages),
            "usage": Usage(input_tokens=3, output_tokens=5, cost_usd=0.1, latency=0.25),
            "tenant_id": "tenant-7",
            "created_at": _AT,
            "updated_at": _AT,
            "system_prompt": "Be\nbrief.",
            "messages": messages,
            "pending": (),
            **fields,
        }
    )
