"""What tests of backends share: layers on disk, and a program to put in the supervisor's place."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from anyio.abc import ByteStream

from workbench.sandbox.backend import Backend, Limits, OverlayMount, SandboxSpec
from workbench.sandbox.docker import NAME_LABEL, DockerBackend
from workbench.sandbox.engine import Engine, find_socket
from workbench.sandbox.namespace import NamespaceBackend

# Says that it's there, then evaluates what it is sent, a JSON string a line, and answers with JSON.
EVALUATOR = b"""\
import json, os, subprocess, sys
def sh(script):
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(["sh", "-c", script], **pipes)
    return [done.returncode, done.stdout.decode()]
print(json.dumps("here"), flush=True)
for line in sys.stdin:
    try:
        answer = eval(json.loads(line))
    except Exception as error:
        answer = "%s: %s" % (type(error).__name__, error)
    print(json.dumps(answer), flush=True)
"""

LABEL = "workbench.test"
IMAGE = os.environ.get("WORKBENCH_TEST_IMAGE", "workbench/python")


class Layers:
    """The three directories of an overlay, and the mount that they make."""

    def __init__(self, directory: Path, target: str = "/workspace", owner: tuple[int, int] = (0, 0)) -> None:
        self.lower, self.upper, self.work = (directory.absolute() / name for name in ("lower", "upper", "work"))
        for path in (self.lower, self.upper, self.work):
            path.mkdir(parents=True)
        (self.lower / "old").write_text("old")
        if os.geteuid() == 0:
            for path in (self.lower, self.lower / "old", self.upper):
                os.chown(path, *owner)
        self.mount = OverlayMount(str(self.lower), str(self.upper), str(self.work), target)


def spec(backend: str, *mounts: OverlayMount, label: str = "", **changes: Any) -> SandboxSpec:
    """A small spec for the caller's own user."""
    fields: dict[str, Any] = {
        "backend": backend,
        "image": IMAGE,
        "mounts": mounts,
        "uid": os.getuid(),
        "gid": os.getgid(),
        "limits": Limits(memory_bytes=256 << 20, pids=64, tmp_bytes=8 << 20, home_bytes=4 << 20, open_files=512),
        "labels": {LABEL: label or "1"},
        **changes,
    }
    return SandboxSpec(**fields)


def backend_of(what: SandboxSpec, source: bytes | None = EVALUATOR) -> DockerBackend | NamespaceBackend:
    kind = DockerBackend if what.backend == "docker" else NamespaceBackend
    return kind(what, source=source)


def left_of(name: str) -> list[str]:
    """Containers and volumes of a sandbox, in the engine that is found without any configuration."""
    engine, label = Engine(find_socket({})), f"{NAME_LABEL}={name}"
    found = (*engine.containers(label), *engine.volumes_of(name))
    return [str(each.get("Id") or each["Name"]) for each in found]


class Inside:
    """The evaluator in a running sandbox."""

    def __init__(self, backend: Backend, stream: ByteStream) -> None:
        self.backend = backend
        self.stream = stream
        self._received = b""

    async def line(self) -> Any:
        while b"\n" not in self._received:
            self._received += await self.stream.receive()
        line, _, self._received = self._received.partition(b"\n")
        return json.loads(line)

    async def __call__(self, expression: str) -> Any:
        """What a Python expression is, inside."""
        await self.stream.send(json.dumps(expression).encode() + b"\n")
        return await self.line()

    async def sh(self, script: str) -> str:
        """What a shell script that must succeed prints, inside."""
        code, output = await self(f"sh({script!r})")
        assert code == 0, output
        return str(output)


@asynccontextmanager
async def running(what: SandboxSpec) -> AsyncIterator[Inside]:
    """A sandbox with the evaluator in it."""
    backend = backend_of(what)
    try:
        inside = Inside(backend, await backend.start(lambda line: None))
        assert await inside.line() == "here"
        yield inside
    finally:
        await backend.stop()
