"""Loading a session in a test, in both ways, which have to agree."""

from __future__ import annotations

from pathlib import Path

import anyio

from workbench.transcripts import (
    AgentHome,
    LocalPlatform,
    SessionHead,
    SessionPromptsOptions,
    SessionReadError,
    SessionRef,
    Transcript,
    find_adapter,
    fold,
    is_session_head,
)
from workbench.transcripts.files import FileAdapter
from workbench.transcripts.models import SessionUsage


def loaded(agent: str, path: Path | str, platform: LocalPlatform | None = None) -> Transcript:
    """A session's transcript; its summary is the same, folded."""
    adapter = find_adapter(agent)
    assert isinstance(adapter, FileAdapter)
    prompts = SessionPromptsOptions()

    async def read() -> Transcript:
        ref = SessionRef(agent=agent, path=str(path))
        transcript = await adapter.load(platform or LocalPlatform(), ref)
        assert isinstance(transcript, Transcript), transcript
        if platform is None:
            summary = fold(transcript, prompts=prompts)
            assert await adapter.summarize(LocalPlatform(), ref, prompts=prompts) == summary
            assert told(await adapter.add_up(LocalPlatform(), ref)) == told(SessionUsage.of(summary))
        return transcript

    return anyio.run(read)


def told(used: SessionUsage | SessionReadError) -> object:
    """What adding up makes of a session's usage."""
    if not isinstance(used, SessionUsage):
        return used
    requests = [(each.id, each.at or used.last_active_at, each.model, each.usage) for each in used.requests]
    return used.ref, used.session_id, used.cwd, requests


def heads(agent: str, home: Path) -> list[SessionHead]:
    """The sessions that are listed in a home."""
    adapter = find_adapter(agent)

    async def read() -> list[SessionHead]:
        roots = adapter.roots(AgentHome((str(home),)))
        return [x for root in roots async for x in adapter.discover(LocalPlatform(), root) if is_session_head(x)]

    return anyio.run(read)


def texts(transcript: Transcript, kind: str) -> list[str]:
    """What the events of a kind say."""
    return [event.text for event in transcript.events if event.kind == kind]
