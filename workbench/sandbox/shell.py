"""A shell that stays: what one script sets, the next one finds."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio

from workbench.errors import OptionsError, SandboxError
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import frames
from workbench.sandbox.bootstrap import Program
from workbench.sandbox.connection import SupervisorConnection
from workbench.sandbox.job import Job, OutputCallback

_SHELLS = ("bash", "sh")
_GRACE_MS = 1000
_END_SECONDS = 20.0
_SAID_LIMIT = 4096


class Kept:
    """The first and the last half of `limit` bytes of what comes, and how much lies between."""

    def __init__(self, limit: int) -> None:
        self._head_limit = limit - limit // 2
        self._tail_limit = limit // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._gone = 0

    def add(self, data: bytes) -> None:
        """Take more of it."""
        left = self._head_limit - len(self._head)
        self._head += data[:left]
        self._tail += data[left:]
        if len(self._tail) > 2 * self._tail_limit + frames.CHUNK:
            self._trim()

    def _trim(self) -> None:
        excess = len(self._tail) - self._tail_limit
        if excess > 0:
            self._gone += excess
            del self._tail[:excess]

    def end(self) -> tuple[bytes, int]:
        """What was kept, and how many bytes of it weren't."""
        self._trim()
        return bytes(self._head + self._tail), self._gone


class ShellSession:
    """A shell in the sandbox, whose directory, variables and functions live from one `run` to the next.

    `exit`, `exec`, a failure under `set -e`, a time limit and a cancellation end it, and nothing else that a script holds:
    then `alive` is False, and another one can be opened.
    """

    def __init__(self, connection: SupervisorConnection, job: Job) -> None:
        """Use `open`."""
        self._connection = connection
        self._job = job
        self._decoder = frames.FrameDecoder()
        self._number = 0
        self._busy = anyio.Lock()
        self._said = b""
        self.alive = True
        """Whether it can run another script."""

    @classmethod
    async def open(
        cls,
        connection: SupervisorConnection,
        *,
        cwd: str = "",
        environment: dict[str, str] | None = None,
        shell: str = "",
    ) -> ShellSession:
        """Start one: `shell` by its name, else bash, or sh where there is none. Raises as `SupervisorConnection.spawn`."""
        driver = Program(Path(__file__).with_name("shell_driver.py").read_bytes())
        argv = driver.loader((shell,) if shell else _SHELLS, {})
        command = Command(tuple(argv), cwd=cwd, environment=environment or {}, stdin=True, label="shell session")
        session = cls(connection, await connection.spawn(command))
        await session._job.send_input(driver.sent)
        return session

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """End it with everything it started."""
        self.alive = False
        with anyio.move_on_after(_END_SECONDS, shield=True), contextlib.suppress(SandboxError):
            await self._job.kill("close", discard=True)
            while await self._job.receive() is not None:
                pass

    async def run(
        self,
        script: str,
        *,
        timeout_ms: int = 0,
        output_limit: int = 1 << 20,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> CommandResult:
        """Run a script to its end; one at a time, others wait.

        Its standard input is empty. `output_limit` bounds what is kept of each stream, as with a `Command`. What it leaves
        in the background goes on, and its output comes with that of the next script. Peak memory isn't measured.

        Args:
            script: of any number of lines; without NUL characters.
            timeout_ms: ends the shell, with all it started; 0 is never.
            output_limit: in bytes.
            on_stdout: hears output as it comes.
            on_stderr: as `on_stdout`.

        Returns how it went; where it ended the shell, with the shell's exit code. Raises SandboxError (shell_ended) where
        the shell had ended before, SandboxError (sandbox_lost), OptionsError, and what a callback raises.
        """
        try:
            text = frames.portable(script).encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise OptionsError("The script holds characters that no command can be made of.") from error
        if b"\0" in text or len(text) > frames.MAX_PAYLOAD:
            raise OptionsError(f"A script is at most {frames.MAX_PAYLOAD} bytes long, and none of them NUL.")
        if not 0 < output_limit <= frames.MAX_OUTPUT_LIMIT:
            raise OptionsError(f"output_limit is {output_limit}, but has to be from 1 to {frames.MAX_OUTPUT_LIMIT}.")
        async with self._busy:
            if not self.alive:
                raise self._ended()
            kept = (Kept(output_limit), Kept(output_limit))
            try:
                return await self._run(text, timeout_ms, kept, (on_stdout, on_stderr))
            except SandboxError as error:
                await self.aclose()
                if error.code != "sandbox_lost" or self._connection.lost:
                    raise
                # Whatever has taken over the driver, it's only this session's.
                raise self._ended("it answers with what makes no sense") from error
            except BaseException:
                await self.aclose()
                raise

    async def _run(
        self,
        text: bytes,
        timeout_ms: int,
        kept: tuple[Kept, Kept],
        callbacks: tuple[OutputCallback | None, OutputCallback | None],
    ) -> CommandResult:
        self._number += 1
        since = time.monotonic()
        content: frames.Json | None = None
        timed_out = False
        with anyio.move_on_after(timeout_ms / 1000 if timeout_ms else None) as limit:
            if await self._job.send_input(frames.encode(frames.RUN, self._number, text)):
                content = await self._listen(kept, callbacks)
        if limit.cancelled_caught:
            timed_out, self.alive = True, False
            await self._job.kill("timeout", grace_ms=_GRACE_MS)
        if content is None:
            content = await self._listen(kept, callbacks)
        content.setdefault("duration_ms", int((time.monotonic() - since) * 1000))
        (stdout, gone), (stderr, more_gone) = (one.end() for one in kept)
        content = {**content, "omitted": [gone, more_gone], "timed_out": timed_out}
        return frames.command_result(content, stdout, stderr)

    async def _listen(
        self, kept: tuple[Kept, Kept], callbacks: tuple[OutputCallback | None, OutputCallback | None]
    ) -> frames.Json:
        """Take what comes until the script has ended, or the shell."""
        while (chunk := await self._job.receive()) is not None:
            if chunk[0] == frames.STDERR:
                # The driver's own: it says there why it can't go on.
                self._said = (self._said + chunk[1])[-_SAID_LIMIT:]
                continue
            content: frames.Json | None = None
            for kind, number, payload in self._decoder.feed(chunk[1]):
                if kind in (frames.STDOUT, frames.STDERR):
                    index = 0 if kind == frames.STDOUT else 1
                    kept[index].add(payload)
                    callback = callbacks[index]
                    result = callback(payload) if callback is not None else None
                    if isinstance(result, Awaitable):
                        await result
                elif kind == frames.INPUT_CLOSED:
                    self.alive = False
                    content = frames.parse(payload)
                elif kind == frames.RESULT and number == self._number:
                    content = frames.parse(payload)
            if content is not None:
                return content
        self.alive = False
        content = self._job.answer()
        if self._said:
            raise self._ended()
        return content

    def _ended(self, why: str = "") -> SandboxError:
        lines = self._said.decode("utf-8", "backslashreplace").strip().splitlines()
        why = why or (ascii(lines[-1])[1:-1] if lines else "")
        return SandboxError(
            f"The shell session broke: {why}." if why else "The shell of this session has ended.",
            code="shell_ended",
            hint="Open another one; what it had set is gone, what it wrote stays.",
        )
