"""Where each agent keeps its things: the catalog of agents, their other names, and the rules for their homes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from workbench.errors import CapabilityUnsupportedError

if TYPE_CHECKING:
    from workbench.transcripts.adapter import SessionAdapter


@dataclass(frozen=True, slots=True)
class HomeContext:
    """What a home depends on."""

    env: Mapping[str, str]
    home: str

    def under(self, *names: str) -> str:
        """A path below the user's home."""
        return join(self.home, *names)

    def data(self, *names: str) -> str:
        """A path below the user's data directory (`XDG_DATA_HOME`)."""
        return join(self.env.get("XDG_DATA_HOME") or self.under(".local", "share"), *names)

    def config(self, *names: str) -> str:
        """A path below the user's configuration directory (`XDG_CONFIG_HOME`)."""
        return join(self.env.get("XDG_CONFIG_HOME") or self.under(".config"), *names)


@dataclass(frozen=True, slots=True)
class AgentHome:
    """An agent's directories; some agents have several."""

    paths: tuple[str, ...]


HomeRule = Callable[[HomeContext], AgentHome]
SessionAdapters = Mapping[str, "SessionAdapter"]


@dataclass(frozen=True, slots=True)
class Provider:
    """What somebody brings: adapters by agent id, and other names for those agents."""

    sessions: SessionAdapters = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)


class HasHome(Protocol):
    """What a home is found for."""

    @property
    def agent(self) -> str:
        """The agent's id."""
        ...

    @property
    def home(self) -> HomeRule | None:
        """The agent's own rule, instead of the catalog's."""
        ...


def join(directory: str, *names: str) -> str:
    """A path below a directory of any platform: its separators are slashes."""
    return "/".join((directory.rstrip("/"), *names))


def _named_by(variable: str, *default: str) -> HomeRule:
    """The directory that the variable names, else one below the user's home."""
    return lambda context: AgentHome((context.env.get(variable) or context.under(*default),))


def _claude(context: HomeContext) -> AgentHome:
    named = [path.strip() for path in (context.env.get("CLAUDE_CONFIG_DIR") or "").split(",") if path.strip()]
    return AgentHome(tuple(named) or (context.under(".claude"), context.config("claude")))


def _data(name: str) -> HomeRule:
    return lambda context: AgentHome((context.data(name),))


def _gemini(context: HomeContext) -> AgentHome:
    return AgentHome((join(context.env.get("GEMINI_CLI_HOME") or context.home, ".gemini"),))


def _cursor(context: HomeContext) -> AgentHome:
    mac = context.under("Library", "Application Support", "Cursor", "User")
    return AgentHome((context.under(".cursor"), context.config("Cursor", "User"), mac))


def _editors(context: HomeContext) -> AgentHome:
    """The user directories of VS Code and what is made from it."""
    names = ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf")
    mac = (context.under("Library", "Application Support", name, "User") for name in names)
    servers = (context.under(f".{name}-server", "data", "User") for name in ("vscode", "cursor", "windsurf"))
    return AgentHome((*(context.config(name, "User") for name in names), *mac, *servers))


def _goose(context: HomeContext) -> AgentHome:
    if root := context.env.get("GOOSE_PATH_ROOT"):
        return AgentHome((join(root, "data"),))
    mac = context.under("Library", "Application Support", "goose")
    return AgentHome((context.data("goose"), context.data("Block", "goose"), mac))


def _crush(context: HomeContext) -> AgentHome:
    return AgentHome((context.env.get("CRUSH_GLOBAL_DATA") or context.data("crush"),))


def _zed(context: HomeContext) -> AgentHome:
    return AgentHome((context.data("zed"), context.under("Library", "Application Support", "Zed")))


def _kimi(context: HomeContext) -> AgentHome:
    return AgentHome(
        (
            context.env.get("KIMI_SHARE_DIR") or context.under(".kimi"),
            context.env.get("KIMI_CODE_HOME") or context.under(".kimi-code"),
        )
    )


