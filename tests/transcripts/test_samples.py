"""Real sessions of each agent, with totals that were counted by hand or by those who published them."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest

from tests.transcripts.reading_sessions import told
from workbench.transcripts import (
    LocalPlatform,
    SessionPromptsOptions,
    SessionRef,
    SessionSummaryWithPrompts,
    SummarizingAdapter,
    Transcript,
    builtin_provider,
    find_adapter,
    fold,
)
from workbench.transcripts.files import FileAdapter
from workbench.transcripts.models import SessionUsage


def summed(agent: str, path: Path) -> SessionSummaryWithPrompts:
    """A sample's summary, which has to be the folded transcript."""
    adapter = find_adapter(agent)
    assert isinstance(adapter, FileAdapter)
    prompts = SessionPromptsOptions()

    async def read() -> SessionSummaryWithPrompts:
        ref = SessionRef(agent=agent, path=str(path))
        transcript = await adapter.load(LocalPlatform(), ref)
        summary = await adapter.summarize(LocalPlatform(), ref, prompts=prompts)
        assert isinstance(transcript, Transcript), transcript
        assert isinstance(summary, SessionSummaryWithPrompts), summary
        assert summary == fold(transcript, prompts=prompts)
        assert told(await adapter.add_up(LocalPlatform(), ref)) == told(SessionUsage.of(summary))
        return summary

    return anyio.run(read)


CLAUDE = [
    # One response is several lines: 262 lines are 170 responses, of 51,933 tokens where a plain sum says 77,612.
    ("claude-code-viewer/sample-project/fe5e1c67-53e7-4862-81ae-d0e013e3270b.jsonl", 170, 51_933, 167),
    ("agentsview/valid_session.jsonl", 2, 125, 1),
    ("ccusage/fixtures/claude/projects/project-alpha/session-alpha/chat.jsonl", 3, 250, 0),
    ("ccusage/fixtures/claude/projects/project-beta/session-beta/chat.jsonl", 2, 60, 0),
    ("episodic-memory/medium-conversation.jsonl", 0, 0, 0),
]


@pytest.mark.parametrize(("name", "requests", "output", "calls"), CLAUDE)
def test_claude_code_s_responses_count_once(samples: Path, name: str, requests: int, output: int, calls: int) -> None:
    summary = summed("claude-code", samples / "claude_code" / name)
    assert (len(summary.requests), summary.usage.output_tokens) == (requests, output)
    assert sum(summary.tool_calls.values()) == calls


def test_claude_code_s_costs_are_those_it_recorded(samples: Path) -> None:
    root = samples / "claude_code" / "ccusage" / "fixtures" / "claude" / "projects"
    summary = summed("claude-code", root / "project-alpha" / "session-alpha" / "chat.jsonl")
    assert summary.usage.cost_usd == pytest.approx(1.02)
    # 100+200+300 fresh, 25+50+0 written to the cache, 10+20+40 read from it
    assert (summary.usage.input_tokens, summary.usage.cache_write_tokens, summary.usage.cache_read_tokens) == (
        745,
        75,
        70,
    )


def test_claude_code_s_subagents_are_lanes_wherever_their_records_are(samples: Path) -> None:
    folder = samples / "claude_code"
    beside = summed("claude-code", folder / "agent-sessions/claude/subagent/0a1b2c3d-4e5f-4061-8071-2a3b4c5d6e7f.jsonl")
    assert beside.lanes == 2
    assert beside.tool_calls == {"Task": 1, "bash": 1}
    assert [prompt.text for prompt in beside.prompts] == ["Delegate a repo search to a subagent"]
    inline = summed(
        "claude-code", folder / "claude-code-viewer/sample-project/fe5e1c67-53e7-4862-81ae-d0e013e3270b.jsonl"
    )
    assert inline.tool_calls["Task"] == inline.lanes - 1 == 5
    assert inline.prompt_count == 2


