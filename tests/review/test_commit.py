"""A commit lands exactly what was reviewed, and nothing else changes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.review.landing import Landing, everything
from workbench.errors import CommitError, ConflictError


@pytest.fixture
def landing(tmp_path: Path) -> Iterator[Landing]:
    made = Landing(tmp_path)
    yield made
    made.close()


def test_a_commit_reproduces_the_merged_view(landing: Landing) -> None:
    everything(landing)
    merged = landing.merged()
    committed = landing.land()
    assert landing.tree() == merged
    landing.assert_tidy()
    assert set(committed.landed_bases) == set(committed.landed)
    assert not committed.weak
