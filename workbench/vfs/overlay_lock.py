"""The lock of an overlay: flock(2) on `lock`, beside its record.

By itself, since a keeper takes it over before it imports what reads records.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass

from workbench.errors import OverlayError

NAME = "lock"


@dataclass(slots=True)
class OverlayLock:
    """A held lock of an overlay. Its holder alone mounts, sweeps, and writes the upper layer or the record.

    `fd` may be passed to a child (`pass_fds`), which then holds the lock too: it's free when the last one is closed.
    """

    fd: int

    @classmethod
    def adopt(cls, path: str, fd: int) -> OverlayLock:
        """Take over the lock of the overlay in the directory `path` that was inherited as descriptor `fd`.

        Raises OverlayError (overlay_busy) where `fd` isn't this overlay's lock or another holds it, OSError.
        """
        if not take(os.path.join(path, NAME), fd):
            raise OverlayError(
                f"Descriptor {fd} doesn't hold the lock of the overlay at {path}.",
                code="overlay_busy",
                hint="Pass the descriptor of a held lock to the child.",
            )
        os.set_inheritable(fd, False)
        return cls(fd)

    def close(self) -> None:
        """Let go, as far as this process is concerned; safe to call again."""
        # Never LOCK_UN: that would take the lock away from a child that inherited it.
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def take(lock_path: str, fd: int) -> bool:
    """Lock the file at `lock_path`, which was opened as `fd`; whether that succeeded. Raises OSError."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    # A lock file that was removed, or made anew, since it was opened locks nothing.
    ours = os.fstat(fd)
    try:
        there = os.stat(lock_path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)
