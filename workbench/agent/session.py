"""One conversation: its runs, one at a time, and what is kept between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import anyio
from anyio.lowlevel import current_token
from pydantic import TypeAdapter, ValidationError

from workbench.agent.channel import EventChannel, Listener
from workbench.agent.event_log import EventLog
from workbench.agent.execution import Execution, Intake
from workbench.agent.history import History, MemoryHistory, RewindableHistory
from workbench.agent.locks import LocalLocker, Locker
from workbench.agent.options import SessionOptions
from workbench.agent.prompt import create_message, new_id, title_from_input
from workbench.agent.run import Run, RunStream
from workbench.agent.state import SessionState
from workbench.agent.tasks import spawn
from workbench.agent.transcript import Around, Change, Messages, before_message, changed
from workbench.errors import (
    MessageExistsError,
    ModelNotFoundError,
    OptionsError,
    RewindError,
    SessionBusyError,
    SessionClosedError,
    WorkbenchError,
)
from workbench.models.base import LanguageModel
from workbench.protocol.disposer import Disposer
from workbench.protocol.events import SessionEvent, SessionRewound, SessionUpdated
from workbench.protocol.messages import ChatMessage, ImageAttachment, now
from workbench.protocol.runs import RunOptions
from workbench.protocol.sessions import Rewound, SessionDetail, SessionId, SessionSummary

if TYPE_CHECKING:
    from workbench.agent.models import ModelRegistry

_DEFAULT_OPTIONS = SessionOptions()
_session_id: TypeAdapter[str] = TypeAdapter(SessionId)


class AgentSession:
    """One conversation.

    Safe for concurrent use; runs of one id are serialised by the Locker, so a fresh object per request is fine while
    History and Locker are shared. Does I/O only through its History, its Locker and its model. Leaving its `async with`
    closes it.
    """

    def __init__(
        self,
        *,
        id: str,
        history: History,
        locker: Locker,
        model: LanguageModel | str | None = None,
        models: ModelRegistry | None = None,
        workspace: str = "",
        system_prompt: str | None = None,
        options: SessionOptions = _DEFAULT_OPTIONS,
        detail: SessionDetail | None = None,
        guard: Callable[[], None] | None = None,
        seq: int = 0,
        log: EventLog | None = None,
    ) -> None:
        """`model`: a name is looked up in `models`, None is its default.

        For what keeps sessions: `detail` is the session as it was stored; where `model` is None, its model is looked up
        when a run needs it. `guard` is asked before each run, and vetoes by raising SessionGuardError. `log` numbers
        and keeps the events, of all objects of this session that share it; without one those of this object are numbered
        from `seq + 1` on. Raises ModelNotFoundError, OptionsError.
        """
        try:
            _session_id.validate_python(id)
        except ValidationError:
            raise OptionsError("A session's id has 1 to 256 characters.") from None
        self._models = models
        self._own_model = None if model is None or isinstance(model, str) else model
        self._history = history
        self._locker = locker
        self._options = options
        self._guard = guard
        self._runs: list[Run] = []
        self._closed = False
        self._changing = False
        if detail is not None and model is None:
            name = detail.model
        else:
            name = self._own_model.info.id if self._own_model is not None else self._registered(model).info.id
        self._state = SessionState(id=id, workspace=workspace, model=name, system_prompt=system_prompt)
        if detail is not None:
            self._state.restore(detail)
        self._channel = EventChannel(id, seq=seq, log=log, logger=options.logger)

    @classmethod
    def local(
        cls,
        *,
        id: str,
        model: LanguageModel,
        history: History | None = None,
        locker: Locker | None = None,
        workspace: str = "",
        system_prompt: str | None = None,
        options: SessionOptions = _DEFAULT_OPTIONS,
    ) -> Self:
        """MemoryHistory and LocalLocker where none are given: one process, tests."""
        return cls(
            id=id,
            model=model,
            history=history if history is not None else MemoryHistory(),
            locker=locker if locker is not None else LocalLocker(),
            workspace=workspace,
            system_prompt=system_prompt,
            options=options,
        )

    @property
    def id(self) -> str:
        """Its id."""
        return self._state.id

    @property
    def model(self) -> str:
        """The id of the model of its next run."""
        return self._state.model

    @property
    def workspace(self) -> str:
        """What it works on, as its prompt names it."""
        return self._state.workspace

    @property
    def is_running(self) -> bool:
        """From the start of a run until its lock is free."""
        return bool(self._runs)

    def summary(self) -> SessionSummary:
        """What a list shows of it."""
        return self._state.listed(is_running=self.is_running)

    def detail(self) -> SessionDetail:
        """All of it; what the receiver changes of it changes nothing."""
        return self._state.whole(is_running=self.is_running)

    def touch(self) -> None:
        """It counts as active now."""
        self._state.updated_at = now()

    def subscribe(self, listener: Listener) -> Disposer:
        """Call `listener` with each event, in `seq` order; it must not block.

        One that raises is logged, the others still get the event.
        """
        return self._channel.subscribe(listener)

    def publish(self, event: SessionEvent) -> None:
        """Number an event and deliver it like any other; for what keeps sessions, adapters and tests."""
        self._channel.publish(event)

    async def rename(self, title: str) -> None:
        """Give it another title. Raises OptionsError, StoreError."""
        if not title.strip():
            raise OptionsError("A title needs at least one visible character.")
        await self._change(title=title.strip())

    async def set_model(self, model: str) -> None:
        """Use another model from the next run on. Raises ModelNotFoundError, StoreError."""
        if self._own_model is None or self._own_model.info.id != model:
            self._registered(model)
        await self._change(model=model)

    async def set_system_prompt(self, prompt: str) -> None:
        """Use another system prompt from the next run on. Raises StoreError."""
        await self._change(system_prompt=prompt)

    async def reset(self) -> None:
        """Empty the transcript; a title that was made from its first message goes along.

        Raises SessionBusyError, HistoryNotRewindableError, StoreError.
        """
        before: list[ChatMessage] = []

        def empty(messages: Messages) -> Messages:
            before[:] = messages
            return ()

        try:
            await self.change_transcript("", empty)
        except RewindError as error:
            raise SessionBusyError(error.message, hint=error.hint) from None
        if before and self._state.title == title_from_input(before[0].content):
            await self._change(title="")

    async def rewind(self, message_id: str) -> Rewound:
        """Remove a user message and all after it, persist, emit.

        Raises RewindError (`message_not_found`, `invalid_rewind_target`, `session_busy`), HistoryNotRewindableError,
        StoreError.
        """
        return await self.change_transcript(message_id, lambda messages: before_message(messages, message_id))

    async def change_transcript(
        self,
        message_id: str,
        change: Change,
        *,
        around: Around | None = None,
    ) -> Rewound:
        """Put what `change` makes of the messages in their place, persist, emit `session.rewound` to `message_id`.

        No run goes on meanwhile, here or anywhere. What must happen with it, such as bringing files back, is `around`: it's
        given the messages as they are and as they will be, and what it raises before it yields leaves them alone. Where
        nothing changes nothing is emitted. Raises RewindError (`session_busy`), HistoryNotRewindableError, StoreError, and
        what `change` raises.
        """
        if self._busy():
            raise RewindError("A run is in progress.", code="session_busy", hint="Cancel it, or wait for its end.")
        self._changing = True
        try:
            before, after = await changed(self.id, self._history, self._locker, change, around)
        finally:
            self._changing = False
        self._state.messages = after
        rewound = Rewound(removed=max(0, len(before) - len(after)), messages=after)
        if after != before:
            self.touch()
            surviving = rewound.model_copy(deep=True).messages
            self._channel.publish(SessionRewound(message_id=message_id, removed=rewound.removed, messages=surviving))
            self._updated()
        return rewound

    def cancel(self) -> bool:
        """Cancel every run of this object; False where there is none."""
        cancelled = [run.cancel() for run in self._runs]
        return any(cancelled)

    def start(self, input: str, *, images: Sequence[ImageAttachment] = (), message_id: str | None = None) -> Run:
        """Announce the message and begin.

        Raises SessionBusyError (it never waits), SessionGuardError, MessageExistsError, SessionClosedError, OptionsError.
        """
        # Without an event loop nothing may be announced.
        current_token()
        if self._closed:
            raise _closed()
        if self._busy():
            raise _busy("begin another")
        message = self._message(input, images, message_id)
        self._ask_guard()
        run = Run(new_id("run"), message.id)
        execution = self._execution(run, Intake(message=message, announced=True))
        execution.announce()
        spawn(execution, name=f"run {run.id}")
        return run

    def run(self, text: str, *, images: Sequence[ImageAttachment] = (), message_id: str | None = None) -> RunStream:
        """Like start(), but waits its turn at the Locker. Raises nothing: a veto, a bad message, a lost lock are `error` and
        `end`."""
        return self.run_with_options(text, RunOptions(), images=images, message_id=message_id)

    def run_with_options(
        self,
        text: str,
        options: RunOptions,
        *,
        images: Sequence[ImageAttachment] = (),
        message_id: str | None = None,
    ) -> RunStream:
        """As run(), with what this run does otherwise."""
        message: ChatMessage | None = None
        veto: Exception | None = None
        try:
            message = self._message(text, images, message_id)
            # Later ones of the same id must fail also while this one waits.
            self._state.taken.add(message.id)
        except Exception as error:  # noqa: BLE001
            veto = error
        return self._stream(Intake(message=message, options=options, veto=veto), message.id if message else message_id)

    def run_with_messages(self, messages: Sequence[ChatMessage]) -> RunStream:
        """Exactly these messages (a system message among them is an `error`). History is neither read nor written."""
        veto: WorkbenchError | None = None
        if not messages:
            veto = OptionsError("A run needs at least one message.")
        elif any(message.role == "system" for message in messages):
            veto = OptionsError("The session adds the system prompt itself: none may be among the messages.")
        return self._stream(
            Intake(messages=tuple(message.model_copy(deep=True) for message in messages), veto=veto), None
        )

    async def wait_idle(self) -> None:
        """Wait until no run of this object goes on."""
        while self._runs:
            await self._runs[-1].wait_finished()

    def stop(self) -> None:
        """Cancel its runs, and begin no more."""
        self._closed = True
        self.cancel()

    async def close(self) -> None:
        """Cancel its runs, and wait for them and for the threads of tools that were given up. From any task; once is enough."""
        self.stop()
        for run in tuple(self._runs):
            await run.wait_finished()
        await self._state.threads.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    def _registered(self, name: LanguageModel | str | None) -> LanguageModel:
        if self._models is None:
            raise ModelNotFoundError(
                f"There is no model {name}." if name else "The session has no model.",
                code="model_not_found" if name else "no_default_model",
                hint="Give the session a model, or a registry with one.",
            )
        assert name is None or isinstance(name, str)
        return self._models.get(name)

    def _current_model(self) -> LanguageModel:
        if self._own_model is not None and self._own_model.info.id == self._state.model:
            return self._own_model
        return self._registered(self._state.model)

    def _busy(self) -> bool:
        return self.is_running or self._changing

    def _message(self, text: str, images: Sequence[ImageAttachment], message_id: str | None) -> ChatMessage:
        """The user's message. Raises MessageExistsError, OptionsError."""
        if not text.strip() and not images:
            raise OptionsError("A message needs text or an image.")
        message = create_message("user", text, images=images)
        if message_id is None:
            return message
        if not message_id:
            raise OptionsError("A message's id has at least one character.")
        if self._state.has_had(message_id):
            raise MessageExistsError(
                f"The session has, or had, a message {message_id} already.",
                hint="Use an id of its own for each message.",
            )
        return message.model_copy(update={"id": message_id})

    def _ask_guard(self) -> None:
        if self._guard is not None:
            self._guard()

    def _stream(self, intake: Intake, message_id: str | None) -> RunStream:
        deadline = anyio.current_effective_deadline()
        run = RunStream(new_id("run"), message_id)
        veto: Exception | None = _closed() if self._closed else intake.veto
        if veto is None:
            try:
                self._ask_guard()
            except Exception as error:  # noqa: BLE001
                veto = error
        execution = self._execution(
            run,
            Intake(
                message=intake.message, messages=intake.messages, options=intake.options, veto=veto, deadline=deadline
            ),
        )
        if deadline == float("-inf"):
            # The caller has been cancelled already.
            run.cancel()
        spawn(execution, name=f"run {run.id}")
        return run

    def _execution(self, run: Run, intake: Intake) -> Execution:
        before = self._runs[-1] if self._runs else None
        self._runs.append(run)
        return Execution(
            run,
            intake,
            state=self._state,
            history=self._history,
            locker=self._locker,
            model=self._current_model,
            options=self._options,
            channel=self._channel,
            finished=self._runs.remove,
            updated=self._updated,
            before=before,
        )

    def _updated(self) -> None:
        self._channel.publish(SessionUpdated(session=self.summary()))

    async def _change(self, **values: Any) -> None:
        """Persist where the history keeps sessions, then change this object, then say so."""
        values["updated_at"] = now()
        if isinstance(self._history, RewindableHistory):
            await self._history.change(self.id, lambda before: before.model_copy(update=values))
        for name, value in values.items():
            setattr(self._state, name, value)
        self._updated()


def _busy(what: str) -> SessionBusyError:
    return SessionBusyError(f"A run is in progress: can't {what}.", hint="Cancel it, or wait for its end.")


def _closed() -> SessionClosedError:
    return SessionClosedError("The session is closed.", hint="Open it again.")
