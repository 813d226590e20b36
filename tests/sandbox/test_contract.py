"""The public conformance suite on our own sandboxes: each backend, and each way in which it can be had."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import anyio
import pytest

from tests.needed import need_program
from tests.sandbox.support import spec
from workbench.errors import SandboxError
from workbench.sandbox import probe
from workbench.sandbox.backend import Limits, OverlayMount
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.engine import Engine
from workbench.sandbox.leftovers import OVERLAY_LABEL
from workbench.sandbox.sandbox import Sandbox
from workbench.testing import SandboxContract, SandboxLayers
from workbench.vfs.session import OverlayDirectory


class Kept(SandboxContract):
    """A sandbox with its keeper, as everybody has it."""

    backend = "namespace"
    options: dict[str, str] = {}  # noqa: RUF012

    def start_sandbox(self, layers: SandboxLayers, limits: Limits) -> AbstractAsyncContextManager[Sandbox]:
        return self._start(layers, limits)

    @asynccontextmanager
    async def _start(self, layers: SandboxLayers, limits: Limits) -> AsyncIterator[Sandbox]:
        overlay = OverlayDirectory.create(str(layers.overlay), "contract")
        mount = OverlayMount(str(layers.lower), overlay.upper_path, overlay.work_path, "/workspace")
        what = spec(self.backend, mount, limits=limits, **self.options)
        what.labels[OVERLAY_LABEL] = overlay.path
        async with await KeeperClient.ensure(overlay, what, lambda line: None) as client:
            try:
                yield client
            finally:
                if not client.lost:
                    with anyio.CancelScope(shield=True):
                        await client.stop(force=True)


@pytest.fixture(scope="session")
def namespaces(tmp_path_factory: pytest.TempPathFactory) -> None:
    """User namespaces; without them the test is skipped, with the reason."""
    result = anyio.run(probe.probe_namespace, spec("namespace"), str(tmp_path_factory.mktemp("probe")))
    if not result.ok:
        pytest.skip(result.reason)


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
class TestDocker(Kept):
    backend = "docker"


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
class TestDockerWithCopies(Kept):
    backend = "docker"
    options = {"sharing": "copied"}  # noqa: RUF012


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
class TestDockerWithPlainCopies(Kept):
    backend = "docker"
    options = {"sharing": "plain"}  # noqa: RUF012


@pytest.mark.usefixtures("namespaces")
class TestNamespace(Kept):
    options = {"runtime": "plain"}  # noqa: RUF012


@pytest.mark.usefixtures("namespaces")
class TestNamespaceWithBubblewrap(Kept):
    options = {"runtime": "bubblewrap"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        need_program("bwrap")


@pytest.mark.engine
@pytest.mark.usefixtures("engine")
class TestGVisor(Kept):
    backend = "docker"
    options = {"runtime": "runsc"}  # noqa: RUF012

    @pytest.fixture(autouse=True)
    def _usable(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        if "runsc" not in Engine().facts().runtimes:
            pytest.skip("the engine has no runtime runsc")
        what = spec("docker", uid=os.getuid() or 1234, gid=os.getgid() or 1234, runtime="runsc")
        result = anyio.run(probe.probe_docker, what, str(tmp_path_factory.mktemp("probe")))
        if not result.ok:
            pytest.skip(f"runsc can't be used: {result.reason}")


class TestWhatWasPicked(Kept):
    """What `auto` takes here."""

    @pytest.fixture(autouse=True)
    def _picked(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        try:
            picked = anyio.run(probe.pick, "auto", spec("auto"), str(tmp_path_factory.mktemp("probe")))
        except SandboxError as error:
            pytest.skip(error.message)
        self.backend = picked.backend
        self.options = {"sharing": picked.result.sharing}
