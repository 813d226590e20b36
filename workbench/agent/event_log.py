"""The events of sessions, kept for whoever missed some of them."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from typing import Protocol

from pydantic import ValidationError

from workbench.agent.disk import on_disk
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
_COUNTER = "events.seq"
_COUNTER_BYTES = 21
_OF_RUNS = b'"type":"run.'
"""What stands in the line of every event that a run began or ended."""

_logger = logging.getLogger("workbench.agent")


class EventLog(Protocol):
    """The events of sessions by number, append-only; `session.rewound` marks what was taken back.

    Whoever shares a log, of whatever process, gets numbers of one row: who has heard of a number finds all below it in the
    log, but for what is never kept.
    """

    def append(self, event: SessionEvent) -> SessionEvent:
        """Give an event the next number of its session, `event.seq` at least, and keep it, in one step; returns it so.

        Thinking is numbered only, and so is what comes of a session that isn't stored. It's called in the event loop by
        whoever publishes, so it must be quick. Raises StoreError.
        """
        ...

    async def read(self, session_id: str, *, after: int = 0) -> tuple[SessionEvent, ...]:
        """Those numbered above `after`, in order. Raises StoreError."""
        ...

    async def last_seq(self, session_id: str) -> int:
        """The last number that was given, 0 where none was. Raises StoreError."""
        ...


class MemoryEventLog:
    """As long as the process lives."""

    def __init__(self) -> None:
        self._events: dict[str, list[SessionEvent]] = {}
        self._numbers: dict[str, int] = {}

    def append(self, event: SessionEvent) -> SessionEvent:
        """As `EventLog.append`; raises nothing."""
        if isinstance(event, SessionDeleted):
            return event
        event = _numbered(event, max(self._numbers.get(event.session_id, 0) + 1, event.seq))
        self._numbers[event.session_id] = event.seq
        if not isinstance(event, ThinkingEvent):
            self._events.setdefault(event.session_id, []).append(event)
        return event

    async def read(self, session_id: str, *, after: int = 0) -> tuple[SessionEvent, ...]:
        """As `EventLog.read`; raises nothing."""
        return tuple(event for event in self._events.get(session_id, ()) if event.seq > after)

    async def last_seq(self, session_id: str) -> int:
        """As `EventLog.last_seq`; raises nothing."""
        return self._numbers.get(session_id, 0)

    def forget(self, session_id: str) -> None:
        """Drop what is kept of a session."""
        self._events.pop(session_id, None)
        self._numbers.pop(session_id, None)


class FileEventLog:
    """`<session>/events.jsonl` in a directory of sessions, an event a line; safe for use by several processes.

    `events.seq` beside it holds the last number that was given, and is locked while an event is added. A write is in the
    system's hands when it returns, not yet on the disk: the log is a record, not the state. What a crash tore is set aside.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def append(self, event: SessionEvent) -> SessionEvent:
        """As `EventLog.append`; its cost doesn't grow with the log. Raises StoreError, OptionsError for what can't be an id."""
        if isinstance(event, SessionDeleted):
            return event
        path = self._path(event.session_id)
        with _store_errors(path), contextlib.suppress(FileNotFoundError):
            return _append(path, event)
        return event

    async def read(self, session_id: str, *, after: int = 0) -> tuple[SessionEvent, ...]:
        """As `EventLog.read`; a line that can't be read is logged and left out. Raises StoreError, OptionsError."""
        path = self._path(session_id)
        with _store_errors(path):
            return await on_disk(_read, path, after)

    async def last_seq(self, session_id: str) -> int:
        """As `EventLog.last_seq`. Raises StoreError, OptionsError."""
        path = self._path(session_id)
        with _store_errors(path):
            return await on_disk(_last_given, path)

    async def run_results(self, session_id: str) -> dict[str, str]:
        """How the run of each message ended, a value of `EndReason`, by the message's id; empty where it hasn't ended.

        Raises as `read`.
        """
        path = self._path(session_id)
        with _store_errors(path):
            return await on_disk(_run_results, path)

    def _path(self, session_id: str) -> str:
        return os.path.join(self._directory, file_name(session_id), _FILE)


def _numbered(event: SessionEvent, seq: int) -> SessionEvent:
    return event if event.seq == seq else event.model_copy(update={"seq": seq})


def _append(path: str, event: SessionEvent) -> SessionEvent:
    """Number and keep an event. Raises OSError."""
    with linefile.locked(_counter(path), os.O_RDWR | os.O_CREAT, fcntl.LOCK_EX) as fd:
        last = _count(os.pread(fd, _COUNTER_BYTES, 0))
        # Who publishes its first event may come after a power cut, which keeps of two files what it likes.
        if last is None or event.seq <= 1:
            last = max(last or 0, _last_kept(path))
        event = _numbered(event, max(last + 1, event.seq))
        os.pwrite(fd, b"%020d\n" % event.seq, 0)
        if not isinstance(event, ThinkingEvent):
            aside = linefile.append(path, event.model_dump_json().encode() + b"\n", durable=False)
            if aside:
                _logger.warning("The end of an event log was torn by a crash, and was set aside as %s.", _shown(aside))
    return event


def _last_given(path: str) -> int:
    try:
        with linefile.locked(_counter(path), os.O_RDONLY, fcntl.LOCK_SH) as fd:
            last = _count(os.pread(fd, _COUNTER_BYTES, 0))
    except FileNotFoundError:
        last = None
    return max(last or 0, _last_kept(path))


def _last_kept(path: str) -> int:
    """The number of the last event in the log, 0 where there is none."""
    line = linefile.last_line(path)
    try:
        return Event.model_validate_json(line).seq if line else 0
    except ValidationError:
        return max((event.seq for event in _read(path, 0)), default=0)


def _counter(path: str) -> str:
    return os.path.join(os.path.dirname(path), _COUNTER)


def _count(content: bytes) -> int | None:
    """The number in a counter's file; None where it's torn."""
    return int(content) if len(content) == _COUNTER_BYTES and content[:-1].isdigit() else None


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
    """The events numbered above `after`, of those in whose line something stands; the lines of others aren't parsed."""
    found: list[SessionEvent] = []
    lines = linefile.read(path).whole
    for number in range(len(lines), 0, -1):
        line = lines[number - 1]
        if having not in line:
            continue
        try:
            event = session_events.validate_json(line)
        except ValidationError:
            _logger.warning("Line %d of the event log %s can't be read; it's left out.", number, _shown(path))
            continue
        if event.seq <= after:
            break
        found.append(event)
    return tuple(reversed(found))


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
