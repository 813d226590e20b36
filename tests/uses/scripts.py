"""What models are made to do: replies of a stub as one line each."""

from __future__ import annotations

import json
from typing import Any

from workbench.testing import StubCall, StubReply

MODEL = "stub/m"


def call(name: str, **arguments: Any) -> StubReply:
    """A reply that calls one tool."""
    return StubReply(calls=[StubCall(name, arguments)])


def say(text: str) -> StubReply:
    """A reply that ends the run."""
    return StubReply(text=text)


def events(output: bytes) -> list[dict[str, Any]]:
    """What `--json` wrote, a line each; the last is the result."""
    return [json.loads(line) for line in output.splitlines()]
