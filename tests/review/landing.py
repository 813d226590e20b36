"""What the tests of a commit share: a workspace with an overlay over it, a scenario with everything in it, and faults."""

from __future__ import annotations

import errno
import hashlib
import itertools
import os
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.review.conftest import Layers
from tests.trees import Node, snapshot
from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.store import CheckpointStore
from workbench.review.changeset import ChangeSet
from workbench.review.commit import Committed, commit
from workbench.review.recovery import Recovered, pending, recover
from workbench.vfs import syscalls
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

Tree = dict[bytes, Node]
Make = Callable[[], "Landing"]


class Landing(Layers):
    """Layers whose changes can be landed."""

    def __init__(self, base: Path) -> None:
        super().__init__(base)
        self.commits = str(base / "commits")
        self._numbers = itertools.count()

    def begin_again(self) -> None:
        """Forget every checkpoint and with it every base: the next one sees the lower as it is."""
        self.store.close()
        self.store = CheckpointStore(str(self.base / f"store{next(self._numbers)}"))
        self.store._create()

    def review(self) -> tuple[Manifest, ChangeSet]:
        manifest = self.manifest()
        return manifest, self.changes(manifest)

    def land(
        self,
        reviewed: tuple[Manifest, ChangeSet] | None = None,
        on_step: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Committed:
        manifest, changes = reviewed or self.review()
        return commit(self.lower, self.commits, changes, manifest, self.store, on_step=on_step, **options)

    def recover(self, on_step: Callable[[str], None] | None = None) -> list[Recovered]:
        return recover(self.lower, self.commits, on_step=on_step)

    def tree(self, *, times: bool = False) -> Tree:
        return snapshot(self.lower_path, times=times)

    def merged(self) -> Tree:
        """The merged view, as Python computes it."""
        with LocalUpper(self.upper_path) as upper:
            return merged_view(self.lower, upper)

    def read(self, path: bytes) -> bytes:
        with open(self.at("lower", path), "rb") as file:
            return file.read()

    def assert_tidy(self) -> None:
        """Nothing of a commit is left in the workspace, nothing waits for a recovery."""
        assert not [name for name in os.listdir(self.lower_path) if name.startswith(b".workbench-")]
        assert not pending(self.commits)


def merged_view(lower: LocalStorage, upper: LocalUpper) -> Tree:
    overlay = Overlay(lower, upper)
    found: Tree = {}
    waiting = [b""]
    while waiting:
        path = waiting.pop()
        status = overlay.stat(path)
        content = ""
        if status.kind is Kind.FILE:
            with overlay.open(path) as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        elif status.kind is Kind.SYMLINK:
            content = os.fsdecode(overlay.readlink(path))
        kind = {Kind.FILE: stat.S_IFREG, Kind.DIR: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK}[status.kind]
        found[path] = Node(kind, 0o777 if status.kind is Kind.SYMLINK else status.mode, content)
        if status.kind is Kind.DIR:
            waiting.extend(path + b"/" + name if path else name for name in overlay.list(path))
    return found


def everything(layers: Landing) -> None:
    """A workspace and an overlay with one of each sort of change."""
    lower, upper = "lower", "upper"
    for name in (b"replaced", b"deleted", b"mode", b"renamed", b"to-dir", b"to-link", b"same", b"d/kept", b"d/changed"):
        layers.write(lower, name, b"old " + name)
    layers.mkdir(lower, b"gone/deep/er")
    layers.write(lower, b"gone/deep/file", b"in a deleted directory")
    layers.symlink(lower, b"gone/link", b"../same")
    layers.symlink(lower, b"link", b"same")
    layers.mkdir(lower, b"to-file")
    layers.write(lower, b"to-file/child", b"below")
    layers.mkdir(lower, b"closed")
    layers.write(upper, b"replaced", b"new content of another size")
    layers.whiteout(b"deleted")
    layers.write(upper, b"mode", b"old mode", 0o755)
    layers.whiteout(b"renamed")
    layers.write(upper, b"renamed-to", b"old renamed")
    layers.write(upper, b"to-dir/a", b"a")
    layers.mkdir(upper, b"to-dir/empty")
    layers.symlink(upper, b"to-link", b"same")
    layers.write(upper, b"d/changed", b"new d/changed")
    layers.write(upper, b"d/added", b"added")
    layers.whiteout(b"gone")
    layers.symlink(upper, b"link", b"d/kept")
    layers.write(upper, b"to-file", b"now a file", 0o600)
    layers.write(upper, b"fresh/tree/of/files", b"deep")
    layers.mkdir(upper, b"closed", 0o711)
    layers.mkdir(upper, b"fresh/tree", 0o750)
    layers.write(upper, b"empty")


def in_child(act: Callable[[], None]) -> int:
    """Run in a forked process; how it ended: its exit code, or minus the signal that killed it."""
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            act()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def kill_at(count: int) -> Callable[[str], None]:
    """A hook that kills its process, without warning, at the step of that number."""
    remaining = [count]

    def hook(_: str) -> None:
        if remaining[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        remaining[0] -= 1

    return hook


CHANGING = (
    "mkdir",
    "rename",
    "unlink",
    "rmdir",
    "symlink",
    "link",
    "chmod",
    "fchmod",
    "chown",
    "fchown",
    "utime",
    "fsync",
    "pwrite",
    "ftruncate",
    "setxattr",
    "makedirs",
)
"""The calls of `os` that change something, or bring a change onto the disk."""

ALLOCATING = ("mkdir", "symlink", "pwrite", "setxattr", "makedirs")
"""Those of them that need room."""


@contextmanager
def calls(hook: Callable[[str], None], names: tuple[str, ...] = CHANGING) -> Iterator[None]:
    """Let `hook` hear of every changing call, before it's made; what it raises, the call raises."""
    saved: list[tuple[Any, str, Any]] = []

    def wrap(module: Any, name: str) -> None:
        real = getattr(module, name)

        def wrapped(*arguments: Any, **options: Any) -> Any:
            hook(name)
            return real(*arguments, **options)

        saved.append((module, name, real))
        setattr(module, name, wrapped)

    for name in names:
        wrap(os, name)
    real_open = os.open

    def opening(path: Any, flags: int, *arguments: Any, **options: Any) -> int:
        if flags & os.O_CREAT:
            hook("create")
        return real_open(path, flags, *arguments, **options)

    saved.append((os, "open", real_open))
    os.open = opening
    if names is CHANGING:
        wrap(syscalls, "renameat2")
        wrap(syscalls, "syncfs")
    try:
        yield
    finally:
        for module, name, real in saved:
            setattr(module, name, real)


def fail_at(count: int, code: int = errno.EIO, *, always: bool = False) -> Callable[[str], None]:
    """A hook that makes the call of that number fail, and with `always` every one after it."""
    remaining = [count]

    def hook(_: str) -> None:
        remaining[0] -= 1
        if remaining[0] == -1 or (always and remaining[0] < 0):
            raise OSError(code, os.strerror(code))

    return hook


def count_of(act: Callable[[Callable[[str], None]], object]) -> int:
    """How many times `act` calls its hook."""
    heard: list[str] = []
    act(heard.append)
    return len(heard)


def write_upper(layers: Layers, manifest: Manifest) -> None:
    """Make the upper layer what a manifest says, in the plainest way."""
    shutil.rmtree(layers.upper_path)
    os.mkdir(layers.upper_path)
    for path, entry in manifest.entries.items():
        full = layers.at("upper", path)
        if entry.kind is Kind.WHITEOUT:
            os.mknod(full, stat.S_IFCHR | 0o600, 0)
        elif entry.kind is Kind.SYMLINK:
            os.symlink(layers.store.read(entry.blob), full)
        elif entry.kind is Kind.FIFO:
            os.mkfifo(full, entry.mode)
        elif entry.kind is Kind.FILE:
            with open(full, "wb") as file:
                file.write(layers.store.read(entry.blob))
            os.chmod(full, entry.mode)
        else:
            if path:
                os.mkdir(full)
            os.chmod(full, entry.mode)
            if entry.opaque:
                os.setxattr(full, b"user.overlay.opaque", b"y")


@contextmanager
def freshly_made(base: Path) -> Iterator[Make]:
    """Fresh layers with everything in them, again and again; nothing is synced."""
    made: list[Landing] = []

    def fresh() -> Landing:
        if made:
            made[-1].close()
            shutil.rmtree(made[-1].base)
        made.append(Landing(base / f"layers{len(made)}"))
        everything(made[-1])
        return made[-1]

    with without_syncs():
        yield fresh
    made[-1].close()


@contextmanager
def without_syncs() -> Iterator[None]:
    """Leave out what only a power loss would tell: a killed process loses nothing that the kernel has taken."""
    saved = os.fsync, syscalls.syncfs
    os.fsync = lambda fd: None  # type: ignore[assignment,misc]
    syscalls.syncfs = lambda fd: None  # type: ignore[assignment]
    try:
        yield
    finally:
        os.fsync, syscalls.syncfs = saved  # type: ignore[assignment]
