"""What every history has to keep: subclass `HistoryContract` beside your history's tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import ClassVar

import anyio

from workbench.agent.history import History
from workbench.protocol.messages import ChatMessage
from workbench.testing.conversations import SESSION_IDS, message, run

_SECONDS = 60


class HistoryContract:
    """The promises of `workbench.agent.history.History`, as tests.

    A subclass has `make_history`, and says by `durable` whether a second one at the same place has the same messages. Each
    test gets a place of its own, and runs under `backend`::

        class TestMine(HistoryContract):
            def make_history(self, place):
                return MyHistory(place)
    """

    backend: ClassVar[str] = "asyncio"
    durable: ClassVar[bool] = True

    def make_history(self, place: Path) -> History:
        """A history at a place, an empty directory at first; called in the event loop."""
        raise NotImplementedError

    def _use(self, place: Path, use: Callable[[History], Awaitable[None]]) -> None:
        async def main() -> None:
            with anyio.fail_after(_SECONDS):
                await use(self.make_history(place))

        anyio.run(main, backend=self.backend)

    def test_an_unknown_session_has_no_messages(self, tmp_path: Path) -> None:
        """ "Read of an unknown session returns none"."""

        async def use(history: History) -> None:
            assert await history.read("unknown") == ()
            await history.append("known", *run("a"))
            assert await history.read("unknown") == ()

        self._use(tmp_path, use)

    def test_messages_come_back_in_order_with_everything_in_them(self, tmp_path: Path) -> None:
        """ "Append(ctx, sessionID, messages...) and Read(ctx, sessionID)"."""

        async def use(history: History) -> None:
            await history.append("s", *run("a"))
            assert await history.read("s") == run("a")
            await history.append("s", *run("b"))
            await history.append("s", message("c"))
            assert await history.read("s") == (*run("a"), *run("b"), message("c"))

        self._use(tmp_path, use)

    def test_appending_nothing_changes_nothing(self, tmp_path: Path) -> None:
        async def use(history: History) -> None:
            await history.append("s")
            assert await history.read("s") == ()
            await history.append("s", *run("a"))
            await history.append("s")
            assert await history.read("s") == run("a")

        self._use(tmp_path, use)

    def test_no_two_ids_share_their_messages(self, tmp_path: Path) -> None:
        async def use(history: History) -> None:
            for number, id in enumerate(SESSION_IDS):
                await history.append(id, message(f"m{number}", id))
            for number, id in enumerate(SESSION_IDS):
                assert await history.read(id) == (message(f"m{number}", id),), id

        self._use(tmp_path, use)

    def test_appends_side_by_side_lose_nothing_and_never_mix(self, tmp_path: Path) -> None:
        """ "Implementations must be safe for concurrent use"."""

        async def use(history: History) -> None:
            names = [f"r{number}" for number in range(20)]
            async with anyio.create_task_group() as tasks:
                for name in names:
                    tasks.start_soon(_append, history, name)
            found = await history.read("s")
            assert sorted(each.id for each in found) == sorted(each.id for name in names for each in run(name))
            for start in range(0, len(found), len(run("x"))):
                name = found[start].id.removesuffix("-user")
                assert found[start : start + len(run("x"))] == run(name)

        self._use(tmp_path, use)

    def test_a_cancelled_append_is_whole_or_not_there(self, tmp_path: Path) -> None:
        async def use(history: History) -> None:
            await history.append("s", *run("a"))
            with anyio.CancelScope() as scope:
                scope.cancel()
                await history.append("s", *run("b"))
            assert await history.read("s") in (run("a"), (*run("a"), *run("b")))
            await history.append("s", *run("c"))
            assert (await history.read("s"))[-len(run("c")) :] == run("c")

        self._use(tmp_path, use)

    def test_what_was_appended_or_read_may_be_changed_without_changing_the_history(self, tmp_path: Path) -> None:
        async def use(history: History) -> None:
            given = run("a")
            await history.append("s", *given)
            _spoil(given)
            assert await history.read("s") == run("a")
            _spoil(await history.read("s"))
            assert await history.read("s") == run("a")

        self._use(tmp_path, use)

    def test_a_long_conversation_is_kept_whole(self, tmp_path: Path) -> None:
        async def use(history: History) -> None:
            long = tuple(message(f"m{number}", "x" * 1000) for number in range(1000))
            await history.append("s", *long, message("big", "🙂" * 500_000))
            found = await history.read("s")
            assert found[:-1] == long
            assert len(found[-1].content) == 500_000

        self._use(tmp_path, use)

    def test_a_second_one_at_the_same_place_has_the_same_messages(self, tmp_path: Path) -> None:
        if not self.durable:
            return

        async def use(history: History) -> None:
            await history.append("s", *run("a"))
            other = self.make_history(tmp_path)
            assert await other.read("s") == run("a")
            await other.append("s", *run("b"))
            assert await history.read("s") == (*run("a"), *run("b"))

        self._use(tmp_path, use)


async def _append(history: History, name: str) -> None:
    await history.append("s", *run(name))


def _spoil(messages: tuple[ChatMessage, ...]) -> None:
    for each in messages:
        for call in each.tool_calls:
            if call.arguments is not None:
                call.arguments["path"] = "another"
                call.arguments["deep"][0]["n"] = 0
