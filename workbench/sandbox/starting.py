"""Starting a keeper, by whoever wants a sandbox and holds the overlay's lock.

The keeper's process comes up while the overlay is made ready and, where it can be handed over, its sandbox starts: an
interpreter and its imports take as long as a container. What overlay.json says of the mount is written here, before
and after, since the keeper needn't import for that what reads records.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict

import anyio
from anyio import to_thread
from anyio.abc import Process

from workbench.errors import SandboxError
from workbench.protocol.records import MountRecord
from workbench.sandbox import frames, runtime
from workbench.sandbox.backend import Backend, MovableBackend, SandboxSpec
from workbench.sandbox.backends import make_backend
from workbench.sandbox.keeper_process import ADOPTS, STARTS
from workbench.sandbox.leftovers import boot_id
from workbench.vfs.session import OverlayDirectory

_LOG_LIMIT = 1 << 20
_LOG_SHOWN = 2000

Report = Callable[[str], None]


async def start_keeper(
    overlay: OverlayDirectory, spec: SandboxSpec, lock_fd: int, report: Report, prepare: Callable[[], Awaitable[None]]
) -> None:
    """Start a keeper and its sandbox, and wait until it serves.

    Args:
        overlay: the overlay to mount.
        spec: what to start over it.
        lock_fd: the overlay's lock, held; the keeper takes it over.
        report: hears what takes long, a sentence each.
        prepare: what has to be done before anything is mounted.

    Raises SandboxError, OptionsError, OSError where it can't be started, and what `prepare` raises; nothing is left then
    but what can't be removed, which overlay.json names.
    """
    backend = make_backend(spec)
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            movable = isinstance(backend, MovableBackend) and spec.sharing == "mounted"
            process = await _spawn(overlay, lock_fd, theirs, ADOPTS if movable else STARTS)
        async with process:
            try:
                await prepare()
                await _Start(overlay, spec, backend, report, ours).run()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    # Whoever hears that it failed finds the overlay free.
                    with contextlib.suppress(OSError):
                        ours.shutdown(socket.SHUT_WR)
                    while await _received(ours):
                        pass
                raise


class _Start:
    """One start: what goes back and forth between the keeper and whoever started it."""

    def __init__(
        self, overlay: OverlayDirectory, spec: SandboxSpec, backend: Backend, report: Report, keeper: socket.socket
    ) -> None:
        self._overlay = overlay
        self._spec = spec
        self._backend = backend
        self._report = report
        self._keeper = keeper
        self._said = b""
        copied = spec.sharing != "mounted"
        self._mount = MountRecord(name=backend.name, backend=backend.kind, boot_id=boot_id(), copied=copied)

    async def run(self) -> None:
        if self._spec.egress_path:
            _empty_directory(self._spec.egress_path)
        # No command tells what it writes.
        self._overlay.dirty.forget()
        await self._record(self._mount)
        # What the sandbox sees of a copy is what stood there when it was copied.
        epoch_ns = self._overlay.tick() if self._mount.copied else 0
        handed: tuple[int, ...] = ()
        if isinstance(self._backend, MovableBackend) and not self._mount.copied:
            handed = await self._start(self._backend)
        content = {"spec": asdict(self._spec), "name": self._backend.name}
        try:
            # One that has died says so below, by its silence.
            self._tell(content, handed)
        finally:
            for descriptor in handed:
                os.close(descriptor)
        while answer := await self._answer():
            if "report" in answer:
                self._report(answer["report"])
            elif "error" in answer:
                # Nothing is left mounted, and nothing was ever touched.
                await self._record(None)
                raise frames.failure(json.dumps(answer["error"]).encode(), self._overlay.path)
            elif "hello" in answer:
                epoch_ns = epoch_ns or await to_thread.run_sync(self._overlay.tick)
                offset = time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                told = {"epoch_ns": epoch_ns, "clock_offset_ns": offset}
                await self._record(self._mount.model_copy(update=told))
                self._tell({"epoch_ns": epoch_ns})
            else:
                return
        raise SandboxError(
            f"The sandbox's keeper ended before it was ready: {_log_end(self._overlay.path)}",
            code="keeper_failed",
            hint=log_hint(self._overlay.path),
        )

    async def _start(self, backend: MovableBackend) -> tuple[int, ...]:
        """Start the sandbox here; returns the descriptors by which another process has it."""
        try:
            await backend.start(self._report)
        except BaseException as error:
            # Where something of it stays, who takes the lock next has to know.
            if not (isinstance(error, SandboxError) and error.code == "sandbox_lost"):
                with anyio.CancelScope(shield=True):
                    await self._record(None)
            raise
        return backend.hand_over()

    async def _record(self, mount: MountRecord | None) -> None:
        """Set what overlay.json says of our mount; None forgets it."""

        def save() -> None:
            record = self._overlay.record()
            others = tuple(other for other in record.mounts if other.name != self._mount.name)
            self._overlay.save(record.model_copy(update={"mounts": (*others, mount) if mount else others}))

        await to_thread.run_sync(save)

    def _tell(self, content: frames.Json, descriptors: tuple[int, ...] = ()) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            socket.send_fds(self._keeper, [json.dumps(content).encode() + b"\n"], descriptors)

    async def _answer(self) -> frames.Json:
        """What the keeper says next; empty where it has ended."""
        while b"\n" not in self._said:
            if not (data := await _received(self._keeper)):
                return {}
            self._said += data
        line, _, self._said = self._said.partition(b"\n")
        return frames.parse(line)


async def _spawn(overlay: OverlayDirectory, lock_fd: int, control: socket.socket, how: str) -> Process:
    log = _open_log(overlay.path)
    try:
        # Detached in itself: this ends as soon as the keeper proper has been forked.
        return await anyio.open_process(
            [
                sys.executable,
                "-P",
                "-m",
                "workbench.sandbox.keeper_process",
                overlay.path,
                str(lock_fd),
                str(control.fileno()),
                how,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            cwd="/",
            env=_environment(),
            start_new_session=True,
            pass_fds=(lock_fd, control.fileno()),
        )
    finally:
        os.close(log)


def _empty_directory(path: str) -> None:
    """Make the directory of egress sockets, without what a killed keeper left there. Raises OSError."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path)
    # Whoever the commands are, inside; outside it lies in a directory that is closed to others.
    os.chmod(path, 0o711)
    for name in os.listdir(path):
        os.unlink(os.path.join(path, name))


async def _received(control: socket.socket) -> bytes:
    """What came, empty at the end."""
    await anyio.wait_readable(control)
    try:
        return control.recv(65536)
    except ConnectionResetError:
        return b""


def _environment() -> dict[str, str]:
    """Ours, with the directory that this package was imported from: it may not be installed."""
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    paths = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def _open_log(overlay_path: str) -> int:
    path = os.path.join(overlay_path, runtime.LOG)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if os.fstat(log).st_size > _LOG_LIMIT:
        os.ftruncate(log, 0)
    return log


def _log_end(overlay_path: str) -> str:
    with open(os.path.join(overlay_path, runtime.LOG), "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_SHOWN))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def log_hint(overlay_path: str) -> str:
    """Where to look for what a keeper said."""
    return f"{os.path.join(overlay_path, runtime.LOG)} says more."
