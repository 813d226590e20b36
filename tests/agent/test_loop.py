"""The run loop, sentence by sentence: each docstring names the one that its test shows."""

from __future__ import annotations

import json
from pathlib import Path

import anyio
import pytest

from tests.agent.support import LONG, Gate, calling, end, of, pairs, panic, read, registry, results, shout, talk, the
from tests.waiting import until
from workbench.agent.history import FileHistory, History, MemoryHistory, StoreHistory
from workbench.agent.options import SessionOptions
from workbench.agent.prompt import create_message
from workbench.agent.run import drain
from workbench.agent.session import AgentSession
from workbench.agent.stores import FileSessionStore, MemorySessionStore
from workbench.errors import ModelRequestError, RunFailedError
from workbench.protocol.messages import (
    CacheBreakpoint,
    ChatMessage,
    ImageAttachment,
    ModelInfo,
    ProviderState,
    Thinking,
    ToolExecutionResult,
    Usage,
)
from workbench.protocol.runs import RunOptions
from workbench.testing import ScriptedModel, Turn
from workbench.tools.base import ToolContext, tool

pytestmark = pytest.mark.anyio


async def test_a_reply_is_streamed_its_calls_run_and_their_results_fed_back_until_a_reply_without_calls() -> None:
    """ "runs a model in a loop over a tool registry: stream one reply, run the tool calls it asks for, feed the results back,
    repeat until the model answers without tool calls"."""
    async with talk(calling("shout", text="hi"), Turn(deltas=["It said ", "HI."]), tools=[shout]) as it:
        events = await it.say()
    assert [event.type for event in events] == [
        "message.completed",
        "run.started",
        "tool_call",
        "message.completed",
        "tool_result",
        "message.completed",
        "text",
        "text",
        "message.completed",
        "end",
    ]
    assert pairs(it.model.requests[1].messages) == [("user", "Hello."), ("assistant", ""), ("tool", "HI")]
    assert end(events) == "stop"


async def test_the_loop_ends_at_max_turns_and_keeps_what_was_said() -> None:
    """ "or MaximumTurns is reached"; "max_turns: MaximumTurns model calls without a final reply: appended"."""
    history = MemoryHistory()
    turns = [calling("shout", text=str(number)) for number in range(3)]
    async with talk(*turns, tools=[shout], max_turns=3, history=history) as it:
        run = it.session.run("Go on.")
        events = await read(run)
        result = await run.result()
    assert end(events) == "max_turns"
    assert (result.status, result.turns, result.ok) == ("max_steps", 3, False)
    assert [role for role, _ in pairs(await history.read("talk"))] == ["user", *["assistant", "tool"] * 3]


async def test_runs_of_one_id_are_serialised_by_the_locker_whatever_object_runs_them() -> None:
    """ "A Session is safe for concurrent use; runs of the same ID are serialized by the Locker, so building a fresh Session
    per HTTP request is fine as long as History and Locker are shared."""
    from workbench.agent.locks import LocalLocker

    history, locker = MemoryHistory(), LocalLocker()

    async def one(number: int) -> None:
        model = ScriptedModel(calling("shout", text=f"{number}"), Turn(text=f"done {number}"))
        options = SessionOptions(tools=registry(shout))
        session = AgentSession(id="s", model=model, history=history, locker=locker, options=options)
        async with session:
            assert end(await read(session.run(f"ask {number}"))) == "stop"

    async with anyio.create_task_group() as group:
        for number in range(5):
            group.start_soon(one, number)
    said = [content for _, content in pairs(await history.read("s"))]
    assert sorted(said[0::4]) == [f"ask {number}" for number in range(5)]
    for start in range(0, 20, 4):
        number = said[start].split()[1]
        assert said[start : start + 4] == [f"ask {number}", "", number, f"done {number}"]


async def test_runs_of_one_object_take_turns() -> None:
    """ "A Session is safe for concurrent use"."""
    async with talk(Turn(text="1"), Turn(text="2"), Turn(text="3")) as it:
        runs = [it.session.run(f"ask {number}") for number in range(3)]
        for run in runs:
            assert end(await read(run)) == "stop"
        assert [content for _, content in pairs(it.session.detail().messages)][1::2] == ["1", "2", "3"]


