"""The host's git as plumbing: in an environment made from scratch, without configuration, hooks, filters or prompts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.errors import CommitError

_SETTINGS = {
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.alternateRefsCommand": "",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
}


@dataclass(frozen=True, slots=True)
class Done:
    """A git command that ended, and what it said."""

    pid: int
    returncode: int
    stdout: bytes
    stderr: bytes


def run(arguments: Sequence[str | bytes], *, directory: bytes = b"", stdin: bytes = b"", cwd: str = "/") -> Done:
    """Run a git command to its end, whatever it ends with.

    `directory` is the repository's git directory; without one there is none, wherever it runs. Raises CommitError
    (commit_failed) where git isn't installed, OSError.
    """
    program = shutil.which("git")
    if program is None:
        raise CommitError("git isn't installed.", hint="Install it: it merges texts and makes branches.")
    configured = {"GIT_CONFIG_COUNT": str(len(_SETTINGS))}
    for number, (name, value) in enumerate(_SETTINGS.items()):
        configured |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    environment: dict[str, str | bytes] = {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "GIT_DIR": directory or "/nonexistent",
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        **configured,
    }
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [program, *arguments], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd
    ) as process:
        stdout, stderr = process.communicate(stdin)
    return Done(process.pid, process.returncode, stdout, stderr)
