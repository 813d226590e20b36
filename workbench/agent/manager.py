"""All sessions of a process, over one store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Self, TypeVar

import anyio

from workbench.agent import garbage_collection
from workbench.agent.history import StoreHistory
from workbench.agent.locks import FileLocker, LocalLocker, Locker
from workbench.agent.models import ModelRegistry
from workbench.agent.options import SessionOptions
from workbench.agent.prompt import default_system_prompt, new_id
from workbench.agent.run import Run
from workbench.agent.session import AgentSession
from workbench.agent.stores import LoggedStore, MemorySessionStore, ReadableStore, SessionStore
from workbench.errors import SessionClosedError, SessionExistsError, SessionNotFoundError, StoreError
from workbench.protocol.disposer import Disposer
from workbench.protocol.events import SessionCreated, SessionDeleted, SessionEvent
from workbench.protocol.messages import Usage, now
from workbench.protocol.sessions import (
    CreateSessionRequest,
    SessionDetail,
    SessionGuardContext,
    SessionSummary,
)

T = TypeVar("T")
SessionGuard = Callable[[SessionGuardContext], None]
"""Vetoes a new session or a run by raising SessionGuardError; whatever else it raises is a veto, too."""


@dataclass(slots=True)
class _Member:
    """A session with its tenant and the number of its last event here; None while it's being made or deleted."""

    tenant_id: str | None
    seq: int = 0
    session: AgentSession | None = None


