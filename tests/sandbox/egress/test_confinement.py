"""Nothing but the proxy and the brokers leads out, also where a sandbox has them."""

from __future__ import annotations

import os
import signal
import socket
import threading
from pathlib import Path

import anyio
import pytest

from tests.sandbox.egress.conftest import Open
from tests.sandbox.egress.servers import HOST, Server
from tests.waiting import until
from workbench.errors import SandboxError
from workbench.protocol.commands import Command

pytestmark = pytest.mark.anyio

# Tries to reach out, in a way that an argument names; prints the error.
_TRY = """
import ctypes, errno, socket, sys
def tcp(host): socket.create_connection((host, int(sys.argv[1])), 5)
def udp(host):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s: s.sendto(b"x", (host, 53))
def raw(*how):
    with socket.socket(*how): pass
def io_uring():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(425, 1, ctypes.create_string_buffer(256)) < 0: raise OSError(ctypes.get_errno(), "io_uring_setup")
ways = {
    "the host's loopback": lambda: tcp("127.0.0.2"),
    "an address outside": lambda: tcp("192.0.2.1"),
    "the metadata service": lambda: tcp("169.254.169.254"),
    "IPv6 outside": lambda: tcp("2001:db8::1"),
    "a name": lambda: socket.getaddrinfo("example.com", 80),
    "a name by UDP": lambda: udp("192.0.2.1"),
    "multicast": lambda: udp("239.255.255.250"),
    "a raw socket": lambda: raw(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP),
    "a raw IPv6 socket": lambda: raw(socket.AF_INET6, socket.SOCK_RAW, 58),
    "a packet socket": lambda: raw(17, socket.SOCK_RAW, 0),
    "the hypervisor": lambda: raw(40, socket.SOCK_STREAM),
    "the kernel's crypto": lambda: raw(38, socket.SOCK_SEQPACKET),
    "Bluetooth": lambda: raw(31, socket.SOCK_RAW, 1),
    "io_uring": io_uring,
}
for name, way in ways.items():
    try: way()
    except OSError as error: print(name, "|", errno.errorcode.get(error.errno, error.errno) if error.errno else error)
    else: print(name, "| REACHED")
"""


async def test_no_other_way_leads_out(sandbox: Open, server: Server) -> None:
    async with sandbox(server.place) as inside:
        shown = (await inside.python(_TRY, server.place.split(":")[1])).decode()
        found = dict(line.split(" | ") for line in shown.splitlines())
        assert len(found) == 14
        assert [name for name, how in found.items() if how == "REACHED"] == []
        # Families that no namespace confines aren't there at all.
        for name in ("a packet socket", "the hypervisor", "the kernel's crypto", "Bluetooth"):
            assert found[name] == "EAFNOSUPPORT"
        assert found["io_uring"] == "ENOSYS"
        interfaces = await inside.python(
            "import os; print(sorted(os.listdir('/sys/class/net') if os.path.isdir('/sys/class/net') else ['lo']))"
        )
        assert interfaces == b"['lo']\n"
        routes = await inside.python("print(len(open('/proc/net/route').readlines()))")
        assert routes == b"1\n"
    assert server.requests == []


async def test_a_client_that_ignores_the_proxy_reaches_nothing(sandbox: Open, server: Server) -> None:
    script = """
import sys, urllib.request
try: urllib.request.build_opener(urllib.request.ProxyHandler({})).open(sys.argv[1])
except OSError as error: print("unreachable")
"""
    async with sandbox(server.place) as inside:
        assert await inside.python(script, f"http://{server.place}/") == b"unreachable\n"


@pytest.mark.parametrize("kind", ["namespace-socket", "docker-socket"])
async def test_the_sandbox_has_the_egress_sockets_alone_and_read_only(sandbox: Open, server: Server) -> None:
    script = """
import os, socket, sys
names = [sys.argv[1]]
for act in (lambda: os.mkdir("/run/workbench/x"), lambda: os.unlink("/run/workbench/" + names[0]),
            lambda: os.rename("/run/workbench/" + names[0], "/run/workbench/y"), lambda: os.chmod("/run/workbench", 0o777)):
    try: act()
    except OSError as error: print(error.strerror)
# What listens is the proxy, and nothing that takes a client's requests.
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("/run/workbench/" + names[0])
    connection.sendall(b"\\0\\0\\0\\x10V\\0\\0\\0\\0{\\"protocol\\": 1 }\\r\\n\\r\\n")
    print(connection.recv(12))
"""
    async with sandbox(server.place) as inside:
        [name] = os.listdir(Path(inside.overlay.path) / "egress")
        shown = (await inside.python(script, name)).decode().splitlines()
    assert shown == [*["Read-only file system"] * 4, "b'HTTP/1.1 400'"]


