"""What becomes of a call: side by side, in turns, validated, permitted, approved."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from tests.agent.support import LONG, Gate, calling, end, of, read, results, shout, talk, the
from tests.waiting import until
from workbench.agent import settings
from workbench.agent.history import MemoryHistory
from workbench.agent.permissions import ApprovalBroker, PermissionRule, PermissionRules, call_digest
from workbench.agent.repair import repaired
from workbench.errors import ApprovalError, OptionsError
from workbench.protocol.messages import ChatMessage, ToolCall, ToolExecutionResult, ToolSchema
from workbench.protocol.sessions import ApprovalRequest
from workbench.testing import ScriptedModel, Turn
from workbench.tools.base import Tool, ToolContext, ToolSession, tool

pytestmark = pytest.mark.anyio


@tool(permission="ask")
def remove(path: str) -> str:
    """Remove."""
    return f"removed {path}"


async def test_calls_whose_tools_allow_it_run_side_by_side_and_results_keep_the_call_order() -> None:
    """Tool calls of one reply run side by side where the tools allow it, results in call order, whichever ended first."""
    first, second = Gate("first", parallel=True), Gate("second", parallel=True)
    turn = Turn(tool_calls=[Turn.call("first"), Turn.call("second")])
    async with talk(turn, Turn(text="ok"), tools=[first.tool, second.tool]) as it:
        run = it.session.start("a")
        with anyio.fail_after(LONG):
            await first.entered.wait()
            await second.entered.wait()
            second.opened.set()
            await second.left.wait()
            for _ in range(20):
                await anyio.lowlevel.checkpoint()
            assert "tool_result" not in it.types()
            first.opened.set()
            await run.result()
    assert [result.name for result in results(it.events)] == ["first", "second"]


async def test_a_tool_that_does_not_allow_it_runs_alone() -> None:
    """A serial call is a barrier: it begins after all before it, and those after it begin after it."""
    log: list[str] = []

    def noting(name: str, parallel: bool) -> Tool:
        @tool(name=name, parallel=parallel)
        async def note() -> str:
            """Note."""
            log.append(f"+{name}")
            for _ in range(10):
                await anyio.lowlevel.checkpoint()
            log.append(f"-{name}")
            return name

        return note

    tools = [noting("a", True), noting("b", True), noting("c", False), noting("d", True)]
    turn = Turn(tool_calls=[Turn.call(name) for name in "abcd"])
    async with talk(turn, Turn(text="ok"), tools=tools) as it:
        events = await it.say()
    assert set(log[:2]) == {"+a", "+b"}
    assert log[4:] == ["+c", "-c", "+d", "-d"]
    assert [result.content for result in results(events)] == ["a", "b", "c", "d"]


async def test_calls_that_share_a_resource_take_turns_in_call_order() -> None:
    """ "calls that share a value take turns", whatever the argument is called."""
    busy: set[str] = set()
    order: list[str] = []
    most = 0

    async def use(number: str, path: str) -> str:
        nonlocal most
        assert path not in busy
        busy.add(path)
        most = max(most, len(busy))
        order.append(number)
        for _ in range(10):
            await anyio.lowlevel.checkpoint()
        busy.discard(path)
        return number

    @tool(parallel=True, resources=["path"])
    async def read_it(number: str, path: str) -> str:
        """Read."""
        return await use(number, path)

    @tool(parallel=True, resources=["target"])
    async def write_it(number: str, target: str) -> str:
        """Write."""
        return await use(number, target)

    calls = [
        Turn.call("read_it", {"number": "1", "path": "x"}),
        Turn.call("write_it", {"number": "2", "target": "x"}),
        Turn.call("read_it", {"number": "3", "path": "y"}),
        Turn.call("read_it", {"number": "4", "path": "x"}),
    ]
    async with talk(Turn(tool_calls=calls), Turn(text="ok"), tools=[read_it, write_it]) as it:
        events = await it.say()
    assert [result.content for result in results(events)] == ["1", "2", "3", "4"]
    assert all(result.ok for result in results(events))
    assert most == 2
    assert [number for number in order if number != "3"] == ["1", "2", "4"]


async def test_one_tool_that_raises_leaves_its_neighbours_to_end() -> None:
    """A panic is that call's result; no sibling is stopped, and none goes on after the run. pydantic/pydantic-ai 4423."""
    gate = Gate(parallel=True)

    @tool(parallel=True)
    async def fail() -> str:
        """Fail."""
        raise RuntimeError("x")

    async with talk(
        Turn(tool_calls=[Turn.call("fail"), Turn.call("gate")]), Turn(text="ok"), tools=[fail, gate.tool]
    ) as it:
        run = it.session.run("a")
        await gate.entered.wait()
        gate.opened.set()
        events = await read(run)
    assert [result.ok for result in results(events)] == [False, True]


