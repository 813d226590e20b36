"""`wrap`: what a coding agent's own command line gets in the sandbox, and what is asked before."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from tests.cli.coding_agents import VALUE, WRAPPED, environment, own_image, scripted
from tests.cli.conftest import Prompt
from tests.cli.scripted_model import ASKED, SAID
from tests.cli.terminals import terminal
from workbench.sandbox import logins
from workbench.sandbox.agents import AGENTS
from workbench.sandbox.egress.options import Egress, Secret


def test_the_home_is_kept_with_the_session_and_is_no_part_of_its_changes(fresh_prompt: Prompt) -> None:
    prompt = fresh_prompt
    argv = ("wrap", "--yes", "--image", "workbench/python", "claude")
    ended = prompt(*argv, code=127, env=environment(prompt))
    assert b"the sandbox has no claude" in ended.stderr
    prompt.sh('test "$HOME" = /home/workbench; echo kept > ~/kept; chmod 600 ~/kept')
    prompt("stop")
    assert prompt.sh("cat ~/kept; stat -c %a ~ ~/kept; id -u; stat -c %u ~").stdout.split()[:3] == [
        b"kept",
        b"700",
        b"600",
    ]
    assert json.loads(prompt("diff", "--json").stdout)["changes"] == []
    prompt("exec", "--session", "other", "--", "test", "!", "-e", "/home/workbench/kept")


def test_without_anybody_to_ask_it_has_to_be_said(prompt: Prompt) -> None:
    refused = prompt("wrap", "claude", code=4, env=environment(prompt))
    assert b"confirmation_required" in refused.stderr


@pytest.mark.parametrize(
    ("key", "told"),
    [(VALUE, rb"api\.anthropic\.com, with the key of ANTHROPIC_API_KEY"), ("", rb"no key, since")],
    ids=["key", "none"],
)
def test_somebody_at_a_terminal_is_told_what_it_gets_and_may_say_no(prompt: Prompt, key: str, told: bytes) -> None:
    argv = [os.fsdecode(word) for word in prompt.argv("wrap", "claude")]
    variables = {**environment(prompt, key=key), "CLAUDE_CONFIG_DIR": "/nonexistent"}
    with terminal(argv, cwd=prompt.workspace, environment=variables) as screen:
        screen.expect(b"Claude Code gets, in a sandbox:")
        screen.expect(told)
        screen.expect(rb"Start it\?")
        screen.type(b"n\r")
        assert screen.wait() == 1
        assert VALUE.encode() not in screen.screen


@pytest.mark.parametrize("url", ["http://example.com", "https://user@example.com", "ftp://x", "example.com"])
def test_a_key_is_sent_nowhere_but_by_https_to_a_host(prompt: Prompt, url: str) -> None:
    refused = prompt("wrap", "--yes", "claude", code=2, env=environment(prompt, url=url))
    assert b"ANTHROPIC_BASE_URL" in refused.stderr
    assert VALUE.encode() not in refused.stdout + refused.stderr


@pytest.mark.usefixtures("engine")
def test_claude_works_with_the_login_of_this_machine_and_what_renews_it_stays_in_its_file(
    fresh_prompt: Prompt, tmp_path: Path
) -> None:
    prompt, renewing = fresh_prompt, f"renews-{VALUE[::-1]}"
    own_image("workbench/claude")
    expires_ms = (time.time() + 3600) * 1000
    login = {"accessToken": VALUE, "refreshToken": renewing, "expiresAt": expires_ms, "scopes": ["user:inference"]}
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text(json.dumps({"claudeAiOauth": login}))
    with scripted(prompt) as (model, variables):
        variables |= {**environment(prompt, url=f"https://{model.place}", key=""), "HOME": str(tmp_path), **variables}
        ran = prompt("wrap", "--yes", "claude", "--", *WRAPPED["claude"].first, ASKED, env=variables)
    assert SAID.encode() in ran.stdout
    sent = [value for _, _, headers, _ in model.requests for _, value in headers]
    assert f"Bearer {VALUE}" in sent
    assert not any(renewing in value for value in sent)
    held = [path.read_bytes() for path in prompt.state.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not any(secret.encode() in text for text in [*held, ran.stdout, ran.stderr] for secret in (VALUE, renewing))


_CHATGPT = {"OPENAI_API_KEY": None, "tokens": {"access_token": "a", "refresh_token": "r", "account_id": "x"}}


@pytest.mark.parametrize(
    ("agent", "file", "content", "said"),
    [
        (
            "claude",
            ".claude/.credentials.json",
            {"claudeAiOauth": {"accessToken": "a", "expiresAt": 1}},
            b"setup-token",
        ),
        ("codex", ".codex/auth.json", _CHATGPT, b"set OPENAI_API_KEY, or log in inside"),
        (
            "gemini",
            ".gemini/oauth_creds.json",
            {"access_token": "a", "refresh_token": "r"},
            b"set GEMINI_API_KEY, or log",
        ),
    ],
)
def test_a_login_that_cannot_be_lent_stays_where_it_is_with_the_next_step(
    prompt: Prompt, tmp_path: Path, agent: str, file: str, content: object, said: bytes
) -> None:
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_text(json.dumps(content))
    asked = prompt("wrap", agent, code=4, env={**environment(prompt, agent, key=""), "HOME": str(tmp_path)})
    assert said in asked.stderr
    assert b"confirmation_required" in asked.stderr


@pytest.mark.parametrize("content", ["", "[]", "{", '{"OPENAI_API_KEY": 1, "tokens": []}', "[" * 100_000])
def test_what_is_no_login_is_none(tmp_path: Path, content: str) -> None:
    (tmp_path / "auth.json").write_text(content)
    assert logins.find("codex", {"CODEX_HOME": str(tmp_path)}, 0) is None
    assert logins.find("codex", {"HOME": str(tmp_path)}, 0) is None
    assert logins.find("qwen", {"HOME": str(tmp_path)}, 0) is None


def test_a_key_that_an_agent_was_logged_in_with_is_its_key(tmp_path: Path) -> None:
    (tmp_path / "auth.json").write_text(json.dumps({**_CHATGPT, "OPENAI_API_KEY": VALUE}))
    assert logins.find("codex", {"CODEX_HOME": str(tmp_path)}, 0) == logins.Login("OPENAI_API_KEY", VALUE)


def test_an_agent_that_isnt_known_is_an_error_that_names_those_that_are(prompt: Prompt) -> None:
    assert b"claude, codex, gemini, opencode, qwen" in prompt("wrap", "somebody", code=2).stderr.replace(b"\n", b" ")


def test_every_agent_is_one_that_can_be_brokered() -> None:
    for agent in AGENTS.values():
        Egress(agent.login_hosts).check()
        for key in agent.keys:
            Egress(secrets=(Secret("agent", VALUE, "example.com", key.header),)).check()
        assert subprocess.run(["sh", "-n", "-c", agent.script], check=False).returncode == 0
