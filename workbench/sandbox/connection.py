"""The host's end of a supervisor's stream: many commands and file requests at once, over one connection.

There is no background task: of all that wait for an answer one reads, for all of them. So a connection can be made,
used and closed anywhere, and cancelling whoever reads only passes the reading on.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Self

import anyio
from anyio.abc import ByteStream

from workbench.errors import SandboxError
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import frames
from workbench.sandbox.exchange import Exchange
from workbench.sandbox.job import Job, OutputCallback

# What is only needed now and then is imported then: it would cost every command.
if TYPE_CHECKING:
    from workbench.sandbox.facts import Counters, FileFacts, Hello

_READ_SIZE = 256 << 10
_SEND_SECONDS = 30.0
_END_SECONDS = 20.0


class SupervisorConnection:
    """Requests to one supervisor. Several tasks may use it at once; closing the stream ends everything inside."""

    def __init__(self, stream: ByteStream) -> None:
        """`stream` is what a backend's `start` returned; its `receive` has to survive being cancelled."""
        self._stream = stream
        self._decoder = frames.FrameDecoder()
        self._exchanges: dict[int, Exchange] = {}
        self._last = 0
        self._hello: frames.Json | None = None
        self._error: SandboxError | None = None
        self._reading = False
        self._progress = anyio.Event()
        self._unsent = bytearray()
        self._sending = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the stream; what still waits gets SandboxError (sandbox_lost)."""
        self._lose(frames.lost("the connection was closed"))
        with anyio.CancelScope(shield=True):
            await self._stream.aclose()

    @property
    def lost(self) -> bool:
        """Whether nothing can be asked any more."""
        return self._error is not None

    async def hello(self) -> Hello:
        """What the supervisor said of itself first. Raises SandboxError (sandbox_failed, sandbox_lost)."""
        await self._until(lambda: self._hello is not None)
        from workbench.sandbox.facts import Hello

        return Hello.of(self._hello or {})

    # Commands

    async def spawn(self, command: Command) -> Job:
        """Have a command started; `Job.wait` says how it went. Raises OptionsError, SandboxError (sandbox_lost)."""
        frames.check_command(command)
        exchange = await self._ask_json(frames.RUN, frames.command_content(command))
        return Job(self, command, exchange)

    async def run(
        self,
        command: Command,
        *,
        stdin: AsyncIterator[bytes] | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> CommandResult:
        """Run a command to its end: `spawn` and `Job.wait`, which see."""
        job = await self.spawn(command)
        return await job.wait(stdin=stdin, on_stdout=on_stdout, on_stderr=on_stderr)

    @asynccontextmanager
    async def freeze(self) -> AsyncIterator[bool]:
        """Stop every process inside for as long as the block lasts; new commands wait.

        Yields whether one of them shares a file's pages for writing (mmap(2)): it may go on to change the file without
        a trace in the file's times. Raises SandboxError (sandbox_failed) where one can't be stopped, SandboxError
        (sandbox_lost).
        """
        held = await self._ask(frames.FREEZE)
        try:
            try:
                answer = await self._finish(held)
            except SandboxError as error:
                if error.code == "sandbox_failed":
                    error.hint = "End it with `workbench stop`, or wait until it has ended, then try again."
                raise
            yield frames.flag(answer, "mapped")
        finally:
            if not self.lost and held.failure is None:
                with anyio.move_on_after(_END_SECONDS, shield=True):
                    await self._finish(await self._ask(frames.THAW, frames.COUNT.pack(held.number)))

    # Files and facts. Paths are relative to a mount's root, strings as of os.fsdecode.

    async def read_file(self, path: str, *, mount: int = 0, offset: int = 0, length: int = 0) -> bytes:
        """The content of a regular file, `length` bytes of it from `offset` (0: all).

        Raises OSError as opening it without following any symlink does, SandboxError (sandbox_lost).
        """
        content = {"mount": mount, "path": frames.portable(path), "offset": offset, "length": length}
        exchange = await self._ask_json(frames.READ, content)
        data = bytearray()

        async def take(kind: bytes, piece: bytes) -> None:
            data.extend(piece)
            if length and len(data) > length:
                raise frames.lost("it sent more than it was asked for")

        await self.collect(exchange, take, path)
        return bytes(data)

    async def write_file(
        self, path: str, data: bytes, *, mount: int = 0, mode: int | None = None, exclusive: bool = False
    ) -> FileFacts:
        """Put a file in place, whole or not at all (but not fsynced); its directory has to exist.

        `mode` None keeps that of a file that is there. No symlink is followed: one in the file's place is replaced.
        `exclusive` replaces nothing: FileExistsError. Raises OSError, SandboxError (sandbox_lost).
        """
        content = {"mount": mount, "path": frames.portable(path), "mode": mode, "exclusive": exclusive}
        return await self._write(content, path, data)

    async def append_file(self, path: str, data: bytes, *, mount: int = 0) -> FileFacts:
        """Add to the end of a file, made where there is none. Raises OSError, ELOOP on a symlink; SandboxError."""
        return await self._write({"mount": mount, "path": frames.portable(path), "append": True}, path, data)

    async def _write(self, content: frames.Json, path: str, data: bytes) -> FileFacts:
        exchange = await self._ask_json(frames.WRITE, content)
        try:
            if await self.send_data(exchange, data):
                await self.send(frames.encode(frames.DATA, exchange.number))
            answer = await self._finish(exchange, path)
        except BaseException:
            if not exchange.over and not self.lost:
                with anyio.move_on_after(_END_SECONDS, shield=True):
                    await self.send(frames.encode_json(frames.KILL, exchange.number, {}))
            raise
        return _file_facts(answer)

    async def stat(self, path: str, *, mount: int = 0) -> FileFacts:
        """An entry's metadata as the sandbox sees it, of a symlink itself. Raises OSError, SandboxError."""
        exchange = await self._ask_json(frames.STAT, {"mount": mount, "path": frames.portable(path)})
        return _file_facts(await self._finish(exchange, path))

    async def edit(
        self, call: str, path: str, *, target: str = "", mount: int = 0, mode: int | None = None, **details: int
    ) -> None:
        """Make one change by the system call of that name: mkdir, rmdir, unlink, symlink, rename, link, chmod, utime.

        `target` is where a rename or a link leads to (in the same mount), or a symlink's own. `details` are `exclusive` of
        a rename, `atime_ns` and `mtime_ns`. No symlink is followed. Raises OSError, SandboxError (sandbox_lost).
        """
        content = {"mount": mount, "path": frames.portable(path), "call": call, "target": frames.portable(target)}
        exchange = await self._ask_json(frames.EDIT, {**content, "mode": mode, **details})
        await self._finish(exchange, path)

    async def counters(self) -> Counters:
        """What the kernel counted so far. Raises SandboxError (sandbox_lost)."""
        from workbench.sandbox.facts import Counters

        return Counters.of(await self._finish(await self._ask(frames.COUNTERS)))

    async def open_port(self, port: int) -> Exchange:
        """Connect to a port that something inside listens on, at its loopback address.

        What comes from there is the exchange's output, what goes there its input; an OSError is its answer where nothing
        listens. Raises SandboxError (sandbox_lost).
        """
        return await self._ask_json(frames.CONNECT, {"port": port})

    async def until_lost(self) -> None:
        """Wait until the sandbox is gone: always raises SandboxError (sandbox_lost)."""
        await self._until(lambda: False)

    # Exchanges

    async def collect(
        self, exchange: Exchange, take: Callable[[bytes, bytes], Awaitable[None]], path: str = ""
    ) -> frames.Json:
        """Hand output to `take` as it comes, and return the answer's content.

        `path` is what an OSError names. Raises what a FAILED frame stands for, what `take` raises, SandboxError.
        """
        while (chunk := await self.next_chunk(exchange)) is not None:
            await take(*chunk)
        return exchange.content(path)

    async def next_chunk(self, exchange: Exchange) -> tuple[bytes, bytes] | None:
        """Wait for output of an exchange; None where its answer has come instead. Raises SandboxError (sandbox_lost)."""
        # For what was taken before: whoever comes again is done with it.
        if credit := exchange.credit():
            await self.send(credit)
        await self._until(lambda: bool(exchange.chunks) or exchange.over)
        if not exchange.chunks:
            return None
        kind, data = exchange.chunks.popleft()
        exchange.taken(len(data))
        return kind, bytes(data)

    async def send_data(self, exchange: Exchange, data: bytes) -> bool:
        """Send input of an exchange as it's granted; False where it's over or takes no more. Raises SandboxError."""
        view = memoryview(data)
        while view:
            await self._until(lambda: exchange.input_credit > 0 or exchange.input_closed or exchange.over)
            if exchange.input_closed or exchange.over:
                return False
            piece = view[: min(frames.CHUNK, exchange.input_credit)]
            exchange.input_credit -= len(piece)
            await self.send(frames.encode(frames.DATA, exchange.number, bytes(piece)))
            view = view[len(piece) :]
        return not exchange.over

    async def send(self, data: bytes) -> None:
        """Send whole frames; whoever is already sending takes them along. Raises SandboxError (sandbox_lost)."""
        if self._error is not None:
            raise self._error
        self._unsent += data
        if self._sending:
            return
        self._sending = True
        try:
            while self._unsent:
                unsent, self._unsent = bytes(self._unsent), bytearray()
                # A frame that is cut by a cancellation would be the last one that makes sense.
                with anyio.move_on_after(_SEND_SECONDS, shield=True) as scope:
                    await self._stream.send(unsent)
                if scope.cancelled_caught:
                    raise self._lose(frames.lost("it doesn't read any more"))
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise self._lose(frames.lost("its stream has ended")) from None
        finally:
            self._sending = False

    async def _ask_json(self, kind: bytes, content: frames.Json) -> Exchange:
        return await self._ask(kind, json.dumps(content).encode())

    async def _ask(self, kind: bytes, payload: bytes = b"") -> Exchange:
        while self._last == 0 or self._last in self._exchanges:
            self._last = (self._last + 1) & 0xFFFFFFFF
        exchange = Exchange(self._last)
        self._last = (self._last + 1) & 0xFFFFFFFF
        request = frames.encode(kind, exchange.number, payload)
        self._exchanges[exchange.number] = exchange
        await self.send(request)
        return exchange

    async def _finish(self, exchange: Exchange, path: str = "") -> frames.Json:
        async def drop(kind: bytes, data: bytes) -> None:
            pass

        return await self.collect(exchange, drop, path)

    # Reading

    async def _until(self, ready: Callable[[], bool]) -> None:
        """Wait until `ready`; reads, unless another task already does."""
        while not ready():
            if self._error is not None:
                raise self._error
            if self._reading:
                await self._progress.wait()
                continue
            self._reading = True
            try:
                await self._read()
            finally:
                self._reading = False
                progress, self._progress = self._progress, anyio.Event()
                progress.set()

    async def _read(self) -> None:
        try:
            data = await self._stream.receive(_READ_SIZE)
            for kind, number, payload in self._decoder.feed(data):
                self._dispatch(kind, number, payload)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self._lose(frames.lost("its stream has ended"))
        except SandboxError as error:
            self._lose(error)

    def _dispatch(self, kind: bytes, number: int, payload: bytes) -> None:
        if number == 0:
            if kind == frames.HELLO and self._hello is None:
                self._greeted(frames.parse(payload))
            elif kind == frames.FAILED:
                error = frames.failure(payload)
                raise error if isinstance(error, SandboxError) else frames.lost(str(error))
            return
        exchange = self._exchanges.get(number)
        if exchange is None:
            return
        exchange.receive(kind, payload)
        if exchange.over:
            del self._exchanges[number]

    def _greeted(self, content: frames.Json) -> None:
        version = frames.number(content, "protocol")
        if version != frames.PROTOCOL:
            raise frames.lost(f"it speaks version {version} of the protocol")
        self._hello = content

    def _lose(self, error: SandboxError) -> SandboxError:
        if self._error is None:
            self._error = error
        progress, self._progress = self._progress, anyio.Event()
        progress.set()
        return self._error


def _file_facts(content: frames.Json) -> FileFacts:
    from workbench.sandbox.facts import FileFacts

    return FileFacts.of(content)
