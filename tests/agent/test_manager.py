"""All sessions of a process: made, found, listed, run, watched, vetoed, deleted, closed and loaded again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from tests.conftest import ROOT
from workbench.agent.locks import LocalLocker
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.options import SessionOptions
from workbench.agent.stores import FileSessionStore, MemorySessionStore, SessionStore
from workbench.errors import (
    ModelNotFoundError,
    OptionsError,
    RewindError,
    SessionBusyError,
    SessionClosedError,
    SessionExistsError,
    SessionGuardError,
    SessionNotFoundError,
    StoreError,
)
from workbench.protocol.events import Notice, SessionEvent
from workbench.protocol.messages import CompletionRequest, ModelInfo, Usage
from workbench.protocol.sessions import CreateSessionRequest, SessionDetail, SessionGuardContext, SessionSummary
from workbench.testing.conversations import SESSION_IDS, run, session
from workbench.testing.scripted_model import ScriptedModel, Turn
from workbench.tools.base import tool
from workbench.tools.registry import ToolRegistry

pytestmark = pytest.mark.anyio

Scripted = Turn | Callable[[CompletionRequest], Turn]
USAGE = Usage(input_tokens=10, output_tokens=5, cost_usd=0.25)


def scripted(*turns: Scripted, id: str = "scripted") -> ModelRegistry:
    models = ModelRegistry()
    models.register(ScriptedModel(*turns, info=ModelInfo(id=id, provider="scripted")))
    return models


def manager(*turns: Scripted, models: ModelRegistry | None = None, **options: object) -> SessionManager:
    return SessionManager(models=models or scripted(*turns), default_workspace="/w", **options)  # type: ignore[arg-type]


class Heard:
    """What subscribers were told."""

    def __init__(self) -> None:
        self.events: list[SessionEvent] = []

    def __call__(self, event: SessionEvent) -> None:
        self.events.append(event)

    def types(self, session_id: str | None = None) -> list[str]:
        return [event.type for event in self.events if session_id in (None, event.session_id)]

    def seqs(self, session_id: str) -> list[int]:
        return [event.seq for event in self.events if event.session_id == session_id]


class Waiting:
    """A turn that stays where it is until it's let go or cancelled, and tells when it was asked for."""

    def __init__(self) -> None:
        self.asked = anyio.Event()
        self.event = anyio.Event()

    def turn(self, request: CompletionRequest) -> Turn:
        self.asked.set()
        return Turn(text="waited", until=self.event)


