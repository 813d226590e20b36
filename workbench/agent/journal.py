"""What a rewind of files and conversation is about to do, and what can be taken back: one file, so that both go together."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from anyio import to_thread

from workbench.protocol.messages import ChatMessage
from workbench.protocol.records import Frozen
from workbench.protocol.session_ids import file_name
from workbench.vfs.statefile import make_directory, read_json, write_json


class PendingMove(Frozen):
    """A rewind or a redo that was begun.

    `removed` are the messages that go, or come back; empty where the conversation stays. `points` is how many rewinds of
    the files could be taken back when it began: another number says that the files have moved.
    """

    kind: Literal["rewind", "redo"]
    message_id: str
    files: bool
    removed: tuple[ChatMessage, ...]
    points: int = 0


class Undone(Frozen):
    """A rewind that can be taken back: whether files moved, and the messages that it removed."""

    message_id: str
    files: bool
    removed: tuple[ChatMessage, ...]


class _Record(Frozen):
    version: int = 1
    pending: PendingMove | None = None
    undone: tuple[Undone, ...] = ()


class Journal:
    """`sessions/<session>/rewinds.json`. Every change of it is one rename; each method raises StateError, OSError."""

    def __init__(self, directory: str, session: str) -> None:
        """`directory` is the workspace's in the state directory."""
        self._path = os.path.join(directory, "sessions", file_name(session), "rewinds.json")

    async def pending(self) -> PendingMove | None:
        """What was begun and not ended."""
        return (await to_thread.run_sync(self._read)).pending

    async def last(self) -> Undone | None:
        """What a redo would take back."""
        undone = (await to_thread.run_sync(self._read)).undone
        return undone[-1] if undone else None

    async def begin(self, move: PendingMove) -> None:
        """Say what is about to be done."""
        await self._change(lambda record: record.model_copy(update={"pending": move}))

    async def end(self, undone: Undone | None) -> None:
        """It's done: a rewind that can be taken back, None for a redo, which took the last one back."""

        def ended(record: _Record) -> _Record:
            kept = (*record.undone, undone) if undone is not None else record.undone[:-1]
            return _Record(undone=kept)

        await self._change(ended)

    async def forget(self) -> None:
        """The conversation goes on from here: what was removed can't come back into it."""
        if (await to_thread.run_sync(self._read)).undone:
            await self._change(lambda record: _Record())

    async def _change(self, change: Callable[[_Record], _Record]) -> None:
        def write() -> None:
            make_directory(os.path.dirname(self._path))
            write_json(self._path, change(self._read()))

        await to_thread.run_sync(write)

    def _read(self) -> _Record:
        try:
            return read_json(self._path, _Record)
        except FileNotFoundError:
            return _Record()
