"""The public conformance suites on our own histories, lockers and stores; and what each of them must find wrong."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from workbench.agent.history import FileHistory, History, MemoryHistory, StoreHistory
from workbench.agent.locks import FileLocker, LocalLocker, Locker
from workbench.agent.stores import FileSessionStore, MemorySessionStore, SessionStore
from workbench.protocol.messages import ChatMessage
from workbench.protocol.sessions import SessionDetail
from workbench.testing import HistoryContract, LockerContract, SessionStoreContract


class TestMemoryHistory(HistoryContract):
    """ "memory.New() is the in-process backend; check your own with historytest"."""

    durable = False

    def make_history(self, place: Path) -> History:
        return MemoryHistory()


class TestFileHistory(HistoryContract):
    def make_history(self, place: Path) -> History:
        return FileHistory(place / "history")


class TestStoreHistoryInMemory(HistoryContract):
    durable = False

    def make_history(self, place: Path) -> History:
        return StoreHistory(MemorySessionStore())


class TestStoreHistoryInFiles(HistoryContract):
    def make_history(self, place: Path) -> History:
        return StoreHistory(FileSessionStore(place))


class TestLocalLocker(LockerContract):
    """ "agent.LocalLocker serializes within one process"."""

    shared = False

    def make_locker(self, place: Path) -> Locker:
        return LocalLocker()


class TestFileLocker(LockerContract):
    def make_locker(self, place: Path) -> Locker:
        return FileLocker(place / "locks")


class TestMemorySessionStore(SessionStoreContract):
    """ "class MemorySessionStore implements SessionStore"."""

    durable = False

    def make_store(self, place: Path) -> SessionStore:
        return MemorySessionStore()


class TestFileSessionStore(SessionStoreContract):
    """ "class FileSessionStore implements SessionStore"."""

    def make_store(self, place: Path) -> SessionStore:
        return FileSessionStore(place)


class TestMemoryHistoryTrio(TestMemoryHistory):
    backend = "trio"


class TestFileHistoryTrio(TestFileHistory):
    backend = "trio"


class TestStoreHistoryInMemoryTrio(TestStoreHistoryInMemory):
    backend = "trio"


class TestStoreHistoryInFilesTrio(TestStoreHistoryInFiles):
    backend = "trio"


class TestLocalLockerTrio(TestLocalLocker):
    backend = "trio"


class TestFileLockerTrio(TestFileLocker):
    backend = "trio"


class TestMemorySessionStoreTrio(TestMemorySessionStore):
    backend = "trio"


class TestFileSessionStoreTrio(TestFileSessionStore):
    backend = "trio"


# What follows is wrong, each in its own way. `_broken` makes a contract's subclass of it without pytest collecting that.


class _Forgetful(MemoryHistory):
    """Keeps the last run only."""

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        self._messages.pop(session_id, None)
        await super().append(session_id, *messages)


class _Backwards(MemoryHistory):
    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        return tuple(reversed(await super().read(session_id)))


class _OneByOne(MemoryHistory):
    """Appends message by message, so that runs mix and a cancelled one is there in part."""

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        for message in messages:
            await super().append(session_id, message)
            await anyio.lowlevel.checkpoint()


class _ReadThenWrite(MemoryHistory):
    """Loses what others append between its read and its write."""

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        before = await self.read(session_id)
        await anyio.lowlevel.checkpoint()
        self._messages[session_id] = [*before, *messages]


class _SameObjects(MemoryHistory):
    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        self._messages.setdefault(session_id, []).extend(messages)

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        return tuple(self._messages.get(session_id, ()))


class _NoCase(MemoryHistory):
    """Takes two ids for one."""

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        await super().append(session_id.lower(), *messages)

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        return await super().read(session_id.lower())


class _TextOnly(MemoryHistory):
    """Loses what isn't text."""

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        await super().append(session_id, *(message.model_copy(update={"provider_state": None}) for message in messages))


class _Strict(MemoryHistory):
    """Knows no unknown session."""

    async def read(self, session_id: str) -> tuple[ChatMessage, ...]:
        if session_id not in self._messages:
            raise KeyError(session_id)
        return await super().read(session_id)


