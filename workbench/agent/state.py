"""What a session is made of between its runs."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from workbench.agent.compaction import Summary
from workbench.agent.threads import WorkerThreads
from workbench.protocol.messages import ChatMessage, Usage, now
from workbench.protocol.sessions import SessionDetail, SessionSummary


@dataclass
class SessionState:
    """One session's own data: `messages` are what History was last seen to hold, `pending` what runs have announced since.

    `taken` are the ids of all messages that ever began a run, of failed runs too.
    """

    id: str
    workspace: str
    model: str
    title: str = ""
    system_prompt: str | None = None
    tenant_id: str | None = None
    usage: Usage = field(default_factory=Usage)
    messages: tuple[ChatMessage, ...] = ()
    pending: list[ChatMessage] = field(default_factory=list)
    taken: set[str] = field(default_factory=set)
    metadata: MutableMapping[str, Any] = field(default_factory=dict)
    summary: Summary = field(default_factory=Summary)
    threads: WorkerThreads = field(default_factory=WorkerThreads)
    created_at: datetime = field(default_factory=now)
    updated_at: datetime = field(default_factory=now)

    def restore(self, detail: SessionDetail) -> None:
        """Be what was stored, but for what this object was made with."""
        self.title = detail.title
        self.tenant_id = detail.tenant_id
        self.usage = detail.usage
        self.messages = detail.messages
        self.created_at, self.updated_at = detail.created_at, detail.updated_at
        self.workspace = self.workspace or detail.workspace
        if self.system_prompt is None:
            self.system_prompt = detail.system_prompt

    def has_had(self, message_id: str) -> bool:
        """Whether a message of this id is there, or ever began a run."""
        return message_id in self.taken or any(one.id == message_id for one in (*self.messages, *self.pending))

    def listed(self, *, is_running: bool) -> SessionSummary:
        """What a list shows of it."""
        return SessionSummary(**self._fields(is_running))

    def whole(self, *, is_running: bool) -> SessionDetail:
        """All of it, for whoever gets it to keep."""
        detail = SessionDetail(
            **self._fields(is_running),
            system_prompt=self.system_prompt,
            messages=self.messages,
            pending=tuple(self.pending),
        )
        return detail.model_copy(deep=True)

    def _fields(self, is_running: bool) -> dict[str, Any]:
        return {
            "id": self.id,
            "title": self.title,
            "workspace": self.workspace,
            "model": self.model,
            "is_running": is_running,
            "message_count": len(self.messages),
            "usage": self.usage,
            "tenant_id": self.tenant_id,
            "created_at": self.created_at,
            "updated_at": self.updated_at,
        }
