"""Trees as uncompressed tar, both ways, and the program that does it where an engine doesn't share our files.

One file, standard library only, Python 3.8 or later: it is imported here, and runs beside a sandbox in a container that
has the volumes of its layers. There it answers requests on descriptors 0 and 1, in frames: a length, `!I`, and so many
bytes. A request is a frame of JSON; a tree is frames of tar, ended by an empty one.

* `{"do": "fill", "tree": path}` and a tree: it is written there, what was given is remembered; answered by `{}`.
* `{"do": "read", "tree": path, "whole": bool}`: answered by a tree, of everything or of what changed since the last
  request, then by `{"removed": [paths, in hex]}`.

Files, directories, links, FIFOs, sockets and the kernel's whiteouts are carried, no devices, with owners, modes, times and
`user.` attributes. No symlink is followed, and every path is walked from a root by descriptors.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
import struct
import tarfile
import time
from typing import Any, Callable, Dict, Iterator, Optional, Tuple  # noqa: UP035  Python 3.8 evaluates the aliases below

FRAME = struct.Struct("!I")
CHUNK = 256 << 10

_RACY_NS = 50_000_000
"""A change can leave a time as it is within a tick of the clock, which is 10 ms at most."""

_OVERLAY = "user.overlay."
_ESCAPED = "user.overlay.overlay."
_OPAQUE = "user.overlay.opaque"
_ORIGIN = "user.overlay.origin"
_XATTR = "workbench.xattr."
"""Followed by the attribute's name, in hex as its value is: both may hold what no header can."""

_PAX_OPAQUE = "workbench.opaque"
_PAX_COPIED = "workbench.copied"
_PAX_SOCKET = "workbench.socket"
_STAGED = b".workbench-staged"
_ZEROS = bytes(64 << 10)
_OPEN_AT_ONCE = 64
_BELOW = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

Signature = Tuple[int, ...]  # noqa: UP006
Known = Dict[bytes, Optional[Signature]]  # noqa: UP006,UP045
"""What was last told of each path; None where it may have changed without a trace since."""


# ---------------------------------------------------------------------------------------------------------------------
# Frames


class FrameReader:
    """A tree's frames as the file that `tarfile` reads from; `frame` gives the next one."""

    def __init__(self, frame: Callable[[], bytes]) -> None:
        self._frame = frame
        self._rest = b""
        self._over = False

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none at the end of the tree."""
        if not self._rest and not self._over:
            self._rest = self._frame()
            self._over = not self._rest
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def drain(self) -> None:
        """Go on to the end of the tree."""
        while not self._over:
            self._rest = b""
            self.read(1)


class FrameWriter:
    """The file that `tarfile` writes to; `send` takes what goes out."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send

    def write(self, data: bytes) -> int:
        """Send one frame."""
        if data:
            self._send(FRAME.pack(len(data)) + data)
        return len(data)

    def end(self) -> None:
        """Say that the tree is over."""
        self._send(FRAME.pack(0))


# ---------------------------------------------------------------------------------------------------------------------
# Reading a tree


