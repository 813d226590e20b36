"""Layers on disk, the kernel's overlay over them, and what it shows."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import stat
import subprocess
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from workbench.checkpoints import files
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.vfs.local import LocalStorage
from workbench.vfs.upper import LocalUpper


class Shown(NamedTuple):
    """What of an entry counts; `link` is the first path of those that share its inode."""

    mode: int
    uid: int
    gid: int
    mtime_ns: int
    content: bytes
    xattrs: tuple[tuple[str, bytes], ...]
    link: bytes


def show(top: str | bytes | Path) -> dict[bytes, Shown]:
    """All that is below a directory, without `user.overlay.*`; by descriptors, so that paths may be of any length."""
    shown: dict[bytes, Shown] = {}
    links: dict[int, bytes] = {}

    def look(path: bytes, name: bytes, dir_fd: int | None) -> os.stat_result:
        status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        content = b""
        xattrs: tuple[tuple[str, bytes], ...] = ()
        if stat.S_ISLNK(status.st_mode):
            content = os.readlink(name, dir_fd=dir_fd)
        elif stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode):
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=dir_fd)
            try:
                if stat.S_ISREG(status.st_mode):
                    with open(fd, "rb", closefd=False) as file:
                        content = file.read()
                names = sorted(n for n in os.listxattr(fd) if not n.startswith("user.overlay."))
                xattrs = tuple((n, os.getxattr(fd, n)) for n in names)
            finally:
                os.close(fd)
        link = path
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode) and not stat.S_ISCHR(status.st_mode):
            link = links.setdefault(status.st_ino, path)
        # The kernel's own whiteouts and symlinks have modes and times of no meaning.
        mtime = 0 if stat.S_ISCHR(status.st_mode) else status.st_mtime_ns
        shown[path] = Shown(status.st_mode, status.st_uid, status.st_gid, mtime, content, xattrs, link)
        return status

    look(b"", os.fsencode(top), None)
    waiting = [(b"", os.open(top, os.O_RDONLY | os.O_DIRECTORY))]
    try:
        while waiting:
            path, fd = waiting[-1]
            below = []
            for name in sorted(map(os.fsencode, os.listdir(fd))):
                child = path + b"/" + name if path else name
                if stat.S_ISDIR(look(child, name, fd).st_mode):
                    below.append((child, os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=fd)))
            waiting[-1:] = below
            os.close(fd)
    finally:
        # Else nobody could unmount it, and that would be all that's said.
        for _, fd in waiting:
            os.close(fd)
    return shown


@dataclass
class Layers:
    """A lower and an upper layer in a directory of their own, with a store beside them."""

    path: Path
    store: CheckpointStore
    number: int = 0
    epoch_ns: int | None = None

    @property
    def lower(self) -> Path:
        return self.path / "lower"

    @property
    def upper(self) -> Path:
        return self.path / "upper"

    @property
    def merged(self) -> Path:
        return self.path / "merged"

    @classmethod
    def make(cls, path: Path) -> Layers:
        for name in ("lower", "upper", "work", "merged"):
            (path / name).mkdir(parents=True)
        return cls(path, CheckpointStore(path / "checkpoints.git"))

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        """The kernel's overlay; sets the epoch that the next checkpoints go by."""
        options = f"lowerdir={self.lower},upperdir={self.upper},workdir={self.path / 'work'}"
        options += ",userxattr,nosuid,nodev,index=off,xino=off"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(self.merged)], check=True)
        try:
            self.epoch_ns = self.tick()
            yield self.merged
        finally:
            subprocess.run(["umount", str(self.merged)], check=True)

    def tick(self) -> int:
        """The filesystem's clock, once it has moved on."""
        first = files.probe(str(self.path)).st_ctime_ns
        while True:
            now = files.probe(str(self.path)).st_ctime_ns
            if now > first:
                return now

    def take(self, session: str = "default", **options: object) -> Checkpoint:
        """A checkpoint under the next number."""
        self.number += 1
        arguments = {"message_id": f"m{self.number}", "epoch_ns": self.epoch_ns, **options}
        with LocalUpper(os.fsencode(self.upper)) as upper, LocalStorage(os.fsencode(self.lower)) as lower:
            return self.store.take(session, upper, lower, **arguments)  # type: ignore[arg-type]


NAMES = [
    b"a",
    b"b",
    b"c",
    b"-d",
    b"new\nline",
    b"\xff\xfe",
    b".git",
    b"HEAD",
    b"sp ace ",
    b"%41",
    b"n" * 255,
    "é".encode(),
]
FILE_MODES = [0o600, 0o644, 0o755, 0o4755, 0o2750, 0o400, 0o000]
DIR_MODES = [0o700, 0o755, 0o2775, 0o1777, 0o000]


