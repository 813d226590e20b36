"""What a tool is given and what of its result goes where: each docstring names the sentence that its test shows."""

from __future__ import annotations

import logging
import threading
from collections.abc import Awaitable
from typing import Any

import anyio
import pytest

from tests.agent.support import LONG, Gate, calling, end, of, read, results, shout, talk
from workbench.agent.history import MemoryHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.options import SessionOptions
from workbench.agent.session import AgentSession
from workbench.protocol.events import Notice
from workbench.protocol.messages import ToolExecutionResult, ToolSchema
from workbench.testing import ScriptedModel, Turn
from workbench.tools.base import ToolContext, tool
from workbench.tools.registry import ToolRegistry

pytestmark = pytest.mark.anyio


class Given:
    """A tool that is called as it stands, and keeps what it was given."""

    def __init__(self) -> None:
        self.schema = ToolSchema(name=type(self).__name__, description="", parameters={"type": "object"})
        self.given: list[tuple[dict[str, Any], ToolContext]] = []


class Sync(Given):
    def execute(self, args: dict[str, Any], context: ToolContext) -> ToolExecutionResult:
        self.given.append((args, context))
        return ToolExecutionResult(content="sync")


class Async(Given):
    async def execute(self, args: dict[str, Any], context: ToolContext) -> ToolExecutionResult:
        self.given.append((args, context))
        return ToolExecutionResult(content="async")


class Both(Given):
    def execute(self, args: dict[str, Any], context: ToolContext) -> Awaitable[ToolExecutionResult]:
        async def later() -> ToolExecutionResult:
            await anyio.lowlevel.checkpoint()
            return ToolExecutionResult(content="both")

        self.given.append((args, context))
        return later()


@pytest.mark.parametrize("kind", [Sync, Async, Both])
async def test_a_tool_returns_a_result_or_something_to_await(kind: type[Any]) -> None:
    """ "execute(args, context): Promise<ToolExecutionResult> | ToolExecutionResult"; "content: string; sent to the model"."""
    given = kind()
    async with talk(calling(kind.__name__, a=1), Turn(text="ok"), tools=[given]) as it:
        (result,) = results(await it.say())
    assert result.content == it.model.requests[1].messages[-1].content == kind.__name__.lower()
    ((args, context),) = given.given
    assert (args, context.call_id, context.session.id) == ({"a": 1}, result.call_id, "talk")


async def test_data_reaches_clients_and_never_the_model_or_history() -> None:
    """ "data?: unknown; sent to clients only"."""

    @tool()
    def look() -> ToolExecutionResult:
        """Look."""
        return ToolExecutionResult(content="seen", data={"secret": [1]})

    history = MemoryHistory()
    async with talk(calling("look"), Turn(text="a"), Turn(text="b"), tools=[look], history=history) as it:
        (result,) = results(await it.say())
        await it.say()
    assert (result.ok, result.content, result.data) == (True, "seen", {"secret": [1]})
    assert not any("secret" in request.model_dump_json() for request in it.model.requests)
    assert not any("secret" in message.model_dump_json() for message in await history.read("talk"))
    assert not any("secret" in event.model_dump_json() for event in of(it.events, "message.completed"))


async def test_a_tool_logs_where_its_session_does() -> None:
    """ "ToolContext: readonly logger: Logger"; "SessionManagerOptions: logger: Logger"."""
    logger = logging.getLogger("of this test alone")
    heard: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.propagate = False

    @tool()
    def speak(context: ToolContext) -> str:
        """Speak."""
        context.logger.warning("from a tool")
        return "ok"

    def broken(_: object) -> None:
        raise RuntimeError("x")

    tools, models = ToolRegistry(), ModelRegistry()
    tools.register(speak)
    models.register(ScriptedModel(calling("speak"), Turn(text="ok")))
    options = SessionOptions(tools=tools, logger=logger)
    async with SessionManager(models=models, default_workspace="/w", options=options) as sessions:
        session = await sessions.create()
        await session.start("x").result()
        with sessions.subscribe(broken):
            session.publish(Notice(code="c", message="m"))
    assert heard == ["from a tool", "a listener of the sessions failed"]


@pytest.mark.parametrize("threaded", [True, False])
async def test_cancelling_aborts_the_signal_of_a_tool_wherever_it_runs(threaded: bool) -> None:
    """ "cancel() aborts the signal"; "ToolContext: readonly signal: AbortSignal"."""
    aborted, entered = threading.Event(), threading.Event()

    @tool()
    def in_thread(context: ToolContext) -> str:
        """Wait in a thread."""
        context.signal.on_cancel(aborted.set)
        entered.set()
        aborted.wait(LONG)
        return "aborted"

    @tool()
    async def in_loop(context: ToolContext) -> str:
        """Wait in the event loop."""
        context.signal.on_cancel(aborted.set)
        entered.set()
        await anyio.sleep_forever()
        return "never"

    one = in_thread if threaded else in_loop
    async with talk(calling(one.schema.name), tools=[one]) as it:
        run = it.session.start("x")
        with anyio.fail_after(LONG):
            await anyio.to_thread.run_sync(entered.wait)
            assert not aborted.is_set()
            it.session.cancel()
            assert (await run.result()).status == "cancelled"
            await anyio.to_thread.run_sync(aborted.wait)
    assert aborted.is_set()


