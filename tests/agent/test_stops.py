"""A run that is cancelled, closed, timed out or broken at every point where it can wait.

"A failing ... run leaves History as it was"; "the lock is released": whatever the point, nothing stays behind: no task, no
lock, no half turn, no open request for approval; and the next run finds a valid conversation.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
import trio

from tests.agent.support import LONG, end, of, pairs, read, registry
from tests.waiting import until
from workbench.agent import execution
from workbench.agent.history import MemoryHistory, StoreHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.options import SessionOptions
from workbench.agent.permissions import Permission
from workbench.agent.prompt import create_message
from workbench.agent.run import RunStream
from workbench.agent.session import AgentSession
from workbench.agent.stores import MemorySessionStore
from workbench.errors import ModelRequestError
from workbench.protocol.messages import (
    ChatMessage,
    CompletionRequest,
    CompletionResponse,
    ModelInfo,
    TokenDelta,
    ToolExecutionResult,
    ToolSchema,
)
from workbench.protocol.runs import RetryOptions
from workbench.protocol.sessions import ApprovalRequest, SessionDetail
from workbench.testing import ScriptedModel, Turn
from workbench.tools.base import Tool, ToolContext, tool

pytestmark = pytest.mark.anyio

POINTS = (
    "lock",
    "read",
    "model",
    "after a delta",
    "retry",
    "reader",
    "compaction",
    "compaction after an overflow",
    "permission",
    "approval",
    "tool",
    "one of two tools",
    "thread",
    "turn of a thread",
    "turn of a resource",
    "awaitable of a thread",
    "after_tools",
    "append",
    "store: load",
    "store: lock for a change",
    "store: load for a change",
    "store: save",
    "unlock",
)
# Where an exception is a result that the model reads, or comes when all is over.
HARMLESS = (
    "permission",
    "approval",
    "tool",
    "one of two tools",
    "thread",
    "turn of a resource",
    "awaitable of a thread",
    "unlock",
)
# Where there is nothing that could fail.
UNFAILING = ("reader", "turn of a thread")
STORING = ("append", "store: lock for a change", "store: load for a change", "store: save")
# From here on the run is decided.
DECIDED = (*STORING, "unlock")
THREADS = 40


class Point:
    """The one place where the run of a test stops, and what happens there."""

    def __init__(self, name: str, breaks: bool) -> None:
        self.name = name
        self.breaks = breaks
        self.active = True
        self.entered = anyio.Event()
        self.opened = anyio.Event()
        self.inside = 0

    async def reach(self, name: str) -> None:
        if name != self.name or not self.active:
            return
        self.inside += 1
        self.entered.set()
        try:
            if self.breaks:
                raise RuntimeError("broken")
            await self.opened.wait()
        finally:
            self.inside -= 1


class StoppingHistory(MemoryHistory):
    def __init__(self, point: Point) -> None:
        super().__init__()
        self.point = point

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        await self.point.reach("read")
        return await super().read(session_id)

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        await self.point.reach("append")
        await super().append(session_id, *messages)


class StoppingStore(MemorySessionStore):
    """A run loads its session to read it, then once more to change it."""

    def __init__(self, point: Point) -> None:
        super().__init__()
        self.point = point
        self.locker: Any = _ReachedLocker(point, self.locker)
        self.changing = False

    async def load(self, id: str) -> SessionDetail | None:
        await self.point.reach("store: load for a change" if self.changing else "store: load")
        return await super().load(id)

    async def save(self, session: SessionDetail) -> None:
        await self.point.reach("store: save")
        await super().save(session)


class StoppingStoreHistory(StoreHistory):
    def __init__(self, point: Point) -> None:
        self.store = StoppingStore(point)
        super().__init__(self.store)

    async def change(self, session_id: str, change: Callable[[SessionDetail], SessionDetail]) -> SessionDetail:
        self.store.changing = True
        return await super().change(session_id, change)


class _ReachedLocker:
    def __init__(self, point: Point, inner: LocalLocker) -> None:
        self.point = point
        self.inner = inner

    @asynccontextmanager
    async def lock(self, session_id: str) -> AsyncIterator[None]:
        await self.point.reach("store: lock for a change")
        async with self.inner.lock(session_id):
            yield


class StoppingLocker:
    def __init__(self, point: Point) -> None:
        self.point = point
        self.inner = LocalLocker()

    @asynccontextmanager
    async def lock(self, session_id: str) -> AsyncIterator[None]:
        await self.point.reach("lock")
        async with self.inner.lock(session_id):
            try:
                yield
            finally:
                await self.point.reach("unlock")

    def held(self) -> bool:
        return any(entry.lock.statistics().locked for entry in self.inner._entries.values())


class StoppingModel(ScriptedModel):
    """Answers with a call of each tool, then with a text; a long one where its reader is to lag behind."""

    def __init__(self, point: Point) -> None:
        window = 2_000 if point.name.startswith("compaction") else None
        super().__init__(info=ModelInfo(id="m", provider="p", context_window=window))
        self.point = point
        self.failed = False

    async def generate(
        self, request: CompletionRequest, on_delta: Callable[[TokenDelta], None] | None = None
    ) -> CompletionResponse:
        self.requests.append(request)
        name = self.point.name
        if "Summarise" in request.messages[0].content:
            await self.point.reach(name if name.startswith("compaction") else "")
            return Turn(text="SUMMARY").reply()
        if name == "compaction after an overflow" and not self.failed:
            self.failed = True
            raise ModelRequestError("too long", code="context_overflow", provider="p")
        await self.point.reach("model")
        if name == "retry" and self.point.active:
            if self.failed and self.point.breaks:
                raise RuntimeError("broken")
            self.failed = True
            raise ModelRequestError("wait", code="overloaded", provider="p", retryable=True)
        assert on_delta is not None
        pieces = 300 if name == "reader" else 1
        for _ in range(pieces):
            on_delta(TokenDelta(kind="text", text="x"))
        await self.point.reach("after a delta")
        if any(message.role == "tool" for message in request.messages):
            return Turn(text="x" * pieces).reply()
        tools = {"thread": "thread", "turn of a thread": "thread", "awaitable of a thread": "awaitable"}
        called = tools.get(name, "take_turns" if name == "turn of a resource" else "slow")
        calls = [Turn.call(called, {"key": "k"} if called == "take_turns" else {})] * (1 if name in tools else 2)
        return Turn(text="x" * pieces, tool_calls=calls).reply()


def tools_of(point: Point) -> list[Tool]:
    calls = 0

    @tool(permission="ask", parallel=True)
    async def slow() -> str:
        """Wait."""
        nonlocal calls
        calls += 1
        await point.reach("tool")
        if calls == 2:
            await point.reach("one of two tools")
        return "done"

    @tool(parallel=True, resources=("key",))
    async def take_turns(key: str) -> str:
        """Wait, while another call waits for its turn."""
        await point.reach("turn of a resource")
        return "done"

    class Late:
        schema = ToolSchema(name="awaitable", description="Wait after the thread's end.", parameters={"type": "object"})

        def execute(self, args: dict[str, Any], context: ToolContext) -> Awaitable[ToolExecutionResult]:
            async def wait() -> ToolExecutionResult:
                await point.reach("awaitable of a thread")
                return ToolExecutionResult(content="done")

            return wait()

    @tool()
    def thread(context: ToolContext) -> str:
        """Wait in a thread."""
        if not point.active or point.name != "thread":
            return "done"
        stopped = threading.Event()
        context.signal.on_cancel(stopped.set)
        anyio.from_thread.run_sync(point.entered.set)
        if point.breaks:
            raise RuntimeError("broken")
        stopped.wait(LONG)
        return "done"

    return [slow, take_turns, Late(), thread]


def options_of(point: Point, timeout: float) -> SessionOptions:
    async def resolve(tool: Tool, call: Any, session: Any) -> Permission:
        await point.reach("permission")
        return tool.schema.permission

    async def approve(request: ApprovalRequest) -> bool:
        await point.reach("approval")
        return True

    async def after_tools(message: ChatMessage) -> None:
        await point.reach("after_tools")

    delay = 0 if point.breaks else LONG * 1_000
    return SessionOptions(
        tools=registry(*tools_of(point)),
        resolve_permission=resolve,
        approve=approve,
        after_tools=after_tools,
        run_timeout=timeout,
        max_tokens=100,
        retry=RetryOptions(base_delay_ms=delay, max_delay_ms=delay),
    )


@pytest.mark.parametrize("way", ["cancel", "close", "leave", "timeout", "error"])
@pytest.mark.parametrize("point_name", POINTS)
async def test_nothing_is_left_of_a_run_that_stops(point_name: str, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ "cancellation, timeouts and errors at every await point leave no task, lock or half turn behind"."""
    if way == "timeout":
        monkeypatch.setattr(execution, "_SETTLING_SECONDS", 0.3)
    if way == "error" and point_name in UNFAILING:
        pytest.skip("waiting for that can't fail")
    point = Point(point_name, breaks=way == "error")
    locker, model = StoppingLocker(point), StoppingModel(point)
    history = StoppingStoreHistory(point) if point_name.startswith("store") else StoppingHistory(point)
    if point_name.startswith("compaction"):
        size = 1_500 if point_name == "compaction" else 500
        await MemoryHistory.append(history, "s", *[_message(number, size) for number in range(8)])
    before = await _stored(history)
    # Where the run has to be at the point when its time is up, it gets enough to come there.
    limit = LONG if way != "timeout" else 2 if point_name in DECIDED else 0.3
    options = options_of(point, limit)
    session = AgentSession(id="s", model=model, history=history, locker=locker, options=options)
    events: list[Any] = []
    session.subscribe(events.append)

    threads = session._state.threads.turn()
    for number in range(THREADS if point_name == "turn of a thread" else 0):
        threads.acquire_on_behalf_of_nowait(number)

    async with session:
        run = session.run("Go.")
        with anyio.fail_after(LONG):
            if way != "error" and way != "timeout":
                await _reached(point, events, threads)
            reason = await _stop(way, session, run, point)
            await run.wait_finished()
        point.opened.set()
        ran = await read(run)
        assert end(ran) == reason
        assert point.entered.is_set() or point_name in ("retry", *UNFAILING) or way == "timeout"
        _assert_nothing_is_left(session, locker, point, events)
        await until(lambda: _run_tasks() == 0, seconds=LONG)
        await _assert_no_half_turn(history, before, reason)

    for number in range(THREADS if point_name == "turn of a thread" else 0):
        threads.release_on_behalf_of(number)
    assert threads.borrowed_tokens == 0
    point.active = False
    again = AgentSession(id="s", model=model, history=history, locker=locker, options=options_of(point, LONG))
    async with again:
        with anyio.fail_after(LONG):
            result = await again.start("And now?").result()
        assert result.end_reason == "stop"
    _assert_valid(model.requests[-1])


