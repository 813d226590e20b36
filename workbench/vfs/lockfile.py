"""Files that are locked by flock(2), and removed by who holds them."""

from __future__ import annotations

import fcntl
import os


def take(path: str, flags: int = os.O_RDWR) -> int:
    """The locked file's descriptor; -1 where another holds it, or has just removed it.

    It's free once that is closed; who removes the file meanwhile makes those who wait for it look again. `flags` are those
    of open(2). Raises OSError.
    """
    fd = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False)):
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return -1
