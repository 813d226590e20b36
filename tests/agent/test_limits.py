"""Every limit of a run: its default, its rule for zero and negative values, and what happens at it."""

from __future__ import annotations

import math
import threading
from typing import Any

import anyio
import pytest

from tests.agent.support import LONG, Gate, calling, end, of, read, registry, results, shout, talk, the
from tests.waiting import until
from workbench.agent.history import MemoryHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.options import SessionOptions
from workbench.agent.session import AgentSession
from workbench.errors import ModelRequestError, OptionsError, RunFailedError
from workbench.protocol.messages import CompletionRequest, ModelInfo, Usage
from workbench.protocol.runs import Budget
from workbench.testing import ScriptedModel, Turn
from workbench.tools.base import ToolContext, tool

DEFAULTS = {
    "max_turns": 20,
    "run_timeout": 600.0,
    "llm_call_timeout": 180.0,
    "tool_call_timeout": 120.0,
    "max_tool_result_bytes": 65_536,
    "max_tokens": 16_384,
}
NEGATIVE: dict[str, Any] = {
    "max_turns": 20,
    "run_timeout": OptionsError,
    "llm_call_timeout": OptionsError,
    "tool_call_timeout": -1,
    "max_tool_result_bytes": -1,
    "max_tokens": 16_384,
}


@pytest.mark.parametrize(("name", "default"), DEFAULTS.items())
def test_every_limit_has_a_default_which_zero_means_too(name: str, default: float) -> None:
    """ "Every run is bounded by default", and the table of limits."""
    assert getattr(SessionOptions(), name) == default
    assert getattr(SessionOptions(**{name: 0}), name) == default  # type: ignore[arg-type]
    assert getattr(SessionOptions(**{name: 7}), name) == 7  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "meaning"), NEGATIVE.items())
def test_a_negative_limit_is_the_default_an_error_or_no_limit(name: str, meaning: Any) -> None:
    """ "zero or negative means the default"; "negative is an error"; "negative means no cap"."""
    if meaning is OptionsError:
        with pytest.raises(OptionsError):
            SessionOptions(**{name: -1})  # type: ignore[arg-type]
    else:
        assert getattr(SessionOptions(**{name: -1}), name) == meaning  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["run_timeout", "llm_call_timeout", "tool_call_timeout"])
def test_a_time_that_is_no_number_is_an_error(name: str) -> None:
    """Bad input is a clear error."""
    with pytest.raises(OptionsError, match=name):
        SessionOptions(**{name: math.nan})  # type: ignore[arg-type]


def test_options_cannot_be_changed_afterwards() -> None:
    """ "NewSession copies the options ..., so changing them afterwards affects neither the session nor a started run."""
    options = SessionOptions()
    with pytest.raises(AttributeError):
        options.max_turns = 3  # type: ignore[misc]


@pytest.mark.anyio
async def test_the_run_timeout_ends_the_whole_run() -> None:
    """ "RunTimeout: whole run"; "timeout: the caller's deadline, RunTimeout or LLMCallTimeout expired: not touched"."""
    gate, history = Gate(), MemoryHistory()
    async with talk(calling("gate"), tools=[gate.tool], run_timeout=0.2, history=history, consumed=False) as it:
        run = it.session.run("a")
        events = await read(run)
        with pytest.raises(RunFailedError) as raised:
            await run.result()
    assert end(events) == "timeout"
    assert (raised.value.code, raised.value.end_reason) == ("run_timeout", "timeout")
    assert gate.left.is_set() == gate.entered.is_set()
    assert await history.read("talk") == ()


@pytest.mark.anyio
async def test_the_callers_deadline_counts_where_it_comes_first() -> None:
    """ "EndReasonTimeout: the caller's deadline"; here: `run*()` take over the deadline of the caller's scopes."""
    gate = Gate()
    async with talk(calling("gate"), tools=[gate.tool], consumed=False) as it:
        with anyio.move_on_after(0.2):
            run = it.session.run("a")
        assert end(await read(run)) == "timeout"


