"""What adapters of agents that keep their sessions in SQLite have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from workbench.protocol.signal import CancelSignal
from workbench.transcripts.files import FileAdapter, HeadFacts, Reading, SessionFile, read_failed
from workbench.transcripts.models import RowPointer, SessionListFailure, SessionRef
from workbench.transcripts.platform import PlatformSqlite, SessionPlatform
from workbench.transcripts.reading import Ends, raise_if_cancelled
from workbench.transcripts.values import mapping, parse

_HEADER = b"SQLite format 3\0"


@dataclass(frozen=True, slots=True)
class Database:
    """One database, of whatever version its agent was: a column that isn't there is None."""

    sqlite: PlatformSqlite
    path: str

    async def columns(self, table: str) -> set[str]:
        """A table's columns; none where there is no such table. Raises OSError."""
        return {str(row[1]) async for row in self.sqlite.rows(self.path, f'PRAGMA table_info("{table}")')}

    async def select(
        self, table: str, wanted: Sequence[str], rest: str = "", parameters: Sequence[object] = ()
    ) -> AsyncIterator[dict[str, Any]]:
        """Rows of a table by column; none where the table, or a column that `rest` asks for, isn't there.

        Raises OSError.
        """
        there = await self.columns(table)
        names = [name for name in wanted if name in there]
        if not names:
            return
        listed = ", ".join(f'"{name}"' for name in names)
        async for row in self.sqlite.rows(self.path, f'SELECT {listed} FROM "{table}" {rest}', parameters):
            yield {**dict.fromkeys(wanted), **dict(zip(names, row, strict=True))}

    async def first(
        self, table: str, wanted: Sequence[str], rest: str = "", parameters: Sequence[object] = ()
    ) -> dict[str, Any] | None:
        """The first of these rows; None where there is none. Raises OSError."""
        rows = [row async for row in self.select(table, wanted, f"{rest} LIMIT 1", parameters)]
        return rows[0] if rows else None

    def pointer(self, table: str, key: object) -> RowPointer:
        """To a row by its primary key."""
        return RowPointer(path=self.path, table=table, key=str(key))


def json_object(value: object) -> dict[str, Any]:
    """The object that a column's text or bytes are; {} where they are none."""
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    try:
        return mapping(parse(data)) if isinstance(data, bytes) else {}
    except ValueError:
        return {}


def json_list(value: object) -> list[Any]:
    """As `json_object`, for an array."""
    data = value.encode("utf-8", "replace") if isinstance(value, str) else value
    try:
        found = parse(data) if isinstance(data, bytes) else None
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def split(path: str) -> tuple[str, str]:
    """The database's path and the session's key, of `<db>#<key>`."""
    database, _, key = path.rpartition("#")
    return (database, key) if database else (path, "")


class SqliteAdapter(FileAdapter):
    """As its base, for a database of sessions: its path and a session's key, joined by a `#`, are the session's."""

    signs: ClassVar[tuple[str, ...]]
    """Columns, `table.column` each, by which such a database is told from others."""

    @abstractmethod
    async def sessions(self, database: Database) -> list[tuple[str, HeadFacts]]:
        """The key of each session that isn't part of another, and what its row tells. Raises OSError."""

    async def first_prompt(self, database: Database, key: str) -> str | None:
        """What a session's user asked first, looked up for its head; None where that can't be told. Raises OSError."""
        return None

    @abstractmethod
    async def read_session(self, reading: Reading, database: Database, key: str) -> bool:
        """Tell the recorder all of a session; False where there is none of that key. Raises OSError."""

    async def files(
        self, platform: SessionPlatform, root: str, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """The sessions of every database below a root."""
        for file in [file async for file in super().files(platform, root, signal)]:
            if isinstance(file, SessionListFailure):
                yield file
                continue
            async for found in self.in_database(platform, file, signal):
                yield found

    async def in_database(
        self, platform: SessionPlatform, file: SessionFile, signal: CancelSignal | None
    ) -> AsyncIterator[SessionFile | SessionListFailure]:
        """The sessions of one database."""
        try:
            for key, facts in await self.sessions(_database(platform, file.path)):
                raise_if_cancelled(signal)
                yield SessionFile(f"{file.path}#{key}", file.stat, facts)
        except OSError as error:
            yield SessionListFailure(agent=self.agent, error=read_failed(file.path, error))

    async def ends(self, platform: SessionPlatform, file: SessionFile) -> Ends:
        """Nothing: the listing of the database told all."""
        return Ends([])

    async def head(self, platform: SessionPlatform, file: SessionFile, ends: Ends) -> HeadFacts | None:
        """What the listing of the database told, and the first prompt."""
        if file.facts is not None:
            path, key = split(file.path)
            file.facts.first_prompt = await self.first_prompt(_database(platform, path), key)
        return file.facts

    def looks_right(self, ends: Ends) -> bool:
        """A database is asked for its columns instead."""
        return False

    async def detect(self, platform: SessionPlatform, ref: SessionRef) -> bool:
        """Whether `ref.path` names a database, or a session in one, that has the agent's columns."""
        path, _ = split(ref.path)
        try:
            if await platform.fs.read(path, length=len(_HEADER)) != _HEADER:
                return False
            database = _database(platform, path)
            signs = [sign.split(".") for sign in self.signs]
            return all([column in await database.columns(table) for table, column in signs])
        except OSError:
            return False

    async def read(self, reading: Reading, path: str) -> None:
        """The session of a path's key."""
        file, key = split(path)
        await reading.platform.fs.stat(file)
        reading.recorder.session_id = key
        if not await self.read_session(reading, _database(reading.platform, file), key):
            raise FileNotFoundError(path)


def _database(platform: SessionPlatform, path: str) -> Database:
    if platform.sqlite is None:
        raise OSError("this host has no SQLite")
    return Database(platform.sqlite, path)