@pytest.fixture(params=["memory", "files"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> SessionStore:
    return MemorySessionStore() if request.param == "memory" else FileSessionStore(tmp_path / "store")


# Making sessions


async def test_a_session_is_made_of_the_defaults_where_nothing_is_asked_for() -> None:
    """ "defaultWorkspace: string"; "defaultModel?"; "create(request?, tenantId?): AgentSession"; "get(id)"; "has(id):
    boolean"."""
    tools = ToolRegistry()
    async with manager(options=SessionOptions(tools=tools)) as sessions:
        made = await sessions.create()
        assert (made.workspace, made.model) == ("/w", "scripted")
        detail = made.detail()
        assert (detail.title, detail.messages, detail.tenant_id, detail.is_running) == ("", (), None, False)
        assert detail.system_prompt is not None
        assert "/w" in detail.system_prompt
        assert sessions.get(made.id) is made
        assert sessions.has(made.id)


async def test_a_session_is_made_as_it_was_asked_for() -> None:
    """ "create(request?: CreateSessionRequest, tenantId?: string): AgentSession"."""
    models = scripted()
    models.register(ScriptedModel(info=ModelInfo(id="other", provider="scripted")))
    async with manager(models=models) as sessions:
        asked = CreateSessionRequest(
            id="tenant-7/conversation-1",
            title="A title",
            workspace="/elsewhere",
            model="other",
            system_prompt="Be brief.",
        )
        detail = (await sessions.create(asked, tenant_id="tenant-7")).detail()
        assert (detail.id, detail.title, detail.workspace) == ("tenant-7/conversation-1", "A title", "/elsewhere")
        assert (detail.model, detail.system_prompt, detail.tenant_id) == ("other", "Be brief.", "tenant-7")


async def test_the_managers_default_model_goes_before_the_registrys() -> None:
    """ "SessionManagerOptions: models: ModelRegistry; defaultModel?: string"."""
    models = scripted()
    models.register(ScriptedModel(info=ModelInfo(id="other", provider="scripted")))
    async with manager(models=models, default_model="other") as sessions:
        assert (await sessions.create()).model == "other"


async def test_the_system_prompt_is_made_of_the_workspace() -> None:
    """ "systemPrompt?: (workspace: string) => string"."""
    async with manager(system_prompt=lambda workspace: f"You are in {workspace}.") as sessions:
        assert (await sessions.create()).detail().system_prompt == "You are in /w."
        other = await sessions.create(CreateSessionRequest(workspace="/v"))
        assert other.detail().system_prompt == "You are in /v."


async def test_a_session_with_a_model_that_is_not_there_is_not_made(store: SessionStore) -> None:
    async with manager(store=store) as sessions:
        with pytest.raises(ModelNotFoundError):
            await sessions.create(CreateSessionRequest(id="s", model="missing"))
        assert not sessions.has("s")
        assert await store.list() == ()
        await sessions.create(CreateSessionRequest(id="s"))


async def test_ids_never_collide(store: SessionStore) -> None:
    """Ids that can't collide."""
    async with manager(store=store) as sessions, manager(store=store) as others:
        made = [(await each.create()).id for each in (sessions, others) for _ in range(20)]
        assert len(set(made)) == 40
        await sessions.create(CreateSessionRequest(id="s"))
        for each in (sessions, others):
            with pytest.raises(SessionExistsError) as raised:
                await each.create(CreateSessionRequest(id="s"))
            assert raised.value.code == "session_exists"
        assert not others.has("s")
    found = await store.load("s")
    assert found is not None


async def test_one_id_asked_for_many_times_at_once_is_made_once(store: SessionStore) -> None:
    made: list[str] = []
    refused: list[str] = []

    async def create(sessions: SessionManager) -> None:
        try:
            made.append((await sessions.create(CreateSessionRequest(id="s"))).id)
        except SessionExistsError as error:
            refused.append(error.code)

    async with (
        manager(store=store) as one,
        manager(store=store) as other,
        anyio.create_task_group() as tasks,
    ):
        for _ in range(5):
            tasks.start_soon(create, one)
            tasks.start_soon(create, other)
    assert (made, len(refused)) == (["s"], 9)


async def test_any_id_is_an_id_and_another_is_refused() -> None:
    async with manager() as sessions:
        for id in SESSION_IDS:
            assert (await sessions.create(CreateSessionRequest(id=id))).id == id
        assert {summary.id for summary in sessions.list()} == set(SESSION_IDS)


async def test_a_session_that_can_not_be_stored_is_not_made() -> None:
    class Full(MemorySessionStore):
        async def save(self, session: SessionDetail) -> None:
            raise StoreError("The disk is full.")

    store = Full()
    async with manager(store=store) as sessions:
        heard = Heard()
        sessions.subscribe(heard)
        with pytest.raises(StoreError):
            await sessions.create(CreateSessionRequest(id="s"))
        assert not sessions.has("s")
        assert heard.events == []
        # Its id is free.
        with pytest.raises(StoreError):
            await sessions.create(CreateSessionRequest(id="s"))


async def test_a_prompt_that_can_not_be_made_leaves_no_session(store: SessionStore) -> None:
    prompts = iter([ZeroDivisionError("no prompt"), "Be brief."])

    def make(workspace: str) -> str:
        prompt = next(prompts)
        if isinstance(prompt, Exception):
            raise prompt
        return prompt

    async with manager(store=store, system_prompt=make) as sessions:
        with pytest.raises(ZeroDivisionError):
            await sessions.create(CreateSessionRequest(id="s"))
        assert await store.list() == ()
        await sessions.create(CreateSessionRequest(id="s"))


# Finding them


async def test_what_is_not_there_is_session_not_found() -> None:
    """ "get(id): throws SessionNotFoundError"; "SessionNotFoundError has code = "session_not_found"" (of which HTTP makes a
    404)."""
    async with manager() as sessions:
        attempts: list[Callable[[], object]] = [
            lambda: sessions.get("missing"),
            lambda: sessions.send("missing", "hello"),
            lambda: sessions.cancel("missing"),
            lambda: sessions.publish(Notice(session_id="missing", code="c", message="m")),
        ]
        for attempt in attempts:
            with pytest.raises(SessionNotFoundError) as raised:
                attempt()
            assert raised.value.code == "session_not_found"
        with pytest.raises(SessionNotFoundError):
            await sessions.delete("missing")
        assert not sessions.has("missing")


async def test_the_session_that_was_active_last_is_listed_first() -> None:
    """ "list(): SessionSummary[]"."""
    async with manager(Turn(text="hi")) as sessions:
        for id in ("a", "b", "c"):
            await sessions.create(CreateSessionRequest(id=id))
        assert [each.id for each in sessions.list()] == ["c", "b", "a"]
        await sessions.send("b", "hello").result()
        sessions.get("a").touch()
        listed = sessions.list()
        assert [each.id for each in listed] == ["a", "b", "c"]
        assert all(type(each) is SessionSummary for each in listed)
        assert listed[1].message_count == 2


# Running them


async def test_a_message_that_is_sent_is_answered_stored_and_gives_the_title(store: SessionStore) -> None:
    """ "The runtime owns sessions, the model/tool registries and the execution loop"; "send(id, content): { runId, done }";
    titles from input."""
    async with manager(Turn(text="It is noon.", usage=USAGE), store=store) as sessions:
        await sessions.create(CreateSessionRequest(id="s"))
        run = sessions.send("s", "What time is it?")
        result = await run.result()
        assert (result.run_id, result.status, result.text) == (run.id, "completed", "It is noon.")
        stored = await store.load("s")
    assert stored is not None
    assert [(each.role, each.content) for each in stored.messages] == [
        ("user", "What time is it?"),
        ("assistant", "It is noon."),
    ]
    assert (stored.title, stored.message_count) == ("What time is it?", 2)
    assert (stored.usage.input_tokens, stored.usage.output_tokens, stored.usage.cost_usd) == (10, 5, 0.25)
    assert (stored.is_running, stored.pending) == (False, ())
    assert stored.messages[0].id == run.message_id


async def test_a_title_that_was_asked_for_stays(store: SessionStore) -> None:
    async with manager(Turn(text="hi"), store=store) as sessions:
        made = await sessions.create(CreateSessionRequest(id="s", title="Mine"))
        await sessions.send("s", "Something else").result()
        assert made.summary().title == "Mine"
        stored = await store.load("s")
        assert stored is not None
        assert stored.title == "Mine"


async def test_a_run_is_cancelled_by_the_sessions_id() -> None:
    """ "cancel(id: string): boolean"."""
    waiting = Waiting()
    async with manager(waiting.turn) as sessions:
        await sessions.create(CreateSessionRequest(id="s"))
        assert not sessions.cancel("s")
        run = sessions.send("s", "hello")
        assert sessions.get("s").is_running
        with pytest.raises(SessionBusyError):
            sessions.send("s", "again")
        assert sessions.cancel("s")
        assert (await run.result()).status == "cancelled"
        assert not sessions.cancel("s")


async def test_what_is_changed_is_stored_before_the_change_returns(store: SessionStore) -> None:
    """ "rename(title)", "setModel(model)", "setSystemPrompt(prompt)", "reset()", "rewind(messageId)"; here: they persist
    before they return."""
    models = scripted(Turn(text="one"), Turn(text="two"))
    models.register(ScriptedModel(info=ModelInfo(id="other", provider="scripted")))
    async with manager(models=models, store=store) as sessions:
        made = await sessions.create(CreateSessionRequest(id="s"))

        async def stored() -> SessionDetail:
            found = await store.load("s")
            assert found is not None
            return found

        assert (await stored()).id == "s"
        first = sessions.send("s", "first")
        await first.result()
        second = sessions.send("s", "second")
        await second.result()
        await made.rename("Another")
        assert (await stored()).title == "Another"
        await made.set_model("other")
        assert (await stored()).model == "other"
        await made.set_system_prompt("Be kind.")
        assert (await stored()).system_prompt == "Be kind."
        assert second.message_id is not None
        rewound = await made.rewind(second.message_id)
        assert rewound.removed == 2
        assert (await stored()).messages == rewound.messages
        assert [each.content for each in rewound.messages] == ["first", "one"]
        with pytest.raises(RewindError):
            await made.rewind(second.message_id)
        await made.reset()
        assert (await stored()).messages == ()


# Watching them


async def test_subscribers_hear_every_event_of_every_session_in_order() -> None:
    """ "subscribe receives every session event"; "subscribe(listener): () => void"."""
    async with manager(Turn(text="one"), Turn(text="two")) as sessions:
        heard = Heard()
        dispose = sessions.subscribe(heard)
        for id in ("a", "b"):
            made = await sessions.create(CreateSessionRequest(id=id))
            own = Heard()
            made.subscribe(own)
            await sessions.send(id, "hello").result()
            assert own.events == [event for event in heard.events if event.session_id == id][1:]
        for id in ("a", "b"):
            types = heard.types(id)
            assert types[0] == "session.created"
            assert types.index("message.completed") < types.index("run.started") < types.index("end")
            assert types[-2:] == ["run.completed", "session.updated"]
            assert heard.seqs(id) == list(range(1, len(types) + 1))
        before = len(heard.events)
        dispose()
        await sessions.get("a").rename("x")
        assert len(heard.events) == before


async def test_a_subscriber_that_fails_costs_nobody_else_an_event(caplog: pytest.LogCaptureFixture) -> None:
    async with manager() as sessions:
        heard = Heard()

        def fail(event: SessionEvent) -> None:
            raise ZeroDivisionError

        with sessions.subscribe(fail), sessions.subscribe(heard):
            await sessions.create()
        assert heard.types() == ["session.created"]
        assert "ZeroDivisionError" in caplog.text


async def test_what_is_published_reaches_subscribers_like_any_event() -> None:
    """ "publish(event): void; used by adapters/tests": it reaches subscribers like any event, numbered, too."""
    async with manager() as sessions:
        heard, own = Heard(), Heard()
        sessions.subscribe(heard)
        made = await sessions.create(CreateSessionRequest(id="s"))
        made.subscribe(own)
        sessions.publish(Notice(session_id="s", code="hello", message="from an adapter"))
        assert [event.seq for event in heard.events] == [1, 2]
        assert own.types() == ["notice"]
        assert own.events[0] == heard.events[1]


# Vetoing them


async def test_a_guard_vetoes_new_sessions_and_runs(store: SessionStore) -> None:
    """ "addGuard(guard): () => void; veto create/run"."""
    asked: list[SessionGuardContext] = []
    allowed = True

    def guard(context: SessionGuardContext) -> None:
        asked.append(context)
        if not allowed:
            raise SessionGuardError("Not now.", code="quota_exceeded", retry_after_ms=1000)

    async with manager(Turn(text="hi"), Turn(text="hi again"), store=store) as sessions:
        dispose = sessions.add_guard(guard)
        made = await sessions.create(CreateSessionRequest(id="s"), tenant_id="t")
        await sessions.create(CreateSessionRequest(id="other"), tenant_id="u")
        await sessions.send("s", "hello").result()
        assert [(each.action, each.session_id, each.tenant_id, each.sessions, each.running) for each in asked] == [
            ("create", "s", "t", 0, 0),
            ("create", "other", "u", 0, 0),
            ("run", "s", "t", 1, 0),
        ]
        allowed = False
        with pytest.raises(SessionGuardError) as raised:
            await sessions.create(CreateSessionRequest(id="vetoed"), tenant_id="t")
        assert (raised.value.code, raised.value.retry_after_ms) == ("quota_exceeded", 1000)
        assert not sessions.has("vetoed")
        assert await store.load("vetoed") is None
        heard = Heard()
        sessions.subscribe(heard)
        with pytest.raises(SessionGuardError):
            made.start("hello")
        with pytest.raises(SessionGuardError):
            sessions.send("s", "hello")
        assert heard.events == []
        async with made.run("hello") as stream:
            types = [event.type async for event in stream]
        assert types == ["error", "end"]
        assert made.detail().message_count == 2
        dispose()
        await sessions.send("s", "hello").result()


async def test_a_guard_that_breaks_lets_nothing_through() -> None:
    def broken(context: SessionGuardContext) -> None:
        raise ZeroDivisionError

    async with manager() as sessions:
        made = await sessions.create(CreateSessionRequest(id="s"))
        sessions.add_guard(broken)
        with pytest.raises(ZeroDivisionError):
            await sessions.create()
        with pytest.raises(ZeroDivisionError):
            made.start("hello")
        # `run` raises nothing.
        async with made.run("hello") as stream:
            assert [event.type async for event in stream] == ["error", "end"]
        assert not made.is_running
        assert made.detail().message_count == 0
        assert len(sessions.list()) == 1


async def test_guards_are_asked_in_the_order_of_their_coming_up_to_the_first_veto() -> None:
    """ "checkGuards(context): void; throws SessionGuardError"."""
    asked: list[str] = []

    def guard(name: str, veto: bool) -> Callable[[SessionGuardContext], None]:
        def ask(context: SessionGuardContext) -> None:
            asked.append(name)
            if veto:
                raise SessionGuardError(f"{name} says no.")

        return ask

    async with manager() as sessions:
        for name, veto in (("a", False), ("b", True), ("c", True)):
            sessions.add_guard(guard(name, veto))
        context = SessionGuardContext(action="run", session_id="s", tenant_id=None, sessions=0, running=0)
        with pytest.raises(SessionGuardError, match="b says no"):
            sessions.check_guards(context)
    assert asked == ["a", "b"]


async def test_a_quota_holds_however_many_ask_at_once(store: SessionStore) -> None:
    def at_most_two(context: SessionGuardContext) -> None:
        if context.action == "create" and context.sessions >= 2:
            raise SessionGuardError("Too many.")

    made: list[str] = []
    refused: list[str] = []

    async def create(sessions: SessionManager) -> None:
        try:
            made.append((await sessions.create(tenant_id="t")).id)
        except SessionGuardError as error:
            refused.append(error.code)

    async with manager(store=store) as sessions:
        sessions.add_guard(at_most_two)
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(create, sessions)
        assert (len(made), len(refused)) == (2, 6)
        await sessions.create(tenant_id="another")
        await sessions.delete(made[0])
        await sessions.create(tenant_id="t")


async def test_a_guard_is_told_how_many_of_the_tenants_run() -> None:
    waiting = Waiting()
    running: list[tuple[str, int]] = []
    async with manager(waiting.turn, Turn(text="hi")) as sessions:
        for id, tenant in (("a", "t"), ("b", "t"), ("c", "u")):
            await sessions.create(CreateSessionRequest(id=id), tenant_id=tenant)
        sessions.add_guard(lambda context: running.append((context.session_id, context.running)))
        first = sessions.send("a", "hello")
        await waiting.asked.wait()
        await sessions.send("b", "hello").result()
        waiting.event.set()
        await first.result()
    assert running == [("a", 0), ("b", 1)]


# Deleting them


async def test_a_deleted_session_is_gone_from_memory_and_store_and_said(store: SessionStore) -> None:
    """ "delete(id: string): Promise<void>"."""
    waiting = Waiting()
    locker = LocalLocker()
    async with manager(waiting.turn, Turn(text="hi"), store=store, locker=locker) as sessions:
        heard = Heard()
        sessions.subscribe(heard)
        made = await sessions.create(CreateSessionRequest(id="s"))
        run = sessions.send("s", "hello")
        await waiting.asked.wait()
        await sessions.delete("s")
        assert run.done
        assert (await run.result()).status == "cancelled"
        assert heard.types()[-3:] == ["run.cancelled", "session.updated", "session.deleted"]
        assert heard.seqs("s") == list(range(1, len(heard.events) + 1))
        assert not sessions.has("s")
        assert sessions.list() == ()
        assert await store.list() == ()
        with pytest.raises(SessionClosedError):
            made.start("hello")
        with pytest.raises(SessionNotFoundError):
            await sessions.delete("s")
        assert locker._entries == {}
        # The id may be used again, with nothing of the old one.
        again = await sessions.create(CreateSessionRequest(id="s"))
        await sessions.send("s", "hello").result()
        assert again.summary().message_count == 2
        assert heard.events[-1].seq < len(heard.events)


async def test_a_deletion_that_fails_leaves_the_session() -> None:
    class Stubborn(MemorySessionStore):
        fails = True

        async def delete(self, id: str) -> None:
            if self.fails:
                raise StoreError("The disk says no.")
            await super().delete(id)

    store = Stubborn()
    async with manager(Turn(text="hi"), Turn(text="again"), store=store) as sessions:
        heard = Heard()
        sessions.subscribe(heard)
        await sessions.create(CreateSessionRequest(id="s"))
        await sessions.send("s", "hello").result()
        with pytest.raises(StoreError):
            await sessions.delete("s")
        assert sessions.get("s").detail().message_count == 2
        await sessions.send("s", "hello again").result()
        store.fails = False
        await sessions.delete("s")
        assert heard.seqs("s") == list(range(1, len(heard.events) + 1))
        assert heard.types()[-1] == "session.deleted"
        assert heard.types().count("session.deleted") == 1


async def test_a_session_that_is_being_deleted_can_not_be_used_or_made_anew_meanwhile() -> None:
    class Slow(MemorySessionStore):
        def __init__(self) -> None:
            super().__init__()
            self.deleting = anyio.Event()
            self.go_on = anyio.Event()

        async def delete(self, id: str) -> None:
            self.deleting.set()
            await self.go_on.wait()
            await super().delete(id)

    store = Slow()
    async with manager(store=store) as sessions:
        await sessions.create(CreateSessionRequest(id="s"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(sessions.delete, "s")
            await store.deleting.wait()
            with pytest.raises(SessionNotFoundError):
                sessions.send("s", "hello")
            with pytest.raises(SessionNotFoundError):
                await sessions.delete("s")
            with pytest.raises(SessionExistsError):
                await sessions.create(CreateSessionRequest(id="s"))
            store.go_on.set()
        await sessions.create(CreateSessionRequest(id="s"))


async def test_a_deletion_that_is_cancelled_leaves_the_session() -> None:
    stuck = threading.Event()

    @tool()
    def hang() -> str:
        """Never come back by itself."""
        stuck.wait(300)
        return ""

    tools = ToolRegistry()
    tools.register(hang)
    options = SessionOptions(tools=tools, tool_call_timeout=0.5)
    turns = Turn(tool_calls=[Turn.call("hang")]), Turn(text="it hangs"), Turn(text="still there")
    async with manager(*turns, options=options) as sessions:
        await sessions.create(CreateSessionRequest(id="s"))
        await sessions.send("s", "hang").result()
        with anyio.move_on_after(0.1) as scope:
            await sessions.delete("s")
        assert scope.cancelled_caught
        await sessions.send("s", "hello").result()
        stuck.set()
        await sessions.delete("s")
        assert not sessions.has("s")


# Loading and closing them


async def test_stored_sessions_are_loaded_once(store: SessionStore) -> None:
    """ "initialize() loads persisted sessions from the store once"."""
    await store.save(session("tenant-7/one", "a"))
    sessions = manager(store=store)
    assert not sessions.has("tenant-7/one")
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(sessions.initialize)
    loaded = sessions.get("tenant-7/one")
    assert loaded.detail() == session("tenant-7/one", "a")
    await store.save(session("two", "b"))
    await sessions.initialize()
    assert not sessions.has("two")
    assert sessions.get("tenant-7/one") is loaded
    await sessions.close()


async def test_a_session_goes_on_where_it_was_in_another_process(store: SessionStore) -> None:
    """ "initialize() loads persisted sessions", with all that they were: "load(id): SessionDetail"; "detail():
    SessionDetail"."""
    async with manager(Turn(text="one", usage=USAGE), store=store) as sessions:
        await sessions.create(CreateSessionRequest(id="s", system_prompt="Be brief."), tenant_id="t")
        first = sessions.send("s", "first")
        await first.result()
        before = sessions.get("s").detail()
    model = ScriptedModel(Turn(text="two", usage=USAGE))
    models = ModelRegistry()
    models.register(model)
    async with manager(models=models, store=store) as sessions:
        found = sessions.get("s").detail()
        assert found == before.model_copy(update={"updated_at": found.updated_at})
        await sessions.send("s", "second").result()
        detail = sessions.get("s").detail()
    assert [each.content for each in model.requests[0].messages] == ["Be brief.", "first", "one", "second"]
    assert [each.content for each in detail.messages] == ["first", "one", "second", "two"]
    assert (detail.usage.input_tokens, detail.tenant_id) == (20, "t")


async def test_events_are_numbered_on_in_the_next_process_and_replayed_without_thoughts(tmp_path: Path) -> None:
    """Events are numbered per session, from 1, without gaps; a replay of the log skips the numbers of thoughts."""
    store = FileSessionStore(tmp_path)
    heard = Heard()
    for text in ("one", "two"):
        async with manager(Turn(text=text, reasoning="a secret thought"), store=store) as sessions:
            with sessions.subscribe(heard):
                if not sessions.has("s"):
                    await sessions.create(CreateSessionRequest(id="s"))
                run = sessions.send("s", f"say {text}")
                await run.result()
    async with manager(store=store) as sessions:
        with sessions.subscribe(heard):
            assert run.message_id is not None
            await sessions.get("s").rewind(run.message_id)
    assert heard.seqs("s") == list(range(1, len(heard.events) + 1))
    kept = await store.event_log.read("s")
    assert kept == tuple(event for event in heard.events if event.type != "thinking")
    assert [event.type for event in kept][-2:] == ["session.rewound", "session.updated"]
    assert "thinking" in heard.types()
    for path in (tmp_path / "sessions").rglob("*"):
        assert not path.is_file() or b"secret thought" not in path.read_bytes()


async def test_a_session_that_can_not_be_read_stops_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A corrupt one is reported and set aside; it never stops start-up and never blocks a save."""
    store = FileSessionStore(tmp_path)
    for id in ("good", "torn"):
        await store.save(session(id, "a"))
    (tmp_path / "sessions" / "torn" / "session.json").write_bytes(b"")
    async with manager(store=store) as sessions:
        assert [each.id for each in sessions.list()] == ["good"]
        assert "torn" in caplog.text
        await sessions.create(CreateSessionRequest(id="torn"))
    stored = await store.load("torn")
    assert stored is not None


async def test_a_store_that_answers_later_is_loaded_then() -> None:
    class Late(MemorySessionStore):
        there = False

        async def list(self) -> tuple[SessionSummary, ...]:
            if not self.there:
                raise StoreError("The store isn't there yet.")
            return await super().list()

    store = Late()
    await store.save(session("s", "a"))
    sessions = manager(store=store)
    with pytest.raises(StoreError):
        await sessions.initialize()
    store.there = True
    await sessions.initialize()
    assert sessions.has("s")
    await sessions.close()


async def test_a_stored_session_whose_model_is_gone_is_loaded_and_says_so_when_it_is_to_run(
    store: SessionStore,
) -> None:
    await store.save(session("s", "a", model="gone"))
    async with manager(Turn(text="hi"), store=store) as sessions:
        made = sessions.get("s")
        assert made.model == "gone"
        async with made.run("hello") as stream:
            errors = [event.error.code async for event in stream if event.type == "error"]
        assert errors == ["model_not_found"]
        await made.set_model("scripted")
        await sessions.send("s", "hello").result()


async def test_closing_cancels_runs_drops_the_sessions_and_deletes_nothing(store: SessionStore) -> None:
    """ "close() cancels active runs and drops in-memory sessions during runtime shutdown. Nothing is deleted from the
    store"."""
    waiting = Waiting()
    sessions = manager(Turn(text="hi"), waiting.turn, store=store)
    heard = Heard()
    sessions.subscribe(heard)
    await sessions.initialize()
    made = await sessions.create(CreateSessionRequest(id="s"))
    await sessions.send("s", "first").result()
    before = await store.load("s")
    run = sessions.send("s", "second")
    await waiting.asked.wait()
    await sessions.close()
    assert run.done
    assert (await run.result()).status == "cancelled"
    assert sessions.list() == ()
    assert not sessions.has("s")
    after = await store.load("s")
    assert before is not None
    assert after is not None
    assert after.messages == before.messages
    assert "session.deleted" not in heard.types()
    with pytest.raises(SessionNotFoundError):
        sessions.get("s")
    for attempt in (sessions.create, sessions.initialize):
        with pytest.raises(SessionClosedError):
            await attempt()
    with pytest.raises(SessionClosedError):
        made.start("hello")
    await sessions.close()


async def test_no_session_begins_a_run_while_another_is_being_closed() -> None:
    waiting = Waiting()
    sessions = manager(waiting.turn)
    await sessions.initialize()
    made = [await sessions.create() for _ in range(3)]
    refused: list[str] = []

    def again(event: SessionEvent) -> None:
        if event.type == "run.cancelled":
            for each in made:
                with pytest.raises(SessionClosedError):
                    each.start("again")
                refused.append(each.id)

    sessions.subscribe(again)
    made[1].start("hello")
    await waiting.asked.wait()
    await sessions.close()
    assert refused == [each.id for each in made]


async def test_any_task_may_close_while_others_run_and_make_sessions() -> None:
    waiting = [Waiting() for _ in range(5)]
    sessions = manager(*(each.turn for each in waiting))
    await sessions.initialize()
    runs = []
    for number in range(5):
        made = await sessions.create(CreateSessionRequest(id=str(number)))
        runs.append(made.start("hello"))

    async def make_many() -> None:
        while True:
            await sessions.create()
            await anyio.lowlevel.checkpoint()

    async def create() -> None:
        with pytest.raises(SessionClosedError):
            await make_many()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        await anyio.lowlevel.checkpoint()
        tasks.start_soon(sessions.close)
        tasks.start_soon(sessions.close)
    assert [run.done for run in runs] == [True] * 5
    assert sessions.list() == ()


async def test_a_session_that_was_refused_because_of_a_close_is_not_stored_either() -> None:
    """What raised hasn't happened: its id is free for the next process."""
    saving, go_on = anyio.Event(), anyio.Event()

    class SlowStore(MemorySessionStore):
        async def save(self, session: SessionDetail) -> None:
            saving.set()
            await go_on.wait()
            await super().save(session)

    store = SlowStore()
    sessions = manager(store=store)

    async def create() -> None:
        with pytest.raises(SessionClosedError):
            await sessions.create(CreateSessionRequest(id="s"))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(create)
        await saving.wait()
        await sessions.close()
        go_on.set()
    assert await store.list() == ()


async def test_a_cancelled_caller_still_closes_what_it_opened() -> None:
    waiting = Waiting()
    runs = []
    with anyio.CancelScope() as scope:
        async with manager(waiting.turn) as sessions:
            made = await sessions.create()
            runs.append(made.start("hello"))
            scope.cancel()
            await anyio.lowlevel.checkpoint()
    assert scope.cancelled_caught
    assert runs[0].done


async def test_a_session_is_made_before_anybody_asked_for_the_stored_ones(store: SessionStore) -> None:
    await store.save(session("s", "a"))
    sessions = manager(store=store)
    with pytest.raises(SessionExistsError):
        await sessions.create(CreateSessionRequest(id="s"))
    assert sessions.has("s")
    await sessions.close()


# What it is made of


def test_it_knows_nothing_of_files_or_workspaces() -> None:
    """ "depends on ... kernel and ... protocol" alone; here: AgentSession and SessionManager import
    nothing of `workspace`."""
    source = (
        "import sys; import workbench.agent.manager, workbench.agent.session; "
        "print(*sorted(name for name in sys.modules if name.startswith('workbench.')))"
    )
    found = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, cwd=ROOT)
    names = found.stdout.split()
    assert "workbench.agent.manager" in names
    rooms = "workspace|sandbox|checkpoints|review|mounting|state|live|files|timeline|warm|vfs.overlay|vfs.local"
    assert [name for name in names if re.match(rf"workbench\.({rooms})(\.|$)", name)] == []


_LISTENING = """
import sys, anyio
from workbench.agent.manager import SessionManager
from workbench.agent.models import ModelRegistry
from workbench.agent.options import SessionOptions
from workbench.protocol.messages import ToolExecutionResult, ToolSchema
from workbench.testing.scripted_model import ScriptedModel, Turn
from workbench.tools.registry import ToolRegistry

class Tool:
    schema = ToolSchema(name="look", description="", parameters={"type": "object"})
    async def execute(self, args, context):
        return ToolExecutionResult(content="seen")

async def main(store):
    tools = ToolRegistry()
    tools.register(Tool())
    def turns():
        return [Turn(tool_calls=[Turn.call("look")]), Turn(text="done")]
    models = ModelRegistry()
    models.register(ScriptedModel(*turns(), *turns()))
    async with SessionManager(models=models, default_workspace="/w", options=SessionOptions(tools=tools)) as sessions:
        for number in range(2):
            session = await sessions.create()
            if number:
                # What is imported at first use has been by now.
                heard.clear()
            await session.start("hello").result()
            async with session.run_with_messages(session.detail().messages) as stream:
                stream.cancel()
            await session.rename("x")
            if number:
                print(*heard, sep="\\n")
        await sessions.delete(session.id)

heard = []
files = ("open", "os.", "shutil.", "subprocess.", "socket.", "tempfile.", "pathlib.")
sys.addaudithook(lambda event, arguments: event.startswith(files) and heard.append((event, arguments)))
anyio.run(main, None, backend=sys.argv[1])
"""


def test_it_does_no_input_or_output_but_by_its_store_its_locker_and_its_models(anyio_backend: str) -> None:
    """ "It performs no I/O except through SessionStore and the model implementations it is given"."""
    command = [sys.executable, "-c", _LISTENING, anyio_backend]
    found = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env={**os.environ})
    assert found.stdout.strip() == ""


async def test_a_session_over_a_plain_list_of_messages_is_listed_with_what_it_holds(store: SessionStore) -> None:
    await store.save(session("s", "a", usage=USAGE))
    async with manager(store=store) as sessions:
        (summary,) = sessions.list()
        assert (summary.message_count, summary.usage, summary.title) == (len(run("a")), USAGE, "A title, 你好")


async def test_an_id_that_is_none_is_refused() -> None:
    async with manager() as sessions:
        with pytest.raises((OptionsError, ValueError)):
            await sessions.create(CreateSessionRequest(id=""))
