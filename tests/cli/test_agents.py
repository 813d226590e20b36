"""Real coding agents in the sandbox: what they do waits in the overlay, and what they keep of their sessions is read."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.cli.coding_agents import AGENTS_RUN, VALUE, Worked, reading_environment, work
from tests.cli.conftest import Prompt
from tests.cli.scripted_model import ASKED, ASKED_AGAIN, BEGUN, COMMAND, MADE, SAID, THOUGHT, WRITTEN
from tests.conftest import ROOT
from tests.transcripts.reading_sessions import loaded, texts
from workbench.sandbox.agents import AGENTS, PLACEHOLDER
from workbench.transcripts import LocalPlatform, Original, read_original

_KINDS = ("input", "output", "reasoning", "cache_read", "cache_write")


@pytest.fixture(scope="module", params=AGENTS_RUN)
def worked(engine: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worked]:
    """What an agent did; it's run once for all of its tests."""
    prompt = Prompt(tmp_path_factory.mktemp("agent"))
    try:
        yield work(request.param, prompt)
    finally:
        prompt.end()


@pytest.fixture(scope="module")
def head(worked: Worked) -> Any:
    """The session, as it's listed."""
    [found] = told(worked, "list", "--project", str(worked.prompt.workspace))
    return found


def told(worked: Worked, *arguments: str) -> Any:
    """What `workbench transcripts` tells of the agent's home directory."""
    argv = [sys.executable, "-m", "workbench", "transcripts", *arguments, "--json"]
    environment = reading_environment(worked.home)
    ran = subprocess.run(argv, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    assert ran.returncode == 0, ran
    return json.loads(ran.stdout)


def test_its_work_lands_in_the_overlay_and_its_key_is_nowhere(worked: Worked) -> None:
    prompt = worked.prompt
    for said in worked.said:
        assert SAID.encode() in said
        assert b" files changed" in said
    made = json.loads(prompt("diff", "--json").stdout)["changes"]
    changes = [change for change in made if not change["path"].startswith(".home/")]
    assert [(change["path"], change["kind"]) for change in changes] == [(MADE, "added"), (WRITTEN, "added")]
    assert not (prompt.workspace / MADE).exists()
    if worked.name in AGENTS:
        assert AGENTS[worked.name].title.encode() in prompt("log").stdout
    sent = [value for _, _, headers, _ in worked.model.requests for _, value in headers]
    assert any(VALUE in value for value in sent)
    assert not any(PLACEHOLDER in value for value in sent)
    said = [*worked.said, subprocess.run(["ps", "axeww"], capture_output=True, check=True).stdout]
    held = [path.read_bytes() for path in prompt.state.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not any(VALUE.encode() in text for text in [*said, *held])


def test_its_session_is_listed_once(worked: Worked, head: Any) -> None:
    assert head["ref"]["agent"] == worked.agent.reader
    assert head["cwd"] == str(worked.prompt.workspace)
    # OpenCode quotes what has spaces, and has the model make a title.
    assert head["first_prompt"].strip('"') == ASKED
    assert head["title"].strip('"') in (ASKED, SAID)
    assert head["started_at"] < head["last_active_at"]


def test_its_session_is_loaded_whole(worked: Worked, head: Any) -> None:
    transcript = loaded(worked.agent.reader, head["ref"]["path"])
    assert transcript.session_id == head["ref"]["session_id"]
    kinds = [event.kind for event in transcript.events if event.kind not in ("context", "notice")]
    tools, thoughts = ["tool_call", "tool_result"] * 2, [THOUGHT] if worked.agent.thinks else []
    again = [ASKED_AGAIN] if worked.agent.again else []
    first = ["prompt", *["reasoning" for _ in thoughts], "reply", *tools, "reply"]
    assert [kind for kind, _ in groupby(kinds)] == [*first, *(kind for _ in again for kind in ("prompt", "reply"))]
    assert [text.strip('"') for text in texts(transcript, "prompt")] == [ASKED, *again]
    assert "".join(texts(transcript, "reasoning")) == "".join(thoughts)
    assert texts(transcript, "reply") == [BEGUN, SAID, *(SAID for _ in again)]
    assert not any(event.abandoned for event in transcript.events)
    assert [call.ok for call in transcript.tool_calls] == [True, True]
    assert json.dumps(COMMAND)[1:-1] in transcript.tool_calls[0].arguments
    assert all(call.result_source is not None for call in transcript.tool_calls)
    [edit] = transcript.edits
    assert Path(worked.prompt.workspace, edit.path) == worked.prompt.workspace / WRITTEN
    assert edit.call_id == transcript.tool_calls[1].id
    assert transcript.skipped == ()

    async def originals() -> None:
        for source in {one.source for one in (*transcript.events, *transcript.requests, *transcript.tool_calls)}:
            assert isinstance(await read_original(LocalPlatform(), source), Original)

    anyio.run(originals)


def test_its_usage_is_what_the_model_told_each_reply_once(worked: Worked, head: Any) -> None:
    requests = loaded(worked.agent.reader, head["ref"]["path"]).requests
    assert {request.model for request in requests} == worked.model.names
    untold = dict.fromkeys(worked.agent.untold, 0)
    expected = [{**asdict(reply.usage), **untold} for reply in worked.model.replies if reply.usage is not None]
    assert [[getattr(request.usage, f"{kind}_tokens") for kind in _KINDS] for request in requests] == [
        [usage[kind] for kind in _KINDS] for usage in expected
    ]
    [row, total] = told(worked, "usage", "--by", "model")
    assert (row["name"], row["sessions"], row["requests"]) == (*worked.model.names, 1, len(expected))
    assert [total[f"{kind}_tokens"] for kind in _KINDS] == [sum(usage[kind] for usage in expected) for kind in _KINDS]
