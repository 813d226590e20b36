"""One kind of sandbox, from nothing to many commands in it, in a process of its own: prints what it took in ms, as JSON.

Run by path: `python tests/benchmarks/sandbox_subject.py NAME IMAGE PLACE REPEATS`, with whatever it needs on PYTHONPATH.
PLACE is an empty directory.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

Run = Callable[[], Awaitable[object]]

_LABEL = "workbench.benchmark=1"


@contextlib.asynccontextmanager
async def ours(backend: str, place: Path) -> AsyncIterator[Run]:
    """`true` through the library, in a sandbox of a small workspace."""
    from workbench import Command, Workspace
    from workbench.mounting import SandboxOptions

    os.environ["WORKBENCH_STATE"] = str(place / "state")
    (place / "work").mkdir()
    (place / "work" / "file").write_text("x\n")
    async with Workspace.open(place / "work", options=SandboxOptions(backend=backend)) as workspace:
        command = Command(("true",))
        try:
            # What works here is found out once, and remembered.
            await workspace.exec(command)
            await workspace.stop(force=True)
            again()
            async with await workspace.sandbox() as client:
                yield lambda: client.run(command)
        finally:
            await workspace.stop(force=True)


def container(image: str, *options: str) -> str:
    """Start a container that sleeps, or does what the last options say."""
    argv = ["docker", "run", "-d", "--label", _LABEL, *options]
    argv += [] if image in options else [image, "sleep", "3600"]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def remove(name: str) -> None:
    subprocess.run(["docker", "rm", "-f", name], check=True, capture_output=True)


@contextlib.asynccontextmanager
async def sdk(image: str) -> AsyncIterator[Run]:
    import docker

    name = container(image, "--network", "none")
    try:
        found = docker.from_env().containers.get(name)

        async def run() -> None:
            assert found.exec_run(["true"]).exit_code == 0

        yield run
    finally:
        remove(name)


@contextlib.asynccontextmanager
async def command_line(image: str) -> AsyncIterator[Run]:
    """From nothing to the first answer it's `docker run`, then `docker exec`."""
    subprocess.run(["docker", "run", "--rm", "--network", "none", "--label", _LABEL, image, "true"], check=True)
    told["cold"] = (time.perf_counter() - begin) * 1000
    name = container(image, "--network", "none")
    try:

        async def run() -> None:
            subprocess.run(["docker", "exec", name, "true"], check=True)

        yield run
    finally:
        remove(name)


@contextlib.asynccontextmanager
async def swe_rex(image: str) -> AsyncIterator[Run]:
    """Its server in a container, as its deployments have it, and its client over HTTP."""
    from swerex.runtime.abstract import Command
    from swerex.runtime.remote import RemoteRuntime

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    peer, token = os.environ["PYTHONPATH"].split(os.pathsep)[0], secrets.token_hex(8)
    server = ["python3", "-m", "swerex.server", "--host", "127.0.0.1", "--port", str(port), "--auth-token", token]
    mounted = ["--network", "host", "-v", f"{peer}:/peer:ro", "-e", "PYTHONPATH=/peer"]
    name = container(image, *mounted, image, *server)
    try:
        runtime = RemoteRuntime(host="http://127.0.0.1", port=port, auth_token=token)
        while not (await runtime.is_alive()).is_alive:
            await asyncio.sleep(0.01)

        async def run() -> None:
            assert (await runtime.execute(Command(command=["true"]))).exit_code == 0

        yield run
    finally:
        remove(name)


@contextlib.asynccontextmanager
async def swe_rex_local() -> AsyncIterator[Run]:
    from swerex.runtime.abstract import Command
    from swerex.runtime.local import LocalRuntime

    runtime = LocalRuntime()

    async def run() -> None:
        assert (await runtime.execute(Command(command=["true"]))).exit_code == 0

    yield run


@contextlib.asynccontextmanager
async def llm_sandbox(image: str) -> AsyncIterator[Run]:
    from llm_sandbox import SandboxSession

    options: dict[str, Any] = {"network_mode": "none", "labels": dict([_LABEL.split("=")])}
    session = SandboxSession(
        lang="python", image=image, keep_template=True, skip_environment_setup=True, runtime_configs=options
    )
    with session:

        async def run() -> None:
            assert session.execute_command("true").exit_code == 0

        yield run


@contextlib.asynccontextmanager
async def inspect_ai() -> AsyncIterator[Run]:
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    environment = LocalSandboxEnvironment()

    async def run() -> None:
        assert (await environment.exec(["true"])).success

    try:
        yield run
    finally:
        environment.directory.cleanup()


def subject(name: str, image: str, place: Path) -> contextlib.AbstractAsyncContextManager[Run]:
    """One that runs `true` each time it's called, imported by the time it begins to start."""
    made: dict[str, Callable[[], contextlib.AbstractAsyncContextManager[Run]]] = {
        "docker": lambda: ours("docker", place),
        "namespace": lambda: ours("namespace", place),
        "sdk": lambda: sdk(image),
        "command line": lambda: command_line(image),
        "swe-rex": lambda: swe_rex(image),
        "swe-rex local": swe_rex_local,
        "llm-sandbox": lambda: llm_sandbox(image),
        "inspect-ai": inspect_ai,
    }
    return made[name]()


IMPORTS = {
    "docker": ("workbench.workspace", "workbench.sandbox.client", "workbench.sandbox.docker"),
    "namespace": ("workbench.workspace", "workbench.sandbox.client", "workbench.sandbox.namespace"),
    "sdk": ("docker",),
    "swe-rex": ("swerex.runtime.remote",),
    "swe-rex local": ("swerex.runtime.local",),
    "llm-sandbox": ("llm_sandbox", "docker"),
    "inspect-ai": ("inspect_ai.util._sandbox.local",),
}
"""What isn't part of a start."""

told: dict[str, float] = {}
begin = 0.0


def again() -> None:
    """What took time so far isn't counted."""
    global begin
    begin = time.perf_counter()


async def measure(name: str, image: str, place: Path, repeats: int) -> None:
    """Fill `told` with what the start and a command took."""
    again()
    async with subject(name, image, place) as run:
        await run()
        told.setdefault("cold", (time.perf_counter() - begin) * 1000)
        times = []
        for _ in range(repeats):
            start = time.perf_counter()
            await run()
            times.append((time.perf_counter() - start) * 1000)
        told["warm"] = statistics.median(times)


if __name__ == "__main__":
    for module in IMPORTS.get(sys.argv[1], ()):
        __import__(module)
    asyncio.run(measure(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])))
    print(json.dumps(told))
