"""What a backend is: something that mounts an overlay, starts the supervisor over it, and hands back its byte stream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from anyio.abc import ByteStream

from workbench.errors import OptionsError, SandboxError

if TYPE_CHECKING:
    from workbench.sandbox.disk import Space


@dataclass(frozen=True, slots=True)
class OverlayMount:
    """One overlay: its layers on the host, as plain ASCII paths fit for a mount option, and where the sandbox sees it."""

    lower: str
    upper: str
    work: str
    target: str


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use: bytes, counts, and cores (0 is no limit). The tmpfs sizes count towards the memory.

    `disk_bytes` is what the overlay may hold; what runs when it grows over that is ended.
    """

    memory_bytes: int = 4 << 30
    pids: int = 1024
    cpus: float = 0
    tmp_bytes: int = 1 << 30
    home_bytes: int = 512 << 20
    open_files: int = 65536
    disk_bytes: int = 10 << 30

    def check(self) -> None:
        """Raises OptionsError where no sandbox could work within these limits."""
        for given, least, what in (
            (self.memory_bytes, 64 << 20, "64 MiB of memory (--memory)"),
            (self.pids, 16, "16 processes (--pids)"),
            (self.open_files, 64, "64 open files (--open-files)"),
        ):
            if 0 < given < least:
                raise OptionsError(f"A sandbox doesn't work with less than {what}.")
        if any(getattr(self, name) < 0 for name in self.__slots__):
            raise OptionsError("A limit of a sandbox can't be negative.")
        # A full one must never take what the supervisor itself needs.
        if self.memory_bytes and self.tmp_bytes + self.home_bytes > self.memory_bytes * 3 // 4:
            raise OptionsError(
                "/tmp and the home directory are held in memory, so together they can have three quarters of it at most.",
                hint="Make them smaller (--tmp-size, --home-size), or the memory limit larger (--memory).",
            )

    def within(self) -> Limits:
        """These, with /tmp and the home directory made smaller where the memory limit doesn't leave room for them."""
        if not self.memory_bytes:
            return self
        tmp, home = min(self.tmp_bytes, self.memory_bytes // 4), min(self.home_bytes, self.memory_bytes // 8)
        return replace(self, tmp_bytes=tmp, home_bytes=home)


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything that starting a sandbox takes; crosses to the keeper as JSON.

    The first of `mounts` is the workspace, and its target the directory commands start in. `environment` is all that
    PID 1 and commands get. `labels` go on every container and volume; among them `workbench.state` is the id of the state
    directory, by which leftovers are told from another's, and `workbench.overlay` the overlay's directory, whose lock
    tells whether they are leftovers. `sharing` says how an engine gets at the layers: they are `mounted` where they are,
    or `copied` into volumes of its own and read out again, or that as one `plain` tree and no overlay. `egress_path` is a
    directory for the sockets of the way out, which the sandbox gets read-only; empty where nothing outside is wanted when
    it starts.
    """

    backend: str
    image: str
    mounts: tuple[OverlayMount, ...]
    uid: int
    gid: int
    groups: tuple[int, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    limits: Limits = Limits()
    labels: dict[str, str] = field(default_factory=dict)
    idle_seconds: float = 600
    runtime: str = ""
    sharing: str = "mounted"
    egress_path: str = ""


class Backend(Protocol):
    """One sandbox of one overlay. Not reusable: a new mount is a new backend with a fresh name."""

    name: str
    """Names the mount in `overlay.json`, so that whoever finds it there can remove it."""

    kind: str
    """`docker` or `namespace`."""

    def launch(self) -> None:
        """Begin to start, as far as nothing has to be waited for; `start` goes on from there. Raises as `start`, OSError."""
        ...

    async def start(self, report: Callable[[str], None]) -> ByteStream:
        """Mount, and start the supervisor; `report` hears what takes long, a sentence each.

        Returns the supervisor's stream, before its hello was read. Raises SandboxError with nothing left mounted or
        running, but with code `sandbox_lost`: then something may be, and `stop` must be called until it succeeds.
        """
        ...

    @property
    def space(self) -> Space:
        """Where the sandbox writes the upper layers, once it was started."""
        ...

    async def read_out(self, *, whole: bool = False) -> None:
        """Bring the upper layer on this machine up to what the sandbox's is, where that is another one.

        `whole` also compares what seems not to have changed since the last time. Raises SandboxError.
        """
        ...

    async def stop(self) -> None:
        """End everything and unmount; safe to call at any time, also after a failed start.

        Returns only when nothing is mounted, and the upper layer read out. Raises SandboxError (sandbox_failed) where that
        can't be reached.
        """
        ...


@runtime_checkable
class MovableBackend(Backend, Protocol):
    """One whose sandbox doesn't end with the process that started it, as long as its stream stays open."""

    def hand_over(self) -> tuple[int, ...]:
        """Let go of what was just started over `mounted` layers: another process goes on with it.

        Returns the descriptors by which that process adopts it, which the caller passes on and closes.
        """
        ...

    def adopt(self, descriptors: tuple[int, ...]) -> ByteStream:
        """Take over what another process has started by the same spec and name; the descriptors are ours from now on.

        Returns the supervisor's stream, as `start` does.
        """
        ...


def lost(error: SandboxError) -> SandboxError:
    """The error of a start that failed, where `error` then kept what it had made from being removed."""
    return SandboxError(
        f"The sandbox can't be started, and what there is of it can't be removed: {error.message}",
        code="sandbox_lost",
        hint=error.hint,
    )