class Packer:
    """Writes one tree as tar. What can't be read is there, empty and closed, and counted in `unreadable`."""

    def __init__(
        self,
        root: int,
        *,
        layer: bool,
        owner: tuple[int, int] | None = None,
        hollow: frozenset[bytes] = frozenset(),
        found: Callable[[bytes, int], object] = lambda path, fd: None,
    ) -> None:
        """Args:
        root: a descriptor of the tree's root.
        layer: whether it's an upper layer, whose marks are carried as well.
        owner: whom everything belongs to, where it isn't as it stands.
        hollow: directories whose content is left out.
        found: called with the path and a descriptor of each directory.
        """
        self._root = root
        self._layer = layer
        self._owner = owner
        self._hollow = hollow
        self._found = found
        self._links: dict[tuple[int, int], bytes] = {}
        self._opened_up: list[tuple[bytes, int]] = []
        self._directories = _Directories(root)
        self.unreadable = 0

    def pack(self, sink: Any, known: Known) -> Known:
        """Write those entries that aren't `known` as they stand; what there is now."""
        racy = time.time_ns() - _RACY_NS
        now: Known = {}
        with tarfile.open(
            fileobj=sink,
            mode="w|",
            format=tarfile.PAX_FORMAT,
            encoding="utf-8",
            errors="surrogateescape",
            bufsize=CHUNK,
        ) as tar:
            for path, parent, name, status in self._walk():
                signature = _signature(status)
                now[path] = None if status.st_ctime_ns >= racy else signature
                if known.get(path) == signature:
                    continue
                try:
                    self._add(tar, path, parent, name, status)
                except FileNotFoundError:
                    del now[path]
                _forget_members(tar)
        return now

    def signatures(self) -> Known:
        """What there is now, of a tree that nobody writes in."""
        return {path: _signature(status) for path, _, _, status in self._walk()}

    def _walk(self) -> Iterator[tuple[bytes, int, bytes, os.stat_result]]:
        yield b"", self._root, b".", os.fstat(self._root)
        waiting = [b""]
        try:
            while waiting:
                above = waiting.pop()
                try:
                    self._open_up(above)
                    parent = os.open(b".", os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._directories.open(above))
                except PermissionError:
                    self.unreadable += 1
                    continue
                except (FileNotFoundError, NotADirectoryError):
                    continue
                try:
                    self._found(above, parent)
                    for name in () if above in self._hollow else sorted(map(os.fsencode, os.listdir(parent))):
                        try:
                            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
                        except FileNotFoundError:
                            continue
                        except PermissionError:
                            self.unreadable += 1
                            break
                        path = above + b"/" + name if above else name
                        if _is_carried(status):
                            yield path, parent, name, status
                        if stat.S_ISDIR(status.st_mode):
                            waiting.append(path)
                finally:
                    os.close(parent)
        finally:
            self._close_again()

    def _open_up(self, path: bytes) -> None:
        """Give ourselves all rights on a directory of a layer, whose modes are the sandbox's and may lock us out."""
        if not self._layer or os.geteuid() == 0:
            return
        fd = self._directories.open(path)
        status = os.fstat(fd)
        if status.st_uid == os.geteuid() and status.st_mode & 0o700 != 0o700:
            os.chmod(_itself(fd), stat.S_IMODE(status.st_mode) | 0o700)
            self._opened_up.append((path, stat.S_IMODE(status.st_mode)))

    def _close_again(self) -> None:
        while self._opened_up:
            path, mode = self._opened_up.pop()
            os.chmod(_itself(self._directories.open(path)), mode)
        self._directories.close()

    def _add(self, tar: tarfile.TarFile, path: bytes, parent: int, name: bytes, status: os.stat_result) -> None:
        info = tarfile.TarInfo(_text(path) or ".")
        info.mode = stat.S_IMODE(status.st_mode)
        info.uid, info.gid = (status.st_uid, status.st_gid) if self._owner is None else self._owner
        seconds, rest = divmod(status.st_mtime_ns, 1_000_000_000)
        headers = {"mtime": f"{seconds}.{rest:09}"}
        info.pax_headers = headers
        if stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, _text(os.readlink(name, dir_fd=parent))
            tar.addfile(info)
        elif stat.S_ISCHR(status.st_mode):
            info.type = tarfile.CHRTYPE
            tar.addfile(info)
        elif stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            info.type = tarfile.FIFOTYPE
            if stat.S_ISSOCK(status.st_mode):
                headers[_PAX_SOCKET] = "1"
            tar.addfile(info)
        elif stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            with self._opened(parent, name, os.O_DIRECTORY) as fd:
                if fd >= 0:
                    self._describe(headers, fd)
            tar.addfile(info)
        else:
            self._add_file(tar, info, headers, path, parent, name, status)

    def _add_file(
        self,
        tar: tarfile.TarFile,
        info: tarfile.TarInfo,
        headers: dict[str, str],
        path: bytes,
        parent: int,
        name: bytes,
        status: os.stat_result,
    ) -> None:
        if status.st_nlink > 1:
            first = self._links.setdefault((status.st_dev, status.st_ino), path)
            if first != path:
                info.type, info.linkname = tarfile.LNKTYPE, _text(first)
                tar.addfile(info)
                return
        with self._opened(parent, name, os.O_NONBLOCK) as fd:
            if fd < 0:
                info.uid = info.gid = info.mode = 0
                self.unreadable += 1
                tar.addfile(info)
            elif not stat.S_ISREG(os.fstat(fd).st_mode):
                raise FileNotFoundError
            else:
                self._describe(headers, fd)
                info.size = os.fstat(fd).st_size
                tar.addfile(info, _Exactly(fd))

    @contextlib.contextmanager
    def _opened(self, parent: int, name: bytes, flags: int) -> Iterator[int]:
        """A descriptor to read from, -1 where that isn't allowed."""
        flags |= os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
        with contextlib.ExitStack() as stack:
            try:
                try:
                    fd = os.open(name, flags, dir_fd=parent)
                except PermissionError:
                    if not (self._layer and self._let_in(parent, name, stack)):
                        yield -1
                        return
                    fd = os.open(name, flags, dir_fd=parent)
            except OSError as error:
                # Something else stands there by now.
                if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.ENXIO):
                    raise FileNotFoundError from error
                raise
            stack.callback(os.close, fd)
            yield fd

    def _let_in(self, parent: int, name: bytes, stack: contextlib.ExitStack) -> bool:
        """Allow ourselves to read an entry, until the stack is closed; False where it isn't ours."""
        entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        stack.callback(os.close, entry)
        status = os.fstat(entry)
        if status.st_uid != os.geteuid():
            return False
        stack.callback(os.chmod, _itself(entry), stat.S_IMODE(status.st_mode))
        os.chmod(_itself(entry), stat.S_IMODE(status.st_mode) | 0o400)
        return True

    def _describe(self, headers: dict[str, str], fd: int) -> None:
        for attribute in os.listxattr(fd):
            if not attribute.startswith("user."):
                continue
            if attribute.startswith(_OVERLAY) and not attribute.startswith(_ESCAPED):
                if self._layer and attribute == _ORIGIN:
                    headers[_PAX_COPIED] = "1"
                elif self._layer and attribute == _OPAQUE and os.getxattr(fd, attribute) == b"y":
                    headers[_PAX_OPAQUE] = "1"
                continue
            value = os.getxattr(fd, attribute)
            headers[_XATTR + os.fsencode(attribute).hex()] = "=" + value.hex()


