"""The namespace backend: the overlay is mounted in namespaces of our own, the supervisor over it confined to others.

Bubblewrap does the latter where it is installed, else `jail.py`. It needs no engine and no privilege, and isolates less:
`lacks` says what.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import anyio
import anyio.to_thread
from anyio.abc import ByteStream

from workbench.errors import OptionsError, SandboxError
from workbench.sandbox import cgroups, namespace_root
from workbench.sandbox.backend import SandboxSpec, lost
from workbench.sandbox.bootstrap import Program, supervisor, supervisor_arguments
from workbench.sandbox.disk import LocalSpace, Space
from workbench.sandbox.targets import mount_options
from workbench.sandbox.unix_stream import UnixStream

_STDERR_KEPT = 16 << 10
_END_SECONDS = 10.0
_END_PAUSE_SECONDS = 0.005
_PATH = namespace_root.PATH
_ROOT = "/run/root"
_ENDED = (anyio.EndOfStream, anyio.BrokenResourceError)
_RUNTIMES = ("", "bubblewrap", "plain")
# What only a control group can limit: the number of processes has a limit without.
_SHARED = {cgroups.MEMORY: "memory", cgroups.PROCESSOR_TIME: "processor time"}
_TOOLS = {"unshare": "util-linux", "mount": "util-linux", "setpriv": "util-linux"}

_NOT_JOINED = "the control group can't be joined"

# $1 is the name that the mounts are known by, $2 the directory of egress sockets, if any, $3 the number of mounts, $4 that
# of control groups; then the entrance of each of these, the options of each mount, and the command. They are mounted below
# /run since every system has it and nothing of it is wanted inside: the state directory itself may be one that only root
# can enter, and by then root is given up.
_MOUNT_SCRIPT = f"""\
set -e
name=$1 egress=$2 count=$3 number=0 groups=$4
shift 4
join() {{
    while [ "$groups" -gt 0 ]; do
        echo $$ > "$1" || {{ echo "{_NOT_JOINED}" >&2; exit 1; }}
        shift
        groups=$((groups - 1))
    done
}}
# The kernel takes longer to move a process than to mount, and needs nobody to wait for it meanwhile.
join "$@" &
shift "$groups"
mount -n -t tmpfs -o mode=0755 "$name-run" /run
mkdir /run/root
while [ "$number" -lt "$count" ]; do
    mkdir "/run/$number"
    mount -n -t overlay -o "$1" "$name" "/run/$number"
    shift
    number=$((number + 1))
done
if [ -n "$egress" ]; then
    mkdir /run/egress
    mount -n --bind "$egress" /run/egress
fi
wait $! || exit 1
exec "$@"
"""


def lacks() -> str:
    """What this backend's isolation lacks here, compared to docker's: one line for people."""
    enforced = cgroups.enforceable()
    unlimited = [what for controller, what in _SHARED.items() if controller not in enforced]
    said = f"no limit on the {' and '.join(unlimited)} of all processes together" if unlimited else ""
    if cgroups.MEMORY not in enforced:
        said += " (only on each one's memory)"
    others = "none of the engine's own system call filter, and the machine's own /usr is readable inside"
    return f"{said}, {others}" if said else others


class NamespaceStream(ByteStream):
    """Standard input and output of the sandbox's PID 1; the last 16 kB of its standard error are kept in `stderr`."""

    def __init__(self, stream: UnixStream, errors: int) -> None:
        """Takes over both: `stream`, and `errors`, the reading end of a pipe."""
        self._stream = stream
        self._errors = errors
        self._first = b""
        self._stderr = b""

    @property
    def stderr(self) -> bytes:
        """The end of what PID 1, and what confined it, wrote to standard error so far: at most 16 kB."""
        self._drain()
        return self._stderr

    async def first(self) -> None:
        """Wait for the first output, and keep it for `receive`. Raises as `receive`."""
        self._first = await self._stream.receive()

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """Wait for output.

        Returns 1 to `max_bytes` bytes. Raises anyio.EndOfStream or anyio.BrokenResourceError when PID 1 has gone,
        anyio.ClosedResourceError after `aclose`.
        """
        self._drain()
        if self._first:
            data, self._first = self._first[:max_bytes], self._first[max_bytes:]
            return data
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        """Send to standard input, waiting while PID 1 doesn't read.

        Raises anyio.BrokenResourceError when PID 1 has gone, anyio.ClosedResourceError after `aclose`.
        """
        await self._stream.send(item)

    async def send_eof(self) -> None:
        """Close the stream both ways."""
        await self.aclose()

    async def aclose(self) -> None:
        """Close the stream, which ends PID 1."""
        self._drain()
        if self._errors >= 0:
            os.close(self._errors)
            self._errors = -1
        await self._stream.aclose()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._errors >= 0 and (piece := os.read(self._errors, _STDERR_KEPT)):
                self._stderr = (self._stderr + piece)[-_STDERR_KEPT:]