@pytest.mark.anyio
async def test_start_does_not_take_over_the_callers_deadline() -> None:
    """ "EndReasonTimeout: the caller's deadline"; here: of `start()`, which returns at once, there is none."""
    gate = Gate()
    async with talk(calling("gate"), Turn(text="ok"), tools=[gate.tool]) as it:
        with anyio.move_on_after(0.05):
            run = it.session.start("a")
            await anyio.sleep_forever()
        gate.opened.set()
        with anyio.fail_after(LONG):
            assert (await run.result()).end_reason == "stop"


@pytest.mark.anyio
async def test_a_caller_that_was_cancelled_gets_a_cancelled_run() -> None:
    """ "cancelled: the caller cancelled ctx"."""
    async with talk() as it:
        with anyio.CancelScope() as scope:
            scope.cancel()
            run = it.session.run("a")
        assert end(await read(run)) == "cancelled"


@pytest.mark.anyio
async def test_a_model_call_that_takes_too_long_ends_the_run_without_another_try() -> None:
    """ "LLMCallTimeout: one model call"."""
    never = anyio.Event()
    async with talk(Turn(until=never), llm_call_timeout=0.1) as it:
        events = await it.say()
    assert the(events, "error").error.code == "run_timeout"
    assert end(events) == "timeout"


@pytest.mark.anyio
async def test_a_model_that_makes_an_error_of_being_cancelled_changes_no_reason() -> None:
    """A client may wrap its cancellation; the run ends as what it was: timed out, or cancelled."""

    class Wrapping(ScriptedModel):
        asked = anyio.Event()

        async def generate(self, request: CompletionRequest, on_delta: Any = None) -> Any:
            self.asked.set()
            try:
                await anyio.sleep_forever()
            except BaseException as error:
                raise ConnectionError("the connection was lost") from error

    for reason in ("timeout", "cancelled"):
        Wrapping.asked = anyio.Event()
        async with talk(model=Wrapping(), llm_call_timeout=0.1 if reason == "timeout" else 0) as it:
            run = it.session.run("a")
            if reason == "cancelled":
                await Wrapping.asked.wait()
                run.cancel()
            assert end(await read(run)) == reason


@pytest.mark.anyio
async def test_a_tool_that_takes_too_long_is_a_tool_error_and_the_run_goes_on() -> None:
    """ "a timed-out tool is a tool error (tool X timed out after ...) and the run goes on"."""
    gate = Gate()
    async with talk(calling("gate"), Turn(text="ok"), tools=[gate.tool], tool_call_timeout=0.1) as it:
        events = await it.say()
    (result,) = results(events)
    assert result.error is not None
    assert result.error.code == "tool_timeout"
    assert "tool gate timed out after 0.1 seconds" in it.model.requests[1].messages[-1].content
    assert end(events) == "stop"


@pytest.mark.anyio
async def test_a_negative_tool_call_timeout_is_no_limit() -> None:
    """ "ToolCallTimeout: negative means no cap"."""
    gate = Gate()
    async with talk(calling("gate"), Turn(text="ok"), tools=[gate.tool], tool_call_timeout=-1) as it:
        run = it.session.run("a")
        await gate.entered.wait()
        gate.opened.set()
        assert results(await read(run))[0].ok


@pytest.mark.anyio
async def test_a_sync_tool_runs_in_a_worker_thread_and_is_waited_for_at_close_when_it_timed_out() -> None:
    """ "it binds only handlers that honour ctx"; here: sync tools run in a worker thread, a timed-out one is an error
    result and is waited for at close."""
    signalled, go, ended = threading.Event(), threading.Event(), threading.Event()
    threads: list[int] = []

    @tool()
    def slow(context: ToolContext) -> str:
        """Take long."""
        threads.append(threading.get_ident())
        context.signal.on_cancel(signalled.set)
        go.wait(LONG)
        context.progress("nobody hears this")
        ended.set()
        return "late"

    async with talk(calling("slow"), Turn(text="ok"), tools=[slow], tool_call_timeout=1) as it:
        (result,) = results(await it.say())
        assert result.error is not None
        assert result.error.code == "tool_timeout"
        assert signalled.is_set()
        assert not ended.is_set()
        closed = anyio.Event()

        async def close() -> None:
            await it.session.close()
            closed.set()

        async with anyio.create_task_group() as group:
            group.start_soon(close)
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert not closed.is_set()
            go.set()
            with anyio.fail_after(LONG):
                await closed.wait()
    assert ended.is_set()
    assert threads != [threading.get_ident()]
    assert of(it.events, "tool.progress") == []


