"""The docker backend: the engine mounts the overlay, and runs the supervisor in a container over it."""

from __future__ import annotations

import secrets
import socket
import time
from collections.abc import Callable
from typing import Any

import anyio
import anyio.to_thread
from anyio.abc import ByteStream

from workbench.errors import SandboxError
from workbench.sandbox import images
from workbench.sandbox.attach import AttachStream
from workbench.sandbox.backend import OverlayMount, SandboxSpec, lost
from workbench.sandbox.bootstrap import Program, supervisor, supervisor_arguments
from workbench.sandbox.copies import Copies, upper_volume
from workbench.sandbox.disk import LocalSpace, Space
from workbench.sandbox.engine import Engine, EngineRefusedError
from workbench.sandbox.targets import EGRESS_TARGET, bind_target, home_of, mount_options
from workbench.sandbox.unix_stream import UnixStream

LABEL = "workbench"
"""On every container and volume that is ours, with the value `1`."""

NAME_LABEL = "workbench.sandbox"
"""On every container and volume, with the backend's name: what belongs to one sandbox."""

_REMOVE_ATTEMPTS = 50
_REMOVE_PAUSE_SECONDS = 0.1
_HINT_MOUNT = (
    "`workbench doctor` says which filesystems can hold a workspace and the state directory; the kernel's own reason "
    "is at the end of `sudo dmesg`."
)


