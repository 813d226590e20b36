"""A run as its caller holds it."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Callable
from types import TracebackType
from typing import NamedTuple

import anyio

from workbench.errors import RunFailedError
from workbench.protocol.events import RunEvent
from workbench.protocol.messages import ChatMessage, ErrorInfo
from workbench.protocol.runs import RunResult

_BUFFERED_EVENTS = 256


class Run:
    """A started run. Nobody needs to read it: its events go to the subscribers."""

    def __init__(self, id: str, message_id: str | None) -> None:
        self._id = id
        self._message_id = message_id
        self._finished = anyio.Event()
        self._outcome: RunResult | RunFailedError | None = None
        self._scope: anyio.CancelScope | None = None
        self._cancelled = False
        self._settled = False

    @property
    def id(self) -> str:
        """The run's own id, as in its events."""
        return self._id

    @property
    def message_id(self) -> str | None:
        """That of the message that began it; None where the caller owns the messages."""
        return self._message_id

    @property
    def done(self) -> bool:
        """Whether it has ended and its lock is free."""
        return self._outcome is not None

    async def result(self) -> RunResult:
        """Wait for the end; cancelling the wait doesn't cancel the run. Raises RunFailedError, after `run.failed`."""
        await self._finished.wait()
        if isinstance(self._outcome, RunResult):
            return self._outcome
        assert self._outcome is not None
        # Each waiter raises its own: a shared one would collect everybody's traceback.
        raise _copy(self._outcome) from self._outcome.__cause__

    def cancel(self) -> bool:
        """End it with `cancelled`; False where it has already ended."""
        if self._settled:
            return False
        self._cancelled = True
        if self._scope is not None:
            self._scope.cancel()
        return True

    @property
    def cancel_requested(self) -> bool:
        """Whether `cancel` came in time."""
        return self._cancelled

    def enter(self, scope: anyio.CancelScope) -> None:
        """For the session: `scope` is what `cancel` ends from now on."""
        self._scope = scope
        if self._cancelled:
            scope.cancel()

    def settle(self) -> None:
        """For the session: how the run ends is decided, and `cancel` comes too late."""
        self._settled = True
        self._scope = None

    def finish(self, outcome: RunResult | RunFailedError) -> None:
        """For the session: everything is over."""
        self._settled = True
        self._outcome = outcome
        self._finished.set()

    async def wait_finished(self) -> None:
        """Wait until everything is over, however it ended."""
        await self._finished.wait()

    def hear(self, event: RunEvent) -> None:
        """For the session: one more event of this run."""

    async def room(self) -> None:
        """For the session: wait until its reader has kept up."""


class RunStream(Run):
    """A run with its events: `async for`.

    Read it to the end, or use `async with`: leaving early cancels it, and returns once the lock is free. The loop waits
    for a slow reader. `result()` lifts that bound, and after `cancel()` what doesn't fit is dropped: neither can hang.
    """

    def __init__(self, id: str, message_id: str | None) -> None:
        super().__init__(id, message_id)
        self._events: deque[RunEvent] = deque()
        self._news = anyio.Event()
        self._space = anyio.Event()
        self._bounded = True
        self._complete = False

    def __aiter__(self) -> AsyncIterator[RunEvent]:
        return self

    async def __anext__(self) -> RunEvent:
        while not self._events:
            if self._complete:
                raise StopAsyncIteration
            if self._news.is_set():
                self._news = anyio.Event()
            await self._news.wait()
        event = self._events.popleft()
        if len(self._events) < _BUFFERED_EVENTS:
            self._space.set()
        return event

    async def __aenter__(self) -> RunStream:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._complete:
            self.cancel()
        with anyio.CancelScope(shield=True):
            await self.wait_finished()

    async def result(self) -> RunResult:
        self._lift()
        return await super().result()

    def cancel(self) -> bool:
        cancelled = super().cancel()
        self._space.set()
        return cancelled

    def hear(self, event: RunEvent) -> None:
        if event.type == "end":
            self._complete = True
        elif self._cancelled and event.type != "error" and len(self._events) >= _BUFFERED_EVENTS:
            return
        self._events.append(event)
        self._news.set()

    async def room(self) -> None:
        while self._bounded and not self._cancelled and len(self._events) >= _BUFFERED_EVENTS:
            self._space = anyio.Event()
            await self._space.wait()

    def finish(self, outcome: RunResult | RunFailedError) -> None:
        self._complete = True
        self._news.set()
        super().finish(outcome)

    def _lift(self) -> None:
        self._bounded = False
        self._space.set()


class Drained(NamedTuple):
    """What a run produced.

    `messages` are its replies and tool messages as History would hold them, `error` is that of the first `error` event.
    """

    messages: tuple[ChatMessage, ...]
    error: ErrorInfo | None


async def drain(events: AsyncIterable[RunEvent]) -> Drained:
    """Read to the end. A last reply whose tool results aren't all there is left out, so that the log can be sent again."""
    messages: list[ChatMessage] = []
    error: ErrorInfo | None = None
    async for event in events:
        if event.type == "message.completed" and event.message.role in ("assistant", "tool"):
            messages.append(event.message)
        elif event.type == "error" and error is None:
            error = event.error
    return Drained(_whole(messages), error)


def _whole(messages: list[ChatMessage]) -> tuple[ChatMessage, ...]:
    last = next((index for index in reversed(range(len(messages))) if messages[index].role == "assistant"), None)
    if last is None:
        return tuple(messages)
    answered = {message.tool_call_id for message in messages[last + 1 :]}
    if all(call.id in answered for call in messages[last].tool_calls):
        return tuple(messages)
    return tuple(messages[:last])


def _copy(error: RunFailedError) -> RunFailedError:
    return RunFailedError(
        error.message,
        code=error.code,
        hint=error.hint,
        run_id=error.run_id,
        message_id=error.message_id,
        end_reason=error.end_reason,
        usage=error.usage,
    )


Emit = Callable[[RunEvent], None]
