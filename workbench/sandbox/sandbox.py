"""What a sandbox is to whoever uses one: somewhere to run commands over an overlay, whatever it is made of.

`workbench.testing.SandboxContract` says what every one of them has to keep.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Protocol

from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox.job import Job, OutputCallback

if TYPE_CHECKING:
    from workbench.sandbox.facts import Counters, FileFacts, JobFacts


class Sandbox(Protocol):
    """A sandbox that was started, until `stop`; several tasks may use it at once.

    Once it's gone everything raises SandboxError (sandbox_lost). Paths are relative to a mount's root, strings as of
    `os.fsdecode`.
    """

    async def run(
        self,
        command: Command,
        *,
        stdin: AsyncIterator[bytes] | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> CommandResult:
        """Run a command to its end. Raises CommandError where it never ran, OptionsError."""
        ...

    async def spawn(self, command: Command) -> Job:
        """Have a command started, to be fed, signalled and waited for. Raises OptionsError."""
        ...

    async def read_file(self, path: str, *, mount: int = 0, offset: int = 0, length: int = 0) -> bytes:
        """A regular file's content as commands see it, through no symlink. Raises OSError."""
        ...

    async def write_file(self, path: str, data: bytes, *, mount: int = 0, mode: int | None = None) -> FileFacts:
        """Put a file in place, whole or not at all. Raises OSError."""
        ...

    async def stat(self, path: str, *, mount: int = 0) -> FileFacts:
        """An entry's metadata as commands see it, of a symlink itself. Raises OSError."""
        ...

    def freeze(self) -> AbstractAsyncContextManager[bool]:
        """Stop every process for as long as the block lasts; the upper layer is complete and stands still.

        Yields whether a file may change without a trace in its times. Raises SandboxError (sandbox_failed).
        """
        ...

    async def counters(self) -> Counters:
        """What the kernel counted so far."""
        ...

    async def stop(self, *, force: bool = False, reason: str = "stop") -> tuple[JobFacts, ...]:
        """End every command and the sandbox; which were ended.

        Nothing is mounted then, and the upper layer complete. Without `force` raises SandboxError (sandbox_busy) where a
        command has a terminal.
        """
        ...
