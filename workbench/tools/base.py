"""What a tool is, and what it's called with."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, MutableMapping
from typing import Any, Protocol

from workbench.protocol.messages import ChatMessage, ToolExecutionResult, ToolSchema
from workbench.protocol.signal import CancelSignal


class ToolSession(Protocol):
    """The session as its tools see it; `metadata` is one map per session, shared by all its calls, for caches and counters."""

    @property
    def id(self) -> str: ...
    @property
    def workspace(self) -> str: ...
    @property
    def messages(self) -> tuple[ChatMessage, ...]: ...
    @property
    def metadata(self) -> MutableMapping[str, Any]: ...


class ToolContext(Protocol):
    """What a call knows of where it runs. `signal` is for tools in worker threads, which no cancel scope reaches."""

    @property
    def session(self) -> ToolSession: ...
    @property
    def call_id(self) -> str: ...
    @property
    def signal(self) -> CancelSignal: ...
    @property
    def logger(self) -> logging.Logger: ...
    def progress(self, message: str) -> None:
        """Tell the clients how it goes; callable from any thread."""


class Tool(Protocol):
    """Something that a model can call."""

    @property
    def schema(self) -> ToolSchema: ...
    def execute(
        self, args: dict[str, Any], context: ToolContext
    ) -> Awaitable[ToolExecutionResult] | ToolExecutionResult:
        """Run with validated arguments.

        A coroutine function runs in the event loop, any other in a worker thread. Whatever it raises is reported to the
        model as `tool_panicked`, a ToolError with its own code.
        """
