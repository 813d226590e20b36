"""^C in a program that goes on: it ends what is done at that moment."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Cancel = Callable[[], object]


class Interrupts:
    """Hands SIGINT to whoever wants it last, and SIGTERM and SIGHUP to the program's end. For asyncio.

    It sets handlers of its own, and not the event loop's: an editor that is started meanwhile puts others in their place,
    and ^C is the editor's.
    """

    def __init__(self) -> None:
        self._cancel: Cancel | None = None
        self.ended_by = 0
        """The signal that ended the program, 0 where none did."""

    @contextmanager
    def heard(self, end: Cancel) -> Iterator[None]:
        """Listen for the while; `end` is to end the program."""
        loop = asyncio.get_running_loop()

        def ended(number: int) -> None:
            self.ended_by = number
            end()

        def interrupted() -> None:
            if self._cancel is not None:
                self._cancel()

        before = {
            signal.SIGINT: signal.signal(signal.SIGINT, lambda *_: _soon(loop, interrupted)),
            signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: _soon(loop, lambda: ended(signal.SIGTERM))),
            signal.SIGHUP: signal.signal(signal.SIGHUP, lambda *_: _soon(loop, lambda: ended(signal.SIGHUP))),
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def to(self, cancel: Cancel) -> Iterator[None]:
        """For the while ^C calls this, in the event loop."""
        before, self._cancel = self._cancel, cancel
        try:
            yield
        finally:
            self._cancel = before


def _soon(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    loop.call_soon_threadsafe(call)
