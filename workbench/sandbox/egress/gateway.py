"""What one command may reach: its proxy, its brokers, and every connection through them, until it ends.

Each allowance has listeners of its own inside, so that its rules, its limits and its events are its own, too. (Whatever
runs in the sandbox at the same time can connect to them all the same: a sandbox is one network.)
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import ssl
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from operator import attrgetter

import anyio
import h11
from anyio.abc import ByteStream, SocketListener, SocketStream, TaskGroup

from workbench.protocol.egress import EgressEvent
from workbench.sandbox import frames
from workbench.sandbox.egress import proxy
from workbench.sandbox.egress.attempt import ALLOWED, FAILED, LIMITED, Account, Attempt, EgressLog
from workbench.sandbox.egress.broker import Broker
from workbench.sandbox.egress.options import Egress
from workbench.sandbox.egress.permission import Permission
from workbench.sandbox.egress.relay import BROKEN, READ_SIZE, HttpRefusal, Side, read_request
from workbench.sandbox.targets import EGRESS_TARGET

MOST_CONNECTIONS = 256
"""At once, in one sandbox. Each takes two descriptors, of which a process has 1,024 unless it's told otherwise."""

PROXY, SECRET = "proxy", "secret"

_HEAD_SECONDS = 30.0
_LINGER_SECONDS = 2.0
_ACCEPT_RETRY_SECONDS = 0.05
_EVENTS_KEPT = 300
_PROXY_VARIABLES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")
_NO_PROXY_VARIABLES = ("no_proxy", "NO_PROXY")
_NO_PROXY = "localhost,127.0.0.1"

Accept = Callable[[ByteStream], None]
Handler = Callable[[Side, h11.Request, Attempt], Awaitable[None]]
Listen = Callable[[str, Accept], AbstractAsyncContextManager[int]]
"""Has the supervisor listen on a port inside, and yields it.

It's told where it finds our Unix socket, or nothing; connections that it can't take there are handed to an `Accept`.
Raises SandboxError.
"""


