"""A transcript's numbers and prompts."""

from __future__ import annotations

from collections import Counter

from workbench.transcripts.models import (
    MAIN_LANE,
    SessionPrompt,
    SessionPromptsOptions,
    SessionSummaryWithPrompts,
    Transcript,
)
from workbench.transcripts.recorder import total_usage

_ALL = SessionPromptsOptions()


def session_prompts(transcript: Transcript, prompts: SessionPromptsOptions = _ALL) -> tuple[SessionPrompt, ...]:
    """What the user typed in the main lane, but for what the conversation was taken back to before; within the caps."""
    found = [
        SessionPrompt(text=event.text[: prompts.max_characters], at=event.at)
        for event in transcript.events
        if event.kind == "prompt" and event.lane == MAIN_LANE and not event.abandoned
    ]
    return tuple(found[: prompts.max_prompts])


def fold(transcript: Transcript, *, prompts: SessionPromptsOptions | None = None) -> SessionSummaryWithPrompts:
    """A transcript's numbers, and its prompts where they are asked for."""
    return SessionSummaryWithPrompts.model_construct(
        ref=transcript.ref,
        session_id=transcript.session_id,
        title=transcript.title,
        cwd=transcript.cwd,
        branch=transcript.branch,
        started_at=transcript.started_at,
        last_active_at=transcript.last_active_at,
        capabilities=transcript.capabilities,
        lanes=len(transcript.lanes),
        events=dict(Counter(event.kind for event in transcript.events)),
        requests=transcript.requests,
        usage=total_usage(transcript.requests),
        tool_calls=dict(Counter(call.name for call in transcript.tool_calls)),
        failed_calls=sum(call.ok is False for call in transcript.tool_calls),
        edited=dict(Counter(edit.path for edit in transcript.edits)),
        compactions=len(transcript.compactions),
        skipped=len(transcript.skipped),
        prompt_count=len(session_prompts(transcript)),
        prompts=() if prompts is None else session_prompts(transcript, prompts),
    )