def test_codex_forks_count_what_they_copied_once(samples: Path, tmp_path: Path) -> None:
    """By the published oracle; its units are input, cached input and output added up."""
    family = samples / "codex" / "CodexBar" / "Issue2037" / "live-fork-4d90-52bf" / "codex-home" / "archived_sessions"
    archive = tmp_path / "archived_sessions"
    archive.mkdir()
    for name in ("parent", "child"):
        path = archive / f"rollout-2030-01-01T15-00-00-{name}-session.jsonl"
        path.write_bytes((family / f"{name}.jsonl").read_bytes())
    units = {}
    for name in ("parent", "child"):
        usage = summed("codex", archive / f"rollout-2030-01-01T15-00-00-{name}-session.jsonl").usage
        units[name] = usage.input_tokens + usage.cache_read_tokens + usage.output_tokens
    assert units == {"parent": 48_730_248, "child": 3_455_599}
    assert sum(units.values()) == 52_185_847


def test_a_codex_fork_that_was_archived_counts_what_its_active_parent_has_not(samples: Path, tmp_path: Path) -> None:
    """By the published family: of the child's two counts the first is the parent's."""
    family = samples / "codex" / "CodexBar" / "Issue2037" / "harness-smoke" / "codex-home"
    parent = tmp_path / "sessions" / "2026" / "07" / "11" / "rollout-2026-07-11T12-00-00-parent-session.jsonl"
    child = tmp_path / "archived_sessions" / "rollout-2026-07-11T12-00-02-child-session.jsonl"
    for path, name in ((parent, "sessions/2026/07/11/parent.jsonl"), (child, "archived_sessions/child.jsonl")):
        path.parent.mkdir(parents=True)
        path.write_bytes((family / name).read_bytes())
    used = [summed("codex", path).usage for path in (parent, child)]
    assert [(usage.input_tokens, usage.output_tokens) for usage in used] == [(10, 1), (5, 1)]


CODEX = [
    ("agent-sessions/codex/large.jsonl", ["Start", "Step 1", "Step 2", "Step 3", "Step 4", "Step 5"], (12_091, 182)),
    ("agent-sessions/codex_053_rate_limit.jsonl", [], (12_091, 182)),
    ("agent-sessions/session_toolcall.jsonl", ["Translate 'hello' to Spanish"], (0, 0)),
    ("agentsview/standard_session.jsonl", ["Add rate limiting"], (0, 0)),
    ("ccusage/fixtures/codex/sessions/project-alpha/session-alpha.jsonl", [], (3_500, 425)),
]


@pytest.mark.parametrize(("name", "prompts", "tokens"), CODEX)
def test_codex_s_prompts_and_tokens_count_once(
    samples: Path, name: str, prompts: list[str], tokens: tuple[int, int]
) -> None:
    summary = summed("codex", samples / "codex" / name)
    assert [prompt.text for prompt in summary.prompts] == prompts
    assert (summary.usage.input_tokens, summary.usage.output_tokens) == tokens


GENERATED = [
    ("claude-code", "generated/claude_code/projects/-workspace/cfb70a76-2f70-44c9-9065-efa83eb9415f.jsonl"),
    (
        "codex",
        "generated/codex/sessions/2026/11/30/rollout-2026-11-30T14-42-17-01a22ce8-16ad-7750-8f4e-5f8aa8d48150.jsonl",
    ),
    ("gemini-cli", "generated/gemini_cli/tmp/workspace/chats/session-2026-11-30T14-42-05a2b296.jsonl"),
    ("qwen-code", "generated/qwen_code/projects/-workspace/chats/1a8cea3d-f187-4c0c-a276-97ee7c26750f.jsonl"),
    ("opencode", "generated/opencode/opencode.db#ses_dd317c910ffenHOzCX9C5azDhr"),
]


@pytest.mark.parametrize(("agent", "name"), GENERATED)
def test_what_today_s_agents_write_is_read(samples: Path, agent: str, name: str) -> None:
    """Each was asked to create a file against a model that answered twice, with 10 tokens in and 5 out."""
    summary = summed(agent, samples / name)
    assert [prompt.text.strip('"') for prompt in summary.prompts] == ["create made_by_agent.txt"]
    assert [path.rpartition("/")[2] for path in summary.edited] in ([], ["made_by_agent.txt"])
    assert (len(summary.requests), summary.usage.input_tokens, summary.usage.output_tokens) == (2, 20, 10)
    assert sum(summary.tool_calls.values()) == 1
    assert summary.events["reply"] == 1
    assert summary.cwd == "/workspace"


