"""What a session is made of, and what it copies: each docstring names the sentence that its test shows."""

from __future__ import annotations

from typing import Any, get_args

import anyio
import pytest
from pydantic import ValidationError

from tests.agent.support import LONG, Gate, calling, end, pairs, read, registry, results, shout, talk
from workbench.agent.history import MemoryHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.options import SessionOptions
from workbench.agent.prompt import create_message
from workbench.agent.session import AgentSession
from workbench.errors import ModelNotFoundError, ModelRequestError, RunFailedError
from workbench.protocol.messages import ChatMessage, ImageAttachment, ModelInfo, Thinking, ToolCall, ToolExecutionResult
from workbench.protocol.runs import RetryOptions, RunOptions, RunResult
from workbench.protocol.sessions import ApprovalRequest
from workbench.testing import ScriptedModel, Turn
from workbench.tools.base import tool

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("missing", ["id", "history", "locker", "model"])
async def test_a_session_needs_an_id_a_model_a_history_and_a_locker(missing: str) -> None:
    """ "agent.NewSession(&agent.SessionOptions{...}) needs ID, Client, Model, History and Locker"; client and model are one
    here: "a model knows its client"."""
    given: dict[str, Any] = {
        "id": "s",
        "model": ScriptedModel(),
        "history": MemoryHistory(),
        "locker": LocalLocker(),
    }
    AgentSession(**given)
    del given[missing]
    with pytest.raises(ModelNotFoundError if missing == "model" else TypeError):
        AgentSession(**given)


async def test_a_local_session_fills_in_a_history_and_a_locker_where_none_are_given() -> None:
    """ "agent.NewLocalSession fills in an in-memory History and a LocalLocker when you leave them unset (one replica,
    tests)"."""
    for number in range(2):
        async with talk(Turn(text="1"), Turn(text="2"), id="the same") as it:
            await it.say(f"first {number}")
            await it.say("second")
        assert pairs(it.model.requests[1].messages)[0] == ("user", f"first {number}")

    taken: list[str] = []

    class Noting(LocalLocker):
        def lock(self, session_id: str) -> Any:
            taken.append(session_id)
            return super().lock(session_id)

    history = MemoryHistory()
    async with talk(Turn(text="1"), history=history, locker=Noting()) as it:
        await it.say()
    assert (len(await history.read("talk")), taken) == (2, ["talk"])


async def test_a_session_is_made_as_in_the_documents_example() -> None:
    """ "A production session, from agent/example_test.go (ExampleNewSession)", each of its options under its name here."""
    history = MemoryHistory()
    model = ScriptedModel(Turn(text="Done."), info=ModelInfo(id="anthropic/claude-sonnet-4.6", provider="openrouter"))
    session = AgentSession(
        id="tenant-7/conversation-1",
        model=model,
        history=history,
        locker=LocalLocker(),
        system_prompt="You keep the project notes.",
        options=SessionOptions(
            max_turns=10,
            run_timeout=5 * 60,
            llm_call_timeout=2 * 60,
            tool_call_timeout=30,
            max_tool_result_bytes=32 << 10,
            thinking=Thinking.by_effort("low"),
        ),
    )
    async with session:
        reply, reason = "", ""
        async for event in session.run("Say hello."):
            if event.type == "text":
                reply += event.text
            elif event.type == "end":
                reason = event.end_reason
    assert f"{reply} ({reason})" == "Done. (stop)"
    (request,) = model.requests
    assert (request.model, request.thinking) == ("anthropic/claude-sonnet-4.6", Thinking.by_effort("low"))
    assert pairs(request.messages) == [("system", "You keep the project notes."), ("user", "Say hello.")]


async def test_what_all_runs_of_a_manager_share_is_given_once() -> None:
    """ "SessionManagerOptions": tools, maxSteps, temperature, maxTokens, approve, resolvePermission and retry
    "{ attempts, baseDelayMs, maxDelayMs }"; here: they stand once, in SessionOptions."""
    asked: list[str] = []

    async def approve(request: ApprovalRequest) -> bool:
        asked.append(request.tool_call.name)
        return True

    busy = ModelRequestError("busy", code="overloaded", provider="p", retryable=True)
    models = ModelRegistry()
    script = [Turn(error=busy), calling("shout", text="a"), calling("shout", text="b")]
    model = ScriptedModel(*script, *script)
    models.register(model)
    options = SessionOptions(
        tools=registry(shout),
        max_turns=2,
        temperature=0.5,
        max_tokens=77,
        approve=approve,
        resolve_permission=lambda tool, call, session: "ask",
        retry=RetryOptions(attempts=2, base_delay_ms=0, max_delay_ms=0),
    )
    async with SessionManager(models=models, default_workspace="/w", options=options) as sessions:
        for _ in range(2):
            made = await sessions.create()
            result = await sessions.send(made.id, "x").result()
            assert (result.status, result.turns) == ("max_steps", 2)
    assert asked == ["shout"] * 4
    assert {(request.temperature, request.max_tokens) for request in model.requests} == {(0.5, 77)}
    assert all([one.name for one in request.tools] == ["shout"] for request in model.requests)
    model.assert_consumed()


async def test_each_manager_has_a_store_of_its_own_where_none_is_given() -> None:
    """ "store?: SessionStore": None is a store in memory, which no other manager has."""
    models = ModelRegistry()
    models.register(ScriptedModel())
    async with (
        SessionManager(models=models, default_workspace="/w") as one,
        SessionManager(models=models, default_workspace="/w") as other,
    ):
        made = await one.create()
        assert one.has(made.id)
        assert not other.has(made.id)
    async with SessionManager(models=models, default_workspace="/w") as third:
        assert third.list() == ()


