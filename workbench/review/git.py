"""The host's git as plumbing: in an environment made from scratch, without configuration, hooks, filters or prompts."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from workbench.checkpoints.git import environment
from workbench.errors import CommitError

_NOWHERE = "/nonexistent"


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
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [program, *arguments],
        env=environment(os.fsdecode(directory) or _NOWHERE),
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        cwd=cwd,
    ) as process:
        stdout, stderr = process.communicate(stdin)
    return Done(process.pid, process.returncode, stdout, stderr)