async def test_arguments_are_validated_before_the_tool_sees_them_and_the_model_reads_what_is_wrong() -> None:
    """ "The agent loop validates before calling a tool and turns issues into a tool error the model can read."""
    ran: list[object] = []

    class Strict:
        schema = ToolSchema(
            name="strict",
            description="",
            parameters={
                "type": "object",
                "properties": {"items": {"type": "array", "items": {"type": "integer"}}},
                "required": ["items"],
            },
        )

        def execute(self, args: dict[str, Any], context: ToolContext) -> ToolExecutionResult:
            ran.append(args)
            return ToolExecutionResult(content="ran")

    async with talk(calling("strict", items=[1, "x"]), Turn(text="ok"), tools=[Strict()]) as it:
        (result,) = results(await it.say())
    assert ran == []
    assert result.error is not None
    assert result.error.code == "invalid_arguments"
    assert it.model.requests[1].messages[-1].content == "items[1]: 'x' is not of type 'integer'"


async def test_a_tool_gets_the_session_and_one_map_shared_by_all_its_calls() -> None:
    """ "`metadata` is one map per session": "a per-session Map shared by every tool invocation"."""
    seen: list[tuple[str, str, list[str]]] = []

    @tool()
    def count(context: ToolContext) -> str:
        """Count."""
        context.session.metadata["n"] = context.session.metadata.get("n", 0) + 1
        session = context.session
        seen.append((session.id, session.workspace, [message.role for message in session.messages]))
        return str(context.session.metadata["n"])

    async with talk(
        calling("count"), calling("count"), Turn(text="a"), calling("count"), Turn(text="b"), tools=[count]
    ) as it:
        first, second = await it.say(), await it.say()
    assert [result.content for result in results([*first, *second])] == ["1", "2", "3"]
    assert seen[0] == ("talk", "", ["user", "assistant"])
    assert seen[1][2] == ["user", "assistant", "tool", "assistant"]


async def test_a_tool_reports_progress_from_the_event_loop_and_from_its_thread() -> None:
    """ "`tool.progress`": `ToolProgress(call_id, message)`."""

    @tool()
    def threaded(context: ToolContext) -> str:
        """In a thread."""
        context.progress(f"main {threading.current_thread() is threading.main_thread()}")
        return "ok"

    @tool()
    async def looped(context: ToolContext) -> str:
        """In the loop."""
        context.progress("half")
        return "ok"

    async with talk(calling("threaded"), calling("looped"), Turn(text="ok"), tools=[threaded, looped]) as it:
        events = await it.say()
    progress = of(events, "tool.progress")
    assert [event.message for event in progress] == ["main False", "half"]
    assert [event.call_id for event in progress] == [result.call_id for result in results(events)]


async def test_after_tools_is_awaited_once_a_reply_when_all_its_calls_have_ended() -> None:
    """ "after_tools: awaited when all calls of a reply have ended"."""
    seen: list[tuple[ChatMessage, int]] = []

    async def after(message: ChatMessage) -> None:
        seen.append((message, it.types().count("tool_result")))

    calls = [Turn.call("shout", {"text": text}) for text in "ab"]
    async with talk(Turn(tool_calls=calls), Turn(text="ok"), tools=[shout], after_tools=after) as it:
        await it.say()
    ((message, count),) = seen
    assert ([call.id for call in message.tool_calls], count) == ([call.id for call in calls], 2)


