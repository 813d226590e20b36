"""Run inside a mount namespace of its own: mounts an overlay, makes a random history on it, tells what it shows.

Usage: kernel_history.py SEED BATCHES OPERATIONS, in a directory that holds lower/, upper/, work/ and merged/. Prints
one line of JSON after each batch, and goes on when it reads a line.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator

OPTIONS = "lowerdir=lower,upperdir=upper,workdir=work,userxattr,nosuid,nodev,index=off,xino=off"
NAMES = [
    b"a",
    b"b",
    b"c",
    b"-d",
    b"new\nline",
    b"\xff\xfe",
    b"co:lon",
    b"com,ma",
    b"back\\slash",
    b"sp ace ",
    b"n" * 255,
]
FILE_MODES = [0o600, 0o644, 0o755, 0o4755, 0o2750, 0o400]
DIR_MODES = [0o700, 0o755, 0o2775, 0o1777]


def entries(top: bytes) -> Iterator[bytes]:
    for parent, directories, files in os.walk(top):
        for name in directories + files:
            yield os.path.join(parent, name)


def describe(path: bytes) -> dict[str, object]:
    found = os.lstat(path)
    told: dict[str, object] = {"mode": found.st_mode, "mtime": found.st_mtime_ns, "uid": found.st_uid}
    if stat.S_ISLNK(found.st_mode):
        told["target"] = os.readlink(path).decode("latin-1")
    elif stat.S_ISREG(found.st_mode):
        with open(path, "rb") as file:
            told["sha256"] = hashlib.sha256(file.read()).hexdigest()
        told["size"] = found.st_size
    if not stat.S_ISLNK(found.st_mode):
        names = sorted(os.listxattr(path))
        told["xattrs"] = [[name, os.getxattr(path, name).decode("latin-1")] for name in names]
    return told


def tree(top: bytes) -> dict[str, dict[str, object]]:
    shown = {"": describe(top)}
    for path in entries(top):
        shown[os.path.relpath(path, top).decode("latin-1")] = describe(path)
    return shown


class History:
    def __init__(self, top: bytes, seed: int) -> None:
        self.top = top
        self.random = random.Random(seed)

    def any_path(self, keep: Callable[[str], bool] = bool) -> bytes:
        found = [path for path in entries(self.top) if keep(kind_of(path))]
        if not found:
            raise FileNotFoundError
        return self.random.choice(sorted(found))

    def directory(self) -> bytes:
        found = [path for path in entries(self.top) if kind_of(path) == "dir"]
        return self.random.choice([self.top, *sorted(found)])

    def file(self) -> bytes:
        return self.any_path(lambda kind: kind == "file")

    def small_directory(self) -> bytes:
        """One of the deeper directories, so that a few deletions don't take everything."""
        return max((self.any_path(lambda kind: kind == "dir") for _ in range(3)), key=lambda path: path.count(b"/"))

    def new(self) -> bytes:
        return os.path.join(self.directory(), self.random.choice(NAMES))

    def step(self) -> None:
        operations = [getattr(self, name) for name in sorted(dir(self)) if name.startswith("do_")]
        with contextlib.suppress(OSError):
            self.random.choice(operations)()

    def do_create(self) -> None:
        self.write(self.new(), "wb")

    def do_append(self) -> None:
        self.write(self.file(), "ab")

    def do_overwrite(self) -> None:
        self.write(self.file(), "r+b")

    def write(self, path: bytes, how: str) -> None:
        with open(path, how, opener=open_now) as file:
            file.write(self.random.randbytes(self.random.randrange(300)))

    def do_atomic_write(self) -> None:
        path = self.file()
        self.write(path + b"~", "xb")
        os.rename(path + b"~", path)

    def do_sparse(self) -> None:
        with open(self.new(), "wb", opener=open_now) as file:
            file.seek(self.random.randrange(1, 1 << 20))
            file.write(b"end")

    def do_truncate(self) -> None:
        os.truncate(self.file(), self.random.randrange(5000))

    def do_mkdir(self) -> None:
        os.mkdir(self.new())

    # Listed again to be chosen more often: else deletions win.
    do_create_more = do_create_even_more = do_create
    do_mkdir_more = do_mkdir_even_more = do_mkdir

    def do_rename(self) -> None:
        os.rename(self.any_path(), self.new())

    def do_move(self) -> None:
        source, target = self.small_directory(), self.new()
        if not (target + b"/").startswith(source + b"/"):
            shutil.move(os.fsdecode(source), os.fsdecode(target))

    def do_unlink(self) -> None:
        os.unlink(self.any_path(lambda kind: kind != "dir"))

    def do_rmdir(self) -> None:
        os.rmdir(self.small_directory())

    def do_remove_and_make_again(self) -> None:
        path = self.small_directory()
        shutil.rmtree(path)
        os.mkdir(path)
        self.write(os.path.join(path, self.random.choice(NAMES)), "xb")

    def do_remove_tree(self) -> None:
        shutil.rmtree(self.small_directory())

    def do_directory_to_file(self) -> None:
        path = self.small_directory()
        shutil.rmtree(path)
        self.write(path, "xb")

    def do_file_to_directory(self) -> None:
        path = self.file()
        os.unlink(path)
        os.mkdir(path)
        self.write(os.path.join(path, self.random.choice(NAMES)), "xb")

    def do_symlink(self) -> None:
        os.symlink(self.random.choice([b"a", b"../b", b"/etc", b"nowhere", b"c/a"]), self.new())

    def do_symlink_to_file(self) -> None:
        path = self.any_path(lambda kind: kind == "symlink")
        os.unlink(path)
        self.write(path, "xb")

    def do_to_symlink(self) -> None:
        path = self.file()
        os.unlink(path)
        os.symlink(b"a", path)

    def do_link(self) -> None:
        os.link(self.file(), self.new())

    def do_fifo(self) -> None:
        os.mkfifo(self.new())

    def do_chmod_file(self) -> None:
        os.chmod(self.file(), self.random.choice(FILE_MODES))

    def do_chmod_directory(self) -> None:
        os.chmod(self.directory(), self.random.choice(DIR_MODES))

    def do_utime(self) -> None:
        time = self.random.randrange(10**18)
        os.utime(self.any_path(), ns=(time, time), follow_symlinks=False)

    def do_xattr(self) -> None:
        os.setxattr(self.any_path(lambda kind: kind in ("file", "dir")), b"user.note", self.random.randbytes(8))


def open_now(path: str | bytes, flags: int) -> int:
    # A FIFO without a reader would keep the writer waiting.
    return os.open(path, flags | os.O_NONBLOCK, 0o666)


def kind_of(path: bytes) -> str:
    mode = os.lstat(path).st_mode
    return {stat.S_IFREG: "file", stat.S_IFDIR: "dir", stat.S_IFLNK: "symlink"}.get(stat.S_IFMT(mode), "other")


def main(seed: int, batches: int, operations: int) -> None:
    os.umask(0o022)
    maker = History(b"lower", seed)
    for _ in range(400):
        with contextlib.suppress(OSError):
            maker.random.choice([maker.do_mkdir, maker.do_create, maker.do_create, maker.do_symlink, maker.do_utime])()
    lower = tree(b"lower")
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", OPTIONS, "merged"], check=True)
    history = History(b"merged", seed + 1)
    for _ in range(batches):
        for _ in range(operations):
            history.step()
        print(json.dumps(tree(b"merged")), flush=True)
        if not sys.stdin.readline():
            return
    assert tree(b"lower") == lower, "the kernel changed the lower layer"
    subprocess.run(["umount", "merged"], check=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
