"""Where the messages of a session are kept: the protocol, in memory, in files, and in a store of sessions."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from typing import Protocol, runtime_checkable

from pydantic import ValidationError

from workbench.agent.disk import on_disk
from workbench.agent.locks import FileLocker, LocalLocker
from workbench.agent.stores import LockedStore, SessionStore
from workbench.errors import HistoryError, WorkbenchError
from workbench.protocol.messages import ChatMessage, Usage, now
from workbench.protocol.records import Frozen
from workbench.protocol.session_ids import file_name
from workbench.protocol.sessions import SessionDetail
from workbench.vfs import linefile, paths
from workbench.vfs.statefile import make_directory

_logger = logging.getLogger("workbench.agent")


class History(Protocol):
    """The messages of sessions, append-only; safe for concurrent use."""

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        """Add the messages of one run, all or none of them. Raises HistoryError."""

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        """All messages in order; none of an unknown session. Raises HistoryError."""
        ...


@runtime_checkable
class RewindableHistory(History, Protocol):
    """A history that keeps the whole session, so that its messages can be taken back."""

    async def change(self, session_id: str, change: Callable[[SessionDetail], SessionDetail]) -> SessionDetail:
        """Put what `change` makes of the session in the place of it, wholly or not at all; what it raises comes through.

        An unknown session is an empty one. Serialised per session, but not by its Locker. Raises HistoryError, StoreError.
        """
        ...


class MemoryHistory:
    """As long as the process lives."""

    def __init__(self) -> None:
        self._messages: dict[str, list[ChatMessage]] = {}

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        """As `History.append`; raises nothing."""
        self._messages.setdefault(session_id, []).extend(_copies(messages))

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        """As `History.read`; raises nothing."""
        return _copies(self._messages.get(session_id, ()))


class RunRecord(Frozen):
    """A line of a history's file: what one run appended. Two ids share a file where names are told apart by no case."""

    version: int = 1
    session_id: str
    messages: tuple[ChatMessage, ...]


class FileHistory:
    """A file a session, of a line a run, which only grows; safe for use by several processes.

    What a crash left half written was never appended: the next append sets it aside as `<file>.torn-<n>` and logs it.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """`directory` is made where it's missing, once it's needed."""
        self._directory = os.path.abspath(directory)

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        """As `History.append`; on disk when it returns. Raises HistoryError, OptionsError for what can't be an id."""
        if not messages:
            return
        path = self._path(session_id)
        line = RunRecord(session_id=session_id, messages=messages).model_dump_json().encode() + b"\n"
        with _history_errors(path):
            aside = await on_disk(_append, path, line)
        if aside:
            _logger.warning("The end of a history was torn by a crash, and was set aside as %s.", _shown(aside))

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        """As `History.read`; a line that can't be read is logged and left out. Raises HistoryError, OptionsError."""
        path = self._path(session_id)
        with _history_errors(path):
            return await on_disk(_read, path, session_id)

    def _path(self, session_id: str) -> str:
        return os.path.join(self._directory, f"{file_name(session_id)}.jsonl")


class StoreHistory:
    """The messages within whole sessions in a store; what is in them can be taken back, too.

    Several over one store are safe where the store brings a locker for them, as ours do, FileSessionStore also between
    processes.
    """

    def __init__(self, store: SessionStore) -> None:
        self._store = store
        self._locker = store.locker if isinstance(store, LockedStore) else LocalLocker()

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        """As `History.append`. Raises HistoryError."""

        def longer(session: SessionDetail) -> SessionDetail:
            return session.model_copy(update={"messages": session.messages + messages, "updated_at": now()})

        if messages:
            with _store_errors(session_id):
                await self.change(session_id, longer)

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        """As `History.read`. Raises HistoryError."""
        with _store_errors(session_id):
            session = await self._store.load(session_id)
        return () if session is None else session.messages

    async def change(self, session_id: str, change: Callable[[SessionDetail], SessionDetail]) -> SessionDetail:
        """As `RewindableHistory.change`; returns what was saved. Raises StoreError, LockError, and what `change` does.

        The count of messages follows by itself, and what is stored doesn't run.
        """
        async with self._locker.lock(session_id):
            changed = change(await self._store.load(session_id) or _empty(session_id))
            update = {"message_count": len(changed.messages), "is_running": False, "pending": ()}
            changed = changed.model_copy(update=update)
            await self._store.save(changed)
        return changed

    async def create(self, session: SessionDetail) -> bool:
        """Store a new session; False, with nothing changed, where one of its id is stored. Raises StoreError, LockError."""
        async with self._locker.lock(session.id):
            if await self._store.load(session.id) is not None:
                return False
            await self._store.save(session)
        return True

    async def delete(self, session_id: str) -> None:
        """Remove a stored session, never in the middle of a change. Raises StoreError, LockError."""
        async with self._locker.lock(session_id):
            await self._store.delete(session_id)
        if isinstance(self._locker, LocalLocker | FileLocker):
            self._locker.forget(session_id)


def _copies(messages: tuple[ChatMessage, ...] | list[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The arguments of a call can be changed by whoever holds them."""
    return tuple(message.model_copy(deep=True) if message.tool_calls else message for message in messages)


def _empty(session_id: str) -> SessionDetail:
    moment = now()
    return SessionDetail(
        id=session_id,
        title="",
        workspace="",
        model="",
        is_running=False,
        message_count=0,
        usage=Usage(),
        tenant_id=None,
        created_at=moment,
        updated_at=moment,
        system_prompt=None,
        messages=(),
        pending=(),
    )


def _append(path: str, line: bytes) -> str:
    make_directory(os.path.dirname(path))
    return linefile.append(path, line)


def _read(path: str, session_id: str) -> tuple[ChatMessage, ...]:
    lines = linefile.read(path)
    if lines.torn:
        _logger.warning("The end of the history %s was torn by a crash; it's left out.", _shown(path))
    messages: list[ChatMessage] = []
    for number, line in enumerate(lines.whole, 1):
        try:
            run = RunRecord.model_validate_json(line)
        except ValidationError:
            _logger.warning("Line %d of the history %s can't be read; it's left out.", number, _shown(path))
            continue
        if run.session_id == session_id:
            messages.extend(run.messages)
    return tuple(messages)


@contextlib.contextmanager
def _history_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise HistoryError(
            f"The history {_shown(path)} can't be used: {error.strerror}.",
            hint="Look at the disk, and at the permissions of its directory.",
        ) from error


@contextlib.contextmanager
def _store_errors(session_id: str) -> Iterator[None]:
    try:
        yield
    except WorkbenchError as error:
        message = f"The messages of session {session_id!r} can't be kept: {error.message}"
        raise HistoryError(message, hint=error.hint) from error


def _shown(path: str) -> str:
    return paths.display(os.fsencode(path))
