"""A client of a keeper: finds the warm sandbox of an overlay, or has one started.

It stands on the path of every warm command, so it imports nothing heavy; what starts a sandbox is imported then.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from workbench.errors import OptionsError, OverlayError, SandboxError
from workbench.sandbox import frames, runtime
from workbench.sandbox.connection import SupervisorConnection
from workbench.sandbox.job import AttachedJob
from workbench.sandbox.unix_stream import UnixStream

# What is only needed now and then is imported then: it would cost every command.
if TYPE_CHECKING:
    from workbench.protocol.commands import Command
    from workbench.protocol.egress import EgressEvent
    from workbench.sandbox.backend import SandboxSpec
    from workbench.sandbox.egress.options import Egress
    from workbench.sandbox.facts import JobFacts, KeeperInfo
    from workbench.vfs.overlay_lock import OverlayLock
    from workbench.vfs.session import OverlayDirectory

Report = Callable[[str], None]
Ask = Callable[[str], Awaitable[str]]
"""Puts it to somebody whether a place (`host:port`) may be reached; the answer is `yes`, `no` or `always`."""

PROTOCOL = frames.KEEPER_PROTOCOL

_GREETING_SECONDS = 10.0
_ENSURE_SECONDS = 120.0
_END_SECONDS = 20.0
_POLL_SECONDS = 0.02
_CREDENTIALS = struct.Struct("3i")


@dataclass(slots=True)
class Allowed:
    """What commands need to use an allowance, and, once it has ended, what became of it: the first of its events."""

    environment: dict[str, str] = field(default_factory=dict)
    events: tuple[EgressEvent, ...] = ()
    omitted_events: int = 0


class KeeperClient(SupervisorConnection):
    """A connection to an overlay's keeper. Commands that it started end with it; the sandbox stays."""

    def __init__(self, stream: UnixStream) -> None:
        """Use `connect`, `start` or `ensure`."""
        super().__init__(stream)
        self._socket = stream.socket
        self._greeting: frames.Json | None = None

    @classmethod
    async def connect(cls, overlay_path: str) -> KeeperClient | None:
        """Connect to the overlay's keeper; None where none answers.

        One of another version is told to end, which is waited for. Raises SandboxError (keeper_failed) where what
        listens isn't a keeper of the user's own or doesn't answer.
        """
        path = runtime.find_socket(overlay_path)
        if path is None:
            return None
        try:
            stream = await UnixStream.connect(path)
        except OSError:
            return None
        client = cls(stream)
        try:
            return await client._greet()
        except BaseException:
            await client.aclose()
            raise

    @classmethod
    async def start(
        cls,
        overlay: OverlayDirectory,
        spec: SandboxSpec,
        lock: OverlayLock,
        report: Report,
        prepare: Callable[[], Awaitable[None]] = anyio.lowlevel.checkpoint,
    ) -> KeeperClient:
        """Start a keeper, which takes over `lock` (held by the caller, who closes it), and connect to it.

        `report` hears what takes long, a sentence each. `prepare` is what has to be done before the mount, while the
        keeper's process comes up. Raises SandboxError where the sandbox can't be started, what `prepare` raises, and
        then nothing is left of it.
        """
        from workbench.sandbox.starting import log_hint, start_keeper

        await start_keeper(overlay, spec, lock.fd, report, prepare)
        client = await cls.connect(overlay.path)
        if client is None:
            raise SandboxError(
                "The sandbox ended as soon as it had started.", code="keeper_failed", hint=log_hint(overlay.path)
            )
        return client

    @classmethod
    async def ensure(cls, overlay: OverlayDirectory, spec: SandboxSpec, report: Report) -> KeeperClient:
        """Connect to the overlay's keeper, started here unless there is one or another process is just starting it.

        Raises as `start`, and OverlayError (overlay_busy) where another process has the overlay and no keeper comes up.
        """
        with anyio.move_on_after(_ENSURE_SECONDS):
            while True:
                client = await cls.connect(overlay.path)
                if client is not None:
                    return client
                try:
                    lock = overlay.take_lock()
                except OverlayError:
                    await anyio.sleep(_POLL_SECONDS)
                    continue
                try:
                    return await cls.start(overlay, spec, lock, report)
                finally:
                    lock.close()
        raise OverlayError(
            f"The overlay at {overlay.path} is in use by another process.",
            code="overlay_busy",
            hint="Wait for it to end, then try again.",
        )

    async def info(self) -> KeeperInfo:
        """What there is and what runs. Raises SandboxError (sandbox_lost)."""
        from workbench.sandbox.facts import KeeperInfo

        return KeeperInfo.of(await self._finish(await self._ask(frames.INFO)))

    # Commands in the background

    async def start_job(self, command: Command) -> str:
        """Have a command started that goes on without us, and wait until it runs; returns the id it's known by.

        The beginning and the end of its output are kept; `output_limit` says nothing here. Raises CommandError where it
        never ran, SandboxError (sandbox_busy) where too many run in the background, OptionsError, SandboxError
        (sandbox_lost).
        """
        frames.check_command(command)
        content = {**frames.command_content(command), "detached": True}
        return frames.text(await self._finish(await self._ask_json(frames.RUN, content)), "job", 64)

    async def jobs(self) -> tuple[JobFacts, ...]:
        """The commands that run, and those in the background that ended lately, oldest first. Raises SandboxError."""
        from workbench.sandbox.facts import JobFacts

        answer = await self._finish(await self._ask(frames.JOBS))
        return tuple(JobFacts.of(job) for job in frames.objects(answer, "jobs"))

    async def attach(self, job: str, *, tail: int | None = None, follow: bool = True) -> AttachedJob:
        """Read the output of a command in the background, and write to it.

        `job` is its id, or a beginning of it that no other has. `tail` is from how many lines before the end on, by
        default all that is kept. Without `follow` it's over at the end of what there is by now. An unknown one is
        SandboxError (job_not_found), which `AttachedJob.wait` raises; OptionsError for a negative tail.
        """
        if tail is not None and tail < 0:
            raise OptionsError(f"tail is {tail}, but can't be negative.")
        return AttachedJob(self, await self._ask_json(frames.ATTACH, {"job": job, "tail": tail, "follow": follow}))

    async def signal_job(self, job: str, number: int) -> None:
        """Send a signal to a command, as `Job.signal`; one that has ended gets none.

        Raises SandboxError (job_not_found, sandbox_lost), OptionsError for a number that is no signal's.
        """
        if not 1 <= number <= frames.HIGHEST_SIGNAL:
            raise OptionsError(f"{number} is no signal's number.")
        await self._finish(await self._ask_json(frames.END_JOB, {"job": job, "signal": number}))

    async def end_job(self, job: str, *, grace_ms: int = 0, reason: str = "kill") -> None:
        """End all processes of a command, as `Job.kill`, and wait for that.

        Raises SandboxError (job_not_found, sandbox_lost).
        """
        content = {"job": job, "grace_ms": grace_ms, "reason": reason}
        await self._finish(await self._ask_json(frames.END_JOB, content))

    async def stop(self, *, force: bool = False, reason: str = "stop") -> tuple[JobFacts, ...]:
        """End every command (their results say `ended_by` `reason`) and the sandbox; returns which were ended.

        When it returns nothing is mounted and the overlay's lock is free. Without `force` a command with a terminal is
        left alone: SandboxError (sandbox_busy). Raises SandboxError where the sandbox can't be removed yet; its keeper
        goes on trying and holds the lock until then.
        """
        return await self._stop({"force": force, "reason": reason})

    async def stop_if_idle(self) -> None:
        """As `stop`, but only where nothing runs and nobody else is connected: else SandboxError (sandbox_busy)."""
        await self._stop({"idle": True, "reason": "stop"})

    async def _stop(self, content: frames.Json) -> tuple[JobFacts, ...]:
        from workbench.sandbox.facts import JobFacts

        answer = await self._finish(await self._ask_json(frames.STOP, content))
        return tuple(JobFacts.of(job) for job in frames.objects(answer, "ended"))

    @asynccontextmanager
    async def allow(self, egress: Egress, ask: Ask | None = None) -> AsyncIterator[Allowed]:
        """Let what runs in the sandbox reach some of the network, for as long as the block lasts.

        Commands need the `environment` that it yields; its `events` are there after the block. `ask` is called where
        `egress` says so; without it the answer is no. What was started in the block in the background keeps what it was
        allowed, but that nobody is asked any more. Raises OptionsError, SandboxError.
        """
        allowed = Allowed()
        if not egress:
            yield allowed
            return
        egress.check()
        exchange = await self._ask_json(frames.ALLOW, egress.to_content())
        begun, over = anyio.Event(), anyio.Event()
        received = b""
        failed: Exception | None = None

        async def answer(place: str) -> None:
            content = {"place": place, "answer": await ask(place) if ask else "no"}
            await self.send(frames.encode_json(frames.DATA, exchange.number, content))

        async def take(_kind: bytes, data: bytes) -> None:
            nonlocal received
            *lines, received = (received + data).split(b"\n")
            for line in lines:
                content = frames.parse(line)
                if "ask" in content:
                    group.start_soon(answer, frames.text(content, "ask"))
                else:
                    allowed.environment = {str(name): str(value) for name, value in content["environment"].items()}
                    begun.set()

        async def follow() -> None:
            nonlocal failed
            from workbench.protocol.egress import EgressEvent

            try:
                content = await self.collect(exchange, take)
                allowed.events = tuple(map(EgressEvent.model_validate, frames.objects(content, "events")))
                allowed.omitted_events = frames.number(content, "omitted")
            except Exception as error:  # noqa: BLE001  raised again below, by itself rather than in a group
                failed = error
            begun.set()
            over.set()

        async with anyio.create_task_group() as group:
            group.start_soon(follow)
            await begun.wait()
            if failed is None:
                try:
                    yield allowed
                except Exception as error:  # noqa: BLE001  as above
                    failed = error
            if not over.is_set() and not self.lost:
                with anyio.move_on_after(_END_SECONDS):
                    await self.send(frames.encode_json(frames.KILL, exchange.number, {}))
                    await over.wait()
            group.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _greet(self) -> KeeperClient | None:
        credentials = self._socket.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        if _CREDENTIALS.unpack(credentials)[1] not in (os.geteuid(), 0):
            raise SandboxError("What listens for this overlay is another user's process.", code="keeper_failed")
        with anyio.move_on_after(_GREETING_SECONDS):
            try:
                await self.send(frames.encode_json(frames.GREET, 0, {"protocol": PROTOCOL}))
                await self._until(lambda: self._greeting is not None)
            except SandboxError:
                # It ended at that moment: there is no keeper.
                await self.aclose()
                return None
        if self._greeting is None:
            raise SandboxError(
                f"The sandbox's keeper doesn't answer for {_GREETING_SECONDS:.0f} seconds.",
                code="keeper_failed",
                hint="See what it waits for in keeper.log, beside overlay.json.",
            )
        if self._hello is not None:
            return self
        await self._stop({"drain": True, "reason": "another version"})
        await self.aclose()
        return None

    def _greeted(self, content: frames.Json) -> None:
        if content.get("protocol") == PROTOCOL:
            supervisor = content.get("supervisor")
            self._hello = supervisor if isinstance(supervisor, dict) else {}
        self._greeting = content