async def test_a_silent_tool_gives_the_model_a_few_words() -> None:
    """A silent command's empty result is rejected by providers. dirge-code/dirge 757."""

    @tool()
    def silent() -> None:
        """Say nothing."""

    async with talk(calling("silent"), Turn(text="ok"), tools=[silent]) as it:
        (result,) = results(await it.say())
    assert (result.ok, result.content, result.model_content) == (True, "", "(no output)")
    assert it.model.requests[1].messages[-1].content == "(no output)"


Answer = Literal["auto", "ask", "deny"]


@pytest.mark.parametrize("own", ["auto", "ask"])
@pytest.mark.parametrize("resolved", [None, "auto", "ask", "deny"])
@pytest.mark.parametrize("handler", [None, True, False])
async def test_the_order_of_resolution(
    own: Literal["auto", "ask"], resolved: Answer | None, handler: bool | None
) -> None:
    """ "resolvePermission if provided, otherwise tool.schema.permission ?? "auto". "ask" calls the approval handler; "deny"
    returns an error result without asking"; "without an approval handler what must be asked is denied". "schema.permission:
    "auto" | "ask""."""
    asked: list[ApprovalRequest] = []

    @tool(permission=own)
    def act() -> str:
        """Act."""
        return "done"

    async def approve(request: ApprovalRequest) -> bool:
        asked.append(request)
        return bool(handler)

    options: dict[str, Any] = {}
    if resolved is not None:
        options["resolve_permission"] = lambda tool, call, session: resolved
    if handler is not None:
        options["approve"] = approve
    async with talk(calling("act"), Turn(text="ok"), tools=[act], **options) as it:
        (result,) = results(await it.say())
    permission = resolved or own
    assert result.ok == (permission == "auto" or (permission == "ask" and handler is True))
    assert len(asked) == (permission == "ask" and handler is not None)
    if not result.ok:
        assert result.error is not None
        assert result.error.code == "tool_denied"


async def test_a_resolver_gets_tool_call_and_session_and_may_be_asynchronous() -> None:
    """ "PermissionResolver = (tool, call, session) => ... | Promise"."""
    seen: list[tuple[str, object, str]] = []

    async def resolve(tool: Tool, call: ToolCall, session: ToolSession) -> Answer:
        seen.append((tool.schema.name, call.arguments, session.id))
        return "deny"

    async with talk(calling("shout", text="a"), Turn(text="ok"), tools=[shout], resolve_permission=resolve) as it:
        assert not results(await it.say())[0].ok
    assert seen == [("shout", {"text": "a"}, "talk")]


@pytest.mark.parametrize("bad", ["raises", "nonsense"])
async def test_what_cannot_be_decided_is_denied(bad: str) -> None:
    """Permissions fail closed, and the run goes on."""

    def resolve(tool: Tool, call: ToolCall, session: ToolSession) -> Any:
        if bad == "raises":
            raise RuntimeError("x")
        return "perhaps"

    async with talk(calling("shout", text="a"), Turn(text="ok"), tools=[shout], resolve_permission=resolve) as it:
        events = await it.say()
    (result,) = results(events)
    assert result.error is not None
    assert result.error.code == "tool_denied"
    assert end(events) == "stop"


@pytest.mark.parametrize("bad", ["raises", "truthy"])
async def test_only_a_true_answer_approves(bad: str) -> None:
    """An approval handler that fails, or answers anything but True, has approved nothing. "=> Promise<boolean>"."""

    async def approve(request: ApprovalRequest) -> Any:
        if bad == "raises":
            raise RuntimeError("x")
        return "yes"

    async with talk(calling("remove", path="a"), Turn(text="ok"), tools=[remove], approve=approve) as it:
        events = await it.say()
    assert not results(events)[0].ok
    assert the(events, "approval.resolved").approved is False