class _Exactly:
    """A file's content for tar, which wants exactly as much as was said: what is missing by now is zeros."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def read(self, size: int = -1) -> bytes:
        data = os.read(self._fd, size)
        while len(data) < size:
            piece = os.read(self._fd, size - len(data))
            data += piece or b"\0" * (size - len(data))
        return data


def _forget_members(tar: tarfile.TarFile) -> None:
    # It keeps what it has seen, which a stream has no use for.
    tar.members = []  # type: ignore[attr-defined]


def _is_carried(status: os.stat_result) -> bool:
    kind = stat.S_IFMT(status.st_mode)
    return kind not in (stat.S_IFCHR, stat.S_IFBLK) or (kind == stat.S_IFCHR and status.st_rdev == 0)


def _signature(status: os.stat_result) -> Signature:
    return (
        status.st_mode,
        status.st_ino,
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_nlink if not stat.S_ISDIR(status.st_mode) else 0,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Writing a tree


class Unpacker:
    """Writes what a `Packer` wrote into a tree that nobody else writes in; `close` it, which sets times and modes."""

    def __init__(self, root: int, *, origins: dict[bytes, bytes] | None = None) -> None:
        """Args:
        root: a descriptor of the tree's root.
        origins: the mark of a directory that was copied up, by path, as far as it's known; else it is an empty one.
        """
        self._root = root
        self._origins = origins or {}
        self._directories = _Directories(root)
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
                _forget_members(tar)
                self._put(tar, member)
        source.drain()

    def remove(self, path: bytes) -> None:
        """Remove what stands at a path, if anything does."""
        _check(path)
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
                os.chmod(_itself(fd), mode)
                os.utime(_itself(fd), ns=(mtime_ns, mtime_ns))
        self._finish = {}
        self._parent = None
        self._directories.close()

    def _put(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = b"" if member.name == "." else _bytes(member.name)
        self.paths.add(path)
        if not path:
            self._dress_directory(self._root, path, member)
            return
        _check(path)
        dir_fd, name = self._place(path)
        if member.isdir():
            with contextlib.suppress(FileNotFoundError):
                if not stat.S_ISDIR(os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mode):
                    os.unlink(name, dir_fd=dir_fd)
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=dir_fd)
            fd = os.open(name, _BELOW, dir_fd=dir_fd)
            try:
                self._dress_directory(fd, path, member)
            finally:
                os.close(fd)
        elif member.ischr():
            self._clear(dir_fd, name)
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
            target = _bytes(member.linkname)
            _check(target)
            above, _, name = target.rpartition(b"/")
            source = open_directory(self._root, above)
            try:
                os.link(name, _STAGED, src_dir_fd=source, dst_dir_fd=dir_fd, follow_symlinks=False)
            finally:
                os.close(source)
        elif member.isfifo():
            kind = stat.S_IFSOCK if _PAX_SOCKET in member.pax_headers else stat.S_IFIFO
            os.mknod(_STAGED, kind | 0o600, dir_fd=dir_fd)
            fd = os.open(_STAGED, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
            try:
                _give(_itself(fd), member)
                os.chmod(_itself(fd), member.mode)
                os.utime(_itself(fd), ns=(mtime_ns, mtime_ns))
            finally:
                os.close(fd)
        elif member.issym():
            os.symlink(_bytes(member.linkname), _STAGED, dir_fd=dir_fd)
            fd = os.open(_STAGED, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
            try:
                _give(_itself(fd), member)
            finally:
                os.close(fd)
            os.utime(_STAGED, ns=(mtime_ns, mtime_ns), dir_fd=dir_fd, follow_symlinks=False)
        else:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(_STAGED, flags, 0o600, dir_fd=dir_fd)
            try:
                self._write(fd, tar, member)
                _set_attributes(_itself(fd), member)
                if _PAX_COPIED in member.pax_headers:
                    os.setxattr(fd, _ORIGIN, b"")
                _give(_itself(fd), member)
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
        itself = _itself(fd)
        if os.geteuid() and os.fstat(fd).st_mode & 0o700 != 0o700:
            os.chmod(itself, 0o700)
        there = os.listxattr(itself)
        if _PAX_OPAQUE in member.pax_headers:
            os.setxattr(itself, _OPAQUE, b"y")
        elif _OPAQUE in there:
            os.removexattr(itself, _OPAQUE)
        if _PAX_COPIED not in member.pax_headers:
            if _ORIGIN in there:
                os.removexattr(itself, _ORIGIN)
        elif _ORIGIN not in there or not os.getxattr(itself, _ORIGIN):
            os.setxattr(itself, _ORIGIN, self._origins.get(path, b""))
        for attribute in there:
            if attribute.startswith("user.") and not attribute.startswith(_OVERLAY):
                os.removexattr(itself, attribute)
        _set_attributes(itself, member)
        _give(itself, member)
        self._finish[path] = (member.mode, _mtime_ns(member))

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
            os.chmod(_itself(fd), stat.S_IMODE(status.st_mode) | 0o700)

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
            fd = os.open(waiting[-1], _BELOW, dir_fd=dir_fd)
            try:
                if os.geteuid():
                    os.chmod(_itself(fd), 0o700)
                for child in map(os.fsencode, os.listdir(_itself(fd))):
                    if not stat.S_ISDIR(os.stat(child, dir_fd=fd, follow_symlinks=False).st_mode):
                        os.unlink(child, dir_fd=fd)
                        continue
                    number += 1
                    moved = b"%s-%d" % (_STAGED, number)
                    if os.geteuid():
                        inner = os.open(child, _BELOW, dir_fd=fd)
                        try:
                            os.chmod(_itself(inner), 0o700)
                        finally:
                            os.close(inner)
                    os.rename(child, moved, src_dir_fd=fd, dst_dir_fd=dir_fd)
                    waiting.insert(0, moved)
            finally:
                os.close(fd)
            os.rmdir(waiting.pop(), dir_fd=dir_fd)


class _Directories:
    """Descriptors of a tree's directories: those on the way to the last one stay open, so that the next is near."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._open: list[tuple[bytes, int]] = []

    def open(self, path: bytes) -> int:
        """An O_PATH descriptor, good until the next call. Raises OSError."""
        while self._open and self._open[-1][0] != path and not path.startswith(self._open[-1][0] + b"/"):
            os.close(self._open.pop()[1])
        here, fd = self._open[-1] if self._open else (b"", self._root)
        rest = path[len(here) :].lstrip(b"/")
        for name in rest.split(b"/") if rest else []:
            fd = os.open(name, _BELOW, dir_fd=fd)
            here = here + b"/" + name if here else name
            self._open.append((here, fd))
            if len(self._open) > _OPEN_AT_ONCE:
                os.close(self._open.pop(0)[1])
        return fd

    def close(self) -> None:
        """Close all; they are looked up anew after that."""
        while self._open:
            os.close(self._open.pop()[1])


