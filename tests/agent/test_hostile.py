"""Tools, models, listeners and stores that mean no good, or don't know better: a run outlives what isn't its own."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.agent.support import LONG, Gate, calling, end, of, pairs, registry, results, shout, talk, the
from workbench.agent import tasks
from workbench.agent.history import FileHistory, History, MemoryHistory, StoreHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.options import SessionOptions
from workbench.agent.session import AgentSession
from workbench.agent.stores import FileSessionStore, MemorySessionStore
from workbench.agent.validation import is_plain_json
from workbench.errors import RunFailedError
from workbench.protocol.events import SessionEvent, ToolResultEvent, session_events
from workbench.protocol.messages import (
    ChatMessage,
    CompletionRequest,
    CompletionResponse,
    TokenDelta,
    ToolCall,
    ToolExecutionResult,
    ToolResult,
    ToolSchema,
    Usage,
)
from workbench.protocol.runs import Budget
from workbench.protocol.sessions import SessionDetail
from workbench.testing import ScriptedModel, Turn
from workbench.testing.conversations import session
from workbench.tools.base import Tool, ToolContext, tool

pytestmark = pytest.mark.anyio

UNTEXT = "caf\udce9.txt"


class NotAnException(BaseException):
    """What somebody derived from the wrong class."""


class SpeechlessError(Exception):
    """An error whose text can't be made."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


STRAYS: tuple[Callable[[], BaseException], ...] = (
    asyncio.CancelledError,
    NotAnException,
    SpeechlessError,
    lambda: BaseExceptionGroup("several", [NotAnException()]),
    GeneratorExit,
    lambda: BaseExceptionGroup("several", [GeneratorExit()]),
)
strays = pytest.mark.parametrize(
    "stray", STRAYS, ids=["cancelled", "base", "speechless", "group", "closed", "closed group"]
)


def raising(error: Callable[[], BaseException], *, parallel: bool = False, sync: bool = False) -> Tool:
    """A tool that raises this."""
    if sync:

        @tool(name="fail", parallel=parallel)
        def fail_in_thread() -> str:
            """Fail."""
            raise error()

        return fail_in_thread

    @tool(name="fail", parallel=parallel)
    async def fail() -> str:
        """Fail."""
        raise error()

    return fail


@strays
@pytest.mark.parametrize("sync", [False, True])
async def test_whatever_a_tool_raises_is_a_tool_error(stray: Callable[[], BaseException], sync: bool) -> None:
    """ "a panic in a tool handler is a tool error": a CancelledError that nobody asked for, too."""
    async with talk(calling("fail"), Turn(text="I see."), tools=[raising(stray, sync=sync)]) as it:
        events = await it.say()
    assert end(events) == "stop"
    assert [result.error and result.error.code for result in results(events)] == ["tool_panicked"]


EXITS: tuple[Callable[[], BaseException], ...] = (
    lambda: SystemExit(3),
    lambda: BaseExceptionGroup("a group of tasks", [SystemExit(3)]),
    lambda: BaseExceptionGroup("a group", [ValueError("x"), BaseExceptionGroup("of groups", [SystemExit(3)])]),
)


@pytest.mark.parametrize("stray", EXITS, ids=["exit", "group", "groups"])
@pytest.mark.parametrize("sync", [False, True])
async def test_a_tool_that_would_end_the_program_ends_its_call(stray: Callable[[], BaseException], sync: bool) -> None:
    """ "A panic in a tool handler is a tool error": what comes out of a tool's own group of tasks, too."""
    async with talk(calling("fail"), Turn(text="I see."), tools=[raising(stray, sync=sync)]) as it:
        events = await it.say()
    assert end(events) == "stop"
    assert [result.error and result.error.code for result in results(events)] == ["tool_panicked"]


def test_a_tool_that_waits_when_its_event_loop_is_gone_has_not_failed() -> None:
    """What Python throws into a coroutine that nobody runs any more isn't the tool's: it's no result, and nothing waits on."""
    heard: list[str] = []
    gate = Gate()
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        options = SessionOptions(tools=registry(gate.tool))
        session = AgentSession.local(id="s", model=ScriptedModel(calling("gate")), options=options)
        session.subscribe(lambda event: heard.append(event.type))
        session.start("x")
        await gate.entered.wait()

    loop.run_until_complete(begin())
    (task,) = asyncio.all_tasks(loop)
    loop.close()
    # Locks and scopes miss their event loop.
    with contextlib.suppress(RuntimeError):
        task.get_coro().close()  # type: ignore[union-attr]
    tasks._forget(task)
    assert "tool_call" in heard
    assert "tool_result" not in heard


