"""What a run does in which order, and what it never raises: the sentences that are about a run as a whole."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import anyio
import pytest

from tests.agent.support import LONG, Gate, calling, end, of, pairs, read, registry, shout, talk, the
from workbench.agent.history import MemoryHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.options import SessionOptions
from workbench.agent.prompt import create_message
from workbench.agent.run import Drained, drain
from workbench.agent.session import AgentSession
from workbench.errors import LockError, SessionGuardError
from workbench.protocol.events import RunEvent, session_events
from workbench.protocol.messages import CacheBreakpoint, ChatMessage, ImageAttachment, Thinking, Usage
from workbench.protocol.runs import EndReason, RunOptions
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
    """A failed run leaves History as it was, and never puts the usage back to nothing. earendil-works/pi 6445."""
    used = Usage(input_tokens=7, output_tokens=1, cost_usd=0.5)
    turns = (Turn(text="ok", usage=used), Turn(text="a", usage=used, tool_calls=[Turn.call("shout", {"text": "a"})]))
    async with talk(*turns, Turn(error=RuntimeError("broken")), tools=[shout]) as it:
        await it.say()
        assert end(await it.say()) == "error"
        failed = of(it.events, "run.failed")[0]
        assert (failed.usage.input_tokens, failed.usage.cost_usd) == (7, 0.5)
        assert (it.session.summary().usage.input_tokens, it.session.summary().usage.cost_usd) == (14, 1.0)


async def test_a_log_of_ones_own_grows_by_what_drain_returns() -> None:
    """ "RunWithMessages with Drain": "never touched: you own the log, agent.Drain gives you the produced messages"; "so a log
    rebuilt with Drain matches what the model saw"."""
    history = MemoryHistory()
    log = [create_message("user", "What time is it?")]
    async with talk(
        calling("shout", text="noon"), Turn(text="Noon."), Turn(text="Now."), tools=[shout], history=history
    ) as it:
        produced, error = await drain(it.session.run_with_messages(log))
        assert error is None
        log += [*produced, create_message("user", "And now?")]
        await drain(it.session.run_with_messages(log))
    assert pairs(it.model.requests[-1].messages) == [
        ("user", "What time is it?"),
        ("assistant", ""),
        ("tool", "NOON"),
        ("assistant", "Noon."),
        ("user", "And now?"),
    ]
    assert await history.read("talk") == ()


async def test_a_channel_may_be_fanned_out_and_one_branch_drained() -> None:
    """ "To stream to a UI as well, fan the channel out yourself and pass one branch to Drain"."""
    shown: list[str] = []
    drained: list[Drained] = []
    async with talk(calling("shout", text="a"), Turn(deltas=["b", "c"]), tools=[shout]) as it:
        send, branch = anyio.create_memory_object_stream[RunEvent](1)

        async def take() -> None:
            async with branch:
                drained.append(await drain(branch))

        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as group, send:
                group.start_soon(take)
                async for event in it.session.run("x"):
                    shown += [event.text] if event.type == "text" else []
                    await send.send(event)
                await send.aclose()
    assert shown == ["b", "c"]
    assert pairs(drained[0].messages) == [("assistant", ""), ("tool", "A"), ("assistant", "bc")]
    assert drained[0].messages == it.session.detail().messages[1:]


async def test_each_request_of_a_run_begins_with_the_one_before_it() -> None:
    """ "so the next call of the run reads the earlier conversation from the provider's cache": what was
    marked stays as it was."""
    turns = [calling("shout", text=text) for text in "abc"]
    async with talk(*turns, Turn(text="ok"), Turn(text="ok"), tools=[shout], system_prompt="S") as it:
        await it.say("one")
        await it.say("two")
    requests = [
        [message.model_copy(update={"cache_breakpoint": None}) for message in request.messages]
        for request in it.model.requests
    ]
    for number, (before, after) in enumerate(pairwise(requests)):
        # The system prompt is a message of each run's own.
        assert after[1 : len(before)] == before[1:], number
        assert after[0].content == before[0].content
        assert it.model.requests[number].tools == it.model.requests[number + 1].tools


async def test_a_history_that_sets_its_own_marks_keeps_control() -> None:
    """ "A request whose messages already carry a breakpoint is sent unchanged (a History that sets its own keeps control);
    breakpoints are added to the request only, never to History"."""
    mark = CacheBreakpoint(ttl="1h")

    class Marking(MemoryHistory):
        async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
            first, *others = await super().read(session_id) or (None,)
            return () if first is None else (first.model_copy(update={"cache_breakpoint": mark}), *others)

    history = Marking()
    turns = (Turn(text="1"), calling("shout", text="a"), Turn(text="2"))
    async with talk(*turns, tools=[shout], history=history, system_prompt="S") as it:
        await it.say()
        await it.say()
    marks = [[message.cache_breakpoint for message in request.messages] for request in it.model.requests]
    default = CacheBreakpoint()
    assert marks == [[default, default], [None, mark, None, None], [None, mark, *[None] * 4]]
    assert not any(message.cache_breakpoint for message in await MemoryHistory.read(history, "talk"))


async def test_thinking_is_asked_for_on_every_model_call() -> None:
    """ "SessionOptions.Thinking sets the reasoning of every model call"; "RunOptions.Thinking replaces it for one run"; "like
    Run": what a run with options said is appended, too."""
    low, high = Thinking.by_effort("low"), Thinking.by_budget(2_000)
    one = [calling("shout", text="a"), Turn(text="ok")]
    history = MemoryHistory()
    async with talk(*one, *one, *one, tools=[shout], thinking=low, history=history) as it:
        await it.say()
        await read(it.session.run_with_options("b", RunOptions(thinking=high)))
        await it.say()
    assert [request.thinking for request in it.model.requests] == [low, low, high, high, low, low]
    assert len(await history.read("talk")) == 12


async def test_the_callers_deadline_leaves_history_as_it_was() -> None:
    """ "EndReasonTimeout: the caller's deadline, RunTimeout or LLMCallTimeout expired: not touched"."""
    history, gate = MemoryHistory(), Gate()
    async with talk(Turn(text="kept"), calling("gate"), tools=[gate.tool], history=history, consumed=False) as it:
        await it.say()
        before = await history.read("talk")
        with anyio.move_on_after(0.2):
            run = it.session.run("x")
        assert end(await read(run)) == "timeout"
    assert await history.read("talk") == before


async def test_a_reply_of_an_image_alone_has_content() -> None:
    """ "A reply with no text, images or tool calls ... is not stored": one with any of these is, and is sent back."""
    image = ImageAttachment(media_type="image/png", data=b"x")
    for turn in (Turn(images=[image]), Turn(text="a"), calling("shout", text="a")):
        rest = [Turn(text="ok")] if turn.tool_calls else []
        async with talk(turn, *rest, Turn(text="ok"), tools=[shout]) as it:
            await it.say()
            await it.say()
        assert it.model.requests[-1].messages[1].role == "assistant"
        assert it.model.requests[-1].messages[1].images == turn.reply().images
