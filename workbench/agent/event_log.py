"""The events of sessions, kept for whoever missed some of them."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from itertools import groupby
from typing import Protocol

import anyio
from pydantic import ValidationError

from workbench.agent.disk import on_disk
from workbench.agent.tasks import spawn
from workbench.errors import StoreError
from workbench.protocol.events import (
    Event,
    RunCancelled,
    RunCompleted,
    RunFailed,
    RunStarted,
    SessionDeleted,
    SessionEvent,
    ThinkingEvent,
    session_events,
)
from workbench.protocol.session_ids import file_name
from workbench.vfs import linefile, paths

_FILE = "events.jsonl"
_OF_RUNS = b'"type":"run.'
"""What stands in the line of every event that a run began or ended."""

_logger = logging.getLogger("workbench.agent")


class EventLog(Protocol):
    """The events of sessions by number, append-only; `session.rewound` marks what was taken back."""

    async def append(self, session_id: str, *events: SessionEvent) -> None:
        """Add events of one session, which must be stored: those of another are dropped. Raises StoreError."""

    async def read(self, session_id: str, *, after: int = 0) -> tuple[SessionEvent, ...]:
        """Those numbered above `after`, in order. Raises StoreError."""
        ...

    async def last_seq(self, session_id: str) -> int:
        """The number of the last one, 0 where there is none. Raises StoreError."""
        ...


class FileEventLog:
    """`<session>/events.jsonl` in a directory of sessions, an event a line; safe for use by several processes.

    A write is in the system's hands when it returns, not yet on the disk: the log is a record, not the state.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    async def append(self, session_id: str, *events: SessionEvent) -> None:
        """As `EventLog.append`. Raises StoreError, OptionsError for what can't be an id."""
        path = self._path(session_id)
        lines = b"".join(event.model_dump_json().encode() + b"\n" for event in events)
        with _store_errors(path), contextlib.suppress(FileNotFoundError):
            await on_disk(_append, path, lines)

    async def read(self, session_id: str, *, after: int = 0) -> tuple[SessionEvent, ...]:
        """As `EventLog.read`; a line that can't be read is logged and left out. Raises StoreError, OptionsError."""
        path = self._path(session_id)
        with _store_errors(path):
            return await on_disk(_read, path, after)

    async def last_seq(self, session_id: str) -> int:
        """As `EventLog.last_seq`. Raises StoreError, OptionsError."""
        with _store_errors(self._path(session_id)):
            return await on_disk(self.last_seq_now, session_id)

    def last_seq_now(self, session_id: str) -> int:
        """As `last_seq`, in the calling thread. Raises OSError, OptionsError."""
        path = self._path(session_id)
        line = linefile.last_line(path)
        try:
            return Event.model_validate_json(line).seq if line else 0
        except ValidationError:
            return max((event.seq for event in _read(path, 0)), default=0)

    async def run_results(self, session_id: str) -> dict[str, str]:
        """How the run of each message ended, a value of `EndReason`, by the message's id; empty where it hasn't ended.

        Raises as `read`.
        """
        path = self._path(session_id)
        with _store_errors(path):
            return await on_disk(_run_results, path)

    def _path(self, session_id: str) -> str:
        return os.path.join(self._directory, file_name(session_id), _FILE)


class EventWriter:
    """Appends to a log what is published, in order, without anybody waiting for it. Idle, it holds no task."""

    def __init__(self, log: EventLog, logger: logging.Logger) -> None:
        self._log = log
        self._logger = logger
        self._waiting: list[SessionEvent] = []
        self._done: anyio.Event | None = None

    def add(self, event: SessionEvent) -> None:
        """Append an event soon, unless it's one that is never kept; called in the event loop."""
        if isinstance(event, ThinkingEvent | SessionDeleted):
            return
        self._waiting.append(event)
        if self._done is None:
            spawn(self._write, name="event log")
            self._done = anyio.Event()

    async def flush(self) -> None:
        """Return once everything added has been appended."""
        while self._done is not None:
            await self._done.wait()

    async def _write(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = sorted(self._waiting, key=_session_of), []
                for session_id, events in groupby(batch, key=_session_of):
                    try:
                        await self._log.append(session_id, *events)
                    except Exception:
                        self._logger.exception("events of session %s can't be kept", session_id)
        finally:
            done, self._done = self._done, None
            if done is not None:
                done.set()


def _session_of(event: SessionEvent) -> str:
    return event.session_id


def _append(path: str, lines: bytes) -> None:
    linefile.append(path, lines, durable=False)


def _run_results(path: str) -> dict[str, str]:
    messages: dict[str | None, str] = {}
    found: dict[str, str] = {}
    for event in _read(path, 0, having=_OF_RUNS):
        if isinstance(event, RunStarted) and event.message_id is not None:
            messages[event.run_id] = event.message_id
            found[event.message_id] = ""
        elif event.run_id in messages and isinstance(event, RunCompleted | RunCancelled):
            found[messages[event.run_id]] = event.result.end_reason.value
        elif event.run_id in messages and isinstance(event, RunFailed):
            found[messages[event.run_id]] = event.end_reason.value
    return found


def _read(path: str, after: int, *, having: bytes = b"") -> tuple[SessionEvent, ...]:
    """The events numbered above `after`, of those in whose line something stands."""
    found = []
    for number, line in enumerate(linefile.read(path).whole, 1):
        if having not in line:
            continue
        try:
            found.append(session_events.validate_json(line))
        except ValidationError:
            _logger.warning("Line %d of the event log %s can't be read; it's left out.", number, _shown(path))
    return tuple(event for event in found if event.seq > after)


@contextlib.contextmanager
def _store_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"The event log {_shown(path)} can't be used: {error.strerror}.",
            hint="Look at the disk, and at the permissions of its directory.",
        ) from error


def _shown(path: str) -> str:
    return paths.display(os.fsencode(path))
