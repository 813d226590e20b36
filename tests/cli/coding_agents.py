"""Real coding agents in the sandbox, each made to work for a model on the loopback."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from tests.cli.conftest import Prompt
from tests.cli.scripted_model import ASKED, ASKED_AGAIN, ScriptedModel
from tests.needed import unavailable
from tests.sandbox.egress.conftest import tls
from tests.sandbox.egress.servers import HOST, serving
from workbench.errors import SandboxError
from workbench.sandbox import images
from workbench.sandbox.agents import AGENTS

FULL = os.environ.get("WORKBENCH_SUITES") == "full"
# No other test, process or run of the tests has it.
VALUE = f"sk-{os.getpid()}-fedcba9876543210"

_PATHS = {"OPENAI_BASE_URL": "/v1"}


@dataclass(frozen=True, slots=True)
class CodingAgent:
    """How an agent is run: what comes before a prompt, and before one that goes on with the session.

    `reader` is the adapter's name; `untold` are the kinds of tokens that it keeps no count of, or isn't told; `always` says
    that it's run whatever the machine; `script` starts what isn't wrapped. `thinks` says that it keeps thoughts.
    """

    reader: str
    first: tuple[str, ...]
    again: tuple[str, ...]
    untold: tuple[str, ...] = ()
    always: bool = False
    script: str = ""
    thinks: bool = True


_CLAUDE = ("--dangerously-skip-permissions", "-p")
_CODEX = ("-m", "scripted", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox")
_GEMINI = ("-m", "gemini-2.5-flash", "--yolo")
WRAPPED = {
    # Messages tells nothing of reasoning, Gemini of what is written to a cache.
    "claude": CodingAgent("claude-code", _CLAUDE, ("--continue", *_CLAUDE), untold=("reasoning",), always=True),
    "codex": CodingAgent("codex", ("exec", *_CODEX), ("exec", "resume", "--last", *_CODEX), always=True),
    "gemini": CodingAgent(
        "gemini-cli", (*_GEMINI, "-p"), (*_GEMINI, "--resume", "latest", "-p"), untold=("cache_write",)
    ),
    "opencode": CodingAgent("opencode", ("run",), ("run", "--continue"), untold=("reasoning",)),
    "qwen": CodingAgent("qwen-code", ("--yolo", "-p"), ("--yolo", "--continue", "-p"), untold=("cache_write",)),
}


# What has no Messages or no Responses is spoken to as to OpenAI; each has a home in the workspace, so that it can be read.
_SETUP = 'export HOME="$PWD/.home" XDG_CACHE_HOME=/tmp/cache URL="$WORKBENCH_AGENT_URL"; mkdir -p "$HOME"; '
_PI = """
mkdir -p ~/.pi/agent
model='{"baseUrl": "'"$URL"'", "api": "anthropic-messages", "apiKey": "any", "models": [{"id": "scripted"}]}'
echo '{"providers": {"stub": '"$model"'}}' > ~/.pi/agent/models.json
exec pi --offline --provider stub --model scripted "$@"
"""
_COPILOT = """
export COPILOT_PROVIDER_BASE_URL="$URL/v1" COPILOT_PROVIDER_API_KEY=any COPILOT_MODEL=scripted COPILOT_OFFLINE=true
exec copilot --allow-all-tools --allow-all-paths "$@"
"""
_CLINE = """
cline auth -p openai-compatible -k any -m scripted -b "$URL/v1"
exec cline --auto-approve true "$@"
"""
_CONTINUE = """
mkdir -p ~/.continue
model="{name: scripted, provider: openai, model: scripted, apiKey: any, apiBase: $URL/v1, capabilities: [tool_use]}"
printf 'name: stub\nversion: 0.0.1\nschema: v1\nmodels: [%s]\n' "$model" > ~/.continue/config.yaml
exec cn --config ~/.continue/config.yaml --auto "$@"
"""
_KIMI = """
mkdir -p ~/.kimi-code
cat > ~/.kimi-code/config.toml <<END
default_model = "scripted"
providers.stub = {type = "openai", base_url = "$URL/v1", api_key = "any"}
models.scripted = {provider = "stub", model = "scripted", max_context_size = 100000}
END
exec kimi "$@"
"""
OTHERS = {
    "@earendil-works/pi-coding-agent": CodingAgent("pi", ("-p",), ("-c", "-p"), ("reasoning",), script=_PI),
    "@github/copilot": CodingAgent("copilot-cli", ("-p",), ("--continue", "-p"), script=_COPILOT),
    # To go on with a session it wants a terminal.
    "cline": CodingAgent("cline", (), (), ("reasoning", "cache_write"), script=_CLINE),
    "@continuedev/cli": CodingAgent("continue", ("-p",), ("--resume", "-p"), script=_CONTINUE, thinks=False),
    "@moonshot-ai/kimi-code": CodingAgent("kimi", ("-p",), ("-c", "-p"), ("reasoning", "cache_write"), script=_KIMI),
}
"""Command lines of npm's packages that `wrap` knows nothing of."""

AGENTS_RUN = {**WRAPPED, **OTHERS}

_OTHER_IMAGE = "workbench-tests/agents:1"
_RECIPE_LABEL = "workbench.test.recipe"
_PASSED_ON = ("http_proxy", "https_proxy", "no_proxy", "npm_config_registry")
_DOCKERFILE = f"""\
FROM workbench/node:1
ARG npm_config_registry
COPY Dockerfile ca.pem* /tmp/build/
RUN if [ -s /tmp/build/ca.pem ]; then export NODE_EXTRA_CA_CERTS=/tmp/build/ca.pem; fi \\
    && npm install --global --no-audit --no-fund {" ".join(OTHERS)} && rm -rf /tmp/build /root/.npm
"""


