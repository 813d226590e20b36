"""The layers of a sandbox whose engine doesn't share our files: in volumes of its own, copied in and read out.

The overlay has the same format as ever, and the engine mounts it as ever: only its layers are directories of two ordinary
volumes. Where it can mount no overlay at all, the sandbox has a volume with what both layers are together, and the upper
layer is what that departs from the lower one by. A container beside the sandbox, which runs nothing but `copier.py`, fills
them before anything is mounted, and reads the upper layer out whenever somebody is to see it.
"""

from __future__ import annotations

import errno
import json
import os
import tarfile
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path, PurePath
from typing import Any, TypeVar

import anyio
import anyio.from_thread
import anyio.to_thread

from workbench.errors import SandboxError
from workbench.sandbox.attach import AttachStream
from workbench.sandbox.backend import OverlayMount
from workbench.sandbox.bootstrap import Program
from workbench.sandbox.engine import Engine
from workbench.sandbox.tree_packer import Packer
from workbench.sandbox.tree_size import Room
from workbench.sandbox.tree_stream import FRAME, FrameReader, FrameWriter
from workbench.sandbox.tree_unpacker import Unpacker
from workbench.vfs import marks, syscalls
from workbench.vfs.local import LocalStorage

T = TypeVar("T")

_MODULES = ("tree_size", "tree_stream", "tree_directories", "tree_packer", "tree_unpacker", "tree_departures")
_AS_MODULE = """\
import sys, types
for name, source in {modules!r}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
exec(compile({program!r}, "copier", "exec"), {{"__name__": "__main__"}})
"""

UPPER_LABEL = "workbench.upper"
"""On a volume that holds an upper layer: the layer on this machine that it is read out into."""

MERGED_LABEL = "workbench.merged"
"""On a volume that holds what both layers are together."""

_AT = "/layers"
_OPEN_FILES = 4096
_FRAME_LIMIT = 1 << 20
_READ_SIZE = 256 << 10


def program() -> str:
    """The source of `copier.py` with all that it is made of, for a Python that has nothing of ours."""
    here = Path(__file__).parent
    modules = [(f"{__package__}.{name}", (here / f"{name}.py").read_text("utf-8")) for name in _MODULES]
    return _AS_MODULE.format(modules=modules, program=(here / "copier.py").read_text("utf-8"))


