"""Where sessions are kept between processes."""

from __future__ import annotations

from typing import Protocol

from workbench.protocol.sessions import SessionDetail, SessionSummary


class SessionStore(Protocol):
    """Whole sessions by id; safe for concurrent use."""

    async def list(self) -> tuple[SessionSummary, ...]:
        """All sessions. Raises StoreError."""

    async def load(self, id: str) -> SessionDetail | None:
        """One session, None where there is none. Raises StoreError."""

    async def save(self, session: SessionDetail) -> None:
        """Keep this state in the place of the one before, wholly or not at all. Raises StoreError."""

    async def delete(self, id: str) -> None:
        """Remove a session; one that isn't there is none to remove. Raises StoreError."""
