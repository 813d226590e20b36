"""One reply of a model: streamed, timed, counted, and asked for again where that may help."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from workbench.agent import telemetry
from workbench.agent.budgets import Spending
from workbench.agent.options import SessionOptions
from workbench.agent.retry import may_retry, retry_delay, sleep
from workbench.agent.run import Emit
from workbench.models.base import LanguageModel
from workbench.models.errors import is_model_request_error
from workbench.protocol.events import Notice, TextEvent, ThinkingEvent, UsageEvent
from workbench.protocol.messages import CompletionRequest, CompletionResponse, TokenDelta, Usage


class CallTimeoutError(Exception):
    """A model took longer than one call may take."""


class Asker:
    """Asks one model for replies.

    `room` waits for a reader that lags behind; deltas come in the midst of a call, which can't wait for anybody.
    """

    def __init__(
        self,
        session_id: str,
        model: LanguageModel,
        options: SessionOptions,
        spending: Spending,
        emit: Emit,
        room: Callable[[], Awaitable[None]],
    ) -> None:
        self._session_id = session_id
        self._model = model
        self._options = options
        self._spending = spending
        self._emit = emit
        self._room = room

    async def ask(self, request: CompletionRequest, *, silent: bool = False) -> CompletionResponse:
        """A whole reply; its deltas are emitted, unless `silent`.

        Raises CallTimeoutError, and what the model raises once no further try is left or a token has been emitted.
        """
        attempt = 1
        while True:
            reply = _Reply(None if silent else self._emit)
            try:
                return await self._try(request, reply)
            except Exception as error:
                if is_model_request_error(error) and error.usage is not None:
                    self._use(error.usage)
                if reply.started or not may_retry(error, attempt, self._options.retry):
                    raise
                delay = retry_delay(error, attempt, self._options.retry)
                message = f"{error} Trying again ({attempt + 1} of {self._options.retry.attempts})."
                self._emit(Notice(code="retry", message=message, delay_ms=delay))
            await self._room()
            await sleep(delay)
            attempt += 1

    async def _try(self, request: CompletionRequest, reply: _Reply) -> CompletionResponse:
        limit = self._options.llm_call_timeout
        with telemetry.call_span(self._session_id, self._model.info, request) as span:
            try:
                with anyio.move_on_after(limit) as scope:
                    response = await self._model.generate(request, reply.delta)
                    reply.complete(response)
                    self._use(reply.measured(response.usage))
                    telemetry.replied(span, response)
                    return response
            except Exception:
                # A client may make an error of its own of being cancelled.
                if not scope.cancel_called:
                    raise
            finally:
                reply.closed = True
            raise CallTimeoutError(f"The model took longer than {limit:g} seconds.")

    def _use(self, usage: Usage) -> None:
        if not usage.is_empty:
            self._spending.add(usage)
            self._emit(UsageEvent(usage=usage))


class _Reply:
    """A reply while it comes in."""

    def __init__(self, emit: Emit | None) -> None:
        self._emit = emit
        self._begun = anyio.current_time()
        self._first: float | None = None
        self._kinds: set[str] = set()
        self.closed = False

    @property
    def started(self) -> bool:
        """Whether somebody has seen something of it."""
        return self._emit is not None and bool(self._kinds)

    def delta(self, delta: TokenDelta) -> None:
        """One more piece."""
        if self.closed or not delta.text:
            return
        if self._first is None:
            self._first = anyio.current_time()
        self._kinds.add(delta.kind)
        if self._emit is not None:
            self._emit(TextEvent(text=delta.text) if delta.kind == "text" else ThinkingEvent(text=delta.text))

    def complete(self, response: CompletionResponse) -> None:
        """Emit what a model that doesn't stream has kept to itself."""
        if response.reasoning and "reasoning" not in self._kinds:
            self.delta(TokenDelta(kind="reasoning", text=response.reasoning))
        if response.content and "text" not in self._kinds:
            self.delta(TokenDelta(kind="text", text=response.content))

    def measured(self, usage: Usage) -> Usage:
        """The usage with the times that the model didn't report; one without tokens stays as it is."""
        if usage.is_empty:
            return usage
        now = anyio.current_time()
        duration = now - self._begun if usage.duration is None else usage.duration
        update: dict[str, float] = {"duration": duration}
        if usage.latency is None and self._first is not None:
            update["latency"] = self._first - self._begun
        if usage.tokens_per_second is None and duration > 0:
            update["tokens_per_second"] = usage.output_tokens / duration
        return usage.model_copy(update=update)
