"""A workspace worked on in this process: what the command line does, without what each process costs, and in bytes."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import anyio

from tests.trees import Node
from workbench.mounting import SandboxOptions
from workbench.protocol.commands import Command, CommandResult
from workbench.review.changeset import ChangeSet
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.facts import KeeperInfo
from workbench.workspace import Discarded, Landed, Workspace, WorkspaceStatus

T = TypeVar("T")

_OUTPUT_LIMIT = 16 << 20

# What `tests.trees.snapshot` tells, from inside, where only the image's own Python is; a time is told as what it is.
_TREE = """
import base64, hashlib, json, os, stat, sys
def node(path):
    status = os.lstat(path)
    kind = stat.S_IFMT(status.st_mode)
    content = ""
    if stat.S_ISREG(kind):
        try:
            with open(path, "rb") as stream:
                content = hashlib.sha256(stream.read()).hexdigest()
        except PermissionError:
            content = "unreadable"
    elif stat.S_ISLNK(kind):
        content = os.fsdecode(os.readlink(path))
    mode = 0o777 if stat.S_ISLNK(kind) else stat.S_IMODE(status.st_mode)
    return [kind, mode, content, status.st_mtime_ns, status.st_nlink, status.st_size]
found = {b"": node(b".")}
waiting = [b""]
while waiting:
    directory = waiting.pop()
    try:
        names = os.listdir(directory or b".")
    except PermissionError:
        continue
    for name in names:
        path = os.path.join(directory, name)
        found[path] = node(path)
        if stat.S_ISDIR(found[path][0]):
            waiting.append(path)
json.dump({base64.b64encode(path).decode(): told for path, told in found.items()}, sys.stdout)
"""


class Bench:
    """One session of one workspace; every call opens it anew, as every command does."""

    def __init__(self, workspace: Path | str | bytes, session: str = "default", **options: Any) -> None:
        self.workspace = os.fsencode(workspace)
        self.session = session
        self.options = SandboxOptions(**options)
        self.recovered: tuple[str, ...] = ()
        """What the last call said it had to put right."""
        self.said: list[str] = []
        """What starting a sandbox had to say."""

    def do(self, what: Callable[[Workspace], Awaitable[T]]) -> T:
        async def opened() -> T:
            async with Workspace.open(self.workspace, session=self.session, options=self.options) as workspace:
                self.recovered = workspace.recovered
                return await what(workspace)

        return anyio.run(opened)

    def run(self, *argv: str | bytes, code: int | None = 0, stdin: bytes = b"", cwd: str = "") -> CommandResult:
        """Run a command in the sandbox, with its output kept."""

        async def feed() -> Any:
            yield stdin

        command = Command(
            tuple(os.fsdecode(word) for word in argv), cwd=cwd, stdin=bool(stdin), output_limit=_OUTPUT_LIMIT
        )

        async def run(workspace: Workspace) -> CommandResult:
            return await workspace.exec(command, stdin=feed() if stdin else None, report=self.said.append)

        result = self.do(run)
        if code is not None:
            assert result.exit_code == code, (argv, result)
        return result

    def sh(self, script: str | bytes, code: int | None = 0) -> bytes:
        """What a shell script prints in the sandbox; it stops at its first error."""
        return self.run("sh", "-c", b"set -e\n" + os.fsencode(script), code=code).stdout

    def python(self, source: str, *arguments: str, code: int | None = 0) -> bytes:
        """What Python source prints in the sandbox."""
        return self.run("python3", "-I", "-", *arguments, stdin=source.encode(), code=code).stdout

    def inside(self, *, times: bool = False) -> dict[bytes, Node]:
        """The merged view as the kernel shows it to a command: as `snapshot`, without ctimes."""
        told = json.loads(self.python(_TREE))
        return {
            base64.b64decode(path): Node(kind, mode, content, mtime_ns if times else 0)
            for path, (kind, mode, content, mtime_ns, _, _) in told.items()
        }

    def changes(self) -> ChangeSet:
        async def look(workspace: Workspace) -> ChangeSet:
            return await workspace.changes()

        return self.do(look)

    def told(self) -> dict[bytes, str]:
        """The kind of every change that a listing shows, by path."""
        return {change.path: change.kind.value for change in self.changes().shown}

    def review(self) -> str:
        """Look at the change set; its digest, which a commit may name from now on."""

        async def look(workspace: Workspace) -> str:
            return workspace.reviewed(await workspace.changes())

        return self.do(look)

    def commit(self, digest: str | None = None, *, allow_risky: bool = False) -> Landed:
        """Land what was shown under a digest, or what stands there at this moment."""
        named = self.review() if digest is None else digest
        return self.do(lambda workspace: workspace.commit(named, allow_risky=allow_risky))

    def discard(self) -> Discarded:
        return self.do(lambda workspace: workspace.discard())

    def status(self) -> WorkspaceStatus:
        return self.do(lambda workspace: workspace.status())

    def stop(self) -> int:
        return self.do(lambda workspace: workspace.stop())

    def keeper(self) -> KeeperInfo | None:
        """What the keeper of the warm sandbox says, None where none runs."""
        return anyio.run(keeper_of, self.overlay)

    def running(self) -> tuple[int, str]:
        """The process and the sandbox of the keeper that there has to be."""
        keeper = self.keeper()
        assert keeper is not None
        return keeper.pid, keeper.name

    @property
    def overlay(self) -> str:
        """The overlay's directory."""

        async def where(workspace: Workspace) -> str:
            return workspace._overlay.path

        return self.do(where)


class InPhases:
    """A shell script in one command of the sandbox, which says where it is and waits to be told to go on.

    In the script, `phase NAME` does that.
    """

    def __init__(self, bench: Bench, script: str) -> None:
        argv: list[str | bytes] = [sys.executable, "-m", "workbench", "exec", "-w", bench.workspace]
        argv += ["--session", bench.session, "--", "sh", "-c", f'set -e; phase() {{ echo "$1"; read -r _; }}\n{script}']
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parent.parent,
        )

    def at(self, name: str) -> None:
        """Wait until the script is at a phase."""
        assert self._process.stdout is not None
        said = self._process.stdout.readline().decode().strip()
        assert said == name, (said, self._process.stderr and self._process.stderr.read())

    def go_on(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()

    def end(self) -> bytes:
        """Wait for its end; what it printed since the last phase."""
        output, errors = self._process.communicate(timeout=120)
        assert self._process.returncode == 0, errors
        return output

    def wait(self) -> bytes:
        """Wait until somebody else has ended it; what it said of that."""
        _, errors = self._process.communicate(timeout=120)
        assert self._process.returncode != 0
        return errors


async def keeper_of(overlay: str) -> KeeperInfo | None:
    """As `Bench.keeper`, of an overlay's directory."""
    client = await KeeperClient.connect(overlay)
    if client is None:
        return None
    async with client:
        return await client.info()
