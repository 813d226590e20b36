"""A conversation that goes from one provider to the next, with everything each of them refuses in the others' history."""

from __future__ import annotations

import json
from itertools import permutations
from typing import Any

import pytest

from tests.models.asking import FORMATS, TOOL, message, model_at, request, result, said, sent
from workbench.agent.history import MemoryHistory
from workbench.agent.session import AgentSession
from workbench.models.adapter import WireModel
from workbench.protocol.messages import ChatMessage, ToolCall
from workbench.testing import StubCall, StubModelServer, StubReply

pytestmark = pytest.mark.anyio


def marked(kind: type[WireModel]) -> str:
    return f"signature-of-{kind.__name__}/+="


async def turn(stub: StubModelServer, kind: type[WireModel], conversation: list[ChatMessage]) -> None:
    """One turn: a question, two calls, their results, an answer, each reply stored and read again."""
    conversation.append(message("user", f"Question {len(conversation)}."))
    for _ in range(2):
        model = model_at(stub, kind, endpoint={"provider": kind.__name__})
        response = await model.generate(request(*conversation, tools=(TOOL,)))
        conversation.append(ChatMessage.model_validate_json(said(response).model_dump_json()))
        conversation += [result(call, f"result {call.arguments}") for call in response.tool_calls]


def replies(kind: type[WireModel]) -> list[StubReply]:
    calls = [StubCall("add", {"a": 1}), StubCall("add", {"a": 2})]
    return [
        StubReply(reasoning="Hm.", signature=marked(kind), calls=calls),
        StubReply(text=f"Answer of {kind.__name__}."),
    ]


def pairs_of(body: dict[str, Any]) -> tuple[list[Any], list[Any]]:
    """The ids of the calls in a request and of the results, in order; for Gemini, which has none, the names."""
    opened: list[Any] = []
    answered: list[Any] = []
    for item in body.get("messages") or body.get("contents") or body.get("input") or ():
        opened += [call["id"] for call in item.get("tool_calls") or ()]
        answered += [item["tool_call_id"]] if "tool_call_id" in item else []
        opened += [item["call_id"]] if item.get("type") == "function_call" else []
        answered += [item["call_id"]] if item.get("type") == "function_call_output" else []
        blocks = item.get("content") if isinstance(item.get("content"), list) else item.get("parts") or ()
        for block in blocks or ():
            opened += [block["id"]] if block.get("type") == "tool_use" else []
            answered += [block["tool_use_id"]] if block.get("type") == "tool_result" else []
            opened += [block["functionCall"]["name"]] if "functionCall" in block else []
            answered += [block["functionResponse"]["name"]] if "functionResponse" in block else []
    return opened, answered


@pytest.mark.parametrize(("one", "other"), list(permutations(FORMATS, 2)), ids=lambda kind: kind.__name__)
async def test_a_session_goes_on_with_another_provider_and_back(one: type[WireModel], other: type[WireModel]) -> None:
    """xuzhougeng/wisp-science 74."""
    conversation: list[ChatMessage] = [message("system", "Be brief.")]
    with StubModelServer(*replies(one), *replies(other), *replies(one)) as stub:
        for kind in (one, other, one):
            await turn(stub, kind, conversation)
    assert [request.body is not None for request in stub.requests] == [True] * 6
    for asked in stub.requests:
        opened, answered = pairs_of(asked.body)
        assert opened == answered
        if "contents" not in asked.body:
            assert len(set(opened)) == len(opened)
    # What is opaque goes back to whom it came from, and to nobody else.
    for_other, for_one = (json.dumps(stub.requests[number].body) for number in (2, 5))
    assert marked(one) not in for_other
    assert marked(other) not in for_one
    if marked(one) in json.dumps(stub.requests[1].body):
        assert for_one.count(marked(one)) == 2


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
async def test_what_every_provider_refuses_is_never_sent(kind: type[WireModel]) -> None:
    broken = ToolCall(id="name:0", name="add", arguments=None, raw_arguments='{"a": "ha')
    conversation = [
        message("user", "Go."),
        message("assistant", ""),
        message("assistant", " \n", tool_calls=(broken,)),
        result(broken, "", is_error=True),
        message("user", "On."),
    ]
    with StubModelServer(StubReply(text="Fine.")) as stub:
        await model_at(stub, kind).generate(request(*conversation, tools=(TOOL,)))
    body = stub.requests[0].body
    text = json.dumps(body)
    for empty in ('"content": ""', '"content": []', '"text": ""', '"parts": []', '"output": ""', '" \\n"'):
        assert empty not in text
    opened, answered = pairs_of(body)
    assert opened == answered
    assert len(opened) == 1


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
async def test_an_opaque_state_is_the_same_bytes_after_many_turns(kind: type[WireModel]) -> None:
    """Each request holds every earlier reply exactly as the one before held it."""
    conversation: list[ChatMessage] = []
    with StubModelServer(*replies(kind) * 3) as stub:
        for _ in range(3):
            await turn(stub, kind, conversation)
    name = next(name for name in ("messages", "contents", "input") if name in stub.requests[0].body)
    for earlier, later in zip(stub.requests, stub.requests[1:], strict=False):
        before = earlier.body[name]
        assert later.body[name][: len(before)] == before


@pytest.mark.parametrize("kind", FORMATS, ids=lambda kind: kind.__name__)
async def test_a_huge_argument_is_capped_on_the_way_back(kind: type[WireModel]) -> None:
    """Beyond a provider's limit it would poison every later request. UKGovernmentBEIS/inspect_ai 4682."""
    text = json.dumps({"text": "é" * 1_000_000}, ensure_ascii=False)
    call = ToolCall(id="call_1", name="add", arguments=json.loads(text), raw_arguments=text)
    conversation = (message("user", "Go."), message("assistant", tool_calls=(call,)), result(call))
    body = await sent(request(*conversation, tools=(TOOL,)), kind)
    assert 100_000 < len(json.dumps(body, ensure_ascii=False)) < 300_000


@pytest.mark.parametrize(("one", "other"), list(permutations(FORMATS, 2)), ids=lambda kind: kind.__name__)
async def test_a_call_that_was_left_without_its_result_stops_no_provider_after_a_switch(
    one: type[WireModel], other: type[WireModel]
) -> None:
    """One model bears with it, the next refuses the conversation for good; also where both are one provider, of two
    formats. xuzhougeng/wisp-science 74."""
    history = MemoryHistory()
    with StubModelServer(*replies(one)[:1], *[StubReply(text="Fine.")] * 2) as stub:
        response = await model_at(stub, one).generate(request(message("user", "Go."), tools=(TOOL,)))
        answered = result(response.tool_calls[0])
        await history.append("s", message("user", "Go."), said(response), answered)
        for kind in (one, other):
            session = AgentSession.local(id="s", model=model_at(stub, kind), history=history)
            async with session:
                await session.start("On.").result()
    for asked in stub.requests[1:]:
        opened, closed = pairs_of(asked.body)
        assert len(opened) == 2
        assert opened == closed
