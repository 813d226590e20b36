"""Starting what keeps checkpoints small beside whoever takes them: the process `workbench.collecting`."""

from __future__ import annotations

import subprocess
import sys
import threading


def start(directory: str, session: str, state_path: str) -> None:
    """Start it for a session of the workspace that is kept in a directory, and don't wait. Raises OSError."""
    command = [sys.executable, "-P", "-m", "workbench.collecting", directory, session, state_path]
    process = subprocess.Popen(
        command,
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    # Somebody has to take note of its end; who is gone by then leaves that to init.
    threading.Thread(target=process.wait, name="collector", daemon=True).start()
