"""A reply in a shape of one's own, from any model that can call tools."""

from __future__ import annotations

import json
import uuid
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from workbench.errors import ModelRequestError
from workbench.models.base import LanguageModel
from workbench.protocol.messages import (
    ChatMessage,
    CompletionRequest,
    CompletionResponse,
    Role,
    ToolCall,
    ToolSchema,
    now,
)

M = TypeVar("M", bound=BaseModel)

_TOOL = "answer"
_ASKED = f"Give your answer by calling the tool {_TOOL} once."


async def collect_as(
    model: LanguageModel,
    output: type[M],
    prompt: str,
    *,
    system: str | None = None,
    max_tokens: int | None = None,
    attempts: int = 2,
) -> M:
    """The answer to `prompt` as an `output`; what doesn't fit is shown to the model, at most `attempts` times in all.

    Raises ModelRequestError, with the code invalid_request where no attempt fits.
    """
    tool = ToolSchema(name=_TOOL, description="Give the answer.", parameters=output.model_json_schema())
    asked = "\n\n".join(filter(None, (system, _ASKED)))
    messages = [_message("system", asked), _message("user", prompt)]
    wrong = ""
    for _ in range(attempts):
        request = CompletionRequest(model=model.info.id, messages=tuple(messages), tools=(tool,), max_tokens=max_tokens)
        response = await model.generate(request)
        call = next((call for call in response.tool_calls if call.name == _TOOL), None)
        try:
            return output.model_validate_json(_given(call, response.content))
        except ValidationError as error:
            wrong = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'answer'}: {one['msg']}" for one in error.errors())
        messages += _corrected(response, wrong)
    raise ModelRequestError(
        f"{model.info.id} gave no answer of the shape that was asked for: {wrong}",
        code="invalid_request",
        provider=model.info.provider,
        hint="Ask more simply, or use another model.",
    )


def _given(call: ToolCall | None, text: str) -> str:
    """What it answered with: the call's arguments, else its text, which may be JSON in a fence."""
    if call is not None:
        return call.raw_arguments if call.arguments is None else json.dumps(call.arguments)
    text = text.strip()
    if text.startswith("```"):
        text = text.partition("\n")[2].rpartition("```")[0]
    return text


def _corrected(response: CompletionResponse, wrong: str) -> list[ChatMessage]:
    """What follows an answer that didn't fit: the answer, and what is wrong with it."""
    reply = ChatMessage(
        id=uuid.uuid4().hex,
        role="assistant",
        content=response.content,
        tool_calls=response.tool_calls,
        provider_state=response.provider_state,
        created_at=now(),
    )
    said = f"That doesn't fit: {wrong}. {_ASKED}"
    if not response.tool_calls:
        return [reply, _message("user", said)]
    return [reply, *(_message("tool", said, call) for call in response.tool_calls)]


def _message(role: Role, content: str, call: ToolCall | None = None) -> ChatMessage:
    id = None if call is None else call.id
    return ChatMessage(
        id=uuid.uuid4().hex, role=role, content=content, tool_call_id=id, is_error=call is not None, created_at=now()
    )
