"""AgentSession, member by member: each docstring names the sentence that its test shows."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from tests.agent.support import LONG, Gate, calling, end, of, pairs, read, shout, talk, the
from workbench.agent.history import MemoryHistory, StoreHistory
from workbench.agent.locks import LocalLocker
from workbench.agent.models import ModelRegistry
from workbench.agent.session import AgentSession
from workbench.agent.stores import FileSessionStore, MemorySessionStore
from workbench.errors import (
    HistoryNotRewindableError,
    MessageExistsError,
    ModelNotFoundError,
    OptionsError,
    RewindError,
    RunFailedError,
    SessionBusyError,
    SessionClosedError,
    SessionGuardError,
)
from workbench.protocol.events import Notice, SessionEvent
from workbench.protocol.messages import ChatMessage, ImageAttachment, ModelInfo, Usage
from workbench.testing import ScriptedModel, Turn

pytestmark = pytest.mark.anyio


def stored() -> StoreHistory:
    """A history that can be rewound."""
    return StoreHistory(MemorySessionStore())


async def test_start_announces_the_message_and_the_run_before_it_returns() -> None:
    """ "start() appends the user message, emits message.completed, emits run.started and begins execution without awaiting
    it"; here: announced at start, persisted with the run's messages in one append at the end. "detail():
    SessionDetail"."""
    async with talk(Turn(text="hi")) as it:
        run = it.session.start("Hello.", message_id="m1")
        assert it.types() == ["message.completed", "run.started"]
        assert it.events[0].message.id == it.events[1].message_id == run.message_id == "m1"  # type: ignore[union-attr]
        assert it.session.is_running
        assert [message.content for message in it.session.detail().pending] == ["Hello."]
        assert it.session.detail().messages == ()
        assert it.model.requests == []
        with anyio.fail_after(LONG):
            result = await run.result()
    assert (result.run_id, result.message_id, result.text, result.turns) == (run.id, "m1", "hi", 1)
    assert (result.status, result.end_reason, result.finish_reason, result.ok) == ("completed", "stop", "stop", True)


async def test_a_completed_run_says_so_after_its_end_once_its_lock_is_free() -> None:
    """ "one of them, after `end`, once the lock is free"."""
    locker = LocalLocker()
    free: list[bool] = []

    async with talk(Turn(text="hi"), locker=locker) as it:

        def listen(event: SessionEvent) -> None:
            if event.type == "run.completed":
                free.append(not it.session.is_running and not locker._entries["talk"].lock.statistics().locked)

        it.session.subscribe(listen)
        await it.say()
        assert it.types()[-3:] == ["end", "run.completed", "session.updated"]
    assert free == [True]


async def test_events_are_numbered_from_1_without_gaps_and_carry_session_and_run() -> None:
    """ "each event has `type`, `seq` (per session, from 1, no gaps), `session_id`, `run_id`, `at`"."""
    async with talk(calling("shout", text="a"), Turn(text="b"), Turn(text="c"), tools=[shout], history=stored()) as it:
        await it.say()
        await it.session.rename("Title")
        await it.say()
    assert [event.seq for event in it.events] == list(range(1, len(it.events) + 1))
    assert {event.session_id for event in it.events} == {"talk"}
    for event in it.events:
        assert (event.run_id is None) == event.type.startswith("session.")
    assert len({event.run_id for event in it.events if event.run_id}) == 2


async def test_numbers_go_on_where_a_stored_session_ended() -> None:
    """A session that is opened again goes on counting."""
    session = AgentSession(id="s", model=ScriptedModel(), history=MemoryHistory(), locker=LocalLocker(), seq=41)
    events: list[SessionEvent] = []
    session.subscribe(events.append)
    await session.rename("x")
    assert [event.seq for event in events] == [42]