@pytest.mark.anyio
async def test_a_negative_result_limit_is_no_limit() -> None:
    """ "MaximumToolResultBytes: negative means no cap"."""
    async with talk(
        calling("shout", text="x" * 200_000), Turn(text="ok"), tools=[shout], max_tool_result_bytes=-1
    ) as it:
        await it.say()
    assert it.model.requests[1].messages[-1].content == "X" * 200_000


@pytest.mark.anyio
async def test_errors_are_capped_too() -> None:
    """The cap is of what the model sees: an error of 400 kB is as long as a result of it. HolmesGPT/holmesgpt 2409."""

    @tool()
    def fail() -> str:
        """Fail at length."""
        raise ValueError("x" * 400_000)

    async with talk(calling("fail"), Turn(text="ok"), tools=[fail]) as it:
        await it.say()
    assert len(it.model.requests[1].messages[-1].content.encode()) <= 65_536


@pytest.mark.anyio
async def test_a_lock_that_cannot_be_had_in_time_fails_the_run() -> None:
    """ "a lock that cannot be acquired before ctx ends fails the run"."""
    locker = LocalLocker()
    async with locker.lock("talk"), talk(locker=locker, run_timeout=0.1) as it:
        run = it.session.run("a")
        events = await read(run)
        assert [event.type for event in events] == ["error", "end"]
        assert end(events) == "timeout"
        assert it.types()[-2:] == ["run.failed", "session.updated"]


@pytest.mark.anyio
async def test_a_run_that_waits_for_its_lock_can_be_cancelled() -> None:
    """Cancelling ends a run wherever it waits."""
    locker = LocalLocker()
    async with locker.lock("talk"), talk(locker=locker) as it:
        run = it.session.run("a")
        await until(lambda: it.session.is_running)
        assert run.cancel()
        assert end(await read(run)) == "cancelled"


SPENT = Usage(input_tokens=60, output_tokens=40, cost_usd=0.5)


@pytest.mark.anyio
@pytest.mark.parametrize("budget", [Budget(run_usd=1.0), Budget(run_tokens=200)])
async def test_a_budget_ends_the_run_between_replies_and_keeps_what_was_done(budget: Budget) -> None:
    """Budgets: cost and tokens per run; the end reason `budget`, appended, status `max_steps`."""
    turns = [Turn(tool_calls=[Turn.call("shout", {"text": "a"})], usage=SPENT) for _ in range(2)]
    history = MemoryHistory()
    async with talk(*turns, Turn(text="fresh", usage=SPENT), tools=[shout], budget=budget, history=history) as it:
        run = it.session.run("a")
        events = await read(run)
        result = await run.result()
        assert end(events) == "budget"
        assert (result.status, result.usage.cost_usd) == ("max_steps", 1.0)
        assert [message.role for message in await history.read("talk")] == ["user", *["assistant", "tool"] * 2]
        # A run's budget is its own.
        assert end(await it.say()) == "stop"


@pytest.mark.anyio
@pytest.mark.parametrize("budget", [Budget(session_usd=1.0), Budget(session_tokens=200)])
async def test_a_sessions_budget_counts_all_its_runs(budget: Budget) -> None:
    """Budgets: cost and tokens per session, those of failed runs included."""
    failing = [Turn(tool_calls=[Turn.call("shout", {"text": "a"})], usage=SPENT), Turn(error=RuntimeError("x"))]
    async with talk(*failing, Turn(text="ok", usage=SPENT), tools=[shout], budget=budget) as it:
        assert end(await it.say()) == "error"
        assert end(await it.say()) == "stop"
        assert end(await it.say()) == "budget"


@pytest.mark.anyio
async def test_an_unknown_price_is_unknown_not_nothing_and_the_known_part_still_counts() -> None:
    """ "None where a price is unknown". Of the run and of the session."""
    unknown = Usage(input_tokens=1, output_tokens=1)
    turns = [
        Turn(tool_calls=[Turn.call("shout", {"text": "a"})], usage=unknown),
        Turn(tool_calls=[Turn.call("shout", {"text": "b"})], usage=SPENT),
    ]
    async with talk(*turns, tools=[shout], budget=Budget(run_usd=0.5)) as it:
        run = it.session.run("a")
        events = await read(run)
        assert (await run.result()).usage.cost_usd is None
        assert it.session.summary().usage.cost_usd is None
    assert end(events) == "budget"
    assert [notice.code for notice in of(events, "notice")] == ["price_unknown", "budget"]


