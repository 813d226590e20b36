"""What every store of sessions has to keep: subclass `SessionStoreContract` beside your store's tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import anyio
from anyio.lowlevel import checkpoint

from workbench.agent.stores import SessionStore
from workbench.protocol.sessions import SessionDetail, SessionSummary
from workbench.testing.conversations import SESSION_IDS, session

_SECONDS = 60


class SessionStoreContract:
    """The promises of `workbench.agent.stores.SessionStore`, as tests.

    A subclass has `make_store`, and says by `durable` whether a second one at the same place has the same sessions. Each
    test gets a place of its own, and runs under `backend`::

        class TestMine(SessionStoreContract):
            def make_store(self, place):
                return MyStore(place)
    """

    backend: ClassVar[str] = "asyncio"
    durable: ClassVar[bool] = True

    def make_store(self, place: Path) -> SessionStore:
        """A store at a place, an empty directory at first; called in the event loop."""
        raise NotImplementedError

    def _use(self, place: Path, use: Callable[[SessionStore], Awaitable[None]]) -> None:
        async def main() -> None:
            with anyio.fail_after(_SECONDS):
                await use(self.make_store(place))

        anyio.run(main, backend=self.backend)

    def test_an_empty_store_has_nothing_to_list_to_load_or_to_delete(self, tmp_path: Path) -> None:
        """ "load(id): undefined" where there is none."""

        async def use(store: SessionStore) -> None:
            assert await store.list() == ()
            assert await store.load("s") is None
            await store.delete("s")
            assert await store.list() == ()

        self._use(tmp_path, use)

    def test_a_session_comes_back_with_everything_in_it(self, tmp_path: Path) -> None:
        """ "save(session: SessionDetail)"; "load(id): SessionDetail"."""

        async def use(store: SessionStore) -> None:
            for saved in (session("s", "a", "b"), session("s", title="", system_prompt=None, tenant_id=None)):
                await store.save(saved)
                assert await store.load("s") == saved

        self._use(tmp_path, use)

    def test_a_list_has_the_summaries_of_all(self, tmp_path: Path) -> None:
        """ "list(): SessionSummary[]"."""

        async def use(store: SessionStore) -> None:
            saved = {id: session(id, "a", title=f"title of {id!r}") for id in ("one", "two", "three")}
            for each in saved.values():
                await store.save(each)
            found = await store.list()
            assert {each.id: each for each in found} == {id: _summary(each) for id, each in saved.items()}
            assert len(found) == len(saved)

        self._use(tmp_path, use)

    def test_saving_again_replaces(self, tmp_path: Path) -> None:
        async def use(store: SessionStore) -> None:
            await store.save(session("s", "a", "b"))
            await store.save(session("s", "a", title="another"))
            assert await store.load("s") == session("s", "a", title="another")
            assert [each.title for each in await store.list()] == ["another"]

        self._use(tmp_path, use)

    def test_a_deleted_session_is_gone_and_the_others_stay(self, tmp_path: Path) -> None:
        """ "delete(id: string)"."""

        async def use(store: SessionStore) -> None:
            for id in ("one", "two"):
                await store.save(session(id, "a"))
            await store.delete("one")
            assert await store.load("one") is None
            assert await store.load("two") == session("two", "a")
            assert [each.id for each in await store.list()] == ["two"]
            await store.delete("one")
            await store.save(session("one", "b"))
            assert await store.load("one") == session("one", "b")

        self._use(tmp_path, use)

    def test_no_two_ids_are_one_session(self, tmp_path: Path) -> None:
        async def use(store: SessionStore) -> None:
            for id in SESSION_IDS:
                await store.save(session(id, title=f"title of {id!r}"))
            assert sorted(each.id for each in await store.list()) == sorted(SESSION_IDS)
            for id in SESSION_IDS:
                assert await store.load(id) == session(id, title=f"title of {id!r}"), id
            for left, id in enumerate(SESSION_IDS, 1):
                await store.delete(id)
                assert len(await store.list()) == len(SESSION_IDS) - left, id

        self._use(tmp_path, use)

    def test_readers_beside_a_writer_see_whole_sessions(self, tmp_path: Path) -> None:
        async def use(store: SessionStore) -> None:
            await store.save(session("s", "0"))
            states = [session("s", *map(str, range(number + 1))) for number in range(20)]

            written = anyio.Event()

            async def write() -> None:
                for state in states:
                    await store.save(state)
                written.set()

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(write)
                while not written.is_set():
                    await checkpoint()
                    found = await store.load("s")
                    assert found in states
                    assert found is not None
                    assert found.message_count == len(found.messages)
                    assert [each.id for each in await store.list()] == ["s"]
            assert await store.load("s") == states[-1]

        self._use(tmp_path, use)

    def test_saves_side_by_side_leave_one_of_them(self, tmp_path: Path) -> None:
        async def use(store: SessionStore) -> None:
            states = [session("s", *map(str, range(number))) for number in range(10)]
            async with anyio.create_task_group() as tasks:
                for state in states:
                    tasks.start_soon(store.save, state)
                    tasks.start_soon(store.save, session(f"other {len(state.messages)}"))
            assert await store.load("s") in states
            assert len(await store.list()) == 11

        self._use(tmp_path, use)

    def test_a_cancelled_save_is_whole_or_not_there(self, tmp_path: Path) -> None:
        async def use(store: SessionStore) -> None:
            before, after = session("s", "a"), session("s", "a", "b")
            await store.save(before)
            with anyio.CancelScope() as scope:
                scope.cancel()
                await store.save(after)
            assert await store.load("s") in (before, after)
            assert [each.id for each in await store.list()] == ["s"]

        self._use(tmp_path, use)

    def test_what_was_saved_or_loaded_may_be_changed_without_changing_the_store(self, tmp_path: Path) -> None:
        async def use(store: SessionStore) -> None:
            given = session("s", "a")
            await store.save(given)
            _spoil(given)
            assert await store.load("s") == session("s", "a")
            loaded = await store.load("s")
            assert loaded is not None
            _spoil(loaded)
            assert await store.load("s") == session("s", "a")

        self._use(tmp_path, use)

    def test_a_second_one_at_the_same_place_has_the_same_sessions(self, tmp_path: Path) -> None:
        if not self.durable:
            return

        async def use(store: SessionStore) -> None:
            await store.save(session("s", "a"))
            other = self.make_store(tmp_path)
            assert await other.load("s") == session("s", "a")
            await other.save(session("s", "a", "b"))
            assert await store.load("s") == session("s", "a", "b")
            await other.delete("s")
            assert await store.list() == ()

        self._use(tmp_path, use)


def _summary(detail: SessionDetail) -> SessionSummary:
    return SessionSummary.model_validate({name: getattr(detail, name) for name in SessionSummary.model_fields})


def _spoil(detail: SessionDetail) -> None:
    for each in detail.messages:
        for call in each.tool_calls:
            if call.arguments is not None:
                call.arguments["path"] = "another"