async def test_a_second_run_on_a_busy_session_is_refused_and_run_waits() -> None:
    """ "Starting a second run while isRunning throws"; here: `start()` raises SessionBusyError, `run()` waits for the
    Locker."""
    gate = Gate()
    async with talk(calling("gate"), Turn(text="1"), Turn(text="2"), tools=[gate.tool]) as it:
        first = it.session.start("a")
        with pytest.raises(SessionBusyError) as busy:
            it.session.start("b")
        assert busy.value.code == "session_busy"
        second = it.session.run("c")
        await gate.entered.wait()
        gate.opened.set()
        with anyio.fail_after(LONG):
            await first.result()
        assert end(await read(second)) == "stop"
    assert [content for _, content in pairs(it.session.detail().messages) if len(content) == 1] == ["a", "1", "c", "2"]


async def test_cancel_ends_the_run_with_cancelled_wherever_it_is() -> None:
    """ "cancel() aborts the signal; the run resolves with status: "cancelled""; "cancel(): boolean"."""
    gate = Gate()
    async with talk(calling("gate"), tools=[gate.tool]) as it:
        assert it.session.cancel() is False
        run = it.session.start("a")
        await gate.entered.wait()
        assert it.session.cancel() is True
        with anyio.fail_after(LONG):
            result = await run.result()
        assert (result.status, result.end_reason, result.ok, result.turns) == ("cancelled", "cancelled", False, 1)
        assert it.types()[-3:] == ["end", "run.cancelled", "session.updated"]
        assert it.session.cancel() is False
        assert run.cancel() is False
    assert gate.left.is_set()


async def test_a_failure_is_said_before_the_wait_for_it_raises() -> None:
    """ "A model or transport failure rejects done after emitting run.failed; it does not produce an "error" status";
    here: the run ends with one end event, and `await run.result()` raises RunFailedError after it."""
    async with talk(Turn(error=RuntimeError("x"))) as it:
        run = it.session.start("a")
        with anyio.fail_after(LONG), pytest.raises(RunFailedError):
            await run.result()
        failed = the(it.events, "run.failed")
        assert (failed.end_reason, failed.error.code) == ("error", "error")


async def test_the_id_of_a_message_is_taken_for_good() -> None:
    """ "messageId on start() lets a caller take a checkpoint under the same id before the message exists"; of a failed run
    too its id stays taken."""
    async with talk(Turn(text="1"), Turn(error=RuntimeError("x"))) as it:
        await it.say("a", message_id="one")
        assert end(await it.say("b", message_id="two")) == "error"
        for taken in ("one", "two"):
            with pytest.raises(MessageExistsError):
                it.session.start("c", message_id=taken)
            events = await it.say("c", message_id=taken)
            assert the(events, "error").error.code == "message_exists"
            assert of(events, "message.completed") == []


async def test_a_message_that_another_object_has_stored_is_found_when_the_run_reads() -> None:
    """An id is taken whoever took it."""
    history, locker = MemoryHistory(), LocalLocker()
    async with talk(Turn(text="1"), history=history, locker=locker) as it:
        await it.say("a", message_id="one")
    async with talk(history=history, locker=locker) as it:
        run = it.session.start("b", message_id="one")
        with anyio.fail_after(LONG), pytest.raises(RunFailedError) as raised:
            await run.result()
    assert raised.value.code == "message_exists"
    assert len(await history.read("talk")) == 2


@pytest.mark.parametrize("text", ["", "  \n"])
async def test_a_message_without_content_is_refused(text: str) -> None:
    """A bad message is `error` and `end` of run(), and raised by start(): providers refuse it for good."""
    async with talk() as it:
        with pytest.raises(OptionsError):
            it.session.start(text)
        assert the(await it.say(text), "error").error.code == "invalid_options"


async def test_images_go_with_the_message() -> None:
    """ "start(input, options?: { images?: ImageAttachment[] })"."""
    image = ImageAttachment(media_type="image/png", data=b"\x89PNG")
    async with talk(Turn(text="seen")) as it:
        await it.say("", images=[image])
    assert it.model.requests[0].messages[0].images == (image,)


async def test_a_guard_vetoes_runs() -> None:
    """ "guards veto create and run"; run() raises nothing: a veto is `error` and `end`."""

    def veto() -> None:
        raise SessionGuardError("enough", retry_after_ms=5_000)

    session = AgentSession(id="s", model=ScriptedModel(), history=MemoryHistory(), locker=LocalLocker(), guard=veto)
    async with session:
        with pytest.raises(SessionGuardError):
            session.start("a")
        assert not session.is_running
        events = await read(session.run("a"))
    assert (the(events, "error").error.code, end(events)) == ("quota_exceeded", "error")


