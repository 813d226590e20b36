"""An abort that carries a reason, for what runs in worker threads and for readers that hand it on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from workbench.errors import OperationCancelledError
from workbench.protocol.disposer import Disposer


class CancelSignal:
    """Safe to use from any thread; once cancelled it stays so, with the first reason."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._reason: BaseException | None = None
        self._listeners: dict[int, Callable[[], None]] = {}
        self._next = 0

    @property
    def cancelled(self) -> bool:
        """Whether `cancel` has been called."""
        return self._cancelled

    @property
    def reason(self) -> BaseException | None:
        """What `cancel` was given; None also where it was given nothing."""
        return self._reason

    def cancel(self, reason: BaseException | None = None) -> None:
        """Cancel; later calls do nothing."""
        with self._lock:
            if self._cancelled:
                return
            self._cancelled, self._reason = True, reason
            listeners = list(self._listeners.values())
            self._listeners.clear()
        for listener in listeners:
            listener()

    def raise_if_cancelled(self) -> None:
        """Raises the reason, else OperationCancelledError, where it has been cancelled."""
        if self._cancelled:
            raise self._reason or OperationCancelledError("The operation was cancelled.")

    def on_cancel(self, listener: Callable[[], None]) -> Disposer:
        """Call `listener` once, in the thread that cancels; at once where it's cancelled already."""
        with self._lock:
            if not self._cancelled:
                key = self._next
                self._next += 1
                self._listeners[key] = listener
                return Disposer(lambda: self._forget(key))
        listener()
        return Disposer(lambda: None)

    def _forget(self, key: int) -> None:
        with self._lock:
            self._listeners.pop(key, None)