async def test_the_system_prompt_is_sent_first_on_every_call_and_never_stored() -> None:
    """ "SystemPrompt is sent first on every model call and never written to History"."""
    history = MemoryHistory()
    async with talk(
        calling("shout", text="a"), Turn(text="b"), tools=[shout], system_prompt="Be kind.", history=history
    ) as it:
        await it.say()
    for request in it.model.requests:
        assert pairs(request.messages)[0] == ("system", "Be kind.")
        assert [message.role for message in request.messages].count("system") == 1
    assert "system" not in [message.role for message in await history.read("talk")]


async def test_without_tools_a_call_gets_unknown_tool_which_the_model_sees() -> None:
    """ "Tools nil offers no tools (a call then fails with tools.ErrUnknownTool and the model sees it)."""
    async with talk(calling("shout", text="a"), Turn(text="b")) as it:
        (result,) = results(await it.say())
    assert it.model.requests[0].tools == ()
    assert result.error is not None
    assert (result.ok, result.error.code) == (False, "unknown_tool")
    assert it.model.requests[1].messages[-1].content == result.model_content
    assert it.model.requests[1].messages[-1].is_error


async def test_a_run_appends_its_messages_at_its_end_in_one_call() -> None:
    """ "appended at the end of a completed run"; "the run's user, assistant and tool messages in one call at the end"."""

    class Counting(MemoryHistory):
        appended: list[list[str]]

        async def append(self, session_id: str, *messages: ChatMessage) -> None:
            self.appended.append([message.role for message in messages])
            await super().append(session_id, *messages)

    history = Counting()
    history.appended = []
    async with talk(calling("shout", text="a"), Turn(text="b"), tools=[shout], history=history) as it:
        await it.say()
    assert history.appended == [["user", "assistant", "tool", "assistant"]]


async def test_the_next_run_sees_the_conversation_so_far_and_its_own_message() -> None:
    """ "Run: History so far plus the new user message"."""
    async with talk(Turn(text="one"), Turn(text="two")) as it:
        await it.say("first")
        await it.say("second")
    assert pairs(it.model.requests[1].messages) == [("user", "first"), ("assistant", "one"), ("user", "second")]


async def test_a_runs_options_add_to_the_system_prompt_and_replace_the_thinking_for_this_run() -> None:
    """ "SystemSuffix is added to the system prompt for this run, Thinking replaces the session's"."""
    low, budget = Thinking.by_effort("low"), Thinking.by_budget(1_000)
    async with talk(Turn(text="1"), Turn(text="2"), system_prompt="Base.", thinking=low) as it:
        options = RunOptions(system_suffix="Suffix.", thinking=budget)
        await read(it.session.run_with_options("a", options))
        await it.say("b")
    assert [request.messages[0].content for request in it.model.requests] == ["Base.\n\nSuffix.", "Base."]
    assert [request.thinking for request in it.model.requests] == [budget, low]


async def test_run_with_messages_sends_exactly_these_and_leaves_history_alone() -> None:
    """ "RunWithMessages: exactly messages (no system prompt in them, the session adds it); never touched: you own the log"."""
    history = MemoryHistory()
    async with talk(Turn(text="1"), Turn(text="2"), system_prompt="Base.", history=history) as it:
        await it.say("stored")
        before = await history.read("talk")
        events = await read(it.session.run_with_messages([create_message("user", "What time is it?")]))
    assert end(events) == "stop"
    assert pairs(it.model.requests[1].messages) == [("system", "Base."), ("user", "What time is it?")]
    assert await history.read("talk") == before


@pytest.mark.parametrize("messages", [[], [create_message("system", "x"), create_message("user", "y")]])
async def test_a_system_message_among_ones_own_is_an_error(messages: list[ChatMessage]) -> None:
    """ "exactly messages (no system prompt in them, the session adds it)"."""
    async with talk() as it:
        events = await read(it.session.run_with_messages(messages))
    assert the(events, "error").error.code == "invalid_options"
    assert end(events) == "error"


