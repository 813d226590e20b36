"""A command that runs in a sandbox, as seen from this end of the connection."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from signal import SIGTERM
from typing import TYPE_CHECKING

import anyio

from workbench.errors import SandboxError
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import frames

if TYPE_CHECKING:
    from workbench.sandbox.connection import SupervisorConnection
    from workbench.sandbox.exchange import Exchange

OutputCallback = Callable[[bytes], object]
"""Takes output as it comes. It may be a coroutine function; while it isn't done, the command waits."""

_END_SECONDS = 20.0


class RunningCommand:
    """A command that runs, as seen by whoever started it or is attached to it."""

    def __init__(self, connection: SupervisorConnection, exchange: Exchange) -> None:
        self._connection = connection
        self._exchange = exchange

    async def signal(self, number: int) -> None:
        """Send a signal to the foreground group of its terminal, or to its own process group where it has none."""
        await self._connection.send(frames.encode(frames.SIGNAL, self._exchange.number, bytes([number])))

    async def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size."""
        payload = frames.SIZE.pack(rows & 0xFFFF, columns & 0xFFFF)
        await self._connection.send(frames.encode(frames.RESIZE, self._exchange.number, payload))

    async def kill(self, reason: str = "", *, grace_ms: int = 0, discard: bool = False, first: int = SIGTERM) -> None:
        """End all of its processes; its result says `ended_by` `reason`.

        With `grace_ms` they get a signal `first`. `discard` drops what it wrote and wasn't read yet.
        """
        content = {"grace_ms": grace_ms, "discard": discard, "reason": reason, "signal": int(first)}
        await self._connection.send(frames.encode_json(frames.KILL, self._exchange.number, content))

    async def send_input(self, data: bytes) -> bool:
        """Write to its standard input, waiting until it takes that; False where it reads no more.

        Raises SandboxError (sandbox_lost).
        """
        return await self._connection.send_data(self._exchange, data)

    async def end_input(self) -> None:
        """Close its standard input (in a terminal: type ^D)."""
        await self._connection.send(frames.encode(frames.DATA, self._exchange.number))

    async def receive(self) -> tuple[bytes, bytes] | None:
        """The next output, with the kind of frame it came in; None once there is an answer. Raises SandboxError."""
        return await self._connection.next_chunk(self._exchange)

    def answer(self) -> frames.Json:
        """What its answer says, once `receive` has returned None. Raises CommandError, SandboxError where it says so."""
        return self._exchange.content()

    async def _collect(
        self, stdin: AsyncIterator[bytes] | None, take: Callable[[bytes, bytes], Awaitable[None]]
    ) -> frames.Json:
        """Feed it `stdin`, hand its output to `take`, and return what its answer says; in any case see to its end."""
        try:
            if stdin is None:
                return await self._connection.collect(self._exchange, take)
            return await self._feed_and_collect(stdin, take)
        except BaseException:
            await self._abandon()
            raise

    async def _feed_and_collect(
        self, stdin: AsyncIterator[bytes], take: Callable[[bytes, bytes], Awaitable[None]]
    ) -> frames.Json:
        # What fails is carried out of the task group by hand: callers await one command, not a group of errors.
        content: frames.Json | None = None
        failed: Exception | None = None

        async def feed() -> None:
            nonlocal failed
            try:
                async for data in stdin:
                    if not await self.send_input(data):
                        return
                await self.end_input()
            except Exception as error:  # noqa: BLE001  raised again below
                failed = failed or error
                group.cancel_scope.cancel()
            finally:
                if isinstance(stdin, AsyncGenerator):
                    with anyio.CancelScope(shield=True):
                        await stdin.aclose()

        async with anyio.create_task_group() as group:
            group.start_soon(feed)
            try:
                content = await self._connection.collect(self._exchange, take)
            except Exception as error:  # noqa: BLE001  raised again below
                failed = failed or error
            group.cancel_scope.cancel()
        if content is not None:
            return content
        raise failed or frames.lost("its answer never came")

    async def _abandon(self) -> None:
        """Nobody waits for it any more."""
        raise NotImplementedError


class Job(RunningCommand):
    """A command that was started, until `wait` has returned."""

    def __init__(self, connection: SupervisorConnection, command: Command, exchange: Exchange) -> None:
        super().__init__(connection, exchange)
        self._command = command

    async def wait(
        self,
        *,
        stdin: AsyncIterator[bytes] | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> CommandResult:
        """Wait until it and everything that it started has ended, feeding it `stdin` meanwhile.

        With an `output_limit` the result has what was kept of the output; the callbacks get that, too. A generator given
        as `stdin` is closed in the end. Cancelling ends the command and waits until it's gone. Raises CommandError where
        it never ran, SandboxError (sandbox_lost), and what `stdin` or a callback raises, once the command was ended.
        """
        kept = (bytearray(), bytearray())
        callbacks = (on_stdout, on_stderr)

        async def take(kind: bytes, data: bytes) -> None:
            index = 0 if kind == frames.STDOUT else 1
            if self._command.output_limit:
                kept[index].extend(data)
                if len(kept[index]) > self._command.output_limit:
                    raise frames.lost("it sent more than it was asked for")
            await _call(callbacks[index], data)

        content = await self._collect(stdin, take)
        return frames.command_result(content, bytes(kept[0]), bytes(kept[1]))

    async def _abandon(self) -> None:
        """End a command that nobody waits for any more, and see it end."""
        if self._exchange.over or self._connection.lost:
            return

        async def drop(kind: bytes, data: bytes) -> None:
            pass

        with anyio.move_on_after(_END_SECONDS, shield=True):
            try:
                await self.kill("cancel", discard=True)
                await self._connection.collect(self._exchange, drop)
            except (SandboxError, OSError):
                # It's gone, or never was: that was the aim. What made us abandon it is being raised.
                return


class AttachedJob(RunningCommand):
    """A command in the background, as seen by somebody who is attached to it; it goes on without them."""

    async def detach(self) -> None:
        """Let go of it, which ends `wait`. Raises SandboxError (sandbox_lost)."""
        await self._connection.send(frames.encode(frames.DETACH, self._exchange.number))

    async def wait(
        self,
        *,
        stdin: AsyncIterator[bytes] | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        on_left_out: Callable[[int], object] | None = None,
    ) -> CommandResult | None:
        """Wait until it has ended, handing on its output and feeding it `stdin` meanwhile; its output isn't in the result.

        None where it runs on: after `detach`, or without `follow` at the end of what there is. `on_left_out` hears how
        many bytes aren't kept at that point of the output; the result counts them, too. Cancelling detaches. Raises
        SandboxError (job_not_found, sandbox_lost), and what `stdin` or a callback raises.
        """

        async def take(kind: bytes, data: bytes) -> None:
            if kind != frames.LEFT_OUT:
                await _call(on_stdout if kind == frames.STDOUT else on_stderr, data)
            elif len(data) != frames.LONG_COUNT.size:
                raise frames.lost("it sent a malformed frame")
            elif on_left_out is not None:
                on_left_out(frames.LONG_COUNT.unpack(data)[0])

        content = await self._collect(stdin, take)
        return None if frames.flag(content, "left") else frames.command_result(content, b"", b"")

    async def _abandon(self) -> None:
        if not self._exchange.over and not self._connection.lost:
            with anyio.move_on_after(_END_SECONDS, shield=True), contextlib.suppress(SandboxError):
                await self.detach()


async def _call(callback: OutputCallback | None, data: bytes) -> None:
    if callback is not None:
        result = callback(data)
        if isinstance(result, Awaitable):
            await result
