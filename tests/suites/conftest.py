from __future__ import annotations

from pathlib import Path

import pytest

from tests.suites.sides import Sides


@pytest.fixture
def sides(engine: None, state: Path, tmp_path: Path) -> Sides:
    """A plain directory and a workspace beside it, and an image with the suites."""
    return Sides(tmp_path)