class DockerBackend:
    """One container over one overlay, and over those of the mounts beside it."""

    kind = "docker"

    def __init__(
        self, spec: SandboxSpec, *, engine: Engine | None = None, source: bytes | None = None, name: str = ""
    ) -> None:
        """Args:
        spec: what to start.
        engine: found by environment and docker context, when it is first needed, where it isn't given.
        source: a Python program to run in the supervisor's place.
        name: of the container and its volumes, made by chance where it isn't given.
        """
        self.name = name or f"workbench-{secrets.token_hex(8)}"
        self.warnings: tuple[str, ...] = ()
        """What the engine said it won't enforce, known after `start`."""
        self._spec = spec
        self._engine = engine
        self._source = source
        self._created = False
        self._copies: Copies | None = None
        self._changes_copies = False
        self._stream: AttachStream | None = None

    @property
    def stderr(self) -> bytes:
        """The end of what PID 1 wrote to its standard error, for messages about a sandbox that was lost."""
        return self._stream.stderr if self._stream else b""

    def launch(self) -> None:
        """Nothing: it's the engine that all the time goes by with."""

    async def start(self, report: Callable[[str], None]) -> ByteStream:
        """Make the volumes and the container, attach, start, and hand the supervisor its source.

        Args:
            report: hears a sentence where something takes long, or isn't enforced.

        Returns the stream to the supervisor. Raises SandboxError (engine_unavailable, image_unavailable,
        sandbox_failed) and OptionsError, with nothing left behind; SandboxError (sandbox_lost) where the engine can't
        confirm that.
        """
        program = supervisor() if self._source is None else Program(self._source)
        try:
            engine, image = await anyio.to_thread.run_sync(self._find, report)
            mounts = self._spec.mounts
            if self._spec.sharing != "mounted":
                report("copying the workspace into the engine, which takes the longer the more there is of it")
                merged = self._spec.sharing == "plain"
                self._copies = Copies(engine, self.name, image, self._labels, mounts, merged=merged)
                mounts = await self._copies.fill(report)
            await anyio.to_thread.run_sync(self._create, engine, image, mounts, program, report)
            self._changes_copies = True
            self._stream = await engine.attach(self.name)
            await anyio.to_thread.run_sync(self._run, engine)
            await self._stream.send(program.sent)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
            await self._undo()
            said = self.stderr.decode("utf-8", "replace").strip()
            raise SandboxError(
                f"The sandbox ended as it started: {said or 'without a word'}",
                code="sandbox_failed",
                hint="Look whether the image's python3 runs at all, and at the engine's log.",
            ) from error
        except BaseException:
            await self._undo()
            raise
        return self._stream

    def hand_over(self) -> tuple[int, ...]:
        """The container's stream, of which nothing was read yet; this backend has nothing to do with it any more."""
        assert self._stream is not None
        descriptor = self._stream.detach()
        self._stream, self._created = None, False
        return (descriptor,)

    def adopt(self, descriptors: tuple[int, ...]) -> ByteStream:
        """Go on with a container that another process has started by this name."""
        (descriptor,) = descriptors
        self._engine = self._engine or Engine()
        self._created = True
        self._stream = AttachStream(UnixStream(socket.socket(fileno=descriptor)))
        return self._stream

    @property
    def space(self) -> Space:
        """In the engine, where it has copies; else on this machine."""
        return self._copies or LocalSpace([mount.upper for mount in self._spec.mounts])

    async def read_out(self, *, whole: bool = False) -> None:
        """Read out the upper layer where the engine has a copy of its own. Raises SandboxError."""
        if self._copies is not None:
            await self._copies.read_out(whole=whole)

    async def stop(self) -> None:
        """Kill and remove the container, read out what the engine has of its own, unmount by removing the volumes.

        Returns only when the engine has confirmed that they are gone. Raises SandboxError (sandbox_failed,
        engine_unavailable): then something may still be mounted, and `stop` can be called again.
        """
        with anyio.CancelScope(shield=True):
            if self._stream is not None:
                await self._stream.aclose()
            if self._engine is None or not self._created:
                return
            if self._copies is not None:
                await self._end_copies(self._copies)
            await anyio.to_thread.run_sync(remove, self._engine, self.name)

    async def _end_copies(self, copies: Copies) -> None:
        assert self._engine is not None
        await anyio.to_thread.run_sync(self._engine.remove_container, self.name)
        if self._changes_copies:
            try:
                await copies.read_out()
            except SandboxError as error:
                if error.code == "disk_full":
                    raise
                # The container that reads was lost, with the engine perhaps; another one finds the volumes as they are.
                await copies.stop()
                await copies.read_out(whole=True)
            self._changes_copies = False
        await copies.stop()

    async def _undo(self) -> None:
        try:
            await self.stop()
        except SandboxError as error:
            raise lost(error) from error

    @property
    def _labels(self) -> dict[str, str]:
        return {**self._spec.labels, LABEL: "1", NAME_LABEL: self.name}

    def _find(self, report: Callable[[str], None]) -> tuple[Engine, str]:
        engine = self._engine = self._engine or Engine()
        engine.ping()
        image = images.available(self._spec.image, report, engine=engine)
        self._created = True
        return engine, image

    def _create(
        self,
        engine: Engine,
        image: str,
        mounts: tuple[OverlayMount, ...],
        program: Program,
        report: Callable[[str], None],
    ) -> None:
        labels = self._labels
        if self._spec.sharing != "plain":
            self._create_overlays(engine, mounts)
        asked = self._spec.limits
        wanted = {"memory": asked.memory_bytes, "processes": asked.pids, "processor time": asked.cpus}
        ignored = [limit for limit in engine.unenforced() if wanted[limit]]
        limits = {"NOFILE": asked.open_files}
        if "memory" in ignored:
            # That of each process for itself is what can be had without control groups.
            limits["DATA"] = asked.memory_bytes
        argv = program.loader(supervisor_arguments(self._spec), limits)
        body = self._container(image, argv, labels, engine)
        answer = engine.call("POST", "/containers/create", {"name": self.name}, body)
        self.warnings = tuple(f"the engine doesn't enforce the limit on {limit}" for limit in ignored)
        self.warnings += tuple(answer.get("Warnings") or ())
        for warning in self.warnings:
            report(warning)

    def _create_overlays(self, engine: Engine, mounts: tuple[OverlayMount, ...]) -> None:
        for volume, options in zip(self._volumes(), [mount_options(mount) for mount in mounts], strict=True):
            body = {"Name": volume, "Driver": "local", "DriverOpts": options, "Labels": self._labels}
            stored = engine.call("POST", "/volumes/create", body=body).get("Options")
            # An engine answers 201 for a name that it knows, and keeps that one's options.
            if stored != options:
                raise SandboxError(
                    f"The engine keeps another volume called {volume}.", hint="Try again: the name is made by chance."
                )

    def _run(self, engine: Engine) -> None:
        try:
            engine.call("POST", f"/containers/{self.name}/start")
        except EngineRefusedError as refusal:
            raise self._explained(refusal) from refusal

    def _explained(self, refusal: EngineRefusedError) -> SandboxError:
        text = refusal.message
        if "python3" in text and ("not found" in text or "no such file" in text):
            return SandboxError(
                f"The image {self._spec.image} has no python3, which the supervisor of a sandbox needs.",
                code="image_unavailable",
                hint="Add python3 (3.8 or newer) to the image, or use workbench/python.",
            )
        if "failed to mount local volume" in text:
            return SandboxError(f"The engine can't mount the overlay: {text}", code="sandbox_failed", hint=_HINT_MOUNT)
        return SandboxError(
            f"The engine can't start the sandbox: {text}",
            code="sandbox_failed",
            hint="`workbench doctor` checks the engine; its own log may say more.",
        )

    def _volumes(self) -> list[str]:
        """Those that the sandbox sees."""
        if self._spec.sharing == "plain":
            return [upper_volume(self.name, number) for number in range(len(self._spec.mounts))]
        return [self.name if index == 0 else f"{self.name}-{index}" for index in range(len(self._spec.mounts))]

    def _container(self, image: str, argv: list[str], labels: dict[str, str], engine: Engine) -> dict[str, Any]:
        spec = self._spec
        # In a rootless engine's user namespace the caller is 0, and nobody else is mapped to anybody who owns files.
        uid, gid, groups = (0, 0, ()) if engine.rootless() else (spec.uid, spec.gid, spec.groups)
        home = home_of(spec)
        mounts = zip(self._volumes(), spec.mounts, strict=True)
        host: dict[str, Any] = {
            # Never `Mounts`: with SELinux those relabel, and so copy up, every file.
            "Binds": [f"{volume}:{bind_target(mount)}:rw,nocopy" for volume, mount in mounts],
            "Tmpfs": _tmpfs(spec, uid, gid, engine),
            "NetworkMode": "none",
            "CapDrop": ["ALL"],
            "SecurityOpt": ["no-new-privileges"],
            "ReadonlyRootfs": True,
            "Memory": spec.limits.memory_bytes,
            "MemorySwap": spec.limits.memory_bytes,
            "PidsLimit": spec.limits.pids,
            "NanoCpus": round(spec.limits.cpus * 1e9),
            "LogConfig": {"Type": "none", "Config": {}},
            "RestartPolicy": {"Name": "no"},
            "AutoRemove": False,
            "Init": False,
            "GroupAdd": [str(group) for group in groups],
            # Means nothing but where the engine remaps users, which would make everybody's files somebody else's.
            "UsernsMode": "host",
        }
        if spec.egress_path:
            # Not below `Binds`: those make a directory of root's where the source is missing.
            way_out = {"Type": "bind", "Source": spec.egress_path, "Target": EGRESS_TARGET, "ReadOnly": True}
            host["Mounts"] = [way_out]
        if spec.runtime:
            host["Runtime"] = spec.runtime
        return {
            "Image": image,
            "User": f"{uid}:{gid}",
            "Entrypoint": argv[:1],
            "Cmd": argv[1:],
            "Env": [f"{name}={value}" for name, value in {"HOME": str(home), **spec.environment}.items()],
            "Labels": labels,
            "Hostname": "workbench",
            "WorkingDir": "/",
            "Healthcheck": {"Test": ["NONE"]},
            # An engine that is restarted stops its containers, and would wait ten seconds for each.
            "StopSignal": "SIGKILL",
            "Tty": False,
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "AttachStdout": True,
            "AttachStderr": True,
            "HostConfig": host,
        }


