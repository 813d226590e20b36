"""Tasks that outlive the call that starts them.

A run goes on after `start()` has returned, and its session may be closed by any task, so no task group of a caller's can
hold it: a group is left in the task that entered it, and none may stay open over a `yield`. The session owns its runs
instead, and `close()` waits for them. This is the one place that tells the two event loops apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import anyio

# The event loop holds its tasks weakly.
_tasks: set[asyncio.Task[None]] = set()


def spawn(function: Callable[[], Awaitable[None]], *, name: str) -> None:
    """Begin `function` in a task of its own, with a copy of the caller's context variables.

    It must raise nothing: nobody is there to hear it.
    """

    async def body() -> None:
        # Whoever closes us throws it; what somebody's code raises by itself must not end the event loop.
        with contextlib.suppress(GeneratorExit):
            await function()

    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        trio.lowlevel.spawn_system_task(body, name=name, context=contextvars.copy_context())
        return
    task = asyncio.get_running_loop().create_task(body(), name=name)
    _tasks.add(task)
    task.add_done_callback(_forget)


def must_go_on(error: BaseException) -> bool:
    """Whether an exception that somebody else's code let out is none of that code's failures, and is to be raised again.

    It's what ends a program, or a cancellation that somebody asked for. What comes by itself, such as the CancelledError of
    another task which was waited for, or the GeneratorExit of some generator, is a failure like any other.
    """
    if isinstance(error, Exception):
        return False
    if isinstance(error, BaseExceptionGroup):
        return any(must_go_on(one) for one in error.exceptions)
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return True
    if isinstance(error, GeneratorExit):
        # No event loop runs a coroutine that is being closed.
        return not _is_stepped()
    if not isinstance(error, anyio.get_cancelled_exc_class()):
        return False
    if not isinstance(error, asyncio.CancelledError) or anyio.current_effective_deadline() == float("-inf"):
        return True
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_exit(error: BaseException) -> bool:
    """Whether an exception that must go on does so only since code of a tool wanted to end the program."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_exit(one) or not must_go_on(one) for one in error.exceptions)
    return isinstance(error, SystemExit)


def _is_stepped() -> bool:
    """Whether an event loop runs this code."""
    try:
        anyio.get_current_task()
    except anyio.NoEventLoopError:
        return False
    return True


def _forget(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
