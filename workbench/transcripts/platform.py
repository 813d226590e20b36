"""Where sessions are read from: all that reading needs of a host. It lists, stats and reads; nothing here writes.

Every call raises OSError where the host says no.
"""

from __future__ import annotations

import errno
from collections.abc import AsyncIterable, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal, Protocol

FileKind = Literal["file", "directory", "other"]
Decompress = Callable[[AsyncIterable[bytes]], AsyncIterator[bytes]]
"""The decompressed bytes of a zstd file, in pieces of bounded size. Raises OSError where the data is damaged."""


@dataclass(frozen=True, slots=True)
class SessionStat:
    """What a path is, a symlink followed; `is_link` says whether its last name is one.

    `identity` is the same for two paths to one directory, None where unknown.
    """

    kind: FileKind
    size: int
    modified_at: datetime
    identity: str | None = None
    is_link: bool = False


@dataclass(frozen=True, slots=True)
class SessionEntry:
    """One name of a directory."""

    name: str
    stat: SessionStat


def link_refused(path: str) -> OSError:
    """Why a symlink isn't followed."""
    return OSError(errno.ELOOP, "a symbolic link, which isn't followed here", path)


class SessionFs(Protocol):
    """Files, by absolute paths as of `os.fsdecode`."""

    async def stat(self, path: str) -> SessionStat:
        """What is there."""
        ...

    async def list(self, path: str) -> tuple[SessionEntry, ...]:
        """A directory's names, sorted."""
        ...

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        """The bytes from `offset` on, at most `length` of them; fewer only at the file's end.

        A path whose last name is a symlink is refused: an agent can make one that leads anywhere.
        """
        ...


class PlatformSqlite(Protocol):
    """SQLite files, read without changing or creating anything beside them."""

    def rows(self, path: str, statement: str, parameters: Sequence[object] = ()) -> AsyncIterator[tuple[Any, ...]]:
        """A query's rows, a bounded number of which are in memory at a time. Raises OSError for any failure of SQLite."""
        ...


class SessionPlatform(Protocol):
    """All that reading sessions needs, and every read goes through it. LocalPlatform(), FsspecPlatform(fs)."""

    @property
    def fs(self) -> SessionFs:
        """The files."""
        ...

    @property
    def decompress(self) -> Decompress | None:
        """Where the host can decode a compressed session file."""
        ...

    @property
    def sqlite(self) -> PlatformSqlite | None:
        """Where the host has SQLite."""
        ...


class HostPlatform(SessionPlatform, Protocol):
    """A platform that also knows where its user's homes are."""

    @property
    def env(self) -> Mapping[str, str]:
        """The environment that an agent would be started with."""
        ...

    @property
    def home(self) -> str:
        """The user's home directory."""
        ...