def _run_tasks() -> int:
    """How many tasks of runs live in this event loop."""
    if trio.lowlevel.in_trio_task():
        root = trio.lowlevel.current_root_task()
        assert root is not None
        return sum(child.name.startswith("run ") for nursery in root.child_nurseries for child in nursery.child_tasks)
    return sum(task.get_name().startswith("run ") for task in asyncio.all_tasks())


@pytest.mark.parametrize("close", [False, True])
@pytest.mark.parametrize("way", ["plain", "compaction", "compaction after an overflow", "turn of a resource", "store"])
async def test_nothing_is_left_of_a_run_that_is_cancelled_after_any_number_of_steps(way: str, close: bool) -> None:
    """Not only where it waits for something of ours: cancelled after 0, 1, 2, … steps of the event loop, until it's over."""
    reasons: list[str] = []
    steps = 0
    while not reasons or reasons[-1] != "stop":
        point = Point(way, breaks=False)
        point.active = False
        locker, model = StoppingLocker(point), StoppingModel(point)
        history = StoppingStoreHistory(point) if way == "store" else StoppingHistory(point)
        if way.startswith("compaction"):
            await history.append("s", *[_message(number, 1_500) for number in range(8)])
        before = await _stored(history)
        session = AgentSession(
            id="s", model=model, history=history, locker=locker, options=options_of(point, timeout=LONG)
        )
        events: list[Any] = []
        session.subscribe(events.append)
        async with session:
            run = session.run("Go.")
            for _ in range(steps):
                await anyio.lowlevel.checkpoint()
            with anyio.fail_after(LONG):
                if close:
                    await session.close()
                else:
                    run.cancel()
                    await run.wait_finished()
            reasons.append(end(await read(run)))
            _assert_nothing_is_left(session, locker, point, events)
            await _assert_no_half_turn(history, before, reasons[-1])
        steps += 1
    assert set(reasons) == {"cancelled", "stop"}


