"""Listing the sessions of every agent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeGuard

from workbench.errors import CapabilityUnsupportedError
from workbench.protocol.signal import CancelSignal
from workbench.transcripts.adapter import SessionAdapter
from workbench.transcripts.homes import HomeContext, Provider, agent_id, session_adapter_home
from workbench.transcripts.models import ReadFailed, SessionHead, SessionListFailure
from workbench.transcripts.platform import HostPlatform
from workbench.transcripts.providers import default_providers
from workbench.transcripts.reading import closing


def is_session_head(item: SessionHead | SessionListFailure) -> TypeGuard[SessionHead]:
    """Whether an item of a listing is a session, and not what couldn't be listed."""
    return isinstance(item, SessionHead)


def find_adapter(name: str, *, providers: Sequence[Provider] | None = None) -> SessionAdapter:
    """The adapter of an agent, by its id or another name of it.

    Raises:
        CapabilityUnsupportedError: there is none.
    """
    offered = default_providers() if providers is None else providers
    agent = agent_id(name, offered)
    for provider in offered:
        if agent in provider.sessions:
            return provider.sessions[agent]
    raise CapabilityUnsupportedError(
        f"Nothing here reads the sessions of {name}.",
        hint=f"Agents whose sessions can be read: {', '.join(sorted({a for p in offered for a in p.sessions}))}.",
    )


def session_roots(
    platform: HostPlatform, *, agents: Sequence[str] | None = None, providers: Sequence[Provider] | None = None
) -> list[tuple[SessionAdapter, str]]:
    """What `list_sessions` looks through, in its order: each root with its adapter.

    Raises:
        CapabilityUnsupportedError: a requested agent has no adapter, or an adapter no home.
    """
    offered = default_providers() if providers is None else providers
    names = dict.fromkeys(agent for provider in offered for agent in provider.sessions) if agents is None else agents
    adapters = {adapter.agent: adapter for adapter in (find_adapter(name, providers=offered) for name in names)}
    context = HomeContext(platform.env, platform.home)
    return [
        (adapter, root)
        for adapter in adapters.values()
        for root in dict.fromkeys(adapter.roots(session_adapter_home(adapter, context, providers=offered)))
    ]


async def list_sessions(
    platform: HostPlatform,
    *,
    agents: Sequence[str] | None = None,
    on_total: Callable[[int], None] | None = None,
    providers: Sequence[Provider] | None = None,
    signal: CancelSignal | None = None,
) -> AsyncGenerator[SessionHead | SessionListFailure, None]:
    """The sessions of each agent from its home's roots: one head a session file, newest root order, files by name.

    Leaving the loop stops the reads.

    Args:
        platform: Where they are read.
        agents: Ids or other names of agents; None is every agent of the providers.
        on_total: Called with the running total of session files, each time another root has been listed.
        providers: Whose adapters are used, the first that has one; None is the built-in ones and those that installed
            distributions register under `workbench.session_adapters`.
        signal: Stops the listing when it's cancelled.

    Yields:
        Heads, and for each root or file that can't be read a failure.

    Raises:
        CapabilityUnsupportedError: a requested agent has no adapter, or an adapter no home.
        BaseException: the signal's reason.
    """
    total = 0
    for adapter, root in session_roots(platform, agents=agents, providers=providers):
        if signal is not None:
            signal.raise_if_cancelled()
        async with closing(adapter.discover(platform, root, signal=signal)) as found:
            async for item in found:
                total += is_session_head(item) or _is_of_a_file(item, root)
                yield item
        if on_total is not None:
            on_total(total)


def _is_of_a_file(item: SessionHead | SessionListFailure, root: str) -> bool:
    return isinstance(item, SessionListFailure) and isinstance(item.error, ReadFailed) and item.error.path != root
