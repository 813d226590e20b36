"""What the tests of language models share: conversations, and models of every wire format over a stub."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from workbench.errors import ModelRequestError
from workbench.models.adapter import WireModel
from workbench.models.anthropic import Anthropic
from workbench.models.gemini import Gemini
from workbench.models.openai_chat import OpenAIChat
from workbench.models.openai_responses import OpenAIResponses
from workbench.models.openrouter import OpenRouter
from workbench.models.wire import Endpoint
from workbench.protocol.messages import (
    ChatMessage,
    CompletionRequest,
    CompletionResponse,
    Role,
    TokenDelta,
    ToolCall,
    ToolSchema,
    now,
)
from workbench.testing import StubModelServer, StubReply
from workbench.testing.model_formats import Event

KEY = "sk-secret-0123456789abcdef"
FORMATS: tuple[type[WireModel], ...] = (OpenAIChat, OpenRouter, OpenAIResponses, Anthropic, Gemini)
TOOL = ToolSchema(
    name="add", description="Add numbers.", parameters={"type": "object", "properties": {"a": {"type": "integer"}}}
)


def message(role: Role, content: str = "", **fields: Any) -> ChatMessage:
    return ChatMessage(id=fields.pop("id", f"{role}-{content}"), role=role, content=content, created_at=now(), **fields)


def request(*messages: ChatMessage, **fields: Any) -> CompletionRequest:
    return CompletionRequest(model="m", messages=messages or (message("user", "Hello."),), **fields)


def said(response: CompletionResponse) -> ChatMessage:
    """The reply as a history holds it."""
    return message(
        "assistant",
        response.content,
        tool_calls=response.tool_calls,
        images=response.images,
        provider_state=response.provider_state,
    )


def result(call: ToolCall, content: str = "3", **fields: Any) -> ChatMessage:
    return message("tool", content, tool_call_id=call.id, **fields)


def called(name: str = "add", id: str = "call_1", **arguments: Any) -> ToolCall:
    return ToolCall(id=id, name=name, arguments=arguments, raw_arguments="{}")


def model_at(stub: StubModelServer, kind: type[WireModel] = OpenAIChat, **options: Any) -> WireModel:
    name = options.pop("name", "m")
    endpoint = {"provider": "lab", "base_url": stub.url, **options.pop("endpoint", {})}
    return kind(name, Endpoint(**endpoint), **options)


async def ask(
    reply: StubReply, kind: type[WireModel] = OpenAIChat, asked: CompletionRequest | None = None, **options: Any
) -> CompletionResponse:
    """One reply of a stub to one request."""
    with StubModelServer(reply) as stub:
        return await model_at(stub, kind, **options).generate(asked or request())


async def fail(
    reply: StubReply, kind: type[WireModel] = OpenAIChat, asked: CompletionRequest | None = None, **options: Any
) -> ModelRequestError:
    """The error that a stub's reply leads to."""
    with StubModelServer(reply) as stub, pytest.raises(ModelRequestError) as caught:
        await model_at(stub, kind, **options).generate(asked or request())
    return caught.value


async def fail_each(*replies: StubReply, **options: Any) -> list[ModelRequestError]:
    """The errors that a stub's replies lead to, one after the other."""
    errors = []
    with StubModelServer(*replies) as stub:
        async with model_at(stub, **options) as model:
            for _ in replies:
                with pytest.raises(ModelRequestError) as caught:
                    await model.generate(request())
                errors.append(caught.value)
    return errors


async def sent(asked: CompletionRequest, kind: type[WireModel] = OpenAIChat, **options: Any) -> dict[str, Any]:
    """What a request looks like on the wire."""
    with StubModelServer(StubReply(text="Fine.")) as stub:
        await model_at(stub, kind, **options).generate(asked)
    body: dict[str, Any] = stub.requests[0].body
    return body


def replaced(*chunks: Any, done: bool = True) -> Callable[[list[Event]], list[Event]]:
    """For `StubReply.edit`: these chunks instead."""
    return lambda events: [*(("", chunk) for chunk in chunks), *([("", "[DONE]")] if done else [])]


def delta(finish: str | None = None, **fields: Any) -> dict[str, Any]:
    """A chunk of Chat Completions."""
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}


def fragment(name: str = "", arguments: Any = None, **fields: Any) -> dict[str, Any]:
    """A fragment of a tool call."""
    return {**fields, "function": {**({"name": name} if name else {}), "arguments": arguments}}


class Deltas(list[TokenDelta]):
    """Gathers the deltas of a reply."""

    def __call__(self, delta: TokenDelta) -> None:
        self.append(delta)

    def text(self, kind: str = "text") -> str:
        return "".join(delta.text for delta in self if delta.kind == kind)
