"""What a command might try to get out of a sandbox, or at what isn't its own, under each backend."""

from __future__ import annotations

import ctypes
import os
import secrets
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from tests.sandbox.places import Place
from tests.sandbox.support import IMAGE, LABEL
from tests.waiting import wait_until
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import images
from workbench.sandbox.backend import Limits
from workbench.sandbox.client import KeeperClient

pytestmark = pytest.mark.anyio
MACHINE = os.uname().machine
# Of x86-64 and, in the generic table, aarch64.
CALLS = {"add_key": (248, 217), "keyctl": (250, 219), "process_vm_readv": (310, 270), "pidfd_open": (434, 434)}
CALLS |= {"pidfd_getfd": (438, 438), "bpf": (321, 280), "perf_event_open": (298, 241), "syslog": (103, 116)}
CALLS |= {"mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "open_tree": (428, 428)}
CALLS |= {
    "fsopen": (430, 430),
    "setns": (308, 268),
    "unshare": (272, 97),
    "reboot": (169, 142),
    "request_key": (249, 218),
}
CALLS |= {"mknodat": (259, 33), "swapon": (167, 224), "sethostname": (170, 161), "io_uring_setup": (425, 425)}
CALLS |= {"ptrace": (101, 117), "shmget": (29, 194), "open_by_handle_at": (304, 265), "chroot": (161, 51)}
NUMBERS = {name: numbers[MACHINE == "aarch64"] for name, numbers in CALLS.items()}
SESSION_KEYRING = -3
# Prepended to what is tried inside: `call` is the result, or the name of the error.
TRYING = f"""
import ctypes, errno, os, socket, sys
NUMBERS = {NUMBERS!r}
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    found = libc.syscall(NUMBERS[name], *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    return found if found >= 0 else errno.errorcode[ctypes.get_errno()]
def tried(act):
    try: return act()
    except OSError as error: return errno.errorcode.get(error.errno, str(error))
"""


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def sh(client: KeeperClient, script: str) -> CommandResult:
    with anyio.fail_after(120):
        return await client.run(Command(("sh", "-c", script), output_limit=1 << 20))


async def shown(client: KeeperClient, script: str) -> str:
    result = await sh(client, script)
    assert result.exit_code == 0, result
    return result.stdout.decode()


async def python(client: KeeperClient, script: str, *arguments: str) -> list[str]:
    """The lines that a script prints inside, which can `call` the kernel."""
    with anyio.fail_after(120):
        result = await client.run(Command(("python3", "-c", TRYING + script, *arguments), output_limit=1 << 20))
    assert result.exit_code == 0, result
    return result.stdout.decode().splitlines()


# Files


async def test_no_way_leads_to_a_file_of_the_machines(any_place: Place, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    for directory in (secret, *secret.parents[:-1]):
        directory.chmod(directory.stat().st_mode | 0o555)
    # A person's link in the workspace that leads out is a link that leads nowhere.
    (any_place.path / "lower" / "out").symlink_to(secret)
    ways = [
        f"cat {secret}",
        "cat out",
        f"ln -s {secret} mine && cat mine",
        f"ln {secret} hard && cat hard",
        *(f"cat /proc/{pid}/{link}{secret}" for pid in ("1", "self", "$PPID") for link in ("root", "cwd/../../../..")),
        f"cat /workspace/../../../..{secret}",
        f"mkdir below && cd below && rmdir ../below && cat ../../../../..{secret}",
    ]
    async with await any_place.ensure() as client:
        for way in ways:
            result = await sh(client, way)
            assert result.exit_code != 0, way
            assert b"hunter2" not in result.stdout, way
        # A handle is good in any namespace, for whoever may open one.
        script = """
handle, mount = ctypes.create_string_buffer(bytes([128, 0, 0, 0]) + bytes(132)), ctypes.c_int()
libc.name_to_handle_at(-100, b"/workspace/old", handle, ctypes.byref(mount), 0)
print(call("open_by_handle_at", os.open("/", 0), handle, 0))
"""
        assert await python(client, script) in (["EPERM"], ["EOPNOTSUPP"], ["ESTALE"], ["EINVAL"])


async def test_no_socket_of_the_machine_is_there_nor_the_engines(any_place: Place) -> None:
    async with await any_place.ensure() as client:
        assert await shown(client, "find / -xdev -type s 2>/dev/null; true") == ""
        for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/podman/podman.sock", "/run/containerd"):
            assert (await sh(client, f"test -e {path}")).exit_code == 1


async def test_the_overlay_is_all_that_comes_from_outside_and_can_be_written(any_place: Place) -> None:
    async with await any_place.ensure() as client:
        lines = [line.split(" - ") for line in (await shown(client, "cat /proc/self/mountinfo")).splitlines()]
    written = [
        (before.split()[4], after.split()[0])
        for before, after in lines
        if "rw" in before.split()[5].split(",")
        and after.split()[0] not in ("tmpfs", "proc", "devpts", "mqueue", "sysfs")
    ]
    # What of devices is bound one by one is on the machine's own /dev.
    assert [(place, kind) for place, kind in written if not place.startswith("/dev/")] == [("/workspace", "overlay")]
    for before, _ in lines:
        place, options = before.split()[4:6]
        if place.startswith(("/workspace", "/home", "/tmp")):
            assert {"nosuid", "nodev"} <= set(options.split(",")), before


# The supervisor, and other processes


async def test_pid_1_and_a_commands_own_reaper_can_be_neither_read_traced_nor_written_to(any_place: Place) -> None:
    script = """
for pid in (1, os.getppid()):
    for name in ("mem", "environ", "maps", "fd/0", "fd/1", "cwd/old", "root/etc/passwd", "auxv", "stack", "syscall"):
        print(name, tried(lambda: open(f"/proc/{pid}/{name}", "rb").read(1)))
    for name in ("fd", "map_files"):
        print(name, tried(lambda: os.listdir(f"/proc/{pid}/{name}")))
    # No frame can be forged where no descriptor of the stream can be had.
    print("write", tried(lambda: open(f"/proc/{pid}/fd/1", "wb")))
    print("attach", call("ptrace", 16, pid, 0, 0), "seize", call("ptrace", 0x4206, pid, 0, 0))
    local = (ctypes.c_ulong * 2)(ctypes.addressof(ctypes.create_string_buffer(8)), 8)
    print("vm", call("process_vm_readv", pid, local, 1, local, 1, 0))
    found = call("pidfd_open", pid, 0)
    print("descriptor", call("pidfd_getfd", found, 1, 0) if isinstance(found, int) else found)
"""
    async with await any_place.ensure() as client:
        lines = await python(client, script)
        assert len(lines) == 2 * 16
        for line in lines:
            _, *found = line.split()
            assert set(found) - {"seize"} <= {"EACCES", "EPERM", "ENOENT", "ESRCH", "ENOSYS"}, line
        assert await shown(client, "echo well") == "well\n"


async def test_nothing_that_changes_the_machine_can_be_called(any_place: Place) -> None:
    script = """
print(call("mount", b"none", b"/tmp", b"tmpfs", 0, None), call("mount", b"/", b"/tmp", None, 4096, None),
      call("mount", None, b"/", None, 32 | 4096, None), call("umount2", b"/workspace", 2), call("pivot_root", b".", b"."),
      call("chroot", b"/tmp"), call("unshare", 0x20000), call("unshare", 0x10000000), call("setns", 0, 0))
print(call("reboot", 0xfee1dead, 672274793, 0x1234567, 0), call("swapon", b"/tmp/x", 0), call("sethostname", b"x", 1),
      call("mknodat", -100, b"/tmp/null", 0o20666, 0x103), call("mknodat", -100, b"disk", 0o60666, 0x800))
print(call("open_tree", -100, b"/", 1), call("fsopen", b"tmpfs", 0))
print(call("io_uring_setup", 1, ctypes.create_string_buffer(256)), call("bpf", 0, None, 0), call("syslog", 3, None, 0),
      call("perf_event_open", ctypes.create_string_buffer(128), 0, -1, -1, 0))
"""
    async with await any_place.ensure() as client:
        changes, others, new, unconfined = await python(client, script)
        refused = {"EPERM", "EACCES", "EBADF", "EINVAL", "ENOSPC", "ENOSYS"}
        assert set(f"{changes} {others} {new}".split()) <= refused
        assert "EPERM" in changes
        assert unconfined == "ENOSYS ENOSYS ENOSYS ENOSYS"
        for path in (
            "/proc/sys/kernel/core_pattern",
            "/proc/sysrq-trigger",
            "/sys/kernel/uevent_helper",
            "/proc/sys/vm/swappiness",
        ):
            assert (await sh(client, f"test -e {path} && echo x >{path}")).exit_code != 0


@contextmanager
def _neighbour() -> Iterator[str]:
    """Another container, with a process, a file and listeners that say its name, which this yields."""
    name = f"neighbour-{secrets.token_hex(6)}"
    script = (
        "import socket, sys, time\n"
        "a = socket.socket(socket.AF_UNIX); a.bind('\\0' + sys.argv[1]); a.listen()\n"
        "b = socket.create_server(('0.0.0.0', 8642)); open('/tmp/' + sys.argv[1], 'w').close()\n"
        "print('up', flush=True); time.sleep(3600)"
    )
    options = ["--network", "none", "--label", f"{LABEL}=1", "--name", name, "--hostname", name]
    command = ["docker", "run", "-d", *options, images.reference(IMAGE), "python3", "-c", script, name]
    try:
        subprocess.run(command, check=True, capture_output=True)
        logs = ["docker", "logs", name]
        wait_until(lambda: b"up" in subprocess.run(logs, check=True, capture_output=True).stdout, "the neighbour")
        yield name
    finally:
        subprocess.run(["docker", "rm", "-f", name], check=True, capture_output=True)


@pytest.mark.engine
async def test_another_container_is_neither_seen_nor_reached(engine: None, any_place: Place) -> None:
    script = """
name = sys.argv[1]
def connect(family, address):
    with socket.socket(family) as s: s.settimeout(5); s.connect(address); return "REACHED"
print(tried(lambda: connect(socket.AF_UNIX, "\\0" + name)))
print(tried(lambda: connect(socket.AF_INET, ("127.0.0.1", 8642))))
print(tried(lambda: connect(socket.AF_INET, ("172.17.0.2", 8642))))
"""
    with _neighbour() as name:
        async with await any_place.ensure() as client:
            found = await python(client, script, name)
            assert found == ["ECONNREFUSED", "ECONNREFUSED", "ENETUNREACH"]
            # Built here, so that the search doesn't find itself.
            half, rest = name[:10], name[10:]
            search = f"n={half}; n=${{n}}{rest}; grep -sl $n /proc/[0-9]*/cmdline /proc/net/unix /etc/hosts"
            seen = (await shown(client, f"{search}; ls -d /tmp/$n 2>/dev/null; true")).split()
            assert [path for path in seen if not path.startswith("/proc/")] == []
            own = await shown(client, "cat /proc/[0-9]*/comm | sort -u")
            assert set(own.split()) <= {"workbench", "workbench-job", "sh", "cat", "sort"}
            assert "sleep(3600)" not in await shown(client, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")


async def test_what_the_machine_shares_in_memory_isnt_shared_with_a_sandbox(any_place: Place) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    key = 0x57420000 + os.getpid() % 0xFFFF
    segment = libc.shmget(key, 4096, 0o1666)
    assert segment >= 0
    try:
        async with await any_place.ensure() as client:
            assert await python(client, f"print(call('shmget', {key}, 4096, 0o666))") == ["ENOENT"]
            assert await shown(client, "find /dev/shm /dev/mqueue -mindepth 1 2>/dev/null; true") == ""
    finally:
        libc.shmctl(segment, 0, None)


async def test_the_keys_of_whoever_started_it_stay_with_them(any_place: Place) -> None:
    """Keyrings are inherited, in no namespace, and hold tickets and keys of filesystems."""
    name = f"workbench-{secrets.token_hex(6)}".encode()
    outcome: list[object] = []

    def held() -> None:
        # A session keyring of this thread's own, which what it starts inherits.
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syscall(NUMBERS["keyctl"], 1, None) < 0:
            outcome.append(f"this machine has no keyrings: {os.strerror(ctypes.get_errno())}")
            return
        key = libc.syscall(NUMBERS["add_key"], b"user", name, b"hunter2", 7, SESSION_KEYRING)
        if key < 0:
            outcome.append(f"no key can be made here: {os.strerror(ctypes.get_errno())}")
            return
        outcome.append(anyio.run(ask, key))

    async def ask(key: int) -> list[str]:
        script = f"""
print(call("keyctl", 11, {key}, ctypes.create_string_buffer(64), 64),
      call("keyctl", 10, {SESSION_KEYRING}, b"user", {name!r}, 0), call("keyctl", 21, {key}),
      call("add_key", b"user", b"mine", b"x", 1, {SESSION_KEYRING}), call("request_key", b"user", {name!r}, None, 0))
print({name.decode()!r} in (tried(lambda: open("/proc/keys").read()) or ""))
"""
        async with await any_place.ensure() as client:
            return await python(client, script)

    thread = threading.Thread(target=held)
    thread.start()
    await anyio.to_thread.run_sync(thread.join)
    if isinstance(outcome[0], str):
        pytest.skip(outcome[0])
    assert outcome == [["ENOSYS " * 4 + "ENOSYS", "False"]]


# Programs and devices that would give more


async def _with_what_identity(client: KeeperClient, *paths: str) -> set[tuple[str, str]]:
    """The user and the effective user that programs are started with: the loader tells, where it wasn't raised."""
    found = set()
    for path in paths:
        result = await sh(client, f"LD_SHOW_AUXV=1 {path} --version </dev/null")
        told = dict(line.split(":", 1) for line in result.stdout.decode().splitlines() if line.startswith("AT_"))
        assert "AT_EUID" in told, (path, result)
        found.add((told["AT_UID"].strip(), told["AT_EUID"].strip()))
    return found


async def test_a_setuid_program_gives_nothing(any_place: Place) -> None:
    if os.geteuid() == 0:
        # One in the workspace that is root's, as no sandbox can make it.
        planted = any_place.path / "lower" / "planted"
        planted.write_bytes(Path("/usr/bin/id").read_bytes())
        planted.chmod(0o6755)
    uid = str(any_place.uid)
    async with await any_place.ensure() as client:
        listed = await shown(client, "find /usr -xdev -perm -4001 2>/dev/null; true")
        # The image's own: su, mount, passwd and so on.
        own = listed.split()
        assert own
        assert await _with_what_identity(client, *own) == {(uid, uid)}
        # Ones that it makes: in the workspace, in /tmp and at home.
        for place in ("/workspace", "/tmp", "$HOME"):
            await shown(client, f"cp /usr/bin/id {place}/mine && chmod 6755 {place}/mine")
            assert await shown(client, f"{place}/mine -u; {place}/mine -ru") == f"{uid}\n{uid}\n"
        if os.geteuid() == 0:
            assert await _with_what_identity(client, "/workspace/planted") == {(uid, uid)}
            assert await shown(client, "/workspace/planted -u") == f"{uid}\n"


@pytest.mark.root
async def test_a_device_in_the_workspace_cant_be_opened_and_few_are_elsewhere(any_place: Place) -> None:
    os.mknod(any_place.path / "lower" / "null", 0o20666, os.makedev(1, 3))
    async with await any_place.ensure() as client:
        # No device is copied at all.
        refused = b"No such file" if any_place.spec().sharing == "copied" else b"Permission denied"
        assert refused in (await sh(client, "cat null")).stderr
        names = set((await shown(client, "find /dev -type c -o -type b")).split())
        usual = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "console"}
        assert {name for name in names if not name.startswith("/dev/pts/")} <= {f"/dev/{name}" for name in usual}


# The network, without any way out


async def test_nothing_that_listens_on_the_machine_is_reached_not_even_by_ipv6(any_place: Place) -> None:
    accepted: list[object] = []
    with socket.socket(socket.AF_UNIX) as abstract, socket.create_server(("127.0.0.1", 0)) as four:
        name = f"workbench-{secrets.token_hex(6)}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        listeners, ways = [abstract, four], [f"(socket.AF_INET, ('127.0.0.1', {four.getsockname()[1]}))"]
        try:
            six = socket.create_server(("::1", 0), family=socket.AF_INET6)
        except OSError:
            six = None
        if six is not None:
            listeners.append(six)
            ways += [f"(socket.AF_INET6, ({host!r}, {six.getsockname()[1]}))" for host in ("::1", "::ffff:127.0.0.1")]
        script = f"""
for family, address in [(socket.AF_UNIX, "\\0{name}"), {", ".join(ways)}]:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(family, kind) as s:
            s.settimeout(5)
            print(tried(lambda: s.connect(address) or (kind == socket.SOCK_DGRAM and "sent nowhere") or "REACHED"))
with open("/proc/net/if_inet6") as file: print({{line.split()[-1] for line in file}} - {{"lo"}})
with open("/proc/net/ipv6_route") as file: print({{line.split()[-1] for line in file}} - {{"lo"}})
with open("/proc/net/route") as file: print(len(file.readlines()) - 1)
"""
        async with await any_place.ensure() as client:
            lines = await python(client, script)
        assert "REACHED" not in lines
        assert lines[-3:] == ["set()", "set()", "0"]
        for listener in listeners:
            listener.setblocking(False)
            try:
                accepted.append(listener.accept())
            except BlockingIOError:
                continue
        if six is not None:
            six.close()
    assert accepted == []


# Limits that aren't of one command


async def test_cores_are_limited_where_that_was_asked_for_or_it_is_said_that_they_arent(any_place: Place) -> None:
    """Processes that would take all they get have, together, what the limit leaves them."""
    script = """
import os, time
for _ in range(3): os.fork()
begin = time.monotonic()
while time.monotonic() - begin < 2: pass
"""
    heard: list[str] = []
    what = any_place.spec(limits=Limits(cpus=0.5))
    async with await KeeperClient.ensure(any_place.overlay, what, heard.append) as client:
        with anyio.fail_after(120):
            result = await client.run(Command(("python3", "-c", script), output_limit=9999))
    # However long it took: no more than half of one processor, but for the first slice.
    is_limited = 0 < result.user_cpu_ms + result.system_cpu_ms < result.duration_ms * 0.5 + 250
    assert is_limited or any("--cpus isn't enforced" in line for line in heard), result
    assert is_limited or any_place.backend != "docker"
