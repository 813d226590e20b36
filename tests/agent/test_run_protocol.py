"""What a run does in which order, and what it never raises: the sentences that are about a run as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.agent.support import LONG, Gate, calling, end, of, read, registry, shout, talk, the
from workbench.agent.history import MemoryHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.options import SessionOptions
from workbench.agent.prompt import create_message
from workbench.agent.session import AgentSession
from workbench.errors import LockError, SessionGuardError
from workbench.protocol.events import session_events
from workbench.protocol.messages import ChatMessage, Usage
from workbench.protocol.runs import EndReason
from workbench.testing import ScriptedModel, Turn

pytestmark = pytest.mark.anyio


def test_end_reasons_are_stable_values() -> None:
    """ "EndReason is a string type with stable values, safe to persist"."""
    values = ["stop", "max_turns", "budget", "stuck", "cancelled", "timeout", "error"]
    assert [str(reason) for reason in EndReason] == values
    for value in values:
        written = f'{{"type":"end","end_reason":"{value}"}}'
        assert session_events.validate_json(written).end_reason == value  # type: ignore[union-attr]


async def test_the_lock_is_had_before_history_is_read_and_freed_after_the_end() -> None:
    """ "The session locks before History.Read and unlocks after EventEnd"; "reads at the start of a run and appends ... in one
    call at the end"."""
    order: list[str] = []

    class Noting(MemoryHistory):
        async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
            order.append("read")
            return await super().read(session_id)

        async def append(self, session_id: str, *messages: ChatMessage) -> None:
            order.append("append")
            await super().append(session_id, *messages)

    class NotingLocker(LocalLocker):
        @asynccontextmanager
        async def lock(self, session_id: str) -> AsyncIterator[None]:
            order.append("lock")
            async with super().lock(session_id):
                yield
            order.append("unlock")

    turns = (calling("shout", text="a"), Turn(text="ok"))
    async with talk(*turns, tools=[shout], history=Noting(), locker=NotingLocker()) as it:
        it.session.subscribe(lambda event: order.append(event.type) if event.type in ("end", "run.completed") else None)
        await it.say()
    assert order == ["lock", "read", "append", "end", "unlock", "run.completed"]


async def test_the_model_is_sent_the_registrys_schemas_on_every_call() -> None:
    """ "schemas() is what the runtime sends to the model"; sorted by name, "so that prompts are stable across restarts"."""
    tools = registry(shout, Gate("aside").tool, Gate("zoom").tool)
    model = ScriptedModel(calling("shout", text="a"), Turn(text="ok"))
    async with AgentSession.local(id="s", model=model, options=SessionOptions(tools=tools)) as session:
        await read(session.run("x"))
    assert [[tool.name for tool in request.tools] for request in model.requests] == [["aside", "shout", "zoom"]] * 2
    assert all(request.tools == tools.schemas() for request in model.requests)


class Unlockable(LocalLocker):
    @asynccontextmanager
    async def lock(self, session_id: str) -> AsyncIterator[None]:
        raise LockError("no lock")
        yield


def vetoing() -> None:
    raise SessionGuardError("no", code="quota_exceeded")


WAYS: dict[str, tuple[dict[str, Any], str, str]] = {
    "veto": ({"guard": vetoing}, "x", "quota_exceeded"),
    "bad message": ({}, " ", "invalid_options"),
    "no lock": ({"locker": Unlockable()}, "x", "lock_failed"),
    "model": ({}, "x", "error"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["run", "messages"])
async def test_nothing_is_raised_and_everything_arrives_in_the_stream(way: str, kind: str) -> None:
    """ "The returned error is always nil; everything arrives on the channel, which ends with EventEnd and then closes. Read it
    until it closes"."""
    given, text, code = WAYS[way]
    model = ScriptedModel(Turn(error=RuntimeError("broken")))
    fields = {"model": model, "history": MemoryHistory(), "locker": LocalLocker(), **given}
    async with AgentSession(id="s", **fields) as session:
        if kind == "run":
            run = session.run(text)
        else:
            run = session.run_with_messages([create_message("user", text)] if text.strip() else [])
        events = await read(run)
        assert end(events) == "error"
        assert [event.type for event in events[-2:]] == ["error", "end"]
        assert the(events, "error").error.code == code
        with anyio.fail_after(LONG):
            assert [event async for event in run] == []
    async with AgentSession(id="s", **fields) as session:
        await session.close()
        assert the(await read(session.run("x")), "error").error.code == "session_closed"


async def test_what_a_failed_run_has_used_stays_counted() -> None:
    """A failed run leaves History as it was, and never puts the usage back to nothing."""
    used = Usage(input_tokens=7, output_tokens=1, cost_usd=0.5)
    turns = (Turn(text="ok", usage=used), Turn(text="a", usage=used, tool_calls=[Turn.call("shout", {"text": "a"})]))
    async with talk(*turns, Turn(error=RuntimeError("broken")), tools=[shout]) as it:
        await it.say()
        assert end(await it.say()) == "error"
        failed = of(it.events, "run.failed")[0]
        assert (failed.usage.input_tokens, failed.usage.cost_usd) == (7, 0.5)
        assert (it.session.summary().usage.input_tokens, it.session.summary().usage.cost_usd) == (14, 1.0)
