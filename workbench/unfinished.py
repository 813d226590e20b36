"""A session that is being made from another agent's: a mark says so, until it's whole.

Whoever makes it holds a lock on the mark. A mark that nobody holds is what a killed process left.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator

from workbench.errors import OverlayError
from workbench.vfs.statefile import sync_directory

_MARK = "importing"


@contextlib.contextmanager
def unfinished(overlay_path: str) -> Iterator[None]:
    """Mark a session as unfinished, until the block ends without an error. Raises OverlayError (overlay_busy), OSError."""
    path = os.path.join(overlay_path, _MARK)
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as error:
        raise _busy(overlay_path) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        sync_directory(overlay_path)
        yield
        os.unlink(path)
        sync_directory(overlay_path)
    finally:
        os.close(fd)


def is_half_made(overlay_path: str) -> bool:
    """Whether a session was left unfinished. Raises OverlayError (overlay_busy) while somebody makes it, OSError."""
    try:
        fd = os.open(os.path.join(overlay_path, _MARK), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who made it may have finished it since the mark was looked for.
        return os.path.lexists(os.path.join(overlay_path, _MARK))
    except BlockingIOError as error:
        raise _busy(overlay_path) from error
    finally:
        os.close(fd)


def _busy(overlay_path: str) -> OverlayError:
    session = os.path.basename(overlay_path)
    return OverlayError(
        f"The session '{session}' is being imported.", code="overlay_busy", hint="Wait for the end of that."
    )
