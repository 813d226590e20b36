"""An engine that is restarted, as an upgrade of it does, with a sandbox at work: an engine of the test's own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.bench import keeper_of
from tests.conftest import Cli
from tests.engines import PrivateEngine, private_engine
from tests.test_untouched import everything_about, ours, start_writer
from workbench.sandbox import images
from workbench.sandbox.engine import Engine


@pytest.fixture(scope="module")
def private(engine: None) -> Iterator[PrivateEngine]:
    with private_engine(images.reference(images.DEFAULT)) as made:
        yield made


@pytest.mark.parametrize("sharing", ["mounted", "copied", "plain"])
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_an_engine_that_is_restarted_costs_the_running_command_and_nothing_else(
    private: PrivateEngine, cli: Cli, state: Path, monkeypatch: pytest.MonkeyPatch, sharing: str, how: signal.Signals
) -> None:
    monkeypatch.setenv("WORKBENCH_SHARING", sharing)
    monkeypatch.setenv("DOCKER_HOST", private.host)
    before = everything_about(cli.workspace)
    process, overlay = start_writer(cli)
    keeper = anyio.run(keeper_of, overlay)
    private.end(how)
    assert process.wait(timeout=120) == 125
    assert everything_about(cli.workspace) == before
    gone = cli.sh("true", code=125)
    assert b"[engine_unavailable]" in gone.stderr
    private.start()
    assert cli.sh("tail -n 1 new").stdout == b"x\n"
    again = anyio.run(keeper_of, overlay)
    containers, volumes = ours(Engine(), state)
    assert containers
    assert volumes
    assert {name[: len(again.name)] for name in (*containers, *volumes)} == {again.name} != {keeper.name}
    assert everything_about(cli.workspace) == before
    cli("stop")
    assert ours(Engine(), state) == ([], [])
    assert everything_about(cli.workspace) == before