async def test_every_call_of_a_reply_is_said_before_the_first_runs() -> None:
    """ "EventToolCall: a call of the model, sent before it runs: all calls of one reply come first, in order"."""
    said: list[list[str]] = []

    @tool()
    async def look(what: str) -> str:
        """Look."""
        said.append([event.tool_call.arguments["what"] for event in of(it.events, "tool_call")])
        return what

    calls = [Turn.call("look", {"what": what}) for what in "abc"]
    async with talk(Turn(tool_calls=calls), Turn(text="ok"), tools=[look]) as it:
        await it.say()
    assert said == [["a", "b", "c"]] * 3


async def test_metadata_is_one_map_of_a_session_and_no_others() -> None:
    """ "ToolSession.metadata is a per-session Map shared by every tool invocation"."""
    maps: dict[str, list[object]] = {}

    @tool()
    def keep(context: ToolContext) -> str:
        """Keep, in a thread."""
        context.session.metadata.setdefault("n", 0)
        maps.setdefault(context.session.id, []).append(context.session.metadata)
        return "ok"

    @tool()
    async def keep_too(context: ToolContext) -> str:
        """Keep, in the event loop."""
        maps.setdefault(context.session.id, []).append(context.session.metadata)
        return "ok"

    for id in ("one", "two"):
        async with talk(calling("keep"), calling("keep_too"), Turn(text="ok"), tools=[keep, keep_too], id=id) as it:
            await it.say()
    assert maps["one"] == maps["two"] == [{"n": 0}] * 2
    assert maps["one"][0] is maps["one"][1]
    assert maps["one"][0] is not maps["two"][0]


CALLS = {
    "failing": (Turn.call("refuse"), "tool_failed"),
    "panicking": (Turn.call("break_down"), "tool_panicked"),
    "timed out": (Turn.call("wait"), "tool_timeout"),
    "unknown": (Turn.call("nowhere"), "unknown_tool"),
    "wrong": (Turn.call("shout", {"text": 1}), "invalid_arguments"),
    "unparsable": (Turn.unparsable("shout", "{"), "invalid_arguments"),
    "denied": (Turn.call("shout", {"text": "denied"}), "tool_denied"),
}


async def test_nothing_that_becomes_of_a_call_ends_the_run_and_the_model_reads_all_of_it() -> None:
    """ "A failing, panicking or timed-out tool is reported to the model and the run continues; only provider errors, History or
    Locker failures, panics outside tools, timeouts and cancellation end a run"."""

    @tool()
    def refuse() -> ToolExecutionResult:
        """Refuse."""
        return ToolExecutionResult(content="not today", is_error=True)

    @tool()
    def break_down() -> str:
        """Break down."""
        raise KeyError("gone")

    never = Gate("wait")
    tools = [refuse, break_down, never.tool, shout]
    turn = Turn(tool_calls=[call for call, _ in CALLS.values()])
    async with talk(
        turn,
        Turn(text="I see."),
        tools=tools,
        tool_call_timeout=0.2,
        resolve_permission=lambda tool, call, session: "deny" if call.arguments == {"text": "denied"} else "auto",
    ) as it:
        events = await it.say()
    assert end(events) == "stop"
    found = results(events)
    assert [result.error and result.error.code for result in found] == [code for _, code in CALLS.values()]
    read_by_model = [message for message in it.model.requests[1].messages if message.role == "tool"]
    assert [message.content for message in read_by_model] == [result.model_content for result in found]
    assert all(message.is_error for message in read_by_model)


async def test_two_tenants_conversations_of_one_name_share_nothing() -> None:
    """ "The library never sees a tenant. Bind it before registration: ... a session ID that contains the tenant, and a History
    keyed by that ID"."""
    history, locker = MemoryHistory(), LocalLocker()
    for tenant in ("tenant-7", "tenant-8"):
        model = ScriptedModel(Turn(text=f"for {tenant}"))
        async with AgentSession(id=f"{tenant}/talk", model=model, history=history, locker=locker) as session:
            await read(session.run(f"of {tenant}"))
        assert [message.content for message in model.requests[0].messages] == [f"of {tenant}"]
    assert [message.content for message in await history.read("tenant-7/talk")] == ["of tenant-7", "for tenant-7"]
