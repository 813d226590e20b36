"""`wrap`: what a coding agent's own command line gets in the sandbox, and what is asked before."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.cli.coding_agents import VALUE, environment
from tests.cli.conftest import Prompt
from tests.cli.terminals import terminal
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
    with terminal(argv, cwd=prompt.workspace, environment=environment(prompt, key=key)) as screen:
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


def test_an_agent_that_isnt_known_is_an_error_that_names_those_that_are(prompt: Prompt) -> None:
    assert b"claude, codex, gemini, opencode, qwen" in prompt("wrap", "somebody", code=2).stderr.replace(b"\n", b" ")


def test_every_agent_is_one_that_can_be_brokered() -> None:
    for agent in AGENTS.values():
        Egress(agent.login_hosts).check()
        for key in agent.keys:
            Egress(secrets=(Secret("agent", VALUE, "example.com", key.header),)).check()
        assert subprocess.run(["sh", "-n", "-c", agent.script], check=False).returncode == 0
