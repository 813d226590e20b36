"""What others made, installed apart from everything for a benchmark to be held against."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

_INSTALLED = ROOT / ".cache" / "peers"
_NPM = "npm:"


def install_peers(peers: Sequence[str]) -> None:
    """Install each peer's newest release into a directory of its own, unless it's there; one that can't be is said.

    `npm:NAME@VERSION` is a package of npm's, whose newest release may be without what it needs on a machine like this.
    """
    for peer in peers:
        target = _INSTALLED / peer
        if not target.exists():
            if peer.startswith(_NPM):
                command = ["npm", "install", "--silent", "--prefix", str(target), peer.removeprefix(_NPM)]
            else:
                command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), peer]
            if shutil.which(command[0]) is None or subprocess.run(command, check=False).returncode != 0:
                print(f"{peer} can't be installed", file=sys.stderr)


def command_of(peer: str, script: str) -> tuple[tuple[str, ...], dict[str, str]] | None:
    """How a peer's command is run, and in which environment; None where it isn't installed."""
    target = _INSTALLED / peer
    path = target / "node_modules" / ".bin" / script if peer.startswith(_NPM) else target / "bin" / script
    if not path.exists():
        return None
    # Scripts of a package that is installed beside the environment don't find it by themselves.
    return ((str(path),), {}) if peer.startswith(_NPM) else ((sys.executable, str(path)), {"PYTHONPATH": str(target)})


def told(script: str, *arguments: str, peer: str = "", apart: Sequence[str] = ()) -> dict[str, Any]:
    """What a script beside this file tells as JSON, run in a process of its own, with a peer on its path where one is named.

    Where there is no such answer, `""` says why not. `apart` are the words of a command to run it under.
    """
    path = [str(ROOT)]
    if peer:
        path.insert(0, str(_INSTALLED / peer))
        if not os.path.exists(path[0]):
            return {"": "it isn't installed: run with --peers"}
    command = [*apart, sys.executable, str(Path(__file__).with_name(script)), *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        return {"": (done.stderr.strip().splitlines() or ["it failed"])[-1][:80]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
