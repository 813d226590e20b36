"""Engines that are reached by TLS and by ssh: a whole session on copies, through our own attach client."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.bench import Bench, InPhases
from tests.sandbox.support import left_of
from tests.waiting import wait_until
from workbench.errors import SandboxError
from workbench.sandbox.engine import Engine, find_certificates, find_socket

pytestmark = [pytest.mark.engine, pytest.mark.usefixtures("engine")]


class TlsProxy:
    """The engine's socket behind TLS, for clients with a certificate of the same authority."""

    def __init__(self, directory: Path) -> None:
        authority = trustme.CA()
        trust = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("localhost").configure_cert(trust)
        authority.configure_trust(trust)
        trust.verify_mode = ssl.CERT_REQUIRED
        client = authority.issue_cert("client")
        authority.cert_pem.write_to_path(str(directory / "ca.pem"))
        client.private_key_pem.write_to_path(str(directory / "key.pem"))
        client.cert_chain_pems[0].write_to_path(str(directory / "cert.pem"))
        self._loop = asyncio.new_event_loop()
        self._server = self._loop.run_until_complete(asyncio.start_server(self._serve, "localhost", 0, ssl=trust))
        self.port = int(self._server.sockets[0].getsockname()[1])
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there = await asyncio.open_unix_connection(find_socket({}))

        async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
            try:
                while data := await source.read(1 << 16):
                    target.write(data)
                    await target.drain()
            except OSError:
                return
            finally:
                target.close()

        await asyncio.gather(copy(reader, there[1]), copy(there[0], writer))

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(120)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def tls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    directory = tmp_path / "certificates"
    directory.mkdir()
    proxy = TlsProxy(directory)
    monkeypatch.setenv("DOCKER_CERT_PATH", str(directory))
    monkeypatch.setenv("DOCKER_TLS_VERIFY", "1")
    monkeypatch.setenv("DOCKER_HOST", f"tcp://localhost:{proxy.port}")
    yield
    proxy.close()


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An sshd of the test's own, and an ssh that knows it, and whose key it knows."""
    daemon, client = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin"), shutil.which("ssh")
    if daemon is None or client is None or shutil.which("docker") is None:
        pytest.skip("sshd, ssh or docker's command line isn't installed")
    if os.geteuid() != 0:
        pytest.skip("an sshd that lets somebody in takes root")
    Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "sshd_config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/user.pub\n"
        f"PidFile none\nPermitRootLogin yes\nPasswordAuthentication no\nStrictModes no\nMaxStartups 200\n"
    )
    # One connection for all, as docker's manual advises; its socket's path must be short.
    control = tempfile.mkdtemp(prefix="wb-ssh-")
    (tmp_path / "ssh_config").write_text(
        f"IdentityFile {tmp_path}/user\nIdentitiesOnly yes\nUserKnownHostsFile /dev/null\nStrictHostKeyChecking no\n"
        f"ControlMaster auto\nControlPath {control}/%C\nControlPersist 60\n"
    )
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ssh").write_text(f'#!/bin/sh\nexec {client} -F {tmp_path}/ssh_config "$@"\n')
    (programs / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    name = pwd.getpwuid(os.geteuid()).pw_name
    monkeypatch.setenv("DOCKER_HOST", f"ssh://{name}@127.0.0.1:{port}{find_socket({})}")
    with (tmp_path / "sshd.log").open("wb") as log:
        process = subprocess.Popen([daemon, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=log)

    def answers() -> bool:
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", port)) == 0

    wait_until(lambda: answers() or process.poll() is not None, "sshd answers")
    if process.poll() is not None:
        pytest.skip(f"sshd doesn't start: {(tmp_path / 'sshd.log').read_text().strip()}")
    yield
    there = [str(programs / "ssh"), "-p", str(port), f"{name}@127.0.0.1"]
    subprocess.run([*there[:1], "-O", "exit", *there[1:]], capture_output=True, check=False)
    process.terminate()
    process.wait(timeout=120)
    shutil.rmtree(control)


@pytest.fixture(params=["tls", "ssh"])
def away(request: pytest.FixtureRequest) -> None:
    """The engine, as one of another machine."""
    request.getfixturevalue(request.param)


@pytest.fixture
def bench(away: None, state: Path, tmp_path: Path) -> Bench:
    path = tmp_path / "w"
    path.mkdir()
    (path / "old").write_text("old\n")
    return Bench(path)


def test_a_session_on_a_remote_engine_goes_as_any_other_and_leaves_nothing(bench: Bench, tmp_path: Path) -> None:
    assert not Engine().facts().local
    bench.sh("echo new > new; rm old; head -c 3000000 /dev/urandom > big")
    assert any("on another machine" in line for line in bench.said)
    assert bench.told() == {b"new": "added", b"old": "deleted", b"big": "added"}
    said = bench.sh("sha256sum big; cat big | base64")
    assert len(said) > 4_000_000
    pid, name = bench.running()
    agent = InPhases(bench, "echo kept > kept; phase written")
    agent.at("written")
    os.kill(pid, signal.SIGKILL)
    agent.wait()
    assert bench.told()[b"kept"] == "added"
    assert left_of(name) == []
    bench.commit()
    assert (tmp_path / "w" / "new").read_text() == "new\n"


def test_an_engine_without_the_right_certificate_is_unavailable(
    tls: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Engine().ping()
    trustme.CA().cert_pem.write_to_path(str(tmp_path / "certificates" / "ca.pem"))
    with pytest.raises(SandboxError) as caught:
        Engine().ping()
    assert caught.value.code == "engine_unavailable"
    monkeypatch.setenv("DOCKER_HOST", "tcp://192.0.2.1:2376")
    monkeypatch.setenv("DOCKER_CERT_PATH", str(tmp_path))
    assert find_certificates() == ""
    with pytest.raises(SandboxError, match="without TLS") as refused:
        Engine().ping()
    assert "DOCKER_CERT_PATH" in str(refused.value.hint)
