"""This machine as a platform."""

from __future__ import annotations

import errno
import os
import sqlite3
import stat as modes
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar
from urllib.parse import quote

from anyio import to_thread

from workbench.transcripts.platform import FileKind, SessionEntry, SessionStat, link_refused
from workbench.transcripts.zstd import decompress

T = TypeVar("T")

_BUSY_SECONDS = 5.0
_BATCH_ROWS = 256
_WAL_VERSION = 18  # the byte of a database's header that says whether it has a write-ahead log


class LocalPlatform:
    """This machine: its files, SQLite and zstd, the environment and home of this process unless others are given."""

    def __init__(self, *, env: Mapping[str, str] | None = None, home: str | None = None) -> None:
        self.env: Mapping[str, str] = os.environ if env is None else env
        self.home = os.path.expanduser("~") if home is None else home
        self.fs = _LocalFs()
        self.decompress = decompress
        self.sqlite = _LocalSqlite()


class _LocalFs:
    async def stat(self, path: str) -> SessionStat:
        return await _run(_stat, path)

    async def list(self, path: str) -> tuple[SessionEntry, ...]:
        return await _run(_list, path)

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        return await _run(_read, path, offset, length)


async def _run(call: Callable[..., T], path: str, *more: object) -> T:
    try:
        return await to_thread.run_sync(call, path, *more)
    except ValueError as error:  # a NUL, or what no file's name can be encoded from
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error


def _stat(path: str) -> SessionStat:
    found = os.lstat(path)
    return _stat_of(os.stat(path), is_link=True) if modes.S_ISLNK(found.st_mode) else _stat_of(found)


def _stat_of(found: os.stat_result, *, is_link: bool = False) -> SessionStat:
    kind: FileKind = (
        "file" if modes.S_ISREG(found.st_mode) else "directory" if modes.S_ISDIR(found.st_mode) else "other"
    )
    try:
        modified = datetime.fromtimestamp(found.st_mtime, UTC)
    except (ValueError, OverflowError, OSError):
        modified = datetime.fromtimestamp(0, UTC)
    return SessionStat(kind, found.st_size, modified, f"{found.st_dev}:{found.st_ino}", is_link)


def _list(path: str) -> tuple[SessionEntry, ...]:
    with os.scandir(path) as entries:
        found = []
        for entry in entries:
            try:
                stat = _stat_of(entry.stat(), is_link=entry.is_symlink())
            except OSError:  # gone meanwhile, a dangling link or a loop: a name with nothing behind it
                continue
            found.append(SessionEntry(entry.name, stat))
    return tuple(sorted(found, key=lambda entry: entry.name))


def _open_file(path: str) -> int:
    """A descriptor of what a path is, which is no symlink. Raises OSError."""
    try:
        # Not blocking: a FIFO in a session's place must not hang the listing.
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise link_refused(path) from error
        raise


def _read(path: str, offset: int, length: int | None) -> bytes:
    fd = _open_file(path)
    with open(fd, "rb", buffering=0) as file:
        found = os.fstat(fd)
        if not modes.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file", path)
        wanted = max(0, found.st_size - offset) if length is None else length
        pieces = []
        while wanted > 0:
            piece = os.pread(file.fileno(), wanted, offset)
            if not piece:
                break
            pieces.append(piece)
            offset, wanted = offset + len(piece), wanted - len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _LocalSqlite:
    async def rows(
        self, path: str, statement: str, parameters: Sequence[object] = ()
    ) -> AsyncIterator[tuple[Any, ...]]:
        try:
            connection = await to_thread.run_sync(_open, path)
            try:
                cursor = await to_thread.run_sync(connection.execute, statement, tuple(parameters))
                while batch := await to_thread.run_sync(cursor.fetchmany, _BATCH_ROWS):
                    for row in batch:
                        yield row
            finally:
                connection.close()
        except (sqlite3.Error, ValueError) as error:  # a damaged one may name things in no text
            raise OSError(errno.EIO, str(error), path) from error


def _open(path: str) -> sqlite3.Connection:
    with open(_open_file(path), "rb") as file:
        header = file.read(_WAL_VERSION + 1)
    # A reader of a database with a log makes the log's files where they are missing; immutable, it makes none, and where
    # no log is there, nobody has the database open.
    logged = header[_WAL_VERSION:] == b"\2"
    quiet = logged and not os.path.exists(f"{path}-wal")
    connection = sqlite3.connect(
        f"file:{quote(os.fsencode(path))}?mode=ro{'&immutable=1' if quiet else ''}",
        uri=True,
        timeout=_BUSY_SECONDS,
        check_same_thread=False,
    )
    connection.text_factory = lambda data: data.decode("utf-8", "replace")
    return connection