def open_directory(root: int, path: bytes, flags: int = os.O_PATH) -> int:
    """Open a directory below a root, through no symlink. Raises OSError."""
    fd = os.open(b".", _BELOW if path else flags | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root)
    names = path.split(b"/") if path else []
    for number, name in enumerate(names, 1):
        try:
            last = number == len(names)
            below = os.open(
                name, (flags | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC) if last else _BELOW, dir_fd=fd
            )
        finally:
            os.close(fd)
        fd = below
    return fd


def _itself(fd: int) -> str:
    # The calls on descriptors refuse O_PATH ones; through /proc the kernel jumps to the very inode, a symlink's too.
    return f"/proc/self/fd/{fd}"


def _unlink(dir_fd: int, name: bytes) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=dir_fd)


def _set_attributes(target: str, member: tarfile.TarInfo) -> None:
    for name, value in member.pax_headers.items():
        if name.startswith(_XATTR):
            os.setxattr(target, bytes.fromhex(name[len(_XATTR) :]), bytes.fromhex(value[1:]))


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


def _check(path: bytes) -> None:
    if any(name in (b"", b".", b"..") for name in path.split(b"/")):
        raise ValueError(f"{path!r} leads out of the tree")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _bytes(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")


# ---------------------------------------------------------------------------------------------------------------------
# The program


def _read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = os.read(0, size - len(data))
        if not piece:
            raise EOFError
        data += piece
    return data


def _frame() -> bytes:
    return _read_exactly(FRAME.unpack(_read_exactly(FRAME.size))[0])


def _send(data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def _fill(root: int) -> Known:
    unpacker = Unpacker(root)
    unpacker.unpack(FrameReader(_frame))
    unpacker.close()
    return Packer(root, layer=True).signatures()


def _read(root: int, known: Known) -> Known:
    writer = FrameWriter(_send)
    now = Packer(root, layer=True).pack(writer, known)
    writer.end()
    removed = json.dumps({"removed": [path.hex() for path in known if path not in now]}).encode()
    # Frames have a size, and a tree can have any number of names.
    for at in range(0, len(removed), CHUNK):
        writer.write(removed[at : at + CHUNK])
    writer.end()
    return now


def main() -> None:
    """Answer requests until there are none."""
    known: dict[str, Known] = {}
    os.umask(0)
    while True:
        try:
            request = json.loads(_frame())
        except EOFError:
            return
        tree = str(request["tree"])
        for path in (tree, str(request.get("beside") or tree)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(path, 0o700)
        root = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if request["do"] == "fill":
                known[tree] = _fill(root)
                answer = b"{}"
                _send(FRAME.pack(len(answer)) + answer)
            else:
                known[tree] = _read(root, {} if request["whole"] else known.get(tree, {}))
        finally:
            os.close(root)


if __name__ == "__main__":
    main()