async def test_what_runs_is_what_was_approved() -> None:
    """An approval is bound to a digest of tool and arguments: what the handler does to its copy runs nothing else.
    extra-org/extra 139."""

    async def approve(request: ApprovalRequest) -> bool:
        assert request.digest == call_digest(request.tool_call)
        request.tool_call.arguments["path"] = "/"  # type: ignore[index]
        return True

    async with talk(calling("remove", path="a"), Turn(text="ok"), tools=[remove], approve=approve) as it:
        assert results(await it.say())[0].content == "removed a"


async def test_calls_of_unparsable_or_wrong_arguments_are_never_asked_about() -> None:
    """Unparsable arguments fail closed: validated before a person is asked."""

    async def approve(request: ApprovalRequest) -> bool:
        raise AssertionError("asked")

    turn = Turn(tool_calls=[Turn.unparsable("remove", "{"), Turn.call("remove", {"path": 1})])
    async with talk(turn, Turn(text="ok"), tools=[remove], approve=approve) as it:
        events = await it.say()
    assert [result.error.code for result in results(events) if result.error] == ["invalid_arguments"] * 2
    assert of(events, "approval.requested") == []


async def test_several_pending_requests_can_be_answered_in_any_order() -> None:
    """A map by approval id: the last may be answered first, and each answer is of its own request. nesquena/hermes-webui
    527, mastra-ai/mastra 19435."""
    broker = ApprovalBroker()

    @tool(permission="ask", parallel=True)
    def act(what: str) -> str:
        """Act."""
        return what

    calls = [Turn.call("act", {"what": what}) for what in "abc"]
    async with talk(Turn(tool_calls=calls), Turn(text="ok"), tools=[act], approve=broker) as it:
        run = it.session.start("x")
        await until(lambda: len(broker.pending("talk")) == 3)
        assert broker.pending("other") == ()
        for request in reversed(broker.pending()):
            assert request.tool_call.arguments is not None
            approved = request.tool_call.arguments["what"] != "b"
            broker.answer(request.id, approved, digest=request.digest, by="ann")
        with anyio.fail_after(LONG):
            await run.result()
    assert [result.ok for result in results(it.events)] == [True, False, True]
    resolved = of(it.events, "approval.resolved")
    assert {event.request_id for event in resolved} == {
        event.request.id for event in of(it.events, "approval.requested")
    }
    assert {event.by for event in resolved} == {"ann"}


async def test_the_first_answer_counts_and_wrong_ones_are_refused() -> None:
    """ "the first counts; raises ApprovalError": approval_not_found, approval_resolved, approval_changed.
    letta-ai/letta-code 101: an id that is stale answers nothing."""
    broker = ApprovalBroker()
    async with talk(calling("remove", path="a"), Turn(text="ok"), tools=[remove], approve=broker) as it:
        run = it.session.start("x")
        await until(broker.pending)
        (request,) = broker.pending()
        with pytest.raises(ApprovalError) as changed:
            broker.answer(request.id, True, digest="0" * 64, by="bob")
        with pytest.raises(ApprovalError) as unknown:
            broker.answer("approval_0", True, digest=request.digest, by="bob")
        assert broker.pending() == (request,)
        broker.answer(request.id, False, digest=request.digest, by="ann")
        with pytest.raises(ApprovalError) as again:
            broker.answer(request.id, True, digest=request.digest, by="bob")
        with anyio.fail_after(LONG):
            await run.result()
    assert [error.value.code for error in (changed, unknown, again)] == [
        "approval_changed",
        "approval_not_found",
        "approval_resolved",
    ]
    assert not results(it.events)[0].ok


async def test_a_new_message_never_approves() -> None:
    """ "A new message never approves. OpenHands/software-agent-sdk 5092."""
    broker = ApprovalBroker()
    async with talk(calling("remove", path="a"), Turn(text="ok"), Turn(text="2"), tools=[remove], approve=broker) as it:
        run = it.session.start("x")
        await until(broker.pending)
        other = it.session.run("do not run that")
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
        assert len(broker.pending()) == 1
        assert "tool_result" not in it.types()
        (request,) = broker.pending()
        broker.answer(request.id, False, digest=request.digest, by="ann")
        with anyio.fail_after(LONG):
            await run.result()
        await read(other)


