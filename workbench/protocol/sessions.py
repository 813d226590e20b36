"""Sessions as they are listed, stored and asked for, and what a session asks a person for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field

from workbench.protocol.messages import ChatMessage, ToolCall, Usage
from workbench.protocol.records import Frozen

SessionId = Annotated[str, Field(min_length=1, max_length=256)]


class CreateSessionRequest(Frozen):
    """What a new session is made with; None leaves it to the manager. An id may hold slashes."""

    id: SessionId | None = None
    title: str | None = None
    workspace: str | None = None
    model: str | None = None
    system_prompt: str | None = None


class SessionSummary(Frozen):
    """One session in a list."""

    id: SessionId
    title: str
    workspace: str
    model: str
    is_running: bool
    message_count: int
    usage: Usage
    tenant_id: str | None
    created_at: AwareDatetime
    updated_at: AwareDatetime


class SessionDetail(SessionSummary):
    """A whole session: `messages` are what History holds, `pending` those that the run in progress has announced since."""

    system_prompt: str | None
    messages: tuple[ChatMessage, ...]
    pending: tuple[ChatMessage, ...]


class SessionGuardContext(Frozen):
    """What a guard judges by; `sessions` and `running` count this tenant's."""

    action: Literal["create", "run"]
    session_id: str
    tenant_id: str | None
    sessions: int
    running: int


class ApprovalRequest(Frozen):
    """A call that waits for a person; `digest` is over its name and canonical arguments."""

    id: str
    session_id: str
    run_id: str
    tool_call: ToolCall
    digest: str
    expires_at: AwareDatetime


class Rewound(Frozen):
    """What a rewind did: how many messages it removed, and the surviving ones."""

    removed: int
    messages: tuple[ChatMessage, ...]


class TravelRecord(Frozen):
    """A rewind of a workspace's files, its conversation, or both; it's taken back by making the same way in reverse.

    `message_id` is where it goes to. `after` is the number of the newest checkpoint before it began, and `before` the id of
    the one that holds what the files were, empty where they were the same. `head` is the last message that survives, empty
    where none does, `removed` what came after it.
    """

    kind: Literal["rewind", "redo"]
    message_id: str
    files: bool
    conversation: bool
    after: int
    before: str = ""
    head: str = ""
    removed: tuple[ChatMessage, ...] = ()


class TravelsRecord(Frozen):
    """`travels.json` beside a session: where its files and its conversation go together.

    `under_way` was begun, and may have been cut short; `undone` can be taken back, the last one first. `started` are the ids
    of all messages that a run was begun with, of those that aren't in the conversation too.
    """

    version: int = 1
    started: tuple[str, ...] = ()
    under_way: TravelRecord | None = None
    undone: tuple[TravelRecord, ...] = ()
