"""Tasks that outlive the call that starts them.

A run goes on after `start()` has returned, and its session may be closed by any task, so no task group of a caller's can
hold it: a group is left in the task that entered it, and none may stay open over a `yield`. The session owns its runs
instead, and `close()` waits for them. This is the one place that tells the two event loops apart.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from collections.abc import Awaitable, Callable
from typing import Any

# The event loop holds its tasks weakly.
_tasks: set[asyncio.Task[None]] = set()


def spawn(function: Callable[[], Awaitable[None]], *, name: str) -> None:
    """Begin `function` in a task of its own, with a copy of the caller's context variables.

    It must raise nothing: nobody is there to hear it.
    """

    async def body() -> None:
        await function()

    trio = sys.modules.get("trio")
    if trio is not None and trio.lowlevel.in_trio_task():
        trio.lowlevel.spawn_system_task(body, name=name, context=contextvars.copy_context())
        return
    task = asyncio.get_running_loop().create_task(body(), name=name)
    _tasks.add(task)
    task.add_done_callback(_forget)


def _forget(task: asyncio.Task[Any]) -> None:
    _tasks.discard(task)
