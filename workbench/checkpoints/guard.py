"""Who adds to a store and who takes something away from it: one never sees the other half done."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager


class Guard:
    """A file that is locked, shared by those who add and alone by who takes away, and counts how often that was."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None

    @contextmanager
    def shared(self) -> Iterator[bool]:
        """Hold it with others who add; whether something was taken away since this object last held it. Raises OSError."""
        fd = self._locked(fcntl.LOCK_SH)
        try:
            now = self._state(fd)
            before, self._seen = self._seen, now
            yield before is not None and before != now
        finally:
            os.close(fd)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Hold it alone, to take something away. Raises OSError."""
        fd = self._locked(fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Also after a failure: something may be gone by then.
            _, count = self._state(fd)
            os.pwrite(fd, b"%020d" % (count + 1), 0)
            os.close(fd)

    def _locked(self, how: int) -> int:
        while True:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(fd, how)
                # The whole store may have been set aside while this waited, and another put in its place.
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    return fd
            except FileNotFoundError:
                os.close(fd)
                continue
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    @staticmethod
    def _state(fd: int) -> tuple[int, int]:
        """Which file this is, and its count; one that was damaged has another than it had."""
        content = os.pread(fd, 20, 0)
        return os.fstat(fd).st_ino, int(content) if content.isdigit() else 0
