"""One run of a session at a time: the protocol, within a process and between processes."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio

from workbench.errors import LockError
from workbench.protocol.session_ids import file_name
from workbench.vfs import lockfile, paths
from workbench.vfs.statefile import make_directory

_POLL = 0.02


class Locker(Protocol):
    """Serialises the runs of one session; safe for concurrent use."""

    def lock(self, session_id: str) -> AbstractAsyncContextManager[None]:
        """Hold the session's lock in the `async with`; entering waits for it, and may be cancelled. Raises LockError."""
        ...


@dataclass(slots=True)
class _Entry:
    """A lock, how many hold it or wait for it, and whether it may go with the last of them."""

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    users: int = 0
    forgotten: bool = False


class LocalLocker:
    """Serialises within one event loop, first come, first served. Its memory grows with the ids that it has seen."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}

    @asynccontextmanager
    async def lock(self, session_id: str) -> AsyncIterator[None]:
        """As `Locker.lock`; raises nothing."""
        entry = self._entries.setdefault(session_id, _Entry())
        entry.users += 1
        try:
            async with entry.lock:
                yield
        finally:
            entry.users -= 1
            self._drop(session_id, entry)

    def forget(self, session_id: str) -> None:
        """Drop what is kept of a session, after its last run: where one holds the lock or waits for it, once none does."""
        entry = self._entries.get(session_id)
        if entry is not None:
            entry.forgotten = True
            self._drop(session_id, entry)

    def _drop(self, session_id: str, entry: _Entry) -> None:
        if entry.forgotten and not entry.users:
            del self._entries[session_id]


class FileLocker:
    """Serialises the processes of one machine that name the same directory.

    Each session has a file in it, locked by flock(2): a killed process lets go of it. Within the process it's first come,
    first served; between processes it isn't.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        """`directory` is made where it's missing, once it's needed."""
        self._directory = os.path.abspath(directory)
        self._local = LocalLocker()

    @asynccontextmanager
    async def lock(self, session_id: str) -> AsyncIterator[None]:
        """As `Locker.lock`. Raises LockError, OptionsError for what can't be an id."""
        path = self._path(session_id)
        async with self._local.lock(session_id):
            fd = await _take(path)
            try:
                yield
            finally:
                os.close(fd)

    def forget(self, session_id: str) -> None:
        """Drop what is kept of a session, after its last run; its file stays where anybody holds it. Raises LockError."""
        path = self._path(session_id)
        self._local.forget(session_id)
        with _lock_errors(path), contextlib.suppress(FileNotFoundError):
            fd = lockfile.take(path)
            if fd >= 0:
                try:
                    os.unlink(path)
                finally:
                    os.close(fd)

    def _path(self, session_id: str) -> str:
        return os.path.join(self._directory, f"{file_name(session_id)}.lock")


async def _take(path: str) -> int:
    """The locked file, once nobody else holds it."""
    while True:
        with _lock_errors(path):
            make_directory(os.path.dirname(path))
            fd = lockfile.take(path, os.O_RDWR | os.O_CREAT)
        if fd >= 0:
            return fd
        # Nothing tells of a lock that gets free but a thread that waits for it, which can't be cancelled.
        await anyio.sleep(_POLL)


@contextlib.contextmanager
def _lock_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise LockError(
            f"The lock {paths.display(os.fsencode(path))} can't be had: {error.strerror}.",
            hint="Look at the permissions of its directory.",
        ) from error
