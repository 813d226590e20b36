"""Calling a tool as a run does."""

from __future__ import annotations

import logging
from collections.abc import Iterable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from workbench.protocol.messages import ChatMessage, ToolExecutionResult
from workbench.protocol.signal import CancelSignal
from workbench.tools.base import Tool


@dataclass
class _Session:
    id: str = "test"
    workspace: str = ""
    messages: tuple[ChatMessage, ...] = ()
    metadata: MutableMapping[str, Any] = field(default_factory=dict)


@dataclass
class _Context:
    session: _Session = field(default_factory=_Session)
    call_id: str = "call"
    signal: CancelSignal = field(default_factory=CancelSignal)
    logger: logging.Logger = field(default_factory=lambda: logging.getLogger("tests"))

    def progress(self, message: str) -> None:
        pass


class Called:
    """Tools by name; what a call comes to."""

    def __init__(self, tools: Iterable[Tool]) -> None:
        self._tools = {tool.schema.name: tool for tool in tools}

    async def result(self, name: str, **arguments: Any) -> ToolExecutionResult:
        outcome = self._tools[name].execute(arguments, _Context())
        return outcome if isinstance(outcome, ToolExecutionResult) else await outcome

    async def __call__(self, name: str, **arguments: Any) -> str:
        """The content of a call that has to succeed."""
        result = await self.result(name, **arguments)
        assert not result.is_error, result.content
        return result.content

    async def refused(self, name: str, **arguments: Any) -> str:
        """The content of a call that has to fail."""
        result = await self.result(name, **arguments)
        assert result.is_error, result.content
        return result.content
