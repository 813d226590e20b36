"""A sandbox reaches nothing: not a server on the host's loopback, not a name, not the engine."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.needed import need_program


@pytest.fixture(scope="session")
def docker_compose_file() -> str:
    return str(Path(__file__).with_name("docker-compose.yml"))


@pytest.fixture(scope="session")
def docker_compose_command() -> str:
    """Debian's compose is a command of its own, newer ones are a plugin."""
    plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
    return "docker compose" if plugin.returncode == 0 else "docker-compose"


@pytest.fixture(scope="session")
def docker_setup() -> list[str]:
    # `--wait`, the default, makes compose 1.29 start nothing.
    return ["up --build -d"]


@pytest.fixture(scope="session")
def neighbour(engine: None, request: pytest.FixtureRequest) -> int:
    """The port of a web server on the host's loopback."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    os.environ["WORKBENCH_TEST_PORT"] = str(port)
    command = request.getfixturevalue("docker_compose_command").split()
    need_program(command[0])
    services = request.getfixturevalue("docker_services")
    services.wait_until_responsive(timeout=120, pause=0.1, check=lambda: _answers(port))
    return port


def _answers(port: int) -> bool:
    with socket.socket() as connection:
        connection.settimeout(10)
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_a_sandbox_cant_reach_the_hosts_loopback(cli: Cli, neighbour: int) -> None:
    script = f"import socket; socket.create_connection(('127.0.0.1', {neighbour}), 3)"
    assert _answers(neighbour)
    assert b"ConnectionRefusedError" in cli.run("python3", "-c", script, code=1).stderr


def test_a_sandbox_has_no_interface_but_its_own_loopback_and_no_route(cli: Cli) -> None:
    found = cli.sh(
        "ls /sys/class/net; cat /proc/net/route | wc -l; cat /proc/net/ipv6_route | grep -vc ' lo$'", code=None
    )
    assert found.stdout.split() == [b"lo", b"1", b"0"]


def test_a_sandbox_resolves_no_name(cli: Cli) -> None:
    script = "import socket; socket.getaddrinfo('example.com', 80)"
    assert b"gaierror" in cli.run("python3", "-c", script, code=1).stderr


def test_a_sandbox_reaches_neither_the_engine_nor_the_hypervisor(cli: Cli) -> None:
    script = "import socket; socket.socket(40, socket.SOCK_STREAM)"
    assert b"Error" in cli.run("python3", "-c", script, code=1).stderr
    cli.sh("ls /var/run/docker.sock /run/docker.sock", code=2)
