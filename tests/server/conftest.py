"""A server over a home with a session of every agent that is read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.served import Served, serving
from tests.transcripts.homes import HOMES
from workbench.transcripts import HomeContext, LocalPlatform, find_adapter, session_adapter_home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user of every agent."""
    path = tmp_path_factory.mktemp("home")
    for agent, make in HOMES.items():
        where = session_adapter_home(find_adapter(agent), HomeContext({}, str(path))).paths[0]
        make(Path(where))
    return path


@pytest.fixture(scope="module")
def platform(home: Path) -> LocalPlatform:
    return LocalPlatform(env={}, home=str(home))


@pytest.fixture(scope="module")
def served(platform: LocalPlatform) -> Iterator[Served]:
    with serving(platform) as found:
        yield found