class Copies:
    """The volumes of one sandbox's layers, and the container that reads and writes them."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        image: str,
        labels: dict[str, str],
        mounts: tuple[OverlayMount, ...],
        *,
        merged: bool = False,
    ) -> None:
        """Args:
        engine: where the volumes are.
        name: the backend's; theirs begin with it.
        image: one that has Python, which the container runs.
        labels: for volumes and container.
        mounts: the overlays, with their layers on this machine.
        merged: whether the engine is to have, in the place of both layers, what they are together.
        """
        self._merged = merged
        self._engine = engine
        self._name = name
        self._image = image
        self._labels = labels
        self._mounts = mounts
        self._stream: AttachStream | None = None
        self._received = bytearray()
        # What comes on the stream answers one request after the other.
        self._alone = anyio.Lock()
        self._merged_bytes = 0
        self._origins: list[dict[bytes, bytes]] = [{} for _ in mounts]

    async def fill(self, report: Callable[[str], None]) -> tuple[OverlayMount, ...]:
        """Make the volumes, and copy all layers in; the overlays, with their layers where the engine has them, if it has both.

        The lower is copied as it is at that time: whose epoch is to judge it takes that before. Raises SandboxError.
        """
        places = await anyio.to_thread.run_sync(self._make_volumes)
        await self._start()
        for number, mount in enumerate(self._mounts):
            with LocalStorage(os.fsencode(mount.lower)) as lower:
                packer = Packer(
                    lower.root_fd,
                    layer=False,
                    owner=self._owner(),
                    hollow=frozenset(lower.mount_points()),
                    found=partial(_remember, self._origins[number]),
                )
                await self._fill(
                    {"do": "fill", "tree": self._upper(number) if self._merged else self._lower(number)}, packer
                )
            if packer.unreadable:
                report(f"{packer.unreadable} files of the workspace can't be read, and are empty and closed inside")
            with LocalStorage(os.fsencode(mount.upper)) as upper:
                packer = Packer(upper.root_fd, layer=True, owner=self._owner())
                how = {"do": "merge"} if self._merged else {"do": "fill", "beside": f"{_AT}/{number}/upper/work"}
                await self._fill({**how, **self._what(number)}, packer)
        if self._merged:
            self._merged_bytes = await self.size()
            return self._mounts
        return tuple(
            OverlayMount(f"{lower}/tree", f"{upper}/tree", f"{upper}/work", mount.target)
            for mount, (lower, upper) in zip(self._mounts, places, strict=True)
        )

    async def read_out(self, *, whole: bool = False) -> None:
        """Make the upper layers on this machine what those of the sandbox are. Only for the holder of the overlay's lock.

        `whole` also reads what seems not to have changed since the last time. Raises SandboxError.
        """
        async with self._alone:
            await self._read_out(whole=whole)

    async def _read_out(self, *, whole: bool) -> None:
        if self._stream is None:
            whole = True
            await self._start()
        for number, mount in enumerate(self._mounts):
            try:
                upper = LocalStorage(os.fsencode(mount.upper))
            except FileNotFoundError:
                # Somebody removed the layer here: nobody wants what was in it.
                continue
            except OSError as error:
                raise self._lost(f"{error.strerror}, here") from error
            request = {"do": "read", "whole": whole, **self._what(number)}
            with upper:
                unpacker = Unpacker(upper.root_fd, origins=self._origins[number])
                try:
                    await self._send(_framed(request))
                    await self._in_thread(partial(self._unpack, unpacker, whole))
                except BaseException:
                    # What comes next on the stream belongs to this one: the next reads everything anew.
                    await self.stop()
                    raise

    async def room(self) -> Room:
        """What there is of the filesystem that the engine has the upper layers on. Raises SandboxError."""
        return Room(*(await self._measure(size=False))["room"])

    async def size(self) -> int:
        """What they take there, in bytes; of merged trees, by how much they have grown. Raises SandboxError."""
        return int((await self._measure(size=True))["size"]) - self._merged_bytes

    async def _measure(self, *, size: bool) -> dict[str, Any]:
        trees = [self._upper(number) for number in range(len(self._mounts))]
        async with self._alone:
            if self._stream is None:
                raise self._lost("its container has gone")
            # Else what is answered would be taken for that to the next request.
            with anyio.CancelScope(shield=True):
                await self._send(_framed({"do": "measure", "trees": trees, "size": size}))
                answer = await anyio.to_thread.run_sync(self._frame)
        found: dict[str, Any] = json.loads(answer)
        return found

    async def stop(self) -> None:
        """Let go of the container, which ends it; the volumes stay."""
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None

    # In a worker thread

    def _unpack(self, unpacker: Unpacker, whole: bool) -> None:
        try:
            unpacker.unpack(FrameReader(self._frame))
            answer = bytearray()
            while piece := self._frame():
                answer += piece
            told = json.loads(answer)
            if "incomplete" in told:
                # The sandbox never began.
                return
            for path in told["removed"]:
                unpacker.remove(bytes.fromhex(path))
            if whole:
                unpacker.remove_others()
        finally:
            unpacker.close()

    def _pack(self, packer: Packer) -> None:
        writer = FrameWriter(self._send_from_thread)
        packer.pack(writer, {})
        writer.end()
        self._frame()

    def _send_from_thread(self, data: bytes) -> None:
        anyio.from_thread.run(self._send, data)

    def _frame(self) -> bytes:
        size = FRAME.unpack(self._exactly(FRAME.size))[0]
        if size > _FRAME_LIMIT:
            raise self._lost(f"it sent a frame of {size} bytes")
        return self._exactly(size)

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            anyio.from_thread.run(self._receive)
        data = bytes(self._received[:size])
        del self._received[:size]
        return data

    # The container

    def _owner(self) -> tuple[int, int] | None:
        # In a rootless engine's user namespace the caller is 0, and nobody else is mapped to anybody who owns files.
        return (0, 0) if self._engine.rootless() else None

    def _lower(self, number: int) -> str:
        return f"{_AT}/{number}/lower/tree"

    def _upper(self, number: int) -> str:
        # The sandbox gets a volume as it is.
        return f"{_AT}/{number}/upper" if self._merged else f"{_AT}/{number}/upper/tree"

    def _what(self, number: int) -> dict[str, str]:
        base = {"base": f"{_AT}/{number}/lower/base"} if self._merged else {}
        return {"tree": self._upper(number), **base}

    def _volumes(self) -> list[tuple[str, str]]:
        numbers = range(len(self._mounts))
        return [(f"{self._name}-lower-{number}", upper_volume(self._name, number)) for number in numbers]

    def _make_volumes(self) -> list[tuple[str, str]]:
        def make(name: str, labels: dict[str, str]) -> str:
            body = {"Name": name, "Driver": "local", "Labels": {**self._labels, **labels}}
            return str(self._engine.call("POST", "/volumes/create", body=body)["Mountpoint"])

        merged = {MERGED_LABEL: "1"} if self._merged else {}
        return [
            (make(lower, {}), make(upper, {UPPER_LABEL: mount.upper, **merged}))
            for mount, (lower, upper) in zip(self._mounts, self._volumes(), strict=True)
        ]

    async def _start(self) -> None:
        source = Program(program().encode())
        await anyio.to_thread.run_sync(self._create, source)
        self._stream = await self._engine.attach(self._container)
        self._received.clear()
        await anyio.to_thread.run_sync(self._engine.call, "POST", f"/containers/{self._container}/start")
        await self._send(source.sent)

    @property
    def _container(self) -> str:
        return f"{self._name}-copier"

    def _create(self, source: Program) -> None:
        binds = []
        for number, (lower, upper) in enumerate(self._volumes()):
            binds += [f"{lower}:{_AT}/{number}/lower:rw,nocopy", f"{upper}:{_AT}/{number}/upper:rw,nocopy"]
        argv = source.loader((), {"NOFILE": _OPEN_FILES})
        body = {
            "Image": self._image,
            "User": "0:0",
            "Entrypoint": argv[:1],
            "Cmd": argv[1:],
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Labels": self._labels,
            "WorkingDir": "/",
            "Healthcheck": {"Test": ["NONE"]},
            "StopSignal": "SIGKILL",
            "Tty": False,
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": {
                "Binds": binds,
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                # Files keep their owners, and are read and written whatever their modes.
                "CapAdd": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID"],
                "SecurityOpt": ["no-new-privileges"],
                "ReadonlyRootfs": True,
                "LogConfig": {"Type": "none", "Config": {}},
                "RestartPolicy": {"Name": "no"},
                "Init": False,
                "UsernsMode": "host",
            },
        }
        # A killed keeper's may still be there.
        self._engine.remove_container(self._container)
        self._engine.call("POST", "/containers/create", {"name": self._container}, body)

    async def _fill(self, request: dict[str, Any], packer: Packer) -> None:
        await self._send(_framed(request))
        await self._in_thread(partial(self._pack, packer))

    async def _in_thread(self, function: Callable[[], None]) -> None:
        try:
            # An upper that is half written is worse than a moment's wait.
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(function)
        except (tarfile.TarError, ValueError, KeyError, EOFError) as error:
            raise self._lost(str(error)) from error
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise SandboxError(
                    "There is no room on the disk for what the sandbox has written.",
                    code="disk_full",
                    hint="Free disk space: it is still in the engine's volumes, and read out at the next command.",
                ) from error
            raise self._lost(f"{error.strerror}, here") from error

    async def _send(self, data: bytes) -> None:
        assert self._stream is not None
        await self._guarded(self._stream.send(data))

    async def _receive(self) -> None:
        assert self._stream is not None
        self._received += await self._guarded(self._stream.receive(_READ_SIZE))

    async def _guarded(self, action: Coroutine[Any, Any, T]) -> T:
        try:
            return await action
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            said = self._stream.stderr.decode("utf-8", "replace").strip() if self._stream else ""
            raise self._lost(said.splitlines()[-1] if said else "it ended without a word") from error

    def _lost(self, reason: str) -> SandboxError:
        return SandboxError(
            f"The engine's copy of the layers can't be reached: {reason}",
            code="sandbox_failed",
            hint="What was changed is still in the engine's volumes; it is read out at the next command.",
        )


def upper_volume(name: str, number: int) -> str:
    """The volume with the upper layer of a sandbox's overlay, or with what both its layers are together."""
    return f"{name}-upper-{number}"


