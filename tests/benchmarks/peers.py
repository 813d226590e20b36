"""What others made, installed apart from everything for a benchmark to be held against."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.conftest import ROOT

_INSTALLED = ROOT / ".cache" / "peers"


def install_peers(peers: Sequence[str]) -> None:
    """Install each peer's newest release into a directory of its own, unless it's there; one that can't be is said."""
    for peer in peers:
        target = _INSTALLED / peer
        if not target.exists():
            command = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(target), peer]
            if subprocess.run(command, check=False).returncode != 0:
                print(f"{peer} can't be installed", file=sys.stderr)


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
