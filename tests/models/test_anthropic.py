"""Anthropic's Messages: blocks, signed thinking, cache marks, counts that are sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tests.models.asking import TOOL, ask, called, fail, message, model_at, request, result, said, sent
from workbench.errors import ModelRequestError
from workbench.models.anthropic import Anthropic
from workbench.models.cache_marks import placed
from workbench.models.catalog import ModelFacts, Prices, facts_of
from workbench.protocol.messages import (
    CacheBreakpoint,
    ChatMessage,
    CompletionRequest,
    ImageAttachment,
    ProviderState,
    Thinking,
    ToolCall,
)
from workbench.testing import StubCall, StubModelServer, StubReply, StubUsage
from workbench.testing.model_formats import Event

pytestmark = pytest.mark.anyio

SHORT, LONG = CacheBreakpoint(), CacheBreakpoint(ttl="1h")
BUDGET = ModelFacts(thinking="budget")
AWKWARD = "Hm — \u2028 “é” \n\n\t 😀 <|x|> \\u00e9"


async def body_of(*messages: ChatMessage, **fields: Any) -> dict[str, Any]:
    options = {name: fields.pop(name) for name in ("facts", "name") if name in fields}
    return await sent(request(*messages, **fields), Anthropic, **options)


def events(*chunks: dict[str, Any]) -> StubReply:
    return StubReply(edit=lambda _: [(chunk["type"], chunk) for chunk in chunks])


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_is_the_same_streamed_and_in_one_piece(stream: bool) -> None:
    reply = StubReply(
        text="Sure.",
        reasoning=AWKWARD,
        signature="c2ln",
        calls=[StubCall("add", {"a": 1}), StubCall("now")],
        usage=StubUsage(input=100, output=9, cache_read=60, cache_write=30),
    )
    response = await ask(reply, Anthropic, stream=stream)
    assert (response.content, response.reasoning) == ("Sure.", AWKWARD)
    assert [(call.name, call.arguments) for call in response.tool_calls] == [("add", {"a": 1}), ("now", {})]
    assert response.finish_reason == "tool_calls"
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (100, 9)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (60, 30)


async def test_what_the_api_requires_is_sent() -> None:
    with StubModelServer(StubReply(text="Hi.")) as stub:
        asked = request(message("system", "Be brief."), message("user", "Hi."), tools=(TOOL,))
        await model_at(stub, Anthropic, name="claude-sonnet-4.6").generate(asked)
    (first,) = stub.requests
    assert first.path == "/v1/messages"
    assert first.headers["anthropic-version"] == "2023-06-01"
    assert first.body["model"] == "claude-sonnet-4-6"
    assert first.body["max_tokens"] > 0
    assert first.body["system"] == [{"type": "text", "text": "Be brief."}]
    assert first.body["tools"] == [{"name": "add", "description": "Add numbers.", "input_schema": TOOL.parameters}]


async def test_all_results_of_a_reply_stand_in_one_message_before_any_text() -> None:
    one, two = called(id="call_1"), called(id="call_2")
    messages = (
        await body_of(
            message("user", "Go."),
            message("assistant", "Both.", tool_calls=(one, two)),
            result(one, "1"),
            result(two, "", is_error=True),
            message("user", "And?"),
        )
    )["messages"]
    assert [one["role"] for one in messages] == ["user", "assistant", "user"]
    assert [block["type"] for block in messages[1]["content"]] == ["text", "tool_use", "tool_use"]
    assert [block["type"] for block in messages[2]["content"]] == ["tool_result", "tool_result", "text"]
    assert messages[2]["content"][0] == {"type": "tool_result", "tool_use_id": "call_1", "content": "1"}
    assert messages[2]["content"][1]["is_error"] is True
    assert messages[2]["content"][1]["content"] == "(no output)"


async def test_messages_of_one_role_side_by_side_are_one() -> None:
    messages = (
        await body_of(message("user", "a"), message("user", "b"), message("assistant", "c"), message("user", "d"))
    )["messages"]
    assert [(one["role"], len(one["content"])) for one in messages] == [("user", 2), ("assistant", 1), ("user", 1)]


async def test_no_empty_text_is_ever_sent() -> None:
    call = called()
    sent_body = await body_of(
        message("system", " "), message("user", ""), message("assistant", " \n", tool_calls=(call,)), result(call, " ")
    )
    assert "system" not in sent_body
    assert [block["type"] for block in sent_body["messages"][1]["content"]] == ["tool_use"]
    for one in sent_body["messages"]:
        for block in one["content"]:
            assert (block.get("text") or block.get("content") or "x").strip()


async def test_events_and_blocks_of_an_unknown_kind_are_ignored() -> None:
    def strange(planned: list[Event]) -> list[Event]:
        odd = [
            {"type": "aurora", "x": 1},
            {"type": "content_block_start", "index": 7, "content_block": {"type": "hologram"}},
            {"type": "content_block_delta", "index": 7, "delta": {"type": "hologram_delta", "text": "no"}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "citations_delta"}},
        ]
        return planned[:3] + [(chunk["type"], chunk) for chunk in odd] + planned[3:]

    assert (await ask(StubReply(text="Hi.", edit=strange), Anthropic)).content == "Hi."


async def test_counts_are_sums_so_far() -> None:
    reply = events(
        {
            "type": "message_start",
            "message": {"usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 1}},
        },
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 4}},
        {
            "type": "message_delta",
            "delta": {"stop_reason": "end_turn"},
            "usage": {"input_tokens": 11, "output_tokens": 7, "output_tokens_details": {"thinking_tokens": 3}},
        },
        {"type": "message_stop"},
    )
    usage = (await ask(reply, Anthropic)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.cache_read_tokens) == (16, 7, 3, 5)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
    ],
)
async def test_each_stop_reason_has_its_word(word: str, reason: str) -> None:
    assert (await ask(StubReply(text="Hi.", finish=word), Anthropic)).finish_reason == reason


async def test_an_overload_in_the_stream_is_retryable_and_says_what_was_used() -> None:
    error = await fail(
        StubReply(text="Hi.", error={"type": "overloaded_error", "message": "Overloaded"}, error_after=4), Anthropic
    )
    assert (error.code, error.status, error.retryable) == ("overloaded", 529, True)
    assert error.usage is not None
    assert error.usage.input_tokens == 10


async def test_a_call_that_the_limit_cut_off_is_never_run() -> None:
    response = await ask(StubReply(calls=[StubCall("write", '{"text": "ha')], finish="length"), Anthropic)
    assert response.tool_calls[0].arguments is None
    nothing = await ask(StubReply(calls=[StubCall("write")], finish="length"), Anthropic)
    assert nothing.tool_calls[0].arguments is None
    assert nothing.finish_reason == "length"


async def replayed(*, stream: bool = True, name: str = "m") -> list[dict[str, Any]]:
    """What comes back of a reply with thinking, once a history has stored it."""
    first = StubReply(text="Sure.", reasoning=AWKWARD, signature="sig/+=" * 40, calls=[StubCall("add", id="toolu_9")])
    with StubModelServer(first, StubReply(text="Done.")) as stub:
        response = await model_at(stub, Anthropic, stream=stream).generate(request(tools=(TOOL,)))
        stored = ChatMessage.model_validate_json(said(response).model_dump_json())
        conversation = (message("user", "Go."), stored, result(response.tool_calls[0]))
        await model_at(stub, Anthropic, name=name, stream=stream).generate(request(*conversation, tools=(TOOL,)))
    blocks: list[dict[str, Any]] = stub.requests[1].body["messages"][1]["content"]
    return blocks


@pytest.mark.parametrize("stream", [True, False])
async def test_thinking_comes_back_byte_for_byte(stream: bool) -> None:
    blocks = await replayed(stream=stream)
    assert blocks[0] == {"type": "thinking", "thinking": AWKWARD, "signature": "sig/+=" * 40}
    assert [block["type"] for block in blocks] == ["thinking", "text", "tool_use"]
    assert blocks[2]["id"] == "toolu_9"


async def test_thinking_of_another_model_is_dropped() -> None:
    assert [block["type"] for block in await replayed(name="other")] == ["text", "tool_use"]


async def test_thinking_without_a_signature_is_never_sent_back() -> None:
    """code-yeongyu/oh-my-openagent 2775."""
    with StubModelServer(StubReply(text="Sure.", reasoning="Hm."), StubReply(text="Done.")) as stub:
        model = model_at(stub, Anthropic)
        response = await model.generate(request())
        await model.generate(request(message("user", "Go."), said(response), message("user", "On.")))
    assert response.reasoning == "Hm."
    assert [block["type"] for block in stub.requests[1].body["messages"][1]["content"]] == ["text"]


async def test_redacted_thinking_comes_back_in_its_place() -> None:
    hidden = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    first = events(
        {"type": "message_start", "message": {}},
        {
            "type": "content_block_start",
            "index": 0,
            "content_block": {"type": "thinking", "thinking": "", "signature": ""},
        },
        {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": "Hm."}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta", "signature": "s1"}},
        {"type": "content_block_start", "index": 1, "content_block": hidden},
        {"type": "content_block_start", "index": 2, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 2, "delta": {"type": "text_delta", "text": "Yes."}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
        {"type": "message_stop"},
    )
    with StubModelServer(first, StubReply(text="Done.")) as stub:
        model = model_at(stub, Anthropic)
        response = await model.generate(request())
        await model.generate(request(message("user", "Go."), said(response), message("user", "On.")))
    assert response.reasoning == "Hm."
    blocks = stub.requests[1].body["messages"][1]["content"]
    assert blocks == [
        {"type": "thinking", "thinking": "Hm.", "signature": "s1"},
        hidden,
        {"type": "text", "text": "Yes."},
    ]


async def test_calls_stand_last_even_where_text_came_behind_them() -> None:
    first = events(
        {"type": "message_start", "message": {}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": "t1", "name": "add"}},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text", "text": "Behind it."}},
        {"type": "message_delta", "delta": {"stop_reason": "tool_use"}},
        {"type": "message_stop"},
    )
    with StubModelServer(first, StubReply(text="Done.")) as stub:
        model = model_at(stub, Anthropic)
        response = await model.generate(request())
        await model.generate(request(message("user", "Go."), said(response), result(response.tool_calls[0])))
    assert [block["type"] for block in stub.requests[1].body["messages"][1]["content"]] == ["text", "tool_use"]


async def test_a_call_that_was_taken_out_of_the_history_is_not_sent_from_the_state() -> None:
    state = ProviderState(provider="lab", model="lab/m", data=b'{"ids":{"call_1":"t1","call_2":"t2"},"blocks":[]}')
    call = called(id="call_2")
    messages = (
        await body_of(
            message("user", "Go."), message("assistant", tool_calls=(call,), provider_state=state), result(call)
        )
    )["messages"]
    assert [block["id"] for block in messages[1]["content"]] == ["t2"]
    assert messages[2]["content"][0]["tool_use_id"] == "t2"


@pytest.mark.parametrize("id", ["fc_" + "x" * 300, "a|b", "name:0", "ümlaut"])
async def test_an_id_of_another_provider_is_made_fit(id: str) -> None:
    call = ToolCall(id=id, name="add", arguments={}, raw_arguments="{}")
    messages = (await body_of(message("user", "Go."), message("assistant", tool_calls=(call,)), result(call)))[
        "messages"
    ]
    sent_id = messages[1]["content"][0]["id"]
    assert sent_id == messages[2]["content"][0]["tool_use_id"]
    assert 0 < len(sent_id) <= 64
    assert sent_id.replace("_", "").replace("-", "").isascii()
    assert "|" not in sent_id
    assert ":" not in sent_id


async def test_thinking_is_asked_for_in_the_form_that_the_model_takes() -> None:
    newer = await body_of(thinking=Thinking.by_effort("high"))
    assert newer["thinking"]["type"] == "adaptive"
    assert newer["output_config"] == {"effort": "high"}
    older = await body_of(facts=BUDGET, thinking=Thinking.by_effort("low"), max_tokens=16_384)
    assert older["thinking"]["type"] == "enabled"
    assert 1024 <= older["thinking"]["budget_tokens"] < 16_384
    exact = await body_of(facts=BUDGET, thinking=Thinking.by_budget(5000), max_tokens=16_384)
    assert exact["thinking"]["budget_tokens"] == 5000


@pytest.mark.parametrize(
    ("facts", "fields"),
    [
        (ModelFacts(), {"thinking": Thinking.by_budget(5000)}),
        (BUDGET, {"thinking": Thinking.by_budget(500), "max_tokens": 9000}),
        (BUDGET, {"thinking": Thinking.by_budget(9000), "max_tokens": 9000}),
        (BUDGET, {"thinking": Thinking.by_effort("low"), "max_tokens": 100}),
        (ModelFacts(supports_reasoning=False), {"thinking": Thinking.by_effort("low")}),
    ],
)
async def test_thinking_that_cannot_be_had_is_refused_and_never_ignored(
    facts: ModelFacts, fields: dict[str, Any]
) -> None:
    """ "llm/codex rejects Thinking with llm.ErrInvalidRequest"; here: any API that can't do it raises `invalid_request`."""
    with StubModelServer() as stub, pytest.raises(ModelRequestError) as caught:
        await model_at(stub, Anthropic, facts=facts).generate(request(**fields))
    assert (caught.value.code, caught.value.retryable) == ("invalid_request", False)
    assert caught.value.hint
    assert not stub.requests


