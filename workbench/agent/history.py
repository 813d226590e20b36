"""Where the messages of a session are kept."""

from __future__ import annotations

from typing import Protocol

from workbench.protocol.messages import ChatMessage


class History(Protocol):
    """The messages of sessions, append-only; safe for concurrent use."""

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        """Add the messages of one run, all or none of them. Raises HistoryError."""

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        """All messages in order; none of an unknown session. Raises HistoryError."""
        ...