async def test_drain_returns_the_produced_messages_as_the_model_saw_them() -> None:
    """ "Drain ... returns the assistant messages and tool messages of the run in order ... Tool messages carry
    ToolResult.ModelContent ... so a log rebuilt with Drain matches what the model saw and what Run would store."""
    history = MemoryHistory()
    state = ProviderState(provider="scripted", model="scripted", data=b"\x00sig")
    call = Turn(tool_calls=[Turn.call("shout", {"text": "x" * 5_000})], provider_state=state)
    async with talk(call, Turn(text="done"), tools=[shout], history=history, max_tool_result_bytes=1_000) as it:
        drained = await drain(it.session.run("a"))
    assert drained.error is None
    assert drained.messages == (await history.read("talk"))[1:]
    assert drained.messages[1].content == it.model.requests[1].messages[-1].content
    assert json.loads(drained.messages[1].content)["truncated"] is True
    assert drained.messages[0].provider_state == state


async def test_drain_returns_the_error_and_leaves_a_reply_without_its_results_out() -> None:
    """ "plus the first EventError's error"; and the log can be sent again."""
    async with talk(calling("shout", text="a"), Turn(error=RuntimeError("gone")), tools=[shout]) as it:
        whole = await drain(it.session.run("a"))
    assert whole.error is not None
    assert [message.role for message in whole.messages] == ["assistant", "tool"]

    gate = Gate()
    async with talk(calling("gate"), tools=[gate.tool]) as it:
        run = it.session.run("a")

        async def cancel() -> None:
            await gate.entered.wait()
            run.cancel()

        async with anyio.create_task_group() as group:
            group.start_soon(cancel)
            half = await drain(run)
    assert half == ((), None)


async def test_text_and_thinking_come_in_pieces_and_thinking_is_never_stored() -> None:
    """ "EventText: delta of the assistant reply"; "EventThinking: reasoning delta; never persisted"; "Reasoning arrives as
    EventThinking and is never stored"."""
    history = MemoryHistory()
    async with talk(Turn(reasoning="secret thought", deltas=["a", "b"]), history=history) as it:
        events = await it.say()
    assert [event.text for event in of(events, "text")] == ["a", "b"]
    assert the(events, "thinking").text == "secret thought"
    assert "secret" not in "".join(message.model_dump_json() for message in await history.read("talk"))
    assert "secret" not in it.session.detail().model_dump_json()


async def test_a_model_that_does_not_stream_is_heard_all_the_same() -> None:
    """ "EventText: delta of the assistant reply"."""
    async with talk(Turn(reasoning="hm", text="all at once", streamed=False)) as it:
        events = await it.say()
    assert the(events, "text").text == "all at once"
    assert the(events, "thinking").text == "hm"


async def test_all_calls_of_a_reply_come_first_then_their_results_in_the_same_order() -> None:
    """ "all calls of one reply come first, in order, then their results in the same order, so an EventToolCall after an
    EventToolResult starts the next reply"."""
    calls = [Turn.call("shout", {"text": text}) for text in "abc"]
    async with talk(Turn(tool_calls=calls), calling("shout", text="d"), Turn(text="z"), tools=[shout]) as it:
        events = await it.say()
    order = [event for event in events if event.type in ("tool_call", "tool_result")]
    assert [event.type for event in order] == ["tool_call"] * 3 + ["tool_result"] * 3 + ["tool_call", "tool_result"]
    assert [event.tool_call.id for event in order[:3]] == [call.id for call in calls]
    assert [event.tool_result.call_id for event in order[3:6]] == [call.id for call in calls]
    assert [result.content for result in results(events)] == ["A", "B", "C", "D"]


async def test_a_result_has_the_full_content_and_what_the_model_received() -> None:
    """ "EventToolResult: CallID, Name, OK, Content (full result) or Error, and ModelContent"; "EventToolResult keeps the full
    result in Content and the capped one in ModelContent"."""
    async with talk(
        calling("shout", text="é" * 2_000), Turn(text="ok"), tools=[shout], max_tool_result_bytes=500
    ) as it:
        (result,) = results(await it.say())
    assert (result.name, result.ok, result.content, result.error) == ("shout", True, "É" * 2_000, None)
    received = json.loads(result.model_content)
    assert received["total_bytes"] == 4_000
    assert received["content"]
    assert set(received["content"]) == {"É"}
    assert 490 < len(result.model_content.encode()) <= 500