async def test_a_title_comes_from_the_first_message_and_can_be_changed() -> None:
    """ "titleFromInput: Derives a session title from the first message"; rename(title)."""
    async with talk(Turn(text="1"), Turn(text="2"), history=stored()) as it:
        await it.say("Fix the  failing test.\nPlease.")
        assert it.session.summary().title == "Fix the failing test."
        await it.session.rename(" Mine ")
        assert the([event for event in it.events if event.type == "session.updated"][-1:], "session.updated")
        await it.say("Another.")
        assert it.session.summary().title == "Mine"
        with pytest.raises(OptionsError):
            await it.session.rename(" ")


async def test_a_summary_says_what_a_list_shows() -> None:
    """ "summary(): SessionSummary": id, title, workspace, model, is_running, message_count, usage, tenant_id, created_at,
    updated_at; "readonly id, isRunning, model"."""
    used = Usage(input_tokens=3, output_tokens=2, cost_usd=0.25)
    async with talk(Turn(text="1", usage=used), Turn(text="2", usage=used)) as it:
        before = it.session.summary()
        await it.say()
        await it.say()
        after = it.session.summary()
    assert (before.message_count, before.usage, before.is_running) == (0, Usage(), False)
    assert (after.id, after.model, after.message_count, after.is_running) == ("talk", "scripted", 4, False)
    assert (after.usage.input_tokens, after.usage.cost_usd) == (6, 0.5)
    assert after.created_at == before.created_at < after.updated_at


async def test_touch_counts_as_activity() -> None:
    """ "touch(): void"."""
    async with talk() as it:
        before = it.session.summary().updated_at
        it.session.touch()
        assert it.session.summary().updated_at > before


async def test_listeners_hear_every_event_until_disposed_and_one_that_raises_harms_nobody() -> None:
    """ "subscribe(listener: (event: SessionEvent) => void): () => void"; here: one that raises is logged, the others still
    get the event."""
    heard: list[int] = []

    def broken(event: SessionEvent) -> None:
        raise RuntimeError("x")

    async with talk(Turn(text="1"), Turn(text="2")) as it:
        it.session.subscribe(broken)
        dispose = it.session.subscribe(lambda event: heard.append(event.seq))
        await it.say()
        count = len(it.events)
        dispose()
        dispose()
        await it.say()
    assert heard == list(range(1, count + 1))


async def test_a_listener_that_causes_events_keeps_the_order_for_everybody() -> None:
    """ "Called in `seq` order"."""
    first: list[int] = []
    second: list[int] = []
    session = AgentSession(id="s", model=ScriptedModel(), history=MemoryHistory(), locker=LocalLocker())

    def causing(event: SessionEvent) -> None:
        first.append(event.seq)
        if event.seq == 1:
            session.publish(Notice(code="x", message="y"))

    session.subscribe(causing)
    session.subscribe(lambda event: second.append(event.seq))
    session.publish(Notice(code="x", message="y"))
    assert first == second == [1, 2]


async def test_the_model_and_the_system_prompt_change_from_the_next_run_on() -> None:
    """ "setModel(model)", "setSystemPrompt(prompt)": from the next run on."""
    models = ModelRegistry()
    gate = Gate()
    one = ScriptedModel(calling("gate"), Turn(text="1"), info=ModelInfo(id="one", provider="p"))
    two = ScriptedModel(Turn(text="2"), info=ModelInfo(id="two", provider="p"))
    models.register(one)
    models.register(two)
    from tests.agent.support import registry
    from workbench.agent.options import SessionOptions

    options = SessionOptions(tools=registry(gate.tool))
    session = AgentSession(id="s", history=MemoryHistory(), locker=LocalLocker(), models=models, options=options)
    async with session:
        assert session.model == "one"
        run = session.start("a")
        await gate.entered.wait()
        await session.set_model("two")
        await session.set_system_prompt("New.")
        gate.opened.set()
        with anyio.fail_after(LONG):
            await run.result()
        await read(session.run("b"))
        with pytest.raises(ModelNotFoundError):
            await session.set_model("three")
        assert session.model == "two"
    assert [request.messages[0].content for request in one.requests] == ["a", "a"]
    assert two.requests[0].messages[0].content == "New."