@dataclass(frozen=True, slots=True)
class SocketDirectory:
    """The directory that the sandbox has read-only, and the user that its commands are."""

    path: str
    uid: int

    @asynccontextmanager
    async def listener(self) -> AsyncIterator[tuple[SocketListener, str]]:
        """A Unix socket in it, and its path inside. Raises OSError."""
        name = secrets.token_hex(8)
        directory = os.open(self.path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            bound.setblocking(False)
            # Through the descriptor: an overlay's path may be longer than a socket's address.
            bound.bind(f"/proc/self/fd/{directory}/{name}")
            os.chmod(name, 0o600, dir_fd=directory)
            if self.uid != os.geteuid() == 0:
                os.chown(name, self.uid, -1, dir_fd=directory)
            bound.listen(MOST_CONNECTIONS)
            async with await SocketListener.from_socket(bound) as listener:
                yield listener, f"{EGRESS_TARGET}/{name}"
        finally:
            os.unlink(name, dir_fd=directory)
            os.close(directory)


class Allowance:
    """An `Egress` in force."""

    def __init__(
        self,
        egress: Egress,
        log: EgressLog,
        room: anyio.Semaphore,
        *,
        remembered: tuple[str, ...] = (),
        ask: Callable[[str], None] | None = None,
        remember: Callable[[str], None] | None = None,
    ) -> None:
        """Args:
        egress: what is allowed, checked.
        log: where every attempt is written down.
        remembered: further rules, that were answers before.
        ask: puts a question, as `Permission` has it.
        remember: hears of an answer for always.
        """
        self._egress = egress
        self._log = log
        self._account = Account(egress.max_host_bytes)
        self._room = room
        self._brokers: dict[int, Broker] = {}
        self._ended = anyio.Event()
        self.permission = Permission(
            (*egress.allow_hosts, *remembered), ask=ask if egress.ask else None, remember=remember
        )
        self.events: list[EgressEvent] = []
        """The first that ended, in that order."""
        self.omitted_events = 0

    def content(self) -> frames.Json:
        """What is told of it: its events so far, in the order in which they began."""
        events = sorted(self.events, key=attrgetter("began_ns"))
        return {"events": [event.model_dump() for event in events], "omitted": self.omitted_events}

    def end(self) -> None:
        """Close everything; `serve` then returns."""
        self._ended.set()

    async def serve(
        self, listen: Listen, directory: SocketDirectory | None, ready: Callable[[dict[str, str]], object]
    ) -> None:
        """Serve until `end`, with every connection then cut and written down.

        Args:
            listen: has the supervisor listen.
            directory: for sockets of ours, where the sandbox has one.
            ready: hears of the environment variables that lead commands here, once they do.

        Raises SandboxError, OSError where that can't be.
        """
        environment = {}
        async with anyio.create_task_group() as group:
            if self._egress.allow_hosts or self._egress.ask:
                port = await group.start(self._listen, listen, directory, PROXY, self._through_proxy)
                environment.update(dict.fromkeys(_PROXY_VARIABLES, f"http://127.0.0.1:{port}"))
                environment.update(dict.fromkeys(_NO_PROXY_VARIABLES, _NO_PROXY))
                environment["NODE_USE_ENV_PROXY"] = "1"
            trust = ssl.create_default_context() if self._egress.secrets else None
            for secret in self._egress.secrets:
                assert trust is not None
                broker = Broker(secret, trust)
                port = await group.start(self._listen, listen, directory, SECRET, self._through(broker))
                environment[secret.variable] = f"http://127.0.0.1:{port}"
                self._brokers[port] = broker
            ready(environment)
            await self._ended.wait()
            group.cancel_scope.cancel()

    async def _through_proxy(self, client: Side, request: h11.Request, attempt: Attempt) -> None:
        if request.method != b"CONNECT":
            # Some programs take their own loopback through the proxy, whatever `no_proxy` says.
            host, port, target = proxy.absolute(request)
            if str(host) in _NO_PROXY.split(",") and port in self._brokers:
                attempt.kind = SECRET
                own = h11.Request(method=request.method, target=target, headers=request.headers.raw_items())
                await self._brokers[port].pass_on(client, own, self._account, attempt)
                return
        await proxy.pass_on(client, request, self.permission, self._account, attempt)

    def _through(self, broker: Broker) -> Handler:
        async def handle(client: Side, request: h11.Request, attempt: Attempt) -> None:
            await broker.pass_on(client, request, self._account, attempt)

        return handle

    async def _listen(
        self,
        listen: Listen,
        directory: SocketDirectory | None,
        kind: str,
        handler: Handler,
        *,
        task_status: anyio.abc.TaskStatus[int] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        async with anyio.create_task_group() as group:

            def accept(stream: ByteStream) -> None:
                group.start_soon(self._admit, stream, kind, handler)

            if directory is None:
                async with listen("", accept) as port:
                    task_status.started(port)
                    await anyio.sleep_forever()
            else:
                async with directory.listener() as (listener, inside), listen(inside, accept) as port:
                    task_status.started(port)
                    await self._accept(listener, kind, handler, group)

    async def _accept(self, listener: SocketListener, kind: str, handler: Handler, group: TaskGroup) -> None:
        while True:
            # Those beyond wait in the kernel's queue.
            await self._room.acquire()
            try:
                stream: SocketStream = await listener.accept()
            except OSError as error:
                self._room.release()
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                await anyio.sleep(_ACCEPT_RETRY_SECONDS)
            except BaseException:
                self._room.release()
                raise
            else:
                group.start_soon(self._serve, stream, kind, handler)

    async def _admit(self, stream: ByteStream, kind: str, handler: Handler) -> None:
        await self._room.acquire()
        await self._serve(stream, kind, handler)

    async def _serve(self, stream: ByteStream, kind: str, handler: Handler) -> None:
        """One connection, from its head to its end; gives its room back."""
        attempt = Attempt(kind)
        client = Side(stream, h11.SERVER)
        began = False
        try:
            async with stream:
                with anyio.move_on_after(_HEAD_SECONDS):
                    try:
                        request = await read_request(client)
                        began = True
                    except HttpRefusal as refusal:
                        began = True
                        await self._refuse(client, attempt, refusal)
                if attempt.reason or not began:
                    await _linger(stream)
                    return
                try:
                    await handler(client, request, attempt)
                except HttpRefusal as refusal:
                    await self._refuse(client, attempt, refusal)
                await _linger(stream)
        except (h11.ProtocolError, *BROKEN) as error:
            if began and not attempt.reason:
                attempt.verdict, attempt.reason = FAILED, f"the connection broke off: {type(error).__name__}"
        except Exception as error:  # noqa: BLE001  whatever it is, it ends one connection and not the sandbox
            attempt.verdict, attempt.reason = FAILED, "a fault of workbench's; keeper.log says more"
            traceback.print_exception(error, file=sys.stderr)
        finally:
            self._room.release()
            if began:
                self._note(attempt)

    async def _refuse(self, client: Side, attempt: Attempt, refusal: HttpRefusal) -> None:
        if attempt.verdict != LIMITED:
            attempt.reason = refusal.reason
            if attempt.verdict == ALLOWED:
                attempt.verdict = FAILED
        await client.answer(refusal.status, attempt.reason)

    def _note(self, attempt: Attempt) -> None:
        if attempt.verdict == FAILED and not attempt.reason:
            attempt.reason = "the command was over before the host had answered"
        event = attempt.event()
        self._log.add(event)
        if len(self.events) < _EVENTS_KEPT:
            self.events.append(event)
        else:
            self.omitted_events += 1


async def _linger(stream: ByteStream) -> None:
    """Say that nothing more comes, and read on for a while: a close with something unread would take our answer along."""
    await stream.send_eof()
    with anyio.move_on_after(_LINGER_SECONDS):
        try:
            while True:
                await stream.receive(READ_SIZE)
        except BROKEN:
            return