def remove(engine: Engine, name: str) -> None:
    """Remove a sandbox's container and unmount and remove its volumes; harmless where nothing is left of it.

    "Exited" isn't "unmounted": only the volume's removal proves that.

    Args:
        engine: where it runs.
        name: the backend's name.

    Raises SandboxError (sandbox_failed, engine_unavailable).
    """
    label = f"{NAME_LABEL}={name}"
    refusal: EngineRefusedError | None = None
    for attempt in range(_REMOVE_ATTEMPTS):
        if attempt:
            time.sleep(_REMOVE_PAUSE_SECONDS)
        try:
            for container in engine.containers(label):
                engine.remove_container(str(container["Id"]))
            # What is mounted before what it is mounted on.
            found = sorted(engine.volumes_of(name), key=lambda volume: not volume.get("Options"))
            volumes = [str(volume["Name"]) for volume in found]
            if not volumes and not engine.containers(label):
                return
            for volume in volumes:
                engine.remove_volume(volume)
            if not engine.volumes_of(name):
                return
        except EngineRefusedError as error:
            # 409: a removal of the same is under way, or the volume is still counted as used.
            refusal = error
            if error.status not in (409, 500):
                break
    raise SandboxError(
        f"The sandbox {name} can't be removed: {refusal.message if refusal else 'its volume stays.'}",
        code="sandbox_failed",
        hint=f"Try `docker rm -f {name}` and `docker volume rm {name}`; the overlay stays locked until both succeed.",
    ) from refusal


def _tmpfs(spec: SandboxSpec, uid: int, gid: int, engine: Engine) -> dict[str, str]:
    # Without a size one large file in /tmp takes the memory of the whole sandbox, the supervisor's too.
    home = home_of(spec)
    tmpfs = {"/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={spec.limits.tmp_bytes}"}
    if str(home) != "/tmp" and not any(home.is_relative_to(mount.target) for mount in spec.mounts):
        # Podman gives a tmpfs to nobody but root. There is one user inside, so it can be anybody's.
        owner = "mode=0777" if engine.is_podman else f"mode=0700,uid={uid},gid={gid}"
        tmpfs[str(home)] = f"rw,exec,nosuid,nodev,{owner},size={spec.limits.home_bytes}"
    return tmpfs