async def test_a_session_needs_a_model_when_it_is_made() -> None:
    """ "model: a name is looked up in `models`, None is its default. Raises ModelNotFoundError"."""
    for model, models in (("x", ModelRegistry()), (None, ModelRegistry()), ("x", None), (None, None)):
        with pytest.raises(ModelNotFoundError) as raised:
            AgentSession(id="s", model=model, models=models, history=MemoryHistory(), locker=LocalLocker())
        assert raised.value.code == ("model_not_found" if model else "no_default_model")


@pytest.mark.parametrize("id", ["", "x" * 257])
async def test_an_id_has_1_to_256_characters(id: str) -> None:
    """ "any string of 1 to 256 characters"."""
    with pytest.raises(OptionsError):
        AgentSession.local(id=id, model=ScriptedModel())


async def test_rewind_removes_a_user_message_and_all_after_it_persists_and_says_so() -> None:
    """ "rewind() removes a user message and every message after it, persists the transcript, emits session.rewound (with
    the surviving list) and session.updated, and returns the count"; "rewind(messageId): { removed, messages }"."""
    history = stored()
    async with talk(Turn(text="1"), Turn(text="2"), Turn(text="3"), history=history) as it:
        await it.say("a", message_id="first")
        await it.say("b", message_id="second")
        rewound = await it.session.rewind("second")
        assert (rewound.removed, pairs(rewound.messages)) == (2, [("user", "a"), ("assistant", "1")])
        assert pairs(await history.read("talk")) == [("user", "a"), ("assistant", "1")]
        assert it.types()[-2:] == ["session.rewound", "session.updated"]
        event = the(it.events, "session.rewound")
        assert (event.message_id, event.removed, event.messages) == ("second", 2, rewound.messages)
        assert it.session.summary().message_count == 2
        await it.say("c")
    assert pairs(it.model.requests[-1].messages) == [("user", "a"), ("assistant", "1"), ("user", "c")]


async def test_rewind_refuses_unknown_ids_other_roles_and_active_runs() -> None:
    """ "It refuses unknown ids, non-user targets and active runs with RewindError (message_not_found, invalid_rewind_target,
    session_busy)."""
    gate = Gate()
    async with talk(Turn(text="1"), calling("gate"), tools=[gate.tool], history=stored()) as it:
        await it.say("a", message_id="first")
        reply = it.session.detail().messages[1].id
        codes = []
        for target in ("nowhere", reply):
            with pytest.raises(RewindError) as raised:
                await it.session.rewind(target)
            codes.append(raised.value.code)
        run = it.session.start("b")
        await gate.entered.wait()
        with pytest.raises(RewindError) as raised:
            await it.session.rewind("first")
        codes.append(raised.value.code)
        with pytest.raises(SessionBusyError):
            await it.session.reset()
        run.cancel()
        await run.wait_finished()
        assert it.session.summary().message_count == 2
    assert codes == ["message_not_found", "invalid_rewind_target", "session_busy"]


async def test_rewind_is_refused_while_another_object_runs_the_session() -> None:
    """A run anywhere is an active run: its lock says so."""
    locker, history = LocalLocker(), stored()
    async with talk(Turn(text="1"), history=history, locker=locker) as it:
        await it.say("a", message_id="first")
        gate = Gate()
        async with talk(calling("gate"), tools=[gate.tool], history=history, locker=locker) as other:
            other.session.start("b")
            await gate.entered.wait()
            with anyio.fail_after(LONG), pytest.raises(RewindError) as raised:
                await it.session.rewind("first")
    assert raised.value.code == "session_busy"


async def test_no_run_starts_while_the_transcript_is_taken_back() -> None:
    """A rewind and a run never mix."""
    history = stored()
    async with talk(Turn(text="1"), Turn(text="2"), history=history) as it:
        await it.say("a", message_id="first")
        refused: list[bool] = []
        change = history.change

        async def slow(*args: Any) -> Any:
            with pytest.raises(SessionBusyError):
                it.session.start("b")
            refused.append(True)
            return await change(*args)

        history.change = slow  # type: ignore[method-assign]
        await it.session.rewind("first")
        history.change = change  # type: ignore[method-assign]
        assert refused
        assert end(await it.say("b")) == "stop"


