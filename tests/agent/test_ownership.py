"""Whose is what an event, a request or a result holds: the receiver's, who may change it as he likes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from pydantic import BaseModel

from tests.agent.support import calling, pairs, talk
from workbench.agent.history import StoreHistory
from workbench.agent.stores import MemorySessionStore
from workbench.protocol.messages import ToolExecutionResult
from workbench.protocol.sessions import ApprovalRequest
from workbench.testing import Turn
from workbench.tools.base import tool

pytestmark = pytest.mark.anyio


def spoil(value: Any) -> None:
    """Change whatever can be changed, however deep it is."""
    if isinstance(value, dict):
        for one in value.values():
            spoil(one)
        value.clear()
    elif isinstance(value, list | tuple):
        for one in value:
            spoil(one)
        if isinstance(value, list):
            value.clear()
    elif isinstance(value, BaseModel):
        for name in type(value).model_fields:
            spoil(getattr(value, name))


async def course(spoils: bool) -> tuple[Any, ...]:
    """What came of two runs and a rewind whose events are spoilt by who hears them, or aren't."""
    kept = {"rows": [{"n": 1}]}
    ran: list[Any] = []

    @tool(permission="ask")
    def look(what: list[dict[str, int]]) -> ToolExecutionResult:
        """Look."""
        ran.append((what, json.dumps(kept)))
        return ToolExecutionResult(content="seen", data=kept)

    async def approve(request: ApprovalRequest) -> bool:
        if spoils:
            spoil(request)
        return True

    turns = [calling("look", what=[{"a": 1}]) for _ in range(2)]
    history = StoreHistory(MemorySessionStore())
    async with talk(*turns, Turn(text="ok"), Turn(text="ok"), tools=[look], history=history, approve=approve) as it:
        if spoils:
            it.session.subscribe(spoil)
        await it.say("a", message_id="m1")
        await it.say("b", message_id="m2")
        await it.session.rewind("m2")
        if spoils:
            spoil(it.session.detail())
    requests = [
        [(message.role, message.content, [call.arguments for call in message.tool_calls]) for message in each.messages]
        for each in it.model.requests
    ]
    stored = await history.read("talk")
    return ran, kept, requests, pairs(stored), [call.arguments for one in stored for call in one.tool_calls]


async def test_whatever_is_done_to_events_the_run_its_requests_and_history_are_the_same() -> None:
    """ "You own everything an event points to ...: changing it never alters the run, its next requests or History", nor what a
    tool has kept of what it returned, nor what runs once it was approved."""
    whole = await course(spoils=False)
    assert await course(spoils=True) == whole
    assert whole[4] == [{"what": [{"a": 1}]}] * 2
