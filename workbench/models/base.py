"""What every language model is, and the one-line use of one."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Protocol

from workbench.protocol.messages import (
    ChatMessage,
    CompletionRequest,
    CompletionResponse,
    ModelInfo,
    Role,
    TokenDelta,
    now,
)


class LanguageModel(Protocol):
    """A model that answers requests; safe to use from several runs at once."""

    @property
    def info(self) -> ModelInfo:
        """What is known of it."""

    async def generate(
        self, request: CompletionRequest, on_delta: Callable[[TokenDelta], None] | None = None
    ) -> CompletionResponse:
        """Answer, with each piece handed to `on_delta` as it comes.

        Raises ModelRequestError; cancelling it ends the request.
        """


async def collect(
    model: LanguageModel, prompt: str, *, system: str | None = None, max_tokens: int | None = None
) -> str:
    """The text of one reply to `prompt`. Raises ModelRequestError."""
    messages = [_message("user", prompt)]
    if system is not None:
        messages.insert(0, _message("system", system))
    request = CompletionRequest(model=model.info.id, messages=tuple(messages), max_tokens=max_tokens)
    return (await model.generate(request)).content


def _message(role: Role, content: str) -> ChatMessage:
    return ChatMessage(id=uuid.uuid4().hex, role=role, content=content, created_at=now())
