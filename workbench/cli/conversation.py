"""A run as somebody at a terminal, or a log, reads it: the reply's text on stdout, what is done for it on stderr."""

from __future__ import annotations

import json
import sys

from workbench.cli import output
from workbench.protocol.events import RunEvent
from workbench.protocol.messages import ToolCall, ToolResult, Usage

_CALL_CHARACTERS = 100
_RESULT_LINES = 3


class Conversation:
    """Shows events one by one; control characters of a model's or a tool's are made visible."""

    def __init__(self, *, quiet: bool = False) -> None:
        self._quiet = quiet
        self._in_line = False
        self._thinking = False

    def show(self, event: RunEvent) -> None:
        """What an event says, in its place."""
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
            shown = output.text(line)
            print(f"\033[2m{shown}\033[0m" if output.colours(sys.stderr) else shown, file=sys.stderr, flush=True)

    def _end_thinking(self) -> None:
        self._thinking = False


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
    text = result.content if result.ok else f"{result.error.message if result.error else 'failed'}"
    lines = text.strip("\n").split("\n")
    more = len(lines) - _RESULT_LINES
    shown = [
        f"  {'✗ ' if not result.ok and not number else ''}{_cut(line)}"
        for number, line in enumerate(lines[:_RESULT_LINES])
    ]
    return "\n".join((*shown, *((f"  … {output.count(more, 'more line')}",) if more > 0 else ())))


def spent(usage: Usage, turns: int) -> str:
    """`3 turns, 12,345 tokens, $0.0123`; a cost only where it's known."""
    tokens = output.count(usage.input_tokens + usage.output_tokens, "token")
    cost = f", ${usage.cost_usd:.4f}" if usage.cost_usd is not None else ""
    return f"{output.count(turns, 'turn')}, {tokens}{cost}"


def _shown(value: object) -> str:
    return value if isinstance(value, str) and len(value) <= _CALL_CHARACTERS else json.dumps(value, ensure_ascii=False)


def _cut(text: str) -> str:
    line = text.replace("\n", " ⏎ ")
    return line if len(line) <= _CALL_CHARACTERS else f"{line[:_CALL_CHARACTERS]}…"
