"""What tests of transcripts share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def samples() -> Path:
    """Real agents' session files, which don't come with this project: WORKBENCH_SAMPLES, else beside it."""
    beside = Path(__file__).parents[3] / "shared" / "samples"
    directory = Path(os.environ.get("WORKBENCH_SAMPLES") or beside) / "sessions"
    if not directory.is_dir():
        pytest.skip("the sample sessions aren't here: WORKBENCH_SAMPLES names the directory that has them")
    return directory
