"""Writing a tree that came as tar, each path walked from its root by descriptors: no symlink in it leads anywhere else."""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile

from workbench.sandbox.tree_directories import BELOW, Directories, itself, open_directory
from workbench.sandbox.tree_packer import Packer
from workbench.sandbox.tree_stream import (
    CHUNK,
    ESCAPED,
    OPAQUE,
    ORIGIN,
    OVERLAY,
    PAX_COPIED,
    PAX_OPAQUE,
    PAX_SOCKET,
    XATTR,
    FrameReader,
    check,
    forget_members,
    raw,
)

_STAGED = b".workbench-staged"
_ZEROS = bytes(64 << 10)


class Unpacker:
    """Writes what a `Packer` wrote into a tree that nobody else writes in; `close` it, which sets times and modes."""

    def __init__(self, root: int, *, origins: dict[bytes, bytes] | None = None, merge: bool = False) -> None:
        """Args:
        root: a descriptor of the tree's root.
        origins: the mark of a directory that was copied up, by path, as far as it's known; else it is an empty one.
        merge: whether what comes is an upper layer, and the tree the lower one, to become what both are together.
        """
        self._merge = merge
        self._root = root
        self._origins = origins or {}
        self._directories = Directories(root)
        self._parent: tuple[bytes, int] | None = None
        self._finish: dict[bytes, tuple[int, int]] = {}
        self.paths: set[bytes] = set()
        """What came."""

    def unpack(self, source: FrameReader) -> None:
        """Put every entry of a tar in its place. Raises OSError, tarfile.TarError, ValueError."""
        with tarfile.open(
            fileobj=source,
            mode="r|",
            encoding="utf-8",
            errors="surrogateescape",
            bufsize=CHUNK,  # type: ignore[call-overload]
        ) as tar:
            while True:
                member = tar.next()
                if member is None:
                    break
                forget_members(tar)
                self._put(tar, member)
        source.drain()

    def remove(self, path: bytes) -> None:
        """Remove what stands at a path, if anything does."""
        check(path)
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            self._clear(*self._place(path))

    def remove_others(self) -> None:
        """Remove everything that didn't come."""
        for path in list(Packer(self._root, layer=True).signatures()):
            if path and path not in self.paths:
                self.remove(path)

    def close(self) -> None:
        """Set the times and modes of directories: only now does nothing change them any more."""
        # What is below comes first: it can't be reached any more where its directory is closed.
        for path in sorted(self._finish, key=lambda path: path.split(b"/"), reverse=True):
            mode, mtime_ns = self._finish[path]
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                fd = self._directories.open(path)
                os.chmod(itself(fd), mode)
                os.utime(itself(fd), ns=(mtime_ns, mtime_ns))
        self._finish = {}
        self._parent = None
        self._directories.close()

    def _put(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = b"" if member.name == "." else raw(member.name)
        self.paths.add(path)
        if not path:
            self._dress_directory(self._root, path, member)
            return
        check(path)
        dir_fd, name = self._place(path)
        if member.isdir():
            if self._merge and PAX_OPAQUE in member.pax_headers:
                self._clear(dir_fd, name)
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=dir_fd)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=dir_fd)
            fd = os.open(name, BELOW, dir_fd=dir_fd)
            try:
                self._dress_directory(fd, path, member)
            finally:
                os.close(fd)
        elif member.ischr():
            self._clear(dir_fd, name)
            if not self._merge:
                os.mknod(name, stat.S_IFCHR, 0, dir_fd=dir_fd)
        elif member.isreg() or member.issym() or member.islnk() or member.isfifo():
            self._stage(tar, member, dir_fd)
            with contextlib.suppress(FileNotFoundError):
                if stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
                    self._clear(dir_fd, name)
            os.rename(_STAGED, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            if member.islnk():
                # A rename onto another name of the same file does nothing.
                _unlink(dir_fd, _STAGED)
        else:
            raise ValueError(f"an entry of a kind {member.type!r}")

    def _stage(self, tar: tarfile.TarFile, member: tarfile.TarInfo, dir_fd: int) -> None:
        _unlink(dir_fd, _STAGED)
        mtime_ns = _mtime_ns(member)
        if member.islnk():
            target = raw(member.linkname)
            check(target)
            above, _, name = target.rpartition(b"/")
            source = open_directory(self._root, above)
            try:
                os.link(name, _STAGED, src_dir_fd=source, dst_dir_fd=dir_fd, follow_symlinks=False)
            finally:
                os.close(source)
        elif member.isfifo():
            kind = stat.S_IFSOCK if PAX_SOCKET in member.pax_headers else stat.S_IFIFO
            os.mknod(_STAGED, kind | 0o600, dir_fd=dir_fd)
            fd = os.open(_STAGED, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
            try:
                _give(itself(fd), member)
                os.chmod(itself(fd), member.mode)
                os.utime(itself(fd), ns=(mtime_ns, mtime_ns))
            finally:
                os.close(fd)
        elif member.issym():
            os.symlink(raw(member.linkname), _STAGED, dir_fd=dir_fd)
            fd = os.open(_STAGED, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
            try:
                _give(itself(fd), member)
            finally:
                os.close(fd)
            os.utime(_STAGED, ns=(mtime_ns, mtime_ns), dir_fd=dir_fd, follow_symlinks=False)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(_STAGED, flags, 0o600, dir_fd=dir_fd)
            try:
                self._write(fd, tar, member)
                self._set_attributes(itself(fd), member)
                if PAX_COPIED in member.pax_headers and not self._merge:
                    os.setxattr(fd, ORIGIN, b"")
                _give(itself(fd), member)
                os.fchmod(fd, member.mode)
                os.utime(fd, ns=(mtime_ns, mtime_ns))
            finally:
                os.close(fd)

    def _write(self, fd: int, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        content = tar.extractfile(member)
        assert content is not None
        offset = 0
        while offset < member.size:
            data = content.read(len(_ZEROS))
            if not data:
                raise EOFError
            # What is nothing but zeros stays a hole.
            if data != _ZEROS[: len(data)]:
                view, at = memoryview(data), offset
                while view:
                    written = os.pwrite(fd, view, at)
                    view, at = view[written:], at + written
            offset += len(data)
        os.ftruncate(fd, member.size)

    def _dress_directory(self, fd: int, path: bytes, member: tarfile.TarInfo) -> None:
        target = itself(fd)
        if os.geteuid() and os.fstat(fd).st_mode & 0o700 != 0o700:
            os.chmod(target, 0o700)
        there = os.listxattr(target)
        if not self._merge:
            self._mark(target, path, member, there)
        for attribute in there:
            if attribute.startswith("user.") and not attribute.startswith(OVERLAY):
                os.removexattr(target, attribute)
        self._set_attributes(target, member)
        _give(target, member)
        self._finish[path] = (member.mode, _mtime_ns(member))

    def _mark(self, target: str, path: bytes, member: tarfile.TarInfo, there: list[str]) -> None:
        if PAX_OPAQUE in member.pax_headers:
            os.setxattr(target, OPAQUE, b"y")
        elif OPAQUE in there:
            os.removexattr(target, OPAQUE)
        if PAX_COPIED not in member.pax_headers:
            if ORIGIN in there:
                os.removexattr(target, ORIGIN)
        elif ORIGIN not in there or not os.getxattr(target, ORIGIN):
            os.setxattr(target, ORIGIN, self._origins.get(path, b""))

    def _set_attributes(self, target: str, member: tarfile.TarInfo) -> None:
        for header, value in member.pax_headers.items():
            if header.startswith(XATTR):
                name = os.fsdecode(bytes.fromhex(header[len(XATTR) :]))
                if self._merge and name.startswith(ESCAPED):
                    name = OVERLAY + name[len(ESCAPED) :]
                os.setxattr(target, name, bytes.fromhex(value[1:]))

    def _place(self, path: bytes) -> tuple[int, bytes]:
        """The directory that holds a path, made fit to be written in, and the name in it."""
        above, _, name = path.rpartition(b"/")
        if self._parent is None or self._parent[0] != above:
            self._parent = (above, self._enter(above))
        return self._parent[1], name

    def _enter(self, path: bytes) -> int:
        try:
            fd = self._directories.open(path)
        except PermissionError:
            # It, or what is above it, is closed to us, who own it.
            for end in [at for at in range(len(path)) if path[at : at + 1] == b"/"]:
                self._open_up(path[:end])
            fd = self._directories.open(path)
        self._open_up(path)
        return fd

    def _open_up(self, path: bytes) -> None:
        """Remember what a directory's mode and time are to be again, and give ourselves all rights on it."""
        fd = self._directories.open(path)
        status = os.fstat(fd)
        self._finish.setdefault(path, (stat.S_IMODE(status.st_mode), status.st_mtime_ns))
        if os.geteuid() != 0 and status.st_mode & 0o700 != 0o700:
            os.chmod(itself(fd), stat.S_IMODE(status.st_mode) | 0o700)

    def _clear(self, dir_fd: int, name: bytes) -> None:
        """Remove what is there, with all that is in it."""
        try:
            status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(name, dir_fd=dir_fd)
            return
        # Children are moved up, so that no depth is too great.
        waiting, number = [name], 0
        while waiting:
            fd = os.open(waiting[-1], BELOW, dir_fd=dir_fd)
            try:
                if os.geteuid():
                    os.chmod(itself(fd), 0o700)
                for child in map(os.fsencode, os.listdir(itself(fd))):
                    if not stat.S_ISDIR(os.stat(child, dir_fd=fd, follow_symlinks=False).st_mode):
                        os.unlink(child, dir_fd=fd)
                        continue
                    number += 1
                    moved = b"%s-%d" % (_STAGED, number)
                    if os.geteuid():
                        inner = os.open(child, BELOW, dir_fd=fd)
                        try:
                            os.chmod(itself(inner), 0o700)
                        finally:
                            os.close(inner)
                    os.rename(child, moved, src_dir_fd=fd, dst_dir_fd=dir_fd)
                    waiting.insert(0, moved)
            finally:
                os.close(fd)
            os.rmdir(waiting.pop(), dir_fd=dir_fd)


def _unlink(dir_fd: int, name: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dir_fd)


def _give(target: str, member: tarfile.TarInfo) -> None:
    # Whoever isn't root can't give files away: they stay the caller's, whose they were in the first place.
    if os.geteuid() == 0:
        os.chown(target, member.uid, member.gid)
        return
    with contextlib.suppress(PermissionError):
        os.chown(target, -1, member.gid)


def _mtime_ns(member: tarfile.TarInfo) -> int:
    seconds, _, rest = member.pax_headers["mtime"].partition(".")
    return int(seconds) * 1_000_000_000 + int(rest or "0")
