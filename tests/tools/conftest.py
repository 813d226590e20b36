"""A workspace to call tools in; nothing of it needs an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.tools.called import Called
from workbench.tools.standard import workspace_tools
from workbench.workspace import Workspace


@pytest.fixture
def root(tmp_path: Path, state: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    return directory


@pytest.fixture
async def workspace(root: Path) -> AsyncIterator[Workspace]:
    async with Workspace.open(root) as workspace:
        yield workspace


@pytest.fixture
def call(workspace: Workspace) -> Called:
    return Called(workspace_tools(workspace))
