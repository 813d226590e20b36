"""Keeping a session's checkpoints small: a process of its own, of low priority, that `collector` starts.

`python -m workbench.collecting DIRECTORY SESSION STATE`, of a workspace's directory in the state directory. It ends when that
is done, or can't be; the next one tries again.
"""

from __future__ import annotations

import os
import sys

from workbench.checkpoints import upkeep
from workbench.errors import WorkbenchError
from workbench.state import WorkspaceDirectory
from workbench.workspace import Workspace


def main() -> None:
    """Run as the module's docstring says."""
    path, session, state_path = sys.argv[1:]
    try:
        directory = WorkspaceDirectory.read(path)
        if session not in directory.sessions():
            # It was removed meanwhile; opening would make it anew.
            return
        workspace = Workspace.open(directory.root, session=session, state_path=state_path)
        try:
            if not upkeep.is_collecting(workspace.store):
                workspace.keep_small()
        finally:
            workspace.close()
    except (WorkbenchError, OSError) as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    # Whoever works with the session goes first.
    os.nice(10)
    main()
