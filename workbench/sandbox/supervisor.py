"""PID 1 of a sandbox: starts, feeds, bounds, freezes and ends commands, over one byte stream.

One file, standard library only, Python 3.8 or later: it runs as `python3 -I -S supervisor.py CONFIG` inside whatever
image there is, where CONFIG is JSON: `{"targets": [mount points], "jobs": at most so many commands at once}`. The first
target is where commands start. Commands inherit this process's environment.

It speaks frames on descriptors 0 and 1: a header `!IcI` (payload length, kind, id) and the payload. The host picks the
ids. `frames.py` is the other end, and describes each kind.

Every command has its own *reaper*: a fork of this process, made ahead of need, that is a child subreaper. Whatever a
command starts, however it detaches itself, remains the reaper's descendant. Where a command kills its own reaper, its
processes become ours; those we know nothing of are strays, and are killed.

In this order: this process, with its system call filter and its counters; processes, found and killed; a reaper; a
command's streams; requests, and of these a command, files, a port inside and the way out; values; and the loop, which
owns everything. It's long, and stays one file: modules that are joined as it's sent would need a program to take their
imports out, names that no checker sees meet would share one namespace, and what is tested and traced would no longer be
what runs, byte for byte.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import gc
import heapq
import json
import os
import select
import signal
import stat
import struct
import sys
import termios
import time
from collections import deque
from typing import Any, Callable, Dict  # noqa: UP035  Python 3.8 evaluates the alias below

PROTOCOL = 1
HEADER = struct.Struct("!IcI")
COUNT = struct.Struct("!I")
SIZE = struct.Struct("!HH")
MAX_PAYLOAD = 1 << 20
WINDOW = 256 << 10
CHUNK = 64 << 10
MAX_OUTPUT_LIMIT = 16 << 20

RUN, DATA, CREDIT, SIGNAL, RESIZE, KILL = b"R", b"D", b"C", b"S", b"Z", b"K"
FREEZE, THAW, WRITE, READ, STAT, COUNTERS, EDIT = b"F", b"T", b"W", b"G", b"L", b"N", b"M"
USAGE, CONNECT = b"U", b"P"
LISTEN, TUNNEL, OPENED = b"l", b"t", b"o"
HELLO, STDOUT, STDERR, INPUT_CLOSED, RESULT, FAILED = b"H", b"O", b"E", b"I", b"X", b"!"
BEGUN = b"B"

CONGESTED_ABOVE = 1 << 20
CONGESTED_BELOW = 256 << 10
READY_REAPERS = 3
MAX_QUEUED = 4096
MAX_TRANSFERS = 64
MAX_CONNECTIONS = 256
MAX_TUNNELS = 256
ACCEPT_RETRY = 0.05
LEFTOVER_GRACE = 0.25
TIMEOUT_GRACE = 1.0
SPAWN_PATIENCE = 30.0
SPAWN_RETRY = 0.02
REFILL_PAUSE = 0.003
KILL_PATIENCE = 10.0
FREEZE_PATIENCE = 5.0
PIPE_CAPACITY = 1 << 20
OOM_OFFSET = 500
LINE_END_OF_FILE = b"\x04"
RENAME_NOREPLACE = 1  # renameat2(2)
# Of /proc/PID/stat, counted from the state (proc_pid_stat(5)).
UTIME_FIELD, STIME_FIELD, CUTIME_FIELD, CSTIME_FIELD, THREADS_FIELD, RSS_FIELD = 11, 12, 13, 14, 17, 21

# Linux uapi: prctl.h, seccomp.h, audit.h, and each architecture's system call table.
PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_NAME, PR_SET_SECCOMP = 1, 4, 15, 22
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 36, 38
SECCOMP_MODE_FILTER = 2
SECCOMP_ALLOW, SECCOMP_ERRNO = 0x7FFF0000, 0x00050000
BPF_LOAD, BPF_EQUAL, BPF_AT_LEAST, BPF_ANY_OF, BPF_RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
SECCOMP_NR, SECCOMP_ARCH, SECCOMP_ARG0 = 0, 4, 16
CLONE_NEWUSER = 0x10000000
X32_BIT = 0x40000000
SOCKET_FAMILIES = (1, 2, 10, 16)  # unix, inet, inet6, netlink
# audit, socket, socketpair, clone, unshare
ARCHITECTURES = {"x86_64": (0xC000003E, 41, 53, 56, 272), "aarch64": (0xC00000B7, 198, 199, 220, 97)}
UNCONFINED = {  # io_uring_setup, clone3, add_key, request_key, keyctl, bpf, perf_event_open, syslog
    "x86_64": (425, 435, 248, 249, 250, 321, 298, 103),
    "aarch64": (425, 435, 217, 218, 219, 280, 241, 116),
}

REPORT = struct.Struct("!ciiQQQ")
TAKEN, STARTED, NOT_STARTED, ENDED, ALL_ENDED = b"T", b"S", b"E", b"X", b"A"
STAGE_SPAWN, STAGE_DIRECTORY = 0, 1

FAULTS = {signal.SIGKILL, signal.SIGSTOP, signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGABRT}

Json = Dict[str, Any]  # noqa: UP006


class Refused(Exception):  # noqa: N818  an answer, not a fault of this program
    """A request that can't be done: becomes a FAILED frame."""

    def __init__(self, code: str, message: str, number: int = 0) -> None:
        super().__init__(message)
        self.code = code
        self.number = number


class ProtocolError(Exception):
    """The other end doesn't speak our frames: nothing sensible can follow."""


# ---------------------------------------------------------------------------------------------------------------------
# This process


def prctl(option: int, value: int = 0, pointer: Any = 0) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, ctypes.c_ulong(value), pointer, 0, 0):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")


def set_name(name: bytes) -> None:
    buffer = ctypes.create_string_buffer(name)
    ctypes.CDLL(None).prctl(PR_SET_NAME, buffer, 0, 0, 0)


def seccomp_program(machine: str) -> bytes:
    """The filter, as an array of `struct sock_filter`: what no namespace confines is taken away.

    AF_VSOCK reaches the hypervisor from any network namespace, io_uring opens sockets without the system call, keyrings
    are those of whoever started us, with their tickets and keys in them, and a foreign ABI has other numbers for all. In a
    user namespace of its own a command would have capabilities again, which not every engine forbids; clone3 keeps what it
    asks for where no filter can look, and its callers fall back to clone.
    """
    audit, socket_number, pair_number, clone_number, unshare_number = ARCHITECTURES[machine]
    families = len(SOCKET_FAMILIES)
    no_such_call = (BPF_RETURN, 0, 0, SECCOMP_ERRNO | errno.ENOSYS)
    code: list[tuple[int, int, int, int]] = [
        (BPF_LOAD, 0, 0, SECCOMP_ARCH),
        (BPF_EQUAL, 1, 0, audit),
        no_such_call,
        (BPF_LOAD, 0, 0, SECCOMP_NR),
        (BPF_AT_LEAST, 0, 1, X32_BIT),
        no_such_call,
    ]
    for number in UNCONFINED[machine]:
        code += [(BPF_EQUAL, 0, 1, number), no_such_call]
    code += [
        (BPF_EQUAL, 4, 0, clone_number),
        (BPF_EQUAL, 3, 0, unshare_number),
        (BPF_EQUAL, 5, 0, socket_number),
        (BPF_EQUAL, 4, 0, pair_number),
        (BPF_RETURN, 0, 0, SECCOMP_ALLOW),
        (BPF_LOAD, 0, 0, SECCOMP_ARG0),
        (BPF_ANY_OF, 0, families + 3, CLONE_NEWUSER),
        (BPF_RETURN, 0, 0, SECCOMP_ERRNO | errno.EPERM),
        (BPF_LOAD, 0, 0, SECCOMP_ARG0),
    ]
    code += [(BPF_EQUAL, families - i, 0, family) for i, family in enumerate(SOCKET_FAMILIES)]
    code += [(BPF_RETURN, 0, 0, SECCOMP_ERRNO | errno.EAFNOSUPPORT), (BPF_RETURN, 0, 0, SECCOMP_ALLOW)]
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in code)


