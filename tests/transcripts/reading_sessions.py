"""Loading a session in a test, in both ways, which have to agree."""

from __future__ import annotations

from pathlib import Path

import anyio

from workbench.transcripts import (
    AgentHome,
    LocalPlatform,
    SessionHead,
    SessionPromptsOptions,
    SessionRef,
    SummarizingAdapter,
    Transcript,
    find_adapter,
    fold,
    is_session_head,
)


def loaded(agent: str, path: Path | str, platform: LocalPlatform | None = None) -> Transcript:
    """A session's transcript; its summary is the same, folded."""
    adapter = find_adapter(agent)
    assert isinstance(adapter, SummarizingAdapter)
    prompts = SessionPromptsOptions()

    async def read() -> Transcript:
        ref = SessionRef(agent=agent, path=str(path))
        transcript = await adapter.load(platform or LocalPlatform(), ref)
        assert isinstance(transcript, Transcript), transcript
        if platform is None:
            assert await adapter.summarize(LocalPlatform(), ref, prompts=prompts) == fold(transcript, prompts=prompts)
        return transcript

    return anyio.run(read)


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