@pytest.mark.parametrize("way", ["cancel", "close", "timeout"])
async def test_an_approval_is_resolved_on_every_way_out(way: str) -> None:
    """ "resolved on every way out": nothing stays pending, and a late answer finds it resolved. "ApprovalHandler =
    (request, signal) => Promise<boolean>": cancelled with the run."""
    broker = ApprovalBroker()
    limit = 1.0 if way == "timeout" else LONG
    async with talk(calling("remove", path="a"), tools=[remove], approve=broker, run_timeout=limit) as it:
        run = it.session.start("x")
        await until(broker.pending)
        (request,) = broker.pending()
        with anyio.fail_after(LONG):
            if way == "cancel":
                run.cancel()
            elif way == "close":
                await it.session.close()
            await run.wait_finished()
        resolved = the(it.events, "approval.resolved")
        assert (resolved.request_id, resolved.approved, resolved.by) == (request.id, False, "nobody")
        assert broker.pending() == ()
        with pytest.raises(ApprovalError, match="taken back"):
            broker.answer(request.id, True, digest=request.digest, by="late")


ACTS = ("approve", "refuse", "wrong digest", "new message", "approval turned off", "cancel", "close")
DECIDES = ("approve", "refuse", "cancel", "close")


@pytest.mark.parametrize("second", ACTS)
@pytest.mark.parametrize("first", ACTS)
async def test_what_becomes_of_a_call_that_waits(first: str, second: str) -> None:
    """A state table. A refusal is a result and the run goes on; nothing but an answer answers, and nothing answers twice; a
    call that waits is seen to wait, whatever is said or set meanwhile; none is left without its result.
    OpenHands/software-agent-sdk 1376, 280 and 163."""
    broker, history = ApprovalBroker(), MemoryHistory()
    permission: list[Answer] = ["ask"]
    ran: list[str] = []
    replies = iter([calling("act")])

    @tool()
    def act() -> str:
        """Act."""
        ran.append("act")
        return "done"

    async with talk(
        model=ScriptedModel(*[lambda request: next(replies, Turn(text="ok"))] * 5),
        tools=[act],
        history=history,
        approve=broker,
        resolve_permission=lambda tool, call, session: permission[0],
        consumed=False,
    ) as it:
        run = it.session.start("x")
        await until(broker.pending)
        (request,) = broker.pending()
        decided: list[str] = []
        for what in (first, second):
            with contextlib.suppress(ApprovalError), anyio.fail_after(LONG):
                if what in ("approve", "refuse", "wrong digest"):
                    digest = "0" * 64 if what == "wrong digest" else request.digest
                    broker.answer(request.id, what != "refuse", digest=digest, by="ann")
                elif what == "new message":
                    it.session.run("do not run that")
                elif what == "approval turned off":
                    permission[0] = "auto"
                elif what == "cancel":
                    run.cancel()
                else:
                    await it.session.close()
            decided += [what] if what in DECIDES else []
            if not decided:
                await anyio.lowlevel.checkpoint()
                assert (broker.pending(), ran) == ((request,), [])
        if not decided:
            decided.append("refuse")
            broker.answer(request.id, False, digest=request.digest, by="ann")
        with anyio.fail_after(LONG):
            await run.wait_finished()
            await it.session.wait_idle()
        resolved = the(it.events, "approval.resolved")
    approved = decided[0] == "approve"
    assert (resolved.request_id, resolved.approved) == (request.id, approved)
    assert broker.pending() == ()
    assert len(ran) <= approved
    if not {"cancel", "close"}.intersection(decided):
        assert len(ran) == approved
        assert (await run.result()).end_reason == "stop"
    stored = await history.read("talk")
    assert repaired(stored) == stored


