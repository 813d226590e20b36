"""Control groups for the sandboxes of a backend without an engine: made where that is ours to do, removed with them.

A group is made below one that is ours to divide: that of an ordinary user to whom whoever manages the machine gave one, one
that is marked as given to root, or the top of what is seen of a hierarchy where nobody put us anywhere else. Another's is
never touched, and no process is moved into one but by itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from workbench.sandbox.backend import Limits

MEMORY, PROCESSES, PROCESSOR_TIME = "memory", "pids", "cpu"
"""What can be limited, by the name of the kernel's controller."""

TARGET = "/sys/fs/cgroup"
"""Where programs look for their limits."""

_CONTROLLERS = frozenset((MEMORY, PROCESSES, PROCESSOR_TIME))
# What a period is unless it is set.
_PERIOD_US = 100_000
_LEAST_QUOTA_US = 1000
# How systemd marks what isn't its own to change (systemd.resource-control(5)).
_MARKS = ("user.delegate", "trusted.delegate")


@dataclass(frozen=True, slots=True)
class ControlGroup:
    """What limits one sandbox: by controller, the directory that does; `version` is 0 where none is."""

    version: int = 0
    directories: dict[str, str] = field(default_factory=dict)

    @property
    def entrances(self) -> list[str]:
        """The files by which a process joins: it writes 0 into each."""
        return [f"{directory}/cgroup.procs" for directory in dict.fromkeys(self.directories.values())]

    @property
    def views(self) -> dict[str, str]:
        """What a sandbox is to see of it, by where: read-only, as an engine's containers do."""
        if self.version == 2:
            return {TARGET: next(iter(self.directories.values()))}
        return {f"{TARGET}/{controller}": directory for controller, directory in self.directories.items()}


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    version: int
    controllers: frozenset[str]
    top: str
    own: str


def make(name: str, limits: Limits) -> ControlGroup:
    """Make a group with limits; without those of them for which there is no place that is ours.

    Args:
        name: of the group, by which `remove` finds it.
        limits: 0 of them is none.
    """
    asked = {MEMORY: limits.memory_bytes, PROCESSES: limits.pids, PROCESSOR_TIME: limits.cpus}
    wanted = frozenset(controller for controller, limit in asked.items() if limit)
    made: dict[str, str] = {}
    version = 0
    # The newer one comes first: a controller is in one hierarchy alone, and which it is is told by what is found there.
    for hierarchy in sorted(_hierarchies(), key=lambda hierarchy: -hierarchy.version):
        if version in (0, hierarchy.version):
            found = _make_in(hierarchy, wanted - made.keys(), name, limits)
            made |= found
            version = hierarchy.version if made else 0
    return ControlGroup(version, made)


def enforceable() -> frozenset[str]:
    """Which limits can be set here: found out by setting them, on a group that is removed again."""
    name = f"workbench-trial-{os.urandom(8).hex()}"
    group = make(name, Limits(cpus=1))
    remove(name, group)
    return frozenset(group.directories)


def remove(name: str, group: ControlGroup | None = None) -> bool:
    """Remove a group; harmless where there is none.

    Args:
        name: as it was made with.
        group: where it's known; else it's looked for.

    Returns whether it's gone: while processes are in it, it isn't.
    """
    gone = True
    for directory in set(group.directories.values()) if group else set(_named(name)):
        try:
            os.rmdir(directory)
        except FileNotFoundError:
            pass
        except OSError as error:
            # One that we may not remove isn't one that we made.
            gone = gone and error.errno != errno.EBUSY
    return gone


def _make_in(hierarchy: _Hierarchy, wanted: frozenset[str], name: str, limits: Limits) -> dict[str, str]:
    wanted &= hierarchy.controllers
    for directory in _ours(hierarchy) if wanted else ():
        usable = wanted if hierarchy.version == 1 else _enabled(directory, wanted)
        if not usable:
            continue
        child = f"{directory}/{name}"
        try:
            os.mkdir(child, 0o755)
        except OSError:
            continue
        made = {each: child for each in sorted(usable) if _is_set(child, _settings(hierarchy.version, each, limits))}
        if made:
            return made
        os.rmdir(child)
    return {}


