"""What the tests of sandboxes share: an overlay on disk, under each backend."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.needed import need_program
from tests.sandbox.places import Place, a_place


@pytest.fixture(params=["namespace", pytest.param("docker", marks=pytest.mark.engine)])
def either_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """An overlay for a sandbox of either backend."""
    if request.param == "docker":
        request.getfixturevalue("engine")
    else:
        need_program("bwrap")
    with a_place(request.param) as place:
        yield place
