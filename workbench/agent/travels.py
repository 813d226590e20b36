"""The journal of rewinds that move files and conversation together."""

from __future__ import annotations

import os
from collections.abc import Callable

from anyio import to_thread

from workbench.agent.locks import FileLocker
from workbench.protocol.session_ids import file_name
from workbench.protocol.sessions import TravelsRecord
from workbench.vfs.statefile import make_directory, read_json, write_json


class Travels:
    """`sessions/<id>/travels.json` in a directory: replaced whole, by one process at a time."""

    def __init__(self, directory: str, session_id: str) -> None:
        sessions = os.path.join(directory, "sessions")
        self._path = os.path.join(sessions, file_name(session_id), "travels.json")
        self._locker = FileLocker(os.path.join(sessions, ".travels"))
        self._session_id = session_id

    async def read(self) -> TravelsRecord:
        """What the file says; an empty record where there is none. Raises StateError (state_corrupt), OSError."""
        return await to_thread.run_sync(self._read)

    async def change(self, change: Callable[[TravelsRecord], TravelsRecord]) -> TravelsRecord:
        """Put what `change` makes of the record in its place; what it raises comes through. Raises as `read`, LockError."""
        async with self._locker.lock(self._session_id):
            record = change(await self.read())
            await to_thread.run_sync(self._write, record)
        return record

    def _read(self) -> TravelsRecord:
        try:
            return read_json(self._path, TravelsRecord)
        except FileNotFoundError:
            return TravelsRecord()

    def _write(self, record: TravelsRecord) -> None:
        make_directory(os.path.dirname(self._path))
        write_json(self._path, record)