class NamespaceBackend:
    """A supervisor in namespaces of its own over one overlay (and those of the mounts beside it)."""

    kind = "namespace"

    def __init__(self, spec: SandboxSpec, *, source: bytes | None = None, name: str = "") -> None:
        """Args:
        spec: what to start.
        source: a Python program to run in the supervisor's place.
        name: of the mount, made by chance where it isn't given.
        """
        self.name = name or f"workbench-{secrets.token_hex(8)}"
        self._spec = spec
        self._program = supervisor() if source is None else Program(source)
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: NamespaceStream | None = None
        self._group = cgroups.ControlGroup()

    @property
    def stderr(self) -> bytes:
        """The end of what PID 1 wrote to its standard error, for messages about a sandbox that was lost."""
        return self._stream.stderr if self._stream else b""

    def launch(self) -> None:
        """Have the processes begin that mount and confine. Raises OptionsError, SandboxError, OSError."""
        self._group = cgroups.make(self.name, self._spec.limits)
        try:
            self._spawn()
        except BaseException:
            cgroups.remove(self.name, self._group)
            raise

    async def start(self, report: Callable[[str], None]) -> ByteStream:
        """Mount, confine, hand the supervisor its source, and wait until it writes something.

        Args:
            report: hears what isn't enforced.

        Returns the stream to the supervisor. Raises SandboxError (backend_unavailable, sandbox_failed) and
        OptionsError, with nothing left behind; SandboxError (sandbox_lost) where that can't be reached.
        """
        try:
            if self._process is None:
                self.launch()
            try:
                stream = await self._begin()
            except _ENDED:
                if _NOT_JOINED.encode() not in self.stderr:
                    raise
                # There are places where a group can be made, and nobody may be moved into it.
                await self.stop()
                self._group = cgroups.ControlGroup()
                self._spawn()
                stream = await self._begin()
        except _ENDED as error:
            said = self.stderr.decode("utf-8", "replace").strip()
            await self._undo()
            raise SandboxError(
                f"The namespace sandbox can't be started: {said.rstrip('.') or 'it ended without a word'}.",
                code="backend_unavailable",
                hint=_hint(),
            ) from error
        except BaseException:
            await self._undo()
            raise
        if self._spec.limits.cpus and cgroups.PROCESSOR_TIME not in self._group.directories:
            report("the namespace backend can't limit processor time here, so --cpus isn't enforced")
        return stream

    @property
    def space(self) -> Space:
        """On this machine."""
        return LocalSpace([mount.upper for mount in self._spec.mounts])

    async def read_out(self, *, whole: bool = False) -> None:
        """Nothing: the sandbox writes the layers themselves."""

    async def stop(self) -> None:
        """Kill everything, and wait until no process is left that the mount could live in.

        Raises SandboxError (sandbox_failed); `stop` can then be called again.
        """
        with anyio.CancelScope(shield=True):
            if self._stream is not None:
                await self._stream.aclose()
            if self._process is not None:
                self._process.kill()
                await anyio.to_thread.run_sync(self._process.wait)
            await anyio.to_thread.run_sync(remove, self.name, self._group)

    async def _undo(self) -> None:
        try:
            await self.stop()
        except SandboxError as error:
            raise lost(error) from error

    async def _begin(self) -> NamespaceStream:
        assert self._stream is not None
        await self._stream.send(self._program.sent)
        await self._stream.first()
        return self._stream

    def _spawn(self) -> None:
        tools = {tool: _tool(tool, package) for tool, package in _TOOLS.items()}
        options = [mount_options(mount)["o"] for mount in self._spec.mounts]
        command = [tools["unshare"], "--mount" if os.geteuid() == 0 else "-Urm", "--"]
        command += ["/bin/sh", "-c", _MOUNT_SCRIPT, "sh", self.name, self._spec.egress_path]
        entrances = self._group.entrances
        command += [str(len(options)), str(len(entrances)), *entrances, *options]
        if os.geteuid() == 0:
            command += _give_up_root(tools["setpriv"], self._spec)
        limits = {"NOFILE": self._spec.limits.open_files}
        # What can be had without control groups: a count by the kernel's user namespace, and a limit of each process.
        if self._spec.limits.pids and cgroups.PROCESSES not in self._group.directories:
            limits["NPROC"] = self._spec.limits.pids
        if self._spec.limits.memory_bytes and cgroups.MEMORY not in self._group.directories:
            limits["DATA"] = self._spec.limits.memory_bytes
        with contextlib.ExitStack() as stack:
            confined, files = self._confined(stack)
            command += confined
            command += self._program.loader(supervisor_arguments(self._spec), limits)
            ours, theirs = socket.socketpair()
            stack.callback(theirs.close)
            stack.callback(ours.close)
            errors, their_errors = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            stack.callback(os.close, their_errors)
            # Not in a worker thread, as anyio does under trio: bubblewrap dies with the thread that started it.
            self._process = subprocess.Popen(
                command,
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=their_errors,
                pass_fds=files,
                env={"PATH": _PATH},
                cwd="/",
                start_new_session=True,
            )
            self._stream = NamespaceStream(UnixStream(ours.dup()), errors)

    def _confined(self, stack: contextlib.ExitStack) -> tuple[list[str], list[int]]:
        """What goes before the command that is to be confined, and the descriptors that it needs."""
        files: list[int] = []

        def keep(data: bytes) -> int:
            files.append(_memory_file(stack, data))
            return files[-1]

        bwrap = bubblewrap(self._spec.runtime)
        if bwrap:
            options = namespace_root.bubblewrap_options(self._spec, self._group.views, _options_of(bwrap), keep)
            listed = keep(b"".join(os.fsencode(option) + b"\0" for option in options))
            return [bwrap, "--args", str(listed), "--"], files
        config = {
            "uid": self._spec.uid,
            "gid": self._spec.gid,
            "hostname": "workbench",
            "environment": namespace_root.environment(self._spec),
            "root": _ROOT,
            "steps": namespace_root.steps(self._spec, self._group.views),
        }
        source = Path(__file__).with_name("jail.py").read_text(encoding="utf-8")
        return [_tool("python3", "python3"), "-I", "-S", "-c", source, str(keep(json.dumps(config).encode()))], files


