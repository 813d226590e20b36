"""The keeper: one process per live sandbox, which holds the overlay's lock and owns the sandbox.

Clients talk to it over a Unix socket in the frames of `frames.py`. It passes their requests on to the supervisor under ids
of its own and the answers back, and looks at little else. Credit goes from end to end: a client that doesn't read holds up
only itself. It's between a command and its first answer, so it imports nothing heavy until it serves.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import TYPE_CHECKING

import anyio
from anyio.abc import ByteStream, TaskGroup

from workbench.errors import SandboxError, StateError, WorkbenchError
from workbench.sandbox import disk, frames, runtime
from workbench.sandbox.backend import Backend, MovableBackend, SandboxSpec
from workbench.sandbox.background import Follower
from workbench.sandbox.bootstrap import jobs_at_once
from workbench.sandbox.named_jobs import MOST_LISTED, NamedJobs
from workbench.sandbox.routes import Client, Route
from workbench.vfs.overlay_lock import OverlayLock

if TYPE_CHECKING:
    from workbench.sandbox.egress.allowances import Allowances

PROTOCOL = frames.KEEPER_PROTOCOL

_CREDENTIALS = struct.Struct("3i")
_HELLO_SECONDS = 60.0
_END_SECONDS = 15.0
_COMING_SECONDS = 30.0
"""How long whoever started the sandbox may take to come."""

_UNWATCHED_SECONDS = 0.2
"""How long after its start nobody watches the real directory: to begin that takes what the first command would."""

_KILL_GRACE_MS = 300
_CHANGING = (frames.RUN, frames.WRITE, frames.EDIT, frames.FREEZE)
"""What is answered only once the upper layer on this machine is what the sandbox's is."""

_RETRY_SECONDS = (0.5, 1.0, 2.0, 5.0)
_READ_SIZE = 256 << 10


_WRITING = (frames.RUN, frames.WRITE, frames.EDIT)
"""What may change the upper layer for as long as it's under way."""

_PASSED_ON = (frames.FREEZE, frames.WRITE, frames.READ, frames.STAT, frames.COUNTERS, frames.EDIT, frames.CONNECT)