class _Cut(MemoryHistory):
    """Keeps no long content."""

    async def append(self, session_id: str, *messages: ChatMessage) -> None:
        cut = (message.model_copy(update={"content": message.content[:65536]}) for message in messages)
        await super().append(session_id, *cut)


class _NoLock:
    @contextlib.asynccontextmanager
    async def lock(self, session_id: str) -> AsyncIterator[None]:
        await anyio.lowlevel.checkpoint()
        yield


class _OneForAll(LocalLocker):
    def lock(self, session_id: str) -> Any:
        return super().lock("all")


class _KeptByErrors:
    """Lets go only where all went well."""

    def __init__(self) -> None:
        self._held: set[str] = set()

    @contextlib.asynccontextmanager
    async def lock(self, session_id: str) -> AsyncIterator[None]:
        while session_id in self._held:
            await anyio.lowlevel.checkpoint()
        self._held.add(session_id)
        yield
        self._held.remove(session_id)


class _LostByWaiters:
    """A wait that is cancelled takes the lock with it."""

    def __init__(self) -> None:
        self._held: dict[str, int] = {}

    @contextlib.asynccontextmanager
    async def lock(self, session_id: str) -> AsyncIterator[None]:
        turn = self._held.get(session_id, 0)
        self._held[session_id] = turn + 1
        if turn:
            while self._held[session_id] > turn:
                await anyio.lowlevel.checkpoint()
        try:
            yield
        finally:
            self._held[session_id] -= 1


