"""Directories of a tree, reached from its root by descriptors and through no symlink."""

from __future__ import annotations

import os

BELOW = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_AT_ONCE = 64


class Directories:
    """Descriptors of a tree's directories: those on the way to the last one stay open, so that the next is near."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: list[tuple[bytes, int]] = []

    def open(self, path: bytes) -> int:
        """An O_PATH descriptor, good until the next call. Raises OSError."""
        while self._open and self._open[-1][0] != path and not path.startswith(self._open[-1][0] + b"/"):
            os.close(self._open.pop()[1])
        here, fd = self._open[-1] if self._open else (b"", self._root)
        rest = path[len(here) :].lstrip(b"/")
        for name in rest.split(b"/") if rest else []:
            fd = os.open(name, BELOW, dir_fd=fd)
            here = here + b"/" + name if here else name
            self._open.append((here, fd))
            if len(self._open) > _OPEN_AT_ONCE:
                os.close(self._open.pop(0)[1])
        return fd

    def close(self) -> None:
        """Close all; they are looked up anew after that."""
        while self._open:
            os.close(self._open.pop()[1])


def open_directory(root: int, path: bytes, flags: int = os.O_PATH) -> int:
    """Open a directory below a root, through no symlink. Raises OSError."""
    fd = os.open(b".", BELOW if path else flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    names = path.split(b"/") if path else []
    for number, name in enumerate(names, 1):
        try:
            last = number == len(names)
            below = os.open(name, (flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) if last else BELOW, dir_fd=fd)
        finally:
            os.close(fd)
        fd = below
    return fd


def itself(fd: int) -> str:
    # The calls on descriptors refuse O_PATH ones; through /proc the kernel jumps to the very inode, a symlink's too.
    return f"/proc/self/fd/{fd}"