async def test_an_image_of_the_reply_is_an_event_and_part_of_the_message() -> None:
    """ "EventImage: an image of the reply"."""
    image = ImageAttachment(media_type="image/png", data=b"\x89PNG")
    async with talk(Turn(images=[image])) as it:
        events = await it.say()
        assert it.session.detail().messages[-1].images == (image,)
    assert the(events, "image").image == image


async def test_an_image_of_a_result_is_shown_to_the_model() -> None:
    """What a tool returns beside text is part of its message."""
    image = ImageAttachment(media_type="image/png", data=b"\x89PNG")

    @tool()
    def look() -> ToolExecutionResult:
        """Look."""
        return ToolExecutionResult(content="an image", images=(image,))

    async with talk(calling("look"), Turn(text="ok"), tools=[look]) as it:
        await it.say()
        assert it.model.requests[1].messages[-1].images == (image,)


async def test_usage_comes_once_a_call_a_failed_one_included_before_its_error() -> None:
    """ "EventUsage: one per model call the provider reported usage for, a failed call included (before its EventError):
    tokens, CostUSD, Provider, Latency, Duration, TokensPerSecond". openai/openai-agents-python 1973."""
    first = Usage(input_tokens=10, output_tokens=5, cost_usd=0.25, provider="backend")
    failed = Usage(input_tokens=20, output_tokens=1, cost_usd=0.5)
    error = ModelRequestError("cut", code="incomplete_stream", provider="p", usage=failed)
    async with talk(
        Turn(tool_calls=[Turn.call("shout", {"text": "a"})], text="x", usage=first),
        Turn(error=error, deltas=["a"]),
        tools=[shout],
    ) as it:
        run = it.session.run("a")
        events = await read(run)
        with pytest.raises(RunFailedError) as raised:
            await run.result()
    one, two = (event.usage for event in of(events, "usage"))
    assert (one.input_tokens, one.cost_usd, one.provider) == (10, 0.25, "backend")
    assert one.latency is not None
    assert one.duration is not None
    assert one.tokens_per_second is not None
    assert (two.input_tokens, two.cost_usd) == (20, 0.5)
    assert [event.type for event in events][-3:] == ["usage", "error", "end"]
    assert raised.value.usage.input_tokens == 30
    assert raised.value.usage.cost_usd == 0.75
    assert it.session.summary().usage.input_tokens == 30


async def test_a_call_without_reported_usage_has_no_usage_event() -> None:
    """ "one per model call the provider reported usage for"."""
    async with talk(Turn(text="a")) as it:
        assert of(await it.say(), "usage") == []


async def test_an_error_ends_the_run_and_end_follows_exactly_once() -> None:
    """ "EventError: the error that ends the run; EventEnd follows"; "EventEnd: last event, exactly once"."""
    async with talk(Turn(error=ModelRequestError("no", code="auth", provider="p", hint="a key"))) as it:
        events = await it.say()
    assert [event.type for event in events][-2:] == ["error", "end"]
    error = the(events, "error").error
    assert (error.code, error.message, error.hint, error.stack) == ("auth", "no", "a key", None)
    assert end(events) == "error"


async def test_changing_what_an_event_holds_changes_nothing_else() -> None:
    """ "You own everything an event points to ...: changing it never alters the run, its next requests or History."""
    history = MemoryHistory()
    seen: list[str] = []

    @tool()
    def note(what: dict[str, str]) -> str:
        """Note it."""
        seen.append(what["a"])
        return "noted"

    async with talk(calling("note", what={"a": "b"}), Turn(text="done"), tools=[note], history=history) as it:
        async with it.session.run("x") as run:
            async for event in run:
                if event.type == "tool_call":
                    event.tool_call.arguments["what"]["a"] = "spoilt"  # type: ignore[index]
                elif event.type == "message.completed":
                    for call in event.message.tool_calls:
                        call.arguments["what"]["a"] = "spoilt"  # type: ignore[index]
        it.session.detail().messages[1].tool_calls[0].arguments["what"] = "spoilt"  # type: ignore[index]
    assert seen == ["b"]
    assert it.model.requests[1].messages[1].tool_calls[0].arguments == {"what": {"a": "b"}}
    assert (await history.read("talk"))[1].tool_calls[0].arguments == {"what": {"a": "b"}}


