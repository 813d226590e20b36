"""Chat Completions and the servers that are nearly compatible: each trap is a case."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.models.asking import (
    TOOL,
    Deltas,
    ask,
    called,
    delta,
    fail,
    fragment,
    message,
    model_at,
    replaced,
    request,
    result,
    said,
    sent,
)
from workbench.errors import ModelRequestError
from workbench.models.catalog import ModelFacts
from workbench.models.profiles import PROFILES
from workbench.protocol.messages import CompletionRequest, ImageAttachment, Thinking, ToolCall, Usage
from workbench.testing import StubCall, StubModelServer, StubReply, StubUsage

pytestmark = pytest.mark.anyio

USAGE = {"prompt_tokens": 10, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 6}}


def calls(*fragments: dict[str, Any], finish: str = "tool_calls") -> StubReply:
    return StubReply(edit=replaced(*(delta(tool_calls=[one]) for one in fragments), delta(finish)))


@pytest.mark.parametrize("stream", [True, False])
async def test_a_reply_is_the_same_streamed_and_in_one_piece(stream: bool) -> None:
    reply = StubReply(
        text="Hello wörld.",
        reasoning="Let me see.",
        calls=[StubCall("add", {"a": 1}), StubCall("now")],
        usage=StubUsage(input=10, output=7, reasoning=3, cache_read=4),
    )
    response = await ask(reply, stream=stream)
    assert response.content == "Hello wörld."
    assert response.reasoning == "Let me see."
    assert [(call.name, call.arguments) for call in response.tool_calls] == [("add", {"a": 1}), ("now", {})]
    assert response.finish_reason == "tool_calls"
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens, usage.cache_read_tokens) == (10, 7, 3, 4)
    assert usage.cost_usd is None
    assert usage.provider == "lab"


async def test_each_piece_is_handed_on_as_it_comes() -> None:
    deltas = Deltas()
    with StubModelServer(StubReply(text="One two three.", reasoning="Hm hm hm.")) as stub:
        await model_at(stub).generate(request(), deltas)
    assert deltas.text() == "One two three."
    assert deltas.text("reasoning") == "Hm hm hm."
    assert len(deltas) > 4


@pytest.mark.parametrize(
    "odd",
    [
        {"choices": []},
        {"choices": None},
        {"id": "x"},
        {"choices": [{"index": 0, "delta": None}]},
        {"choices": [{"index": 0}]},
        {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": None}}]},
    ],
)
async def test_a_chunk_may_lack_its_choice_or_its_delta(odd: Any) -> None:
    response = await ask(StubReply(edit=replaced(odd, delta(content="Hi."), odd, delta("stop"), odd)))
    assert response.content == "Hi."


async def test_usage_may_ride_on_the_choice() -> None:
    last = {"choices": [{"delta": {}, "finish_reason": "stop", "usage": USAGE}]}
    usage = (await ask(StubReply(edit=replaced(delta(content="Hi."), last)))).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cache_read_tokens) == (10, 4, 6)


async def test_usage_in_every_chunk_is_a_sum_so_far() -> None:
    chunks = [{**delta(content="x"), "usage": {**USAGE, "completion_tokens": count}} for count in (1, 2, 3)]
    usage = (await ask(StubReply(edit=replaced(*chunks, {**delta("stop"), "usage": None})))).usage
    assert (usage.input_tokens, usage.output_tokens) == (10, 3)


async def test_no_usage_is_no_usage() -> None:
    assert (await ask(StubReply(text="Hi.", usage=None))).usage == Usage()


async def test_calls_without_an_index_are_told_apart_by_their_ids() -> None:
    response = await ask(
        calls(fragment("add", '{"a":', id="x"), fragment("", "1}", id="x"), fragment("add", '{"a":2}', id="y"))
    )
    assert [call.arguments for call in response.tool_calls] == [{"a": 1}, {"a": 2}]


async def test_a_second_call_whose_index_is_the_first_ones_stays_its_own() -> None:
    response = await ask(
        calls(
            fragment("add", '{"a":1}', id="x", index=0),
            fragment("add", "", id="y", index=0),
            fragment("", '{"a":', index=1),
            fragment("", "2}", index=1),
        )
    )
    assert [call.arguments for call in response.tool_calls] == [{"a": 1}, {"a": 2}]


async def test_fragments_of_two_calls_may_come_in_turns() -> None:
    response = await ask(
        calls(
            fragment("add", "", id="x", index=0),
            fragment("sub", "", id="y", index=1),
            fragment("", '{"a":', index=0),
            fragment("", '{"b":', index=1),
            fragment("", "1}", index=0),
            fragment("", "2}", index=1),
        )
    )
    assert [(call.name, call.arguments) for call in response.tool_calls] == [("add", {"a": 1}), ("sub", {"b": 2})]


async def test_a_fragment_with_neither_id_nor_index_belongs_to_the_last_call() -> None:
    response = await ask(calls(fragment("add", "", id="x"), fragment("", '{"a":'), fragment("", "1}")))
    assert [call.arguments for call in response.tool_calls] == [{"a": 1}]


async def test_calls_without_ids_are_told_apart_by_name_and_wholeness() -> None:
    response = await ask(calls(fragment("add", '{"a":1}'), fragment("add", '{"a":2}'), fragment("sub", "{}")))
    assert [(call.name, call.arguments) for call in response.tool_calls] == [
        ("add", {"a": 1}),
        ("add", {"a": 2}),
        ("sub", {}),
    ]


async def test_the_same_id_twice_is_two_calls_with_ids_of_their_own() -> None:
    response = await ask(
        calls(fragment("add", '{"a":1}', id="call_0", index=0), fragment("add", '{"a":2}', id="call_0", index=1))
    )
    first, second = response.tool_calls
    assert (first.arguments, second.arguments) == ({"a": 1}, {"a": 2})
    assert first.id != second.id


async def test_ids_that_repeat_over_turns_are_sent_back_unique() -> None:
    asked = request(message("user", "Go."))
    conversation = list(asked.messages)
    with StubModelServer(*[StubReply(calls=[StubCall("add", id="call_0")])] * 2, StubReply(text="Done.")) as stub:
        model = model_at(stub)
        for _ in range(2):
            response = await model.generate(request(*conversation))
            conversation += [said(response), result(response.tool_calls[0])]
        await model.generate(request(*conversation))
    messages = stub.requests[2].body["messages"]
    opened = [call["id"] for one in messages for call in one.get("tool_calls", ())]
    answered = [one["tool_call_id"] for one in messages if one["role"] == "tool"]
    assert opened == answered
    assert len(set(opened)) == 2
    assert opened[0] == "call_0"


@pytest.mark.parametrize("length", [41, 450])
async def test_an_id_that_is_too_long_is_made_shorter(length: int) -> None:
    call = called(id="a|" * (length // 2))
    body = await sent(request(message("user", "Go."), message("assistant", tool_calls=(call,)), result(call)))
    (opened,) = body["messages"][1]["tool_calls"]
    assert opened["id"] == body["messages"][2]["tool_call_id"]
    assert len(opened["id"]) <= 40


async def test_an_id_for_mistral_has_nine_letters_or_digits() -> None:
    call = called(id="call_0123456789")
    asked = request(message("user", "Go."), message("assistant", tool_calls=(call,)), result(call))
    body = await sent(asked, profile=PROFILES["mistral"])
    (opened,) = body["messages"][1]["tool_calls"]
    assert len(opened["id"]) == 9
    assert opened["id"].isalnum()
    assert opened["id"] == body["messages"][2]["tool_call_id"]


@pytest.mark.parametrize("stream", [True, False])
async def test_no_arguments_are_an_empty_object(stream: bool) -> None:
    nothing: tuple[Any, ...] = ("", None, "{}", {}, "null", '""', '{}"', "''", " \n", '"{}"')
    replies = []
    for arguments in nothing:
        call = {"id": "x", "type": "function", "function": {"name": "now", "arguments": arguments}}
        whole = {"choices": [{"message": {"content": None, "tool_calls": [call]}, "finish_reason": "tool_calls"}]}
        edit = replaced(delta(tool_calls=[call]), delta("tool_calls"))
        replies.append(StubReply(edit=edit, body=None if stream else json.dumps(whole).encode()))
    with StubModelServer(*replies) as stub:
        async with model_at(stub, stream=stream) as model:
            for arguments in nothing:
                response = await model.generate(request())
                assert [(call.name, call.arguments) for call in response.tool_calls] == [("now", {})], arguments
                assert response.finish_reason == "tool_calls"


async def test_arguments_without_a_field_of_their_own_are_an_empty_object() -> None:
    response = await ask(calls({"id": "x", "function": {"name": "now"}}))
    assert [call.arguments for call in response.tool_calls] == [{}]


async def test_arguments_may_be_an_object_already() -> None:
    response = await ask(calls(fragment("add", {"a": 1}, id="x")))
    assert response.tool_calls[0].arguments == {"a": 1}


async def test_a_stray_quote_behind_the_arguments_does_no_harm() -> None:
    response = await ask(calls(fragment("add", '{"a": 1}""', id="x")))
    assert response.tool_calls[0].arguments == {"a": 1}


@pytest.mark.parametrize("arguments", ['{"a": ', '{"a": 1}{"a": 2}', "[1]", "7", "a=1"])
async def test_arguments_that_are_no_object_are_never_run(arguments: str) -> None:
    response = await ask(calls(fragment("add", arguments, id="x")))
    (call,) = response.tool_calls
    assert call.arguments is None
    assert call.raw_arguments == arguments
    assert response.finish_reason == "length"


@pytest.mark.parametrize("arguments", ["", '{"path": "a", "text": "half'])
async def test_a_call_cut_by_the_limit_is_never_run(arguments: str) -> None:
    response = await ask(
        calls(
            fragment("read", '{"a":1}', id="x", index=0), fragment("write", arguments, id="y", index=1), finish="length"
        )
    )
    assert [call.arguments for call in response.tool_calls] == [{"a": 1}, None]
    assert response.finish_reason == "length"


@pytest.mark.parametrize("finish", ["stop", None, "tool_calls", "function_call"])
async def test_calls_say_themselves_that_there_are_some(finish: str | None) -> None:
    response = await ask(StubReply(edit=replaced(delta(tool_calls=[fragment("add", "{}", id="x")]), delta(finish))))
    assert response.finish_reason == "tool_calls"


async def test_a_finish_of_calls_without_any_is_a_stop() -> None:
    assert (await ask(StubReply(edit=replaced(delta(content="Hi."), delta("tool_calls"))))).finish_reason == "stop"


async def test_a_filtered_reply_says_so() -> None:
    assert (await ask(StubReply(text="I", finish="content_filter"))).finish_reason == "content_filter"


async def test_a_refusal_is_text_that_was_filtered() -> None:
    response = await ask(StubReply(edit=replaced(delta(refusal="I won't."), delta("stop"))))
    assert response.content == "I won't."


async def test_a_reason_of_the_servers_own_is_passed_on() -> None:
    assert (await ask(StubReply(edit=replaced(delta("weird", content="Hi."))))).finish_reason == "weird"


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning", "reasoning_text"])
async def test_reasoning_comes_in_one_of_three_fields(field: str) -> None:
    response = await ask(StubReply(edit=replaced(delta(**{field: "Hm."}), delta("stop", content="Yes."))))
    assert (response.reasoning, response.content) == ("Hm.", "Yes.")


async def test_reasoning_that_comes_twice_is_taken_once() -> None:
    twice = delta(reasoning="Hm.", reasoning_content="Hm.")
    assert (await ask(StubReply(edit=replaced(twice, delta("stop", content="Yes."))))).reasoning == "Hm."


@pytest.mark.parametrize("size", [1, 2, 4, 100])
async def test_reasoning_in_tags_is_no_text(size: int) -> None:
    text = "\n<think>Is a < b?\n</think>\n\nYes, a < b. <think>"
    pieces = [delta(content=text[start : start + size]) for start in range(0, len(text), size)]
    response = await ask(StubReply(edit=replaced(*pieces, delta("stop"))))
    assert response.reasoning == "Is a < b?\n"
    assert response.content.lstrip() == "Yes, a < b. <think>"


@pytest.mark.parametrize(("text", "shown"), [("<thin", ("<thin", None)), ("<think>a</th", ("", "a</th"))])
async def test_a_tag_that_is_never_closed_loses_nothing(text: str, shown: tuple[str, str | None]) -> None:
    response = await ask(StubReply(edit=replaced(*(delta(content=letter) for letter in text), delta("stop"))))
    assert (response.content, response.reasoning) == shown


async def test_content_in_parts_is_text_and_reasoning() -> None:
    thinking = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}]
    response = await ask(
        StubReply(edit=replaced(delta(content=thinking), delta("stop", content=[{"type": "text", "text": "Yes."}])))
    )
    assert (response.reasoning, response.content) == ("Hm.", "Yes.")


async def test_a_character_cut_into_two_escapes_is_one_again() -> None:
    raw = r'data: {"choices":[{"delta":{"content":"a\ud83d"}}]}' + "\n\n"
    raw += r'data: {"choices":[{"delta":{"content":"\ude00b\udc00"},"finish_reason":"stop"}]}' + "\n\ndata: [DONE]\n\n"
    deltas = Deltas()
    with StubModelServer(StubReply(body=raw.encode(), headers={"Content-Type": "text/event-stream"})) as stub:
        response = await model_at(stub).generate(request(), deltas)
    assert response.content == "a😀b\ufffd"
    assert deltas.text() == response.content


@pytest.mark.parametrize("with_choices", [True, False])
async def test_an_error_in_the_stream_is_an_error(with_choices: bool) -> None:
    chunk = {"error": {"message": "Backend on fire", "code": 502}, **({"choices": []} if with_choices else {})}
    usage = {"choices": [], "usage": USAGE}
    error = await fail(StubReply(edit=replaced(delta(content="Hi."), usage, chunk)))
    assert (error.code, error.status, error.retryable) == ("overloaded", 502, True)
    assert "Backend on fire" in error.message
    assert error.usage is not None
    assert error.usage.input_tokens == 10


async def test_a_stream_that_ends_with_no_reason_is_incomplete() -> None:
    half = replaced(delta(content="Hi."), delta(tool_calls=[fragment("write", '{"a":', id="x")]), done=False)
    error = await fail(StubReply(edit=half))
    assert (error.code, error.retryable) == ("incomplete_stream", True)


async def test_a_stream_that_ends_after_its_reason_is_whole() -> None:
    response = await ask(StubReply(edit=replaced(delta(content="Hi."), delta("stop"), done=False)))
    assert response.content == "Hi."


async def test_the_mark_of_the_end_is_a_reason_too() -> None:
    assert (await ask(StubReply(edit=replaced(delta(content="Hi."))))).finish_reason == "stop"


async def test_content_is_one_string_and_null_beside_calls() -> None:
    call = called()
    messages = (
        await sent(request(message("assistant", "Hi."), message("assistant", tool_calls=(call,)), result(call)))
    )["messages"]
    assert messages[0]["content"] == "Hi."
    assert messages[1]["content"] is None


async def test_a_reply_that_holds_nothing_is_never_sent_back() -> None:
    messages = (await sent(request(message("user", "Go."), message("assistant", " "), message("user", "Again."))))[
        "messages"
    ]
    assert [one["content"] for one in messages] == ["Go.", "Again."]


async def test_a_result_without_output_says_so() -> None:
    call = called()
    messages = (await sent(request(message("assistant", tool_calls=(call,)), result(call, ""))))["messages"]
    assert messages[1]["content"] == "(no output)"


async def test_system_messages_are_one_at_the_start() -> None:
    asked = request(message("system", "Be brief."), message("user", "Hi."), message("system", "Be kind."))
    messages = (await sent(asked))["messages"]
    assert [(one["role"], one["content"]) for one in messages] == [("system", "Be brief.\n\nBe kind."), ("user", "Hi.")]
    assert (await sent(asked, profile=PROFILES["openai"]))["messages"][0]["role"] == "developer"


async def test_a_conversation_with_calls_keeps_an_empty_list_of_tools_where_a_proxy_wants_it() -> None:
    call = called()
    asked = request(message("assistant", tool_calls=(call,)), result(call))
    assert "tools" not in await sent(asked)
    assert (await sent(asked, profile=PROFILES["litellm"]))["tools"] == []


async def test_a_tool_is_described_by_three_fields() -> None:
    body = await sent(request(tools=(TOOL,), max_tokens=99, temperature=0.5))
    assert body["tools"] == [
        {"type": "function", "function": {"name": "add", "description": "Add numbers.", "parameters": TOOL.parameters}}
    ]
    assert (body["max_tokens"], body["temperature"]) == (99, 0.5)
    assert body["stream_options"] == {"include_usage": True}


async def test_a_dialect_names_its_limit_and_may_take_no_stream_options() -> None:
    assert (await sent(request(max_tokens=99), profile=PROFILES["openai"]))["max_completion_tokens"] == 99
    assert "stream_options" not in await sent(request(), profile=PROFILES["mistral"])


async def test_images_go_in_as_data() -> None:
    image = ImageAttachment(media_type="image/png", data=b"\x89PNG")
    body = await sent(request(message("user", "Look.", images=(image,))))
    assert body["messages"][0]["content"] == [
        {"type": "text", "text": "Look."},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
    ]


async def test_images_of_results_follow_the_last_result() -> None:
    one, two = called(id="call_1"), called(id="call_2")
    image = ImageAttachment(media_type="image/png", data=b"x")
    asked = request(message("assistant", tool_calls=(one, two)), result(one, "a", images=(image,)), result(two, "b"))
    messages = (await sent(asked))["messages"]
    assert [one["role"] for one in messages] == ["assistant", "tool", "tool", "user"]
    assert messages[3]["content"][1]["type"] == "image_url"


async def test_arguments_that_could_not_be_read_go_back_as_an_object() -> None:
    call = ToolCall(id="call_1", name="add", arguments=None, raw_arguments='{"a": ')
    messages = (await sent(request(message("assistant", tool_calls=(call,)), result(call))))["messages"]
    assert json.loads(messages[0]["tool_calls"][0]["function"]["arguments"]) == {"unparsable_arguments": '{"a": '}


async def test_deepseek_gets_its_reasoning_back_on_every_turn_with_tools() -> None:
    first = StubReply(reasoning="Hm, 1.", calls=[StubCall("add", {"a": 1})])
    with StubModelServer(first, StubReply(text="Done.")) as stub:
        model = model_at(stub, profile=PROFILES["deepseek"])
        response = await model.generate(request(message("user", "Go."), tools=(TOOL,)))
        conversation = (message("assistant", "Earlier."), said(response), result(response.tool_calls[0]))
        await model.generate(request(*conversation, tools=(TOOL,)))
    messages = stub.requests[1].body["messages"]
    assert [one.get("reasoning_content") for one in messages] == ["", "Hm, 1.", None]


async def test_thinking_is_asked_for_in_the_servers_own_way() -> None:
    asked = request(thinking=Thinking.by_effort("high"))
    for profile in PROFILES.values():
        if profile.thinking in ("effort", "deepseek", "template"):
            assert (await sent(asked, profile=profile))["reasoning_effort"] == "high"
    assert (await sent(asked, profile=PROFILES["deepseek"]))["thinking"] == {"type": "enabled"}
    known = (await sent(asked, profile=PROFILES["llamacpp"]))["chat_template_kwargs"]
    assert known == {"enable_thinking": True, "reasoning_effort": "high"}


@pytest.mark.parametrize(
    ("profile", "thinking", "step"),
    [
        ("lmstudio", Thinking.by_effort("low"), 'api = "responses"'),
        ("openai", Thinking.by_budget(2000), "low or medium or high"),
        ("mistral", Thinking.by_effort("low"), "Use an effort: high."),
    ],
)
async def test_thinking_that_cannot_be_asked_for_is_refused(profile: str, thinking: Thinking, step: str) -> None:
    with StubModelServer() as stub, pytest.raises(ModelRequestError) as caught:
        await model_at(stub, profile=PROFILES[profile]).generate(request(thinking=thinking))
    assert caught.value.code == "invalid_request"
    assert step in str(caught.value.hint)
    assert not stub.requests


LONG = request(message("system", "Be brief."), message("user", "word " * 5_000))


@pytest.mark.parametrize("profile", ["ollama", "lmstudio", "zai"])
async def test_a_prompt_that_was_cut_without_a_word_is_an_overflow(profile: str) -> None:
    reply = StubReply(text="Which words?", usage=StubUsage(input=4_096, output=3))
    error = await fail(reply, asked=LONG, profile=PROFILES[profile])
    assert (error.code, error.retryable) == ("context_overflow", False)
    assert "4,096 tokens of a conversation of 5,002 words" in error.message
    assert error.usage is not None
    assert error.usage.input_tokens == 4_096


async def test_a_prompt_beyond_the_window_that_is_known_is_an_overflow_where_it_would_be_cut() -> None:
    reply, facts = StubReply(text="Hi.", usage=StubUsage(input=9_000)), ModelFacts(context_window=8_192)
    assert (await fail(reply, profile=PROFILES["zai"], facts=facts)).code == "context_overflow"
    # Elsewhere the provider says so itself, and a window that grew is no error.
    assert (await ask(reply, facts=facts)).content == "Hi."


@pytest.mark.parametrize(
    ("asked", "usage"),
    [(LONG, StubUsage(input=6_000)), (LONG, None), (request(message("user", "word " * 900)), StubUsage(input=700))],
    ids=["all of it was read", "nothing is said", "too short to be cut"],
)
async def test_a_prompt_that_may_be_whole_is_no_overflow(asked: CompletionRequest, usage: StubUsage | None) -> None:
    assert (await ask(StubReply(text="Hi.", usage=usage), asked=asked, profile=PROFILES["ollama"])).content == "Hi."


async def test_a_name_that_is_no_text_can_be_sent() -> None:
    body = await sent(request(message("user", "caf\udce9")))
    assert body["messages"][0]["content"] == "caf?"


async def test_extra_content_of_a_call_comes_back_on_it() -> None:
    extra = {"google": {"thought_signature": "c2ln"}}
    first = calls({"id": "x", "extra_content": extra, "function": {"name": "add", "arguments": "{}"}})
    with StubModelServer(first, StubReply(text="Done.")) as stub:
        model = model_at(stub)
        response = await model.generate(request())
        await model.generate(request(said(response), result(response.tool_calls[0])))
    assert stub.requests[1].body["messages"][0]["tool_calls"][0]["extra_content"] == extra


async def test_azures_key_has_a_header_of_its_own() -> None:
    from workbench.models.keys import Key

    with StubModelServer(StubReply(text="Hi."), key="k-123456") as stub:
        endpoint = {"key": Key(value="k-123456"), "key_header": "api-key", "query": {"api-version": "v1"}}
        await model_at(stub, endpoint=endpoint).generate(request())
    assert stub.requests[0].headers["api-key"] == "k-123456"
    assert stub.requests[0].path.endswith("?api-version=v1")