async def test_a_tool_whose_own_task_was_cancelled_costs_its_neighbours_nothing() -> None:
    """One tool raises: its siblings end, results come in call order, no task is left."""
    calls = [Turn.call("fail"), Turn.call("shout", {"text": "a"})]
    beside = tool(name="shout", parallel=True)(shout)
    tools = [raising(asyncio.CancelledError, parallel=True), beside]
    async with talk(Turn(tool_calls=calls), Turn(text="I see."), tools=tools) as it:
        events = await it.say()
    assert end(events) == "stop"
    assert [result.ok for result in results(events)] == [False, True]


class Failing(ScriptedModel):
    """A model that raises."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self._error = error

    async def generate(
        self, request: CompletionRequest, on_delta: Callable[[TokenDelta], None] | None = None
    ) -> CompletionResponse:
        raise self._error


class FailingHistory(MemoryHistory):
    """A history that raises when it's `asked` for something."""

    def __init__(self, error: BaseException, asked: str) -> None:
        super().__init__()
        self._error = error
        self._asked = asked

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        if self._asked == "append":
            raise self._error
        await super().append(session_id, *messages)

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        if self._asked == "read":
            raise self._error
        return await super().read(session_id)


@strays
@pytest.mark.parametrize("where", ["model", "read", "append"])
async def test_whatever_is_raised_outside_tools_is_an_error_and_never_looks_like_a_cancellation(
    stray: Callable[[], BaseException], where: str
) -> None:
    """ "a panic elsewhere in the run (provider client, History backend) becomes EventError with the stack plus EventEnd"."""
    model = Failing(stray()) if where == "model" else ScriptedModel(Turn(text="Hello."))
    history = FailingHistory(stray(), where)
    async with talk(model=model, history=history, consumed=False) as it:
        events = await it.say()
    assert end(events) == "error"
    error = the(events, "error").error
    assert error.code == ("error" if where == "model" else "history_failed")
    assert error.stack
    assert of(it.events, "run.failed")