async def test_a_tool_that_changes_its_arguments_changes_nothing_else() -> None:
    """ "changing it never alters the run, its next requests or History", of what a tool gets too."""

    @tool()
    def spoil(what: dict[str, str], context: ToolContext) -> str:
        """Spoil it."""
        what["a"] = "spoilt"
        for message in context.session.messages:
            for call in message.tool_calls:
                call.arguments.clear()  # type: ignore[union-attr]
        return "ok"

    async with talk(calling("spoil", what={"a": "b"}), Turn(text="done"), tools=[spoil]) as it:
        await it.say()
    assert it.model.requests[1].messages[1].tool_calls[0].arguments == {"what": {"a": "b"}}


@pytest.mark.parametrize("kind", ["error", "timeout", "cancelled"])
async def test_a_run_that_fails_or_is_cancelled_leaves_history_as_it_was(kind: str) -> None:
    """ "A failed run leaves History as it was, so a retry starts from a consistent transcript"; the table of end reasons.
    charmbracelet/crush 529: cancelled in a tool, the next request is whole."""
    history = MemoryHistory()
    gate = Gate()
    last = {
        "error": Turn(error=RuntimeError("broken")),
        "timeout": Turn(until=anyio.Event()),
        "cancelled": calling("gate"),
    }[kind]
    turns = [Turn(text="kept"), calling("shout", text="a"), last, Turn(text="again")]
    limit = 3 if kind == "timeout" else LONG
    async with talk(*turns, tools=[shout, gate.tool], history=history, llm_call_timeout=limit) as it:
        await it.say("first")
        before = await history.read("talk")
        run = it.session.run("second")
        if kind == "cancelled":
            await gate.entered.wait()
            assert run.cancel()
        events = await read(run)
        assert end(events) == kind
        assert await history.read("talk") == before
        assert it.session.detail().pending == ()
        assert end(await it.say("third")) == "stop"
    assert pairs(it.model.requests[-1].messages) == [("user", "first"), ("assistant", "kept"), ("user", "third")]


async def test_a_reply_without_text_images_or_calls_ends_with_stop_and_is_neither_stored_nor_sent_back() -> None:
    """ "A reply with no text, images or tool calls (for example reasoning that used up MaximumTokens) ends the run with
    EndReasonStop but is not stored or sent back to the model". defilantech/LLMKube 935."""
    history = MemoryHistory()
    async with talk(Turn(reasoning="hm", finish_reason="length"), Turn(text="b"), history=history) as it:
        run = it.session.run("first")
        events = await read(run)
        result = await run.result()
        await it.say("second")
    assert end(events) == "stop"
    assert (result.ok, result.finish_reason, result.text) == (False, "length", "")
    assert [event.message.role for event in of(events, "message.completed")] == ["user"]
    assert pairs(it.model.requests[1].messages) == [("user", "first"), ("user", "second")]


async def test_by_default_system_prompt_and_last_message_are_marked_in_the_request_only() -> None:
    """ "By default every model request marks the system prompt and its last message (when that has content) with
    llm.CacheBreakpoint (5 minute TTL)"; "breakpoints are added to the request only, never to History"."""
    history = MemoryHistory()
    async with talk(
        calling("shout", text="a"), Turn(text="b"), tools=[shout], system_prompt="S", history=history
    ) as it:
        events = await it.say()
    for request in it.model.requests:
        marks = [message.cache_breakpoint for message in request.messages]
        assert marks == [CacheBreakpoint(ttl="5m"), *[None] * (len(marks) - 2), CacheBreakpoint(ttl="5m")]
    assert not any(message.cache_breakpoint for message in await history.read("talk"))
    assert not any(event.message.cache_breakpoint for event in of(events, "message.completed"))


async def test_a_request_that_carries_a_mark_already_is_sent_unchanged() -> None:
    """ "A request whose messages already carry a breakpoint is sent unchanged (a History that sets its own keeps control)"."""
    mark = CacheBreakpoint(ttl="1h")
    messages = [
        create_message("user", "a").model_copy(update={"cache_breakpoint": mark}),
        create_message("assistant", "b"),
        create_message("user", "c"),
    ]
    async with talk(Turn(text="d"), system_prompt="S") as it:
        await read(it.session.run_with_messages(messages))
    assert [message.cache_breakpoint for message in it.model.requests[0].messages] == [None, mark, None, None]


