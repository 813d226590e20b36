"""`wrap`: a coding agent's own command line in the sandbox."""

from __future__ import annotations

import os
import shlex
import sys
import time
from functools import partial
from typing import Annotated
from urllib.parse import urlsplit

import typer

from workbench.cli import asked, output
from workbench.cli.execute import run_command, to_its_end
from workbench.cli.network import AllowHostOption, AskHostOption, MaxHostBytesOption
from workbench.cli.options import (
    BackendOption,
    Context,
    CpusOption,
    DiskOption,
    FilesOption,
    MemoryOption,
    PidsOption,
    QuietOption,
    RuntimeOption,
    SessionOption,
    TmpOption,
    WorkspaceOption,
    failing,
    limits,
    workspace_path,
)
from workbench.errors import OptionsError, StateError
from workbench.mounting import SandboxOptions
from workbench.sandbox import logins
from workbench.sandbox.agents import AGENTS, PLACEHOLDER, Agent, Key
from workbench.sandbox.egress.options import Egress, Secret
from workbench.sandbox.logins import Login

_SECRET = "agent"
# The script stands in a variable, so that lists of what runs show the agent and its arguments.
_START = (
    "sh",
    "-c",
    'command -v "$0" >/dev/null || { echo "the sandbox has no $0" >&2; exit 127; }; eval "$WORKBENCH_WRAP"',
)


def wrap(
    name: Annotated[str, typer.Argument(metavar="AGENT", help=f"{', '.join(AGENTS)}.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="ARGS", help="The agent's own arguments, best after --.", show_default=False),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", metavar="", help="Don't ask whether it may have what it gets.")] = False,
    allow_host: AllowHostOption = None,
    ask_host: AskHostOption = False,
    max_host_bytes: MaxHostBytesOption = 0,
    image: Annotated[
        str, typer.Option("--image", metavar="IMAGE", help="The image of the sandbox, by default one with the agent.")
    ] = "",
    backend: BackendOption = "auto",
    runtime: RuntimeOption = "",
    memory: MemoryOption = None,
    pids: PidsOption = None,
    cpus: CpusOption = None,
    disk: DiskOption = None,
    tmp_size: TmpOption = None,
    open_files: FilesOption = None,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    quiet: QuietOption = False,
) -> None:
    """Run a coding agent's own command line in the sandbox; nothing of the workspace changes.

    Its key is taken from its usual variable here, else from its login on this machine where that can be lent, and put into
    its requests outside of the sandbox, so it never has it.
    Its home directory is kept with the session.
    """
    if name not in AGENTS:
        raise typer.BadParameter(f"There is no agent called {name!r}, but {', '.join(AGENTS)}.")
    agent = AGENTS[name]
    words = arguments or []
    if words[:1] == ["--"]:
        words = words[1:]
    key = next((key for key in agent.keys if os.environ.get(key.variable)), None)
    login = None if key is not None else logins.find(name, os.environ, time.time())
    if login is not None:
        if login.why:
            output.say(login.why)
        key = next((key for key in agent.keys if key.variable == login.variable), None)
    context = Context(workspace, session, quiet=quiet)
    with failing(False):
        egress = _egress(agent, key, login, tuple(allow_host or ()), ask_host, max_host_bytes)
        if not yes:
            _confirm(agent, key, login, egress, output.path(workspace_path(workspace)))
    command = asked.command(
        (*_START, name, *words), with_tty=asked.wants_tty(None), environment=_environment(agent, key)
    )
    options = SandboxOptions(
        backend=backend,
        image=image or f"workbench/{name}",
        runtime=runtime,
        limits=limits(memory, pids, cpus, disk, tmp_size, None, open_files),
        keep_home=True,
    )
    # What is typed is the agent's business, as it is a shell's.
    run_command(context, options, command, lambda: egress, partial(to_its_end, name=agent.title, is_shell=True))


def _egress(
    agent: Agent, key: Key | None, login: Login | None, allow_hosts: tuple[str, ...], ask: bool, max_host_bytes: int
) -> Egress:
    """What the agent may reach; its key is taken out of this process's environment, so that no child gets it.

    Raises OptionsError.
    """
    if key is None:
        wanted = Egress((*agent.login_hosts, *allow_hosts), (), ask, max_host_bytes)
    else:
        value = login.token if login is not None else os.environ[key.variable]
        secret = Secret(_SECRET, value, urlsplit(_url(key)).netloc, key.header)
        wanted = Egress(allow_hosts, (secret,), ask, max_host_bytes)
    wanted.check()
    for each in agent.keys:
        os.environ.pop(each.variable, None)
    return wanted


def _url(key: Key) -> str:
    """Where the agent's requests go. Raises OptionsError where a key can't go there."""
    url = os.environ.get(key.url_variable) or key.url
    parts = urlsplit(url)
    if parts.scheme != "https" or not parts.hostname or "@" in parts.netloc or parts.query:
        raise OptionsError(
            f"The key of {key.variable} can't be sent to {url!r}, where {key.url_variable} points.",
            hint="It has to be an address that begins with https://.",
        )
    return url.rstrip("/")


def _environment(agent: Agent, key: Key | None) -> dict[str, str]:
    found = {name: os.environ[name] for name in agent.passed_on if name in os.environ}
    found |= {**agent.environment, "WORKBENCH_WRAP": agent.script}
    if key is not None:
        found[key.variable] = PLACEHOLDER
        secret = Secret(_SECRET, PLACEHOLDER, "", "")
        found["WORKBENCH_WRAP"] = f'URL="${secret.variable}"{shlex.quote(urlsplit(_url(key)).path)}\n{agent.script}'
    return found


def _confirm(agent: Agent, key: Key | None, login: Login | None, egress: Egress, workspace: str) -> None:
    """Say what the agent gets, and ask. Raises StateError (confirmation_required) where nobody can be asked."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise StateError(
            f"Nobody can be asked whether {agent.title} may have what it gets.",
            code="confirmation_required",
            hint="Say --yes.",
        )
    output.say(f"{agent.title} gets, in a sandbox:")
    output.say(f"- {workspace}, where what it changes waits for your review")
    output.say("- a home directory of its own, kept with the session")
    if key is not None:
        host, whose = egress.secrets[0].host, f"the key of {key.variable}"
        if login is not None:
            until = time.strftime(", good until %H:%M on %d %B,", time.localtime(login.until)) if login.until else ""
            whose = f"{agent.title}'s login on this machine{until}"
        output.say(
            f"- {host}, with {whose} put into its requests; it can't see {'that' if login else 'the key'} itself"
        )
    else:
        variables = " or ".join(each.variable for each in agent.keys)
        output.say(f"- no key, since {variables} isn't set: it can log in itself, and keeps that in its home")
    hosts = ", ".join(egress.allow_hosts)
    more = "any other host that you allow when it's wanted" if egress.ask else ""
    output.say(f"- of the network: {', and '.join(filter(None, (hosts, more))) or 'nothing else'}")
    if not typer.confirm("Start it?", default=True, err=True):
        raise typer.Exit(1)
