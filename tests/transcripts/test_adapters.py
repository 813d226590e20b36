"""Every built-in adapter keeps the contract, and reads one and the same session out of each agent's own records."""

from __future__ import annotations

import gc
import warnings
from pathlib import Path

import anyio
import pytest

from tests.transcripts.homes import ANSWERED, ASKED, HOMES, WHERE
from workbench.testing import SessionAdapterContract
from workbench.transcripts import (
    AgentHome,
    LocalPlatform,
    SessionAdapter,
    SessionHead,
    Transcript,
    builtin_provider,
    fold,
    is_session_head,
    read_original,
)

_ADAPTERS = builtin_provider().sessions


@pytest.fixture(params=sorted(_ADAPTERS), autouse=True)
def agent(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class TestBuiltIn(SessionAdapterContract):
    agent: str

    @pytest.fixture(autouse=True)
    def _of(self, agent: str) -> None:
        self.agent = agent

    def make_adapter(self) -> SessionAdapter:
        return _ADAPTERS[self.agent]

    def make_home(self, directory: Path) -> None:
        HOMES[self.agent](directory)


def test_one_session_is_told_alike_by_every_agent_s_records(agent: str, tmp_path: Path) -> None:
    HOMES[agent](tmp_path)
    adapter = _ADAPTERS[agent]

    async def read() -> tuple[SessionHead, Transcript]:
        platform = LocalPlatform()
        roots = adapter.roots(AgentHome((str(tmp_path),)))
        [head] = [x for root in roots async for x in adapter.discover(platform, root) if is_session_head(x)]
        transcript = await adapter.load(platform, head.ref)
        assert isinstance(transcript, Transcript), transcript
        return head, transcript

    head, transcript = anyio.run(read)
    summary = fold(transcript)
    assert head.first_prompt == (None if agent == "zed" else ASKED)  # what a thread asks is compressed
    assert [event.text for event in transcript.events if event.kind == "prompt"] == [ASKED]
    assert [event.text for event in transcript.events if event.kind == "reply"] == [ANSWERED]
    assert summary.skipped == 0
    capabilities = set(transcript.capabilities)
    if "usage" in capabilities:
        told = (summary.usage.input_tokens, summary.usage.cache_read_tokens, summary.usage.output_tokens)
        assert told == (130, 20, 30)
        assert len(summary.requests) == 1
    if "edits" in capabilities:
        assert [path.rpartition("/")[2] for path in summary.edited] == ["a.py"]
        assert summary.failed_calls == 0
    if transcript.cwd is not None:
        where = str(tmp_path) if agent in ("aider", "crush") else WHERE  # their files lie where they worked
        assert (head.cwd, transcript.cwd) == (where, where)


def test_nothing_is_left_open_under_trio(agent: str, tmp_path: Path) -> None:
    """Trio warns of every generator that is left half read."""
    HOMES[agent](tmp_path)
    adapter = _ADAPTERS[agent]

    async def read() -> None:
        platform = LocalPlatform()
        roots = adapter.roots(AgentHome((str(tmp_path),)))
        heads = [x for root in roots async for x in adapter.discover(platform, root) if is_session_head(x)]
        for head in heads:
            await adapter.detect(platform, head.ref)
            transcript = await adapter.load(platform, head.ref)
            assert isinstance(transcript, Transcript)
            for event in transcript.events:
                await read_original(platform, event.source)
        gc.collect()

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        anyio.run(read, backend="trio")
        gc.collect()
    assert [str(each.message) for each in said] == []


def test_a_session_is_taken_for_one_of_no_other_agent(agent: str, tmp_path: Path) -> None:
    HOMES[agent](tmp_path)

    async def read() -> set[str]:
        platform, adapter = LocalPlatform(), _ADAPTERS[agent]
        roots = adapter.roots(AgentHome((str(tmp_path),)))
        [head] = [x for root in roots async for x in adapter.discover(platform, root) if is_session_head(x)]
        return {name for name, other in _ADAPTERS.items() if await other.detect(platform, head.ref)}

    relatives = {"cline", "roo-code", "kilo-code"}
    assert anyio.run(read) == (relatives if agent in relatives else {agent})