def install_seccomp() -> None:
    machine = os.uname().machine
    if machine not in ARCHITECTURES or struct.calcsize("P") != 8 or sys.byteorder != "little":
        raise OSError(errno.ENOTSUP, f"no system call filter for this machine: {machine}")
    program = seccomp_program(machine)
    buffer = ctypes.create_string_buffer(program, len(program))
    # struct sock_fprog: unsigned short, padding, pointer
    header = ctypes.create_string_buffer(struct.pack("=HxxxxxxQ", len(program) // 8, ctypes.addressof(buffer)), 16)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header)


def unix_sockets_work() -> bool:
    fd = ctypes.CDLL(None).socket(1, 1 | 0o2000000, 0)
    if fd < 0:
        return False
    os.close(fd)
    return True


def no_operation(_number: int, _frame: object) -> None:
    """Handle a signal by doing nothing: SIG_IGN would be inherited by every command."""


def read_bytes(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""


def read_text(path: str) -> str:
    return read_bytes(path).decode("utf-8", "replace")


def read_number(path: str) -> int | None:
    """A counter; None where it doesn't exist, 0 where it says "max" or what cgroup v1 writes for no limit."""
    text = read_text(path).strip()
    if not text:
        return None
    if text == "max":
        return 0
    try:
        number = int(text)
    except ValueError:
        return None
    return 0 if number >= 1 << 62 else number


def open_or_not(path: str) -> int:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


def pread_field(fd: int, name: bytes) -> int | None:
    """A counter of a file of "name value" lines that is held open; None where there is no such file or line."""
    if fd < 0:
        return None
    _, found, rest = os.pread(fd, 4096, 0).partition(name)
    return int(rest.split(None, 1)[0]) if found else None


class Cgroup:
    """What the kernel counts for this sandbox; a value is None where this kernel or engine doesn't have it."""

    def __init__(self) -> None:
        root = "/sys/fs/cgroup/"
        if os.path.exists(root + "cgroup.controllers"):
            self.version = 2
            self.memory = root
            self.pids = root
        else:
            self.version = 1 if os.path.isdir(root + "memory") else 0
            self.memory = root + "memory/"
            self.pids = root + "pids/"
        self.root = root
        # Read for every command, so they stay open.
        self.oom_fd = open_or_not(self.memory + ("memory.events" if self.version == 2 else "memory.oom_control"))
        self.pids_fd = open_or_not(self.pids + "pids.events")

    def oom_kills(self) -> int | None:
        return pread_field(self.oom_fd, b"oom_kill ")

    def pids_refused(self) -> int | None:
        return pread_field(self.pids_fd, b"max ")

    def limits(self) -> Json:
        if self.version == 2:
            memory = read_number(self.memory + "memory.max")
            quota, _, period = read_text(self.root + "cpu.max").strip().partition(" ")
        else:
            memory = read_number(self.memory + "memory.limit_in_bytes")
            quota = read_text(self.root + "cpu/cpu.cfs_quota_us").strip()
            period = read_text(self.root + "cpu/cpu.cfs_period_us").strip()
        cpus = int(quota) / int(period) if quota.isdigit() and period.isdigit() and int(period) else 0.0
        return {"memory_bytes": memory, "pids": read_number(self.pids + "pids.max"), "cpus": cpus}

    def counters(self) -> Json:
        if self.version == 2:
            used = read_number(self.memory + "memory.current")
            peak = read_number(self.memory + "memory.peak")
        else:
            used = read_number(self.memory + "memory.usage_in_bytes")
            peak = read_number(self.memory + "memory.max_usage_in_bytes")
        return {
            "memory_bytes": used,
            "memory_peak_bytes": peak,
            "oom_kills": self.oom_kills(),
            "pids": read_number(self.pids + "pids.current"),
            "pids_peak": read_number(self.pids + "pids.peak"),
            "pids_refused": self.pids_refused(),
        }


def unescape(field: bytes) -> bytes:
    """Undo the octal escapes of /proc/self/mountinfo."""
    first, *rest = field.split(b"\\")
    return first + b"".join(bytes([int(part[:3], 8)]) + part[3:] for part in rest)


def mount_facts(target: str) -> Json:
    """What /proc/self/mountinfo (proc(5)) says of a mount point: the last line counts, it's on top."""
    facts: Json = {"target": target, "type": "", "writable": False, "line": ""}
    for line in read_bytes("/proc/self/mountinfo").splitlines():
        fields = line.split(b" ")
        if len(fields) > 6 and unescape(fields[4]) == encode(target) and b"-" in fields:
            facts["type"] = fields[fields.index(b"-") + 1].decode("utf-8", "replace")
            facts["writable"] = b"rw" in fields[5].split(b",")
            facts["line"] = line[:4096].decode("utf-8", "backslashreplace")
    return facts


# ---------------------------------------------------------------------------------------------------------------------
# Processes


def scan() -> dict[int, tuple[int, str]]:
    """Every process that we can see: its parent and its state. A zombie is listed, since it may have children."""
    processes: dict[int, tuple[int, str]] = {}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            fd = os.open("/proc/" + name + "/stat", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            line = os.read(fd, 1024)
        except OSError:
            continue
        finally:
            os.close(fd)
        # The second field is the program's own name, in parentheses, with any bytes in it.
        fields = line[line.rfind(b")") + 2 :].split(b" ", THREADS_FIELD + 1)
        if len(fields) > THREADS_FIELD:
            state = fields[0].decode("ascii", "replace")
            if state in "ZX" and int(fields[THREADS_FIELD]) > 1:
                state = state_of_threads(name)
            processes[int(name)] = (int(fields[1]), state)
    return processes


def state_of_threads(pid: str) -> str:
    """The state of a process whose first thread, whose state passes for the process's, has ended before the others."""
    directory = "/proc/" + pid + "/task/"
    try:
        threads = os.listdir(directory)
    except OSError:
        return "Z"
    states = [line[line.rfind(b")") + 2 :][:1] for line in (read_bytes(directory + one + "/stat") for one in threads)]
    alive = [state for state in states if state not in (b"", b"Z", b"X")]
    running = [state for state in alive if state not in (b"T", b"t")]
    return (running or alive or [b"Z"])[0].decode("ascii", "replace")


def writes_to_a_file_in_memory(pid: int) -> bool:
    """Whether a process shares a file's pages for writing, or doesn't let that be seen.

    A write to such a page leaves no time on the file until the page has been written to disk and is written to again.
    """
    directory = "/proc/" + str(pid) + "/task/"
    try:
        threads = os.listdir(directory)
    except OSError:
        return False
    # The first thread has none where it has ended before the others.
    maps = next(filter(None, (read_bytes(directory + thread + "/maps") for thread in threads)), b"")
    for line in maps.splitlines():
        fields = line.split(None, 5)
        is_shared = len(fields) > 5 and fields[1][1:2] == b"w" and fields[1][3:4] == b"s"
        if is_shared and fields[5].startswith(b"/") and not fields[5].startswith((b"/dev/", b"/memfd:", b"/SYSV")):
            return True
    return not maps


def below(processes: dict[int, tuple[int, str]], roots: set[int]) -> list[int]:
    """The living descendants of `roots`, parents before children."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    found: list[int] = []
    seen = set(roots)
    layer = list(roots)
    while layer:
        layer = [pid for parent in layer for pid in children.get(parent, ()) if pid not in seen]
        seen.update(layer)
        found += [pid for pid in layer if processes[pid][1] not in "ZX"]
    return found


def usage_of(reaper: int, pids: list[int]) -> list[int]:
    """What a reaper's processes take: CPU time in ms with that of those it has collected, memory in bytes, their number."""
    ticks = pages = 0
    for pid in (reaper, *pids):
        line = read_bytes("/proc/" + str(pid) + "/stat")
        fields = line[line.rfind(b")") + 2 :].split(b" ", RSS_FIELD + 1)
        if len(fields) <= RSS_FIELD:
            continue
        ticks += int(fields[CUTIME_FIELD]) + int(fields[CSTIME_FIELD])
        if pid != reaper:
            ticks += int(fields[UTIME_FIELD]) + int(fields[STIME_FIELD])
            pages += int(fields[RSS_FIELD])
    return [ticks * 1000 // os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE"), len(pids)]


def send_signal(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def stop_and_kill(find: Callable[[dict[int, tuple[int, str]]], list[int]]) -> set[int]:
    """Stop what `find` finds until nothing new appears, so that a fork bomb can't outrun us, then kill it all."""
    victims: set[int] = set()
    for _ in range(10):
        fresh = [pid for pid in find(scan()) if pid not in victims]
        if not fresh:
            break
        for pid in fresh:
            send_signal(pid, signal.SIGSTOP)
        victims.update(fresh)
    for pid in victims:
        send_signal(pid, signal.SIGKILL)
    return victims


# ---------------------------------------------------------------------------------------------------------------------
# A reaper: runs in its own process, starts one command, and collects everything that this leaves


def candidates(program: bytes, path: bytes, failures: list[int]) -> list[bytes]:
    """Where `execvp` would look for a program; what is there but can't be executed is noted in `failures`."""
    if b"/" in program:
        return [program]
    found = []
    for directory in path.split(b":"):
        candidate = os.path.join(directory or b".", program)
        try:
            mode = os.stat(candidate).st_mode
        except OSError as error:
            failures.append(error.errno or errno.EIO)
            continue
        if stat.S_ISREG(mode) and os.access(candidate, os.X_OK):
            found.append(candidate)
        else:
            failures.append(errno.EACCES)
    return found


def spawn_by_fork(
    program: bytes, argv: list[bytes], environment: dict[bytes, bytes], actions: list[tuple[Any, ...]]
) -> int:
    """`posix_spawn` for a Python built against a C library without POSIX_SPAWN_SETSID."""
    error_read, error_write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setsid()
            for action in actions:
                if action[0] == os.POSIX_SPAWN_DUP2:
                    os.dup2(action[1], action[2])
                else:
                    fd = os.open(action[2], action[3])
                    os.dup2(fd, action[1])
            signal.pthread_sigmask(signal.SIG_SETMASK, [])
            os.execve(program, argv, environment)
        except OSError as error:
            os.write(error_write, COUNT.pack(error.errno or errno.EIO))
        finally:
            os._exit(127)
    os.close(error_write)
    data = os.read(error_read, COUNT.size)
    os.close(error_read)
    if data:
        os.waitpid(pid, 0)
        number = COUNT.unpack(data)[0]
        raise OSError(number, os.strerror(number))
    return pid


def spawn(program: bytes, argv: list[bytes], environment: dict[bytes, bytes], actions: list[tuple[Any, ...]]) -> int:
    try:
        return os.posix_spawn(program, argv, environment, file_actions=actions, setsid=True, setsigmask=[])
    except NotImplementedError:
        return spawn_by_fork(program, argv, environment, actions)


def spawn_command(spec: Json, actions: list[tuple[Any, ...]]) -> int:
    """Start a command as a shell's `execvp` would; raises the OSError that says why none could be started."""
    argv = [encode(word) for word in spec["argv"]]
    environment = {encode(name): encode(value) for name, value in spec["environment"].items()}
    failures: list[int] = []
    for program in candidates(argv[0], environment.get(b"PATH", os.defpath.encode()), failures):
        try:
            return spawn(program, argv, environment, actions)
        except OSError as error:
            if error.errno == errno.ENOEXEC:
                # Text without a "#!" line: POSIX has execvp run it with the shell.
                return spawn(b"/bin/sh", [b"sh", program, *argv[1:]], environment, actions)
            if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.E2BIG):
                raise
            failures.append(error.errno or errno.EIO)
    worst = [number for number in failures if number not in (errno.ENOENT, errno.ENOTDIR)]
    number = worst[0] if worst else errno.ENOENT
    raise OSError(number, os.strerror(number))


def read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            os._exit(0)
        data += more
    return data


def reap(control: int, report: int, stdin: int, stdout: int, stderr: int) -> None:
    """The life of a reaper: wait for a command, start it, tell how it ended, collect the rest. Never returns."""
    user = system = peak = 0

    def tell(kind: bytes, first: int = 0, second: int = 0) -> None:
        os.write(report, REPORT.pack(kind, first, second, user, system, peak))

    def collect(flags: int) -> tuple[int, int]:
        nonlocal user, system, peak
        pid, status, used = os.wait4(-1, flags)
        user += int(used.ru_utime * 1e6)
        system += int(used.ru_stime * 1e6)
        peak = max(peak, used.ru_maxrss)
        return pid, status

    spec = json.loads(read_exactly(control, COUNT.unpack(read_exactly(control, COUNT.size))[0]))
    # Said first: a reaper that another command killed before this has surely started nothing.
    tell(TAKEN)
    stage = STAGE_DIRECTORY
    try:
        os.chdir(encode(spec["cwd"]))
        stage = STAGE_SPAWN
        actions: list[tuple[Any, ...]]
        if spec["tty"]:
            # Opened by a session leader without a terminal, it becomes the controlling one.
            actions = [(os.POSIX_SPAWN_OPEN, 0, spec["tty"], os.O_RDWR, 0)]
            actions += [(os.POSIX_SPAWN_DUP2, 0, 1), (os.POSIX_SPAWN_DUP2, 0, 2)]
        else:
            actions = [(os.POSIX_SPAWN_DUP2, stdin, 0)] if spec["stdin"] else []
            actions += [(os.POSIX_SPAWN_DUP2, stdout, 1), (os.POSIX_SPAWN_DUP2, stderr, 2)]
        main = spawn_command(spec, actions)
    except OSError as error:
        tell(NOT_STARTED, error.errno or errno.EIO, stage)
        os._exit(0)
    tell(STARTED, main)
    for fd in (stdin, stdout, stderr):
        os.close(fd)
    os.chdir("/")
    while True:
        try:
            pid, status = collect(0)
        except ChildProcessError:
            tell(ALL_ENDED)
            os._exit(0)
        if pid == main:
            left = 0
            try:
                while collect(os.WNOHANG)[0]:
                    pass
                left = 1
            except ChildProcessError:
                pass
            tell(ENDED, status, left)


class Reaper:
    """Our side of a reaper: its process id, and our ends of its pipes."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.job: Job | None = None
        pipes: list[int] = []
        try:
            for _ in range(5):
                pipes += os.pipe()
            self.pid = supervisor.fork()
        except OSError:
            for fd in pipes:
                os.close(fd)
            raise
        theirs = [pipes[0], pipes[3], pipes[4], pipes[7], pipes[9]]
        if not self.pid:
            self.become(theirs)
        for fd in theirs:
            os.close(fd)
        self.control, self.report = pipes[1], pipes[2]
        self.stdin, self.stdout, self.stderr = pipes[5], pipes[6], pipes[8]
        for fd in (self.control, self.report, self.stdin, self.stdout, self.stderr):
            os.set_blocking(fd, False)

    @staticmethod
    def become(mine: list[int]) -> None:
        """In the fork: let go of everything that belongs to others, then live as a reaper."""
        try:
            signal.set_wakeup_fd(-1)
            gc.disable()
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            prctl(PR_SET_CHILD_SUBREAPER, 1)
            set_name(b"workbench-job")
            # A process group of its own, so that a command's kill of its group never reaches us.
            os.setsid()
            for name in os.listdir("/proc/self/fd"):
                fd = int(name)
                if fd > 2 and fd not in mine:
                    try:
                        os.close(fd)
                    except OSError:
                        continue  # the listing's own descriptor
            reap(*mine)
        finally:
            os._exit(70)

    def fds(self) -> tuple[int, ...]:
        return (self.control, self.report, self.stdin, self.stdout, self.stderr)


# ---------------------------------------------------------------------------------------------------------------------
# A command's streams


class Input:
    """What is on its way into a pipe or a terminal: at most one window of it."""

    def __init__(
        self, supervisor: Supervisor, fd: int, written: Callable[[int], None], broken: Callable[[], None]
    ) -> None:
        self.supervisor = supervisor
        self.fd = fd
        self.buffer = bytearray()
        self.written = written
        self.broken = broken
        self.ending = False
        self.watched = False

    def add(self, data: bytes) -> None:
        if self.fd < 0:
            self.written(len(data))
            return
        self.buffer += data
        self.flush()

    def end(self) -> None:
        self.ending = True
        self.flush()

    def flush(self, _mask: int = 0) -> None:
        while self.buffer and self.fd >= 0:
            try:
                count = os.write(self.fd, self.buffer)
            except BlockingIOError:
                break
            except OSError:
                self.written(len(self.buffer))
                self.close()
                self.broken()
                return
            del self.buffer[:count]
            self.written(count)
        if self.buffer:
            if not self.watched:
                self.supervisor.watch(self.fd, select.EPOLLOUT, self.flush)
                self.watched = True
        elif self.ending:
            self.close()
        elif self.watched:
            self.supervisor.unwatch(self.fd)
            self.watched = False

    def close(self) -> None:
        if self.fd >= 0:
            if self.watched:
                self.supervisor.unwatch(self.fd)
                self.watched = False
            os.close(self.fd)
            self.fd = -1
        self.buffer.clear()


class SocketInput(Input):
    """What is on its way into a socket, over a descriptor of its own; its end is said to the other side."""

    def __init__(
        self, supervisor: Supervisor, target: Any, written: Callable[[int], None], broken: Callable[[], None]
    ) -> None:
        super().__init__(supervisor, os.dup(target.fileno()), written, broken)
        self.target = target

    def close(self) -> None:
        if self.fd >= 0:
            try:
                self.target.shutdown(1)
            except OSError:
                pass  # it's closed on the other side
        super().close()


class Output:
    """One output stream: passed on as the host grants credit, bounded to a head and a tail where there is a limit."""

    def __init__(self, job: Job, fd: int, kind: bytes, limit: int) -> None:
        self.job = job
        self.fd = fd
        self.kind = kind
        self.limited = limit > 0
        self.head_left = limit - limit // 2
        self.tail_limit = limit // 2
        self.tail = bytearray()
        self.omitted = 0
        self.watched = False
        self.last_bytes = PIPE_CAPACITY

    def room(self) -> int:
        if self.job.discard or (self.limited and not self.head_left):
            return CHUNK
        if self.job.supervisor.congested:
            return 0
        return min(CHUNK, self.job.credit, self.head_left if self.limited else CHUNK)

    def update(self) -> None:
        """Listen to the pipe exactly while we could take something from it."""
        wanted = self.fd >= 0 and self.room() > 0
        if wanted and not self.watched:
            self.job.supervisor.watch(self.fd, select.EPOLLIN, self.readable)
        elif self.watched and not wanted:
            self.job.supervisor.unwatch(self.fd)
        self.watched = wanted

    def readable(self, _mask: int = 0) -> None:
        """Read once; once the command's processes are gone, read all that is left, and no more."""
        while self.fd >= 0:
            size = self.room()
            if size <= 0:
                break
            try:
                data = os.read(self.fd, size)
            except BlockingIOError:
                if self.job.gone:
                    self.close()
                break
            except OSError:
                data = b""  # a terminal whose other side is closed says EIO
            if not data:
                self.close()
                break
            self.take(data)
            if not self.job.gone:
                break
            self.last_bytes -= len(data)
            if self.last_bytes <= 0:
                self.close()
        self.update()
        if self.fd < 0:
            self.job.settle()

    def take(self, data: bytes) -> None:
        if self.job.discard:
            self.omitted += len(data)
        elif self.limited and not self.head_left:
            self.tail += data
            if len(self.tail) > 2 * self.tail_limit + CHUNK:
                self.trim()
        else:
            if self.limited:
                self.head_left -= len(data)
            self.job.send(self.kind, data)

    def trim(self) -> None:
        excess = len(self.tail) - self.tail_limit
        if excess > 0:
            del self.tail[:excess]
            self.omitted += excess

    def flush_tail(self) -> bool:
        """Send what was held back; False where credit ran out before its end."""
        self.trim()
        if self.job.discard:
            self.omitted += len(self.tail)
            self.tail.clear()
        while self.tail:
            size = min(CHUNK, self.job.credit)
            if size <= 0 or self.job.supervisor.congested:
                return False
            self.job.send(self.kind, bytes(self.tail[:size]))
            del self.tail[:size]
        return True

    def close(self) -> None:
        if self.fd >= 0:
            if self.watched:
                self.job.supervisor.unwatch(self.fd)
                self.watched = False
            os.close(self.fd)
            self.fd = -1


# ---------------------------------------------------------------------------------------------------------------------
# What the host asked for: each request lives under its id until its RESULT or FAILED


class Request:
    """Something that takes more than one frame; `credit` is how many bytes the host will take from it."""

    def __init__(self, supervisor: Supervisor, number: int) -> None:
        self.supervisor = supervisor
        self.number = number
        self.credit = WINDOW

    def send(self, kind: bytes, data: bytes) -> None:
        self.credit -= len(data)
        self.supervisor.send(kind, self.number, data)

    def finish(self, answer: Json) -> None:
        self.supervisor.requests.pop(self.number, None)
        self.supervisor.answer(self.number, answer)

    def fail(self, code: str, message: str, number: int = 0) -> None:
        self.supervisor.requests.pop(self.number, None)
        self.supervisor.refuse(self.number, Refused(code, message, number))

    def data(self, payload: bytes) -> None:
        raise ProtocolError("this request takes no data")

    def resume(self) -> None:
        """Go on: credit has come, or the stream to the host is free again."""

    def kill(self, options: Json) -> None:
        """The host has lost interest."""


# ---------------------------------------------------------------------------------------------------------------------
# A command


class Job(Request):
    """One command, from its request until its result was sent."""

    def __init__(self, supervisor: Supervisor, number: int, spec: Json) -> None:
        super().__init__(supervisor, number)
        self.argv = strings(spec.get("argv"))
        if not self.argv or not self.argv[0]:
            raise Refused("command_not_found", "the command is empty", errno.ENOENT)
        environment = spec.get("environment")
        if not isinstance(environment, dict):
            raise ProtocolError("environment")
        if not all(isinstance(value, str) and name and "=" not in name for name, value in environment.items()):
            raise Refused("invalid_options", "an environment variable's name or value can't be passed on")
        self.environment = {**supervisor.environment, **environment}
        self.cwd = os.path.join(supervisor.directory, spec["cwd"]) if spec.get("cwd") else supervisor.directory
        words = [self.cwd, *self.argv, *environment.keys(), *environment.values()]
        try:
            forbidden = any(b"\0" in encode(word) for word in words)
        except UnicodeEncodeError:
            forbidden = True
        if forbidden:
            raise Refused("invalid_options", "a command, its directory or its environment holds a character it can't")
        self.tty = bool(spec.get("tty"))
        self.takes_input = bool(spec.get("stdin"))
        self.size = (whole(spec.get("rows"), 24) & 0xFFFF, whole(spec.get("columns"), 80) & 0xFFFF)
        self.output_limit = min(whole(spec.get("output_limit"), 0), MAX_OUTPUT_LIMIT)
        self.received = self.over = time.monotonic()
        self.reaper: Reaper | None = None
        self.slave = -1
        self.control: Input | None = None
        self.input: Input | None = None
        self.early_input = bytearray()
        self.input_ended = False
        self.outputs: list[Output] = []
        self.main = 0
        self.status: int | None = None
        self.failure: tuple[int, int] | None = None
        self.taken = False
        self.gone = False
        self.finished = False
        self.discard = False
        self.timed_out = False
        self.ended_by = ""
        self.killing = False
        self.kill_until = 0.0
        self.kill_pause = 0.002
        self.killed: set[int] = set()
        self.overdue = False
        self.signals: list[int] = []
        self.oom_before: int | None = None
        self.pids_before: int | None = None
        self.announced = bool(spec.get("announce"))
        self.user_us = self.system_us = self.peak_kb = 0
        timeout = whole(spec.get("timeout_ms"), 0)
        self.timer = supervisor.after(timeout / 1000, self.time_out) if timeout else None
        self.counted = False

    # Starting

    def open_terminal(self) -> None:
        """Make the pseudo-terminal, where one is wanted. Raises OSError where none can be had."""
        if self.tty and self.slave < 0:
            master, self.slave = os.openpty()
            os.set_blocking(master, False)
            self.outputs = [Output(self, master, STDOUT, self.output_limit)]
            self.resize(*self.size)

    def start(self, reaper: Reaper) -> None:
        """Give the command to a reaper."""
        self.oom_before = self.supervisor.cgroup.oom_kills()
        self.pids_before = self.supervisor.cgroup.pids_refused()
        self.reaper = reaper
        reaper.job = self
        self.supervisor.watch(reaper.report, select.EPOLLIN, self.reported)
        if self.tty:
            for fd in (reaper.stdin, reaper.stdout, reaper.stderr):
                os.close(fd)
            self.input = Input(self.supervisor, os.dup(self.terminal), self.grant, self.input_closed)
        else:
            self.outputs = [
                Output(self, reaper.stdout, STDOUT, self.output_limit),
                Output(self, reaper.stderr, STDERR, self.output_limit),
            ]
            self.input = Input(self.supervisor, reaper.stdin, self.grant, self.input_closed)
            if not self.takes_input:
                self.input.close()
        spec = {
            "argv": self.argv,
            "cwd": self.cwd,
            "environment": self.environment,
            "tty": os.ttyname(self.slave) if self.tty else "",
            "stdin": self.takes_input,
        }
        message = json.dumps(spec).encode()
        self.control = Input(self.supervisor, reaper.control, lambda count: None, lambda: None)
        self.control.add(COUNT.pack(len(message)) + message)
        self.control.end()
        for output in self.outputs:
            output.update()

    @property
    def terminal(self) -> int:
        """The master side of the pseudo-terminal, -1 where there is none, or none any more."""
        return self.outputs[0].fd if self.tty and self.outputs else -1

    def reported(self, _mask: int = 0) -> bool:
        """Read a report of our reaper; False where there is none."""
        reaper = self.reaper
        if reaper is None:
            return False
        try:
            data = os.read(reaper.report, REPORT.size)
        except BlockingIOError:
            return False
        if len(data) < REPORT.size:
            self.supervisor.unwatch(reaper.report)
            return False
        kind, first, second, self.user_us, self.system_us, self.peak_kb = REPORT.unpack(data)
        if kind == TAKEN:
            self.taken = True
        elif kind == STARTED:
            self.main = first
            if self.announced:
                self.supervisor.send(BEGUN, self.number, COUNT.pack(first))
            self.supervisor.starting.discard(self)
            self.close_slave()
            self.feed_early_input()
            if not self.supervisor.frozen:
                self.flush_signals()
        elif kind == NOT_STARTED:
            self.failure = (first, second)
        elif kind == ENDED:
            self.status = first
            if not second:
                # Nothing of it is left, and the reaper is on its way out: no need to wait for that.
                reaper.job = None
                self.all_gone()
            elif not self.killing:
                self.supervisor.after(LEFTOVER_GRACE, self.end_leftovers)
        return True

    def close_slave(self) -> None:
        if self.slave >= 0:
            os.close(self.slave)
            self.slave = -1

    # While it runs

    def feed_early_input(self) -> None:
        """Only once the command has started: what went to one that couldn't be would be lost to the next try."""
        early, self.early_input = bytes(self.early_input), bytearray()
        if early and self.input:
            self.input.add(early)
        if self.input_ended:
            self.end_input()

    def data(self, payload: bytes) -> None:
        if not payload:
            self.input_ended = True
            if self.main:
                self.end_input()
        elif self.main and self.input:
            self.input.add(payload)
        else:
            self.early_input += payload
        pending = len(self.early_input) + (len(self.input.buffer) if self.input else 0)
        if pending > WINDOW:
            raise ProtocolError("more input than credit")

    def end_input(self) -> None:
        if self.input and self.tty:
            self.input.add(LINE_END_OF_FILE)
        elif self.input:
            self.input.end()

    def grant(self, count: int) -> None:
        if count and not self.finished:
            self.supervisor.send(CREDIT, self.number, COUNT.pack(count))

    def input_closed(self) -> None:
        if not self.finished:
            self.supervisor.send(INPUT_CLOSED, self.number)

    def resume(self) -> None:
        for output in self.outputs:
            if self.gone:
                output.readable()
            else:
                output.update()
        self.settle()

    def resize(self, rows: int, columns: int) -> None:
        self.size = (rows, columns)
        if self.terminal >= 0:
            fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def signal(self, number: int) -> None:
        """To the terminal's foreground group, or to the command's own group where it has no terminal."""
        if not 1 <= number < signal.NSIG:
            raise ProtocolError("no such signal")
        if not self.main or self.supervisor.frozen:
            if len(self.signals) < 64:
                self.signals.append(number)
            return
        if self.status is not None:
            return
        group = self.main
        if self.terminal >= 0:
            try:
                group = os.tcgetpgrp(self.terminal) or group
            except OSError:
                group = self.main
        try:
            os.killpg(group, number)
        except OSError:
            return

    def flush_signals(self) -> None:
        signals, self.signals = self.signals, []
        for number in signals:
            self.signal(number)

    # Ending

    def time_out(self) -> None:
        if self.gone or self.status is not None:
            return
        if self.supervisor.frozen:
            self.overdue = True
            return
        self.timed_out = True
        self.terminate(TIMEOUT_GRACE, signal.SIGTERM)

    def kill(self, options: Json) -> None:
        self.discard = self.discard or bool(options.get("discard"))
        reason = options.get("reason")
        if isinstance(reason, str) and self.status is None and not self.ended_by:
            self.ended_by = reason
        if self.gone:
            self.resume()
            return
        for output in self.outputs:
            output.update()
        number = whole(options.get("signal"), signal.SIGTERM)
        if not 1 <= number < signal.NSIG:
            raise ProtocolError("no such signal")
        self.terminate(0 if self.supervisor.frozen else whole(options.get("grace_ms"), 0) / 1000, number)

    def terminate(self, grace: float, number: int) -> None:
        """Ask the whole tree to end, and kill what hasn't by then."""
        if self.reaper is None:
            self.supervisor.queue.remove(self)
            self.all_gone()
        elif grace > 0:
            for pid in below(scan(), {self.reaper.pid}):
                send_signal(pid, number)
                send_signal(pid, signal.SIGCONT)
            self.supervisor.after(grace, self.kill_tree)
        else:
            self.kill_tree()

    def end_leftovers(self) -> None:
        if self.supervisor.frozen:
            self.overdue = True
        else:
            self.kill_tree()

    def kill_tree(self) -> None:
        if not self.killing and not self.gone:
            self.killing = True
            self.kill_until = time.monotonic() + KILL_PATIENCE
            self.kill_round()

    def kill_round(self) -> None:
        """Kill what is there, again and again until the reaper has nothing left to collect."""
        reaper = self.reaper
        if reaper is None or reaper.pid not in self.supervisor.reapers:
            return
        self.killed |= stop_and_kill(lambda processes: below(processes, {reaper.pid}))
        send_signal(reaper.pid, signal.SIGCONT)
        if time.monotonic() > self.kill_until and not self.gone:
            # A process in an uninterruptible wait dies when the kernel lets it; nobody waits for that.
            self.all_gone()
        self.supervisor.after(self.kill_pause, self.kill_round)
        self.kill_pause = min(self.kill_pause * 2, 0.2 if not self.gone else 1.0)

    def reaper_ended(self, clean: bool) -> None:
        """Our reaper is dead: by itself, since nothing is left, or killed by the command."""
        while self.reaper and self.supervisor.watched(self.reaper.report) and self.reported():
            pass
        self.supervisor.starting.discard(self)
        self.close_slave()
        out_of_room = self.failure is not None and self.failure[0] in (errno.EAGAIN, errno.ENOMEM)
        if not self.killing and (out_of_room or not (clean or self.taken)):
            self.start_again()
        elif not clean and self.failure is None:
            self.supervisor.lost.append(self)
            self.supervisor.kill_strays()
        else:
            self.all_gone()

    def start_again(self) -> None:
        """It never ran, for want of room for another process or of a living reaper: back to the head of the queue."""
        if time.monotonic() - self.received > SPAWN_PATIENCE:
            self.all_gone()
            return
        self.failure = None
        self.taken = False
        self.release()
        self.supervisor.job_waits(self)

    def release(self) -> None:
        reaper, self.reaper = self.reaper, None
        if reaper:
            self.supervisor.unwatch(reaper.report)
            os.close(reaper.report)
        if self.control:
            self.control.close()
        if self.input:
            self.input.close()
            self.input = None
        for output in self.outputs:
            output.close()
        self.outputs = []
        self.close_slave()

    def all_gone(self) -> None:
        self.gone = True
        self.over = time.monotonic()
        self.resume()

    def settle(self) -> None:
        """Send the result, once every process is gone and every byte is on its way."""
        if self.finished or not self.gone or any(output.fd >= 0 for output in self.outputs):
            return
        if not all(output.flush_tail() for output in self.outputs):
            return
        self.finished = True
        omitted = [output.omitted for output in self.outputs]
        self.release()
        if self.failure and not (self.timed_out or self.ended_by):
            self.explain(*self.failure)
        else:
            self.finish(self.result(omitted))
        self.supervisor.job_ended(self)

    def result(self, omitted: list[int]) -> Json:
        status = signal.SIGKILL if self.status is None else self.status
        number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = 128 + number if number else os.WEXITSTATUS(status)
        oom, refused = self.supervisor.cgroup.oom_kills(), self.supervisor.cgroup.pids_refused()
        return {
            "exit_code": code,
            "signal": signal_name(number) if number else "",
            "timed_out": self.timed_out,
            "duration_ms": int((self.over - self.received) * 1000),
            "omitted": omitted,
            "stopped": len(self.killed - {self.main}),
            "out_of_memory": has_risen(self.oom_before, oom),
            "out_of_processes": has_risen(self.pids_before, refused),
            "tmp_full": bool(code) and is_full("/tmp"),
            "home_full": bool(code) and is_full(os.environ.get("HOME", "")),
            "user_cpu_us": self.user_us,
            "system_cpu_us": self.system_us,
            "memory_peak_bytes": self.peak_kb << 10,
            "ended_by": self.ended_by,
        }

    def explain(self, number: int, stage: int) -> None:
        reason = os.strerror(number)
        if stage == STAGE_DIRECTORY:
            self.fail("invalid_directory", f"can't start in {printable(self.cwd)}: {reason}", number)
        elif number in (errno.ENOENT, errno.ENOTDIR):
            self.fail("command_not_found", f"command not found: {printable(self.argv[0])}", number)
        elif number in (errno.EACCES, errno.ENOEXEC, errno.EISDIR, errno.EPERM, errno.ELIBBAD):
            self.fail("command_not_executable", f"can't execute {printable(self.argv[0])}: {reason}", number)
        else:
            self.fail("spawn_failed", f"can't start {printable(self.argv[0])}: {reason}", number)


# ---------------------------------------------------------------------------------------------------------------------
# Files: written, read and changed by their names, never through a symlink


def rename_anew(source: int, name: bytes, target: int, new: bytes) -> None:
    """Rename an entry where nothing is (renameat2(2)); where the C library can't say that, after a look."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "renameat2"):
        try:
            os.stat(new, dir_fd=target, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, new, src_dir_fd=source, dst_dir_fd=target)
            return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
    if libc.renameat2(source, name, target, new, RENAME_NOREPLACE):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


class Writing(Request):
    """A file being written beside its place, to be renamed onto it when all of it is there.

    With `exclusive` only where nothing is by then; with `append` it's no new file, but the end of the one that is there.
    """

    def __init__(self, supervisor: Supervisor, number: int, spec: Json) -> None:
        super().__init__(supervisor, number)
        self.fd = -1
        self.directory, self.name = supervisor.place(spec)
        self.temporary = b""
        self.exclusive = bool(spec.get("exclusive"))
        try:
            mode = spec.get("mode")
            if spec.get("append"):
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
                self.fd = os.open(self.name, flags, 0o666, dir_fd=self.directory)
                if not stat.S_ISREG(os.fstat(self.fd).st_mode):
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
                return
            if mode is None:
                mode = self.mode_there()
            self.temporary = b".workbench-write-" + os.urandom(8).hex().encode()
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            self.fd = os.open(self.temporary, flags, 0o666, dir_fd=self.directory)
            if mode is not None:
                os.fchmod(self.fd, whole(mode, 0) & 0o7777)
        except OSError:
            self.abandon()
            raise

    def mode_there(self) -> int | None:
        try:
            there = os.stat(self.name, dir_fd=self.directory, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return stat.S_IMODE(there.st_mode) if stat.S_ISREG(there.st_mode) else None

    def data(self, payload: bytes) -> None:
        try:
            if payload:
                view = memoryview(payload)
                while view:
                    view = view[os.write(self.fd, view) :]
                self.supervisor.send(CREDIT, self.number, COUNT.pack(len(payload)))
                return
            if self.temporary and self.exclusive:
                rename_anew(self.directory, self.temporary, self.directory, self.name)
            elif self.temporary:
                os.rename(self.temporary, self.name, src_dir_fd=self.directory, dst_dir_fd=self.directory)
            self.temporary = b""
            answer = facts(os.fstat(self.fd))
        except OSError as error:
            self.abandon()
            self.fail("os_error", error.strerror or str(error), error.errno or errno.EIO)
            return
        self.abandon()
        self.finish(answer)

    def kill(self, options: Json) -> None:
        self.abandon()
        self.fail("os_error", os.strerror(errno.ECANCELED), errno.ECANCELED)

    def abandon(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
            if self.temporary:
                try:
                    os.unlink(self.temporary, dir_fd=self.directory)
                except OSError:
                    pass
        os.close(self.directory)


class Reading(Request):
    """A file on its way to the host."""

    def __init__(self, supervisor: Supervisor, number: int, spec: Json) -> None:
        super().__init__(supervisor, number)
        directory, name = supervisor.place(spec)
        try:
            # Never blocks on a FIFO or a lease that the agent has put there.
            self.fd = os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
        finally:
            os.close(directory)
        self.stat = os.fstat(self.fd)
        if not stat.S_ISREG(self.stat.st_mode):
            os.close(self.fd)
            number = errno.EISDIR if stat.S_ISDIR(self.stat.st_mode) else errno.EINVAL
            raise OSError(number, os.strerror(number))
        self.offset = whole(spec.get("offset"), 0)
        self.left = whole(spec.get("length"), 0) or self.stat.st_size

    def resume(self) -> None:
        while self.left > 0:
            size = min(CHUNK, self.credit, self.left)
            if size <= 0 or self.supervisor.congested:
                return
            try:
                data = os.pread(self.fd, size, self.offset)
            except OSError as error:
                os.close(self.fd)
                self.fail("os_error", error.strerror or str(error), error.errno or errno.EIO)
                return
            if not data:
                break
            self.offset += len(data)
            self.left -= len(data)
            self.send(STDOUT, data)
        os.close(self.fd)
        self.finish(facts(self.stat))

    def kill(self, options: Json) -> None:
        os.close(self.fd)
        self.fail("os_error", os.strerror(errno.ECANCELED), errno.ECANCELED)


# ---------------------------------------------------------------------------------------------------------------------
# A port inside, reached from the host


class Connection(Request):
    """A connection to a port that something inside listens on, at the loopback address."""

    def __init__(self, supervisor: Supervisor, number: int, spec: Json) -> None:
        super().__init__(supervisor, number)
        self.port = whole(spec.get("port"), 0)
        if not 1 <= self.port <= 65535:
            raise ProtocolError("no such port")
        self.addresses = ["127.0.0.1", "::1"]
        self.socket: Any = None
        self.input: Input | None = None
        self.early_input = bytearray()
        self.input_ended = False
        self.watching = False

    def connect(self, reason: int = errno.ECONNREFUSED) -> None:
        """Try the next address; `reason` is why there is no other one to be tried."""
        import socket  # only needed here, and it would make every reaper larger

        while self.addresses:
            address = self.addresses.pop(0)
            try:
                family = socket.AF_INET6 if ":" in address else socket.AF_INET
                self.socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
            except OSError:
                continue  # a kernel without this family
            number = self.socket.connect_ex((address, self.port))
            if number == errno.EINPROGRESS:
                self.supervisor.watch(self.socket.fileno(), select.EPOLLOUT, self.settled)
                return
            if not number:
                self.connected()
                return
            self.socket.close()
        self.fail("os_error", os.strerror(reason), reason)

    def settled(self, _mask: int) -> None:
        import socket

        self.supervisor.unwatch(self.socket.fileno())
        number = self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if number:
            self.socket.close()
            self.connect(number)
        else:
            self.connected()

    def connected(self) -> None:
        self.input = SocketInput(self.supervisor, self.socket, self.grant, self.input_closed)
        self.input.add(bytes(self.early_input))
        if self.input_ended:
            self.input.end()
        self.resume()

    def grant(self, count: int) -> None:
        if count:
            self.supervisor.send(CREDIT, self.number, COUNT.pack(count))

    def input_closed(self) -> None:
        self.supervisor.send(INPUT_CLOSED, self.number)

    def data(self, payload: bytes) -> None:
        pending = self.input.buffer if self.input else self.early_input
        if len(pending) + len(payload) > WINDOW:
            raise ProtocolError("more input than credit")
        if self.input is None:
            self.early_input += payload
            self.input_ended = not payload
        elif payload:
            self.input.add(payload)
        else:
            self.input.end()

    def resume(self) -> None:
        """Listen to the socket exactly while we could take something from it."""
        wanted = self.input is not None and self.credit > 0 and not self.supervisor.congested
        if wanted and not self.watching:
            self.supervisor.watch(self.socket.fileno(), select.EPOLLIN, self.readable)
        elif self.watching and not wanted:
            self.supervisor.unwatch(self.socket.fileno())
        self.watching = wanted

    def readable(self, _mask: int = 0) -> None:
        try:
            data = os.read(self.socket.fileno(), min(CHUNK, self.credit))
        except BlockingIOError:
            return
        except OSError:
            self.close()
            self.fail("os_error", os.strerror(errno.ECONNRESET), errno.ECONNRESET)
            return
        if data:
            self.send(STDOUT, data)
            self.resume()
        else:
            self.close()
            self.finish({})

    def kill(self, options: Json) -> None:
        self.close()
        self.fail("os_error", os.strerror(errno.ECANCELED), errno.ECANCELED)

    def close(self) -> None:
        self.supervisor.unwatch(self.socket.fileno())
        if self.input:
            self.input.close()
        self.socket.close()


# ---------------------------------------------------------------------------------------------------------------------
# The way out: connections to a port inside, carried to the host


class Listening(Request):
    """A port of the loopback address; whoever connects talks to the host.

    Over the host's Unix socket where that can be reached from here, else over our own stream: the host is told of the
    connection by OPENED, and takes it by TUNNEL.
    """

    def __init__(self, supervisor: Supervisor, number: int, spec: Json) -> None:
        super().__init__(supervisor, number)
        import socket  # only needed here, and it would make every reaper larger

        path = spec.get("socket")
        if not isinstance(path, str):
            raise ProtocolError("no socket")
        self.path = path
        self.make_socket = socket.socket
        self.listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            self.listener.setblocking(False)
            self.listener.bind(("127.0.0.1", 0))
            self.listener.listen(128)
        except OSError:
            self.listener.close()
            raise
        self.watching = False
        self.last = 0
        self.waiting: dict[int, Any] = {}
        self.splices: set[Splice] = set()

    def begin(self) -> None:
        self.send(STDOUT, json.dumps({"port": self.listener.getsockname()[1]}).encode())
        self.update()

    def update(self) -> None:
        """Accept exactly while there is room: further connections wait in the kernel's queue."""
        wanted = self.supervisor.tunnels < MAX_TUNNELS
        if wanted and not self.watching:
            self.supervisor.watch(self.listener.fileno(), select.EPOLLIN, self.accept)
        elif self.watching and not wanted:
            self.supervisor.unwatch(self.listener.fileno())
        self.watching = wanted

    def accept(self, _mask: int) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                self.supervisor.unwatch(self.listener.fileno())
                self.supervisor.after(ACCEPT_RETRY, self.accept_again)
            return
        connection.setblocking(False)
        self.supervisor.tunnels += 1
        host = self.connect()
        if host is not None:
            self.splices.add(Splice(self, connection, host))
        else:
            self.last += 1
            self.waiting[self.last] = connection
            self.supervisor.send(OPENED, self.number, COUNT.pack(self.last))
        self.update()

    def accept_again(self) -> None:
        self.watching = False
        if self.supervisor.requests.get(self.number) is self:
            self.update()

    def connect(self) -> Any:
        """A connection to the host's socket; None where there's none to be had: SELinux, AppArmor, or no such directory."""
        if not self.path:
            return None
        try:
            host = self.make_socket(1, 1)
        except OSError:
            return None
        try:
            host.setblocking(False)
            host.connect(self.path)
        except OSError:
            host.close()
            return None
        return host

    def take(self, spec: Json) -> Any:
        """The connection that a TUNNEL is for."""
        connection = self.waiting.pop(whole(spec.get("connection"), 0), None)
        if connection is None:
            raise Refused("os_error", os.strerror(errno.ECANCELED), errno.ECANCELED)
        return connection

    def kill(self, options: Json) -> None:
        if self.watching:
            self.supervisor.unwatch(self.listener.fileno())
        self.listener.close()
        for connection in self.waiting.values():
            connection.close()
            self.supervisor.tunnel_ended()
        for splice in list(self.splices):
            splice.close()
        self.finish({})


class Splice:
    """A connection inside and one to the host, whose bytes pass from each to the other until both have ended."""

    def __init__(self, listening: Listening, inside: Any, host: Any) -> None:
        self.listening = listening
        self.flows = [Flow(self, inside, host), Flow(self, host, inside)]

    def ended(self) -> None:
        if not any(flow.open for flow in self.flows):
            self.close()

    def close(self) -> None:
        if self in self.listening.splices:
            self.listening.splices.discard(self)
            for flow in self.flows:
                flow.close()
            self.listening.supervisor.tunnel_ended()


class Flow:
    """One direction of a splice; each has descriptors of its own, so that each is watched for what it waits for."""

    def __init__(self, splice: Splice, source: Any, sink: Any) -> None:
        self.splice = splice
        self.supervisor = splice.listening.supervisor
        self.source = source
        self.sink = sink.dup()
        self.buffer = memoryview(b"")
        self.open = True
        self.watched = -1
        self.wait(source, select.EPOLLIN, self.readable)

    def wait(self, what: Any, mask: int, handler: Callable[[int], None]) -> None:
        if self.watched != what.fileno():
            self.unwatch()
            self.watched = what.fileno()
            self.supervisor.watch(self.watched, mask, handler)

    def unwatch(self) -> None:
        if self.watched >= 0:
            self.supervisor.unwatch(self.watched)
            self.watched = -1

    def readable(self, _mask: int) -> None:
        try:
            data = self.source.recv(WINDOW)
        except BlockingIOError:
            return
        except OSError:
            self.splice.close()
            return
        if data:
            self.buffer = memoryview(data)
            self.writable(0)
            return
        self.open = False
        self.unwatch()
        try:
            self.sink.shutdown(1)
        except OSError:
            self.splice.close()
        else:
            self.splice.ended()

    def writable(self, _mask: int) -> None:
        try:
            self.buffer = self.buffer[self.sink.send(self.buffer) :]
        except BlockingIOError:
            pass
        except OSError:
            self.splice.close()
            return
        if self.buffer:
            self.wait(self.sink, select.EPOLLOUT, self.writable)
        else:
            self.wait(self.source, select.EPOLLIN, self.readable)

    def close(self) -> None:
        self.unwatch()
        self.source.close()
        self.sink.close()


class TunnelInput(SocketInput):
    """What is on its way into a tunnel's connection."""

    def __init__(self, tunnel: Tunnel) -> None:
        super().__init__(tunnel.supervisor, tunnel.socket, tunnel.grant, tunnel.end)
        self.tunnel = tunnel

    def close(self) -> None:
        was_open = self.fd >= 0
        super().close()
        if was_open:
            self.tunnel.settle()


class Tunnel(Request):
    """A connection inside, carried to the host over our stream; an empty STDOUT and an empty DATA are its two ends."""

    def __init__(self, supervisor: Supervisor, number: int, connection: Any) -> None:
        super().__init__(supervisor, number)
        self.socket = connection
        self.watching = False
        self.reads = True
        self.input = TunnelInput(self)

    def grant(self, count: int) -> None:
        if count:
            self.supervisor.send(CREDIT, self.number, COUNT.pack(count))

    def end(self) -> None:
        """Both ways have ended, or whoever is inside is gone."""
        if self.supervisor.requests.get(self.number) is self:
            self.close()
            self.finish({})

    def data(self, payload: bytes) -> None:
        if len(self.input.buffer) + len(payload) > WINDOW:
            raise ProtocolError("more input than credit")
        if payload:
            self.input.add(payload)
        else:
            self.input.end()

    def resume(self) -> None:
        """Listen to the socket exactly while we could take something from it."""
        wanted = self.reads and self.credit > 0 and not self.supervisor.congested
        if wanted and not self.watching:
            self.supervisor.watch(self.socket.fileno(), select.EPOLLIN, self.readable)
        elif self.watching and not wanted:
            self.supervisor.unwatch(self.socket.fileno())
        self.watching = wanted

    def readable(self, _mask: int) -> None:
        try:
            data = self.socket.recv(min(CHUNK, self.credit))
        except BlockingIOError:
            return
        except OSError:
            self.end()
            return
        self.reads = bool(data)
        self.send(STDOUT, data)
        self.resume()
        self.settle()

    def settle(self) -> None:
        if not self.reads and self.input.fd < 0:
            self.end()

    def kill(self, options: Json) -> None:
        self.close()
        self.fail("os_error", os.strerror(errno.ECANCELED), errno.ECANCELED)

    def close(self) -> None:
        if self.watching:
            self.supervisor.unwatch(self.socket.fileno())
            self.watching = False
        # Whatever its end would settle is settled here.
        self.reads = True
        self.input.close()
        self.socket.close()
        self.supervisor.tunnel_ended()


# ---------------------------------------------------------------------------------------------------------------------
# Values: read from what the host sends, and told to it


def facts(result: os.stat_result) -> Json:
    return {
        "mode": result.st_mode,
        "uid": result.st_uid,
        "gid": result.st_gid,
        "size": result.st_size,
        "mtime_ns": result.st_mtime_ns,
        "ctime_ns": result.st_ctime_ns,
        "inode": result.st_ino,
        "nlink": result.st_nlink,
        "device": result.st_dev,
        "rdev": result.st_rdev,
    }


def encode(text: str) -> bytes:
    """Strings of the protocol are UTF-8 whose undecodable bytes are lone surrogates, whatever this locale is."""
    return text.encode("utf-8", "surrogateescape")


def has_risen(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before


def is_full(directory: str) -> bool:
    """Whether nothing more fits into a filesystem."""
    try:
        found = os.statvfs(directory)
    except OSError:
        return False
    return bool(found.f_blocks) and (not found.f_bavail or not found.f_favail)


def whole(value: object, default: int) -> int:
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ProtocolError("a whole number was expected")
    return value


def signed(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 63) <= value < 1 << 63:
        raise ProtocolError("a whole number was expected")
    return value


def strings(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ProtocolError("a list of strings was expected")
    return value


def printable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")[:200]


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


# ---------------------------------------------------------------------------------------------------------------------
# The loop


class Timer:
    """Something to do later, unless it's cancelled."""

    __slots__ = ("action", "due", "sequence")

    def __init__(self, due: float, sequence: int, action: Callable[[], None]) -> None:
        self.due = due
        self.sequence = sequence
        self.action: Callable[[], None] | None = action

    def __lt__(self, other: Timer) -> bool:
        return (self.due, self.sequence) < (other.due, other.sequence)


class Supervisor:
    """The frames, the commands and their processes, in one epoll loop that never blocks on any of them."""

    def __init__(self, config: Json, source: int, sink: int) -> None:
        self.pid = os.getpid()
        self.targets = strings(config["targets"])
        self.directory = self.targets[0] if self.targets else "/"
        self.environment = {
            name.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
            for name, value in os.environb.items()
        }
        self.max_jobs = whole(config.get("jobs"), 64)
        self.source, self.sink = source, sink
        self.epoll = select.epoll()
        self.handlers: dict[int, Callable[[int], object]] = {}
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.writing = False
        self.congested = False
        self.timers: list[Timer] = []
        self.cancelled = 0
        self.sequence = 0
        self.requests: dict[int, Request] = {}
        self.queue: deque[Job] = deque()
        self.starting: set[Job] = set()
        self.running = 0
        self.reapers: dict[int, Reaper] = {}
        self.ready: list[Reaper] = []
        self.lost: list[Job] = []
        self.stray_pause = 0.0
        self.retrying = False
        self.refilling = False
        self.frozen = False
        self.mapped = False
        self.holders: set[int] = set()
        self.held: list[tuple[bytes, int, bytes]] = []
        self.freeze_asked: list[int] = []
        self.freeze_until = 0.0
        self.freeze_rounds = 0
        self.stopped: dict[int, None] = {}
        self.cgroup = Cgroup()
        self.oom = -1
        self.oom_own = 0
        self.tunnels = 0
        self.roots = [os.open(t, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC) for t in self.targets]

    def set_up(self) -> None:
        """Make this process unkillable, unreadable and confined, before anything else is started."""
        try:
            # Opened first: an undumpable process's files in /proc are root's.
            self.oom = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
            self.oom_own = int(os.read(self.oom, 16))
        except (OSError, ValueError):
            self.oom = -1
        wake_read, wake_write = os.pipe()
        os.set_blocking(wake_read, False)
        os.set_blocking(wake_write, False)
        signals = [number for number in signal.valid_signals() if number not in FAULTS]
        for number in signals:
            signal.signal(number, no_operation)
        signal.pthread_sigmask(signal.SIG_BLOCK, [number for number in signals if number != signal.SIGCHLD])
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        install_seccomp()
        prctl(PR_SET_DUMPABLE, 0)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        set_name(b"workbench")
        self.wake = wake_read
        self.watch(wake_read, select.EPOLLIN, self.children_changed)
        os.set_blocking(self.source, False)
        os.set_blocking(self.sink, False)
        self.watch(self.source, select.EPOLLIN, self.receive)
        gc.collect()
        gc.freeze()

    def hello(self) -> Json:
        uname = os.uname()
        return {
            "protocol": PROTOCOL,
            "pid": self.pid,
            "uid": os.getuid(),
            "gid": os.getgid(),
            "groups": os.getgroups(),
            "kernel": uname.release,
            "machine": uname.machine,
            "python": sys.version.split()[0],
            "boot_id": read_text("/proc/sys/kernel/random/boot_id").strip(),
            "mounts": [mount_facts(target) for target in self.targets],
            "cgroup": self.cgroup.version,
            "limits": self.cgroup.limits(),
            "counters": self.cgroup.counters(),
            "unix_sockets": unix_sockets_work(),
            "raises_oom_score": self.oom >= 0,
        }

    def run(self) -> None:
        self.send(HELLO, 0, json.dumps(self.hello()).encode())
        self.refill()
        while True:
            for fd, mask in self.epoll.poll(self.pause(), 64):
                handler = self.handlers.get(fd)
                if handler:
                    handler(mask)
            self.run_timers()

    # Descriptors and time

    def watch(self, fd: int, mask: int, handler: Callable[[int], object]) -> None:
        self.handlers[fd] = handler
        self.epoll.register(fd, mask)

    def unwatch(self, fd: int) -> None:
        if self.handlers.pop(fd, None):
            self.epoll.unregister(fd)

    def watched(self, fd: int) -> bool:
        return fd in self.handlers

    def after(self, delay: float, action: Callable[[], None]) -> Timer:
        self.sequence += 1
        timer = Timer(time.monotonic() + delay, self.sequence, action)
        heapq.heappush(self.timers, timer)
        return timer

    def cancel(self, timer: Timer) -> None:
        timer.action = None
        self.cancelled += 1
        if self.cancelled > 1000 and self.cancelled > len(self.timers) // 2:
            self.timers = [timer for timer in self.timers if timer.action]
            heapq.heapify(self.timers)
            self.cancelled = 0

    def run_timers(self) -> None:
        now = time.monotonic()
        while self.timers and self.timers[0].due <= now:
            action = heapq.heappop(self.timers).action
            if action:
                action()

    def pause(self) -> float:
        if not self.timers:
            return -1
        return max(0.0, self.timers[0].due - time.monotonic())

    # Frames

    def receive(self, _mask: int) -> None:
        try:
            data = os.read(self.source, 256 << 10)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.end_everything()
        self.incoming += data
        while len(self.incoming) >= HEADER.size:
            length, kind, number = HEADER.unpack_from(self.incoming)
            if length > MAX_PAYLOAD:
                raise ProtocolError(f"a frame of {length} bytes")
            if len(self.incoming) < HEADER.size + length:
                return
            payload = bytes(self.incoming[HEADER.size : HEADER.size + length])
            del self.incoming[: HEADER.size + length]
            self.handle(kind, number, payload)

    def send(self, kind: bytes, number: int, payload: bytes = b"") -> None:
        self.outgoing += HEADER.pack(len(payload), kind, number)
        self.outgoing += payload
        if not self.writing:
            self.flush()
        if not self.congested and len(self.outgoing) > CONGESTED_ABOVE:
            self.congested = True

    def flush(self, _mask: int = 0) -> None:
        while self.outgoing:
            try:
                count = os.write(self.sink, self.outgoing)
            except BlockingIOError:
                break
            except OSError:
                self.end_everything()
            del self.outgoing[:count]
        if self.outgoing and not self.writing:
            self.watch_sink(True)
        elif not self.outgoing and self.writing:
            self.watch_sink(False)
        if self.congested and len(self.outgoing) < CONGESTED_BELOW:
            self.congested = False
            for number, request in list(self.requests.items()):
                if self.requests.get(number) is request:
                    request.resume()

    def watch_sink(self, wanted: bool) -> None:
        self.writing = wanted
        if wanted:
            self.watch(self.sink, select.EPOLLOUT, self.flush)
        else:
            self.unwatch(self.sink)

    def answer(self, number: int, answer: Json) -> None:
        self.send(RESULT, number, json.dumps(answer).encode())

    def refuse(self, number: int, why: Refused) -> None:
        message = {"code": why.code, "message": str(why), "errno": why.number}
        self.send(FAILED, number, json.dumps(message).encode())

    def handle(self, kind: bytes, number: int, payload: bytes) -> None:
        request = self.requests.get(number)
        if self.frozen and (
            kind in (WRITE, EDIT) or (kind == DATA and not isinstance(request, (Job, Connection, Tunnel)))
        ):
            self.held.append((kind, number, payload))
            return
        if kind in (DATA, CREDIT, SIGNAL, RESIZE, KILL):
            if request is None:
                return  # it ended meanwhile
            if kind == DATA:
                request.data(payload)
            elif kind == CREDIT:
                request.credit += COUNT.unpack(payload)[0]
                request.resume()
            elif kind == KILL:
                request.kill(parse(payload))
            elif isinstance(request, Job):
                if kind == SIGNAL:
                    request.signal(payload[0])
                else:
                    request.resize(*SIZE.unpack(payload))
            return
        if request is not None:
            raise ProtocolError(f"id {number} is in use")
        try:
            self.open(kind, number, payload)
        except Refused as error:
            self.refuse(number, error)
        except OSError as error:
            self.refuse(number, Refused("os_error", error.strerror or str(error), error.errno or errno.EIO))

    def open(self, kind: bytes, number: int, payload: bytes) -> None:
        if kind == RUN:
            if len(self.queue) >= MAX_QUEUED:
                raise Refused("sandbox_busy", "too many commands wait to be started")
            job = Job(self, number, parse(payload))
            self.requests[number] = job
            self.queue.append(job)
            self.start_queued()
        elif kind in (WRITE, READ):
            if self.count((Writing, Reading)) >= MAX_TRANSFERS:
                raise Refused("sandbox_busy", "too many files are being read or written")
            request = (Writing if kind == WRITE else Reading)(self, number, parse(payload))
            self.requests[number] = request
            request.resume()
        elif kind == LISTEN:
            listening = Listening(self, number, parse(payload))
            self.requests[number] = listening
            listening.begin()
        elif kind == TUNNEL:
            spec = parse(payload)
            origin = self.requests.get(whole(spec.get("listening"), 0))
            if not isinstance(origin, Listening):
                raise Refused("os_error", os.strerror(errno.ECANCELED), errno.ECANCELED)
            tunnel = Tunnel(self, number, origin.take(spec))
            self.requests[number] = tunnel
            tunnel.resume()
        elif kind == STAT:
            directory, name = self.place(parse(payload))
            try:
                self.answer(number, facts(os.stat(name, dir_fd=directory, follow_symlinks=False)))
            finally:
                os.close(directory)
        elif kind == EDIT:
            self.edit(parse(payload))
            self.answer(number, {})
        elif kind == CONNECT:
            if self.count((Connection,)) >= MAX_CONNECTIONS:
                raise Refused("sandbox_busy", "too many connections to ports are open")
            connection = Connection(self, number, parse(payload))
            self.requests[number] = connection
            connection.connect()
        elif kind == COUNTERS:
            self.answer(number, self.cgroup.counters())
        elif kind == USAGE:
            self.answer(number, {"jobs": self.usage()})
        elif kind == FREEZE:
            self.freeze(number)
        elif kind == THAW:
            self.let_go(COUNT.unpack(payload)[0])
            self.answer(number, {})
        else:
            raise ProtocolError(f"unknown frame {kind!r}")

    def edit(self, spec: Json) -> None:
        """Make one change of a directory, or of an entry's metadata, by the system call of that name."""
        call = spec.get("call")
        opened = []
        try:
            directory, name = self.place(spec)
            opened.append(directory)
            if call == "mkdir":
                os.mkdir(name, whole(spec.get("mode"), 0o777), dir_fd=directory)
            elif call == "rmdir":
                os.rmdir(name, dir_fd=directory)
            elif call == "unlink":
                os.unlink(name, dir_fd=directory)
            elif call == "symlink":
                os.symlink(encode(strings([spec.get("target")])[0]), name, dir_fd=directory)
            elif call in ("rename", "link"):
                target, new = self.place({"mount": spec.get("mount"), "path": spec.get("target")})
                opened.append(target)
                if call == "link":
                    os.link(name, new, src_dir_fd=directory, dst_dir_fd=target, follow_symlinks=False)
                elif spec.get("exclusive"):
                    rename_anew(directory, name, target, new)
                else:
                    os.rename(name, new, src_dir_fd=directory, dst_dir_fd=target)
            elif call == "chmod":
                opened.append(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory))
                if stat.S_ISLNK(os.fstat(opened[-1]).st_mode):
                    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))
                os.chmod("/proc/self/fd/%d" % opened[-1], whole(spec.get("mode"), 0) & 0o7777)  # noqa: UP031  3.8
            elif call == "utime":
                times = (signed(spec.get("atime_ns")), signed(spec.get("mtime_ns")))
                os.utime(name, ns=times, dir_fd=directory, follow_symlinks=False)
            else:
                raise ProtocolError("no such call")
        finally:
            for fd in opened:
                os.close(fd)

    def count(self, kinds: tuple[type, ...]) -> int:
        return sum(isinstance(request, kinds) for request in self.requests.values())

    def usage(self) -> Json:
        """What each command takes at this moment, by the id of its request."""
        processes = scan()
        used = {}
        for number, request in self.requests.items():
            if isinstance(request, Job) and request.reaper:
                pid = request.reaper.pid
                used[str(number)] = usage_of(pid, below(processes, {pid}))
        return used

    def place(self, spec: Json) -> tuple[int, bytes]:
        """The directory that a path beneath a target leads to, and its last name; no symlink is followed."""
        index, path = whole(spec.get("mount"), 0), spec.get("path")
        if index >= len(self.roots) or not isinstance(path, str):
            raise ProtocolError("no such place")
        names = encode(path).split(b"/") if path else [b"."]
        if any(name in (b"", b"..", b".") or b"\0" in name for name in names) and path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        directory = os.dup(self.roots[index])
        for name in names[:-1]:
            try:
                deeper = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=directory)
            finally:
                os.close(directory)
            directory = deeper
        return directory, names[-1]

    def tunnel_ended(self) -> None:
        """There is room for another connection."""
        self.tunnels -= 1
        for request in self.requests.values():
            if isinstance(request, Listening) and request.listener.fileno() >= 0:
                request.update()

    # Starting commands

    def fork(self) -> int:
        """Fork with our signals held back, the child more readily killed for memory than we are."""
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
        raised = self.set_oom_score(min(self.oom_own + OOM_OFFSET, 1000))
        try:
            pid = os.fork()
        except OSError:
            pid = -1
        if not pid:
            return 0
        if raised:
            self.set_oom_score(self.oom_own)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGCHLD])
        if pid < 0:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return pid

    def set_oom_score(self, score: int) -> bool:
        if self.oom < 0:
            return False
        try:
            os.pwrite(self.oom, b"%d" % score, 0)
        except OSError:
            return False
        return True

    def add_reaper(self) -> Reaper:
        reaper = Reaper(self)
        self.reapers[reaper.pid] = reaper
        return reaper

    def refill(self) -> None:
        """Make reapers ahead of need: later than the command that took one, since forking would delay it."""
        self.refilling = False
        while len(self.ready) < READY_REAPERS:
            try:
                self.ready.append(self.add_reaper())
            except OSError:
                return  # at a limit: the next command makes its own, when it can

    def start_queued(self) -> None:
        while self.queue and self.running < self.max_jobs and not self.frozen and not self.freeze_asked:
            job = self.queue[0]
            try:
                job.open_terminal()
                reaper = self.ready.pop() if self.ready else self.add_reaper()
            except OSError as error:
                self.expire_queued(error.errno or errno.EIO)
                break
            self.queue.popleft()
            self.running += 1
            job.counted = True
            self.starting.add(job)
            job.start(reaper)
            if len(self.ready) < READY_REAPERS and not self.refilling:
                self.refilling = True
                self.after(REFILL_PAUSE, self.refill)
        if self.queue and not self.retrying:
            self.retrying = True
            self.after(SPAWN_RETRY, self.retry)

    def retry(self) -> None:
        self.retrying = False
        self.start_queued()

    def expire_queued(self, number: int) -> None:
        """Nothing can be started now; whoever has waited long enough is told why."""
        now = time.monotonic()
        for job in [job for job in self.queue if now - job.received > SPAWN_PATIENCE]:
            self.queue.remove(job)
            job.failure = (number, STAGE_SPAWN)
            job.all_gone()

    def job_waits(self, job: Job) -> None:
        """A job couldn't be started after all: it's the next to be tried."""
        self.running -= 1
        job.counted = False
        self.queue.appendleft(job)

    def job_ended(self, job: Job) -> None:
        if job.counted:
            self.running -= 1
        if job.timer:
            self.cancel(job.timer)
        self.start_queued()

    # Processes that ended

    def children_changed(self, _mask: int) -> None:
        try:
            while os.read(self.wake, 4096):
                pass
        except BlockingIOError:
            pass
        strays = False
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                break
            if not pid:
                break
            reaper = self.reapers.get(pid)
            if os.WIFSTOPPED(status):
                if reaper:
                    send_signal(pid, signal.SIGCONT)
            elif reaper:
                self.reaper_ended(reaper, status)
            else:
                strays = True
                for job in self.lost:
                    if job.main == pid and job.status is None:
                        job.status = status
        if strays:
            self.kill_strays()
        if self.queue:
            self.start_queued()

    def reaper_ended(self, reaper: Reaper, status: int) -> None:
        del self.reapers[reaper.pid]
        if reaper.job:
            reaper.job.reaper_ended(status == 0)
            return
        if reaper in self.ready:
            self.ready.remove(reaper)
            for fd in reaper.fds():
                os.close(fd)
            self.after(SPAWN_RETRY, self.refill)

    def kill_strays(self) -> None:
        """Kill every process that hangs on us and isn't a reaper, until there is none; then its job is over."""
        mine = set(self.reapers)

        def strays(processes: dict[int, tuple[int, str]]) -> list[int]:
            roots = {pid for pid, (parent, _) in processes.items() if parent == self.pid and pid not in mine}
            alive = {pid for pid in roots if processes[pid][1] not in "ZX"}
            return sorted(alive) + below(processes, roots)

        victims = stop_and_kill(strays)
        for job in self.lost:
            job.killed |= victims
        if victims:
            self.after(0.005, self.kill_strays)
            return
        lost, self.lost = self.lost, []
        for job in lost:
            job.all_gone()

    # Freezing

    def freeze(self, number: int) -> None:
        if self.frozen:
            self.holders.add(number)
            self.answer(number, {"processes": len(self.stopped), "rounds": 0, "mapped": self.mapped})
            return
        self.freeze_asked.append(number)
        if len(self.freeze_asked) == 1:
            self.freeze_until = time.monotonic() + FREEZE_PATIENCE
            self.freeze_rounds = 0
            self.freeze_round()

    def freeze_round(self) -> None:
        """Stop what still runs, until two looks around find nothing that does.

        A process is stopped once its parent is: a parent that still runs would be told of a stopped child, and one that
        waits for a child of vfork to go on can't be stopped at all. What is forked between two looks shows at the second.
        """
        if not self.freeze_asked:
            return
        quiet = 0
        found: list[int] = []
        for _ in range(20):
            # A command between fork and exec would hold up its reaper: those starts end first.
            if self.starting or quiet == 2:
                break
            self.freeze_rounds += 1
            processes = scan()
            found = [pid for pid in below(processes, {self.pid}) if pid not in self.reapers]
            running = {pid for pid in found if processes[pid][1] not in "Tt"}
            for pid in found:
                if pid in running and processes[pid][0] not in running and send_signal(pid, signal.SIGSTOP):
                    self.stopped[pid] = None
            quiet = 0 if running else quiet + 1
        stable = quiet == 2
        if stable:
            self.frozen = True
            self.mapped = any(writes_to_a_file_in_memory(pid) for pid in found)
            asked, self.freeze_asked = self.freeze_asked, []
            self.holders.update(asked)
            for number in asked:
                answer = {"processes": len(self.stopped), "rounds": self.freeze_rounds, "mapped": self.mapped}
                self.answer(number, answer)
        elif time.monotonic() > self.freeze_until:
            asked, self.freeze_asked = self.freeze_asked, []
            self.thaw()
            for number in asked:
                self.refuse(number, Refused("sandbox_failed", "a process inside can't be stopped"))
        else:
            self.after(0.001, self.freeze_round)

    def let_go(self, holder: int) -> None:
        """One of those who asked for the freeze is done with it; the last one ends it."""
        self.holders.discard(holder)
        if holder in self.freeze_asked:
            self.freeze_asked.remove(holder)
            self.refuse(holder, Refused("sandbox_failed", "thawed before it was frozen"))
        if not self.holders and not self.freeze_asked:
            self.thaw()

    def thaw(self) -> None:
        """Wake what we stopped, children first, so that no parent sees a stopped child; then do what had to wait."""
        self.frozen = False
        for pid in reversed(list(self.stopped)):
            send_signal(pid, signal.SIGCONT)
        self.stopped = {}
        held, self.held = self.held, []
        for frame in held:
            self.handle(*frame)
        for request in list(self.requests.values()):
            if isinstance(request, Job):
                request.flush_signals()
                if request.overdue:
                    request.overdue = False
                    if request.status is None:
                        request.time_out()
                    else:
                        request.kill_tree()
        self.start_queued()

    # The end

    def end_everything(self) -> None:
        """The host is gone: nothing here outlives it."""
        for request in list(self.requests.values()):
            if isinstance(request, Writing):
                request.abandon()
        kill_everything()
        os._exit(0)


def parse(payload: bytes) -> Json:
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        raise ProtocolError("not JSON") from None
    if not isinstance(value, dict):
        raise ProtocolError("not an object")
    return value


def main() -> None:
    source = fcntl.fcntl(0, fcntl.F_DUPFD_CLOEXEC, 3)
    sink = fcntl.fcntl(1, fcntl.F_DUPFD_CLOEXEC, 3)
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    os.close(null)
    unsent = bytearray()
    try:
        supervisor = Supervisor(parse(sys.argv[1].encode("utf-8", "surrogateescape")), source, sink)
        unsent = supervisor.outgoing
        supervisor.set_up()
        supervisor.run()
    except Exception as error:  # noqa: BLE001  whatever it is, the host is told and nothing is left running
        report_failure(error, sink, unsent)
    kill_everything()
    os._exit(70)


def report_failure(error: Exception, sink: int, unsent: bytearray) -> None:
    """Tell the host why there is no sandbox any more, after the rest of what it was being told."""
    where = error.__traceback__
    while where is not None and where.tb_next is not None:
        where = where.tb_next
    line = where.tb_lineno if where else 0
    message = f"{type(error).__name__} in line {line} of the supervisor: {error}"
    payload = json.dumps({"code": "sandbox_failed", "message": message[:4096], "errno": 0}).encode()
    unsent += HEADER.pack(len(payload), FAILED, 0) + payload
    os.set_blocking(sink, False)
    deadline = time.monotonic() + 2
    while unsent and time.monotonic() < deadline:
        select.select([], [sink], [], 0.1)
        try:
            del unsent[: os.write(sink, unsent)]
        except BlockingIOError:
            continue
        except OSError:
            return


def kill_everything() -> None:
    deadline = time.monotonic() + KILL_PATIENCE
    me = os.getpid()
    while stop_and_kill(lambda processes: below(processes, {me})) and time.monotonic() < deadline:
        time.sleep(0.002)


if __name__ == "__main__":
    main()
