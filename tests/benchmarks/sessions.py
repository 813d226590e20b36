"""Sessions of Claude Code and Codex, as plausible as they have to be to be read like real ones, by the same dice each time."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

_WORDS = ("the", "parser", "reads", "what", "is", "given", "because", "of", "a", "fixture", "that", "passes,")
_WORDS += ('"quoted"', "names", "stay", "caf\u00e9", "\u2026", "C:\\paths", "too\nand", "the", "next", "begins", "here")
_BEGUN = datetime(2026, 3, 1, tzinfo=UTC)
_PROJECTS = 50


@dataclass(frozen=True)
class Sizes:
    """How many sessions, every how manieth is a large one, and its bytes."""

    sessions: int
    every: int
    large: int


def make_sessions(home: Path, sizes: Sizes) -> int:
    """Fill a home: of ten sessions seven are Claude Code's and three Codex's, one in twenty has a subagent.

    Returns how many bytes that are.
    """
    dice = random.Random(7)
    for number in range(sizes.sessions):
        large = number % sizes.every == number // sizes.every
        size = sizes.large if large else int(dice.lognormvariate(9.5, 1.2))
        write = codex if number % 10 in (2, 5, 9) else claude
        write(home, number, size, dice)
    return sum(path.stat().st_size for path in home.rglob("*.jsonl"))


def words(dice: random.Random, median: float) -> str:
    """Words, most texts short and some very long."""
    length = min(int(dice.lognormvariate(0, 1.3) * median), 60_000)
    return " ".join(dice.choices(_WORDS, k=length // 6 + 1))


def fill(path: Path, size: int, records: Iterator[list[dict[str, Any]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            for record in next(records):
                written += file.write(f"{json.dumps(record, ensure_ascii=False, separators=(',', ':'))}\n")


def clock(number: int, dice: random.Random) -> Iterator[str]:
    at = _BEGUN + timedelta(days=number % 28, seconds=number)
    while True:
        yield f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03}Z"
        at += timedelta(seconds=dice.uniform(0.2, 9))


def claude(home: Path, number: int, size: int, dice: random.Random) -> None:
    project = home / ".claude" / "projects" / f"-work-p{number % _PROJECTS}"
    session = f"{number:08x}-0000-4000-8000-000000000000"
    times = clock(number, dice)
    fill(project / f"{session}.jsonl", size, _claude_turns(number, session, times, dice, {"isSidechain": False}))
    if number % 20 == 0:
        about = {"isSidechain": True, "agentId": "a1"}
        path = project / session / "subagents" / "agent-a1.jsonl"
        fill(path, size // 4, _claude_turns(number, session, times, dice, about))


def _claude_turns(
    number: int, session: str, times: Iterator[str], dice: random.Random, about: dict[str, object]
) -> Iterator[list[dict[str, Any]]]:
    chain = {
        "sessionId": session,
        "cwd": f"/work/p{number % _PROJECTS}",
        "version": "2.1.0",
        "gitBranch": "main",
        **about,
    }
    lane, before, turn = about.get("agentId", "main"), None, 0

    def record(kind: str, name: str, **more: object) -> dict[str, Any]:
        nonlocal before
        uuid = f"{number:08x}-{turn:04x}-4000-{name}-{lane!s:0>12}"
        made = {"parentUuid": before, "type": kind, "uuid": uuid, "timestamp": next(times), **chain, **more}
        before = uuid
        return made

    while True:
        usage = {
            "input_tokens": dice.randrange(1, 90),
            "cache_creation_input_tokens": dice.randrange(5000),
            "cache_read_input_tokens": min(1000 * turn + 12_000, 190_000),
            "output_tokens": dice.randrange(2, 900),
            "service_tier": "standard",
        }
        reply = {
            "id": f"msg_{number}_{lane}_{turn}",
            "type": "message",
            "role": "assistant",
            "model": "claude-opus-4-5",
        }
        request = f"req_{number}_{lane}_{turn}"
        call = {
            "type": "tool_use",
            "id": f"toolu_{number}_{lane}_{turn}",
            "name": "Read",
            "input": {"file_path": "/work/a.py"},
        }
        text = words(dice, 900)
        blocks = (
            {"type": "thinking", "thinking": "", "signature": "c2ln" * 60},
            {"type": "text", "text": words(dice, 150)},
            call,
        )
        said = [
            # A response's first records have what it used until then.
            record(
                "assistant",
                f"b{at}",
                requestId=request,
                message={
                    **reply,
                    "content": [block],
                    "usage": usage if block is call else {**usage, "output_tokens": 1},
                },
            )
            for at, block in enumerate(blocks)
        ]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": text}
        told = {"type": "text", "file": {"filePath": "/work/a.py", "content": text, "numLines": 9}}
        snapshot = {"messageId": str(before), "trackedFileBackups": {}, "timestamp": said[0]["timestamp"]}
        turns = [
            record(
                "user",
                "a000",
                message={"role": "user", "content": f"question {turn} of session {number}: {words(dice, 60)}"},
            ),
            *said,
            record("user", "c000", message={"role": "user", "content": [result]}, toolUseResult=told),
        ]
        if turn % 5 == 0:
            turns.append({"type": "file-history-snapshot", "messageId": str(before), "snapshot": snapshot})
        if turn == 3:
            turns.append({"type": "ai-title", "aiTitle": f"Work of session {number}", "sessionId": session})
        yield turns
        turn += 1


def codex(home: Path, number: int, size: int, dice: random.Random) -> None:
    day = _BEGUN + timedelta(days=number % 28)
    id = f"{number:08x}-0000-7000-8000-000000000000"
    path = home / ".codex" / "sessions" / f"{day:%Y/%m/%d}" / f"rollout-{day:%Y-%m-%d}T00-00-00-{id}.jsonl"
    fill(path, size, _codex_turns(number, id, dice))


def _codex_turns(number: int, id: str, dice: random.Random) -> Iterator[list[dict[str, Any]]]:
    times, turn = clock(number, dice), 0
    where = f"/work/p{number % _PROJECTS}"
    total = {
        "input_tokens": 0,
        "cached_input_tokens": 0,
        "output_tokens": 0,
        "reasoning_output_tokens": 0,
        "total_tokens": 0,
    }

    def record(kind: str, /, **payload: object) -> dict[str, Any]:
        return {"timestamp": next(times), "type": kind, "payload": payload}

    meta = {"id": id, "timestamp": next(times), "cwd": where, "originator": "codex_cli_rs", "cli_version": "0.120.0"}
    begun = [record("session_meta", **meta, source="cli", base_instructions={"text": " ".join(_WORDS * 60)})]
    while True:
        asked = f"question {turn} of session {number}: {words(dice, 60)}"
        answer = words(dice, 150)
        used = {"input_tokens": 9000 + 70 * turn, "cached_input_tokens": 8000, "output_tokens": dice.randrange(2, 900)}
        used |= {"reasoning_output_tokens": 0, "total_tokens": used["input_tokens"] + used["output_tokens"]}
        total = {name: total[name] + used[name] for name in total}
        counts = {"total_token_usage": total, "last_token_usage": used, "model_context_window": 272_000}
        call = f"call_{number}_{turn}"
        yield [
            *begun,
            record("turn_context", turn_id=f"{number}-{turn}", cwd=where, model="gpt-5.5", effort="medium"),
            record("response_item", type="message", role="user", content=[{"type": "input_text", "text": asked}]),
            record("event_msg", type="user_message", message=asked, kind="plain"),
            record("response_item", type="reasoning", summary=[], encrypted_content="ZW5j" * 300),
            record(
                "response_item", type="function_call", name="shell", call_id=call, arguments='{"command":["ls","-l"]}'
            ),
            record("response_item", type="function_call_output", call_id=call, output=words(dice, 900)),
            record("event_msg", type="agent_message", message=answer),
            record(
                "response_item", type="message", role="assistant", content=[{"type": "output_text", "text": answer}]
            ),
            record("event_msg", type="token_count", info=counts, rate_limits=None),
            # What was used so far is told again with each limit.
            record("event_msg", type="token_count", info=counts, rate_limits={"primary": {"used_percent": 3.0}}),
        ]
        begun = []
        turn += 1