async def test_an_append_only_history_cannot_be_rewound() -> None:
    """ "History is append-only: there is no API to remove or rewind messages"; here: `rewind` and `reset` need a
    StoreHistory, any other History stays append-only."""
    async with talk(Turn(text="1")) as it:
        await it.say("a", message_id="first")
        with pytest.raises(HistoryNotRewindableError):
            await it.session.rewind("first")
        with pytest.raises(HistoryNotRewindableError):
            await it.session.reset()


async def test_reset_empties_the_transcript() -> None:
    """ "reset(): void"."""
    history = stored()
    async with talk(Turn(text="1"), Turn(text="2"), history=history) as it:
        await it.say("a")
        await it.session.reset()
        assert await history.read("talk") == ()
        assert it.session.detail().messages == ()
        assert the(it.events, "session.rewound").messages == ()
        assert end(await it.say("b")) == "stop"
    assert pairs(it.model.requests[-1].messages) == [("user", "b")]


@pytest.mark.parametrize("renamed", [False, True])
async def test_a_title_made_from_a_message_goes_with_it(renamed: bool) -> None:
    """ "reset()", and titles from input: the next conversation gets a title of its own; one that was given stays."""
    async with talk(Turn(text="1"), Turn(text="2"), history=stored()) as it:
        await it.say("The first task.")
        if renamed:
            await it.session.rename("Mine")
        await it.session.reset()
        await it.say("Another task.")
        assert it.session.detail().title == ("Mine" if renamed else "Another task.")


async def test_what_a_session_is_survives_in_its_store(tmp_path: Any) -> None:
    """What persists before it returns: title, model, prompt, usage and messages are there for the next process."""
    store = FileSessionStore(tmp_path)
    used = Usage(input_tokens=3, output_tokens=2, cost_usd=0.25)
    async with talk(Turn(text="1", usage=used), history=StoreHistory(store)) as it:
        await it.say("Hello there.")
        await it.session.set_system_prompt("P")
        await it.session.rename("T")
        detail = await FileSessionStore(tmp_path).load("talk")
    assert detail is not None
    assert (detail.title, detail.model, detail.system_prompt) == ("T", "scripted", "P")
    assert (detail.usage.cost_usd, detail.message_count, detail.is_running) == (0.25, 2, False)

    again = AgentSession(
        id="talk",
        models=ModelRegistry(),
        history=StoreHistory(FileSessionStore(tmp_path)),
        locker=LocalLocker(),
        detail=detail,
    )
    assert again.detail() == detail
    # Its model isn't registered here: that is an error of the run, not of opening it.
    async with again:
        assert the(await read(again.run("x")), "error").error.code == "model_not_found"


async def test_a_rename_during_a_run_is_kept() -> None:
    """What somebody changes while a run goes on isn't undone by its end."""
    gate, history = Gate(), stored()
    async with talk(calling("gate"), Turn(text="1"), tools=[gate.tool], history=history) as it:
        run = it.session.start("a")
        await gate.entered.wait()
        await it.session.rename("Mine")
        gate.opened.set()
        with anyio.fail_after(LONG):
            await run.result()
        detail = await history.change("talk", lambda before: before)
    assert (detail.title, detail.message_count) == ("Mine", 4)


async def test_close_cancels_runs_waits_for_them_and_refuses_more() -> None:
    """ "close() cancels active runs"; may be called from any task."""
    gate = Gate()
    async with talk(calling("gate"), tools=[gate.tool]) as it:
        run = it.session.start("a")
        waiting = it.session.run("b")
        await gate.entered.wait()
        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as group:
                group.start_soon(it.session.close)
        assert run.done
        assert gate.left.is_set()
        assert end(await read(waiting)) == "cancelled"
        with pytest.raises(SessionClosedError):
            it.session.start("c")
        assert the(await it.say("c"), "error").error.code == "session_closed"


