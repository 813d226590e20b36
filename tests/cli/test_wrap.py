"""`wrap`: real coding agents in the sandbox, with a model on the loopback that has them run one command."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import trustme

from tests.cli.conftest import Prompt
from tests.cli.scripted_model import SAID, ScriptedModel
from tests.cli.terminals import terminal
from tests.sandbox.egress.conftest import tls
from tests.sandbox.egress.servers import HOST, Server, serving
from workbench.errors import SandboxError
from workbench.sandbox import images
from workbench.sandbox.agents import AGENTS, PLACEHOLDER
from workbench.sandbox.egress.options import Egress, Secret
from workbench.sandbox.engine import Engine

FULL = os.environ.get("WORKBENCH_SUITES") == "full"
# No other test, process or run of the tests has it.
VALUE = f"sk-{os.getpid()}-fedcba9876543210"

ARGUMENTS = {
    "claude": ("--dangerously-skip-permissions", "-p"),
    "codex": ("exec", "-m", "scripted", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"),
    "gemini": ("-m", "gemini-2.5-flash", "--yolo", "-p"),
    "opencode": ("run",),
    "qwen": ("--yolo", "-p"),
}
PATHS = {"OPENAI_BASE_URL": "/v1"}


def _environment(prompt: Prompt, agent: str = "claude", *, url: str = "", key: str = VALUE) -> dict[str, str]:
    """With nothing of the person's own keys, but this one."""
    own = {variable for each in AGENTS.values() for one in each.keys for variable in (one.variable, one.url_variable)}
    found = {name: value for name, value in prompt.environment.items() if name not in own}
    first = AGENTS[agent].keys[0]
    if key:
        found[first.variable] = key
    if url:
        found[first.url_variable] = url + PATHS.get(first.url_variable, "")
    return found


def _require_image(agent: str) -> None:
    """Have the agent's image, or skip with the reason."""
    if Engine().image(f"workbench/{agent}:{images.VERSION}") is not None:
        return
    if not FULL:
        pytest.skip(f"workbench/{agent} isn't built; with WORKBENCH_SUITES=full it is")
    try:
        images.ensure(f"workbench/{agent}", print)
    except SandboxError as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(error.message)


@pytest.mark.parametrize("agent", AGENTS)
def test_an_agents_work_lands_in_the_overlay_and_its_key_is_nowhere(
    engine: None, fresh_prompt: Prompt, tmp_path: Path, agent: str
) -> None:
    if agent != "claude" and not FULL:
        pytest.skip("one agent is enough, but with WORKBENCH_SUITES=full")
    _require_image(agent)
    prompt = fresh_prompt
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    model = Server(trust=tls(authority, HOST))
    model.RequestHandlerClass = ScriptedModel
    with serving(model):
        environment = _environment(prompt, agent, url=f"https://{model.place}")
        environment |= {"SSL_CERT_FILE": str(tmp_path / "authority.pem"), "OPENAI_MODEL": "scripted"}
        ran = prompt("wrap", "--yes", agent, "--", *ARGUMENTS[agent], "Make the file.", env=environment)
    assert SAID.encode() in ran.stdout
    assert b"1 file changed" in ran.stderr
    (change,) = json.loads(prompt("diff", "--json").stdout)["changes"]
    assert (change["path"], change["kind"]) == ("made-by-agent", "added")
    assert not (prompt.workspace / "made-by-agent").exists()
    assert AGENTS[agent].title.encode() in prompt("log").stdout
    sent = [value for _, _, headers, _ in model.requests for _, value in headers]
    assert any(VALUE in value for value in sent)
    assert not any(PLACEHOLDER in value for value in sent)
    said = [ran.stdout, ran.stderr, subprocess.run(["ps", "axeww"], capture_output=True, check=True).stdout]
    held = [path.read_bytes() for path in prompt.state.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not any(VALUE.encode() in text for text in [*said, *held])


def test_the_home_is_kept_with_the_session_and_is_no_part_of_its_changes(fresh_prompt: Prompt) -> None:
    prompt = fresh_prompt
    argv = ("wrap", "--yes", "--image", "workbench/python", "claude")
    ended = prompt(*argv, code=127, env=_environment(prompt))
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
    refused = prompt("wrap", "claude", code=4, env=_environment(prompt))
    assert b"confirmation_required" in refused.stderr


@pytest.mark.parametrize(
    ("key", "told"),
    [(VALUE, rb"api\.anthropic\.com, with the key of ANTHROPIC_API_KEY"), ("", rb"no key, since")],
    ids=["key", "none"],
)
def test_somebody_at_a_terminal_is_told_what_it_gets_and_may_say_no(prompt: Prompt, key: str, told: bytes) -> None:
    argv = [os.fsdecode(word) for word in prompt.argv("wrap", "claude")]
    with terminal(argv, cwd=prompt.workspace, environment=_environment(prompt, key=key)) as screen:
        screen.expect(b"Claude Code gets, in a sandbox:")
        screen.expect(told)
        screen.expect(rb"Start it\?")
        screen.type(b"n\r")
        assert screen.wait() == 1
        assert VALUE.encode() not in screen.screen


@pytest.mark.parametrize("url", ["http://example.com", "https://user@example.com", "ftp://x", "example.com"])
def test_a_key_is_sent_nowhere_but_by_https_to_a_host(prompt: Prompt, url: str) -> None:
    refused = prompt("wrap", "--yes", "claude", code=2, env=_environment(prompt, url=url))
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