@pytest.mark.anyio
async def test_a_model_that_repeats_itself_is_nudged_once_then_the_run_ends() -> None:
    """Stuck detection: same call, same result, repeated: one nudge, then a clear reason. "nudges once, then ends the
    run"."""
    history = MemoryHistory()
    async with talk(*[calling("shout", text="a") for _ in range(5)], tools=[shout], history=history) as it:
        run = it.session.run("a")
        events = await read(run)
        result = await run.result()
    assert end(events) == "stuck"
    assert result.status == "max_steps"
    nudged = [result.model_content != "A" for result in results(events)]
    assert nudged == [False, False, True, False, False]
    stored = [message.content for message in await history.read("talk") if message.role == "tool"]
    assert stored == [result.model_content for result in results(events)]
    assert [result.content for result in results(events)] == ["A"] * 5
    assert [notice.code for notice in of(events, "notice")] == ["stuck", "stuck"]


@pytest.mark.anyio
async def test_a_model_that_makes_progress_is_not_stuck() -> None:
    """Neither other arguments nor other results are a repetition."""
    count = 0

    @tool()
    def tick() -> str:
        """Count."""
        nonlocal count
        count += 1
        return str(count)

    turns = [calling("tick") for _ in range(6)] + [calling("shout", text=str(number)) for number in range(6)]
    async with talk(*turns, Turn(text="ok"), tools=[tick, shout]) as it:
        events = await it.say()
    assert end(events) == "stop"
    assert of(events, "notice") == []


@pytest.mark.anyio
async def test_a_conversation_that_nears_the_models_window_is_summarised_in_the_request_only() -> None:
    """Compaction: summary by the model, pairs kept whole, original kept in the store. aaif-goose/goose 2951: no call is
    parted from its result."""
    history = MemoryHistory()
    info = ModelInfo(id="small", provider="p", context_window=4_000)
    turns: list[Any] = []
    for number in range(6):
        turns.append(Turn(tool_calls=[Turn.call("shout", {"text": f"{number}" * 1_500})]))
    asked: list[CompletionRequest] = []

    def answer(request: CompletionRequest) -> Turn:
        asked.append(request)
        if "Summarise" in request.messages[0].content:
            return Turn(text="SUMMARY", usage=Usage(input_tokens=5, output_tokens=5))
        return turns.pop(0) if turns else Turn(text="done")

    model = ScriptedModel(*[answer] * 20, info=info)
    session = AgentSession.local(
        id="talk", model=model, history=history, options=SessionOptions(tools=_registry(), max_tokens=500)
    )
    async with session:
        events = await read(session.run("Remember me."))
    assert end(events) == "stop"
    codes = [notice.code for notice in of(events, "notice")]
    assert codes
    assert set(codes) == {"compacted"}
    assert "SUMMARY" not in "".join(event.text for event in of(events, "text"))
    stored = await history.read("talk")
    assert [message.role for message in stored] == ["user", *["assistant", "tool"] * 6, "assistant"]
    assert "SUMMARY" not in "".join(message.content for message in stored)
    last = asked[-1]
    assert "SUMMARY" in last.messages[0].content
    assert last.messages[1].content == "Remember me."
    for request in asked:
        assert sum(len(message.content) for message in request.messages) < 4 * 4_000
        answered = [message.tool_call_id for message in request.messages if message.role == "tool"]
        assert [call.id for message in request.messages for call in message.tool_calls] == answered


@pytest.mark.anyio
async def test_a_request_that_turns_out_too_long_is_sent_once_more_with_less() -> None:
    """Context-window awareness where the window is unknown: the provider's own error says so."""
    overflow = ModelRequestError("too long", code="context_overflow", provider="p", status=400)
    async with talk(Turn(text="1"), Turn(text="2"), Turn(error=overflow), Turn(text="SUMMARY"), Turn(text="3")) as it:
        await it.say("a" * 4_000)
        await it.say("b" * 4_000)
        events = await it.say("c")
    assert end(events) == "stop"
    assert the(events, "notice").code == "compacted"
    assert it.model.requests[-1].messages[-1].content == "c"
    assert "SUMMARY" in it.model.requests[-1].messages[0].content


