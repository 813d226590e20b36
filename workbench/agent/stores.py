"""Where sessions are kept between processes: the protocol, in memory, and in files."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from typing import Protocol, TypeVar, runtime_checkable

from workbench.agent import garbage_collection
from workbench.agent.disk import on_disk
from workbench.agent.event_log import EventLog, FileEventLog, MemoryEventLog
from workbench.agent.locks import FileLocker, LocalLocker, Locker
from workbench.errors import StateError, StoreError
from workbench.protocol.session_ids import file_name
from workbench.protocol.sessions import SessionDetail, SessionSummary
from workbench.vfs import paths
from workbench.vfs.statefile import make_directory, read_json, sync_directory, write_json

_Summary = TypeVar("_Summary", bound=SessionSummary)
_FILE = "session.json"
_REMOVED = ".removed-"

_logger = logging.getLogger("workbench.agent")


class SessionStore(Protocol):
    """Whole sessions by id; safe for concurrent use."""

    async def list(self) -> tuple[SessionSummary, ...]:
        """All sessions. Raises StoreError."""
        ...

    async def load(self, id: str) -> SessionDetail | None:
        """One session, None where there is none. Raises StoreError."""

    async def save(self, session: SessionDetail) -> None:
        """Keep this state in the place of the one before, wholly or not at all. Raises StoreError."""

    async def delete(self, id: str) -> None:
        """Remove a session; one that isn't there is none to remove. Raises StoreError."""


@runtime_checkable
class LockedStore(SessionStore, Protocol):
    """A store that several use: who reads a session and writes it changed holds its lock meanwhile."""

    @property
    def locker(self) -> Locker: ...


@runtime_checkable
class LoggedStore(SessionStore, Protocol):
    """A store that keeps the events of its sessions, too."""

    @property
    def event_log(self) -> EventLog: ...


@runtime_checkable
class ReadableStore(SessionStore, Protocol):
    """A store that reads all its sessions faster than one by one."""

    async def load_all(self) -> tuple[SessionDetail, ...]:
        """All sessions; one that can't be read is left out. Raises StoreError."""
        ...


class MemorySessionStore:
    """As long as the process lives."""

    def __init__(self) -> None:
        self._sessions: dict[str, SessionDetail] = {}
        self.locker = LocalLocker()
        self.event_log = MemoryEventLog()

    async def list(self) -> tuple[SessionSummary, ...]:
        """As `SessionStore.list`, in order of id; raises nothing."""
        return tuple(_summary(session) for _, session in sorted(self._sessions.items()))

    async def load(self, id: str) -> SessionDetail | None:
        """As `SessionStore.load`; raises nothing."""
        session = self._sessions.get(id)
        return None if session is None else session.model_copy(deep=True)

    async def save(self, session: SessionDetail) -> None:
        """As `SessionStore.save`; raises nothing."""
        self._sessions[session.id] = session.model_copy(deep=True)

    async def delete(self, id: str) -> None:
        """As `SessionStore.delete`; raises nothing."""
        self._sessions.pop(id, None)
        self.event_log.forget(id)


class FileSessionStore:
    """`sessions/<id>/session.json` in a directory, replaced whole; safe for use by several processes.

    `events.jsonl` beside it is the log of its events, which only grows, and in which `session.rewound` marks a rewind.
    A file that can't be read is set aside as `session.json.corrupt-<n>` and logged: its session is as if it had never been.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """`directory` is made where it's missing, once it's needed."""
        self._sessions = os.path.join(os.path.abspath(directory), "sessions")
        self.locker = FileLocker(os.path.join(self._sessions, ".locks"))
        self.event_log = FileEventLog(self._sessions)

    async def list(self) -> tuple[SessionSummary, ...]:
        """As `SessionStore.list`, in order of the directories' names. Raises StoreError."""
        with _store_errors():
            return await on_disk(self._list)

    async def load(self, id: str) -> SessionDetail | None:
        """As `SessionStore.load`. Raises StoreError, OptionsError for what can't be an id."""
        name = file_name(id)
        with _store_errors():
            session = await on_disk(self._read, name, SessionDetail)
        return session if session is not None and session.id == id else None

    async def load_all(self) -> tuple[SessionDetail, ...]:
        """As `ReadableStore.load_all`, in order of the directories' names. Raises StoreError."""
        with _store_errors():
            return await on_disk(self._load_all)

    async def save(self, session: SessionDetail) -> None:
        """As `SessionStore.save`; on disk when it returns. Raises StoreError."""
        name = file_name(session.id)
        with _store_errors():
            await on_disk(self._save, name, session)

    async def delete(self, id: str) -> None:
        """As `SessionStore.delete`, with everything in the session's directory. Raises StoreError, OptionsError."""
        name = file_name(id)
        with _store_errors():
            await on_disk(self._delete, name)

    def _list(self) -> tuple[SessionSummary, ...]:
        return tuple(self._all(SessionSummary))

    def _load_all(self) -> tuple[SessionDetail, ...]:
        with garbage_collection.paused():
            return tuple(self._all(SessionDetail))

    def _all(self, model: type[_Summary]) -> Iterator[_Summary]:
        try:
            names = sorted(os.listdir(self._sessions))
        except FileNotFoundError:
            return
        for name in names:
            if name.startswith(_REMOVED):
                # Whoever deletes it may be doing so at this moment.
                shutil.rmtree(os.path.join(self._sessions, name), ignore_errors=True)
            elif not name.startswith("."):
                try:
                    session = self._read(name, model)
                except OSError as error:
                    _logger.warning("The session in %s can't be read: %s.", self._shown(name), error.strerror)
                    continue
                if session is not None:
                    yield session

    def _read(self, name: str, model: type[_Summary]) -> _Summary | None:
        path = os.path.join(self._sessions, name, _FILE)
        try:
            return read_json(path, model)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except StateError as error:
            _logger.warning("The session in %s can't be read. %s", self._shown(name), error.hint)
            return None

    def _shown(self, name: str) -> str:
        return paths.display(os.fsencode(os.path.join(self._sessions, name)))

    def _save(self, name: str, session: SessionDetail) -> None:
        directory = os.path.join(self._sessions, name)
        if not os.path.isdir(directory):
            make_directory(directory)
            sync_directory(self._sessions)
        write_json(os.path.join(directory, _FILE), session)

    def _delete(self, name: str) -> None:
        aside = os.path.join(self._sessions, f"{_REMOVED}{secrets.token_hex(8)}")
        try:
            os.rename(os.path.join(self._sessions, name), aside)
        except FileNotFoundError:
            return
        sync_directory(self._sessions)
        # It's out of use; what can't be removed now is tried again by the next list.
        shutil.rmtree(aside, ignore_errors=True)


def _summary(session: SessionSummary) -> SessionSummary:
    """What a list shows of a session."""
    return SessionSummary(**{name: getattr(session, name) for name in SessionSummary.model_fields})


@contextlib.contextmanager
def _store_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = f" at {paths.display(os.fsencode(error.filename))}" if error.filename else ""
        raise StoreError(
            f"The store of sessions can't be used{where}: {error.strerror}.",
            hint="Look at the disk, and at the permissions of its directory.",
        ) from error