class _OtherDirectory(FileLocker):
    """Two at one place lock different files."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory / str(id(self)))


class _Rigid(MemorySessionStore):
    """Can't delete what isn't there."""

    async def delete(self, id: str) -> None:
        del self._sessions[id]


class _Undead(MemorySessionStore):
    """Only the list forgets what is deleted."""

    def __init__(self) -> None:
        super().__init__()
        self._old: dict[str, SessionDetail] = {}

    async def delete(self, id: str) -> None:
        if id in self._sessions:
            self._old[id] = self._sessions[id]
        await super().delete(id)

    async def load(self, id: str) -> SessionDetail | None:
        return await super().load(id) or self._old.get(id)


class _FirstWins(MemorySessionStore):
    async def save(self, session: SessionDetail) -> None:
        self._sessions.setdefault(session.id, session.model_copy(deep=True))


class _SameSessions(MemorySessionStore):
    async def save(self, session: SessionDetail) -> None:
        self._sessions[session.id] = session

    async def load(self, id: str) -> SessionDetail | None:
        return self._sessions.get(id)


class _Untitled(MemorySessionStore):
    async def list(self) -> Any:
        return tuple(each.model_copy(update={"title": ""}) for each in await super().list())


class _Details(MemorySessionStore):
    """Lists whole sessions."""

    async def list(self) -> Any:
        return tuple(self._sessions.values())


class _NoUsage(MemorySessionStore):
    async def save(self, session: SessionDetail) -> None:
        await super().save(session.model_copy(update={"usage": session.usage.model_copy(update={"cost_usd": None})}))


class _Truncating:
    """Writes in place, a piece at a time, and takes the id for a name."""

    def __init__(self, place: Path) -> None:
        self._place = place

    def _file(self, id: str) -> Path:
        return self._place / f"{id.replace('/', '_')[:100]}.json"

    async def list(self) -> Any:
        return tuple([SessionDetail.model_validate_json(path.read_bytes()) for path in self._place.glob("*.json")])

    async def load(self, id: str) -> SessionDetail | None:
        try:
            return SessionDetail.model_validate_json(self._file(id).read_bytes())
        except FileNotFoundError:
            return None

    async def save(self, session: SessionDetail) -> None:
        text = json.dumps(session.model_dump(mode="json"))
        with self._file(session.id).open("w") as file:
            file.write(text[:100])
            file.flush()
            await anyio.lowlevel.checkpoint()
            file.write(text[100:])

    async def delete(self, id: str) -> None:
        self._file(id).unlink(missing_ok=True)


def _contract(kind: type, maker: str, make: Callable[[Path], object], **traits: Any) -> Any:
    return type("Broken", (kind,), {maker: lambda self, place: make(place), **traits})()


@pytest.mark.parametrize(
    ("broken", "found_by"),
    [
        (_Forgetful, "test_messages_come_back_in_order_with_everything_in_them"),
        (_Forgetful, "test_appending_nothing_changes_nothing"),
        (_Backwards, "test_messages_come_back_in_order_with_everything_in_them"),
        (_OneByOne, "test_appends_side_by_side_lose_nothing_and_never_mix"),
        (_OneByOne, "test_a_cancelled_append_is_whole_or_not_there"),
        (_ReadThenWrite, "test_appends_side_by_side_lose_nothing_and_never_mix"),
        (_SameObjects, "test_what_was_appended_or_read_may_be_changed_without_changing_the_history"),
        (_NoCase, "test_no_two_ids_share_their_messages"),
        (_TextOnly, "test_messages_come_back_in_order_with_everything_in_them"),
        (_Strict, "test_an_unknown_session_has_no_messages"),
        (_Cut, "test_a_long_conversation_is_kept_whole"),
        (MemoryHistory, "test_a_second_one_at_the_same_place_has_the_same_messages"),
    ],
)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_suite_finds_what_is_wrong_with_a_history(
    broken: type, found_by: str, backend: str, tmp_path: Path
) -> None:
    contract = _contract(HistoryContract, "make_history", lambda place: broken(), backend=backend)
    with pytest.raises((AssertionError, KeyError)):
        getattr(contract, found_by)(tmp_path)


@pytest.mark.parametrize(
    ("broken", "found_by"),
    [
        (lambda place: _NoLock(), "test_one_at_a_time_holds_a_session_and_each_gets_its_turn"),
        (lambda place: _NoLock(), "test_a_held_session_waits"),
        (lambda place: _OneForAll(), "test_sessions_do_not_wait_for_each_other"),
        (lambda place: _KeptByErrors(), "test_an_exception_lets_go"),
        (lambda place: _KeptByErrors(), "test_a_cancelled_holder_lets_go"),
        (lambda place: _LostByWaiters(), "test_a_cancelled_wait_leaves_the_lock_to_the_others"),
        (_OtherDirectory, "test_a_second_one_at_the_same_place_excludes_the_first"),
    ],
)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_suite_finds_what_is_wrong_with_a_locker(
    broken: Callable[[Path], object], found_by: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.testing.locker_contract._SECONDS", 0.3)
    contract = _contract(LockerContract, "make_locker", broken, backend=backend)
    with pytest.raises((AssertionError, RuntimeError, TimeoutError, ExceptionGroup)):
        getattr(contract, found_by)(tmp_path)


@pytest.mark.parametrize(
    ("broken", "found_by"),
    [
        (lambda place: _Rigid(), "test_an_empty_store_has_nothing_to_list_to_load_or_to_delete"),
        (lambda place: _Undead(), "test_a_deleted_session_is_gone_and_the_others_stay"),
        (lambda place: _FirstWins(), "test_saving_again_replaces"),
        (lambda place: _SameSessions(), "test_what_was_saved_or_loaded_may_be_changed_without_changing_the_store"),
        (lambda place: _Untitled(), "test_a_list_has_the_summaries_of_all"),
        (lambda place: _Details(), "test_a_list_has_the_summaries_of_all"),
        (lambda place: _NoUsage(), "test_a_session_comes_back_with_everything_in_it"),
        (_Truncating, "test_readers_beside_a_writer_see_whole_sessions"),
        (_Truncating, "test_a_cancelled_save_is_whole_or_not_there"),
        (_Truncating, "test_no_two_ids_are_one_session"),
        (lambda place: MemorySessionStore(), "test_a_second_one_at_the_same_place_has_the_same_sessions"),
    ],
)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_the_suite_finds_what_is_wrong_with_a_store(
    broken: Callable[[Path], object], found_by: str, backend: str, tmp_path: Path
) -> None:
    contract = _contract(SessionStoreContract, "make_store", broken, backend=backend)
    with pytest.raises((AssertionError, KeyError, ValueError, ExceptionGroup)):
        getattr(contract, found_by)(tmp_path)
