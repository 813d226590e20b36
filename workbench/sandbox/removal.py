"""Removing a tree that an agent filled: any depth, any mode, any name. Standard library only: a container runs it."""

from __future__ import annotations

import os
import stat
import sys


def remove_below(directory: int) -> None:
    """Remove everything below a directory, given as an open descriptor; nothing else may be writing there.

    Directories inside are moved up to the top one after the other, so that neither depth nor the length of a path
    matters; symlinks are never followed, and directories without permissions are opened up first.

    Raises OSError, with what is left in place.
    """
    number = 0
    while names := os.listdir(os.fsencode(f"/proc/self/fd/{directory}")):
        for name in names:
            if not stat.S_ISDIR(os.lstat(name, dir_fd=directory).st_mode):
                os.unlink(name, dir_fd=directory)
                continue
            below = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            try:
                number = _empty(below, directory, number)
            finally:
                os.close(below)
            os.rmdir(name, dir_fd=directory)


def _empty(below: int, top: int, number: int) -> int:
    link = f"/proc/self/fd/{below}"
    if os.fstat(below).st_mode & 0o700 != 0o700:
        os.chmod(link, 0o700)
    for name in os.listdir(os.fsencode(link)):
        inner = os.fsencode(link) + b"/" + name
        mode = os.lstat(inner).st_mode
        if not stat.S_ISDIR(mode):
            os.unlink(inner)
            continue
        if mode & 0o700 != 0o700:
            # Moving a directory writes its entry `..`, which takes permission to write it.
            descriptor = os.open(inner, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
            finally:
                os.close(descriptor)
        while os.path.lexists(f"/proc/self/fd/{top}/.removed-{number}"):
            number += 1
        os.rename(inner, f"/proc/self/fd/{top}/.removed-{number}")
    return number


def main() -> None:
    """Remove what is below the directory that is the first argument."""
    descriptor = os.open(sys.argv[1], os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    remove_below(descriptor)


if __name__ == "__main__":
    main()
