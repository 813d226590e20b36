"""How the supervisor's source gets into a sandbox that shares no file with the host: over its own standard input."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from workbench.sandbox.backend import SandboxSpec

_JOBS = 64
_PROCESSES_PER_JOB = 4

# Limits are set here and not by the engine: one that may not raise its own refuses to start the container at all, where
# lowering always works.
_LOADER = """\
import json, os, resource, sys
size, limits = int(sys.argv.pop(1)), json.loads(sys.argv.pop(1))
for name, value in limits.items():
    number = getattr(resource, "RLIMIT_" + name)
    hard = resource.getrlimit(number)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (value, value))
source = b""
while len(source) < size:
    piece = os.read(0, size - len(source))
    if not piece:
        sys.exit("the stream ended before the supervisor had arrived")
    source += piece
exec(compile(source, "supervisor", "exec"), {"__name__": "__main__"})
"""


def supervisor_source() -> bytes:
    """The supervisor: one file that needs nothing but Python's standard library."""
    return Path(__file__).with_name("supervisor.py").read_bytes()


def supervisor_arguments(spec: SandboxSpec) -> tuple[str, ...]:
    """What the supervisor is told, as it describes: where the mounts are, and how many commands may run at once."""
    return (json.dumps({"targets": [mount.target for mount in spec.mounts], "jobs": jobs_at_once(spec)}),)


def jobs_at_once(spec: SandboxSpec) -> int:
    """How many commands run at once; further ones wait for their turn."""
    return max(1, min(_JOBS, spec.limits.pids // _PROCESSES_PER_JOB)) if spec.limits.pids else _JOBS


def loader(source: bytes, arguments: tuple[str, ...], limits: Mapping[str, int]) -> list[str]:
    """The command line that runs `source` as `__main__` once it has come over standard input.

    It isn't an argument itself since those are listed by every `ps` inside, and limited to 128 kB.

    Args:
        source: Python source; the caller sends exactly these bytes first.
        arguments: what the source finds in `sys.argv[1:]`.
        limits: resource limits by the last part of their name, such as `NOFILE`; what is lower already stays.

    Returns an argv whose first entry is `python3`, to be looked up in the sandbox's `PATH`.
    """
    return ["python3", "-I", "-S", "-c", _LOADER, str(len(source)), json.dumps(dict(limits)), *arguments]
