"""What a sandbox without an image sees: the programs of this machine, and nothing else of it.

A root is a list of steps, each a kind, what it takes, and last the path inside: `bind` and `ro-bind` a source, `symlink` a
target, `file` a text, `tmpfs` a mode and a size; `proc`, `dev` and `remount-ro` nothing. Bubblewrap is told them as options,
`jail.py` as JSON.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath

from workbench.sandbox.backend import SandboxSpec
from workbench.sandbox.targets import EGRESS_TARGET, home_of

Step = tuple[str | int, ...]

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
MOUNTED = "/run"
"""Where the overlays are, by number, before the root is built."""

_SHM_BYTES = 64 << 20
_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")

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

# The names of the caller's keys: no namespace has its own.
_MASKED = ("/proc/keys", "/proc/key-users")


def steps(spec: SandboxSpec, views: Mapping[str, str]) -> list[Step]:
    """The root of a sandbox.

    Args:
        spec: what is to be started.
        views: directories of this machine that it sees beside, read-only, by where.
    """
    home = str(home_of(spec))
    found: list[Step] = []
    for directory in _PROGRAMS:
        if os.path.islink(directory):
            found.append(("symlink", os.readlink(directory), directory))
        elif os.path.isdir(directory):
            found.append(("ro-bind", directory, directory))
    found += [("ro-bind", f"/etc/{name}", f"/etc/{name}") for name in _ETC if os.path.exists(f"/etc/{name}")]
    accounts = f"root:x:0:0:root:/root:/bin/sh\nworkbench:x:{spec.uid}:{spec.gid}::{home}:/bin/sh\n"
    found += [
        ("file", accounts, "/etc/passwd"),
        ("file", f"root:x:0:\nworkbench:x:{spec.gid}:\n", "/etc/group"),
        ("file", "127.0.0.1 localhost workbench\n::1 localhost\n", "/etc/hosts"),
        ("proc", "/proc"),
        *(("ro-bind", "/dev/null", path) for path in _MASKED if os.path.exists(path)),
        ("dev", "/dev"),
        ("tmpfs", "1777", _SHM_BYTES, "/dev/shm"),
        ("remount-ro", "/dev"),
        ("tmpfs", "1777", spec.limits.tmp_bytes, "/tmp"),
        ("symlink", "/tmp", "/var/tmp"),
    ]
    if not any(PurePosixPath(home).is_relative_to(mount.target) for mount in spec.mounts):
        found.append(("tmpfs", "0700", spec.limits.home_bytes, home))
    for number, mount in sorted(enumerate(spec.mounts), key=lambda item: len(PurePosixPath(item[1].target).parts)):
        found.append(("bind", f"{MOUNTED}/{number}", mount.target))
    found += [("ro-bind", directory, target) for target, directory in views.items()]
    if spec.egress_path:
        found.append(("ro-bind", f"{MOUNTED}/egress", EGRESS_TARGET))
    return [*found, ("remount-ro", "/")]


def environment(spec: SandboxSpec) -> dict[str, str]:
    """What PID 1 gets."""
    return {"PATH": PATH, "HOME": str(home_of(spec)), **spec.environment}


def bubblewrap_options(
    spec: SandboxSpec, views: Mapping[str, str], known: frozenset[str], keep: Callable[[bytes], int]
) -> list[str]:
    """The root as options of bubblewrap.

    Args:
        spec: what is to be started.
        views: as for `steps`.
        known: the options that the bubblewrap which is there has.
        keep: makes a descriptor of what a file is to hold.
    """
    options = [f"--unshare-{namespace}" for namespace in ("user", "pid", "net", "ipc", "uts")]
    options += ["--as-pid-1", "--die-with-parent", "--new-session", "--cap-drop", "ALL", "--hostname", "workbench"]
    options += ["--uid", str(spec.uid), "--gid", str(spec.gid)]
    if "--disable-userns" in known:
        options.append("--disable-userns")
    options.append("--clearenv")
    for name, value in environment(spec).items():
        options += ["--setenv", name, value]
    for kind, *taken, path in steps(spec, views):
        if kind == "file":
            options += ["--perms", "0444", "--ro-bind-data", str(keep(str(taken[0]).encode())), str(path)]
        elif kind == "tmpfs":
            mode, size = taken
            sized = ["--size", str(size)] if "--size" in known and size else []
            options += ["--perms", str(mode), *sized, "--tmpfs", str(path)]
        else:
            options += [f"--{kind}", *map(str, taken), str(path)]
    return [*options, "--chdir", "/"]
