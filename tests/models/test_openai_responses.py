"""OpenAI's Responses: items that come back, reasoning that stays encrypted."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.asking import TOOL, ask, called, fail, message, model_at, request, result, said, sent
from workbench.errors import ModelRequestError
from workbench.models.catalog import ModelFacts
from workbench.models.openai_responses import OpenAIResponses
from workbench.protocol.messages import ChatMessage, ImageAttachment, Thinking
from workbench.testing import StubCall, StubModelServer, StubReply, StubUsage
from workbench.testing.model_formats import Event

pytestmark = pytest.mark.anyio


async def replayed(first: StubReply, *, drop: int = 0, name: str = "m") -> tuple[ChatMessage, list[dict[str, Any]]]:
    """A reply as a history stored it, less its last `drop` calls, and the input of the request after it."""
    with StubModelServer(first, StubReply(text="Done.")) as stub:
        response = await model_at(stub, OpenAIResponses).generate(request())
        stored = ChatMessage.model_validate_json(said(response).model_dump_json())
        kept = stored.tool_calls[: len(stored.tool_calls) - drop]
        stored = stored.model_copy(update={"tool_calls": kept})
        asked = request(message("user", "Go."), stored, *map(result, kept), message("user", "On."))
        await model_at(stub, OpenAIResponses, name=name).generate(asked)
    items: list[dict[str, Any]] = stub.requests[1].body["input"]
    return stored, items


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_is_the_same_streamed_and_in_one_piece(stream: bool) -> None:
    reply = StubReply(
        text="Sure.",
        reasoning="Hm hm.",
        signature="b3BhcXVl",
        calls=[StubCall("add", {"a": 1}), StubCall("now")],
        usage=StubUsage(input=100, output=9, reasoning=4, cache_read=60),
    )
    response = await ask(reply, OpenAIResponses, stream=stream)
    assert (response.content, response.reasoning) == ("Sure.", "Hm hm.")
    assert [(call.name, call.arguments) for call in response.tool_calls] == [("add", {"a": 1}), ("now", {})]
    assert response.finish_reason == "tool_calls"
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.cache_read_tokens) == (100, 9, 4, 60)


async def test_nothing_is_stored_there_and_reasoning_is_asked_for_encrypted() -> None:
    body = await sent(
        request(message("system", "Be brief."), message("user", "Hi."), tools=(TOOL,), max_tokens=99), OpenAIResponses
    )
    assert body["store"] is False
    assert body["include"] == ["reasoning.encrypted_content"]
    assert body["instructions"] == "Be brief."
    assert body["max_output_tokens"] == 99
    assert body["tools"][0]["name"] == "add"
    plain = await sent(request(), OpenAIResponses, facts=ModelFacts(supports_reasoning=False))
    assert "include" not in plain


async def test_reasoning_comes_back_byte_for_byte_before_what_followed_it() -> None:
    secret = "gAAA/+=" * 100
    _, items = await replayed(
        StubReply(reasoning="Hm — “é”.", signature=secret, calls=[StubCall("add", {"a": 1}, id="call_x")])
    )
    kinds = [item.get("type", item.get("role")) for item in items]
    assert kinds == ["user", "reasoning", "function_call", "function_call_output", "user"]
    assert items[1]["encrypted_content"] == secret
    assert items[1]["summary"] == [{"type": "summary_text", "text": "Hm — “é”."}]
    assert items[2]["call_id"] == items[3]["call_id"] == "call_x"


async def test_reasoning_without_its_following_item_is_left_out() -> None:
    _, items = await replayed(StubReply(signature="c2ln", calls=[StubCall("add")]), drop=1)
    assert [item.get("type", item.get("role")) for item in items] == ["user", "user"]


async def test_items_of_another_model_are_made_anew() -> None:
    _, items = await replayed(StubReply(text="Yes.", signature="c2ln", calls=[StubCall("add")]), name="other")
    assert [item.get("type", item.get("role")) for item in items] == [
        "user",
        "assistant",
        "function_call",
        "function_call_output",
        "user",
    ]
    assert "id" not in items[2]


async def test_a_reply_that_hit_its_limit_is_incomplete() -> None:
    response = await ask(StubReply(text="Half of", finish="length"), OpenAIResponses)
    assert (response.content, response.finish_reason) == ("Half of", "length")
    cut = await ask(StubReply(calls=[StubCall("write", '{"text": "ha')], finish="length"), OpenAIResponses)
    assert cut.tool_calls[0].arguments is None


async def test_a_filtered_reply_says_so() -> None:
    assert (await ask(StubReply(text="I", finish="content_filter"), OpenAIResponses)).finish_reason == "content_filter"


async def test_a_response_that_failed_is_an_error() -> None:
    def failed(planned: list[Event]) -> list[Event]:
        response = {
            "status": "failed",
            "error": {"code": "server_error", "message": "Broken."},
            "usage": {"input_tokens": 7},
        }
        return [*planned[:2], ("response.failed", {"type": "response.failed", "response": response})]

    error = await fail(StubReply(text="Hi.", edit=failed), OpenAIResponses)
    assert (error.code, error.retryable) == ("overloaded", True)
    assert "Broken." in error.message
    assert error.usage is not None
    assert error.usage.input_tokens == 7


async def test_an_error_event_is_an_error() -> None:
    error = await fail(
        StubReply(text="Hi.", error={"code": "rate_limit_exceeded", "message": "Slow."}), OpenAIResponses
    )
    assert (error.code, error.status) == ("rate_limited", 429)


async def test_items_that_were_never_streamed_are_taken_from_the_end() -> None:
    reply = StubReply(text="Hi.", reasoning="Hm.", calls=[StubCall("add", {"a": 1})], edit=lambda planned: planned[-1:])
    response = await ask(reply, OpenAIResponses)
    assert (response.content, response.reasoning) == ("Hi.", "Hm.")
    assert [call.arguments for call in response.tool_calls] == [{"a": 1}]


async def test_arguments_are_taken_whole_where_their_pieces_are_missing() -> None:
    def whole_only(planned: list[Event]) -> list[Event]:
        return [event for event in planned if "arguments.d" not in event[0] or event[0].endswith("done")]

    response = await ask(StubReply(calls=[StubCall("add", {"a": 1})], edit=whole_only), OpenAIResponses)
    assert response.tool_calls[0].arguments == {"a": 1}


async def test_a_refusal_is_text_that_was_filtered() -> None:
    body = {
        "status": "completed",
        "output": [{"type": "message", "id": "m", "content": [{"type": "refusal", "refusal": "I won't."}]}],
    }
    response = await ask(StubReply(body=json.dumps(body).encode()), OpenAIResponses)
    assert (response.content, response.finish_reason) == ("I won't.", "content_filter")


async def test_a_result_is_never_empty_and_may_hold_images() -> None:
    call = called()
    image = ImageAttachment(media_type="image/png", data=b"\x89PNG")
    asked = request(message("user", "Go."), message("assistant", tool_calls=(call,)), result(call, ""))
    assert (await sent(asked, OpenAIResponses))["input"][2]["output"] == "(no output)"
    shown = request(message("user", "Go."), message("assistant", tool_calls=(call,)), result(call, "", images=(image,)))
    (part,) = (await sent(shown, OpenAIResponses))["input"][2]["output"]
    assert part["image_url"] == "data:image/png;base64,iVBORw=="


async def test_thinking_is_by_effort_only() -> None:
    body = await sent(request(thinking=Thinking.by_effort("medium")), OpenAIResponses)
    assert body["reasoning"] == {"effort": "medium", "summary": "auto"}
    with StubModelServer() as stub, pytest.raises(ModelRequestError) as caught:
        await model_at(stub, OpenAIResponses).generate(request(thinking=Thinking.by_budget(2000)))
    assert caught.value.code == "invalid_request"
