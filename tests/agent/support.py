"""What tests of the agent share: tools, sessions over a script, and what their events were."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import anyio

from workbench.agent.history import History
from workbench.agent.locks import Locker
from workbench.agent.options import SessionOptions
from workbench.agent.run import RunStream
from workbench.agent.session import AgentSession
from workbench.protocol.events import RunEvent, SessionEvent
from workbench.protocol.messages import ChatMessage, ToolResult
from workbench.testing import ScriptedModel, Turn
from workbench.tools.base import Tool, ToolContext, tool
from workbench.tools.registry import ToolRegistry

# Far beyond what anything here takes, however busy the machine is.
LONG = 120


@tool()
def shout(text: str) -> str:
    """Say it loudly.

    Args:
        text: what to say
    """
    return text.upper()


@tool()
async def panic() -> str:
    """Fail."""
    raise ZeroDivisionError("no such luck")


def registry(*tools: Tool) -> ToolRegistry:
    """A registry of these tools."""
    result = ToolRegistry()
    for one in tools:
        result.register(one)
    return result


def calling(name: str, **arguments: Any) -> Turn:
    """A turn that makes one call."""
    return Turn(tool_calls=[Turn.call(name, arguments)])


class Talk:
    """A session over a scripted model, and all its events."""

    def __init__(self, session: AgentSession, model: ScriptedModel) -> None:
        self.session = session
        self.model = model
        self.events: list[SessionEvent] = []
        session.subscribe(self.events.append)

    async def say(self, text: str = "Hello.", **arguments: Any) -> list[RunEvent]:
        """Run to the end; returns the run's events."""
        return await read(self.session.run(text, **arguments))

    def types(self) -> list[str]:
        """The types of all events so far."""
        return [event.type for event in self.events]


@asynccontextmanager
async def talk(
    *turns: Any,
    tools: Sequence[Tool] | None = None,
    history: History | None = None,
    locker: Locker | None = None,
    system_prompt: str | None = None,
    id: str = "talk",
    model: ScriptedModel | None = None,
    consumed: bool = True,
    **options: Any,
) -> AsyncIterator[Talk]:
    """A local session whose model answers with these turns; where they must be `consumed`, it fails where some are left."""
    model = model or ScriptedModel(*turns)
    session = AgentSession.local(
        id=id,
        model=model,
        history=history,
        locker=locker,
        system_prompt=system_prompt,
        options=SessionOptions(tools=registry(*tools) if tools is not None else None, **options),
    )
    try:
        yield Talk(session, model)
    finally:
        with anyio.fail_after(LONG):
            await session.close()
    if consumed:
        model.assert_consumed()


async def read(run: RunStream) -> list[RunEvent]:
    """All events of a run, once its lock is free."""
    with anyio.fail_after(LONG):
        events = [event async for event in run]
        await run.wait_finished()
        return events


def of(events: Sequence[SessionEvent], type: str) -> list[Any]:
    """The events of one type."""
    return [event for event in events if event.type == type]


def the(events: Sequence[SessionEvent], type: str) -> Any:
    """The only event of one type."""
    (event,) = of(events, type)
    return event


def results(events: Sequence[SessionEvent]) -> list[ToolResult]:
    """The results of all calls."""
    return [event.tool_result for event in of(events, "tool_result")]


def end(events: Sequence[SessionEvent]) -> str:
    """Why a run ended; `end` was said exactly once, and last."""
    assert events[-1].type == "end"
    return str(the(events, "end").end_reason)


def pairs(messages: Sequence[ChatMessage]) -> list[tuple[str, str]]:
    """Role and content of each message."""
    return [(message.role, message.content) for message in messages]


class Gate:
    """A tool that waits to be let through, and says that it does."""

    def __init__(self, name: str = "gate", *, parallel: bool = False) -> None:
        self.entered = anyio.Event()
        self.opened = anyio.Event()
        self.left = anyio.Event()

        @tool(name=name, parallel=parallel)
        async def gate(context: ToolContext) -> str:
            """Wait."""
            self.entered.set()
            try:
                await self.opened.wait()
            finally:
                self.left.set()
            return "through"

        self.tool = gate