class SessionManager:
    """All sessions of a process. `async with` calls `initialize` and `close`.

    ::

        async with SessionManager(models=models, default_workspace="repo", store=FileSessionStore(directory)) as sessions:
            session = await sessions.create()
            result = await sessions.send(session.id, "What does this project do?").result()

    Processes that share a store need a FileLocker in common; each knows the sessions that were there when it began.
    """

    def __init__(
        self,
        *,
        models: ModelRegistry,
        default_workspace: str,
        store: SessionStore | None = None,
        locker: Locker | None = None,
        system_prompt: Callable[[str], str] | None = None,
        default_model: str | None = None,
        options: SessionOptions | None = None,
    ) -> None:
        """What is None is MemorySessionStore, LocalLocker, `default_system_prompt` of the workspace, the registry's default."""
        self._models = models
        self._default_workspace = default_workspace
        self._store: SessionStore = store or MemorySessionStore()
        self._history = StoreHistory(self._store)
        self._locker: Locker = locker or LocalLocker()
        self._system_prompt = system_prompt or self._default_system_prompt
        self._default_model = default_model
        self._options = options or SessionOptions()
        self._logger: logging.Logger = self._options.logger
        self._members: dict[str, _Member] = {}
        self._guards: dict[int, SessionGuard] = {}
        self._listeners: dict[int, Callable[[SessionEvent], None]] = {}
        self._next = 0
        self._log = self._store.event_log if isinstance(self._store, LoggedStore) else None
        self._initializing = anyio.Lock()
        self._initialized = False
        self._closed = False

    async def __aenter__(self) -> Self:
        await self.initialize()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.close()

    async def initialize(self) -> None:
        """Load the store's sessions, once; one that can't be loaded is logged. Raises StoreError, SessionClosedError."""
        async with self._initializing:
            self._refuse_closed()
            if self._initialized:
                return
            stored = await self._stored()
            self._refuse_closed()
            with garbage_collection.paused():
                for detail in stored:
                    self._members[detail.id] = member = _Member(detail.tenant_id)
                    member.session = self._session(member, detail)
            self._initialized = True

    async def close(self) -> None:
        """Cancel all runs, wait for them, and drop the sessions in memory; nothing stored is deleted. Any task may call it."""
        self._closed = True
        sessions = self._all()
        for session in sessions:
            session.stop()
        for session in sessions:
            await session.close()
        self._members.clear()

    def subscribe(self, listener: Callable[[SessionEvent], None]) -> Disposer:
        """Call `listener` with every event of every session, in order; it must not block. One that raises is logged."""
        return self._register(self._listeners, listener)

    def publish(self, event: SessionEvent) -> None:
        """Number an event and deliver it like any other; for adapters and tests. Raises SessionNotFoundError."""
        self.get(event.session_id).publish(event)

    def add_guard(self, guard: SessionGuard) -> Disposer:
        """Ask `guard` before every new session and every run."""
        return self._register(self._guards, guard)

    def check_guards(self, context: SessionGuardContext) -> None:
        """Ask all guards, in the order of their coming. Raises SessionGuardError, and what else one raises."""
        for guard in tuple(self._guards.values()):
            guard(context)

    async def create(
        self, request: CreateSessionRequest | None = None, *, tenant_id: str | None = None
    ) -> AgentSession:
        """Make a session, stored when this returns, and emit `session.created`.

        Raises SessionExistsError, SessionGuardError, ModelNotFoundError, StoreError, SessionClosedError.
        """
        request = request or CreateSessionRequest()
        await self.initialize()
        id = request.id or new_id("session")
        if id in self._members:
            raise _exists(id)
        model = self._models.get(request.model or self._default_model).info.id
        self._ask_guards("create", id, tenant_id)
        # Taken from here on, so that neither the id nor a quota is given away twice while the store is written.
        self._members[id] = member = _Member(tenant_id)
        try:
            moment = now()
            detail = SessionDetail(
                id=id,
                title=request.title or "",
                workspace=self._default_workspace if request.workspace is None else request.workspace,
                model=model,
                is_running=False,
                message_count=0,
                usage=Usage(),
                tenant_id=tenant_id,
                created_at=moment,
                updated_at=moment,
                system_prompt=request.system_prompt,
                messages=(),
                pending=(),
            )
            session = self._session(member, detail)
            with anyio.CancelScope(shield=True):
                if not await self._history.create(detail):
                    raise _exists(id)
                if self._closed:
                    # Nobody has heard of it, and nobody will.
                    await self._history.delete(id)
            self._refuse_closed()
        except BaseException:
            self._members.pop(id, None)
            raise
        member.session = session
        session.publish(SessionCreated(session=session.summary()))
        return session

    def get(self, id: str) -> AgentSession:
        """The session of this id. Raises SessionNotFoundError."""
        member = self._members.get(id)
        if member is None or member.session is None:
            raise SessionNotFoundError(f"There is no session {id!r}.", hint="List the sessions.")
        return member.session

    def has(self, id: str) -> bool:
        """Whether there is a session of this id."""
        return id in self._members and self._members[id].session is not None

    def list(self) -> tuple[SessionSummary, ...]:
        """All sessions, the one that was active last first."""
        summaries = (session.summary() for session in self._all())
        return tuple(sorted(summaries, key=lambda summary: summary.updated_at, reverse=True))

    def send(self, id: str, content: str) -> Run:
        """`get(id).start(content)`. Raises SessionNotFoundError, and as `AgentSession.start`."""
        return self.get(id).start(content)

    def cancel(self, id: str) -> bool:
        """`get(id).cancel()`. Raises SessionNotFoundError."""
        return self.get(id).cancel()

    async def delete(self, id: str) -> None:
        """Cancel a session's runs, remove it from the store, and emit `session.deleted`.

        Raises SessionNotFoundError, StoreError; then, and where it's cancelled, the session stays as it was but for its runs.
        """
        session = self.get(id)
        member = self._members[id]
        member.session = None
        try:
            await session.close()
            with anyio.CancelScope(shield=True):
                await self._history.delete(id)
        except BaseException:
            member.session = self._session(member, session.detail())
            raise
        session.publish(SessionDeleted())
        self._members.pop(id, None)
        if isinstance(self._locker, LocalLocker | FileLocker):
            self._locker.forget(id)

    def _all(self) -> tuple[AgentSession, ...]:
        return tuple(member.session for member in self._members.values() if member.session is not None)

    async def _stored(self) -> tuple[SessionDetail, ...]:
        """The store's sessions."""
        if isinstance(self._store, ReadableStore):
            return await self._store.load_all()
        found = []
        for summary in await self._store.list():
            try:
                detail = await self._store.load(summary.id)
            except StoreError as error:
                self._logger.warning("Session %r can't be loaded: %s", summary.id, error.message)
                continue
            if detail is not None:
                found.append(detail)
        return tuple(found)

    def _session(self, member: _Member, detail: SessionDetail) -> AgentSession:
        """A stored session to be had in memory."""
        prompt = self._system_prompt(detail.workspace) if detail.system_prompt is None else detail.system_prompt
        session = AgentSession(
            id=detail.id,
            history=self._history,
            locker=self._locker,
            models=self._models,
            workspace=detail.workspace,
            system_prompt=prompt,
            options=self._options,
            detail=detail,
            guard=lambda: self._ask_guards("run", detail.id, member.tenant_id),
            seq=member.seq,
            log=self._log,
        )
        session.subscribe(lambda event: self._deliver(member, event))
        return session

    def _ask_guards(self, action: Literal["create", "run"], id: str, tenant_id: str | None) -> None:
        if self._guards:
            theirs = [member for member in self._members.values() if member.tenant_id == tenant_id]
            running = sum(member.session is not None and member.session.is_running for member in theirs)
            self.check_guards(
                SessionGuardContext(
                    action=action, session_id=id, tenant_id=tenant_id, sessions=len(theirs), running=running
                )
            )

    def _deliver(self, member: _Member, event: SessionEvent) -> None:
        member.seq = event.seq
        for listener in tuple(self._listeners.values()):
            try:
                listener(event)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:
                self._logger.exception("a listener of the sessions failed")

    def _register(self, registered: dict[int, T], what: T) -> Disposer:
        key = self._next
        self._next += 1
        registered[key] = what

        def remove() -> None:
            registered.pop(key, None)

        return Disposer(remove)

    def _refuse_closed(self) -> None:
        if self._closed:
            raise SessionClosedError("The sessions of this process have been closed.")

    def _default_system_prompt(self, workspace: str) -> str:
        tools = self._options.tools
        names = [] if tools is None else [schema.name for schema in tools.schemas()]
        return default_system_prompt(workspace=workspace, tool_names=names)


def _exists(id: str) -> SessionExistsError:
    return SessionExistsError(f"There is a session {id!r} already.", hint="Use another id, or none.")
