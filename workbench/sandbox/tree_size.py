"""How much room a tree takes, and how much there is: asked of the layers here, or by `copier.py` of those in an engine.

Standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import contextlib
import os
from typing import NamedTuple


class Room(NamedTuple):
    """Of a filesystem: bytes and files that may still be used, and all there are."""

    free_bytes: int
    bytes: int
    free_files: int
    files: int


def room_at(path: str) -> Room:
    """The room where a path is. Raises OSError."""
    found = os.statvfs(path)
    return Room(found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize, found.f_favail, found.f_files)


def size_of(directory: str) -> int:
    """What a directory and everything below it take on the disk, in bytes; what can't be read isn't counted.

    No symlink is followed. Raises OSError where the directory itself can't be read.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    waiting = [os.open(directory, flags)]
    blocks = 0
    linked: set[int] = set()
    try:
        while waiting:
            fd = waiting.pop()
            try:
                for name in os.listdir(fd):
                    # Commands go on meanwhile: a name may be gone, or closed to us.
                    with contextlib.suppress(OSError):
                        found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                        if found.st_mode & 0o170000 == 0o040000:
                            waiting.append(os.open(name, flags, dir_fd=fd))
                        elif found.st_nlink > 1:
                            if found.st_ino in linked:
                                continue
                            linked.add(found.st_ino)
                        blocks += found.st_blocks
            finally:
                os.close(fd)
    finally:
        for fd in waiting:
            os.close(fd)
    return blocks * 512
