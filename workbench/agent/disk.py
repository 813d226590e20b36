"""Work on files, off the event loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

import anyio.to_thread
from anyio.lowlevel import RunVar

_T = TypeVar("_T")
_Arguments = TypeVarTuple("_Arguments")

_THREADS = 8
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("limiter of workbench.agent.disk")


async def on_disk(work: Callable[[*_Arguments], _T], *arguments: *_Arguments) -> _T:
    """What `work` returns, or raises, in a worker thread; begun, it's finished whatever is cancelled.

    The threads are its own: tools that hang, each of which keeps one of the common ones, never keep a run from being stored.
    """
    try:
        limiter = _limiter.get()
    except LookupError:
        limiter = anyio.CapacityLimiter(_THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, *arguments, limiter=limiter)