async def test_a_session_may_be_entered_and_left_in_different_tasks() -> None:
    """ "`close()` may be called from any task. No task group or cancel scope is held open across a `yield`.
    modelcontextprotocol/python-sdk 577, google/adk-python 2196, microsoft/conductor 353."""
    gate = Gate()
    async with talk(calling("gate"), tools=[gate.tool]) as it:

        async def enter() -> None:
            await it.session.__aenter__()
            it.session.start("a")

        async def leave() -> None:
            await it.session.__aexit__(None, None, None)

        async with anyio.create_task_group() as group:
            group.start_soon(enter)
        await gate.entered.wait()
        with anyio.fail_after(LONG):
            async with anyio.create_task_group() as group:
                group.start_soon(leave)
        assert not it.session.is_running


async def test_a_panic_in_unlock_is_logged_and_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """ "A panic in unlock is recovered and dropped (it runs after EventEnd, so the run cannot report it); log unlock
    failures"."""

    class Broken:
        @asynccontextmanager
        async def lock(self, session_id: str) -> AsyncIterator[None]:
            yield
            raise RuntimeError("the lock service is gone")

    async with talk(Turn(text="1"), locker=Broken()) as it:
        assert end(await it.say()) == "stop"
        assert it.types()[-2:] == ["run.completed", "session.updated"]
    assert "the lock service is gone" in caplog.text


async def test_a_locker_that_fails_fails_the_run() -> None:
    """ "History or Locker failure: error"."""

    class Broken:
        @asynccontextmanager
        async def lock(self, session_id: str) -> AsyncIterator[None]:
            raise RuntimeError("no lock service")
            yield

    async with talk(locker=Broken()) as it:
        events = await it.say()
    assert (the(events, "error").error.code, end(events)) == ("lock_failed", "error")


async def test_a_locker_may_keep_a_task_group_while_it_is_held() -> None:
    """A lock with a lease renews it in a task of its own: it's entered and left in one task, and nested properly."""
    renewed: list[bool] = []

    class Leased:
        @asynccontextmanager
        async def lock(self, session_id: str) -> AsyncIterator[None]:
            async def renew() -> None:
                renewed.append(True)
                await anyio.sleep_forever()

            async with anyio.create_task_group() as group:
                group.start_soon(renew)
                yield
                await anyio.lowlevel.checkpoint()
                group.cancel_scope.cancel()

    gate = Gate()
    async with talk(Turn(text="1"), calling("gate"), Turn(text="3"), tools=[gate.tool], locker=Leased()) as it:
        assert end(await it.say()) == "stop"
        run = it.session.start("b")
        await gate.entered.wait()
        run.cancel()
        with anyio.fail_after(LONG):
            await run.wait_finished()
        assert end(await it.say()) == "stop"
    assert renewed == [True] * 3


async def test_an_append_is_finished_whatever_the_reader_does() -> None:
    """A store's write isn't cancelled by the end of the stream; a cancel that comes then comes too late.
    openai/openai-agents-python 1658."""
    appending, go = anyio.Event(), anyio.Event()

    class Slow(MemoryHistory):
        async def append(self, session_id: str, *messages: ChatMessage) -> None:
            appending.set()
            await go.wait()
            await super().append(session_id, *messages)

    history = Slow()
    async with talk(Turn(text="1"), history=history) as it:
        run = it.session.run("a")
        await appending.wait()
        assert run.cancel() is False
        go.set()
        events = await read(run)
    assert end(events) == "stop"
    assert len(await history.read("talk")) == 2


async def test_the_runtime_imports_nothing_of_the_workspace() -> None:
    """ "It never touches files: the server pairs it with a checkpoint restore, keeping the runtime free of storage";
    here: WorkspaceSession does."""
    code = (
        "import sys, workbench.agent.session;"
        "bad = [name for name in sys.modules if name.startswith(('workbench.workspace', 'workbench.sandbox',"
        " 'workbench.checkpoints', 'workbench.review'))];"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_an_idle_session_holds_no_task() -> None:
    """Idle sessions cost memory only."""
    async with talk(Turn(text="1")) as it:
        await it.say()
        assert it.session._runs == []
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:
        return
    assert not [task for task in tasks if task.get_name().startswith("run ")]
