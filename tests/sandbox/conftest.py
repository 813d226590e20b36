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


@pytest.fixture(
    params=[
        "namespace",
        "namespace, plain",
        pytest.param("docker", marks=pytest.mark.engine),
        pytest.param("docker, copied", marks=pytest.mark.engine),
    ]
)
def any_place(request: pytest.FixtureRequest) -> Iterator[Place]:
    """An overlay for a sandbox of any kind."""
    backend, _, kind = request.param.partition(", ")
    options = {"copied": {"sharing": "copied"}, "plain": {"runtime": "plain"}}.get(kind, {})
    if backend == "docker":
        request.getfixturevalue("engine")
    elif not kind:
        need_program("bwrap")
    with a_place(backend, **options) as place:
        yield place