def _is_set(directory: str, settings: list[tuple[str, str]]) -> bool:
    (name, value), *more = settings
    try:
        _write(f"{directory}/{name}", value)
    except OSError:
        return False
    for name, value in more:
        # Not every kernel counts swap.
        with contextlib.suppress(OSError):
            _write(f"{directory}/{name}", value)
    return True


def _settings(version: int, controller: str, limits: Limits) -> list[tuple[str, str]]:
    """Files, and what is written to them: the first is the limit, others are what makes it one on swap, too."""
    memory, quota = str(limits.memory_bytes), str(max(_LEAST_QUOTA_US, round(limits.cpus * _PERIOD_US)))
    if controller == PROCESSES:
        return [("pids.max", str(limits.pids))]
    if controller == PROCESSOR_TIME:
        return [("cpu.max", f"{quota} {_PERIOD_US}")] if version == 2 else [("cpu.cfs_quota_us", quota)]
    if version == 2:
        return [("memory.max", memory), ("memory.swap.max", "0")]
    return [("memory.limit_in_bytes", memory), ("memory.memsw.limit_in_bytes", memory)]


def _enabled(directory: str, wanted: frozenset[str]) -> frozenset[str]:
    """Which controllers the children of a group of version 2 have, once they were asked for."""
    # One with processes can have no such children; only that at the very top can, which has no type.
    if _words(f"{directory}/cgroup.procs") and os.path.exists(f"{directory}/cgroup.type"):
        return frozenset()
    path = f"{directory}/cgroup.subtree_control"
    for controller in sorted(wanted - _words(path)):
        # Refused where it hasn't got it itself.
        with contextlib.suppress(OSError):
            _write(path, f"+{controller}")
    return wanted & _words(path)


def _ours(hierarchy: _Hierarchy) -> Iterator[str]:
    """What we may divide, the nearest first; of version 1 our own group alone, for any other limits less than it does."""
    directory = hierarchy.own
    while True:
        if _is_ours(directory, directory == hierarchy.own == hierarchy.top):
            yield directory
        if directory == hierarchy.top or hierarchy.version == 1:
            return
        directory = os.path.dirname(directory)


def _is_ours(directory: str, nobody_elses: bool) -> bool:
    for path in (directory, f"{directory}/cgroup.procs"):
        if not os.access(path, os.W_OK, effective_ids=True):
            return False
    # To root everything is writable, and that says nothing.
    return nobody_elses or os.geteuid() != 0 or any(_is_marked(directory, mark) for mark in _MARKS)


def _is_marked(directory: str, mark: str) -> bool:
    try:
        return os.getxattr(directory, mark) == b"1"
    except OSError:
        return False


def _hierarchies() -> Iterator[_Hierarchy]:
    """Those that are mounted and have a controller that we use, with the group that we are in."""
    groups: dict[frozenset[str], str] = {}
    for line in _lines("/proc/self/cgroup"):
        number, controllers, path = line.split(":", 2)
        groups[frozenset() if number == "0" else frozenset(controllers.split(","))] = path
    for kind, root, top, options in _mounts():
        among = frozenset(options.split(",")) if kind == "cgroup" else frozenset()
        path = next((path for names, path in groups.items() if names <= among and bool(names) == bool(among)), "")
        # A container may be shown more than it can tell its own place in.
        if not PurePosixPath(path).is_relative_to(root):
            continue
        own = str(PurePosixPath(top) / PurePosixPath(path).relative_to(root))
        controllers_there = among if kind == "cgroup" else _words(f"{own}/cgroup.controllers")
        if controllers_there & _CONTROLLERS:
            yield _Hierarchy(1 if kind == "cgroup" else 2, controllers_there & _CONTROLLERS, top, own)


def _mounts() -> Iterator[tuple[str, str, str, str]]:
    """Mounted hierarchies: the kind, which part of it, where, and the controllers among other words (proc(5))."""
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            root, point = before.split(" ")[3:5]
            yield kind, root, point, options


def _named(name: str) -> Iterator[str]:
    # Whoever made it may have been in another group than we are.
    for _, _, point, _ in _mounts():
        for directory, below, _ in os.walk(point):
            if name in below:
                yield f"{directory}/{name}"


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            return file.read().splitlines()
    except OSError:
        return []


def _words(path: str) -> frozenset[str]:
    return frozenset(" ".join(_lines(path)).split())


def _write(path: str, value: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, value.encode("ascii"))
    finally:
        os.close(descriptor)
