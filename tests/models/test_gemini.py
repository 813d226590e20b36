"""Gemini: whole calls, thought signatures that must come back, counts that are sums."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.asking import TOOL, ask, called, fail, message, model_at, replaced, request, result, said, sent
from workbench.errors import ModelRequestError
from workbench.models.catalog import ModelFacts
from workbench.models.gemini import Gemini
from workbench.protocol.messages import ChatMessage, ImageAttachment, Thinking
from workbench.testing import StubCall, StubModelServer, StubReply, StubUsage

pytestmark = pytest.mark.anyio


def chunk(*parts: dict[str, Any], finish: str | None = None, **fields: Any) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0, "content": {"role": "model", "parts": list(parts)}}
    return {"candidates": [{**candidate, **({"finishReason": finish} if finish else {})}], **fields}


def chunks(*planned: dict[str, Any]) -> StubReply:
    return StubReply(edit=replaced(*planned, done=False))


async def turned(first: StubReply, *, calls: bool = True, name: str = "m") -> list[dict[str, Any]]:
    """The contents of the request after a reply, once a history has stored it."""
    with StubModelServer(first, StubReply(text="Done.")) as stub:
        response = await model_at(stub, Gemini).generate(request())
        stored = ChatMessage.model_validate_json(said(response).model_dump_json())
        after = [result(call, f"r{number}") for number, call in enumerate(response.tool_calls)]
        asked = request(message("user", "Go."), stored, *(after if calls else [message("user", "On.")]))
        await model_at(stub, Gemini, name=name).generate(asked)
    contents: list[dict[str, Any]] = stub.requests[1].body["contents"]
    return contents


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_is_the_same_streamed_and_in_one_piece(stream: bool) -> None:
    reply = StubReply(
        text="Sure.",
        reasoning="Hm hm.",
        calls=[StubCall("add", {"a": 1}), StubCall("add", {"a": 2}), StubCall("now")],
        usage=StubUsage(input=100, output=9, reasoning=4, cache_read=60),
    )
    response = await ask(reply, Gemini, stream=stream)
    assert (response.content, response.reasoning) == ("Sure.", "Hm hm.")
    assert [call.arguments for call in response.tool_calls] == [{"a": 1}, {"a": 2}, {}]
    assert len({call.id for call in response.tool_calls}) == 3
    assert response.finish_reason == "tool_calls"
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.cache_read_tokens) == (100, 9, 4, 60)


async def test_what_the_api_takes_is_sent() -> None:
    asked = request(
        message("system", "Be brief."), message("user", "Hi."), tools=(TOOL,), max_tokens=9, temperature=0.5
    )
    with StubModelServer(StubReply(text="Hi.")) as stub:
        await model_at(stub, Gemini, name="gemini-3-pro").generate(asked)
    (first,) = stub.requests
    assert first.path == "/v1beta/models/gemini-3-pro:streamGenerateContent?alt=sse"
    assert first.body["systemInstruction"] == {"parts": [{"text": "Be brief."}]}
    assert first.body["contents"] == [{"role": "user", "parts": [{"text": "Hi."}]}]
    (declared,) = first.body["tools"][0]["functionDeclarations"]
    assert (declared["name"], declared["parametersJsonSchema"]) == ("add", TOOL.parameters)
    assert first.body["generationConfig"] == {"maxOutputTokens": 9, "temperature": 0.5}


async def test_a_signature_comes_back_inside_its_own_part() -> None:
    """RooCodeInc/Roo-Code 9499."""
    contents = await turned(StubReply(text="Sure.", signature="c2ln/+=", calls=[StubCall("add", {"a": 1})]))
    assert contents[1] == {
        "role": "model",
        "parts": [
            {"text": "Sure."},
            {"functionCall": {"name": "add", "args": {"a": 1}}, "thoughtSignature": "c2ln/+="},
        ],
    }


async def test_calls_side_by_side_stay_in_one_content_and_so_do_their_results() -> None:
    """pipecat-ai/pipecat 3290."""
    calls = [StubCall("add", {"a": 1}), StubCall("add", {"a": 2})]
    contents = await turned(StubReply(signature="c2ln", calls=calls))
    assert [content["role"] for content in contents] == ["user", "model", "user"]
    assert ["thoughtSignature" in part for part in contents[1]["parts"]] == [True, False]
    assert [part["functionResponse"]["response"] for part in contents[2]["parts"]] == [
        {"output": "r0"},
        {"output": "r1"},
    ]
    assert {part["functionResponse"]["name"] for part in contents[2]["parts"]} == {"add"}


async def test_a_signature_on_a_last_part_without_text_comes_back_there() -> None:
    contents = await turned(StubReply(text="All of it.", signature="c2ln"), calls=False)
    assert contents[1]["parts"] == [{"text": "All of it."}, {"text": "", "thoughtSignature": "c2ln"}]


async def test_texts_are_never_merged_across_a_signature() -> None:
    first = chunks(
        chunk({"text": "a"}),
        chunk({"text": "b", "thoughtSignature": "s1"}),
        chunk({"text": "c"}),
        chunk({"text": "d"}, finish="STOP"),
    )
    contents = await turned(first, calls=False)
    assert contents[1]["parts"] == [{"text": "a"}, {"text": "b", "thoughtSignature": "s1"}, {"text": "cd"}]


async def test_a_call_of_another_model_gets_the_documented_signature() -> None:
    one, two = called(id="call_1"), called(id="call_2")
    asked = request(message("user", "Go."), message("assistant", tool_calls=(one, two)), result(one), result(two))
    parts = (await sent(asked, Gemini))["contents"][1]["parts"]
    assert [part.get("thoughtSignature") for part in parts] == ["skip_thought_signature_validator", None]
    older = (await sent(asked, Gemini, facts=ModelFacts(thinking="budget")))["contents"][1]["parts"]
    assert "thoughtSignature" not in older[0]


async def test_a_signature_of_another_model_is_dropped() -> None:
    contents = await turned(StubReply(signature="c2ln", calls=[StubCall("add")]), name="other")
    assert contents[1]["parts"][0]["thoughtSignature"] != "c2ln"


async def test_ids_are_sent_back_where_there_were_some_and_never_twice() -> None:
    calls = [StubCall("add", {"a": 1}, id="f-1"), StubCall("add", {"a": 2}, id="f-1")]
    contents = await turned(StubReply(calls=calls))
    opened = [part["functionCall"]["id"] for part in contents[1]["parts"]]
    assert opened == [part["functionResponse"]["id"] for part in contents[2]["parts"]]
    assert len(set(opened)) == 2


async def test_the_same_id_in_two_replies_is_sent_once() -> None:
    with StubModelServer(*[StubReply(calls=[StubCall("add", id="f-1")])] * 2, StubReply(text="Done.")) as stub:
        model, conversation = model_at(stub, Gemini), [message("user", "Go.")]
        for _ in range(2):
            response = await model.generate(request(*conversation))
            conversation += [said(response), result(response.tool_calls[0])]
        await model.generate(request(*conversation))
    parts = [part for content in stub.requests[2].body["contents"] for part in content["parts"]]
    assert len({part["functionCall"]["id"] for part in parts if "functionCall" in part}) == 2


async def test_a_failed_result_is_an_error_and_an_empty_one_says_so() -> None:
    call = called()
    asked = request(message("user", "Go."), message("assistant", tool_calls=(call,)), result(call, "", is_error=True))
    (part,) = (await sent(asked, Gemini))["contents"][2]["parts"]
    assert part["functionResponse"]["response"] == {"error": "(no output)"}


async def test_counts_are_sums_so_far_and_the_cached_one_may_vanish() -> None:
    counts = {"promptTokenCount": 50, "candidatesTokenCount": 2, "cachedContentTokenCount": 40}
    first = chunk({"text": "a"}, usageMetadata=counts)
    last = chunk(
        finish="STOP", usageMetadata={"promptTokenCount": 50, "candidatesTokenCount": 5, "thoughtsTokenCount": 3}
    )
    usage = (await ask(chunks(first, last), Gemini)).usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.cache_read_tokens) == (50, 8, 3, 40)


@pytest.mark.parametrize(
    ("word", "reason"),
    [
        ("STOP", "stop"),
        ("MAX_TOKENS", "length"),
        ("SAFETY", "content_filter"),
        ("RECITATION", "content_filter"),
        ("OTHER", "OTHER"),
    ],
)
async def test_each_finish_reason_has_its_word(word: str, reason: str) -> None:
    assert (await ask(chunks(chunk({"text": "a"}, finish=word)), Gemini)).finish_reason == reason


async def test_a_prompt_that_was_blocked_says_so() -> None:
    response = await ask(chunks({"promptFeedback": {"blockReason": "SAFETY"}}), Gemini)
    assert (response.content, response.finish_reason) == ("", "content_filter")


async def test_a_malformed_call_is_a_passing_error() -> None:
    error = await fail(chunks(chunk(finish="MALFORMED_FUNCTION_CALL")), Gemini)
    assert (error.code, error.retryable) == ("incomplete_stream", True)


async def test_a_list_of_chunks_is_a_reply_too() -> None:
    body = json.dumps([chunk({"text": "Hel"}), chunk({"text": "lo."}, finish="STOP")]).encode()
    assert (await ask(StubReply(body=body), Gemini)).content == "Hello."


async def test_thinking_is_by_level_or_by_budget_as_the_model_takes_it() -> None:
    newer = (await sent(request(thinking=Thinking.by_effort("low")), Gemini))["generationConfig"]["thinkingConfig"]
    assert newer == {"includeThoughts": True, "thinkingLevel": "LOW"}
    facts = ModelFacts(thinking="budget")
    older = await sent(request(thinking=Thinking.by_budget(3000)), Gemini, facts=facts)
    assert older["generationConfig"]["thinkingConfig"]["thinkingBudget"] == 3000
    with StubModelServer() as stub, pytest.raises(ModelRequestError) as caught:
        await model_at(stub, Gemini).generate(request(thinking=Thinking.by_budget(3000)))
    assert caught.value.code == "invalid_request"


async def test_images_go_in_and_come_out() -> None:
    image = ImageAttachment(media_type="image/png", data=b"\x89PNG")
    (content,) = (await sent(request(message("user", "Look.", images=(image,))), Gemini))["contents"]
    assert content["parts"][0] == {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}}
    response = await ask(StubReply(text="Here.", image=b"\x89PNG"), Gemini)
    assert [(one.media_type, one.data) for one in response.images] == [("image/png", b"\x89PNG")]


async def test_a_signed_image_comes_back_with_its_signature() -> None:
    data = {"inlineData": {"mimeType": "image/png", "data": "iVBORw=="}, "thoughtSignature": "s1"}
    contents = await turned(chunks(chunk({"text": "Here."}), chunk(data, finish="STOP")), calls=False)
    assert contents[1]["parts"] == [{"text": "Here."}, data]
