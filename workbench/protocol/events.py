"""Everything a session says while it lives: one union, told apart by `type`, numbered per session without gaps.

An event owns what it holds: changing it alters neither the run nor History.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AwareDatetime, Field, TypeAdapter

from workbench.protocol.messages import ChatMessage, ErrorInfo, ImageAttachment, ToolCall, ToolResult, Usage, now
from workbench.protocol.records import Frozen
from workbench.protocol.runs import EndReason, RunResult
from workbench.protocol.sessions import ApprovalRequest, SessionSummary


class Event(Frozen):
    """What every event has. `seq` counts from 1 per session; until it's published it's 0, and `session_id` empty."""

    seq: int = 0
    session_id: str = ""
    run_id: str | None = None
    at: AwareDatetime = Field(default_factory=now)


class TextEvent(Event):
    """A piece of the reply's text."""

    type: Literal["text"] = "text"
    text: str


class ThinkingEvent(Event):
    """A piece of the reply's reasoning: never stored, not in a persisted event log either."""

    type: Literal["thinking"] = "thinking"
    text: str


class ToolCallEvent(Event):
    """A call; all calls of a reply come in order, before the first of them runs."""

    type: Literal["tool_call"] = "tool_call"
    tool_call: ToolCall


class ToolResultEvent(Event):
    """The result of a call; results come in call order, whichever ended first."""

    type: Literal["tool_result"] = "tool_result"
    tool_result: ToolResult


class ImageEvent(Event):
    """An image of the reply."""

    type: Literal["image"] = "image"
    image: ImageAttachment


class UsageEvent(Event):
    """The usage of one model call for which some was reported, of a failed one too."""

    type: Literal["usage"] = "usage"
    usage: Usage


class MessageCompleted(Event):
    """A whole message: the user's, a reply after its last call, or a tool's."""

    type: Literal["message.completed"] = "message.completed"
    message: ChatMessage


class Notice(Event):
    """Something worth knowing that changes nothing.

    `code` is `retry` (with the `delay_ms` that it waits), `reply_truncated`, `compacted`, `compaction_paused`, `stuck`,
    `tools_unsupported`, `budget`, `price_unknown`, or that of an error which the run outlives.
    """

    type: Literal["notice"] = "notice"
    code: str
    message: str
    delay_ms: float | None = None


class ToolProgress(Event):
    """What a running tool says about itself."""

    type: Literal["tool.progress"] = "tool.progress"
    call_id: str
    message: str


class ApprovalRequested(Event):
    """A call waits for somebody's answer."""

    type: Literal["approval.requested"] = "approval.requested"
    request: ApprovalRequest


class ApprovalResolved(Event):
    """A waiting call waits no more; there is one of these on every way out. `by` says who or what decided."""

    type: Literal["approval.resolved"] = "approval.resolved"
    request_id: str
    approved: bool
    by: str


class ErrorEvent(Event):
    """The error that ends the run: at most one a run; `end` follows."""

    type: Literal["error"] = "error"
    error: ErrorInfo


class EndEvent(Event):
    """The last event of a run, exactly once."""

    type: Literal["end"] = "end"
    end_reason: EndReason


class RunStarted(Event):
    """A run has begun."""

    type: Literal["run.started"] = "run.started"
    message_id: str | None


class RunCompleted(Event):
    """After `end`, once the lock is free: the run wasn't cancelled and didn't fail."""

    type: Literal["run.completed"] = "run.completed"
    result: RunResult


class RunCancelled(Event):
    """After `end`, once the lock is free: the run was cancelled."""

    type: Literal["run.cancelled"] = "run.cancelled"
    result: RunResult


class RunFailed(Event):
    """After `end`, once the lock is free: the run failed."""

    type: Literal["run.failed"] = "run.failed"
    error: ErrorInfo
    end_reason: EndReason
    usage: Usage


class SessionCreated(Event):
    """A session was made."""

    type: Literal["session.created"] = "session.created"
    session: SessionSummary


class SessionUpdated(Event):
    """What a list shows of a session has changed."""

    type: Literal["session.updated"] = "session.updated"
    session: SessionSummary


class SessionDeleted(Event):
    """A session was removed from the store."""

    type: Literal["session.deleted"] = "session.deleted"


class SessionRewound(Event):
    """Messages were taken back; `messages` are the surviving ones. `session.updated` follows."""

    type: Literal["session.rewound"] = "session.rewound"
    message_id: str
    removed: int
    messages: tuple[ChatMessage, ...]


RunEvent = Annotated[
    TextEvent
    | ThinkingEvent
    | ToolCallEvent
    | ToolResultEvent
    | ImageEvent
    | UsageEvent
    | MessageCompleted
    | Notice
    | ToolProgress
    | ApprovalRequested
    | ApprovalResolved
    | ErrorEvent
    | EndEvent
    | RunStarted,
    Field(discriminator="type"),
]
SessionEvent = Annotated[
    RunEvent
    | RunCompleted
    | RunCancelled
    | RunFailed
    | SessionCreated
    | SessionUpdated
    | SessionDeleted
    | SessionRewound,
    Field(discriminator="type"),
]

# Reads and writes any event as JSON.
session_events: TypeAdapter[SessionEvent] = TypeAdapter(SessionEvent)
