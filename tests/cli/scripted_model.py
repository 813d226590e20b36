"""A model on the loopback, in the four wire formats that coding agents speak: it has a command run and a file written."""

from __future__ import annotations

import itertools
import json
import re
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.sandbox.egress.servers import HOST, Handler, Server
from workbench.testing import StubCall, StubReply, StubUsage
from workbench.testing.model_formats import encoded, format_of

ASKED, ASKED_AGAIN = "Make both files.", "What is there now?"
THOUGHT, BEGUN, SAID = "One of them needs a shell.", "The first one is made by a command.", "Both files are there now."
MADE, WRITTEN, TEXT = "made-by-command", "written-by-tool", "by an agent\n"
COMMAND = f"echo made > {MADE}"
PATCH = f"apply_patch <<'END'\n*** Begin Patch\n*** Add File: {WRITTEN}\n+{TEXT}*** End Patch\nEND"

_SHELL = re.compile("bash|shell|(run_)?shell_command|exec_command|run_commands|execute_command", re.IGNORECASE)
_WRITER = re.compile("write|write_file|write_to_file|create|editor", re.IGNORECASE)


class ScriptedModel(Server):
    """Answers whoever asks for a completion; `replies` are those to requests that told of tools, `names` what it was called.

    Args:
        workspace: the directory that the agent works in.
        trust: what it speaks TLS with.
    """

    def __init__(self, workspace: Path, trust: ssl.SSLContext | None = None) -> None:
        super().__init__(HOST, trust)
        self.RequestHandlerClass = _Handler
        self.replies: list[StubReply] = []
        self.names: set[str] = set()
        self._workspace = workspace
        self._numbers = itertools.count(1)

    def reply(self, asked: Mapping[str, Any], name: str) -> StubReply:
        """The command, then the file, then a sentence, which is also for whoever has no tools."""
        id, tools = f"reply{next(self._numbers)}", dict(_tools(asked))
        if not tools:
            return StubReply(id=id, text=SAID, usage=StubUsage(input=7, output=3))
        step = _results(asked)
        tokens = {"input": 1000 + step, "output": 40 + step, "cache_read": 400 + step, "cache_write": 50 + step}
        made = StubReply(id=id, text=SAID, usage=StubUsage(**tokens, reasoning=3))
        if step == 0:
            call = _shell(tools, COMMAND, id)
            made = replace(made, text=BEGUN, reasoning=THOUGHT, signature="c2lnbmVk", calls=[call])
        elif step == 1:
            paths = dict.fromkeys(("file_path", "filePath", "filepath", "path"), str(self._workspace / WRITTEN))
            contents = dict.fromkeys(("content", "file_text", "new_text"), TEXT)
            call = _call(tools, _WRITER, {**paths, **contents}, id) or _shell(tools, PATCH, id)
            made = replace(made, text="", calls=[call])
        self.replies.append(made)
        self.names.add(name)
        return made


class _Handler(Handler):
    def serve_v1(self, body: bytes) -> None:
        model: Any = self.server
        form = format_of(self.path)
        if form is None:
            self.answer(b'{"input_tokens": 1, "totalTokens": 1, "data": []}', Content_Type="application/json")
            return
        asked = json.loads(body)
        reply = model.reply(asked, asked.get("model") or self.path.rpartition("/")[2].partition(":")[0])
        if asked.get("stream") or ":stream" in self.path:
            events = b"".join(encoded(event, "\n") for event in form.stream(reply, asked))
            self.answer(events, Content_Type="text/event-stream")
        else:
            self.answer(json.dumps(form.whole(reply, asked)).encode(), Content_Type="application/json")

    serve_v1beta = serve_v1


def _tools(asked: Mapping[str, Any]) -> Iterable[tuple[str, dict[str, Any]]]:
    """What is told of each tool that a function's arguments can call: its name, and its arguments' schema."""
    for tool in asked.get("tools") or ():
        for about in tool.get("functionDeclarations") or [tool.get("function") or tool]:
            kinds = ("input_schema", "parameters", "parametersJsonSchema")
            schema = next((about[kind] for kind in kinds if about.get(kind)), None)
            if schema is not None:
                yield str(about["name"]), schema


def _results(asked: Mapping[str, Any]) -> int:
    """How many results of tools a request has."""
    told = [*(asked.get("messages") or ()), *(asked.get("contents") or ()), *_items(asked.get("input"))]
    parts = [part for one in told for part in (one, *_items(one.get("content")), *_items(one.get("parts")))]
    return sum(
        part.get("role") == "tool"
        or part.get("type") in ("tool_result", "function_call_output")
        or "functionResponse" in part
        for part in parts
        if isinstance(part, dict)
    )


def _items(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _shell(tools: Mapping[str, Any], command: str, id: str) -> StubCall:
    call = _call(tools, _SHELL, dict.fromkeys(("cmd", "command", "commands"), command), id)
    assert call is not None, f"none of {', '.join(tools)} runs a command"
    return call


def _call(tools: Mapping[str, Any], name: re.Pattern[str], known: Mapping[str, str], id: str) -> StubCall | None:
    """The first tool of such a name, given what it's known to need; None where there's none."""
    for tool, schema in tools.items():
        if not name.fullmatch(tool):
            continue
        properties = schema.get("properties") or {}
        arguments: dict[str, Any] = {}
        for argument in [each for each in properties if each in known or each in schema.get("required", ())]:
            kind = str(properties[argument].get("type")).lower()
            value = known.get(argument, "as asked")
            arguments[argument] = {"array": [value], "boolean": False}.get(kind, value)
        return StubCall(tool, arguments, id=f"call_{id}")
    return None
