"""The providers' own libraries talk to the stub and understand it: so it's faithful, and our adapters are held to that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest
from google import genai
from google.genai import errors as genai_errors
from google.genai import types as genai_types

from workbench.testing import StubCall, StubModelServer, StubReply, StubUsage

KEY = "sk-secret-0123456789abcdef"
REPLY = StubReply(
    text="Grüße, 世界 😀.",
    reasoning="Hm, let me see.",
    signature="c2lnbmVk",
    calls=[StubCall("add", {"a": 1}), StubCall("now")],
    usage=StubUsage(input=100, output=9, reasoning=4, cache_read=60),
)
AWKWARD = StubReply(
    text=REPLY.text, calls=REPLY.calls, reasoning=REPLY.reasoning, comments=True, piece=3, newline="\r\n"
)
PARAMETERS: Any = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture
def stub() -> Iterator[StubModelServer]:
    with StubModelServer(REPLY, AWKWARD, key=KEY, models=("m", "n")) as server:
        yield server


def test_openais_library_understands_chat_completions(stub: StubModelServer) -> None:
    with openai.OpenAI(base_url=f"{stub.url}/v1", api_key=KEY, max_retries=0) as client:
        tools: Any = [{"type": "function", "function": {"name": "add", "parameters": PARAMETERS}}]
        asked: Any = {"model": "m", "messages": [{"role": "user", "content": "Go."}], "tools": tools}
        whole = client.chat.completions.create(**asked)
        with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
            streamed = stream.get_final_completion()
        for completion in (whole, streamed):
            message = completion.choices[0].message
            assert message.content == REPLY.text
            assert [call.function.name for call in message.tool_calls or ()] == ["add", "now"]
            assert [call.function.arguments for call in message.tool_calls or ()] == ['{"a": 1}', "{}"]
            assert completion.choices[0].finish_reason == "tool_calls"
        assert whole.usage is not None
        assert whole.usage.prompt_tokens == 100
        assert streamed.usage is not None
        assert [model.id for model in client.models.list()] == ["m", "n"]


def test_openais_library_understands_responses(stub: StubModelServer) -> None:
    with openai.OpenAI(base_url=f"{stub.url}/v1", api_key=KEY, max_retries=0) as client:
        asked: Any = {"model": "m", "input": "Go.", "store": False, "include": ["reasoning.encrypted_content"]}
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            streamed = stream.get_final_response()
        for response in (whole, streamed):
            assert response.output_text == REPLY.text
            kinds = [item.type for item in response.output]
            assert kinds == ["reasoning", "message", "function_call", "function_call"]
            assert [item.arguments for item in response.output if item.type == "function_call"] == ['{"a": 1}', "{}"]
        assert whole.output[0].type == "reasoning"
        assert whole.output[0].encrypted_content == REPLY.signature
        assert whole.usage is not None
        assert whole.usage.input_tokens_details.cached_tokens == 60


def test_anthropics_library_understands_messages(stub: StubModelServer) -> None:
    with anthropic.Anthropic(base_url=stub.url, api_key=KEY, max_retries=0) as client:
        asked: Any = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "Go."}]}
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        for message in (whole, streamed):
            assert [block.type for block in message.content] == ["thinking", "text", "tool_use", "tool_use"]
            thinking, text, *calls = message.content
            assert thinking.type == "thinking"
            assert thinking.thinking == REPLY.reasoning
            assert text.type == "text"
            assert text.text == REPLY.text
            assert [call.input for call in calls if call.type == "tool_use"] == [{"a": 1}, {}]
            assert message.stop_reason == "tool_use"
        assert whole.usage.cache_read_input_tokens == 60
        assert whole.usage.input_tokens == 40


def test_googles_library_understands_gemini() -> None:
    # It takes comments for data: Gemini itself sends none.
    with StubModelServer(REPLY, replace(AWKWARD, comments=False), key=KEY) as stub:
        understand_gemini(stub)


def understand_gemini(stub: StubModelServer) -> None:
    client = genai.Client(api_key=KEY, http_options=genai_types.HttpOptions(base_url=stub.url))
    whole = client.models.generate_content(model="m", contents="Go.")
    chunks = list(client.models.generate_content_stream(model="m", contents="Go."))
    parts = [
        part for chunk in chunks for one in chunk.candidates or () if one.content for part in one.content.parts or ()
    ]
    for found in ((whole.candidates or [])[0].content.parts or [], parts):  # type: ignore[union-attr]
        assert "".join(part.text or "" for part in found if not part.thought) == REPLY.text
        assert "".join(part.text or "" for part in found if part.thought) == REPLY.reasoning
        calls = [part.function_call for part in found if part.function_call]
        assert [(call.name, call.args or {}) for call in calls] == [("add", {"a": 1}), ("now", {})]
    assert whole.usage_metadata is not None
    assert whole.usage_metadata.thoughts_token_count == 4
    assert chunks[-1].candidates is not None
    assert chunks[-1].candidates[0].finish_reason == genai_types.FinishReason.STOP
    client.close()


def test_a_reply_has_the_id_that_it_was_given_in_every_format() -> None:
    with StubModelServer(*(StubReply(text="Yes.", id=f"reply{number}") for number in range(4))) as stub:
        with openai.OpenAI(base_url=f"{stub.url}/v1", api_key=KEY, max_retries=0) as client:
            chat = client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go."}])
            response = client.responses.create(model="m", input="Go.")
        with anthropic.Anthropic(base_url=stub.url, api_key=KEY, max_retries=0) as other:
            message = other.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "Go."}])
        google = genai.Client(api_key=KEY, http_options=genai_types.HttpOptions(base_url=stub.url))
        generated = google.models.generate_content(model="m", contents="Go.")
        google.close()
    assert [chat.id, response.id, message.id, generated.response_id] == [f"reply{number}" for number in range(4)]
    assert [item.id for item in response.output] == ["msg_reply1"]


def test_each_library_sees_an_error_as_its_own() -> None:
    failing = [StubReply(status=429, text="Slow."), StubReply(error={"type": "overloaded_error", "message": "Busy"})]
    with StubModelServer(*failing, failing[0], failing[0]) as stub:
        with (
            openai.OpenAI(base_url=f"{stub.url}/v1", api_key=KEY, max_retries=0) as client,
            pytest.raises(openai.RateLimitError, match="Slow"),
        ):
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "Go."}])
        with anthropic.Anthropic(base_url=stub.url, api_key=KEY, max_retries=0) as other:
            with (
                pytest.raises(anthropic.APIStatusError, match="Busy"),
                other.messages.stream(model="m", max_tokens=9, messages=[{"role": "user", "content": "Go."}]) as stream,
            ):
                stream.get_final_message()
            with pytest.raises(anthropic.RateLimitError):
                other.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "Go."}])
        google = genai.Client(api_key=KEY, http_options=genai_types.HttpOptions(base_url=stub.url))
        with pytest.raises(genai_errors.ClientError, match="Slow"):
            google.models.generate_content(model="m", contents="Go.")
        google.close()


def test_a_wrong_key_is_refused_in_every_format() -> None:
    with StubModelServer(key=KEY) as stub:
        with (
            openai.OpenAI(base_url=f"{stub.url}/v1", api_key="wrong-key", max_retries=0) as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.responses.create(model="m", input="Go.")
        with (
            anthropic.Anthropic(base_url=stub.url, api_key="wrong-key", max_retries=0) as other,
            pytest.raises(anthropic.AuthenticationError),
        ):
            other.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "Go."}])
