"""Whose adapters are used where nobody says: the built-in ones, and those that installed distributions register."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from workbench.errors import OptionsError
from workbench.transcripts.adapter import SessionAdapter
from workbench.transcripts.homes import Provider

ENTRY_POINTS = "workbench.session_adapters"


@cache
def builtin_provider() -> Provider:
    """The adapters that come with workbench."""
    from workbench.transcripts.agents import ADAPTERS

    return Provider(sessions={adapter.agent: adapter for adapter in (kind() for kind in ADAPTERS)})


@cache
def default_providers() -> tuple[Provider, ...]:
    """Registered adapters before the built-in ones; each entry point is a class or function that makes one.

    Raises:
        OptionsError: an entry point can't be loaded, or gives no adapter.
    """
    registered: dict[str, SessionAdapter] = {}
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            adapter = entry.load()()
        except Exception as error:
            raise OptionsError(
                f"The session adapter {entry.name} can't be loaded: {error}.",
                hint="Repair or remove the distribution that registers it.",
            ) from error
        registered[adapter.agent] = adapter
    own = builtin_provider()
    return (Provider(sessions=registered), own) if registered else (own,)
