"""What the adapters of all wire formats share: a model of one provider, asked over one wire."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import TracebackType
from typing import Any, ClassVar, Self

from workbench.errors import ModelRequestError
from workbench.models.catalog import UNKNOWN, ModelFacts
from workbench.models.reading import WRONG_DATA, unreadable
from workbench.models.reply import OnDelta, Reply
from workbench.models.wire import Endpoint, Wire
from workbench.protocol.messages import CompletionRequest, CompletionResponse, ModelInfo, Usage


class WireModel(ABC):
    """A language model over one wire format. In an `async with` its requests share connections.

    A wire format has a header for the key, what stands before it there, and headers of its own.
    """

    key_header: ClassVar[str] = "Authorization"
    key_prefix: ClassVar[str] = "Bearer "
    headers: ClassVar[Mapping[str, str]] = {}

    def __init__(
        self,
        model: str,
        endpoint: Endpoint,
        *,
        facts: ModelFacts = UNKNOWN,
        stream: bool = True,
    ) -> None:
        """`model` is the provider's own name; `stream` False asks for the reply in one piece.

        Raises OptionsError for an endpoint that can't be used.
        """
        self.name = model
        self.provider = endpoint.provider
        self.facts = facts
        self.wire = Wire(self.completed(endpoint))
        self._stream = stream

    @classmethod
    def completed(cls, endpoint: Endpoint) -> Endpoint:
        """The endpoint with the headers of this wire format, where it has no others."""
        headers = {**cls.headers, **endpoint.headers}
        if endpoint.key_header:
            return replace(endpoint, headers=headers)
        return replace(endpoint, headers=headers, key_header=cls.key_header, key_prefix=cls.key_prefix)

    @property
    def id(self) -> str:
        """`provider/model`."""
        return f"{self.provider}/{self.name}"

    @property
    def info(self) -> ModelInfo:
        """What is known of it."""
        return ModelInfo(
            id=self.id,
            provider=self.provider,
            label=self.facts.label,
            context_window=self.facts.context_window,
            supports_tools=self.facts.supports_tools,
            supports_reasoning=self.facts.supports_reasoning,
        )

    async def __aenter__(self) -> Self:
        await self.wire.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.wire.__aexit__(kind, error, traceback)

    async def generate(self, request: CompletionRequest, on_delta: OnDelta | None = None) -> CompletionResponse:
        """Answer, with each piece handed to `on_delta` as it comes; cancelling it closes the connection.

        Raises ModelRequestError, whose `usage` is what was reported before it.
        """
        if request.thinking is not None and self.facts.supports_reasoning is False:
            raise self.refusal(f"{self.name} can't think.", hint="Leave thinking out, or use a model that can.")
        reply = self._reply(on_delta)
        started = time.monotonic()
        try:
            await self.wire.post(self._path(), self._body(request), reply, stream=self._stream)
        except ModelRequestError as error:
            if not reply.usage.is_empty:
                error.usage = self._measured(reply, started)
            raise
        try:
            reply.flush()
            response = reply.response(self.provider, self.id, self._measured(reply, started))
        except WRONG_DATA as error:
            raise unreadable(self.provider, str(error)) from error
        reply.deliver()
        return response

    def refusal(self, message: str, *, hint: str | None = None) -> ModelRequestError:
        """The error for what this API can't do, before it's asked."""
        return ModelRequestError(message, code="invalid_request", provider=self.provider, hint=hint)

    def _measured(self, reply: Reply, started: float) -> Usage:
        """What the provider reported, with our clock and the cost; nothing where it reported nothing."""
        usage = reply.usage
        if usage.is_empty:
            return usage
        ended = time.monotonic()
        begun = ended if reply.begun_at is None else reply.begun_at
        cost = self.facts.cost(usage, hour_writes=reply.hour_writes) if usage.cost_usd is None else usage.cost_usd
        took = ended - begun
        return usage.model_copy(
            update={
                "provider": usage.provider or self.provider,
                "cost_usd": cost,
                "latency": begun - started,
                "duration": ended - started,
                "tokens_per_second": usage.output_tokens / took if took > 0 and usage.output_tokens else None,
            }
        )

    @abstractmethod
    def _path(self) -> str:
        """Where requests go, below the base URL."""

    @abstractmethod
    def _body(self, request: CompletionRequest) -> dict[str, Any]:
        """The request in this wire format. Raises ModelRequestError for what it can't say."""

    @abstractmethod
    def _reply(self, on_delta: Callable[..., None] | None) -> Reply:
        """What takes in the answer."""