def remove(name: str, group: cgroups.ControlGroup | None = None) -> None:
    """Kill every process that has a sandbox's overlay in its mount namespace, which unmounts it; harmless without one.

    Its control group goes with them.

    Args:
        name: the backend's name.
        group: the control group, where it's known; else it's looked for.

    Raises SandboxError (sandbox_failed) where one is still there after ten seconds.
    """
    deadline = time.monotonic() + _END_SECONDS
    while (left := list(_holders(name))) or not cgroups.remove(name, group):
        for pid in left:
            _kill_holder(pid, name)
        if time.monotonic() > deadline:
            raise SandboxError(
                f"Processes of the sandbox {name} don't end: {', '.join(map(str, left)) or 'those in its control group'}.",
                code="sandbox_failed",
                hint="Look what they wait for (cat /proc/PID/stack); the overlay stays locked until they are gone.",
            )
        time.sleep(_END_PAUSE_SECONDS)


def _holders(name: str) -> Iterator[int]:
    for entry in os.listdir("/proc"):
        if entry.isdecimal() and _holds(int(entry), name):
            yield int(entry)


def _holds(pid: int, name: str) -> bool:
    # A process that has gone meanwhile, or that another user owns, isn't one of ours.
    try:
        with open(f"/proc/{pid}/mountinfo", "rb") as file:
            return f" - overlay {name} ".encode() in file.read()
    except OSError:
        return False


