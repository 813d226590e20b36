"""A sandbox with a way out, over its directory's sockets and over the supervisor's stream, with both backends."""

from __future__ import annotations

import os
import ssl
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
import trustme

from tests.needed import need_program
from tests.sandbox.egress.servers import HOST, Server, serving
from tests.sandbox.supervised import UID
from tests.sandbox.support import IMAGE
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import leftovers, runtime
from workbench.sandbox.backend import OverlayMount, SandboxSpec
from workbench.sandbox.client import Allowed, Ask, KeeperClient
from workbench.sandbox.egress.attempt import EgressLog
from workbench.sandbox.egress.options import Egress
from workbench.vfs.session import OverlayDirectory

# Sends a request to the proxy (its port is in the environment), and prints what comes back.
_RAW = """
import os, socket, sys
connection = socket.create_connection(("127.0.0.1", int(os.environ[sys.argv[1]].rsplit(":", 1)[1])))
connection.sendall(bytes.fromhex(sys.argv[2]))
if len(sys.argv) > 3: connection.shutdown(socket.SHUT_WR)
while piece := connection.recv(65536): sys.stdout.buffer.write(piece)
"""


@dataclass
class Sandbox:
    """A sandbox, and what it may reach."""

    client: KeeperClient
    allowed: Allowed
    overlay: OverlayDirectory

    async def run(self, *argv: str, environment: dict[str, str] | None = None) -> CommandResult:
        variables = {**self.allowed.environment, **(environment or {})}
        with anyio.fail_after(120):
            return await self.client.run(Command(argv, environment=variables, output_limit=8 << 20))

    async def python(self, script: str, *arguments: str) -> bytes:
        """What a Python script prints that succeeds inside."""
        result = await self.run("python3", "-c", script, *arguments)
        assert result.exit_code == 0, result
        return result.stdout

    async def raw(self, request: bytes, *, variable: str = "http_proxy", ends: bool = False) -> bytes:
        """What comes back for bytes that are sent to the proxy, or the broker whose variable is named."""
        return await self.python(_RAW, variable, request.hex(), *(["ends"] if ends else []))


Open = Callable[..., AbstractAsyncContextManager[Sandbox]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(params=["namespace-socket", "namespace-stream", "docker-socket", "docker-stream"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def sandbox(kind: str, request: pytest.FixtureRequest) -> Iterator[Open]:
    """Opens a sandbox that may reach what its arguments say, those of `Egress`."""
    backend, way = kind.split("-")
    if backend == "docker":
        request.getfixturevalue("engine")
    else:
        need_program("bwrap")
    directory = Path(tempfile.mkdtemp(prefix="workbench-test-"))
    directory.chmod(0o755)
    (directory / "lower").mkdir()
    overlay = OverlayDirectory.create(str(directory / "overlay"), "default")
    uid = os.geteuid()
    if uid == 0:
        uid = UID
        for path in (str(directory / "lower"), overlay.upper_path):
            os.chown(path, uid, uid)
    spec = SandboxSpec(
        backend,
        IMAGE if backend == "docker" else "",
        (OverlayMount(str(directory / "lower"), overlay.upper_path, overlay.work_path, "/workspace"),),
        uid,
        uid,
        environment={"PATH": "/usr/bin:/bin", "HOME": "/home/workbench"},
        labels={leftovers.OVERLAY_LABEL: overlay.path, leftovers.STATE_LABEL: "egress-test"},
        egress_path=str(directory / "overlay" / "egress") if way == "socket" else "",
    )

    @asynccontextmanager
    async def opened(*hosts: str, ask: Ask | None = None, **options: object) -> AsyncIterator[Sandbox]:
        egress = Egress(hosts, ask=ask is not None, **options)  # type: ignore[arg-type]
        client = await KeeperClient.ensure(overlay, spec, lambda sentence: None)
        async with client, client.allow(egress, ask) as allowed:
            yield Sandbox(client, allowed, overlay)

    try:
        yield opened
        if runtime.find_socket(overlay.path) is not None:
            anyio.run(_stop, overlay.path)
        assert not spec.egress_path or os.listdir(spec.egress_path) == []
    finally:
        leftovers.remove_tree(str(directory))


async def _stop(path: str) -> None:
    client = await KeeperClient.connect(path)
    if client is not None:
        async with client:
            await client.stop(force=True)


@pytest.fixture
def server() -> Iterator[Server]:
    with serving(Server()) as one:
        yield one


@pytest.fixture
def other() -> Iterator[Server]:
    """A server that isn't allowed."""
    with serving(Server("127.0.0.3")) as one:
        yield one


@pytest.fixture
def authority(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> trustme.CA:
    """A certificate authority that keepers started from here trust, and no other."""
    made = trustme.CA()
    made.cert_pem.write_to_path(str(tmp_path / "authority.pem"))
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    return made


@pytest.fixture
def secure(authority: trustme.CA) -> Iterator[Server]:
    """A server with a certificate of that authority."""
    with serving(Server(trust=tls(authority, HOST))) as one:
        yield one


def tls(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(name).configure_cert(context)
    return context


def events(sandbox: Sandbox) -> list[tuple[str, str]]:
    """The host and the verdict of each event in the log."""
    return [(event.host, event.verdict) for event in EgressLog(sandbox.overlay.path).events()]
