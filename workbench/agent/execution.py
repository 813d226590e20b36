"""One run from its lock to its last event: lock, read History, loop, append once, `end`, unlock."""

from __future__ import annotations

import math
import traceback
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from workbench.agent import telemetry
from workbench.agent.asking import Asker, CallTimeoutError
from workbench.agent.budgets import Spending
from workbench.agent.channel import EventChannel
from workbench.agent.compaction import Compactor, Summary
from workbench.agent.history import History, RewindableHistory
from workbench.agent.locks import Locker
from workbench.agent.loop import CUT, Loop, LoopEnd
from workbench.agent.options import SessionOptions
from workbench.agent.prompt import title_from_input
from workbench.agent.run import Run
from workbench.agent.state import SessionState
from workbench.agent.tasks import must_go_on
from workbench.agent.toolcalls import ToolCalls
from workbench.errors import MessageExistsError, RunFailedError, WorkbenchError, described
from workbench.models.base import LanguageModel
from workbench.models.errors import is_model_request_error
from workbench.protocol.events import (
    EndEvent,
    ErrorEvent,
    MessageCompleted,
    RunCancelled,
    RunCompleted,
    RunEvent,
    RunFailed,
    RunStarted,
)
from workbench.protocol.messages import ChatMessage, ErrorInfo, Usage, now
from workbench.protocol.runs import EndReason, RunOptions, RunResult
from workbench.protocol.sessions import SessionDetail

# What a History and a Locker may take for their last word, once the run's own time is up.
_SETTLING_SECONDS = 30.0


@dataclass(frozen=True)
class Intake:
    """What a run begins with: the `message` that is new, or `messages` that the caller owns.

    `veto` is what was wrong before it began. `announced` says that the message's events have been emitted. `deadline` is
    the caller's, by the event loop's clock.
    """

    message: ChatMessage | None = None
    messages: tuple[ChatMessage, ...] = ()
    options: RunOptions = field(default_factory=RunOptions)
    veto: Exception | None = None
    announced: bool = False
    deadline: float = math.inf


@dataclass(frozen=True)
class _Ending:
    """How a run ended; `error` where it failed, with its `cause`."""

    reason: EndReason
    error: ErrorInfo | None = None
    cause: BaseException | None = None
    last: LoopEnd | None = None