async def test_prompt_caching_can_be_turned_off() -> None:
    """ "DisablePromptCaching: true turns it off"; here: `prompt_caching=False`."""
    async with talk(Turn(text="d"), system_prompt="S", prompt_caching=False) as it:
        await it.say()
    assert not any(message.cache_breakpoint for message in it.model.requests[0].messages)


async def test_thinking_and_temperature_are_the_models_own_unless_set() -> None:
    """ "nil leaves the model default"; "Temperature: model default"; "MaximumTokens: 16384, one reply"."""
    async with talk(Turn(text="a")) as it:
        await it.say()
    request = it.model.requests[0]
    assert (request.thinking, request.temperature, request.max_tokens) == (None, None, 16_384)


@pytest.mark.parametrize("kind", ["store", "stored files", "files"])
async def test_provider_state_comes_back_byte_for_byte(kind: str, tmp_path: Path) -> None:
    """Reasoning "is never stored"; here: its text isn't, an opaque `provider_state` per assistant message is, since tool
    loops need signatures returned unchanged. anthropics/anthropic-sdk-python 1598: through files, too."""
    history: History = FileHistory(tmp_path)
    if kind != "files":
        history = StoreHistory(MemorySessionStore() if kind == "store" else FileSessionStore(tmp_path))
    state = ProviderState(provider="p", model="m", data=bytes(range(256)))
    turn = Turn(tool_calls=[Turn.call("shout", {"text": "a"})], provider_state=state)
    async with talk(turn, Turn(text="b"), Turn(text="c"), tools=[shout], history=history) as it:
        await it.say()
        await it.say()
    assert [request.messages[1].provider_state for request in it.model.requests[1:]] == [state, state]


@pytest.mark.parametrize("where", ["model", "read", "append", "after_tools"])
async def test_an_exception_outside_tools_is_an_error_with_its_stack_and_frees_the_lock(where: str) -> None:
    """ "a panic elsewhere in the run (provider client, History backend) becomes EventError with the stack plus EventEnd
    with EndReasonError, the lock is released"; "History or Locker failure: error". openai/openai-agents-python 2130."""

    class Broken(MemoryHistory):
        async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
            if where == "read" and not healed:
                raise KeyError("where is it")
            return await super().read(session_id)

        async def append(self, session_id: str, *messages: ChatMessage) -> None:
            if where == "append" and not healed:
                raise KeyError("where is it")
            await super().append(session_id, *messages)

    healed = False

    async def after_tools(message: ChatMessage) -> None:
        if not healed:
            raise KeyError("where is it")

    broken = [Turn(error=KeyError("where is it"))] if where == "model" else [calling("shout", text="a"), Turn(text="b")]
    broken = broken[: {"model": 1, "read": 0, "append": 2, "after_tools": 1}[where]]
    options = {"after_tools": after_tools} if where == "after_tools" else {}
    async with talk(*broken, Turn(text="well"), tools=[shout], history=Broken(), **options) as it:
        events = await it.say()
        assert it.session.detail().messages == ()
        error = the(events, "error").error
        assert error.code == ("history_failed" if where in ("read", "append") else "error")
        assert "KeyError" in error.message
        assert "Traceback" in error.stack
        assert end(events) == "error"
        healed = True
        assert end(await it.say()) == "stop"


async def test_a_panicking_tool_is_a_tool_error_and_the_run_goes_on() -> None:
    """ "A panic in a tool handler is a tool error"; "A failing, panicking or timed-out tool is reported to the model and the
    run continues"."""
    async with talk(calling("panic"), Turn(text="I see."), tools=[panic]) as it:
        events = await it.say()
    (result,) = results(events)
    assert result.error is not None
    assert result.error.code == "tool_panicked"
    assert result.error.stack is None
    assert "no such luck" in it.model.requests[1].messages[-1].content
    assert end(events) == "stop"


