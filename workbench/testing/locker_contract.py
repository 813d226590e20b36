"""What every locker has to keep: subclass `LockerContract` beside your locker's tests."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import ClassVar

import anyio
from anyio.lowlevel import checkpoint

from workbench.agent.locks import Locker
from workbench.testing.conversations import SESSION_IDS

_SECONDS = 60


class LockerContract:
    """The promises of `workbench.agent.locks.Locker`, as tests.

    A subclass has `make_locker`, and says by `shared` whether a second one at the same place excludes the first. Each test
    gets a place of its own, and runs under `backend`::

        class TestMine(LockerContract):
            def make_locker(self, place):
                return MyLocker(place)
    """

    backend: ClassVar[str] = "asyncio"
    shared: ClassVar[bool] = True

    def make_locker(self, place: Path) -> Locker:
        """A locker at a place, an empty directory at first; called in the event loop."""
        raise NotImplementedError

    def _use(self, place: Path, use: Callable[[Locker], Awaitable[None]]) -> None:
        async def main() -> None:
            with anyio.fail_after(_SECONDS):
                await use(self.make_locker(place))

        anyio.run(main, backend=self.backend)

    def test_one_at_a_time_holds_a_session_and_each_gets_its_turn(self, tmp_path: Path) -> None:
        """ "Lock(ctx, sessionID) (unlock func(), error)": without it, runs "can interleave a transcript"."""

        async def use(locker: Locker) -> None:
            inside: list[int] = []
            done: list[int] = []

            async def hold(number: int) -> None:
                for _ in range(3):
                    async with locker.lock("s"):
                        inside.append(number)
                        for _ in range(3):
                            await checkpoint()
                            assert inside == [number]
                        inside.clear()
                done.append(number)

            async with anyio.create_task_group() as tasks:
                for number in range(10):
                    tasks.start_soon(hold, number)
            assert sorted(done) == list(range(10))

        self._use(tmp_path, use)

    def test_sessions_do_not_wait_for_each_other(self, tmp_path: Path) -> None:
        async def use(locker: Locker) -> None:
            async with AsyncExitStack() as stack:
                for id in SESSION_IDS:
                    await stack.enter_async_context(locker.lock(id))

        self._use(tmp_path, use)

    def test_a_held_session_waits(self, tmp_path: Path) -> None:
        async def use(locker: Locker) -> None:
            async with locker.lock("s"):
                assert await _is_held(locker)
            await _take(locker)

        self._use(tmp_path, use)

    def test_an_exception_lets_go(self, tmp_path: Path) -> None:
        async def use(locker: Locker) -> None:
            try:
                async with locker.lock("s"):
                    raise ZeroDivisionError
            except ZeroDivisionError:
                pass
            await _take(locker)

        self._use(tmp_path, use)

    def test_a_cancelled_holder_lets_go(self, tmp_path: Path) -> None:
        async def use(locker: Locker) -> None:
            async with anyio.create_task_group() as tasks:
                held = anyio.Event()

                async def hold() -> None:
                    async with locker.lock("s"):
                        held.set()
                        await anyio.sleep_forever()

                tasks.start_soon(hold)
                await held.wait()
                tasks.cancel_scope.cancel()
            await _take(locker)

        self._use(tmp_path, use)

    def test_a_cancelled_wait_leaves_the_lock_to_the_others(self, tmp_path: Path) -> None:
        """ "A lock that cannot be acquired before ctx ends fails the run", and that alone."""

        async def use(locker: Locker) -> None:
            got = anyio.Event()

            async def wait() -> None:
                async with locker.lock("s"):
                    got.set()

            async with anyio.create_task_group() as others:
                async with locker.lock("s"):
                    for _ in range(3):
                        assert await _is_held(locker)
                    others.start_soon(wait)
                    assert await _is_held(locker)
                await got.wait()
            await _take(locker)

        self._use(tmp_path, use)

    def test_a_second_one_at_the_same_place_excludes_the_first(self, tmp_path: Path) -> None:
        if not self.shared:
            return

        async def use(locker: Locker) -> None:
            other = self.make_locker(tmp_path)
            async with locker.lock("s"):
                assert await _is_held(other)
                async with other.lock("another"):
                    pass
            async with other.lock("s"):
                assert await _is_held(locker)
            await _take(locker)

        self._use(tmp_path, use)


async def _is_held(locker: Locker) -> bool:
    """Whether another task that tries for a moment can't have the lock."""
    had = False

    async def try_it() -> None:
        nonlocal had
        with anyio.move_on_after(0.1):
            async with locker.lock("s"):
                had = True

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(try_it)
    return not had


async def _take(locker: Locker) -> None:
    """Have the lock, however long that takes."""
    async with locker.lock("s"):
        pass