@strays
async def test_whatever_a_lock_raises_before_a_run_fails_it_and_after_it_is_logged(
    stray: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """ "Locker failure: error"; "A panic in unlock is recovered", whatever was raised."""
    raises = "lock"

    class Broken:
        @asynccontextmanager
        async def lock(self, session_id: str) -> AsyncIterator[None]:
            if raises == "lock":
                raise stray()
            yield
            raise stray()

    async with talk(Turn(text="Hello."), locker=Broken()) as it:
        events = await it.say()
        assert (the(events, "error").error.code, end(events)) == ("lock_failed", "error")
        raises = "unlock"
        assert end(await it.say()) == "stop"
        assert it.types()[-2:] == ["run.completed", "session.updated"]
        assert len(it.session.detail().messages) == 2
    assert "wasn't released properly" in caplog.text


@pytest.mark.parametrize("where", ["resolver", "handler"])
async def test_an_approval_that_was_cancelled_elsewhere_approves_nothing(where: str) -> None:
    """Permissions fail closed, and the run goes on."""

    def resolve(*_: Any) -> Any:
        if where == "resolver":
            raise asyncio.CancelledError
        return "ask"

    async def approve(_: Any) -> bool:
        raise asyncio.CancelledError

    turns = (calling("shout", text="a"), Turn(text="I see."))
    async with talk(*turns, tools=[shout], resolve_permission=resolve, approve=approve) as it:
        events = await it.say()
    assert end(events) == "stop"
    assert [result.error and result.error.code for result in results(events)] == ["tool_denied"]
    assert len(of(events, "approval.requested")) == len(of(events, "approval.resolved"))


@strays
async def test_whatever_a_listener_raises_the_others_hear_everything(stray: Callable[[], BaseException]) -> None:
    """One that raises is logged, the others still get the event, and the run ends."""
    async with talk(calling("shout", text="a"), Turn(text="I see."), tools=[shout]) as it:
        heard: list[SessionEvent] = []

        def fail(_: SessionEvent) -> None:
            raise stray()

        it.session.subscribe(fail)
        it.session.subscribe(heard.append)
        with anyio.fail_after(LONG):
            run = it.session.start("Hello.")
            assert (await run.result()).ok
    assert heard == it.events
    assert it.types()[-2:] == ["run.completed", "session.updated"]


@pytest.mark.parametrize("kind", ["history", "store"])
async def test_what_is_no_text_can_be_stored_and_costs_no_run(kind: str, tmp_path: Path) -> None:
    """A name that is no text, in what was said, in a call, in a result: neither lost with its run nor poison for the next."""
    history: History = FileHistory(tmp_path) if kind == "history" else StoreHistory(FileSessionStore(tmp_path))

    @tool()
    def listing(path: str) -> str:
        """List."""
        return path

    async with talk(calling("listing", path=UNTEXT), Turn(text=UNTEXT), tools=[listing], history=history) as it:
        events = await it.say(UNTEXT)
        assert end(events) == "stop"
        # The tool gets what the model said.
        assert [result.content for result in results(events)] == [UNTEXT]
    stored = await history.read("talk")
    shown = "caf\ufffd.txt"
    assert pairs(stored) == [("user", shown), ("assistant", ""), ("tool", shown), ("assistant", shown)]
    assert stored[1].tool_calls[0].arguments == {"path": shown}


def test_an_event_with_data_that_json_has_no_form_for_is_written_all_the_same() -> None:
    """`data` reaches clients: what a tool puts there must not cost the log its neighbours."""
    data = {"\udcff": object(), "bytes": b"\xff", "set": {1}}
    event = ToolResultEvent(
        tool_result=ToolResult(call_id="1", name="look", ok=True, content="seen", model_content="seen", data=data)
    )
    read = session_events.validate_json(event.model_dump_json(indent=2))
    assert isinstance(read, ToolResultEvent)
    assert read.tool_result.content == "seen"
    assert read.tool_result.data["bytes"] == "_w=="
    assert read.tool_result.data["set"] == [1]


async def test_tools_that_hang_take_no_thread_from_the_others() -> None:
    """A call's time is its own, not what it waits for a thread; one that was given up keeps nobody from running."""
    released = threading.Event()

    @tool(parallel=True)
    def hang(number: int) -> str:
        """Hang, or don't."""
        if number < 45:
            released.wait(LONG)
        return "done"

    calls = [Turn.call("hang", {"number": number}) for number in range(50)]
    turns = (Turn(tool_calls=calls), calling("shout", text="a"), Turn(text="I see."))
    async with talk(*turns, tools=[hang, shout], tool_call_timeout=2) as it:
        try:
            events = await it.say()
        finally:
            released.set()
    assert end(events) == "stop"
    assert [result.ok for result in results(events)] == [False] * 45 + [True] * 6


async def test_two_readers_of_one_stream_share_its_events_and_both_end() -> None:
    """Nobody waits for ever, however a stream is read."""
    read: list[int] = []
    async with talk(Turn(deltas=["a"] * 20)) as it:
        run = it.session.run("Hello.")

        async def reader() -> None:
            async for event in run:
                read.append(event.seq)

        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as group:
                group.start_soon(reader)
                group.start_soon(reader)
    assert sorted(read) == read == [event.seq for event in it.events][: len(read)]
    assert it.events[len(read) - 1].type == "end"


def nested(levels: int) -> dict[str, Any]:
    """An object of so many objects."""
    value: dict[str, Any] = {}
    for _ in range(levels - 1):
        value = {"deeper": value}
    return value


UNKEPT = [{"x": b"bytes"}, {"x": object()}, {"x": float("inf")}, {"x": [float("nan")]}, {"x": 10**5_000}]


@pytest.mark.parametrize("arguments", [nested(150), nested(700), nested(50_000), *UNKEPT])
async def test_arguments_that_could_not_be_kept_are_never_run(arguments: dict[str, Any], tmp_path: Path) -> None:
    """What is no JSON, or nested beyond what can be copied and stored, is a call that the model is told to make otherwise."""
    ran = False

    @tool()
    async def take(x: Any = None, deeper: Any = None) -> str:
        """Take anything."""
        nonlocal ran
        ran = True
        return "taken"

    call = ToolCall(id="1", name="take", arguments=arguments, raw_arguments="…")
    history = FileHistory(tmp_path)
    async with talk(Turn(tool_calls=[call]), Turn(text="I see."), tools=[take], history=history) as it:
        events = await it.say()
    assert end(events) == "stop"
    assert [result.error and result.error.code for result in results(events)] == ["invalid_arguments"]
    assert not ran
    assert len(await history.read("talk")) == 4


def test_plain_json_is_what_it_says() -> None:
    assert is_plain_json({"a": [1, 2.5, True, None, "x", {"b": []}]})
    assert is_plain_json(nested(100))
    assert is_plain_json([10**2_000, -1, True, -0.0, 1e308])
    assert not is_plain_json(nested(101))
    assert not is_plain_json({1: "number as a key"})


@pytest.mark.parametrize("parallel", [False, True])
async def test_two_hundred_calls_of_one_id_run_each_once_and_answer_in_order(parallel: bool) -> None:
    """Ids that repeat, and many calls at once."""
    ran: list[str] = []

    @tool(parallel=parallel)
    def note(text: str) -> ToolExecutionResult:
        """Note it."""
        ran.append(text)
        return ToolExecutionResult(content=text)

    texts = [str(number) for number in range(200)]
    turn = Turn(tool_calls=[Turn.call("note", {"text": text}, id="same") for text in texts])
    async with talk(turn, Turn(text="I see."), tools=[note]) as it:
        events = await it.say()
    assert end(events) == "stop"
    assert [result.content for result in results(events)] == texts
    assert sorted(ran) == sorted(texts)
    assert len({result.call_id for result in results(events)}) == 200


def itself() -> list[Any]:
    """A list that holds itself."""
    value: list[Any] = []
    value.append(value)
    return value


class Speechless:
    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __deepcopy__(self, memo: object) -> Speechless:
        raise RuntimeError("no copies")


DATA: dict[str, Callable[[], Any]] = {
    "itself": itself,
    "deep": lambda: nested(50_000),
    "speechless": lambda: {"a": Speechless()},
    "no number": lambda: [float("nan"), float("-inf")],
    "a long number": lambda: 10**5_000,
    "long numbers": lambda: {"a": [-(10**5_000)], 10**5_000: {10**5_000}, "itself": itself()},
    "a mixture": lambda: {"caf\udce9": {1, b"\xff"}, 3: (Speechless(), itself()), (1, None): None},
}


@pytest.mark.parametrize("data", DATA.values(), ids=DATA)
async def test_whatever_data_a_tool_returns_every_event_is_kept_and_the_run_goes_on(
    data: Callable[[], Any], tmp_path: Path
) -> None:
    """`data` reaches clients only: where there is no JSON for it, it's described."""

    @tool()
    async def look() -> ToolExecutionResult:
        """Look."""
        return ToolExecutionResult(content="seen", data=data())

    store = FileSessionStore(tmp_path)
    await store.save(session("s"))
    model = ScriptedModel(calling("look"), Turn(text="I see."))
    options = SessionOptions(tools=registry(look))
    heard: list[SessionEvent] = []
    async with AgentSession(
        id="s", history=StoreHistory(store), locker=LocalLocker(), model=model, options=options, log=store.event_log
    ) as agent:
        agent.subscribe(heard.append)
        with anyio.fail_after(LONG):
            assert (await agent.start("Look.").result()).ok
    kept = await store.event_log.read("s")
    assert [(event.seq, event.type) for event in kept] == [(event.seq, event.type) for event in heard]
    (found,) = [event.tool_result for event in kept if isinstance(event, ToolResultEvent)]
    assert (found.content, found.data is None) == ("seen", False)


@pytest.mark.parametrize(
    "fields", [{"content": None}, {"content": b"\xff"}, {"content": "a", "images": None}, {}], ids=repr
)
async def test_a_result_that_was_made_without_being_checked_is_a_tool_error(fields: dict[str, Any]) -> None:
    """A failing tool is reported to the model and the run continues."""

    class Unchecked:
        schema = ToolSchema(name="look", description="Look.", parameters={"type": "object"})

        async def execute(self, args: dict[str, Any], context: ToolContext) -> ToolExecutionResult:
            return ToolExecutionResult.model_construct(**fields)

    async with talk(calling("look"), Turn(text="I see."), tools=[Unchecked()]) as it:
        events = await it.say()
    assert end(events) == "stop"
    assert [result.error and result.error.code for result in results(events)] == ["tool_panicked"]


@pytest.mark.parametrize("cost", [float("nan"), float("inf"), -1.0])
async def test_a_usage_that_can_not_be_fills_no_budget_up_again(cost: float) -> None:
    """What is reported beyond reason is unknown: it makes no sum wrong, and no limit void."""
    odd = Usage(input_tokens=-1_000, output_tokens=60, cost_usd=cost, duration=cost)
    assert (odd.input_tokens, odd.cost_usd, odd.duration) == (0, None, None)
    turns = [Turn(tool_calls=[Turn.call("shout", {"text": "a"})], usage=odd) for _ in range(2)]
    async with talk(*turns, tools=[shout], budget=Budget(run_tokens=100)) as it:
        assert end(await it.say()) == "budget"
        assert it.session.summary().usage.output_tokens == 120


@pytest.mark.parametrize("count", [2**63, 10**400, 10**4_299])
async def test_a_count_of_tokens_beyond_reason_fails_no_run_and_no_sum(count: int, tmp_path: Path) -> None:
    """What is reported beyond reason is no more than what can be counted, stored and read again."""
    used = Usage(input_tokens=count, output_tokens=count, reasoning_tokens=count, cost_usd=0.5)
    history = StoreHistory(FileSessionStore(tmp_path))
    async with talk(*[Turn(text="ok", usage=used)] * 3, history=history) as it:
        assert [end(await it.say()) for _ in range(3)] == ["stop"] * 3
        stored = await history.change("talk", lambda before: before)
    assert stored.usage == it.session.summary().usage
    assert (stored.usage.input_tokens, stored.usage.cost_usd) == (2**53 - 1, 1.5)


class FailingAt(MemorySessionStore):
    """A store whose nth operation fails, before it or after it did its work."""

    def __init__(self, number: int, late: bool) -> None:
        super().__init__()
        self.left = number
        self.late = late

    async def _do(self, work: Awaitable[Any]) -> Any:
        self.left -= 1
        found = None if self.left == 0 and not self.late else await work
        if self.left == 0:
            if not self.late:
                work.close()  # type: ignore[attr-defined]
            raise OSError(28, "No space left on device")
        return found

    async def load(self, id: str) -> SessionDetail | None:
        found: SessionDetail | None = await self._do(super().load(id))
        return found

    async def save(self, session: SessionDetail) -> None:
        await self._do(super().save(session))


@pytest.mark.parametrize("late", [False, True])
async def test_a_store_may_fail_at_any_of_its_operations(late: bool) -> None:
    """Each run is whole in it or not there, what failed says so, and whatever comes next works."""
    number = 0
    failed = True
    while failed:
        number += 1
        store, failed = FailingAt(number, late), False
        model = ScriptedModel(*[lambda request: Turn(text="ok")] * 9)
        agent = AgentSession(id="s", history=StoreHistory(store), locker=LocalLocker(), model=model)
        async with agent:
            for step in ("run", "rename", "run", "rewind", "run", "reset", "run"):
                try:
                    if step == "run":
                        await agent.start("q").result()
                    elif step == "rename":
                        await agent.rename("title")
                    elif step == "rewind" and agent.detail().messages:
                        await agent.rewind(agent.detail().messages[0].id)
                    elif step == "reset":
                        await agent.reset()
                except (OSError, RunFailedError):
                    failed = True
                assert not agent.is_running
                stored = await MemorySessionStore.load(store, "s")
                roles = [message.role for message in stored.messages] if stored is not None else []
                assert roles == ["user", "assistant"] * (len(roles) // 2)
            store.left = 0
            assert (await agent.start("q").result()).ok
            assert agent.detail().messages[-1].content == "ok"
    assert number > 10