class Operations:
    """Random operations on a tree, such as commands make."""

    def __init__(self, top: Path, seed: int) -> None:
        self.top = os.fsencode(top)
        self.random = random.Random(seed)

    def run(self, count: int) -> None:
        steps = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("do_")]
        # What is made has to outlive what takes whole trees away.
        steps += 4 * [self.do_create, self.do_make_directory] + 2 * [self.do_link, self.do_append, self.do_xattr]
        for _ in range(count):
            with contextlib.suppress(OSError, shutil.Error, IndexError):
                self.random.choice(steps)()

    def _all(self) -> list[bytes]:
        found = []
        for parent, directories, names in os.walk(self.top):
            found += [os.path.join(parent, name) for name in sorted(directories + names)]
        return sorted(found)

    def _any(self, kind: str) -> bytes:
        checks = {"file": os.path.isfile, "dir": os.path.isdir}
        return self.random.choice([p for p in self._all() if checks[kind](p) and not os.path.islink(p)])

    def _new(self) -> bytes:
        directories = [self.top, *(p for p in self._all() if os.path.isdir(p) and not os.path.islink(p))]
        return os.path.join(self.random.choice(directories), self.random.choice(NAMES))

    def do_create(self) -> None:
        with open(self._new(), "xb") as file:
            file.write(self.random.randbytes(self.random.choice([0, 1, 100, 9000])))

    def do_append(self) -> None:
        with open(self._any("file"), "ab") as file:
            file.write(b"more\n")

    def do_overwrite_and_keep_time(self) -> None:
        path = self._any("file")
        status = os.stat(path)
        with open(path, "r+b") as file:
            file.write(b"X")
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))

    def do_make_directory(self) -> None:
        os.mkdir(self._new())

    def do_delete(self) -> None:
        os.unlink(self._any("file"))

    def do_delete_tree(self) -> None:
        shutil.rmtree(self._any("dir"))

    def do_replace_tree(self) -> None:
        path = self._any("dir")
        shutil.rmtree(path)
        os.mkdir(path)
        with open(os.path.join(path, b"fresh"), "wb") as file:
            file.write(b"fresh")

    def do_tree_to_file(self) -> None:
        path = self._any("dir")
        shutil.rmtree(path)
        with open(path, "wb") as file:
            file.write(b"was a directory")

    def do_file_to_tree(self) -> None:
        path = self._any("file")
        os.unlink(path)
        os.makedirs(os.path.join(path, b"in", b"side"))

    def do_rename(self) -> None:
        os.rename(self._any("file"), self._new())

    def do_move_tree(self) -> None:
        shutil.move(os.fsdecode(self._any("dir")), os.fsdecode(self._new()))

    def do_symlink(self) -> None:
        os.symlink(self.random.choice([b"a", b"../..", b"/etc/passwd", b"\xff", b"."]), self._new())

    def do_link(self) -> None:
        os.link(self._any("file"), self._new())

    def do_chmod(self) -> None:
        os.chmod(self._any("file"), self.random.choice(FILE_MODES))

    def do_chmod_directory(self) -> None:
        os.chmod(self._any("dir"), self.random.choice(DIR_MODES))

    def do_chown(self) -> None:
        os.chown(self._any("file"), self.random.choice([0, 1, 1000]), self.random.choice([0, 1, 1000]))

    def do_touch(self) -> None:
        path = self.random.choice(self._all())
        os.utime(path, ns=(1, self.random.randrange(10**18)), follow_symlinks=False)

    def do_xattr(self) -> None:
        path = self._any(self.random.choice(["file", "dir"]))
        os.setxattr(path, f"user.{self.random.choice('ab')}", self.random.randbytes(5))

    def do_sparse(self) -> None:
        with open(self._new(), "xb") as file:
            file.truncate(200_000)
            file.seek(100_000)
            file.write(b"middle")

    def do_fifo(self) -> None:
        os.mkfifo(self._new(), 0o640)

    def do_socket(self) -> None:
        server = socket.socket(socket.AF_UNIX)
        path = self._new()
        fd = os.open(os.path.dirname(path), os.O_PATH)
        try:
            server.bind(f"/proc/self/fd/{fd}/".encode() + os.path.basename(path))
        finally:
            os.close(fd)
            server.close()


def as_nobody(function: Callable[[], None]) -> int:
    """Run a function in a child that isn't root; its exit status, 0 where it raised nothing."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            function()
            code = 0
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def let_nobody_enter(path: Path) -> None:
    """Let everybody into a directory and those above it."""
    for directory in (path, *path.parents):
        mode = directory.stat().st_mode
        if mode & 0o005 != 0o005:
            directory.chmod(mode | 0o005)


def fill(lower: Path) -> None:
    """A small project for a lower layer."""
    for name in ("src", "src/deep", "docs", "docs/old", "empty"):
        (lower / name).mkdir()
    for name in ("README", "src/a.py", "src/b.py", "src/deep/c.py", "docs/x", "docs/old/y", "docs/old/z"):
        (lower / name).write_text(f"lower {name}\n")
    (lower / "run").write_text("#!/bin/sh\n")
    (lower / "run").chmod(0o755)
    (lower / "link").symlink_to("README")
    os.link(lower / "docs/x", lower / "docs/x2")