OTHERS = [
    ("gemini-cli", "gemini_cli/agent-sessions/gemini/jsonl_v040.jsonl", 1, (2, 23_924, 228), 1),
    ("gemini-cli", "gemini_cli/agentsview/standard_session.json", 2, (2, 3_500, 650), 0),
    ("qwen-code", "qwen_code/splitrail/qwen_code.jsonl", 1, (2, 1_100, 25), 1),
    # The branch that was left has a reply too; its prompt is the one that both share.
    ("qwen-code", "qwen_code/agent-sessions/qwen/019f0000-0000-7000-8000-000000000004.jsonl", 2, (1, 12, 4), 1),
    ("qwen-code", "qwen_code/agent-sessions/qwen/019f0000-0000-7000-8000-000000000005.jsonl", 1, (0, 0, 0), 0),
    ("copilot-cli", "copilot_cli/agent-sessions/copilot/large.jsonl", 3, (0, 0, 0), 2),
    ("pi", "pi/agentsview/session.jsonl", 2, (2, 300, 60), 1),
    # 3,689 fresh, 54,693,675 read from the cache, 1,685,320 written to it; 13 more requests got no answer
    ("pi", "pi/pi-mono/before-compaction.jsonl", 55, (471, 56_382_684, 187_895), 457),
    ("kimi", "kimi/kimi-code/large-100msgs/wire.jsonl", 2, (15, 558_838, 4_790), 28),
    ("kimi", "kimi/kimi-code/sample-main/agents/main/wire.jsonl", 1, (1, 10, 5), 0),
    ("kimi", "kimi/claude-code-history-viewer/kimi/sessions/project-hash/session-1/wire.jsonl", 1, (0, 0, 0), 1),
    ("droid", "droid/agent-sessions/droid/session_store_large.jsonl", 2, (0, 0, 0), 1),
    ("cline", "cline/cline/session/session.messages.json", 5, (16, 630_254, 4_395), 11),
    (
        "opencode",
        "opencode/agent-sessions/opencode/storage_v2/session/proj_test/ses_s_stage0_large.json",
        2,
        (1, 120, 16),
        1,
    ),
    ("aider", "aider/agentsview/myrepo/.aider.chat.history.md", 2, (0, 0, 0), 0),
]


@pytest.mark.parametrize(("agent", "name", "prompts", "usage", "calls"), OTHERS)
def test_other_agents_prompts_usage_and_calls_count_once(
    samples: Path, agent: str, name: str, prompts: int, usage: tuple[int, int, int], calls: int
) -> None:
    summary = summed(agent, samples / name)
    assert summary.prompt_count == prompts
    assert (len(summary.requests), summary.usage.input_tokens, summary.usage.output_tokens) == usage
    assert sum(summary.tool_calls.values()) == calls


def test_every_sample_is_read_by_every_adapter_without_a_defect(samples: Path) -> None:
    """What isn't an adapter's own gives it little, and never raises; of that each reads a share."""
    files = [path for path in samples.rglob("*") if path.suffix in (".jsonl", ".json", ".md", ".txt")]

    async def read() -> None:
        for turn, adapter in enumerate(builtin_provider().sessions.values()):
            for number, path in enumerate(files):
                own = adapter.agent.replace("-", "_") in str(path)
                if path.stat().st_size < 200_000 and (own or number % 7 == turn % 7):
                    ref = SessionRef(agent=adapter.agent, path=str(path))
                    await adapter.detect(LocalPlatform(), ref)
                    loaded = await adapter.load(LocalPlatform(), ref)
                    assert isinstance(adapter, SummarizingAdapter)
                    summary = await adapter.summarize(LocalPlatform(), ref)
                    assert summary == (fold(loaded) if isinstance(loaded, Transcript) else loaded)

    anyio.run(read)