class _Client(asyncio.Protocol):
    """One connection of a client; its requests live as long as it does."""

    def __init__(self, keeper: Keeper) -> None:
        self._keeper = keeper
        self._decoder = frames.FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self.greeted = False
        self.pid = 0
        self.routes: dict[int, int] = {}
        self.holds: dict[int, int] = {}
        self.followers: dict[int, Follower] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        credentials = transport.get_extra_info("socket").getsockopt(
            socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size
        )
        self.pid, uid, _ = _CREDENTIALS.unpack(credentials)
        if uid not in (os.geteuid(), 0):
            transport.abort()
            return
        self._keeper.client_came(self)

    def data_received(self, data: bytes) -> None:
        try:
            for kind, number, payload in self._decoder.feed(data):
                self._keeper.request(self, kind, number, payload)
        except (SandboxError, struct.error, ValueError, KeyError, TypeError, RecursionError) as error:
            _note(f"a client (process {self.pid}) broke the protocol: {error!r}")
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._keeper.client_went(self)

    def send(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class Keeper:
    """A sandbox from its mount to its unmount, and everybody who uses it."""

    def __init__(self, overlay_path: str, lock: OverlayLock, spec: SandboxSpec, backend: Backend) -> None:
        """`lock` is the overlay's, held; `backend` is one of the spec's."""
        self._overlay_path = overlay_path
        self._lock = lock
        self._spec = spec
        self._backend = backend
        self._started = time.monotonic()
        self._decoder = frames.FrameDecoder()
        self._hello: frames.Json = {}
        self._epoch_ns = 0
        self._server: asyncio.Server | None = None
        self._socket = ""
        self._clients: set[_Client] = set()
        self._routes: dict[int, Route] = {}
        self._jobs = NamedJobs(
            self._routes,
            max(1, jobs_at_once(spec) // 2),
            ask=self._ask,
            tell=self._tell_sandbox,
            finish=self._finish,
        )
        self._last = 0
        self._name = os.urandom(8).hex()
        self._writers = 0
        self._outgoing = bytearray()
        self._wake = asyncio.Event()
        self._busy = asyncio.Event()
        self._idle: asyncio.TimerHandle | None = None
        self._stopping = ""
        self._draining = False
        self._stop = asyncio.Event()
        self._quiet = asyncio.Event()
        self._stoppers: list[tuple[_Client, int]] = []
        self._ended: list[frames.Json] = []
        self._error: SandboxError | None = None
        self._unread: list[tuple[bytes, int, bytes]] = []
        self._wake_reader = asyncio.Event()
        self._group: TaskGroup | None = None
        self._allowances: Allowances | None = None

    async def run(
        self,
        report: Callable[[str], None],
        mounted: Callable[[], Awaitable[int]],
        ready: Callable[[], None],
        handed: tuple[int, ...] = (),
    ) -> None:
        """Start, serve until there's a reason to end, end.

        Args:
            report: hears what takes long while it starts.
            mounted: called once the sandbox answers; returns the mount's epoch, which it has written down.
            ready: called as soon as clients may come.
            handed: descriptors of a sandbox that runs already.

        Raises SandboxError, OptionsError, OSError where it can't start; nothing is left mounted then.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._end, "stop")
        try:
            stream = await self._begin(report, handed)
            await self._greet_sandbox(stream)
            self._epoch_ns = await mounted()
            await self._listen()
        except BaseException:
            await self._unmount()
            raise
        ready()
        async with anyio.create_task_group() as group:
            self._group = group
            group.start_soon(self._receive, stream)
            group.start_soon(self._send, stream)
            watched = disk.DiskWatch(self._backend.space, self._spec.limits.disk_bytes)
            group.start_soon(disk.watch, watched, self._busy, self._jobs)
            group.start_soon(self._read_out)
            group.start_soon(self._watch)
            self._rest(at_least=_COMING_SECONDS)
            await self._stop.wait()
            await self._end_jobs()
            group.cancel_scope.cancel()
        await self._unmount()
        self._leave()
        with anyio.move_on_after(_END_SECONDS):
            while self._clients:
                self._quiet.clear()
                await self._quiet.wait()

    # Starting

    async def _watch(self) -> None:
        """Have the real directory watched for as long as it is mounted."""
        # The first command goes first; what changes meanwhile tells by its times.
        await anyio.sleep(_UNWATCHED_SECONDS)
        command = [
            sys.executable,
            "-P",
            "-m",
            "workbench.sandbox.watch",
            self._spec.mounts[0].lower,
            self._overlay_path,
            str(self._epoch_ns),
            str(os.getpid()),
        ]
        watcher = await anyio.open_process(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=None)
        try:
            await anyio.sleep_forever()
        finally:
            with contextlib.suppress(ProcessLookupError):
                watcher.kill()
            with anyio.CancelScope(shield=True):
                await watcher.aclose()

    async def _begin(self, report: Callable[[str], None], handed: tuple[int, ...]) -> ByteStream:
        if handed:
            assert isinstance(self._backend, MovableBackend)
            return self._backend.adopt(handed)
        return await self._backend.start(report)

    @property
    def _copied(self) -> bool:
        return self._spec.sharing != "mounted"

    async def _greet_sandbox(self, stream: ByteStream) -> None:
        with anyio.move_on_after(_HELLO_SECONDS):
            while not self._hello:
                try:
                    data = await stream.receive(_READ_SIZE)
                except (anyio.EndOfStream, anyio.BrokenResourceError, OSError):
                    raise frames.lost("it ended while it started") from None
                for kind, number, payload in self._decoder.feed(data):
                    if kind == frames.FAILED and number == 0:
                        raise frames.failure(payload)
                    if kind == frames.HELLO:
                        self._hello = frames.parse(payload)
        if not self._hello:
            raise frames.lost(f"it said nothing for {_HELLO_SECONDS:.0f} seconds")
        if frames.number(self._hello, "protocol") != frames.PROTOCOL:
            raise frames.lost("its supervisor is of another version")

    async def _listen(self) -> None:
        path = runtime.socket_path(self._overlay_path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        loop = asyncio.get_running_loop()
        self._server = await loop.create_unix_server(lambda: _Client(self), path)
        self._socket = path
        runtime.publish_socket(self._overlay_path, path)

    # The supervisor's stream

    async def _receive(self, stream: ByteStream) -> None:
        try:
            while True:
                for kind, number, payload in self._decoder.feed(await stream.receive(_READ_SIZE)):
                    self._answer(kind, number, payload)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self._lose(frames.lost("it ended unexpectedly"))
        except SandboxError as error:
            self._lose(error)

    async def _send(self, stream: ByteStream) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._outgoing:
                    data, self._outgoing = bytes(self._outgoing), bytearray()
                    await stream.send(data)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            self._lose(frames.lost("it ended unexpectedly"))

    def _tell_sandbox(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        self._outgoing += frames.encode(kind, number, payload)
        self._wake.set()

    def _answer(self, kind: bytes, number: int, payload: bytes) -> None:
        """Pass on what the supervisor says. Raises SandboxError (sandbox_lost) where it breaks a rule."""
        if number == 0 and kind == frames.FAILED:
            error = frames.failure(payload)
            raise error if isinstance(error, SandboxError) else frames.lost(str(error))
        route = self._routes.get(number)
        if route is None:
            return
        if route.job is not None:
            self._jobs.answer(number, route, route.job, kind, payload)
            return
        if route.receiver is not None:
            if kind in (frames.RESULT, frames.FAILED):
                self._finish(number, route)
            route.receiver(kind, payload)
            return
        if kind in (frames.STDOUT, frames.STDERR):
            route.outstanding += len(payload)
            if route.outstanding > frames.WINDOW:
                raise frames.lost("it sent more than it was allowed to")
        elif kind == frames.CREDIT:
            route.input_credit += frames.COUNT.unpack(payload)[0] if len(payload) == frames.COUNT.size else 0
        elif kind in (frames.RESULT, frames.FAILED):
            if self._copied and route.kind in _CHANGING and self._error is None:
                self._unread.append((kind, number, payload))
                self._wake_reader.set()
                return
            self._pass_on(kind, number, payload)
            return
        elif kind != frames.INPUT_CLOSED:
            return
        if route.client is not None:
            route.client.send(frames.encode(kind, route.number, payload))

    async def _read_out(self) -> None:
        """Have the upper layer read out before anybody hears that a command has ended, or that all of them are held."""
        assert self._backend is not None
        while True:
            await self._wake_reader.wait()
            self._wake_reader.clear()
            # Whoever holds them looks at the layer: it stays as it is meanwhile.
            while self._unread and (self._stopping or not self._is_held()):
                ends = next((i + 1 for i, (_, n, _) in enumerate(self._unread) if self._is_hold(n)), len(self._unread))
                told, self._unread = self._unread[:ends], self._unread[ends:]
                try:
                    await self._backend.read_out(whole=any(_is_mapped(kind, payload) for kind, _, payload in told))
                except (SandboxError, OSError) as error:
                    self._lose(error if isinstance(error, SandboxError) else frames.lost(str(error)))
                for kind, number, payload in told:
                    self._pass_on(kind, number, payload)

    def _is_hold(self, number: int) -> bool:
        return number in self._routes and self._routes[number].kind == frames.FREEZE

    def _is_held(self) -> bool:
        return any(hold not in self._routes for client in self._clients for hold in client.holds.values())

    def _pass_on(self, kind: bytes, number: int, payload: bytes) -> None:
        route = self._routes.get(number)
        if route is not None:
            self._finish(number, route)
            if route.answered is not None:
                route.answered(kind, payload)
            if route.client is not None:
                route.client.send(frames.encode(kind, route.number, payload))

    def _finish(self, number: int, route: Route) -> None:
        del self._routes[number]
        if route.client is not None:
            route.client.routes.pop(route.number, None)
        for client, asked in route.enders:
            client.send(frames.encode_json(frames.RESULT, asked, {}))
        if route.kind == frames.RUN and self._allowances is not None:
            self._allowances.job_ended(number)
        self._rest()

    def _lose(self, error: SandboxError) -> None:
        """The sandbox is gone: everybody is told, and nothing can be asked any more."""
        if self._error is None:
            self._error = error
            _note(f"{error.code}: {error.message}")
        payload = json.dumps(frames.failure_content(self._error)).encode()
        for number in list(self._routes):
            self._answer(frames.FAILED, number, payload)
        self._end("lost")

    # Clients

    def client_came(self, client: _Client) -> None:
        """A connection of an allowed user was made."""
        self._clients.add(client)
        self._rest()

    def client_went(self, client: _Client) -> None:
        """A connection ended: what it had asked for ends, too, and what it froze goes on."""
        self._clients.discard(client)
        for number in client.routes.values():
            route = self._routes[number]
            route.client = None
            if route.kind in (frames.RUN, frames.WRITE, frames.READ, frames.CONNECT):
                self._jobs.kill(number, "cancel", grace_ms=0, discard=True)
        client.routes.clear()
        for follower in client.followers.values():
            follower.job.followers.discard(follower)
        client.followers.clear()
        for number in client.holds.values():
            self._ask(frames.THAW, frames.COUNT.pack(number))
        client.holds.clear()
        self._wake_reader.set()
        if self._allowances is not None:
            self._allowances.client_went(client)
        self._rest()
        if not self._clients:
            self._quiet.set()

    def request(self, client: _Client, kind: bytes, number: int, payload: bytes) -> None:
        """Do, or pass on, what a client asks. Raises SandboxError, ValueError, … where that is malformed."""
        if kind == frames.GREET:
            client.greeted = frames.parse(payload).get("protocol") == PROTOCOL
            hello = {"protocol": PROTOCOL, "supervisor": self._hello, "written": self._written()}
            client.send(frames.encode_json(frames.HELLO, 0, hello))
        elif kind == frames.STOP:
            self._asked_to_stop(client, number, frames.parse(payload))
        elif not client.greeted:
            raise frames.lost("no greeting")
        elif number in client.followers:
            self._jobs.follow_up(client.followers[number], kind, payload)
        elif kind in (frames.DATA, frames.CREDIT, frames.SIGNAL, frames.RESIZE, frames.KILL, frames.DETACH):
            self._follow_up(client, kind, number, payload)
        elif number in client.routes:
            raise frames.lost(f"id {number} is in use")
        elif kind in (frames.ATTACH, frames.END_JOB):
            self._jobs.request(client, kind, number, frames.parse(payload))
        elif kind == frames.INFO:
            client.send(frames.encode_json(frames.RESULT, number, self._info()))
        elif self._error is not None or self._stopping or (self._draining and kind == frames.RUN):
            error = self._error or SandboxError("The sandbox is being stopped.", code="sandbox_busy")
            client.send(frames.encode_json(frames.FAILED, number, frames.failure_content(error)))
        elif kind == frames.ALLOW:
            self._allow(client, number, frames.parse(payload))
        elif kind == frames.THAW:
            hold = client.holds.pop(frames.COUNT.unpack(payload)[0])
            self._wake_reader.set()
            self._ask(kind, frames.COUNT.pack(hold), client, number)
        elif kind == frames.JOBS:
            self._jobs.list(client, number)
        elif kind == frames.RUN:
            self._jobs.run(client, number, payload)
            self._busy.set()
            asked = client.routes.get(number, 0)
            if self._allowances is not None and asked and self._routes[asked].job is not None:
                self._allowances.job_stays(client, asked)
        elif kind in _PASSED_ON:
            asked = self._ask(kind, payload, client, number)
            if kind == frames.FREEZE:
                client.holds[number] = asked
        else:
            raise frames.lost(f"a request {kind!r} that there isn't")

    def _follow_up(self, client: _Client, kind: bytes, number: int, payload: bytes) -> None:
        if self._allowances is not None and self._allowances.follow_up(client, number, kind, payload):
            return
        asked = client.routes.get(number)
        if asked is None or kind == frames.DETACH:
            return
        route = self._routes[asked]
        if route.job is not None:
            # It's still to begin, and then it's nobody's: there is only its end to be asked for.
            if kind == frames.KILL:
                self._tell_sandbox(kind, asked, payload)
            return
        if kind == frames.CREDIT:
            route.outstanding -= frames.COUNT.unpack(payload)[0]
        elif kind == frames.DATA:
            # The supervisor ends everything where this is exceeded; only this client shall.
            route.input_credit -= len(payload)
            if route.input_credit < 0:
                raise frames.lost("more input than was granted")
        elif kind == frames.KILL:
            content = frames.parse(payload)
            frames.number(content, "grace_ms")
            frames.number(content, "signal", 1, low=1, high=frames.HIGHEST_SIGNAL)
        elif kind == frames.SIGNAL:
            frames.number({"signal": int.from_bytes(payload)}, "signal", low=1, high=frames.HIGHEST_SIGNAL)
        elif len(payload) != frames.SIZE.size:
            raise frames.lost("no size of a terminal")
        self._tell_sandbox(kind, asked, payload)

    # The way out

    def _allow(self, client: _Client, number: int, content: frames.Json) -> None:
        from workbench.sandbox.egress.allowances import Allowances
        from workbench.sandbox.egress.gateway import SocketDirectory
        from workbench.vfs.session import OverlayDirectory

        assert self._group is not None
        if self._allowances is None:
            path = self._spec.egress_path
            directory = SocketDirectory(path, self._spec.uid) if path else None
            overlay = OverlayDirectory.open(self._overlay_path)
            self._allowances = Allowances(self, overlay, directory, self._group)
        self._allowances.allow(client, number, content)

    def begin(self, kind: bytes, payload: bytes, receiver: Callable[[bytes, bytes], None]) -> int:
        """Ask the supervisor something for ourselves; `receiver` takes whatever comes back. Returns the exchange's id."""
        asked = self._ask(kind, payload)
        self._routes[asked].receiver = receiver
        return asked

    def tell(self, kind: bytes, number: int, payload: bytes) -> None:
        """Send the supervisor a further frame of such an exchange, unless it's over."""
        if number in self._routes:
            self._tell_sandbox(kind, number, payload)

    def _written(self) -> str:
        """What stays the same for as long as nothing writes to the upper layer; empty while something may."""
        busy = any(route.kind in _WRITING for route in self._routes.values())
        return "" if busy else f"{self._name}-{self._writers}"

    def _ask(self, kind: bytes, payload: bytes, client: Client | None = None, number: int = 0) -> int:
        """Start an exchange with the supervisor, for a client or for ourselves; returns its id there."""
        while self._last == 0 or self._last in self._routes:
            self._last = (self._last + 1) & 0xFFFFFFFF
        asked, self._last = self._last, (self._last + 1) & 0xFFFFFFFF
        self._writers += kind in _WRITING
        self._routes[asked] = Route(kind, client, number)
        if client is not None:
            client.routes[number] = asked
        self._rest()
        self._tell_sandbox(kind, asked, payload)
        return asked

    def _info(self) -> frames.Json:
        now = time.monotonic()
        return {
            "protocol": PROTOCOL,
            "pid": os.getpid(),
            "backend": self._backend.kind,
            "name": self._backend.name,
            "image": self._spec.image,
            "runtime": self._spec.runtime,
            "targets": [mount.target for mount in self._spec.mounts],
            "limits": asdict(self._spec.limits),
            "uptime_ms": int((now - self._started) * 1000),
            "clients": len(self._clients),
            "jobs": [route.describe() for route in self._jobs.running().values()][:MOST_LISTED],
        }

    # Ending

    def _rest(self, at_least: float = 0) -> None:
        """Count down to the end while there is nobody and nothing."""
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
        if self._draining and not self._jobs.running():
            self._end("stop")
        if not self._clients and not self._routes and not self._stopping:
            seconds = max(self._spec.idle_seconds, at_least)
            self._idle = asyncio.get_running_loop().call_later(seconds, self._end, "idle")

    def _asked_to_stop(self, client: _Client, number: int, content: frames.Json) -> None:
        if content.get("idle") and not self._stopping and (self._routes or len(self._clients) > 1):
            error = SandboxError(
                "Something runs in the sandbox, or somebody is just about to.",
                code="sandbox_busy",
                hint="Wait for its end, or end it: `workbench ps` lists what runs.",
            )
            client.send(frames.encode_json(frames.FAILED, number, frames.failure_content(error)))
            return
        shells = [route for route in self._jobs.running().values() if route.tty and route.is_attached]
        if shells and not content.get("force") and not content.get("drain") and not self._stopping:
            error = SandboxError(
                "A command with a terminal, such as a shell, runs in the sandbox.",
                code="sandbox_busy",
                hint="Leave it first, or say --stop.",
            )
            client.send(frames.encode_json(frames.FAILED, number, frames.failure_content(error)))
            return
        self._stoppers.append((client, number))
        if content.get("drain"):
            self._draining = True
            self._rest()
        else:
            self._end(str(content.get("reason") or "stop"))

    def _end(self, reason: str) -> None:
        if self._stopping:
            return
        self._stopping = reason
        self._wake_reader.set()
        # From here on whoever comes finds no keeper, and waits for the lock.
        if self._server is not None:
            self._server.close()
        runtime.forget_socket(self._overlay_path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._socket)
        # Nobody else makes it while we hold the lock; it isn't empty where somebody left something there.
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self._socket))
        self._stop.set()

    async def _end_jobs(self) -> None:
        """End every command, say to whom and why, and note which there were."""
        for number, route in self._jobs.running().items():
            self._ended.append({**route.describe(), "ended_by": self._stopping})
            self._jobs.kill(number, self._stopping, grace_ms=_KILL_GRACE_MS, discard=False)
        deadline = time.monotonic() + _END_SECONDS
        while self._jobs.running() and self._error is None and time.monotonic() < deadline:
            await asyncio.sleep(0.002)
        if self._error is None and self._jobs.running():
            self._lose(frames.lost("its commands didn't end"))

    async def _unmount(self) -> None:
        """Have the backend remove everything, however long the engine can't be reached; until then the lock is held."""
        # What is needed to write that down takes as long to import as a sandbox to end.
        threading.Thread(target=importlib.import_module, args=("workbench.vfs.session",), daemon=True).start()
        for attempt in range(sys.maxsize):
            try:
                await self._backend.stop()
                break
            except WorkbenchError as error:
                _note(f"{error.code}: {error.message}")
                told = SandboxError(error.message, code=error.code, hint=error.hint)
                self._tell_stoppers(frames.FAILED, frames.failure_content(told))
                if error.code == "disk_full":
                    # Nothing here is mounted then: what is in the engine's copies, the next one reads out.
                    return
            await asyncio.sleep(_RETRY_SECONDS[min(attempt, len(_RETRY_SECONDS) - 1)])
        # Where this can't be written down, who takes the lock next asks the engine once more.
        with contextlib.suppress(StateError, OSError):
            self._note_unmounted()

    def _note_unmounted(self) -> None:
        from workbench.vfs.session import OverlayDirectory

        overlay = OverlayDirectory.open(self._overlay_path)
        record = overlay.record()
        mounts = tuple(
            mount.model_copy(update={"live": False}) if mount.name == self._backend.name else mount
            for mount in record.mounts
        )
        overlay.save(record.model_copy(update={"mounts": mounts}))

    def _leave(self) -> None:
        """Free the lock, and only then say that it's done."""
        self._lock.close()
        self._tell_stoppers(frames.RESULT, {"ended": self._ended[:MOST_LISTED]})
        for client in list(self._clients):
            client.close()

    def _tell_stoppers(self, kind: bytes, content: frames.Json) -> None:
        stoppers, self._stoppers = self._stoppers, []
        for client, number in stoppers:
            client.send(frames.encode_json(kind, number, content))


def _note(line: str) -> None:
    """Write to the log, where there is room for it."""
    with contextlib.suppress(OSError):
        print(line, file=sys.stderr, flush=True)


def _is_mapped(kind: bytes, payload: bytes) -> bool:
    # Then a file may have changed without a trace in its times.
    return kind == frames.RESULT and frames.parse(payload).get("mapped") is True
