"""How the supervisor's source gets into a sandbox that shares no file with the host: over its own standard input."""

from __future__ import annotations

import json
import marshal
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.machinery import SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path

from workbench.sandbox.backend import SandboxSpec

_JOBS = 64
_PROCESSES_PER_JOB = 4

# Limits are set here and not by the engine: one that may not raise its own refuses to start the container at all, where
# lowering always works.
_LOADER = """\
import json, marshal, os, resource, sys
compiled, size, magic = int(sys.argv.pop(1)), int(sys.argv.pop(1)), sys.argv.pop(1)
for name, value in json.loads(sys.argv.pop(1)).items():
    number = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(number)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))
sent = b""
while len(sent) < compiled + size:
    piece = os.read(0, compiled + size - len(sent))
    if not piece:
        sys.exit("the stream ended before the supervisor had arrived")
    sent += piece
ours = getattr(sys.modules.get("_frozen_importlib_external"), "MAGIC_NUMBER", b"").hex()
if compiled and ours == magic:
    code = marshal.loads(sent[:compiled])
else:
    code = compile(sent[compiled:], "supervisor", "exec")
exec(code, {"__name__": "__main__"})
"""


@dataclass(frozen=True, slots=True)
class Program:
    """A Python program that is sent: its source, and what this Python made of it, for a Python of the same bytecode."""

    source: bytes
    compiled: bytes = b""

    @property
    def sent(self) -> bytes:
        """What its loader reads first."""
        return self.compiled + self.source

    def loader(self, arguments: tuple[str, ...], limits: Mapping[str, int]) -> list[str]:
        """The command line that runs it as `__main__` once it has come over standard input.

        It isn't an argument itself since those are listed by every `ps` inside, and limited to 128 kB.

        Args:
            arguments: what it finds in `sys.argv[1:]`.
            limits: resource limits by the last part of their name, such as `NOFILE`; what is lower already stays.

        Returns an argv whose first entry is `python3`, to be looked up in the sandbox's `PATH`.
        """
        sizes = [str(len(self.compiled)), str(len(self.source))]
        return ["python3", "-I", "-S", "-c", _LOADER, *sizes, MAGIC_NUMBER.hex(), json.dumps(dict(limits)), *arguments]


def supervisor() -> Program:
    """The supervisor: one file that needs nothing but Python's standard library.

    To compile it takes as long as all else that it does before its first word, so that is done once, as for a module.
    """
    path = str(Path(__file__).with_name("supervisor.py"))
    code = SourceFileLoader("workbench.sandbox.supervisor", path).get_code("workbench.sandbox.supervisor")
    return Program(Path(path).read_bytes(), marshal.dumps(code))


def supervisor_arguments(spec: SandboxSpec) -> tuple[str, ...]:
    """What the supervisor is told, as it describes: where the mounts are, and how many commands may run at once."""
    return (json.dumps({"targets": [mount.target for mount in spec.mounts], "jobs": jobs_at_once(spec)}),)


def jobs_at_once(spec: SandboxSpec) -> int:
    """How many commands run at once; further ones wait for their turn."""
    return max(1, min(_JOBS, spec.limits.pids // _PROCESSES_PER_JOB)) if spec.limits.pids else _JOBS