@pytest.mark.anyio
async def test_a_reply_to_a_part_of_a_request_is_not_asked_for_again_but_the_next_run_sends_less() -> None:
    """ "No token twice", where a server left out a part of the conversation and answered to the rest."""
    cut = ModelRequestError("left out", code="context_overflow", provider="p")
    cut.usage = Usage(input_tokens=9, output_tokens=1)
    script = (Turn(text="1"), Turn(text="2"), Turn(error=cut), Turn(text="SUMMARY"), Turn(text="3"))
    async with talk(*script) as it:
        await it.say("a" * 4_000)
        await it.say("b" * 4_000)
        assert end(await it.say("c")) == "error"
        assert end(await it.say("d")) == "stop"
    assert "SUMMARY" in it.model.requests[-1].messages[0].content


_USELESS = {
    "empty": Turn(text=" \n", usage=Usage(input_tokens=5, output_tokens=5)),
    "thoughts alone": Turn(reasoning="hm", finish_reason="length"),
    "refused": Turn(error=ModelRequestError("can't", code="invalid_request", provider="p", status=400)),
    "longer than what it stands for": Turn(text="s" * 16_000),
}


@pytest.mark.anyio
@pytest.mark.parametrize("summary", _USELESS.values(), ids=_USELESS)
async def test_a_summary_that_is_of_no_help_is_not_paid_for_again_in_each_turn(summary: Turn) -> None:
    """Only once the conversation has grown by a good part, in whichever run; a notice says so, and the runs go on."""
    asked = turns = 0

    def answer(request: CompletionRequest) -> Turn:
        nonlocal asked, turns
        if "Summarise" in request.messages[0].content:
            asked += 1
            return summary
        turns += 1
        return calling("shout", text=f"{turns}") if turns % 5 else Turn(text="done")

    info = ModelInfo(id="small", provider="p", context_window=4_000)
    model = ScriptedModel(*[answer] * 30, info=info)
    async with talk(model=model, tools=[shout], consumed=False, max_tokens=500) as it:
        assert end(await it.say("a" * 8_000)) == "stop"
        assert asked == 0
        for text in ("b" * 8_000, "c", "d"):
            events = await it.say(text)
            assert (end(events), asked) == ("stop", 1)
            paused = [notice.message for notice in of(events, "notice") if notice.code == "compaction_paused"]
            assert len(paused) == (text[0] == "b")
        await it.say("e" * 8_000)
        assert asked == 2


@pytest.mark.anyio
async def test_compaction_is_off_by_flag() -> None:
    """ "off by flag"."""
    info = ModelInfo(id="small", provider="p", context_window=1_000)
    async with talk(model=ScriptedModel(Turn(text="a"), Turn(text="b"), info=info), compact=False) as it:
        await it.say("x" * 10_000)
        await it.say("y")
    assert it.model.requests[1].messages[0].content == "x" * 10_000


def _registry() -> Any:
    return registry(shout)


@pytest.mark.anyio
async def test_temperature_and_tokens_of_a_reply_are_passed_on() -> None:
    """ "Temperature", "MaximumTokens: one reply"."""
    async with talk(Turn(text="a"), temperature=0.2, max_tokens=100) as it:
        await it.say()
    assert (it.model.requests[0].temperature, it.model.requests[0].max_tokens) == (0.2, 100)


@pytest.mark.anyio
async def test_a_tools_time_is_its_deadline_and_never_beyond_the_runs() -> None:
    """ "The cap reaches the handler as its context deadline, so it binds only handlers that honour ctx"."""
    deadlines: list[float] = []

    @tool()
    async def look() -> str:
        """Look."""
        deadlines.append(anyio.current_effective_deadline() - anyio.current_time())
        return "ok"

    for limits in ({"tool_call_timeout": 1_000}, {"tool_call_timeout": 1_000, "run_timeout": 500}):
        async with talk(calling("look"), Turn(text="ok"), tools=[look], **limits) as it:
            await it.say()
    assert 500 < deadlines[0] <= 1_000
    assert 0 < deadlines[1] <= 500
