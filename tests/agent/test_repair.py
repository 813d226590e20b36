"""History repair: whatever is stored, each request is one that providers accept, and the store stays as it is."""

from __future__ import annotations

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.agent.support import LONG, Gate, calling, end, pairs, read, shout, talk
from workbench.agent.history import MemoryHistory
from workbench.agent.prompt import create_message, tool_message
from workbench.agent.repair import INTERRUPTED, repaired
from workbench.protocol.messages import ChatMessage
from workbench.testing import Turn
from workbench.tools.base import tool


def reply(*ids: str, content: str = "") -> ChatMessage:
    calls = tuple(Turn.call("shout", {"text": id}, id=id) for id in ids)
    return create_message("assistant", content).model_copy(update={"tool_calls": calls})


def result(id: str, content: str = "ok") -> ChatMessage:
    return tool_message(Turn.call("shout", id=id), content)


USER = create_message("user", "u")
SAID = create_message("assistant", "a")


def test_a_valid_conversation_is_returned_as_it_is() -> None:
    messages = (USER, reply("1", "2", content="x"), result("1"), result("2"), SAID, USER)
    assert all(one is other for one, other in zip(repaired(messages), messages, strict=True))


def test_a_call_without_its_result_gets_one_that_says_so() -> None:
    """A cancel or a kill during a tool: every later request would be refused."""
    fixed = repaired((USER, reply("1", "2"), result("2"), USER))
    assert pairs(fixed) == [("user", "u"), ("assistant", ""), ("tool", INTERRUPTED), ("tool", "ok"), ("user", "u")]
    assert [message.tool_call_id for message in fixed[2:4]] == ["1", "2"]
    assert fixed[2].is_error


def test_results_without_a_call_and_second_results_go() -> None:
    fixed = repaired((result("0"), USER, reply("1"), result("1"), result("1", "again"), result("9"), USER, result("1")))
    assert pairs(fixed) == [("user", "u"), ("assistant", ""), ("tool", "ok"), ("user", "u")]


def test_results_come_in_the_order_of_their_calls() -> None:
    fixed = repaired((USER, reply("1", "2"), result("2", "two"), result("1", "one")))
    assert [message.content for message in fixed[2:]] == ["one", "two"]


@pytest.mark.parametrize("content", ["", " \n"])
def test_messages_without_content_are_never_sent(content: str) -> None:
    """An empty text block that was stored is a permanent refusal. block/buzz 559."""
    messages = (USER, create_message("assistant", content), create_message("user", content), USER)
    assert pairs(repaired(messages)) == [("user", "u"), ("user", "u")]


def test_an_empty_result_gets_a_few_words() -> None:
    assert repaired((USER, reply("1"), result("1", "")))[-1].content == "(no output)"


def test_ids_that_are_there_twice_become_unique_with_their_results() -> None:
    """Some servers number calls from 0 in each reply, and others refuse an id that is there twice."""
    fixed = repaired((USER, reply("call_0"), result("call_0", "a"), reply("call_0"), result("call_0", "b")))
    ids = [call.id for message in fixed for call in message.tool_calls]
    assert len(set(ids)) == 2
    assert [message.tool_call_id for message in fixed if message.role == "tool"] == ids
    assert [message.content for message in fixed if message.role == "tool"] == ["a", "b"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "sent"),
    [("", "unnamed"), ("functions.read file", "functions_read_file"), ("é" * 200, "_" * 64), ("ok", "ok")],
)
async def test_a_made_up_name_that_no_tool_could_have_is_sent_back_as_one_that_could(name: str, sent: str) -> None:
    """Providers refuse such a name in a conversation for good."""
    history = MemoryHistory()
    async with talk(calling(name), Turn(text="I see."), Turn(text="Yes."), history=history) as it:
        assert end(await it.say()) == "stop"
        assert end(await it.say()) == "stop"
    names = [
        [call.name for message in request.messages for call in message.tool_calls] for request in it.model.requests
    ]
    assert names == [[], [sent], [sent]]
    assert [call.name for message in await history.read("talk") for call in message.tool_calls] == [name]


@pytest.mark.anyio
async def test_a_name_that_is_offered_is_sent_back_as_it_is() -> None:
    dotted = tool(name="server.shout")(shout)
    async with talk(calling("server.shout", text="a"), Turn(text="I see."), tools=[dotted]) as it:
        assert end(await it.say()) == "stop"
    assert [call.name for message in it.model.requests[-1].messages for call in message.tool_calls] == ["server.shout"]


MESSAGES = st.lists(
    st.one_of(
        st.sampled_from([USER, SAID, create_message("user", ""), create_message("assistant", " ")]),
        st.lists(st.sampled_from("123"), max_size=3, unique=True).map(lambda ids: reply(*ids)),
        st.sampled_from("123").map(result),
    ),
    max_size=12,
)


@given(MESSAGES)
def test_any_conversation_becomes_one_in_which_each_call_has_its_result(messages: list[ChatMessage]) -> None:
    """Pairs are whole, ids unique, nothing is empty, and repairing again changes nothing."""
    fixed = repaired(messages)
    open_calls: list[str] = []
    for message in fixed:
        if message.role == "tool":
            assert message.tool_call_id == open_calls.pop(0)
        else:
            assert not open_calls
            open_calls = [call.id for call in message.tool_calls]
        assert message.content.strip() or message.tool_calls
    assert not open_calls
    ids = [call.id for message in fixed for call in message.tool_calls]
    assert len(ids) == len(set(ids))
    assert repaired(fixed) == fixed


@pytest.mark.anyio
async def test_a_broken_store_is_repaired_in_the_request_and_left_as_it_is() -> None:
    """ "History repair just before each request, never in the store"."""
    history = MemoryHistory()
    broken = (USER, reply("1"), create_message("assistant", ""))
    await history.append("talk", *broken)
    async with talk(Turn(text="ok"), history=history) as it:
        assert end(await it.say("next")) == "stop"
    assert pairs(it.model.requests[0].messages) == [
        ("user", "u"),
        ("assistant", ""),
        ("tool", INTERRUPTED),
        ("user", "next"),
    ]
    assert (await history.read("talk"))[:3] == broken


@pytest.mark.anyio
async def test_ten_interruptions_in_a_row_leave_a_valid_conversation() -> None:
    """An interrupt during a tool must not corrupt the conversation for good. anthropics/claude-code 3003."""
    history = MemoryHistory()
    for _ in range(10):
        gate = Gate()
        async with talk(calling("gate"), tools=[gate.tool], history=history) as it:
            run = it.session.start("go")
            with anyio.fail_after(LONG):
                await gate.entered.wait()
                run.cancel()
                await run.wait_finished()
    async with talk(calling("shout", text="a"), Turn(text="ok"), tools=[shout], history=history) as it:
        assert end(await read(it.session.run("now"))) == "stop"
    assert [message.role for message in it.model.requests[1].messages] == ["user", "assistant", "tool"]