def test_a_digest_is_of_the_name_and_the_arguments_whatever_their_order() -> None:
    """ "digest (over name and canonical arguments)"."""

    def digest(name: str, arguments: dict[str, Any] | None, raw: str = "") -> str:
        return call_digest(ToolCall(id="x", name=name, arguments=arguments, raw_arguments=raw))

    assert digest("a", {"x": 1, "y": [2]}) == digest("a", {"y": [2], "x": 1}, raw="anything")
    others = [
        digest("b", {"x": 1}),
        digest("a", {"x": 2}),
        digest("a", {"x": "1"}),
        digest("a", None, "{"),
        digest("a", {}),
    ]
    assert len({digest("a", {"x": 1}), *others}) == 6


def _call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="x", name=name, arguments=arguments, raw_arguments="")


class _Session:
    id = "talk"


def test_rules_decide_by_tool_and_argument_globs_the_first_that_fits() -> None:
    """ "rules in the user's config by tool and argument glob"."""
    rules = PermissionRules(
        [
            PermissionRule(permission="deny", arguments={"path": "secrets/*"}),
            PermissionRule(permission="auto", tool="remove", arguments={"path": "build/*"}),
            PermissionRule(permission="auto", arguments={"url": "https://example.com/*"}),
            PermissionRule(permission="ask", tool="sh*"),
        ]
    )

    def decide(tool: Tool, call: ToolCall) -> str:
        return rules(tool, call, _Session())  # type: ignore[arg-type]

    assert decide(remove, _call("remove", path="build/a")) == "auto"
    assert decide(remove, _call("remove", path="src/a")) == "ask"
    assert decide(remove, _call("remove", path="secrets/a")) == "deny"
    assert decide(shout, _call("shout", text="a")) == "ask"
    assert decide(remove, _call("remove", url="https://example.com/a")) == "auto"
    assert decide(remove, _call("remove", path="build//a")) == "auto"


@pytest.mark.parametrize("path", ["build/../src/a", "build//../../etc/passwd", "./build/../a", "build/./a"])
def test_a_rule_that_allows_is_not_about_paths_that_leave_what_it_means(path: str) -> None:
    """An argument that only looks as if it fits is asked for."""
    rules = PermissionRules([PermissionRule(permission="auto", arguments={"path": "build/*"})])
    assert rules(remove, _call("remove", path=path), _Session()) == "ask"  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["secrets/a", "./secrets/a", "x/../secrets/a", "secrets//a"])
def test_a_rule_that_denies_is_about_every_way_to_write_the_path(path: str) -> None:
    """A denial can't be walked around."""
    rules = PermissionRules([PermissionRule(permission="deny", arguments={"path": "secrets/*"})])
    assert rules(remove, _call("remove", path=path), _Session()) == "deny"  # type: ignore[arg-type]


def test_what_was_allowed_for_a_session_is_allowed_in_that_session_only() -> None:
    """ "allow for this session"; a rule that denies holds all the same."""
    rules = PermissionRules([PermissionRule(permission="deny", arguments={"path": "secrets/*"})])
    rules.allow_for_session("talk", "remove")

    class Other:
        id = "other"

    def decide(session: object, path: str) -> str:
        return rules(remove, _call("remove", path=path), session)  # type: ignore[arg-type]

    assert decide(_Session(), "a") == "auto"
    assert decide(Other(), "a") == "ask"
    assert decide(_Session(), "secrets/a") == "deny"
    rules.forget("talk")
    assert decide(_Session(), "a") == "ask"


@pytest.mark.parametrize("bad", ['permission = "maybe"', 'tool = "x"', 'permission = "auto"\nglob = "x"'])
def test_rules_that_make_no_sense_are_refused(bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad configuration is a clear error."""
    (tmp_path / "config.toml").write_text(f"[[agent.permissions]]\n{bad}\n")
    monkeypatch.setenv("WORKBENCH_CONFIG", str(tmp_path))
    with pytest.raises(OptionsError, match="permissions"):
        settings.load()


async def test_rules_are_a_resolver() -> None:
    """The rules as what a session's options take."""
    rules = PermissionRules([PermissionRule(permission="auto", tool="remove")])
    async with talk(calling("remove", path="a"), Turn(text="ok"), tools=[remove], resolve_permission=rules) as it:
        assert results(await it.say())[0].ok
