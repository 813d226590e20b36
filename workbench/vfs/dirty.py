"""Which paths of an upper layer were written since a moment, where each of its writers said so before it wrote.

The file `dirty` in an overlay's directory holds the boot's id, what the record is since, and a path for each change, each
ended by a NUL. It's ended by whoever takes the overlay's lock without promising to note what it writes, and by whatever
can't be noted: nothing is known then, and the whole layer has to be looked at.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable

_NAME = "dirty"
_MOST_BYTES = 1 << 20
"""Beyond so much of a record, looking at the whole layer takes no longer."""


class DirtyPaths:
    """The record of one overlay. Every method is for the holder of the overlay's lock, with nothing mounted."""

    def __init__(self, overlay_path: str) -> None:
        """Name it; `overlay_path` is the overlay's directory."""
        self._path = os.path.join(overlay_path, _NAME)

    def begin(self, since: str) -> None:
        """Nothing was written since a moment, which the caller names; where that can't be kept, nothing is known.

        Raises OSError.
        """
        content = b"%s\0%s\0" % (_boot_id(), os.fsencode(since))
        # Some filesystems write a file to the disk at once that is cut to nothing first (ext4, auto_da_alloc).
        self.forget()
        # What it's kept of is done: a disk that is full by now is no reason to call that a failure.
        with contextlib.suppress(OSError):
            fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                is_kept = os.write(fd, content) == len(content)
            finally:
                os.close(fd)
            if not is_kept:
                self.forget()

    def note(self, paths: Iterable[bytes]) -> None:
        """These paths, and what is below them, are about to be written. Raises OSError."""
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        content = b"".join(path + b"\0" for path in paths)
        try:
            is_noted = os.fstat(fd).st_size < _MOST_BYTES and os.write(fd, content) == len(content)
        except OSError:
            is_noted = False
        finally:
            os.close(fd)
        if not is_noted:
            self.forget()

    def forget(self) -> None:
        """Nothing is known from now on. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)

    def known(self) -> tuple[str, frozenset[bytes]] | None:
        """Since when it's known, and the paths at or below which something was written; None where nothing is."""
        try:
            with open(self._path, "rb") as file:
                content = file.read()
        except OSError:
            return None
        boot, since, *paths, rest = content.split(b"\0") if content.count(b"\0") > 1 else (b"", b"", b"cut")
        return None if rest or boot != _boot_id() else (os.fsdecode(since), frozenset(paths))


def _boot_id() -> bytes:
    # What wasn't on the disk yet is lost with the power, of this record as of the layer.
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        return file.read().strip()