async def test_what_was_passed_in_may_be_changed_afterwards() -> None:
    """ "RunWithOptions copies its RunOptions, so changing them afterwards affects neither the session nor a started run": they
    can't be changed, and what can be is copied."""
    for options in (RunOptions(), RetryOptions(), Thinking.by_effort("low")):
        with pytest.raises(ValidationError):
            options.thinking = None  # type: ignore[misc, union-attr]
    arguments = {"text": "a"}
    image = bytearray(b"\x89PNG")
    images = [ImageAttachment(media_type="image/png", data=image)]  # type: ignore[arg-type]
    call = ToolCall(id="c", name="shout", arguments=arguments, raw_arguments="{}")
    given: list[ChatMessage] = [
        create_message("user", "x"),
        create_message("assistant", "").model_copy(update={"tool_calls": (call,)}),
        create_message("tool", "A").model_copy(update={"tool_call_id": "c"}),
        create_message("user", "y"),
    ]
    async with talk(Turn(text="1"), Turn(text="2")) as it:
        own = it.session.run_with_messages(given)
        other = it.session.run("x", images=images)
        arguments["text"] = "spoilt"
        given.clear()
        image[:] = b"gone"
        images.clear()
        assert end(await read(own)) == end(await read(other)) == "stop"
    assert [len(request.messages) for request in it.model.requests] == [4, 1]
    assert it.model.requests[0].messages[1].tool_calls[0].arguments == {"text": "a"}
    assert it.model.requests[1].messages[0].images[0].data == b"\x89PNG"


async def test_a_sessions_runs_ask_the_model_of_its_own() -> None:
    """ "CompletionRequest: model: string"; "LanguageModel: readonly info: ModelInfo"; "AgentSession: readonly model"."""
    models = ModelRegistry()
    for id in ("one", "two"):
        models.register(ScriptedModel(Turn(text=id), info=ModelInfo(id=id, provider="p")))
    session = AgentSession(id="s", model="two", models=models, history=MemoryHistory(), locker=LocalLocker())
    async with session:
        assert (await session.start("x").result()).text == "two"
    found = models.get("two")
    assert isinstance(found, ScriptedModel)
    assert [request.model for request in found.requests] == [session.model] == ["two"]


FAILURES = {
    "model": ModelRequestError("no", code="invalid_request", provider="p", status=400),
    "transport": ModelRequestError("cut off", code="network", provider="p"),
    "anything": KeyError("x"),
}


@pytest.mark.parametrize("failure", FAILURES)
async def test_a_result_has_one_of_three_states_and_a_failure_none_of_them(failure: str) -> None:
    """ "RunResult = { runId, status: "completed" | "cancelled" | "max_steps", usage }"; "A model or transport failure rejects
    done after emitting run.failed; it does not produce an "error" status. Callers that need to distinguish outcomes must catch
    the rejection."""
    assert get_args(RunResult.model_fields["status"].annotation) == ("completed", "cancelled", "max_steps")
    gate = Gate()
    turns = [Turn(text="a"), calling("gate"), calling("shout", text="a"), Turn(error=FAILURES[failure])]
    async with talk(*turns, tools=[gate.tool, shout], max_turns=1) as it:
        found = []
        for number in range(3):
            run = it.session.start("x")
            if number == 1:
                await gate.entered.wait()
                run.cancel()
            with anyio.fail_after(LONG):
                result = await run.result()
            assert result.run_id == run.id
            found.append(result.status)
        assert found == ["completed", "cancelled", "max_steps"]
        run = it.session.start("x")
        order: list[str] = []
        it.session.subscribe(lambda event: order.append(event.type))
        with anyio.fail_after(LONG), pytest.raises(RunFailedError):
            await run.result()
        assert order[-2:] == ["run.failed", "session.updated"]


async def test_a_providers_own_reason_for_the_end_of_a_reply_is_kept() -> None:
    """ "finishReason: "stop" | ... | (string & {})"."""
    async with talk(Turn(text="a", finish_reason="recitation")) as it:
        result = await it.session.start("x").result()
    assert (result.finish_reason, result.end_reason) == ("recitation", "stop")


async def test_an_error_of_another_copy_of_the_package_is_tried_again_and_keeps_its_code() -> None:
    """ "isModelRequestError() detects it structurally, so a provider bundled with its own copy of the package still classifies
    correctly"."""

    class OtherError(Exception):
        code, status, retryable, retry_after_ms, provider, usage = "overloaded", 529, True, 0.0, "p", None

    async with talk(*[Turn(error=OtherError("busy"))] * 2, retry=RetryOptions(attempts=2, base_delay_ms=0)) as it:
        run = it.session.start("x")
        with anyio.fail_after(LONG), pytest.raises(RunFailedError) as raised:
            await run.result()
    assert raised.value.code == "overloaded"
    assert [event.code for event in it.events if event.type == "notice"] == ["retry"]


async def test_an_image_of_a_result_is_a_copy_too() -> None:
    """ "You own everything an event points to, image bytes included": what a tool does to its image later changes nothing."""
    image = bytearray(b"\x89PNG")

    @tool()
    async def look() -> Any:
        """Look."""
        found = ImageAttachment(media_type="image/png", data=image)  # type: ignore[arg-type]
        image[:] = b"gone"
        return ToolExecutionResult(content="an image", images=(found,))

    async with talk(calling("look"), Turn(text="ok"), tools=[look]) as it:
        assert results(await it.say())[0].ok
    assert it.model.requests[1].messages[-1].images[0].data == b"\x89PNG"