@dataclass(frozen=True, slots=True)
class Worked:
    """What an agent did that was asked twice: `said` is what it printed each time, `home` its home directory."""

    agent: CodingAgent
    name: str
    prompt: Prompt
    model: ScriptedModel
    said: list[bytes]
    home: Path


def work(name: str, prompt: Prompt) -> Worked:
    """Have an agent make files, and then go on with its session. Skips the test where the agent can't be had."""
    agent = AGENTS_RUN[name]
    if not agent.always and not FULL:
        pytest.skip(f"{name} is run with WORKBENCH_SUITES=full")
    image = _other_image() if agent.script else own_image(f"workbench/{name}")
    said = []
    with scripted(prompt) as (model, variables):
        start: tuple[str, ...] = ("wrap", "--yes", name, "--")
        if agent.script:
            variables |= {**prompt.environment, **variables, "KEY_OF_AGENT": VALUE}
            start = ("exec", "--image", image, "--secret", "AGENT=env:KEY_OF_AGENT", "--for-host", model.place, "--")
            start = (*start, "sh", "-c", _SETUP + agent.script, "sh")
        else:
            variables |= {**environment(prompt, name, url=f"https://{model.place}"), **variables}
        for words in ((*agent.first, ASKED), *([(*agent.again, ASKED_AGAIN)] if agent.again else [])):
            ran = prompt(*start, *words, env=variables)
            said.append(ran.stdout + ran.stderr)
    # What its databases hold is whole once nothing runs any more.
    prompt("stop")
    home = prompt.overlay() / ("upper/.home" if agent.script else "home/upper")
    return Worked(agent, name, prompt, model, said, home)


@contextlib.contextmanager
def scripted(prompt: Prompt) -> Iterator[tuple[ScriptedModel, dict[str, str]]]:
    """A model behind TLS, and the variables with which it's trusted."""
    authority = trustme.CA()
    trusted = prompt.state.with_name("authority.pem")
    authority.cert_pem.write_to_path(str(trusted))
    with serving(ScriptedModel(prompt.workspace, tls(authority, HOST))) as model:
        assert isinstance(model, ScriptedModel)
        yield model, {"SSL_CERT_FILE": str(trusted), "OPENAI_MODEL": "scripted"}


def environment(prompt: Prompt, agent: str = "claude", *, url: str = "", key: str = VALUE) -> dict[str, str]:
    """With nothing of the person's own keys, but this one."""
    own = {variable for each in AGENTS.values() for one in each.keys for variable in (one.variable, one.url_variable)}
    found = {name: value for name, value in prompt.environment.items() if name not in own}
    first = AGENTS[agent].keys[0]
    if key:
        found[first.variable] = key
    if url:
        found[first.url_variable] = url + _PATHS.get(first.url_variable, "")
    return found


def reading_environment(home: Path) -> Mapping[str, str]:
    """For a command that reads what the agents of this home directory kept, and of no other."""
    names = ("PATH", "PYTHONPATH", "LANG")
    return {name: os.environ[name] for name in names if name in os.environ} | {"HOME": str(home)}


def own_image(name: str) -> str:
    """The id of an image of our own, built where it's missing; skips the test where that can't be."""
    try:
        return images.ensure(name, print)
    except SandboxError as error:
        _require_registry()
        unavailable(error.message)


def _require_registry() -> None:
    """Skip where npm's registry can't be reached from a container, whose fault it then isn't."""
    node = images.ensure("workbench/node", print)
    passed = [word for variable in _PASSED_ON if variable in os.environ for word in ("-e", variable)]
    if trusted := os.environ.get("NODE_EXTRA_CA_CERTS"):
        passed += ["-v", f"{trusted}:/ca.pem:ro", "-e", "NODE_EXTRA_CA_CERTS=/ca.pem"]
    argv = ["docker", "run", "--rm", "--network", "host", *passed, node, "npm", "view", "cline", "version"]
    if subprocess.run(argv, capture_output=True, check=False).returncode:
        pytest.skip("npm's registry can't be reached from a container")


def _other_image() -> str:
    """The image with all the others, over the one with Node; built where it's missing or of another recipe."""
    own_image("workbench/node")
    docker = ("docker", "image", "inspect", "-f", f'{{{{index .Config.Labels "{_RECIPE_LABEL}"}}}}', _OTHER_IMAGE)
    recipe = hashlib.sha256(_DOCKERFILE.encode()).hexdigest()
    if subprocess.run(docker, capture_output=True, text=True, check=False).stdout.strip() == recipe:
        return _OTHER_IMAGE
    with tempfile.TemporaryDirectory(prefix="workbench-image-") as directory:
        Path(directory, "Dockerfile").write_text(_DOCKERFILE)
        if trusted := os.environ.get("NODE_EXTRA_CA_CERTS"):
            shutil.copy(trusted, Path(directory, "ca.pem"))
        passed = [word for name in _PASSED_ON if name in os.environ for word in ("--build-arg", name)]
        options = ["--network", "host", "--force-rm", "--label", f"{_RECIPE_LABEL}={recipe}", "-t", _OTHER_IMAGE]
        argv = ["docker", "build", "-q", *passed, *options, directory]
        built = subprocess.run(argv, capture_output=True, text=True, check=False)
    if built.returncode:
        unavailable(f"{_OTHER_IMAGE} can't be built: {(built.stderr + built.stdout)[-2000:]}")
    return _OTHER_IMAGE