@pytest.mark.parametrize("kind", ["namespace-socket"])
async def test_only_the_sandboxs_own_user_may_connect_to_its_sockets(sandbox: Open, server: Server) -> None:
    async with sandbox(server.place) as inside:
        directory = Path(inside.overlay.path) / "egress"
        [path] = directory.iterdir()
        status = path.stat()
        assert status.st_mode & 0o777 == 0o600
        assert directory.stat().st_uid == os.geteuid()
        # Nobody else gets to them: they lie in a directory that is closed to others.
        assert directory.parent.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("kind", ["namespace-socket", "namespace-stream"])
async def test_it_listens_on_loopback_alone(sandbox: Open, server: Server) -> None:
    script = "print([line.split()[1] for line in open('/proc/net/tcp').readlines()[1:] if line.split()[3] == '0A'])"
    async with sandbox(server.place) as inside:
        shown = (await inside.python(script)).decode()
        port = int(inside.allowed.environment["http_proxy"].rsplit(":", 1)[1])
        assert shown == f"['0100007F:{port:04X}']\n"


@pytest.mark.parametrize("kind", ["namespace-stream"])
async def test_where_the_socket_fails_the_stream_is_used(sandbox: Open, server: Server) -> None:
    """As under SELinux, where connecting is refused: the attempt decides."""
    script = f"import urllib.request; print(urllib.request.urlopen('http://{server.place}/').status)"
    async with sandbox(server.place) as inside:
        assert await inside.python(script) == b"200\n"
        assert not (Path(inside.overlay.path) / "egress").exists()


@pytest.mark.parametrize("kind", ["namespace-socket"])
async def test_a_socket_that_cant_be_connected_to_is_passed_by(sandbox: Open, server: Server) -> None:
    script = f"import urllib.request; print(urllib.request.urlopen('http://{server.place}/').status)"
    async with sandbox(server.place) as inside:
        [path] = (Path(inside.overlay.path) / "egress").iterdir()
        path.chmod(0)
        os.chown(path, 0 if os.geteuid() == 0 else -1, -1)
        assert await inside.python(script) == b"200\n"


@pytest.mark.parametrize("kind", ["namespace-socket", "namespace-stream"])
async def test_a_command_in_the_background_of_a_shell_ends_with_it_and_so_does_what_it_opened(
    sandbox: Open,
) -> None:
    closed = threading.Event()
    with socket.create_server((HOST, 0)) as listener:
        place = f"{HOST}:{listener.getsockname()[1]}"

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                while connection.recv(65536):
                    pass
            closed.set()

        thread = threading.Thread(target=serve)
        thread.start()
        async with sandbox(place) as inside:
            script = f"""
import os, socket, time
connection = socket.create_connection(("127.0.0.1", int(os.environ["http_proxy"].rsplit(":", 1)[1])))
connection.sendall(b"CONNECT {place} HTTP/1.1\\r\\nHost: {place}\\r\\n\\r\\n")
print(connection.recv(12), flush=True)
time.sleep(600)
"""
            command = Command(("python3", "-c", script), environment=inside.allowed.environment)
            job = await inside.client.spawn(command)
            begun = anyio.Event()
            async with anyio.create_task_group() as group:
                group.start_soon(lambda: job.wait(on_stdout=lambda data: begun.set()))
                await begun.wait()
                await job.kill("cancel")
            await until(closed.is_set)
        thread.join()


@pytest.mark.parametrize("kind", ["namespace-socket"])
async def test_what_a_killed_keeper_left_is_gone_before_the_next_one_listens(sandbox: Open, server: Server) -> None:
    async def be_killed() -> None:
        async with sandbox(server.place) as inside:
            os.kill((await inside.client.info()).pid, signal.SIGKILL)
            await inside.client.run(Command(("true",)))

    with pytest.raises(SandboxError):
        await be_killed()
    async with sandbox(server.place) as inside:
        script = f"import urllib.request; print(urllib.request.urlopen('http://{server.place}/').status)"
        assert await inside.python(script) == b"200\n"
        assert len(os.listdir(Path(inside.overlay.path) / "egress")) == 1
