"""What a supervisor and a keeper say of what there is: answers, checked and typed."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.protocol.commands import CommandResult
from workbench.sandbox import frames
from workbench.sandbox.backend import Limits


@dataclass(frozen=True, slots=True)
class MountFacts:
    """A mount as the sandbox sees it: `type` is empty where nothing is mounted there; `line` is its mountinfo line.

    `target` is exact, so not fit to be printed.
    """

    target: str
    type: str
    writable: bool
    line: str


@dataclass(frozen=True, slots=True)
class Counters:
    """What the kernel counted for the whole sandbox, in bytes and processes; None where it doesn't count that."""

    memory_bytes: int | None
    memory_peak_bytes: int | None
    oom_kills: int | None
    pids: int | None
    pids_peak: int | None
    pids_refused: int | None

    @classmethod
    def of(cls, content: frames.Json) -> Counters:
        """Of an answer. Raises SandboxError (sandbox_lost)."""
        return cls(*(None if content.get(name) is None else frames.number(content, name) for name in cls.__slots__))


@dataclass(frozen=True, slots=True)
class Hello:
    """What the supervisor found inside: who it is, what is mounted, which limits hold.

    `memory_limit` (bytes) and `pids_limit` are 0 where there's none, None where that can't be read. `cgroup` is the
    version, 0 without.
    """

    protocol: int
    pid: int
    uid: int
    gid: int
    kernel: str
    machine: str
    python: str
    boot_id: str
    mounts: tuple[MountFacts, ...]
    cgroup: int
    memory_limit: int | None
    pids_limit: int | None
    unix_sockets: bool
    raises_oom_score: bool
    counters: Counters

    @classmethod
    def of(cls, content: frames.Json) -> Hello:
        """Of a HELLO frame. Raises SandboxError (sandbox_lost)."""
        limits, counters = content.get("limits", {}), content.get("counters", {})
        if not isinstance(limits, dict) or not isinstance(counters, dict):
            raise frames.lost("its hello is malformed")
        return cls(
            protocol=frames.number(content, "protocol"),
            pid=frames.number(content, "pid"),
            uid=frames.number(content, "uid"),
            gid=frames.number(content, "gid"),
            kernel=frames.text(content, "kernel", 256),
            machine=frames.text(content, "machine", 64),
            python=frames.text(content, "python", 64),
            boot_id=frames.text(content, "boot_id", 64),
            mounts=tuple(
                MountFacts(
                    frames.path(mount, "target"),
                    frames.text(mount, "type", 64),
                    frames.flag(mount, "writable"),
                    frames.text(mount, "line", 4096),
                )
                for mount in frames.objects(content, "mounts")
            ),
            cgroup=frames.number(content, "cgroup", high=2),
            memory_limit=None if limits.get("memory_bytes") is None else frames.number(limits, "memory_bytes"),
            pids_limit=None if limits.get("pids") is None else frames.number(limits, "pids"),
            unix_sockets=frames.flag(content, "unix_sockets"),
            raises_oom_score=frames.flag(content, "raises_oom_score"),
            counters=Counters.of(counters),
        )


@dataclass(frozen=True, slots=True)
class FileFacts:
    """An entry as the supervisor sees it; `mode` is whole (`st_mode`), times are in ns."""

    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    nlink: int
    device: int
    rdev: int

    @classmethod
    def of(cls, content: frames.Json) -> FileFacts:
        """Of an answer. Raises SandboxError (sandbox_lost)."""
        return cls(
            *(frames.number(content, name, low=-frames.MAX_NUMBER, high=(1 << 64) - 1) for name in cls.__slots__)
        )


@dataclass(frozen=True, slots=True)
class JobFacts:
    """A command that runs, that ended lately, or that a stop ended (`ended_by`).

    `argv` is cut where it's long. `client` is the process that waits for it, 0 where none does. `started_at_ms` counts
    from 1970. CPU time, memory and processes are those of the moment, 0 where they weren't asked for. `over` says that it
    has ended; `result` is None while it runs, and where it was lost with its sandbox.
    """

    id: str
    argv: tuple[str, ...]
    tty: bool
    background: bool
    client: int
    started_at_ms: int
    running_ms: int
    cpu_ms: int = 0
    memory_bytes: int = 0
    processes: int = 0
    output_bytes: int = 0
    over: bool = False
    result: CommandResult | None = None
    ended_by: str = ""

    @classmethod
    def of(cls, content: frames.Json) -> JobFacts:
        """Of an answer. Raises SandboxError (sandbox_lost)."""
        found = content.get("result")
        return cls(
            id=frames.text(content, "id"),
            argv=_words(content, "argv"),
            tty=frames.flag(content, "tty"),
            background=frames.flag(content, "background"),
            client=frames.number(content, "client"),
            started_at_ms=frames.number(content, "started_at_ms"),
            running_ms=frames.number(content, "running_ms"),
            cpu_ms=frames.number(content, "cpu_ms"),
            memory_bytes=frames.number(content, "memory_bytes"),
            processes=frames.number(content, "processes"),
            output_bytes=frames.number(content, "output_bytes"),
            over=frames.flag(content, "over"),
            result=frames.command_result(found, b"", b"") if isinstance(found, dict) else None,
            ended_by=frames.text(content, "ended_by"),
        )


@dataclass(frozen=True, slots=True)
class KeeperInfo:
    """What a keeper says of its sandbox; `name` is that of the mount in overlay.json, `jobs` counts `running`."""

    protocol: int
    pid: int
    backend: str
    name: str
    image: str
    runtime: str
    targets: tuple[str, ...]
    limits: Limits
    uptime_ms: int
    clients: int
    jobs: int
    running: tuple[JobFacts, ...]

    @classmethod
    def of(cls, content: frames.Json) -> KeeperInfo:
        """Of an answer. Raises SandboxError (sandbox_lost)."""
        running = tuple(JobFacts.of(job) for job in frames.objects(content, "jobs"))
        return cls(
            protocol=frames.number(content, "protocol"),
            pid=frames.number(content, "pid"),
            backend=frames.text(content, "backend"),
            name=frames.text(content, "name"),
            image=frames.text(content, "image"),
            # One that was started before there was this doesn't say.
            runtime=frames.text({"runtime": "", **content}, "runtime"),
            targets=_words(content, "targets"),
            limits=Limits(**content["limits"]),
            uptime_ms=frames.number(content, "uptime_ms"),
            clients=frames.number(content, "clients"),
            jobs=len(running),
            running=running,
        )


def _words(content: frames.Json, name: str) -> tuple[str, ...]:
    value = content.get(name)
    return tuple(map(str, value)) if isinstance(value, list) else ()
