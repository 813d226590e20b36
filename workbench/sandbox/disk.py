"""How much an overlay's upper layers may grow, and that the disk they're on never fills up because of them.

No quota can be had without privilege, so this looks: at the filesystem's free space often, which costs nothing, and at
the layers themselves only where that fell so much that they could have grown to their limit.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from workbench.sandbox.named_jobs import NamedJobs

LIMIT, FULL = "disk_limit", "disk_full"
"""Why commands are ended: the layers grew over their limit, or the disk is nearly full."""

_RESERVE_BYTES = 256 << 20
_RESERVE_FILES = 10_000
_RESERVE_SHARE = 20
_SLACK_BYTES = 8 << 20
_LOOK_S = 0.05
_LONGEST_S = 10.0
_SHARE_OF_TIME = 50


class DiskWatch:
    """Watches the upper layers of one sandbox, all on one filesystem, while commands run in it."""

    def __init__(self, uppers: Sequence[str], limit: int) -> None:
        """`limit` is in bytes for all of them together; 0 is none."""
        self._uppers = tuple(uppers)
        self._limit = limit
        self._size = 0
        self._free_then = 0
        self._measured = 0.0
        self._took = 0.0
        self._ceiling = 0
        self._floor = (0, 0)

    def begin(self) -> None:
        """Commands begin to run: what is so by now isn't their fault. Raises OSError."""
        found = os.statvfs(self._uppers[0])
        free, size = found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize
        reserve = min(_RESERVE_BYTES, size // _RESERVE_SHARE)
        files = min(_RESERVE_FILES, found.f_files // _RESERVE_SHARE)
        # What others take of a disk that is nearly full isn't held against them either.
        slack = min(_SLACK_BYTES, reserve // 4)
        self._floor = min(reserve, free) - slack, min(files, found.f_favail) - files // 4
        if not self._limit:
            return
        if not self._measured or self._may_be_over(free) or self._size > self._limit:
            self._measure(free)
        self._ceiling = max(self._limit, self._size + slack if self._size > self._limit else 0)

    def look(self) -> str:
        """`LIMIT` or `FULL` where what runs has to be ended, else nothing. Raises OSError."""
        found = os.statvfs(self._uppers[0])
        free = found.f_bavail * found.f_frsize
        if free < self._floor[0] or found.f_favail < self._floor[1]:
            return FULL
        if not self._limit:
            return ""
        since = time.monotonic() - self._measured
        may_be_over = self._may_be_over(free)
        # What others free meanwhile hides what the layers take.
        if since > self._took * (1 if may_be_over else _SHARE_OF_TIME) and (may_be_over or since > _LONGEST_S):
            self._measure(free)
        return LIMIT if self._size > self._ceiling else ""

    def _may_be_over(self, free: int) -> bool:
        return self._free_then - free >= (self._ceiling - self._size) // 2

    def _measure(self, free: int) -> None:
        since = time.monotonic()
        self._size = sum(map(size_of, self._uppers))
        self._free_then = free
        self._measured = time.monotonic()
        self._took = self._measured - since


async def watch(disk: DiskWatch, busy: asyncio.Event, jobs: NamedJobs) -> None:
    """End what runs, whenever it's `busy`, where it's too much for the disk; until cancelled."""
    while True:
        await busy.wait()
        busy.clear()
        try:
            await anyio.to_thread.run_sync(disk.begin)
            while jobs.running():
                await anyio.sleep(_LOOK_S)
                if reason := await anyio.to_thread.run_sync(disk.look):
                    ending = jobs.running().keys()
                    for number in ending:
                        jobs.kill(number, reason, grace_ms=0, discard=False)
                    # What begins meanwhile isn't what filled it.
                    while ending & jobs.running().keys():
                        await anyio.sleep(_LOOK_S)
                    break
        except OSError as error:
            # A layer that can't be looked at can't be written either.
            print(f"the disk can't be watched: {error}", file=sys.stderr, flush=True)


def size_of(directory: str) -> int:
    """What a directory and everything below it take on the disk, in bytes; what can't be read isn't counted.

    No symlink is followed. Raises OSError where the directory itself can't be read.
    """
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    waiting = [os.open(directory, flags)]
    blocks, linked = 0, set()
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
