"""The namespace backend: the overlay is mounted in namespaces of our own, bubblewrap confines the supervisor over it.

It needs no engine and no privilege, and isolates less: `lacks` says what.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

import anyio
import anyio.to_thread
from anyio.abc import ByteStream, UNIXSocketStream

from workbench.errors import SandboxError
from workbench.sandbox.backend import SandboxSpec, lost
from workbench.sandbox.bootstrap import loader, supervisor_arguments, supervisor_source
from workbench.sandbox.targets import EGRESS_TARGET, home_of, mount_options

_STDERR_KEPT = 16 << 10
_SHM_BYTES = 64 << 20
_END_SECONDS = 10.0
_END_PAUSE_SECONDS = 0.005
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_TOOLS = {"bwrap": "bubblewrap", "unshare": "util-linux", "mount": "util-linux", "setpriv": "util-linux"}

# What programs need of /etc to run at all: no host names, no resolver, no accounts, no keys.
_ETC = (
    "alternatives",
    "ca-certificates",
    "ca-certificates.conf",
    "debian_version",
    "fonts",
    "java-17-openjdk",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "mime.types",
    "nsswitch.conf",
    "os-release",
    "pki/ca-trust/extracted",
    "pki/tls/certs",
    "protocols",
    "services",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
)

# $1 is the name that the mounts are known by, $2 the directory of egress sockets, if any, $3 the number of mounts; then
# the options of each, then the command. They are mounted below /run since every system has it and nothing of it is wanted
# inside: the state directory itself may be one that only root can enter, and by then root is given up.
_MOUNT_SCRIPT = """\
set -e
name=$1 egress=$2 count=$3 number=0
shift 3
mount -n -t tmpfs -o mode=0755 "$name-run" /run
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
exec "$@"
"""


def lacks() -> str:
    """What this backend's isolation lacks, compared to docker's: one line for people."""
    return (
        "no limit on the memory and processor time of all processes together (only on each one's memory), none of the "
        "engine's own system call filter, and the machine's own /usr is readable inside"
    )


class NamespaceStream(ByteStream):
    """Standard input and output of the sandbox's PID 1; the last 16 kB of its standard error are kept in `stderr`."""

    def __init__(self, stream: UNIXSocketStream, errors: int) -> None:
        """Takes over both: `stream`, and `errors`, the reading end of a pipe."""
        self._stream = stream
        self._errors = errors
        self._first = b""
        self._stderr = b""

    @property
    def stderr(self) -> bytes:
        """The end of what PID 1, and bubblewrap before it, wrote to standard error so far: at most 16 kB."""
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

    def __init__(self, spec: SandboxSpec, *, source: bytes | None = None) -> None:
        """`source`: a Python program to run in the supervisor's place."""
        self.name = f"workbench-{secrets.token_hex(8)}"
        self._spec = spec
        self._source = source
        self._process: subprocess.Popen[bytes] | None = None
        self._stream: NamespaceStream | None = None

    @property
    def stderr(self) -> bytes:
        """The end of what PID 1 wrote to its standard error, for messages about a sandbox that was lost."""
        return self._stream.stderr if self._stream else b""

    async def start(self, report: Callable[[str], None]) -> ByteStream:
        """Mount, start bubblewrap, hand the supervisor its source, and wait until it writes something.

        Args:
            report: hears what isn't enforced.

        Returns the stream to the supervisor. Raises SandboxError (backend_unavailable, sandbox_failed) and
        OptionsError, with nothing left behind; SandboxError (sandbox_lost) where that can't be reached.
        """
        source = supervisor_source() if self._source is None else self._source
        if self._spec.limits.cpus:
            report("the namespace backend can't limit processor time, so --cpus isn't enforced")
        try:
            stream = self._stream = await self._spawn(source)
            await stream.send(source)
            await stream.first()
        except (anyio.EndOfStream, anyio.BrokenResourceError) as error:
            said = self.stderr.decode("utf-8", "replace").strip()
            await self._undo()
            raise SandboxError(
                f"The namespace sandbox can't be started: {said or 'it ended without a word'}",
                code="backend_unavailable",
                hint=_hint(),
            ) from error
        except BaseException:
            await self._undo()
            raise
        return stream

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
                await anyio.to_thread.run_sync(remove, self.name)

    async def _undo(self) -> None:
        try:
            await self.stop()
        except SandboxError as error:
            raise lost(error) from error

    async def _spawn(self, source: bytes) -> NamespaceStream:
        tools = {tool: _tool(tool, package) for tool, package in _TOOLS.items()}
        options = [mount_options(mount)["o"] for mount in self._spec.mounts]
        command = [tools["unshare"], "--mount" if os.geteuid() == 0 else "-Urm", "--"]
        command += ["/bin/sh", "-c", _MOUNT_SCRIPT, "sh", self.name, self._spec.egress_path]
        command += [str(len(options)), *options]
        if os.geteuid() == 0:
            command += _give_up_root(tools["setpriv"], self._spec)
        limits = {"NOFILE": self._spec.limits.open_files}
        if self._spec.limits.pids:
            limits["NPROC"] = self._spec.limits.pids
        if self._spec.limits.memory_bytes:
            limits["DATA"] = self._spec.limits.memory_bytes
        with contextlib.ExitStack() as stack:
            arguments, files = self._bubblewrap(tools["bwrap"], stack)
            listed = _memory_file(stack, b"".join(os.fsencode(argument) + b"\0" for argument in arguments))
            command += [tools["bwrap"], "--args", str(listed), "--"]
            command += loader(source, supervisor_arguments(self._spec), limits)
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
                pass_fds=(listed, *files),
                env={"PATH": _PATH},
                cwd="/",
                start_new_session=True,
            )
            ours.setblocking(False)
            kept = ours.dup()
        return NamespaceStream(await UNIXSocketStream.from_socket(kept), errors)

    def _bubblewrap(self, bwrap: str, stack: contextlib.ExitStack) -> tuple[list[str], list[int]]:
        spec = self._spec
        known = _options_of(bwrap)
        home = home_of(spec)
        environment = {"PATH": _PATH, "HOME": str(home), **spec.environment}
        accounts = {
            "/etc/passwd": f"root:x:0:0:root:/root:/bin/sh\nworkbench:x:{spec.uid}:{spec.gid}::{home}:/bin/sh\n",
            "/etc/group": f"root:x:0:\nworkbench:x:{spec.gid}:\n",
            "/etc/hosts": "127.0.0.1 localhost workbench\n::1 localhost\n",
        }
        files = {path: _memory_file(stack, text.encode()) for path, text in accounts.items()}

        def tmpfs(target: str, mode: str, size: int) -> list[str]:
            return ["--perms", mode, *(["--size", str(size)] if "--size" in known and size else []), "--tmpfs", target]

        arguments = [f"--unshare-{namespace}" for namespace in ("user", "pid", "net", "ipc", "uts")]
        arguments += ["--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
        arguments += ["--hostname", "workbench"]
        arguments += ["--uid", str(spec.uid), "--gid", str(spec.gid)]
        if "--disable-userns" in known:
            arguments.append("--disable-userns")
        arguments.append("--clearenv")
        for name, value in environment.items():
            arguments += ["--setenv", name, value]
        for directory in ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"):
            if os.path.islink(directory):
                arguments += ["--symlink", os.readlink(directory), directory]
            elif os.path.isdir(directory):
                arguments += ["--ro-bind", directory, directory]
        for name in _ETC:
            arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
        for path, file in files.items():
            arguments += ["--perms", "0444", "--ro-bind-data", str(file), path]
        arguments += ["--proc", "/proc", "--dev", "/dev"]
        arguments += [*tmpfs("/dev/shm", "1777", _SHM_BYTES), "--remount-ro", "/dev"]
        arguments += [*tmpfs("/tmp", "1777", spec.limits.tmp_bytes), "--symlink", "/tmp", "/var/tmp"]
        if not any(home.is_relative_to(mount.target) for mount in spec.mounts):
            arguments += tmpfs(str(home), "0700", spec.limits.home_bytes)
        for number, mount in sorted(enumerate(spec.mounts), key=lambda item: len(PurePosixPath(item[1].target).parts)):
            arguments += ["--bind", f"/run/{number}", mount.target]
        if spec.egress_path:
            arguments += ["--ro-bind", "/run/egress", EGRESS_TARGET]
        return [*arguments, "--remount-ro", "/", "--chdir", "/"], list(files.values())


def remove(name: str) -> None:
    """Kill every process that has a sandbox's overlay in its mount namespace, which unmounts it; harmless without one.

    Args:
        name: the backend's name.

    Raises SandboxError (sandbox_failed) where one is still there after ten seconds.
    """
    deadline = time.monotonic() + _END_SECONDS
    while left := list(_holders(name)):
        for pid in left:
            _kill_holder(pid, name)
        if time.monotonic() > deadline:
            raise SandboxError(
                f"Processes of the sandbox {name} don't end: {', '.join(map(str, left))}.",
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
