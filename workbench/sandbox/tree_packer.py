"""Reading a tree: files, directories, links, FIFOs, sockets and the kernel's whiteouts as tar, no devices.

Owners, modes, times and `user.` attributes come along. No symlink is followed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tarfile
import time
from typing import Any, Callable, Iterator  # noqa: UP035  Python 3.8 has no other

from workbench.sandbox.tree_directories import Directories, itself
from workbench.sandbox.tree_stream import (
    ESCAPED,
    OPAQUE,
    ORIGIN,
    OVERLAY,
    PAX_COPIED,
    PAX_OPAQUE,
    PAX_SOCKET,
    XATTR,
    Known,
    forget_members,
    open_tar,
    signature,
    text,
)

RACY_NS = 50_000_000
"""A change can leave a time as it is within a tick of the clock, which is 10 ms at most."""


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
        self._directories = Directories(root)
        self.unreadable = 0

    def pack(self, sink: Any, known: Known) -> Known:
        """Write those entries that aren't `known` as they stand; what there is now."""
        racy = time.time_ns() - RACY_NS
        now: Known = {}
        with open_tar(sink) as tar:
            for path, parent, name, status in self._walk():
                found = signature(status)
                now[path] = None if status.st_ctime_ns >= racy else found
                if known.get(path) != found and not self._tell(tar, path, parent, name, status):
                    del now[path]
        return now

    def signatures(self) -> Known:
        """What there is now, of a tree that nobody writes in."""
        return {path: signature(status) for path, _, _, status in self._walk()}

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
            os.chmod(itself(fd), stat.S_IMODE(status.st_mode) | 0o700)
            self._opened_up.append((path, stat.S_IMODE(status.st_mode)))

    def _close_again(self) -> None:
        while self._opened_up:
            path, mode = self._opened_up.pop()
            os.chmod(itself(self._directories.open(path)), mode)
        self._directories.close()

    def _tell(self, tar: tarfile.TarFile, path: bytes, parent: int, name: bytes, status: os.stat_result) -> bool:
        """Write an entry; False where it has gone."""
        try:
            self._add(tar, path, parent, name, status)
        except FileNotFoundError:
            return False
        finally:
            forget_members(tar)
        return True

    def _add(self, tar: tarfile.TarFile, path: bytes, parent: int, name: bytes, status: os.stat_result) -> None:
        info = tarfile.TarInfo(text(path) or ".")
        info.mode = stat.S_IMODE(status.st_mode)
        info.uid, info.gid = (status.st_uid, status.st_gid) if self._owner is None else self._owner
        seconds, rest = divmod(status.st_mtime_ns, 1_000_000_000)
        headers = {"mtime": f"{seconds}.{rest:09}"}
        info.pax_headers = headers
        if stat.S_ISLNK(status.st_mode):
            info.type, info.linkname = tarfile.SYMTYPE, text(os.readlink(name, dir_fd=parent))
            tar.addfile(info)
        elif stat.S_ISCHR(status.st_mode):
            info.type = tarfile.CHRTYPE
            tar.addfile(info)
        elif stat.S_ISFIFO(status.st_mode) or stat.S_ISSOCK(status.st_mode):
            info.type = tarfile.FIFOTYPE
            if stat.S_ISSOCK(status.st_mode):
                headers[PAX_SOCKET] = "1"
            tar.addfile(info)
        elif stat.S_ISDIR(status.st_mode):
            info.type = tarfile.DIRTYPE
            with self._opened(parent, name, os.O_DIRECTORY) as fd:
                if fd >= 0:
                    self._describe(headers, path, fd)
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
                info.type, info.linkname = tarfile.LNKTYPE, text(first)
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
                self._describe(headers, path, fd)
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
        stack.callback(os.chmod, itself(entry), stat.S_IMODE(status.st_mode))
        os.chmod(itself(entry), stat.S_IMODE(status.st_mode) | 0o400)
        return True

    def _describe(self, headers: dict[str, str], path: bytes, fd: int) -> None:
        for attribute in os.listxattr(fd):
            if not attribute.startswith("user."):
                continue
            if attribute.startswith(OVERLAY) and not attribute.startswith(ESCAPED):
                if self._layer and attribute == ORIGIN:
                    headers[PAX_COPIED] = "1"
                elif self._layer and attribute == OPAQUE and os.getxattr(fd, attribute) == b"y":
                    headers[PAX_OPAQUE] = "1"
                continue
            value = os.getxattr(fd, attribute)
            headers[XATTR + os.fsencode(attribute).hex()] = "=" + value.hex()


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


def _is_carried(status: os.stat_result) -> bool:
    kind = stat.S_IFMT(status.st_mode)
    return kind not in (stat.S_IFCHR, stat.S_IFBLK) or (kind == stat.S_IFCHR and status.st_rdev == 0)