def _kill_holder(pid: int, name: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            # Looked at again: only now is it certain that the number still means that process.
            if _holds(pid, name):
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)
        finally:
            os.close(descriptor)


def _give_up_root(setpriv: str, spec: SandboxSpec) -> list[str]:
    groups = ["--groups", ",".join(map(str, spec.groups))] if spec.groups else ["--clear-groups"]
    # Without this one the kernel maps user 0 into no user namespace (user_namespaces(7)); bubblewrap drops it.
    kept = "-all,+setfcap" if spec.uid == 0 else "-all"
    command = [setpriv, "--reuid", str(spec.uid), "--regid", str(spec.gid), *groups]
    return [*command, f"--bounding-set={kept}", "--inh-caps=-all", "--ambient-caps=-all", "--no-new-privs"]


def _memory_file(stack: contextlib.ExitStack, data: bytes) -> int:
    file = os.memfd_create("workbench")
    stack.callback(os.close, file)
    os.write(file, data)
    os.lseek(file, 0, os.SEEK_SET)
    return file


def bubblewrap(runtime: str = "") -> str:
    """Where bubblewrap is, empty where it isn't installed or isn't wanted. Raises OptionsError, SandboxError."""
    if runtime not in _RUNTIMES:
        raise OptionsError(
            f"The namespace backend has no runtime called {runtime!r}.",
            hint="Choose bubblewrap or plain, or none at all.",
        )
    if runtime == "bubblewrap":
        return _tool("bwrap", "bubblewrap")
    return "" if runtime == "plain" else shutil.which("bwrap", path=_PATH) or ""


def _tool(name: str, package: str) -> str:
    path = shutil.which(name, path=_PATH)
    if path is None:
        raise SandboxError(
            f"The namespace backend needs {name}, which isn't installed.",
            code="backend_unavailable",
            hint=f"Install the package {package}, or use a container engine.",
        )
    return path


@functools.cache
def _options_of(bwrap: str) -> frozenset[str]:
    answer = subprocess.run([bwrap, "--help"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return frozenset(word for word in answer.stdout.decode("utf-8", "replace").split() if word.startswith("--"))


def _hint() -> str:
    # Only to explain a failure: what decides is whether it works.
    for path, value, hint in (
        (
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "AppArmor forbids it here: as root, sysctl kernel.apparmor_restrict_unprivileged_userns=0 allows it.",
        ),
        (
            "/proc/sys/kernel/unprivileged_userns_clone",
            "0",
            "The kernel is told to forbid it: as root, sysctl kernel.unprivileged_userns_clone=1 allows it.",
        ),
        (
            "/proc/sys/user/max_user_namespaces",
            "0",
            "The kernel is told to allow none: as root, sysctl user.max_user_namespaces=10000 changes that.",
        ),
    ):
        with contextlib.suppress(FileNotFoundError), open(path, encoding="ascii") as file:
            if file.read().strip() == value:
                return hint
    return "It needs user namespaces and Linux 5.11 or newer; inside a container both are often forbidden."
