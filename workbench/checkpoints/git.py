"""The host's git, run on a store: plumbing alone, in an environment made from scratch.

Nothing of the caller's configuration, hooks, attributes, filters, signing or prompts has a say, and no repository is
looked for: a store is named, and the current directory is the root.
"""

from __future__ import annotations

import os
import shutil
import subprocess

from workbench.errors import CheckpointError


def is_there() -> bool:
    """Whether there is a git to run."""
    return shutil.which("git") is not None


def run(directory: str, *arguments: str, stdin: bytes = b"") -> bytes:
    """What a git command prints on the store at `directory`.

    Raises CheckpointError: checkpoint_failed where there's no git or it fails, store_corrupt where it says that an object
    is missing or damaged.
    """
    program = shutil.which("git")
    if program is None:
        raise CheckpointError("git isn't installed.", hint="Install it: checkpoints are packed together by git.")
    found = subprocess.run(
        [program, *arguments], env=environment(directory), input=stdin, capture_output=True, cwd="/", check=False
    )
    if found.returncode:
        said = found.stderr.decode(errors="replace").strip()
        is_damage = any(word in said for word in ("corrupt", "missing", "bad object", "unable to read"))
        raise CheckpointError(
            f"git {arguments[0]} failed on the checkpoint store: {said.splitlines()[-1] if said else found.returncode}",
            code="store_corrupt" if is_damage else "checkpoint_failed",
            hint="'workbench checkpoint --verify' says what can still be restored." if is_damage else None,
        )
    return found.stdout


def environment(directory: str) -> dict[str, str]:
    """The environment that git runs in, on the repository at `directory`."""
    settings = {
        "core.hooksPath": "/dev/null",
        "core.fsmonitor": "false",
        "gc.auto": "0",
        "maintenance.auto": "false",
        "core.alternateRefsCommand": "",
        "protocol.allow": "never",
    }
    configured = {"GIT_CONFIG_COUNT": str(len(settings))}
    for number, (name, value) in enumerate(settings.items()):
        configured |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C",
        "HOME": "/nonexistent",
        "GIT_DIR": directory,
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_OPTIONAL_LOCKS": "0",
        "GIT_NO_REPLACE_OBJECTS": "1",
        **configured,
    }
