"""One session's events: numbered, and handed to whoever listens, in order."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable

from workbench.agent.event_log import EventLog
from workbench.protocol.disposer import Disposer
from workbench.protocol.events import SessionEvent

Listener = Callable[[SessionEvent], None]


class EventChannel:
    """Numbers the events of one session from `seq + 1` on, and delivers each to all listeners before the next.

    Where there is a `log` it numbers and keeps them. One that fails is logged, and the numbers go on without it.
    """

    def __init__(self, session_id: str, *, seq: int = 0, log: EventLog | None = None, logger: logging.Logger) -> None:
        self._session_id = session_id
        self._seq = seq
        self._log = log
        self._log_fails = False
        self._logger = logger
        self._listeners: dict[int, Listener] = {}
        self._next_listener = 0
        self._waiting: deque[SessionEvent] = deque()
        self._delivering = False

    def subscribe(self, listener: Listener) -> Disposer:
        """Call `listener` with each event from now on; one that raises is logged, the others still get the event."""
        key = self._next_listener
        self._next_listener += 1
        self._listeners[key] = listener
        return Disposer(lambda: self._unsubscribe(key))

    def publish(self, event: SessionEvent, *, run_id: str | None = None) -> SessionEvent:
        """Number an event and deliver it; returns it as it was delivered."""
        event = event.model_copy(
            update={"seq": self._seq + 1, "session_id": self._session_id, "run_id": run_id or event.run_id}
        )
        if self._log is not None:
            event = self._logged(event, self._log)
        self._seq = event.seq
        self._waiting.append(event)
        # A listener may cause events itself: they come after this one for everybody.
        if not self._delivering:
            self._delivering = True
            try:
                while self._waiting:
                    self._deliver(self._waiting.popleft())
            finally:
                self._delivering = False
        return event

    def _logged(self, event: SessionEvent, log: EventLog) -> SessionEvent:
        try:
            event = log.append(event)
            self._log_fails = False
        except Exception:
            if not self._log_fails:
                self._logger.exception("events of session %s can't be kept", self._session_id)
            self._log_fails = True
        return event

    def _deliver(self, event: SessionEvent) -> None:
        for listener in tuple(self._listeners.values()):
            try:
                listener(event)
            except (KeyboardInterrupt, SystemExit):
                raise
            except BaseException:
                # A listener isn't a task that could be cancelled: a CancelledError is the result of one that it looked at.
                self._logger.exception("a listener of session %s failed", self._session_id)

    def _unsubscribe(self, key: int) -> None:
        self._listeners.pop(key, None)
