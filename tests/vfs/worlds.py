"""The same small tree in several worlds, each answering the same operations: overlays, a plain directory, a kernel's."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from workbench.errors import OptionsError
from workbench.vfs import marks
from workbench.vfs.local import LocalStorage
from workbench.vfs.memory import MemoryUpper
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

Tree = dict[bytes, tuple[object, ...]]
OPTIONS = "userxattr,nosuid,nodev,index=off,xino=off"
LONG_AGO = 10**18
"""Times before it were set on purpose; later ones are "now", and equal to each other."""


def fill_lower(root: Path) -> None:
    """A lower tree with a bit of everything."""
    base = os.fsencode(root)
    for path in (b"a", b"a/b", b"a/b/c", b"d", b"d/a", b"empty", b"full", b"full/a"):
        os.mkdir(os.path.join(base, path))
    for path in (b"f", b"a/f", b"a/b/f", b"a/b/c/f", b"d/f", b"d/a/f", b"full/a/f", b"d/new\nline", b"d/\xff\xfe"):
        with open(os.path.join(base, path), "wb") as file:
            file.write(b"lower " + path * 3)
    os.symlink(b"a/f", os.path.join(base, b"l"))
    os.symlink(b"../f", os.path.join(base, b"a/l"))
    os.symlink(b"b", os.path.join(base, b"a/to-b"))
    os.mkfifo(os.path.join(base, b"d/pipe"))
    os.setxattr(os.path.join(base, b"a/f"), b"user.note", b"lower")
    os.setxattr(os.path.join(base, b"d"), b"user.note", b"lower")
    os.chmod(os.path.join(base, b"a/b/f"), 0o751)
    os.chmod(os.path.join(base, b"d/a"), 0o2775)
    with open(os.path.join(base, b"sparse"), "wb") as file:
        file.seek(1 << 16)
        file.write(b"end")
    for number, (parent, directories, files) in enumerate(os.walk(base, topdown=False)):
        for name in directories + files:
            when = 10**15 + number
            os.utime(os.path.join(parent, name), ns=(when, when), follow_symlinks=False)


def code_of(step: Callable[[], Any]) -> Any:
    """What a step returned, or the errno that it raised."""
    try:
        return step()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    except OptionsError as error:
        return error.code


class PlainWorld:
    """A real directory, changed by the system's own calls; a kernel's overlay, too."""

    def __init__(self, root: Path) -> None:
        self.root = os.fsencode(root)

    def at(self, path: bytes) -> bytes:
        """Where it is; a symlink in the middle is no way, as in an overlay."""
        here = self.root
        *above, name = path.split(b"/")
        for part in above:
            here = os.path.join(here, part)
            if os.path.islink(here):
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path)
        return os.path.join(here, name)

    def open(self, path: bytes, mode: str) -> BinaryIO:
        there = self._kind(path)
        if there is not None and "x" not in mode and there != stat.S_IFREG:
            codes = {stat.S_IFDIR: errno.EISDIR, stat.S_IFLNK: errno.ELOOP}
            raise OSError(codes.get(there, errno.EINVAL), "not a regular file")
        return open(self.at(path), mode)

    def _kind(self, path: bytes) -> int | None:
        try:
            return stat.S_IFMT(os.lstat(self.at(path)).st_mode)
        except FileNotFoundError:
            return None

    def read_bytes(self, path: bytes) -> bytes:
        with self.open(path, "rb") as file:
            return file.read()

    def write_bytes(self, path: bytes, data: bytes) -> None:
        there = self._kind(path)
        if there is None:
            with self.open(path, "xb") as file:
                file.write(data)
            return
        with self.open(path, "rb"):
            pass
        old = os.stat(self.at(path))
        xattrs = {name: os.getxattr(self.at(path), name) for name in os.listxattr(self.at(path))}
        temporary = self.at(b"temporary-of-the-test")
        with open(temporary, "xb") as file:
            file.write(data)
        for name, value in xattrs.items():
            os.setxattr(temporary, name, value)
        os.chown(temporary, old.st_uid, old.st_gid)
        os.chmod(temporary, stat.S_IMODE(old.st_mode))
        os.rename(temporary, self.at(path))

    def create(self, path: bytes) -> None:
        self.open(path, "xb").close()

    def truncate(self, path: bytes, size: int) -> None:
        with self.open(path, "r+b") as file:
            file.truncate(size)

    def mkdir(self, path: bytes, mode: int) -> None:
        os.mkdir(self.at(path), mode)

    def rmdir(self, path: bytes) -> None:
        os.rmdir(self.at(path))

    def unlink(self, path: bytes) -> None:
        os.unlink(self.at(path))

    def remove_tree(self, path: bytes) -> None:
        if stat.S_ISDIR(os.lstat(self.at(path)).st_mode):
            shutil.rmtree(self.at(path))
        else:
            os.unlink(self.at(path))

    def rename(self, src: bytes, dst: bytes) -> None:
        try:
            os.rename(self.at(src), self.at(dst))
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            # A kernel's overlay leaves a directory of the lower layer to whoever asked.
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(self.at(dst))
            self._move_tree(self.at(src), self.at(dst))

    def _move_tree(self, src: bytes, dst: bytes) -> None:
        found = os.stat(src)
        os.mkdir(dst)
        for name in os.listxattr(src):
            os.setxattr(dst, name, os.getxattr(src, name))
        for entry in map(os.fsencode, os.listdir(src)):
            below = (os.path.join(src, entry), os.path.join(dst, entry))
            try:
                # One by one, so that what is open goes along.
                os.rename(*below)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._move_tree(*below)
        os.chown(dst, found.st_uid, found.st_gid)
        os.chmod(dst, stat.S_IMODE(found.st_mode))
        os.utime(dst, ns=(found.st_atime_ns, found.st_mtime_ns))
        os.rmdir(src)

    def copy(self, src: bytes, dst: bytes) -> None:
        subprocess.run([b"cp", b"-rT", b"--", self.at(src), self.at(dst)], check=True)

    def symlink(self, target: bytes, path: bytes) -> None:
        os.symlink(target, self.at(path))

    def link(self, src: bytes, dst: bytes) -> None:
        os.link(self.at(src), self.at(dst), follow_symlinks=False)

    def chmod(self, path: bytes, mode: int) -> None:
        if self._kind(path) == stat.S_IFLNK:
            raise OSError(errno.ENOTSUP, "a symlink has no mode of its own")
        os.chmod(self.at(path), mode)

    def utime(self, path: bytes, mtime_ns: int) -> None:
        os.utime(self.at(path), ns=(mtime_ns, mtime_ns), follow_symlinks=False)

    def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        os.setxattr(self.at(path), name, value, follow_symlinks=False)

    def removexattr(self, path: bytes, name: bytes) -> None:
        os.removexattr(self.at(path), name, follow_symlinks=False)

    def paths(self) -> list[bytes]:
        found = []
        for parent, directories, files in os.walk(self.root):
            found += [os.path.relpath(os.path.join(parent, name), self.root) for name in directories + files]
        return sorted(found)

    def tree(self) -> Tree:
        shown: Tree = {}
        for path in [b"", *self.paths()]:
            found = os.lstat(self.at(path))
            target, content, xattrs = b"", b"", {}
            if stat.S_ISLNK(found.st_mode):
                target = os.readlink(self.at(path))
            else:
                names = map(os.fsencode, os.listxattr(self.at(path)))
                xattrs = {name: os.getxattr(self.at(path), name) for name in names if not _of_overlay(name)}
            if stat.S_ISREG(found.st_mode):
                with open(self.at(path), "rb") as file:
                    content = file.read()
            mode = _mode(found.st_mode)
            shown[path] = (mode, found.st_uid, found.st_gid, content, target, xattrs, _moment(found.st_mtime_ns))
        return shown


def _of_overlay(name: bytes) -> bool:
    return name.startswith((marks.PREFIX, b"trusted.overlay."))


def _mode(mode: int) -> str:
    return f"{stat.S_IFMT(mode):o}:{stat.S_IMODE(mode):o}"


def _moment(mtime_ns: int) -> int:
    return min(mtime_ns, LONG_AGO)


_FORMATS = {Kind.FILE: stat.S_IFREG, Kind.DIR: stat.S_IFDIR, Kind.SYMLINK: stat.S_IFLNK, Kind.FIFO: stat.S_IFIFO}


class OverlayWorld:
    """An overlay, under the names that `PlainWorld` has for its operations."""

    def __init__(self, overlay: Overlay) -> None:
        self.overlay = overlay

    def __getattr__(self, name: str) -> Any:
        return getattr(self.overlay, name)

    def paths(self) -> list[bytes]:
        return sorted(self.overlay.find())

    def tree(self) -> Tree:
        shown: Tree = {}
        for path in [b"", *self.overlay.find()]:
            found = self.overlay.stat(path)
            target = self.overlay.readlink(path) if found.kind is Kind.SYMLINK else b""
            content = self.overlay.read_bytes(path) if found.kind is Kind.FILE else b""
            assert found.kind is not Kind.FILE or found.size == len(content)
            xattrs = self.overlay.xattrs(path)
            mode = _mode(_FORMATS[found.kind] | found.mode)
            shown[path] = (mode, found.uid, found.gid, content, target, xattrs, _moment(found.mtime_ns))
        return shown


def layer(root: Path, lower: Path) -> Tree:
    """An upper layer as it lies on disk, with its whiteouts, and the opaque marks that hide something."""
    shown: Tree = {}
    waiting = [(b"", True)]
    while waiting:
        path, merged = waiting.pop()
        there = os.path.join(os.fsencode(root), path)
        found = os.lstat(there)
        if stat.S_ISCHR(found.st_mode):
            assert merged, f"a whiteout where nothing of the lower shows: {path!r}"
            assert os.path.lexists(os.path.join(os.fsencode(lower), path)), f"a whiteout over nothing: {path!r}"
            shown[path] = ("whiteout", found.st_rdev)
        elif stat.S_ISDIR(found.st_mode):
            opaque = marks.OPAQUE.decode() in os.listxattr(there)
            hides = opaque and merged and os.path.isdir(os.path.join(os.fsencode(lower), path))
            shown[path] = (_mode(found.st_mode), hides)
            waiting += [(os.path.join(path, name), merged and not opaque) for name in os.listdir(there)]
        else:
            shown[path] = (_mode(found.st_mode), found.st_nlink)
    return shown


class Worlds:
    """All worlds over one lower tree, and what they have to agree in. `kernel` is there for root only."""

    def __init__(self, base: Path, lower: Path, *, kernel: bool) -> None:
        self.base = base
        self.lower = lower
        for name in ("upper", "work", "kernel-upper", "kernel-work", "merged"):
            (base / name).mkdir()
        subprocess.run(["cp", "-a", lower, base / "plain"], check=True)
        self.mounted = False
        self.plain = PlainWorld(base / "plain")
        self.storage = LocalStorage(os.fsencode(lower))
        self.local = OverlayWorld(self._overlay("upper"))
        self.memory = OverlayWorld(Overlay(self.storage, MemoryUpper(), scratch=b"no-scratch"))
        self.memory.overlay.chmod(b"", stat.S_IMODE(lower.stat().st_mode))
        self.all: dict[str, PlainWorld | OverlayWorld] = {
            "plain": self.plain,
            "local": self.local,
            "memory": self.memory,
        }
        # A mount takes the mode of its root from the upper, and so does whoever writes it.
        for name in ("upper", "kernel-upper"):
            shutil.copystat(lower, base / name)
        self.memory.overlay.utime(b"", lower.stat().st_mtime_ns)
        if kernel:
            self.mount("kernel-upper", "kernel-work")
            self.all["kernel"] = PlainWorld(base / "merged")

    def _overlay(self, upper: str) -> Overlay:
        layer = LocalUpper(os.fsencode(self.base / upper), work=os.fsencode(self.base / "work"))
        return Overlay(self.storage, layer, scratch=b"no-scratch")

    def mount(self, upper: str, work: str) -> None:
        options = f"lowerdir={self.lower},upperdir={self.base / upper},workdir={self.base / work},{OPTIONS}"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, self.base / "merged"], check=True)
        self.mounted = True

    def unmount(self) -> None:
        if self.mounted:
            subprocess.run(["umount", self.base / "merged"], check=True)
            self.mounted = False

    def close(self) -> None:
        if self.mounted:
            # Lazily, since after a failure a file may be open.
            subprocess.run(["umount", "-l", self.base / "merged"], check=True)
        upper = self.local.overlay.upper
        assert isinstance(upper, LocalUpper)
        upper.close()
        self.storage.close()
        shutil.rmtree(self.base)

    def read_kernels_upper(self) -> Tree:
        """What Python shows of the upper that the kernel wrote."""
        with LocalUpper(os.fsencode(self.base / "kernel-upper")) as upper:
            return OverlayWorld(Overlay(self.storage, upper, scratch=b"no-scratch")).tree()

    def read_ours_with_the_kernel(self) -> Tree:
        """What the kernel shows of the upper that Python wrote."""
        self.mount("upper", "work")
        shown = PlainWorld(self.base / "merged").tree()
        self.unmount()
        return shown


def new_base() -> Path:
    return Path(tempfile.mkdtemp(prefix="worlds-"))
