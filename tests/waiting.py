"""Waiting for a state instead of sleeping for a time."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import anyio

T = TypeVar("T")

_PAUSE_SECONDS = 0.02


def wait_until(state: Callable[[], T], what: str = "", *, seconds: float = 120.0) -> T:
    """Ask until the answer is true, and return it; fails, saying `what` was waited for, when the time is up."""
    deadline = time.monotonic() + seconds
    while True:
        answer = state()
        if answer:
            return answer
        assert time.monotonic() < deadline, f"after {seconds:g} seconds still not: {what or state}"
        time.sleep(_PAUSE_SECONDS)


async def until(state: Callable[[], object], *, seconds: float = 120.0) -> None:
    """As `wait_until`, for tests that are asynchronous; the state may be one to await. Raises TimeoutError."""
    with anyio.fail_after(seconds):
        while True:
            answer = state()
            if await answer if isinstance(answer, Awaitable) else answer:
                return
            await anyio.sleep(_PAUSE_SECONDS)


def unmount(place: Path) -> None:
    """Unmount a filesystem; a keeper that has just let go of everything takes a moment more to end."""
    wait_until(lambda: not subprocess.run(["umount", str(place)], check=False).returncode, f"{place} is unmounted")
