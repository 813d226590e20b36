"""One run of a session at a time."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Protocol


class Locker(Protocol):
    """Serialises the runs of one session; safe for concurrent use."""

    def lock(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """Hold the session's lock in the `async with`; entering waits for it, and may be cancelled. Raises LockError."""
        ...