async def test_a_tool_that_exits_the_interpreter_is_a_tool_error() -> None:
    """ "A panic in a tool handler is a tool error", whatever was raised."""

    @tool()
    def leave() -> str:
        """Go."""
        raise SystemExit(3)

    async with talk(calling("leave"), Turn(text="ok"), tools=[leave]) as it:
        (result,) = results(await it.say())
    assert result.error is not None
    assert result.error.code == "tool_panicked"


async def test_an_expected_failure_is_an_error_for_the_model_with_data_for_the_clients_only() -> None:
    """ "isError: expected failure, rendered as an error"; "data: sent to clients only"."""

    @tool()
    def refuse() -> ToolExecutionResult:
        """Refuse."""
        return ToolExecutionResult(content="not today", data={"secret": 1}, is_error=True)

    async with talk(calling("refuse"), Turn(text="ok"), tools=[refuse]) as it:
        (result,) = results(await it.say())
    assert (result.ok, result.model_content, result.data) == (False, "not today", {"secret": 1})
    assert "secret" not in it.model.requests[1].model_dump_json()
    assert it.model.requests[1].messages[-1].is_error


async def test_terminate_ends_the_run_after_the_results_of_its_reply() -> None:
    """ "terminate: stop the run after this result"; a tool result with terminate ends with stop."""

    @tool()
    def finish() -> ToolExecutionResult:
        """End."""
        return ToolExecutionResult(content="over", terminate=True)

    history = MemoryHistory()
    calls = [Turn.call("finish"), Turn.call("shout", {"text": "a"})]
    async with talk(Turn(tool_calls=calls), tools=[finish, shout], history=history) as it:
        run = it.session.run("x")
        events = await read(run)
        result = await run.result()
    assert [one.content for one in results(events)] == ["over", "A"]
    assert end(events) == "stop"
    assert (result.status, result.ok) == ("completed", True)
    assert [message.role for message in await history.read("talk")] == ["user", "assistant", "tool", "tool"]


async def test_a_caller_that_cancels_may_stop_reading() -> None:
    """ "A caller that cancels ctx may stop reading: events that no longer fit the channel buffer are dropped, the run still
    releases the lock and closes the channel."""
    async with talk(Turn(deltas=["x"] * 2_000), Turn(text="next")) as it:
        run = it.session.run("a")
        await until(lambda: it.types().count("text") >= 300)
        assert run.cancel()
        with anyio.fail_after(LONG):
            await run.wait_finished()
        assert end(await it.say()) == "stop"
        assert end(await read(run)) == "cancelled"


async def test_leaving_the_stream_early_cancels_the_run_and_returns_once_the_lock_is_free() -> None:
    """ "leaving early cancels it, and returns once the lock is free"."""
    gate = Gate()
    async with talk(calling("gate"), Turn(text="next"), tools=[gate.tool]) as it:
        async with it.session.run("a") as run:
            async for event in run:
                if event.type == "tool_call":
                    break
        assert run.done
        assert not it.session.is_running
        assert (await run.result()).status == "cancelled"
        assert gate.left.is_set() or not gate.entered.is_set()
        assert end(await it.say()) == "stop"


async def test_the_loop_waits_for_a_slow_reader_and_result_lifts_that() -> None:
    """ "The loop waits for a slow reader (a buffer of 256). result() lifts that bound"."""
    many = Turn(deltas=["x"] * 300, tool_calls=[Turn.call("shout", {"text": "a"})])
    async with talk(many, Turn(text="end"), tools=[shout]) as it:
        run = it.session.run("a")
        await until(lambda: "message.completed" in it.types()[1:])
        for _ in range(50):
            await anyio.lowlevel.checkpoint()
        assert "tool_result" not in it.types()
        with anyio.fail_after(LONG):
            result = await run.result()
        assert result.text == "end"
        assert len(await read(run)) > 300


async def test_a_run_that_waits_for_a_reader_ends_when_cancelled() -> None:
    """ "neither can hang"."""
    many = Turn(deltas=["x"] * 300, tool_calls=[Turn.call("shout", {"text": "a"})])
    async with talk(many, tools=[shout]) as it:
        run = it.session.run("a")
        await until(lambda: "message.completed" in it.types()[1:])
        run.cancel()
        with anyio.fail_after(LONG):
            assert (await run.result()).end_reason == "cancelled"
        assert end(await read(run)) == "cancelled"


