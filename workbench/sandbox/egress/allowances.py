"""The allowances of a keeper's clients: each lives as long as the client that asked, and what that left in the background.

So what was allowed to one command is closed to the next one, without a new sandbox.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Protocol

import anyio
from anyio.abc import TaskGroup

from workbench.errors import OptionsError, SandboxError
from workbench.sandbox import frames
from workbench.sandbox.egress.attempt import EgressLog
from workbench.sandbox.egress.gateway import MOST_CONNECTIONS, Accept, Allowance, SocketDirectory
from workbench.sandbox.egress.options import Egress
from workbench.sandbox.egress.tunnel import TunnelStream
from workbench.vfs.session import OverlayDirectory

Receiver = Callable[[bytes, bytes], None]
"""Takes each frame of an exchange: its kind and its payload."""


class Supervisor(Protocol):
    """What the keeper offers of the supervisor."""

    def begin(self, kind: bytes, payload: bytes, receiver: Receiver) -> int:
        """Ask something; `receiver` takes whatever comes back. Returns the exchange's id."""
        ...

    def tell(self, kind: bytes, number: int, payload: bytes) -> None:
        """Send a further frame of an exchange."""
        ...


class Peer(Protocol):
    """A client of the keeper."""

    def send(self, data: bytes) -> None:
        """Send whole frames; nothing where the client is gone."""
        ...


@dataclass(slots=True, eq=False)
class _Held:
    allowance: Allowance
    client: Peer | None
    number: int
    jobs: set[int] = field(default_factory=set)


class Allowances:
    """All that are in force in one sandbox."""

    def __init__(
        self, supervisor: Supervisor, overlay: OverlayDirectory, directory: SocketDirectory | None, group: TaskGroup
    ) -> None:
        """`directory` is where the sandbox finds our sockets, None where it has none; `group` runs what is served."""
        self._supervisor = supervisor
        self._overlay = overlay
        self._directory = directory
        self._group = group
        self._log = EgressLog(overlay.path)
        self._room = anyio.Semaphore(MOST_CONNECTIONS)
        self._held: list[_Held] = []
        self._tunnels = 0

    def allow(self, client: Peer, number: int, content: frames.Json) -> None:
        """Bring what a client asks for into force, under the id of its exchange.

        Raises ValueError, KeyError, TypeError where the request is malformed.
        """
        try:
            egress = Egress.of(content)
        except OptionsError as error:
            client.send(frames.encode_json(frames.FAILED, number, frames.failure_content(error)))
            return

        def tell(line: frames.Json) -> None:
            client.send(frames.encode(frames.STDOUT, number, json.dumps(line).encode() + b"\n"))

        remembered = self._overlay.record().allowed_hosts if egress.ask else ()
        allowance = Allowance(
            egress,
            self._log,
            self._room,
            remembered=remembered,
            ask=lambda place: tell({"ask": place}),
            remember=self._remember,
        )
        held = _Held(allowance, client, number)
        self._held.append(held)
        self._group.start_soon(self._serve, held, lambda variables: tell({"environment": variables}))

    def follow_up(self, client: Peer, number: int, kind: bytes, payload: bytes) -> bool:
        """Take a further frame of a client's; False where it's about no allowance. Raises SandboxError as `parse`."""
        held = self._find(client, number)
        if held is None:
            return False
        if kind == frames.KILL and held.jobs:
            client.send(frames.encode_json(frames.RESULT, number, held.allowance.content()))
            self._let_go(held)
        elif kind == frames.KILL:
            held.allowance.end()
        elif kind == frames.DATA:
            content = frames.parse(payload)
            held.allowance.permission.answer(frames.text(content, "place", 300), frames.text(content, "answer", 10))
        return True

    def job_stays(self, client: Peer, job: int) -> None:
        """A client started a command that goes on without it."""
        for held in self._held:
            if held.client is client:
                held.jobs.add(job)

    def job_ended(self, job: int) -> None:
        """A command is over."""
        for held in self._held:
            held.jobs.discard(job)
            if held.client is None and not held.jobs:
                held.allowance.end()

    def client_went(self, client: Peer) -> None:
        """A client is gone; what it started in the background may still run."""
        for held in self._held:
            if held.client is client:
                self._let_go(held)

    def _let_go(self, held: _Held) -> None:
        held.client = None
        held.allowance.permission.stop_asking()
        if not held.jobs:
            held.allowance.end()

    def _find(self, client: Peer, number: int) -> _Held | None:
        return next((held for held in self._held if held.client is client and held.number == number), None)

    def _remember(self, place: str) -> None:
        record = self._overlay.record()
        if place not in record.allowed_hosts:
            self._overlay.save(record.model_copy(update={"allowed_hosts": (*record.allowed_hosts, place)}))

    async def _serve(self, held: _Held, ready: Callable[[dict[str, str]], object]) -> None:
        failure: BaseException | None = None
        try:
            await held.allowance.serve(self._listen, self._directory, ready)
        except (SandboxError, OSError, BaseExceptionGroup) as error:
            failure = _first(error)
            if not isinstance(failure, SandboxError | OSError):
                raise
        finally:
            self._held.remove(held)
        if held.client is None:
            return
        if failure is None:
            held.client.send(frames.encode_json(frames.RESULT, held.number, held.allowance.content()))
        else:
            lost = failure if isinstance(failure, SandboxError) else SandboxError(f"No way out can be made: {failure}.")
            held.client.send(frames.encode_json(frames.FAILED, held.number, frames.failure_content(lost)))

    @asynccontextmanager
    async def _listen(self, socket: str, accept: Accept) -> AsyncIterator[int]:
        heard = anyio.Event()
        port = 0
        failure = b""
        closed = False

        def receive(kind: bytes, payload: bytes) -> None:
            nonlocal port, failure
            if kind == frames.OPENED:
                if not closed:
                    self._tunnel(number, payload, accept)
                return
            if kind == frames.STDOUT:
                port = frames.number(frames.parse(payload), "port", low=1, high=65535)
            elif kind == frames.FAILED:
                failure = payload
            heard.set()

        number = self._supervisor.begin(frames.LISTEN, json.dumps({"socket": socket}).encode(), receive)
        try:
            await heard.wait()
            if not port:
                raise frames.failure(failure) if failure else frames.lost("it doesn't listen")
            yield port
        finally:
            closed = True
            self._supervisor.tell(frames.KILL, number, b"{}")

    def _tunnel(self, listening: int, payload: bytes, accept: Accept) -> None:
        if len(payload) != frames.COUNT.size or self._tunnels >= MOST_CONNECTIONS:
            raise frames.lost("it opened what it may not")
        self._tunnels += 1
        stream = TunnelStream(lambda kind, data: self._supervisor.tell(kind, number, data))

        def receive(kind: bytes, data: bytes) -> None:
            if kind in (frames.RESULT, frames.FAILED):
                self._tunnels -= 1
            stream.take(kind, data)

        content = {"listening": listening, "connection": frames.COUNT.unpack(payload)[0]}
        number = self._supervisor.begin(frames.TUNNEL, json.dumps(content).encode(), receive)
        accept(stream)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