class Execution:
    """Carries out one run of a session."""

    def __init__(
        self,
        run: Run,
        intake: Intake,
        *,
        state: SessionState,
        history: History,
        locker: Locker,
        model: Callable[[], LanguageModel],
        options: SessionOptions,
        channel: EventChannel,
        finished: Callable[[Run], None],
        updated: Callable[[], None],
        before: Run | None,
    ) -> None:
        self._run = run
        self._intake = intake
        self._state = state
        self._history = history
        self._locker = locker
        self._model = model
        self._options = options
        self._channel = channel
        self._finished = finished
        self._updated = updated
        self._before = before
        self._spending = Spending(options.budget, state.usage)
        # The run's own messages: what it began with, then what came of it.
        self._messages: list[ChatMessage] = []
        self._loop: Loop | None = None
        self._ended = False

    async def __call__(self) -> None:
        """From the lock to the last event. Raises nothing but what ends the event loop itself."""
        ending = _Ending(EndReason.CANCELLED)
        try:
            ending = await self._serialised()
        finally:
            self._conclude(ending)

    def announce(self) -> None:
        """Emit that the message is there and that the run has begun."""
        message = self._intake.message
        if message is not None:
            self._state.taken.add(message.id)
            self._state.title = self._state.title or title_from_input(message.content)
            self._messages.append(message)
            self._state.pending = self._messages
            self._emit(MessageCompleted(message=message.model_copy(deep=True)))
        self._emit(RunStarted(message_id=self._run.message_id))

    async def _serialised(self) -> _Ending:
        """The run under its lock, whose scope is never left before the lock's own may be."""
        deadline = min(self._intake.deadline, anyio.current_time() + self._options.run_timeout)
        ending: _Ending | None = None
        held = False
        with anyio.CancelScope(deadline=deadline) as scope:
            self._run.enter(scope)
            try:
                if self._intake.veto is not None:
                    raise self._intake.veto
                if self._before is not None:
                    # Tasks begin in any order, but runs of one object take turns in the order of their calls.
                    await self._before.wait_finished()
                async with self._locker.lock(self._state.id):
                    held = True
                    scope.deadline = math.inf
                    ending = await self._locked(deadline)
                    self._say_end(ending)
                    scope.deadline = anyio.current_time() + _SETTLING_SECONDS
            except BaseException as error:
                if must_go_on(error):
                    raise
                if not held:
                    ending = self._failure(error, "" if error is self._intake.veto else "lock_failed", scope)
                else:
                    self._options.logger.exception("the lock of session %s wasn't released properly", self._state.id)
        if ending is None:
            ending = self._stopped()
        elif scope.cancelled_caught:
            self._options.logger.error("the lock of session %s wasn't released in time", self._state.id)
        return ending

    async def _locked(self, deadline: float) -> _Ending:
        """The run itself; what it came to is stored before this returns."""
        end: LoopEnd | None = None
        ending: _Ending | None = None
        with anyio.CancelScope(deadline=deadline) as scope:
            self._run.enter(scope)
            try:
                end = await self._work(deadline)
            except BaseException as error:
                if must_go_on(error):
                    raise
                ending = self._failure(error, "", scope)
            # From here on nothing may come between the run and its History.
            self._run.settle()
        if scope.cancelled_caught:
            ending = self._stopped()
        self._run.settle()
        with anyio.CancelScope(shield=True, deadline=max(deadline, anyio.current_time() + _SETTLING_SECONDS)):
            return await self._store(end, ending)
        return self._failure(TimeoutError("the history didn't answer in time"), "history_failed", None)

    async def _work(self, deadline: float) -> LoopEnd:
        intake, options = self._intake, self._options
        # Runs that waited for the lock count what those before them have spent.
        self._spending = Spending(options.budget, self._state.usage)
        model = self._model()
        history: tuple[ChatMessage, ...] = ()
        if intake.message is not None:
            history = await self._read()
            if any(message.id == intake.message.id for message in history):
                raise MessageExistsError(f"The session has a message {intake.message.id} already.")
        if intake.messages:
            self._messages.extend(intake.messages)
        if not intake.announced:
            self.announce()
        tools = {tool.schema.name: tool for tool in options.tools.list()} if options.tools is not None else {}
        asker = Asker(self._state.id, model, options, self._spending, self._emit, self._room)
        self._loop = Loop(
            model=model.info,
            options=options,
            system="\n\n".join(part for part in (self._state.system_prompt, intake.options.system_suffix) if part),
            thinking=intake.options.thinking or options.thinking,
            schemas=[tool.schema for tool in tools.values()],
            history=history,
            messages=self._messages,
            asker=asker,
            calls=ToolCalls(
                run_id=self._run.id,
                session=_ToolSession(self._state, history, self._messages),
                tools=tools,
                options=options,
                threads=self._state.threads,
                emit=self._emit,
                deadline=deadline,
            ),
            compactor=Compactor(
                model.info,
                self._state.summary if intake.message is not None else Summary(),
                max_tokens=options.max_tokens,
                emit=self._emit,
                ask=lambda request: asker.ask(request, silent=True),
            ),
            spending=self._spending,
            emit=self._emit,
            room=self._room,
        )
        with telemetry.run_span(self._state.id, model.info):
            end = await self._loop.run()
        await checkpoint_if_cancelled()
        return end

    async def _room(self) -> None:
        """Wait until the run's reader has kept up; a run that waits for nothing can be cancelled here, and lets others on."""
        await checkpoint()
        await self._run.room()

    async def _read(self) -> tuple[ChatMessage, ...]:
        try:
            messages = await self._history.read(self._state.id)
        except BaseException as error:
            if must_go_on(error):
                raise
            raise _StorageError from error
        self._state.messages = tuple(messages)
        return self._state.messages

    async def _store(self, end: LoopEnd | None, ending: _Ending | None) -> _Ending:
        """Store what a run came to: of one that failed or was cancelled, its usage only."""
        messages = tuple(self._messages) if end is not None and self._intake.message is not None else ()
        used = self._spending.usage
        self._state.updated_at = now()
        try:
            if not isinstance(self._history, RewindableHistory):
                if messages:
                    await self._history.append(self._state.id, *messages)
                self._state.usage += used
                self._state.messages += messages
            elif messages or not used.is_empty:
                detail = await self._history.change(self._state.id, lambda before: self._after(before, messages))
                self._state.usage, self._state.messages = detail.usage, detail.messages
        except BaseException as error:
            if must_go_on(error):
                raise
            self._state.usage += used
            if ending is None:
                return self._failure(error, "history_failed", None)
            self._options.logger.exception("the usage of session %s can't be stored", self._state.id)
        return ending or _Ending(end.reason if end else EndReason.STOP, last=end)

    def _after(self, before: SessionDetail, messages: Sequence[ChatMessage]) -> SessionDetail:
        """The stored session after the run; what somebody else has changed of it meanwhile stays."""
        state = self._state
        return before.model_copy(
            update={
                "title": before.title or state.title,
                "workspace": before.workspace or state.workspace,
                "model": state.model,
                "usage": before.usage + self._spending.usage,
                "messages": (*before.messages, *messages),
                "message_count": len(before.messages) + len(messages),
                "updated_at": state.updated_at,
            }
        )

    def _failure(self, error: BaseException, code: str, scope: anyio.CancelScope | None) -> _Ending:
        """The ending for an exception; where the run was being stopped, its wake only."""
        if scope is not None and scope.cancel_called:
            return self._stopped()
        if isinstance(error, CallTimeoutError):
            return _Ending(EndReason.TIMEOUT, ErrorInfo(code="run_timeout", message=str(error)), error)
        if isinstance(error, _StorageError):
            assert error.__cause__ is not None
            return self._failure(error.__cause__, "history_failed", None)
        if isinstance(error, WorkbenchError):
            info = ErrorInfo(code=error.code, message=error.message, hint=error.hint)
        elif is_model_request_error(error):
            info = ErrorInfo(code=error.code, message=str(error))
        else:
            stack = "".join(traceback.format_exception(error))
            info = ErrorInfo(
                code=code or WorkbenchError.default_code,
                message=described(error),
                stack=stack,
            )
        return _Ending(EndReason.ERROR, info, error)

    def _stopped(self) -> _Ending:
        """The ending of a run whose scope was cancelled: by somebody, or by its deadline."""
        if self._run.cancel_requested:
            return _Ending(EndReason.CANCELLED, last=self._loop.last() if self._loop is not None else None)
        info = ErrorInfo(code="run_timeout", message="The run didn't end in its time.")
        return _Ending(EndReason.TIMEOUT, info, TimeoutError(info.message))

    def _say_end(self, ending: _Ending) -> None:
        if self._ended:
            return
        self._ended = True
        if ending.error is not None:
            self._emit(ErrorEvent(error=ending.error))
        self._emit(EndEvent(end_reason=ending.reason))

    def _conclude(self, ending: _Ending) -> None:
        """Everything is over, and the lock free: say so."""
        self._run.settle()
        self._say_end(ending)
        if self._state.pending is self._messages:
            self._state.pending = []
        self._finished(self._run)
        usage = self._spending.usage
        if ending.error is not None:
            self._publish(RunFailed(error=ending.error, end_reason=ending.reason, usage=usage))
            self._updated()
            failure = RunFailedError(
                ending.error.message,
                code=ending.error.code,
                hint=ending.error.hint,
                run_id=self._run.id,
                message_id=self._run.message_id,
                end_reason=ending.reason,
                usage=usage,
            )
            failure.__cause__ = ending.cause
            self._run.finish(failure)
            return
        result = self._result(ending, usage)
        event = RunCancelled if ending.reason is EndReason.CANCELLED else RunCompleted
        self._publish(event(result=result))
        self._updated()
        self._run.finish(result)

    def _result(self, ending: _Ending, usage: Usage) -> RunResult:
        last = ending.last or LoopEnd(ending.reason, None, "", 0)
        completed = ending.reason is EndReason.STOP
        return RunResult(
            run_id=self._run.id,
            message_id=self._run.message_id,
            status="completed" if completed else "cancelled" if ending.reason is EndReason.CANCELLED else "max_steps",
            end_reason=ending.reason,
            finish_reason=last.finish_reason,
            text=last.text,
            usage=usage,
            turns=last.turns,
            ok=completed and last.finish_reason not in CUT,
        )

    def _emit(self, event: RunEvent) -> None:
        self._run.hear(self._publish(event))

    def _publish(self, event: Any) -> Any:
        return self._channel.publish(event, run_id=self._run.id)


class _StorageError(Exception):
    """A history can't be read; the cause says why."""


class _ToolSession:
    """The session as the tools of one run see it."""

    def __init__(self, state: SessionState, history: Sequence[ChatMessage], messages: list[ChatMessage]) -> None:
        self._state = state
        self._history = tuple(history)
        self._messages = messages

    @property
    def id(self) -> str:
        return self._state.id

    @property
    def workspace(self) -> str:
        return self._state.workspace

    @property
    def messages(self) -> tuple[ChatMessage, ...]:
        """The conversation so far; what the receiver changes of it changes nothing."""
        return tuple(message.model_copy(deep=True) for message in (*self._history, *self._messages))

    @property
    def metadata(self) -> MutableMapping[str, Any]:
        return self._state.metadata