async def test_result_raises_after_a_failure_and_cancelling_its_wait_leaves_the_run() -> None:
    """ "Wait for the end; cancelling the wait doesn't cancel the run. Raises RunFailedError, after `run.failed`."""
    gate = Gate()
    error = ModelRequestError("no", code="no_credit", provider="p")
    async with talk(calling("gate"), Turn(error=error), tools=[gate.tool]) as it:
        run = it.session.start("a")
        with anyio.move_on_after(0.01):
            await run.result()
        assert not run.done
        gate.opened.set()
        with anyio.fail_after(LONG), pytest.raises(RunFailedError) as raised:
            await run.result()
        assert it.types()[-2:] == ["run.failed", "session.updated"]
        assert (raised.value.code, raised.value.end_reason) == ("no_credit", "error")
        assert (raised.value.run_id, raised.value.message_id) == (run.id, run.message_id)
        assert raised.value.__cause__ is error
        assert run.cancel() is False


async def test_ids_that_repeat_become_unique_and_every_call_runs() -> None:
    """Some servers count calls from 0 in every reply; no call may be taken for another. langchain-ai/langchainjs 10145."""
    repeated = [Turn.call("shout", {"text": text}, id="call_0") for text in "ab"]
    again = Turn(tool_calls=[Turn.call("shout", {"text": "c"}, id="call_0")])
    async with talk(Turn(tool_calls=repeated), again, Turn(text="ok"), tools=[shout]) as it:
        events = await it.say()
    assert [result.content for result in results(events)] == ["A", "B", "C"]
    assert len({event.tool_call.id for event in of(events, "tool_call")}) == 3


async def test_a_call_cut_by_the_length_limit_is_never_run() -> None:
    """A truncated call isn't executed; those before it in the same reply are."""
    ran: list[str] = []

    @tool()
    def write(text: str) -> str:
        """Write."""
        ran.append(text)
        return "ok"

    calls = [Turn.call("write", {"text": "whole"}), Turn.call("write", {"text": "ha"})]
    async with talk(Turn(tool_calls=calls, finish_reason="length"), Turn(text="ok"), tools=[write]) as it:
        events = await it.say()
    assert ran == ["whole"]
    assert [result.ok for result in results(events)] == [True, False]
    assert [notice.code for notice in of(events, "notice")] == ["reply_truncated"]


async def test_arguments_that_cannot_be_parsed_are_never_run() -> None:
    """Truncated arguments aren't replaced by an empty object."""
    ran: list[bool] = []

    @tool()
    def wipe() -> str:
        """Wipe."""
        ran.append(True)
        return "ok"

    async with talk(Turn(tool_calls=[Turn.unparsable("wipe", '{"path": "/tm')]), Turn(text="ok"), tools=[wipe]) as it:
        (result,) = results(await it.say())
    assert ran == []
    assert result.error is not None
    assert result.error.code == "invalid_arguments"


async def test_a_tool_registered_during_a_run_is_offered_from_the_next_on() -> None:
    """ "schemas() is what the runtime sends to the model"; here: a run keeps those of its start."""
    tools = registry()

    @tool()
    def grow() -> str:
        """Register another."""
        tools.register(shout)
        return "grown"

    tools.register(grow)
    model = ScriptedModel(calling("grow"), Turn(text="a"), Turn(text="b"))
    async with AgentSession.local(id="s", model=model, options=SessionOptions(tools=tools)) as session:
        await read(session.run("a"))
        await read(session.run("b"))
    assert [[schema.name for schema in request.tools] for request in model.requests] == [
        ["grow"],
        ["grow"],
        ["grow", "shout"],
    ]


async def test_a_model_without_tools_is_offered_none_with_a_notice() -> None:
    """ "supports_tools: False: none offered, with a notice"."""
    model = ScriptedModel(Turn(text="a"), info=ModelInfo(id="m", provider="p", supports_tools=False))
    async with talk(model=model, tools=[shout]) as it:
        events = await it.say()
    assert it.model.requests[0].tools == ()
    assert the(events, "notice").code == "tools_unsupported"
