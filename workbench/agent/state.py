"""What a session is made of between its runs."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from workbench.agent.compaction import Summary
from workbench.agent.threads import WorkerThreads
from workbench.protocol.messages import ChatMessage, Usage, now


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