async def _reached(point: Point, events: list[Any], threads: anyio.CapacityLimiter) -> None:
    """Wait until the run waits at the point."""
    if point.name == "retry":
        await until(lambda: of(events, "notice"))
    elif point.name == "reader":
        await until(lambda: len(of(events, "text")) >= 300)
    elif point.name == "turn of a thread":
        await until(lambda: threads.statistics().tasks_waiting)
    else:
        await point.entered.wait()


async def _stop(way: str, session: AgentSession, run: RunStream, point: Point) -> str:
    """Stop the run, and say with which reason it ends."""
    if way == "error":
        return "stop" if point.name in HARMLESS else "error"
    if way == "timeout":
        return "error" if point.name in STORING else "stop" if point.name == "unlock" else "timeout"
    decided = point.name in DECIDED
    if way == "cancel":
        assert run.cancel() is not decided
        if decided:
            point.opened.set()
    elif way == "close":
        if decided:
            point.opened.set()
        await session.close()
    else:
        if decided:
            point.opened.set()
        async with run:
            pass
    return "stop" if decided else "cancelled"


def _assert_nothing_is_left(session: AgentSession, locker: StoppingLocker, point: Point, events: list[Any]) -> None:
    assert not session.is_running
    assert not locker.held()
    assert point.inside == 0
    assert session.detail().pending == ()
    asked = [event.request.id for event in of(events, "approval.requested")]
    assert sorted(asked) == sorted(event.request_id for event in of(events, "approval.resolved"))
    last = [event.type for event in events if event.type in ("run.completed", "run.cancelled", "run.failed")]
    assert len(last) == 1
    assert [event.type for event in events][-3:] == ["end", last[0], "session.updated"]
    assert len(of(events, "error")) == (last == ["run.failed"])


