"""A run as somebody at a terminal, or a log, reads it: the reply's text on stdout, what is done for it on stderr."""

from __future__ import annotations

import json
import sys
from collections import deque
from typing import Self

from rich.console import Console
from rich.status import Status

from workbench.cli import output
from workbench.protocol.events import RunEvent
from workbench.protocol.messages import ToolCall, ToolResult, Usage
from workbench.protocol.runs import EndReason, RunResult

_CALL_CHARACTERS = 100
_RESULT_LINES = 3
_KEPT_CALLS = 100
_SHOWN = ("text", "thinking", "tool_call", "tool_result", "tool.progress", "notice", "error", "end")
_HOW = {
    EndReason.STOP: "done",
    EndReason.MAX_TURNS: "stopped at the limit of turns",
    EndReason.BUDGET: "stopped at the budget",
    EndReason.STUCK: "stopped, since it made no progress",
    EndReason.CANCELLED: "cancelled",
}


class Conversation:
    """Shows events one by one; control characters of a model's or a tool's are made visible.

    Entering it shows, where stderr is a terminal, that the model is waited for, until there is something else to show.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._waiting: Status | None = None
        self._in_line = False
        self._thinking = False

    def __enter__(self) -> Self:
        if not self._quiet and sys.stderr.isatty():
            self._waiting = Console(stderr=True, highlight=False).status("waiting for the model", spinner="line")
            self._waiting.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_waiting()

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.stop()
            self._waiting = None

    def show(self, event: RunEvent) -> None:
        """What an event says, in its place."""
        if event.type in _SHOWN:
            self._stop_waiting()
        match event.type:
            case "text":
                self._end_thinking()
                self._write(event.text)
            case "thinking":
                if not self._thinking and not self._quiet:
                    self._note("thinking …")
                self._thinking = True
            case "tool_call":
                self._end_thinking()
                self._note(f"→ {called(event.tool_call)}")
            case "tool_result":
                self._note(resulted(event.tool_result))
            case "tool.progress" | "notice":
                self._note(event.message)
            case "error":
                self._end_thinking()
            case "end":
                self.end_line()

    def end_line(self) -> None:
        """Begin a new line where one isn't ended."""
        if self._in_line:
            print(flush=True)
            self._in_line = False

    def _write(self, text: str) -> None:
        shown = output.visible(text.encode("utf-8", "replace"))
        print(shown, end="", flush=True)
        self._in_line = not shown.endswith("\n")

    def _note(self, text: str) -> None:
        if self._quiet:
            return
        self.end_line()
        for line in text.split("\n"):
            note(line)

    def _end_thinking(self) -> None:
        self._thinking = False


def note(line: str) -> None:
    """A line on stderr that is less important than what is around it."""
    shown = output.text(line)
    print(f"\033[2m{shown}\033[0m" if output.colours(sys.stderr) else shown, file=sys.stderr, flush=True)


class Calls:
    """The last calls of tools with their results, to be shown whole."""

    def __init__(self) -> None:
        self._begun: dict[str, ToolCall] = {}
        self._ended: deque[tuple[ToolCall, ToolResult]] = deque(maxlen=_KEPT_CALLS)

    def note(self, event: RunEvent) -> None:
        """Keep what an event says of a call."""
        if event.type == "tool_call":
            self._begun[event.tool_call.id] = event.tool_call
        elif event.type == "tool_result" and (call := self._begun.pop(event.tool_result.call_id, None)):
            self._ended.append((call, event.tool_result))

    def show(self, number: int = 1) -> bool:
        """Show the call that is so many from the end, on stdout; False where there aren't as many."""
        if not 1 <= number <= len(self._ended):
            return False
        call, result = self._ended[-number]
        print(output.bold(output.text(f"→ {call.name}")))
        print_arguments(call)
        text = result.content if result.ok else _failure(result)
        print(output.visible(text.encode("utf-8", "replace")))
        return True


def how_it_ended(result: RunResult) -> str:
    """`done after 3 turns, 12,345 tokens, $0.0123`."""
    return f"{_HOW[result.end_reason]} after {spent(result.usage, result.turns)}"


def print_arguments(call: ToolCall) -> None:
    """All that a call is made with, on stdout; a bar stands before each line of a text that has several."""
    if call.arguments is None:
        print(f"  {output.text(call.raw_arguments)}")
        return
    for name, value in call.arguments.items():
        if isinstance(value, str) and "\n" in value:
            print(f"  {output.text(name)}:")
            for line in value.split("\n"):
                print(f"  | {output.text(line)}")
        else:
            shown = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            print(f"  {output.text(name)}: {output.text(shown)}")


def called(call: ToolCall) -> str:
    """A call on one line."""
    if call.arguments is None:
        return f"{call.name} {_cut(call.raw_arguments)}"
    values = list(call.arguments.items())
    if len(values) == 1 and isinstance(values[0][1], str):
        return f"{call.name} {_cut(values[0][1])}"
    return f"{call.name} {_cut(', '.join(f'{name}={_shown(value)}' for name, value in values))}"


def resulted(result: ToolResult) -> str:
    """The first lines of a result, indented, and how many there are more."""
    text = result.content if result.ok else _failure(result)
    lines = text.strip("\n").expandtabs().split("\n")
    more = len(lines) - _RESULT_LINES
    shown = [
        f"  {'✗ ' if not result.ok and not number else ''}{_cut(line)}"
        for number, line in enumerate(lines[:_RESULT_LINES])
    ]
    return "\n".join((*shown, *((f"  … {output.count(more, 'more line')}",) if more > 0 else ())))


def spent(usage: Usage, turns: int) -> str:
    """`3 turns, 12,345 tokens, $0.0123`; a cost only where it's known."""
    tokens = output.count(usage.input_tokens + usage.output_tokens, "token")
    cost = f", {output.dollars(usage.cost_usd)}" if usage.cost_usd is not None else ""
    return f"{output.count(turns, 'turn')}, {tokens}{cost}"


def _failure(result: ToolResult) -> str:
    return result.error.message if result.error else "failed"


def _shown(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _CALL_CHARACTERS else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    line = text.replace("\n", " ⏎ ")
    return line if len(line) <= _CALL_CHARACTERS else f"{line[:_CALL_CHARACTERS]}…"
