"""One large session of each agent whose sessions become large, to be loaded and summarized."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.benchmarks.sessions import claude, clock, codex, fill, words

Turns = Iterator[list[dict[str, Any]]]
_WHERE = "/work/p1"


def make_large(agent: str, home: Path, size: int) -> Path:
    """A session of at least so many bytes, by the same dice each time; its path."""
    LARGE[agent](home, size, random.Random(7))
    (path,) = home.rglob("*.jsonl")
    return path


def _pi(home: Path, size: int, dice: random.Random) -> None:
    fill(home / "sessions" / "--work-p1--" / "2026-03-01T00-00-00-000Z_i1.jsonl", size, _pi_turns(dice))


def _pi_turns(dice: random.Random) -> Turns:
    times, number = clock(1, dice), 0

    def entry(message: dict[str, Any]) -> dict[str, Any]:
        nonlocal number
        number += 1
        before = f"{number - 1:08x}" if number > 1 else None
        return {
            "type": "message",
            "id": f"{number:08x}",
            "parentId": before,
            "timestamp": next(times),
            "message": message,
        }

    yield [{"type": "session", "version": 3, "id": "i1", "timestamp": next(times), "cwd": _WHERE}]
    while True:
        used = {"input": 90, "output": dice.randrange(2, 900), "cacheRead": 9000, "cacheWrite": dice.randrange(5000)}
        used |= {"totalTokens": 10_000, "cost": {"input": 0.01, "output": 0.01, "total": 0.02}}
        id = f"toolu_{number}"
        call = {"type": "toolCall", "id": id, "name": "edit", "arguments": _change(dice, "path")}
        said = [{"type": "thinking", "thinking": words(dice, 90), "thinkingSignature": "c2ln" * 60}]
        said += [{"type": "text", "text": words(dice, 150)}, call]
        answer = {"role": "toolResult", "toolCallId": id, "toolName": "edit", "isError": False}
        yield [
            entry({"role": "user", "content": [{"type": "text", "text": words(dice, 60)}]}),
            entry({"role": "assistant", "model": "claude-opus-4-5", "usage": used, "content": said}),
            entry({**answer, "content": [{"type": "text", "text": words(dice, 900)}]}),
        ]


def _gemini(home: Path, size: int, dice: random.Random) -> None:
    fill(home / "tmp" / "p1" / "chats" / "session-2026-03-01T00-00-g1.jsonl", size, _gemini_turns(dice))


def _gemini_turns(dice: random.Random) -> Turns:
    times, turn = clock(1, dice), 0
    yield [{"sessionId": "g1", "projectHash": "h", "startTime": next(times), "kind": "main"}]
    while True:
        turn += 1
        used = {"input": 9000, "cached": 8000, "output": dice.randrange(2, 900), "thoughts": 5, "tool": 0}
        used["total"] = used["input"] + used["output"] + used["thoughts"]
        reply = {"id": f"g{turn}", "timestamp": next(times), "type": "gemini", "model": "gemini-3", "tokens": used}
        reply |= {"content": words(dice, 150), "thoughts": [{"subject": "Why", "description": words(dice, 60)}]}
        call = {"id": f"call_{turn}", "name": "replace", "args": _change(dice, "file_path"), "status": "success"}
        call |= {"resultDisplay": words(dice, 900), "timestamp": next(times)}
        yield [
            {"id": f"u{turn}", "timestamp": next(times), "type": "user", "content": [{"text": words(dice, 60)}]},
            # It's written again once its calls are done.
            reply,
            {**reply, "toolCalls": [call]},
            {"$set": {"lastUpdated": next(times)}},
        ]


def _qwen(home: Path, size: int, dice: random.Random) -> None:
    fill(home / "projects" / "-work-p1" / "chats" / "q1.jsonl", size, _qwen_turns(dice))


def _qwen_turns(dice: random.Random) -> Turns:
    times, number = clock(1, dice), 0

    def record(kind: str, role: str, parts: list[object], **more: object) -> dict[str, Any]:
        nonlocal number
        number += 1
        about = {"uuid": f"u{number}", "parentUuid": f"u{number - 1}" if number > 1 else None, "sessionId": "q1"}
        about |= {"timestamp": next(times), "type": kind, "cwd": _WHERE, "version": "0.20.0", "gitBranch": "main"}
        return {**about, "message": {"role": role, "parts": parts}, **more}

    while True:
        used = {"promptTokenCount": 9000, "cachedContentTokenCount": 8000, "thoughtsTokenCount": 5}
        used |= {"candidatesTokenCount": dice.randrange(2, 900), "totalTokenCount": 10_000}
        id = f"call_{number}"
        call = {"functionCall": {"id": id, "name": "edit", "args": _change(dice, "file_path")}}
        answer = {"functionResponse": {"id": id, "name": "edit", "response": {"output": words(dice, 900)}}}
        said = [{"text": words(dice, 60), "thought": True}, {"text": words(dice, 150)}, call]
        outcome = {"callId": id, "status": "success"}
        yield [
            record("user", "user", [{"text": words(dice, 60)}]),
            record("assistant", "model", said, model="coder", usageMetadata=used),
            record("tool_result", "user", [answer], toolCallResult=outcome),
        ]


def _change(dice: random.Random, name: str) -> dict[str, str]:
    return {name: f"{_WHERE}/a.py", "old_string": words(dice, 150), "new_string": words(dice, 150)}


LARGE: dict[str, Callable[[Path, int, random.Random], None]] = {
    # Not the first one: that has a subagent.
    "claude-code": lambda home, size, dice: claude(home, 1, size, dice),
    "codex": lambda home, size, dice: codex(home, 2, size, dice),
    "gemini-cli": _gemini,
    "pi": _pi,
    "qwen-code": _qwen,
}
