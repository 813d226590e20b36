"""OpenRouter: errors behind a 200, the cost, the backend, signed reasoning, cache marks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.asking import ask, called, delta, fail, message, model_at, replaced, request, result, said, sent
from workbench.models.openrouter import OpenRouter
from workbench.protocol.messages import CacheBreakpoint, ChatMessage, Thinking
from workbench.testing import StubModelServer, StubReply, StubUsage

pytestmark = pytest.mark.anyio

CLAUDE = "anthropic/claude-sonnet-4.6"
MARK = {"type": "ephemeral"}


def body(**fields: Any) -> StubReply:
    return StubReply(body=json.dumps(fields).encode())


async def test_the_cost_and_the_backend_are_the_routers_own() -> None:
    response = await ask(StubReply(text="Hi.", usage=StubUsage(cost=0.0123, cache_read=3, cache_write=2)), OpenRouter)
    usage = response.usage
    assert (usage.cost_usd, usage.provider) == (0.0123, "Backend")
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (3, 2)


async def test_with_a_key_of_ones_own_the_backends_cost_is_added() -> None:
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.01, "is_byok": True}
    known = {**usage, "cost_details": {"upstream_inference_cost": 0.2}}
    for said_usage, cost in ((known, 0.21), (usage, None)):
        reply = StubReply(edit=replaced(delta("stop", content="Hi."), {"choices": [], "usage": said_usage}))
        assert (await ask(reply, OpenRouter)).usage.cost_usd == (None if cost is None else pytest.approx(cost))


async def test_the_usage_is_asked_for() -> None:
    assert (await sent(request(), OpenRouter))["usage"] == {"include": True}


@pytest.mark.parametrize("choices", [[], None, [{"index": 0, "delta": {"content": ""}, "finish_reason": "error"}]])
async def test_an_error_after_the_first_token_is_an_error(choices: Any) -> None:
    chunk = {"error": {"code": 502, "message": "Gone", "metadata": {"raw": "upstream said so"}}, "choices": choices}
    error = await fail(StubReply(edit=replaced(delta(content="Hi."), chunk)), OpenRouter)
    assert (error.code, error.retryable) == ("overloaded", True)
    assert "upstream said so" in error.message


async def test_a_finish_that_is_an_error_without_words_is_an_error() -> None:
    error = await fail(StubReply(edit=replaced(delta("error", content=""))), OpenRouter)
    assert error.retryable


async def test_a_backends_network_error_dressed_as_a_stop_is_an_error() -> None:
    chunk = {"choices": [{"delta": {"content": ""}, "finish_reason": "stop", "native_finish_reason": "network_error"}]}
    error = await fail(StubReply(edit=replaced(chunk)), OpenRouter)
    assert (error.code, error.retryable) == ("overloaded", True)
    assert "network_error" in error.message


@pytest.mark.parametrize("status", [400, 401, 402, 403, 408, 429, 502, 503])
async def test_an_error_before_the_first_token_has_its_status(status: int) -> None:
    error = await fail(StubReply(status=status, text="No."), OpenRouter)
    assert error.status == status
    assert error.retryable == (status in (408, 429, 502, 503))


async def test_a_body_of_nulls_with_an_error_is_that_error() -> None:
    error = await fail(body(id=None, choices=None, usage=None, error={"code": 429, "message": "Busy"}), OpenRouter)
    assert (error.code, error.status) == ("rate_limited", 429)


async def test_a_body_without_choices_or_error_is_an_error() -> None:
    assert (await fail(body(id=None, choices=None, provider=None), OpenRouter)).code == "incomplete_stream"


async def test_a_reply_nested_in_the_providers_name_is_found() -> None:
    nested = {"choices": [{"message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}]}
    assert (await ask(body(id=None, choices=None, provider=nested), OpenRouter)).content == "Hi."


async def test_malformed_json_is_a_passing_error() -> None:
    error = await fail(StubReply(body=b'{"choices": [{"mess'), OpenRouter)
    assert (error.code, error.retryable) == ("incomplete_stream", True)


async def test_reasoning_details_come_back_unchanged() -> None:
    pieces = [
        {"type": "reasoning.text", "text": "Let me ", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.text", "text": "see.", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.text", "signature": "c2ln/+=", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.encrypted", "data": "b3Bh", "id": "rs_1", "format": "openai-responses-v1", "index": 1},
        {"type": "reasoning.encrypted", "data": "cXVl", "id": "rs_2", "format": "openai-responses-v1", "index": 1},
    ]
    chunks = [delta(reasoning=piece.get("text", ""), reasoning_details=[piece]) for piece in pieces]
    call = {"index": 0, "id": "toolu_1", "function": {"name": "add", "arguments": "{}"}}
    first = StubReply(edit=replaced(*chunks, delta("tool_calls", tool_calls=[call])))
    with StubModelServer(first, StubReply(text="Done.")) as stub:
        model = model_at(stub, OpenRouter, name=CLAUDE)
        response = await model.generate(request())
        stored = ChatMessage.model_validate_json(said(response).model_dump_json())
        await model.generate(request(message("user", "Go."), stored, result(response.tool_calls[0])))
    assert response.reasoning == "Let me see."
    assert stub.requests[1].body["messages"][1]["reasoning_details"] == [
        {
            "type": "reasoning.text",
            "text": "Let me see.",
            "format": "anthropic-claude-v1",
            "index": 0,
            "signature": "c2ln/+=",
        },
        *pieces[3:],
    ]


async def test_reasoning_that_is_only_in_the_details_is_shown() -> None:
    detail = {"type": "reasoning.summary", "summary": "Thought of it.", "index": 0}
    response = await ask(
        StubReply(edit=replaced(delta(reasoning_details=[detail]), delta("stop", content="Yes."))), OpenRouter
    )
    assert response.reasoning == "Thought of it."


async def test_thinking_is_by_effort_or_by_budget() -> None:
    """ "llm.ThinkingByEffort(...) or llm.ThinkingByBudget(tokens)"."""
    assert (await sent(request(thinking=Thinking.by_effort("high")), OpenRouter))["reasoning"] == {"effort": "high"}
    assert (await sent(request(thinking=Thinking.by_budget(2000)), OpenRouter))["reasoning"] == {"max_tokens": 2000}


async def test_marks_stand_on_the_last_text_part_for_models_that_take_them() -> None:
    """ "Anthropic and Gemini models on OpenRouter honour them; providers that cache on their own (OpenAI, most open models)
    ignore them"."""
    call = called()
    asked = request(
        message("system", "Be brief.", cache_breakpoint=CacheBreakpoint(ttl="1h")),
        message("user", "Go."),
        message("assistant", tool_calls=(call,)),
        result(call, cache_breakpoint=CacheBreakpoint()),
    )
    messages = (await sent(asked, OpenRouter, name=CLAUDE))["messages"]
    hour = {"type": "ephemeral", "ttl": "1h"}
    assert messages[0]["content"] == [{"type": "text", "text": "Be brief.", "cache_control": hour}]
    assert messages[3]["content"] == [{"type": "text", "text": "3", "cache_control": MARK}]
    assert messages[1]["content"] == "Go."
    gemini = (await sent(asked, OpenRouter, name="google/gemini-3-pro-preview"))["messages"]
    assert gemini[0]["content"][0]["cache_control"] == MARK
    other = (await sent(asked, OpenRouter, name="openai/gpt-5"))["messages"]
    assert "cache_control" not in json.dumps(other)


async def test_a_mark_on_a_reply_of_calls_alone_is_left_out() -> None:
    call = called()
    asked = request(message("assistant", tool_calls=(call,), cache_breakpoint=CacheBreakpoint()), result(call))
    assert (await sent(asked, OpenRouter, name=CLAUDE))["messages"][0]["content"] is None


async def test_what_may_answer_is_sent_as_it_is() -> None:
    routing = {"provider": {"order": ["a", "b"]}, "models": ["x/y"]}
    asked = await sent(request(), OpenRouter, routing=routing)
    assert {name: asked[name] for name in routing} == routing


async def test_images_of_the_reply_are_taken() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}
    response = await ask(StubReply(edit=replaced(delta("stop", content="Here.", images=[image]))), OpenRouter)
    assert [(one.media_type, one.data) for one in response.images] == [("image/png", b"\x89PNG")]