async def _stored(history: StoppingHistory | StoppingStoreHistory) -> tuple[ChatMessage, ...]:
    if isinstance(history, StoppingHistory):
        return await MemoryHistory.read(history, "s")
    detail = await MemorySessionStore.load(history.store, "s")
    return () if detail is None else detail.messages


async def _assert_no_half_turn(
    history: StoppingHistory | StoppingStoreHistory, before: tuple[ChatMessage, ...], reason: str
) -> None:
    after = await _stored(history)
    assert after[: len(before)] == before
    new = [role for role, _ in pairs(after[len(before) :])]
    if reason != "stop":
        assert new == []
    else:
        assert new in (["user", "assistant", "tool", "tool", "assistant"], ["user", "assistant", "tool", "assistant"])


def _assert_valid(request: CompletionRequest) -> None:
    """Each call is followed by its result, and by no other."""
    open_calls: list[str] = []
    for message in request.messages:
        if message.role == "tool":
            assert message.tool_call_id == open_calls.pop(0)
        else:
            assert open_calls == []
            open_calls = [call.id for call in message.tool_calls]
    assert open_calls == []


def _message(number: int, size: int) -> ChatMessage:
    return create_message("user" if number % 2 == 0 else "assistant", f"{number}" * size)


@pytest.mark.parametrize("way", ["cancel", "close", "leave", "timeout"])
async def test_nothing_is_left_of_a_run_that_stops_while_it_waits_for_the_one_before(way: str) -> None:
    """Runs of one object take turns before they come to the lock."""
    point = Point("model", breaks=False)
    history, locker, model = StoppingHistory(point), StoppingLocker(point), StoppingModel(point)
    session = AgentSession(id="s", model=model, history=history, locker=locker, options=options_of(point, LONG))
    async with session:
        first = session.run("First.")
        with anyio.fail_after(LONG):
            await point.entered.wait()
            with anyio.move_on_after(0.1 if way == "timeout" else None):
                second = session.run("Second.")
                if way == "timeout":
                    await second.wait_finished()
            if way == "cancel":
                second.cancel()
            elif way == "close":
                await session.close()
            elif way == "leave":
                async with second:
                    pass
            await second.wait_finished()
            point.opened.set()
            await first.wait_finished()
        assert end(await read(second)) == ("timeout" if way == "timeout" else "cancelled")
        assert end(await read(first)) == ("cancelled" if way == "close" else "stop")
        assert (session.is_running, locker.held(), session.detail().pending) == (False, False, ())
        assert [message.content for message in await _stored(history) if message.role == "user"] == (
            [] if way == "close" else ["First."]
        )


async def test_a_listener_may_stop_the_run_at_every_event() -> None:
    """Events are said in the midst of everything: in a model's delta, between two results, before the append, at the end."""
    at = 0
    reasons: list[str] = []
    while True:
        point = Point("nowhere", breaks=False)
        history, locker, model = StoppingHistory(point), StoppingLocker(point), StoppingModel(point)
        session = AgentSession(id="s", model=model, history=history, locker=locker, options=options_of(point, LONG))
        events: list[Any] = []

        def listen(event: Any, at: int = at, events: list[Any] = events, session: AgentSession = session) -> None:
            events.append(event)
            if len(events) == at + 1:
                session.cancel()
                raise asyncio.CancelledError

        session.subscribe(listen)
        async with session:
            run = session.run("Go.")
            with anyio.fail_after(LONG):
                await run.wait_finished()
            reasons.append(end(await read(run)))
            _assert_nothing_is_left(session, locker, point, events)
            await _assert_no_half_turn(history, (), reasons[-1])
        at += 1
        if at > len(events):
            break
    assert reasons == sorted(reasons)
    assert {"cancelled", "stop"} == set(reasons)
