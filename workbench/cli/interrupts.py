"""^C in a program that goes on: it ends what is done at that moment."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workbench.cli import terminal

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

        def heed(number: int, _frame: object) -> None:
            _soon(loop, interrupted if number == signal.SIGINT else lambda: ended(number))

        before = {number: signal.signal(number, heed) for number in terminal.ending_signals()}
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
