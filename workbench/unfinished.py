"""A session that is being made from another agent's: a mark says so, until it's whole.

Whoever makes it holds a lock on the mark. A mark that nobody holds is what a killed process left: then the session is
removed by whoever next opens it, and was never there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from workbench.errors import OverlayError
from workbench.pruning import take_away
from workbench.state import StateDirectory, WorkspaceDirectory
from workbench.vfs.session import OverlayDirectory
from workbench.vfs.statefile import sync_directory

_MARK = "importing"
_LOCK_TIMEOUT_S = 30.0


@contextlib.contextmanager
def unfinished(overlay_path: str) -> Iterator[None]:
    """Mark a session as unfinished, until the block ends without an error. Raises OverlayError (overlay_busy), OSError."""
    path = os.path.join(overlay_path, _MARK)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise _busy(os.path.basename(overlay_path)) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        sync_directory(overlay_path)
        yield
        os.unlink(path)
        sync_directory(overlay_path)
    finally:
        os.close(fd)


def remove_unfinished(state: StateDirectory, workspace: WorkspaceDirectory, session: str) -> bool:
    """Remove a session that was never finished; whether it was one.

    Raises OverlayError (overlay_busy) while somebody makes it, WorkbenchError, OSError.
    """
    path = workspace.overlay_path(session)
    try:
        fd = os.open(os.path.join(path, _MARK), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _busy(session) from error
        overlay = OverlayDirectory.open(path)
        with overlay.lock(_LOCK_TIMEOUT_S):
            # Who made it may have finished it since the mark was looked for.
            if not os.path.lexists(os.path.join(path, _MARK)):
                return False
            take_away(state, workspace, overlay, session)
    finally:
        os.close(fd)
    return True


def _busy(session: str) -> OverlayError:
    return OverlayError(
        f"The session '{session}' is being imported.", code="overlay_busy", hint="Wait for the end of that."
    )
