"""Calls in worker threads, which no cancellation reaches."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio import to_thread

T = TypeVar("T")

_AT_ONCE = 40


class WorkerThreads:
    """Runs functions in worker threads, and remembers those that were given up while they went on."""

    def __init__(self) -> None:
        self._abandoned: set[_Work] = set()
        self._turns: anyio.CapacityLimiter | None = None

    def turn(self) -> anyio.CapacityLimiter:
        """What is held while a function is waited for, so that no more than some run at once.

        One that was given up holds nothing: however many hang, others go on.
        """
        if self._turns is None:
            self._turns = anyio.CapacityLimiter(_AT_ONCE)
        return self._turns

    async def run(self, function: Callable[[], T]) -> T:
        """What `function` returns, or raises. A cancelled wait leaves the thread to itself."""
        work = _Work()

        def body() -> tuple[T] | BaseException:
            # Trio refuses a function whose result is a coroutine, which a tool's may be; and asyncio closes whoever waits
            # for a GeneratorExit.
            with work:
                try:
                    return (function(),)
                except BaseException as error:  # noqa: BLE001
                    return error

        try:
            outcome = await to_thread.run_sync(body, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1))
            if isinstance(outcome, BaseException):
                raise outcome
            return outcome[0]
        finally:
            if work.give_up():
                self._abandoned.add(work)

    async def wait(self) -> None:
        """Wait until every function that was given up has ended."""
        while self._abandoned:
            work = self._abandoned.pop()
            try:
                await to_thread.run_sync(work.ended.wait, abandon_on_cancel=True)
            finally:
                if not work.ended.is_set():
                    self._abandoned.add(work)


class _Work:
    """One function's way through a thread: a thread that begins after it was given up does nothing."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._begun = False
        self._given_up = False
        self.ended = threading.Event()

    def give_up(self) -> bool:
        """Whether the function runs at this moment; from now on it doesn't begin."""
        with self._lock:
            self._given_up = True
            return self._begun and not self.ended.is_set()

    def __enter__(self) -> None:
        with self._lock:
            if self._given_up:
                raise RuntimeError("given up before it began")
            self._begun = True

    def __exit__(self, *exception: object) -> None:
        self.ended.set()