def _pi(context: HomeContext) -> AgentHome:
    own = context.env.get("PI_CODING_AGENT_DIR") or context.under(".pi", "agent")
    return AgentHome((own, context.under(".omp", "agent")))


def _aider(context: HomeContext) -> AgentHome:
    """Aider has no home of its own: its history lies where it was started, or at the top of that repository."""
    if named := context.env.get("AIDER_CHAT_HISTORY_FILE"):
        return AgentHome((named.rpartition("/")[0] or ".",))
    places = [context.env.get("PWD") or context.home]
    while places[-1].startswith(join(context.home, "")):
        places.append(places[-1].rpartition("/")[0])
    return AgentHome(tuple(places))


def _cline(context: HomeContext) -> AgentHome:
    own = context.env.get("CLINE_DATA_DIR") or join(context.env.get("CLINE_DIR") or context.under(".cline"), "data")
    return AgentHome((own, *_editors(context).paths))


def _workbench(context: HomeContext) -> AgentHome:
    base = context.env.get("XDG_STATE_HOME") or context.under(".local", "state")
    return AgentHome((context.env.get("WORKBENCH_STATE") or join(base, "workbench"),))


@dataclass(frozen=True, slots=True)
class _Agent:
    home: HomeRule
    aliases: tuple[str, ...] = ()


_CATALOG = {
    "claude-code": _Agent(_claude, ("claude", "claudecode")),
    "codex": _Agent(_named_by("CODEX_HOME", ".codex"), ("codex-cli",)),
    "gemini-cli": _Agent(_gemini, ("gemini",)),
    "qwen-code": _Agent(_named_by("QWEN_HOME", ".qwen"), ("qwen",)),
    "copilot-cli": _Agent(_named_by("COPILOT_HOME", ".copilot"), ("copilot",)),
    "pi": _Agent(_pi, ("pi-coding-agent", "oh-my-pi")),
    "kimi": _Agent(_kimi, ("kimi-cli", "kimi-code")),
    "droid": _Agent(_named_by("FACTORY_HOME", ".factory"), ("factory",)),
    "cline": _Agent(_cline),
    "roo-code": _Agent(_editors, ("roo",)),
    "kilo-code": _Agent(_editors, ("kilo",)),
    "amp": _Agent(_data("amp")),
    "continue": _Agent(_named_by("CONTINUE_GLOBAL_DIR", ".continue")),
    "aider": _Agent(_aider),
    "opencode": _Agent(_data("opencode")),
    "cursor": _Agent(_cursor, ("cursor-agent",)),
    "goose": _Agent(_goose),
    "crush": _Agent(_crush),
    "zed": _Agent(_zed),
    "workbench": _Agent(_workbench),
}


def agent_id(name: str, providers: Sequence[Provider]) -> str:
    """The id of an agent that is named by its id or by another name of it; the name itself where nobody knows it."""
    aliases = {alias: agent for agent, entry in _CATALOG.items() for alias in entry.aliases}
    for provider in providers:
        aliases.update(provider.aliases)
    known = any(name in provider.sessions for provider in providers)
    return name if known else aliases.get(name, name)


def session_adapter_home(
    adapter: HasHome, context: HomeContext, *, providers: Sequence[Provider] | None = None
) -> AgentHome:
    """The home whose roots an adapter lists: by its own rule, else by that of its provider's adapter, else the catalog's.

    Raises:
        CapabilityUnsupportedError: there is no rule for this agent.
    """
    if adapter.home is not None:
        return adapter.home(context)
    for provider in providers or ():
        provided = provider.sessions.get(adapter.agent)
        if provided is not None and provided.home is not None:
            return provided.home(context)
    if adapter.agent in _CATALOG:
        return _CATALOG[adapter.agent].home(context)
    raise CapabilityUnsupportedError(
        f"Nobody says where {adapter.agent} keeps its sessions.", hint="Give its adapter a home rule."
    )
