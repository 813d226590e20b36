"""Confines a command to namespaces and a root of its own, where bubblewrap isn't installed to do it.

One file, standard library only, Python 3.8 or later: it runs as `python3 -I -S -c SOURCE CONFIG_FD COMMAND...`, where the
descriptor holds JSON: `uid`, `gid`, `hostname`, `environment`, `root`, a directory to build in, and `steps`, as of
`namespace_root.py`. The caller is an ordinary user, or root of a user namespace; the command has the user and group that
were named, no capability, and can't get any. It is PID 1 of its namespace and ends with this process, which ends with the
one that started it.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import sys
from typing import Any

# Linux uapi: sched.h, mount.h, fcntl.h, prctl.h, capability.h, if.h, sockios.h.
CLONE_NEWNS, CLONE_NEWUTS, CLONE_NEWIPC = 0x00020000, 0x04000000, 0x08000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_SLAVE = 2, 4, 8, 4096, 16384, 1 << 19
MNT_DETACH = 2
AT_FDCWD, AT_RECURSIVE = -100, 0x8000
ATTR_RDONLY, ATTR_NOSUID, ATTR_NODEV = 1, 2, 4
PR_SET_PDEATHSIG, PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 1, 24, 38
CAPABILITIES_VERSION = 0x20080522
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1
MOUNT_SETATTR = 442

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
LINKS = {"fd": "/proc/self/fd", "stdin": "/proc/self/fd/0", "stdout": "/proc/self/fd/1", "stderr": "/proc/self/fd/2",
         "ptmx": "pts/ptmx"}  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    arguments = [os.fsencode(source), os.fsencode(target), os.fsencode(kind) or None, ctypes.c_ulong(flags)]
    check(libc.mount(*arguments, os.fsencode(options) or None), f"mount {kind or source} at {target}")


def restrict(target: str, attributes: int, *, below: bool = True) -> None:
    """Add attributes to a mount, and to all below it."""
    change = struct.pack("QQQQ", attributes, 0, 0, 0)
    flags = AT_RECURSIVE if below else 0
    path = os.fsencode(target)
    check(libc.syscall(MOUNT_SETATTR, AT_FDCWD, path, flags, change, len(change)), f"mount_setattr {target}")


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def make_room(path: str, *, directory: bool) -> None:
    """Make something to mount on."""
    if os.path.lexists(path):
        return
    os.makedirs(path if directory else os.path.dirname(path), mode=0o755, exist_ok=True)
    if not directory:
        os.close(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_EXCL | os.O_CLOEXEC, 0o444))


def bind(source: str, target: str, attributes: int) -> None:
    make_room(target, directory=os.path.isdir(source))
    mount(source, target, flags=MS_BIND | MS_REC)
    restrict(target, attributes)


def make_devices(target: str) -> None:
    make_room(target, directory=True)
    mount("tmpfs", target, "tmpfs", MS_NOSUID, "mode=0755")
    for name in DEVICES:
        make_room(f"{target}/{name}", directory=False)
        mount(f"/dev/{name}", f"{target}/{name}", flags=MS_BIND)
    for name in ("pts", "shm"):
        os.mkdir(f"{target}/{name}", 0o755)
    mount("devpts", f"{target}/pts", "devpts", MS_NOSUID | MS_NOEXEC, "newinstance,ptmxmode=0666,mode=620")
    for name, link in LINKS.items():
        os.symlink(link, f"{target}/{name}")


def make_proc(target: str) -> None:
    make_room(target, directory=True)
    mount("proc", target, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC)
    # As bubblewrap does: what of it could change the system is read-only, whoever asks.
    for name in ("sys", "sysrq-trigger", "irq", "bus"):
        if os.path.exists(f"{target}/{name}"):
            bind(f"{target}/{name}", f"{target}/{name}", ATTR_RDONLY)


def take(step: list[Any], root: str) -> None:
    kind, target = step[0], root + step[-1]
    if kind == "bind":
        bind(step[1], target, ATTR_NOSUID | ATTR_NODEV)
    elif kind == "ro-bind":
        bind(step[1], target, ATTR_NOSUID | ATTR_NODEV | ATTR_RDONLY)
    elif kind == "symlink":
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        os.symlink(step[1], target)
    elif kind == "file":
        make_room(target, directory=False)
        os.chmod(target, 0o600)
        write(target, step[1])
        os.chmod(target, 0o444)
    elif kind == "tmpfs":
        make_room(target, directory=True)
        size = f",size={step[2]}" if step[2] else ""
        mount("tmpfs", target, "tmpfs", MS_NOSUID | MS_NODEV, f"mode={step[1]}{size}")
    elif kind == "proc":
        make_proc(target)
    elif kind == "dev":
        make_devices(target)
    elif kind == "remount-ro":
        restrict(target, ATTR_RDONLY, below=False)
    else:
        raise ValueError(f"a step that there isn't: {kind}")


def unshare(uid: int, gid: int) -> None:
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    wanted = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    check(libc.unshare(wanted), "unshare")
    write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"{uid} {outer_uid} 1")
    write("/proc/self/gid_map", f"{gid} {outer_gid} 1")
    # Of the namespace that was just made: no further one below it.
    write("/proc/sys/user/max_user_namespaces", "0")


def raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as found:
        request = struct.pack("16sH14x", b"lo", 0)
        flags = struct.unpack("16sH14x", fcntl.ioctl(found, SIOCGIFFLAGS, request))[1]
        fcntl.ioctl(found, SIOCSIFFLAGS, struct.pack("16sH14x", b"lo", flags | IFF_UP))


def enter(root: str) -> None:
    os.chdir(root)
    check(libc.pivot_root(b".", b"."), "pivot_root")
    check(libc.umount2(b".", MNT_DETACH), "umount the old root")
    os.chdir("/")


def give_up_capabilities() -> None:
    number = 0
    while libc.prctl(PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    check(libc.capset(struct.pack("Ii", CAPABILITIES_VERSION, 0), bytes(24)), "capset")
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")


def confine(config: dict[str, Any]) -> None:
    mount("none", "/", flags=MS_SLAVE | MS_REC)
    root = config["root"]
    mount("tmpfs", root, "tmpfs", MS_NOSUID | MS_NODEV, "mode=0755")
    os.umask(0o022)
    for step in config["steps"]:
        take(step, root)
    raise_loopback()
    socket.sethostname(config["hostname"])
    enter(root)
    os.setsid()
    give_up_capabilities()


def main() -> None:
    """Run as the module's docstring says."""
    starter = os.getppid()
    with open(int(sys.argv[1]), encoding="utf-8", errors="surrogateescape") as file:
        config = json.load(file)
    unshare(config["uid"], config["gid"])
    check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
    if os.getppid() != starter:
        return
    child = os.fork()
    if child:
        # The stream to the command is its alone.
        for fd in (0, 1, 2):
            os.close(fd)
        os.waitpid(child, 0)
        os._exit(0)
    try:
        check(libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl")
        confine(config)
        os.execvpe(sys.argv[2], sys.argv[2:], config["environment"])
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error.strerror if isinstance(error, OSError) else error}\n")
        sys.stderr.flush()
        os._exit(1)


if __name__ == "__main__":
    main()
