"""A supervisor in a process namespace of its own, without any backend."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import UNIXSocketStream

from tests.waiting import until
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import supervisor
from workbench.sandbox.connection import SupervisorConnection

SOURCE = Path(supervisor.__file__)
# No other process or run of the tests has processes of that user, which a limit of processes would count.
UID = 100_000 + os.getpid()
NAPS = itertools.count(1000)
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LANG": "C.UTF-8"}

# As a Python built against an old C library behaves.
WITHOUT_SETSID = f"""\
import os
def posix_spawn(*arguments, **options):
    raise NotImplementedError
os.posix_spawn = posix_spawn
exec(compile(open({str(SOURCE)!r}).read(), "supervisor", "exec"))
"""


@dataclass
class Inside:
    """A supervisor that runs: a connection to it, its directory, and what can be seen of it from outside."""

    connection: SupervisorConnection
    directory: Path
    process: subprocess.Popen[bytes]

    async def sh(self, script: str, *, limit: int = 1 << 20, shell: str = "sh", **options: object) -> CommandResult:
        command = Command((shell, "-c", script), output_limit=limit, **options)  # type: ignore[arg-type]
        with anyio.fail_after(120):
            return await self.connection.run(command)

    async def text(self, script: str, **options: object) -> str:
        result = await self.sh(script, **options)  # type: ignore[arg-type]
        assert result.exit_code == 0, result
        return result.stdout.decode()

    async def processes(self) -> list[str]:
        """The command lines of what runs inside, but for ourselves and what looks."""
        listed = await self.text("for p in /proc/[0-9]*; do tr '\\0' ' ' < $p/cmdline; echo; done 2>/dev/null")
        lines = [line.strip() for line in listed.splitlines()]
        return [line for line in lines if line and "supervisor" not in line and "/proc/" not in line]

    async def runs(self, line: str) -> None:
        """Wait until a process with this command line is there."""

        async def is_there() -> bool:
            return line in await self.processes()

        await until(is_there)

    def pid(self) -> int:
        """Of the supervisor, as seen from outside."""
        pid = self.process.pid
        while name_of(pid) != "workbench":
            [pid] = map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[:1])
        return pid


def name_of(pid: int) -> str:
    return Path(f"/proc/{pid}/comm").read_text().strip()


def nap() -> str:
    """Seconds for a `sleep` that outlasts its test, and that no other test, process or run of the tests sleeps."""
    return f"{next(NAPS)}.{os.getpid()}"


def alive(*words: str) -> bool:
    """Whether any process of this machine has exactly these words at the end of its command line."""
    wanted = "\0".join(words).encode() + b"\0"
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if file.read().endswith(wanted):
                        return True
            except OSError:
                continue
    return False


def prefix(processes: int = 0) -> list[str]:
    argv = ["unshare", "--pid", "--fork", "--kill-child", "--mount", "--mount-proc"]
    if os.geteuid() == 0:
        argv += ["--", "setpriv", "--reuid", str(UID), "--regid", str(UID), "--clear-groups", "--inh-caps=-all"]
    else:
        argv += ["-Ur"]
    argv += ["--"]
    if processes:
        argv += ["prlimit", f"--nproc={processes}", "--"]
    return argv


@asynccontextmanager
async def supervised(
    *, source: str = "", processes: int = 0, namespaces: bool = True, jobs: int = 64
) -> AsyncIterator[Inside]:
    """Start one over an empty directory; everything is gone afterwards."""
    directory = Path(tempfile.mkdtemp(prefix="workbench-test-"))
    directory.chmod(0o777)
    ours, theirs = socket.socketpair()
    argv = prefix(processes) if namespaces else []
    argv += [sys.executable if namespaces is False else "/usr/bin/python3", "-I", "-S"]
    argv += ["-c", source, "supervisor"] if source else [str(SOURCE)]
    if source:
        argv.pop()
    argv += [json.dumps({"targets": [str(directory)], "jobs": jobs})]
    process = subprocess.Popen(argv, stdin=theirs, stdout=theirs, env=ENVIRONMENT, start_new_session=True)
    theirs.close()
    ours.setblocking(False)
    try:
        stream = await UNIXSocketStream.from_socket(ours)
        async with SupervisorConnection(stream) as connection:
            with anyio.fail_after(120):
                await connection.hello()
            yield Inside(connection, directory, process)
        await until(lambda: process.poll() is not None)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(directory)