async def test_marks_go_on_the_last_block_that_can_carry_one() -> None:
    call = called()
    body = await body_of(
        message("system", "Be brief.", cache_breakpoint=LONG),
        message("user", "Go."),
        message("assistant", "Yes.", tool_calls=(call,)),
        result(call, cache_breakpoint=SHORT),
    )
    assert body["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    assert body["messages"][2]["content"][0]["cache_control"] == {"type": "ephemeral"}
    assert str(body).count("cache_control") == 2


async def test_a_mark_is_never_on_thinking() -> None:
    state = ProviderState(
        provider="lab",
        model="lab/m",
        data=b'{"blocks":[{"type":"text","text":"Yes."},{"type":"thinking","thinking":"","signature":"s"}]}',
    )
    marked = message("assistant", "Yes.", provider_state=state, cache_breakpoint=SHORT)
    blocks = (await body_of(message("user", "Go."), marked, message("user", "On.")))["messages"][1]["content"]
    assert [("cache_control" in block) for block in blocks] == [True, False]


def test_at_most_four_marks_are_placed() -> None:
    marks = placed([SHORT] * 7)
    assert [mark is not None for mark in marks] == [True, False, False, False, True, True, True]


def test_no_long_mark_stands_behind_a_short_one() -> None:
    ttls = [mark and mark.get("ttl", "5m") for mark in placed([LONG, SHORT, None, LONG])]
    assert ttls == ["1h", "5m", None, "5m"]


async def test_images_go_into_messages_and_results() -> None:
    image = ImageAttachment(media_type="image/png", data=b"\x89PNG")
    call = called()
    messages = (
        await body_of(
            message("user", "Look.", images=(image,)),
            message("assistant", tool_calls=(call,)),
            result(call, images=(image,)),
        )
    )["messages"]
    source = {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}
    assert messages[0]["content"] == [{"type": "image", "source": source}, {"type": "text", "text": "Look."}]
    assert [block["type"] for block in messages[2]["content"][0]["content"]] == ["text", "image"]


async def test_an_argument_that_could_not_be_read_goes_back_as_an_object() -> None:
    call = ToolCall(id="call_1", name="add", arguments=None, raw_arguments='{"a": ')
    messages = (await body_of(message("user", "Go."), message("assistant", tool_calls=(call,)), result(call)))[
        "messages"
    ]
    assert messages[1]["content"][0]["input"] == {"unparsable_arguments": '{"a": '}


async def test_the_cost_follows_the_prices_where_they_are_known() -> None:
    prices = Prices(input=3, output=15, cache_read=0.3, cache_write=3.75)
    usage = StubUsage(input=1_000_000, output=100_000, cache_read=400_000, cache_write=200_000)
    response = await ask(StubReply(text="Hi.", usage=usage), Anthropic, facts=ModelFacts(prices=prices))
    assert response.usage.cost_usd == pytest.approx(0.4 * 3 + 0.4 * 0.3 + 0.2 * 3.75 + 0.1 * 15)
    assert (await ask(StubReply(text="Hi.", usage=usage), Anthropic)).usage.cost_usd is None


async def test_what_is_cached_for_an_hour_has_its_own_price() -> None:
    facts = ModelFacts(prices=Prices(input=3, output=15, cache_write=3.75, cache_write_1h=6))

    def hour(planned: list[Event]) -> list[Event]:
        name, first = planned[0]
        first["message"]["usage"]["cache_creation"] = {
            "ephemeral_5m_input_tokens": 0,
            "ephemeral_1h_input_tokens": 1000,
        }
        return [(name, first), *planned[1:]]

    reply = StubReply(text="Hi.", usage=StubUsage(input=1000, output=0, cache_write=1000))
    assert (await ask(reply, Anthropic, facts=facts)).usage.cost_usd == pytest.approx(0.00375)
    assert (await ask(replace(reply, edit=hour), Anthropic, facts=facts)).usage.cost_usd == pytest.approx(0.006)


def test_a_long_request_has_the_price_of_one() -> None:
    facts = facts_of("anthropic/claude-sonnet-4-5")
    from workbench.protocol.messages import Usage

    assert facts.cost(Usage(input_tokens=100_000, output_tokens=0)) == pytest.approx(0.3)
    assert facts.cost(Usage(input_tokens=300_000, output_tokens=0)) == pytest.approx(1.8)


async def test_requests_of_one_conversation_share_their_beginning() -> None:
    """What a cache needs: the next request starts with all of the one before."""
    call = called()
    first = request(message("system", "Be brief."), message("user", "Go."), tools=(TOOL,))
    longer = CompletionRequest(
        model="m", messages=(*first.messages, message("assistant", tool_calls=(call,)), result(call)), tools=(TOOL,)
    )
    one, two = await sent(first, Anthropic), await sent(longer, Anthropic)
    assert one["tools"] == two["tools"]
    assert one["system"] == two["system"]
    assert two["messages"][: len(one["messages"])] == one["messages"]
