from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.checkpoints.layers import Layers


@pytest.fixture
def layers(tmp_path: Path) -> Iterator[Layers]:
    made = Layers.make(tmp_path / "l")
    yield made
    made.store.close()
    # pytest's own clean-up recurses, and layers may be thousands of levels deep.
    subprocess.run(["rm", "-rf", made.path], check=True)


@pytest.fixture
def root() -> None:
    """Needs to be root: for mounts, other owners, and what only others may not read."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