def rescue(engine: Engine, name: str, label: str, image: Callable[[], str], directory: str) -> None:
    """Read out what the copies of a sandbox that nobody keeps any more hold; nothing to do where it has none.

    Args:
        engine: where they are.
        name: the backend's.
        label: what its volumes carry, `name=value`.
        image: finds what the container runs that reads them.
        directory: the overlay's. Its lock is held.

    Raises SandboxError, OSError.
    """
    volumes = {str(volume["Name"]): volume.get("Labels") or {} for volume in engine.volumes(label)}
    found = [volumes[key] for key in sorted(volumes) if UPPER_LABEL in volumes[key]]
    uppers, merged = [labels[UPPER_LABEL] for labels in found], any(MERGED_LABEL in labels for labels in found)
    # The overlay's own volume is made once all is copied in: without it nothing was ever mounted.
    if not uppers or (name not in volumes and not merged):
        return
    if not all(PurePath(path).is_relative_to(directory) for path in uppers):
        raise SandboxError(f"The volumes of {name} name layers that aren't those of {directory}.")
    mounts = tuple(OverlayMount("", path, "", "") for path in uppers)
    copies = Copies(engine, name, image(), dict([label.split("=", 1)]), mounts, merged=merged)

    async def read_out() -> None:
        # Whatever still runs over them must write no more.
        await anyio.to_thread.run_sync(engine.remove_container, name)
        try:
            await copies.read_out(whole=True)
        finally:
            await copies.stop()

    # Whoever asks may be in an event loop already, and waits for this one.
    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(read_out)


def _framed(content: dict[str, Any]) -> bytes:
    data = json.dumps(content).encode()
    return FRAME.pack(len(data)) + data


def _remember(origins: dict[bytes, bytes], path: bytes, fd: int) -> None:
    if handle := syscalls.file_handle(fd):
        origins[path] = marks.origin_mark(handle)
