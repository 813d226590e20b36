"""How much an overlay's upper layers may grow, and that the disk they're on never fills up because of them.

No quota can be had without privilege, so this looks: at the filesystem's free space often, which costs nothing, and at
the layers themselves only where that fell so much that they could have grown to their limit.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import anyio
import anyio.to_thread

from workbench.errors import SandboxError
from workbench.sandbox.tree_size import Room, room_at, size_of

if TYPE_CHECKING:
    import asyncio

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


class Space(Protocol):
    """Where the upper layers of a sandbox are."""

    async def room(self) -> Room:
        """What there is of the filesystem that they are on. Raises OSError, SandboxError."""
        ...

    async def size(self) -> int:
        """What they take of it together, in bytes. Raises OSError, SandboxError."""
        ...


class LocalSpace:
    """That of layers on this machine, all on one filesystem."""

    def __init__(self, uppers: Sequence[str]) -> None:
        self._uppers = tuple(uppers)

    async def room(self) -> Room:
        """As `Space.room`."""
        return await anyio.to_thread.run_sync(room_at, self._uppers[0])

    async def size(self) -> int:
        """As `Space.size`."""
        return await anyio.to_thread.run_sync(lambda: sum(map(size_of, self._uppers)))


class DiskWatch:
    """Watches the upper layers of one sandbox, all on one filesystem, while commands run in it."""

    def __init__(self, space: Space, limit: int) -> None:
        """`space` is where they are; `limit` is in bytes for all of them together, 0 is none."""
        self._space = space
        self._limit = limit
        self._size = 0
        self._free_then = 0
        self._measured = 0.0
        self._took = 0.0
        self._ceiling = 0
        self._floor = (0, 0)

    async def begin(self) -> None:
        """Commands begin to run: what is so by now isn't their fault. Raises OSError, SandboxError."""
        found = await self._space.room()
        free = found.free_bytes
        reserve = min(_RESERVE_BYTES, found.bytes // _RESERVE_SHARE)
        files = min(_RESERVE_FILES, found.files // _RESERVE_SHARE)
        # What others take of a disk that is nearly full isn't held against them either.
        slack = min(_SLACK_BYTES, reserve // 4)
        self._floor = min(reserve, free) - slack, min(files, found.free_files) - files // 4
        if not self._limit:
            return
        if not self._measured or self._may_be_over(free) or self._size > self._limit:
            await self._measure(free)
        self._ceiling = max(self._limit, self._size + slack if self._size > self._limit else 0)

    async def look(self) -> str:
        """`LIMIT` or `FULL` where what runs has to be ended, else nothing. Raises OSError, SandboxError."""
        found = await self._space.room()
        free = found.free_bytes
        if free < self._floor[0] or found.free_files < self._floor[1]:
            return FULL
        if not self._limit:
            return ""
        since = time.monotonic() - self._measured
        may_be_over = self._may_be_over(free)
        # What others free meanwhile hides what the layers take.
        if since > self._took * (1 if may_be_over else _SHARE_OF_TIME) and (may_be_over or since > _LONGEST_S):
            await self._measure(free)
        return LIMIT if self._size > self._ceiling else ""

    def _may_be_over(self, free: int) -> bool:
        return self._free_then - free >= (self._ceiling - self._size) // 2

    async def _measure(self, free: int) -> None:
        since = time.monotonic()
        self._size = await self._space.size()
        self._free_then = free
        self._measured = time.monotonic()
        self._took = self._measured - since


async def watch(disk: DiskWatch, busy: asyncio.Event, jobs: NamedJobs) -> None:
    """End what runs, whenever it's `busy`, where it's too much for the disk; until cancelled."""
    while True:
        await busy.wait()
        busy.clear()
        try:
            await disk.begin()
            while jobs.running():
                await anyio.sleep(_LOOK_S)
                if reason := await disk.look():
                    ending = jobs.running().keys()
                    for number in ending:
                        jobs.kill(number, reason, grace_ms=0, discard=False)
                    # What begins meanwhile isn't what filled it.
                    while ending & jobs.running().keys():
                        await anyio.sleep(_LOOK_S)
                    break
        except (OSError, SandboxError) as error:
            # A layer that can't be looked at can't be written either.
            print(f"the disk can't be watched: {error}", file=sys.stderr, flush=True)
