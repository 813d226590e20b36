"""An upper layer on disk, in the format of Linux overlayfs under its `userxattr` mount option.

A whiteout is a character device 0:0, an opaque directory carries `user.overlay.opaque=y`, and what was copied up
carries `user.overlay.origin`, the file handle of the lower entry (kernel, `Documentation/filesystems/overlayfs.rst` and
`fs/overlayfs/overlayfs.h`). Nothing here is written while the overlay is mounted.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat as stat_module
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from workbench.vfs import inodes, marks, paths, syscalls
from workbench.vfs.directories import KeptDirectories
from workbench.vfs.layers import Entry, Found, OpenMode
from workbench.vfs.local import LocalStorage, read_whole
from workbench.vfs.marks import Attributes
from workbench.vfs.staging import Staging
from workbench.vfs.storage import DIR, FILE, WHITEOUT, Kind, Stat, kind_of

__all__ = ["Attributes", "LocalUpper"]

_NEW_FILE = 0o600
_NEW_DIRECTORY = 0o700
_CHUNK = 1 << 20


class LocalUpper(LocalStorage):
    """An upper layer: `LocalStorage` over its raw entries, whiteouts included, and the kernel's marks on them.

    Descriptors given to its methods may be O_PATH ones. `work` is a directory on the same filesystem, such as the one
    that the mount has for it, where new entries are made before they're moved in place; without one nothing can be
    written: OSError(EROFS). Who writes holds the overlay's lock, and nothing is mounted. `owner` is who gets what is made
    new (uid, gid), None the caller.
    """

    def __init__(
        self, root: bytes | int, *, work: bytes | int | None = None, owner: tuple[int, int] | None = None
    ) -> None:
        super().__init__(root)
        self.lock = threading.RLock()
        self._work = work
        self._owner = owner
        self._staging: Staging | None = None
        self._directories = KeptDirectories()

    def close(self) -> None:
        """Close the root, and take away what was staged; safe to call again."""
        if self._staging is not None:
            self._staging.close()
            self._staging = None
        self._directories.close()
        super().close()

    # The marks

    def is_opaque(self, path: bytes) -> bool:
        """Whether a directory hides what the lower has in it. Raises as `LocalStorage.stat`."""
        fd = paths.open_below(self.root_fd, path, os.O_PATH)
        try:
            return self.opaque_of(fd)
        finally:
            os.close(fd)

    def opaque_of(self, fd: int) -> bool:
        """As `is_opaque`, of a descriptor. Raises OSError."""
        return marks.get(fd, marks.OPAQUE) == b"y"

    def origin_of(self, fd: int) -> bytes:
        """As `Attributes.origin`, of a descriptor. Raises OSError, OverlayError (layer_unsupported)."""
        return marks.origin(marks.get(fd, marks.ORIGIN) or b"")

    def is_copied_up(self, fd: int) -> bool:
        """Whether the kernel's mark says that an entry was copied up; a symlink, and a lower hard link, gets none.

        Raises OSError.
        """
        return marks.ORIGIN in marks.names(fd)

    def check_entry(self, fd: int) -> None:
        """Refuse what we can't read as the kernel would.

        Raises OSError, and OverlayError (layer_unsupported) for a device node, a redirected directory, and a file whose
        content stayed in the lower layer (`metacopy`).
        """
        marks.check(fd, marks.names(fd))

    def xattrs_of(self, fd: int) -> tuple[tuple[bytes, bytes], ...]:
        """As `Attributes.xattrs`, of a descriptor. Raises OSError."""
        return marks.others(fd, marks.names(fd))

    def attributes_of(self, fd: int) -> Attributes:
        """All of the above in one pass: `check_entry`, then what the entry carries. Raises as they do."""
        names = marks.names(fd)
        marks.check(fd, names)
        opaque = marks.OPAQUE in names and marks.get(fd, marks.OPAQUE) == b"y"
        origin = marks.origin(marks.get(fd, marks.ORIGIN) or b"") if marks.ORIGIN in names else b""
        return Attributes(opaque, origin, marks.others(fd, names))

    def make_whiteout(self, dir_fd: int, name: bytes) -> None:
        """Make a whiteout, which needs no privilege since Linux 5.8. Raises OSError."""
        os.mknod(name, stat_module.S_IFCHR, 0, dir_fd=dir_fd)

    def set_opaque(self, fd: int, opaque: bool) -> None:
        """Mark a directory as opaque, or take the mark away. Raises OSError."""
        target = marks.itself(fd)
        if opaque:
            os.setxattr(target, marks.OPAQUE, b"y")
            return
        try:
            os.removexattr(target, marks.OPAQUE)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise

    # Reading

    def look(self, path: bytes, above: Found | None = None) -> Found:
        """As `layers.Upper.look`. Raises OverlayError (layer_unsupported) as `check_entry`, of directories."""
        return self._look_down(path) if above is None else self._look_from(above, path)

    def _look_from(self, above: Found, path: bytes) -> Found:
        if above.kind is not None:
            try:
                fd = paths.open_below(self.root_fd, path, os.O_PATH)
            except FileNotFoundError:
                pass
            else:
                try:
                    found = os.fstat(fd)
                    is_directory = stat_module.S_ISDIR(found.st_mode)
                    below = above.lower_below and is_directory and marks.shows_below(fd)
                    return _found(found, above.directories + 1, above.lower_below, below)
                finally:
                    os.close(fd)
        return Found(None, above.directories, above.lower_below, above.lower_below)

    def _look_down(self, path: bytes) -> Found:
        names = paths.parts(path)
        last = len(names) - 1
        here = self.root_fd
        lower = True
        try:
            for depth, name in enumerate(names):
                try:
                    found = os.stat(name, dir_fd=here, follow_symlinks=False)
                except FileNotFoundError:
                    return Found(None, depth, lower, lower)
                if depth == last and not stat_module.S_ISDIR(found.st_mode):
                    return _found(found, depth + 1, lower, False)
                # The name keeps it open.
                kept = self._directories.enter(here, name, found)
                here = kept.fd
                below = lower and marks.shows_below(here)
                if depth == last:
                    return _found(found, depth + 1, lower, below)
                lower = below
            # Of the root the kernel heeds no mark.
            return _found(os.fstat(here), 0, True, True)
        except OSError as error:
            raise _said_of(error, path) from error

    def open(self, path: bytes) -> BinaryIO:
        """As `LocalStorage.open`, and OverlayError (layer_unsupported) as `check_entry`."""
        file = super().open(path)
        try:
            marks.check_names(marks.names(file.fileno(), is_open=True))
        except BaseException:
            file.close()
            raise
        return file

    def content(self, path: bytes) -> bytes | Found:
        """As `layers.Upper.content`. Raises as `look` and `open`."""
        found = self.look(path)
        if found.kind is not FILE:
            return found
        try:
            # Should it be a FIFO by this time, nothing waits for it; an upper has no devices.
            fd = self._open_quietly(path, os.O_NONBLOCK)
        except OSError:
            found = self.look(path)
            if found.kind is FILE:
                raise
            return found
        try:
            opened = os.fstat(fd)
            if not stat_module.S_ISREG(opened.st_mode):
                raise paths.error(errno.EINVAL, path)
            marks.check_names(marks.names(fd, is_open=True))
            return read_whole(fd, opened.st_size)
        except OSError as error:
            raise _said_of(error, path) from error
        finally:
            os.close(fd)

    # Writing

    def edit(self, path: bytes, mode: OpenMode) -> io.FileIO:
        """As `layers.Upper.edit`."""
        flags = os.O_RDWR if mode.read else os.O_WRONLY
        flags |= os.O_APPEND if mode.append else 0
        # Nothing is lost before it's sure that this is a regular file.
        fd = paths.open_below(self.root_fd, path, flags | os.O_NONBLOCK)
        try:
            if Stat.of(os.fstat(fd)).kind is not FILE:
                raise paths.error(errno.EINVAL, path)
            self.check_entry(fd)
            if mode.truncate:
                os.ftruncate(fd, 0)
            os.set_blocking(fd, True)
        except BaseException:
            os.close(fd)
            raise
        return io.FileIO(fd, ("ab" if mode.append else "wb" if not mode.read else "rb") + ("+" if mode.read else ""))

    def write(self, path: bytes, data: bytes, bare: object) -> bool:
        """As `layers.Upper.write`: always its caller's, since the system calls to tell are the same."""
        return False

    def make_file(self, path: bytes, mode: int, data: bytes = b"") -> None:
        """As `layers.Upper.make_file`."""
        with self._making(path) as (dir_fd, staged), inodes.create(dir_fd, staged, mode) as file:
            inodes.write(file, data)

    def make_directory(self, path: bytes, mode: int, *, opaque: bool, bare: object = None) -> None:
        """As `layers.Upper.make_directory`; nothing is remembered."""
        with self._making(path) as (dir_fd, staged):
            os.mkdir(staged, mode, dir_fd=dir_fd)
            if opaque:
                self._mark_opaque(dir_fd, staged)

    def make_symlink(self, path: bytes, target: bytes) -> None:
        """As `layers.Upper.make_symlink`."""
        with self._making(path) as (dir_fd, staged):
            os.symlink(target, staged, dir_fd=dir_fd)

    def link(self, src: bytes, dst: bytes) -> None:
        """As `layers.Upper.link`."""
        with self._parent(src) as (src_fd, name), self._making(dst, inherits=False) as (dir_fd, staged):
            os.link(name, staged, src_dir_fd=src_fd, dst_dir_fd=dir_fd, follow_symlinks=False)

    def put(self, path: bytes, entry: Entry, *, copy_up: bool = False) -> None:
        """As `layers.Upper.put`. An owner that the system doesn't let us set stays the caller."""
        with self._making(path, inherits=entry.owner is None, copy_up=copy_up, replace=True) as (dir_fd, staged):
            inodes.fill(dir_fd, staged, entry, path)
            fd = os.open(staged, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
            try:
                inodes.dress(fd, entry, mark=copy_up)
            finally:
                os.close(fd)

    def replace(self, path: bytes, data: bytes) -> None:
        """As `layers.Upper.replace`."""
        fd = paths.open_below(self.root_fd, path, os.O_PATH)
        try:
            stat = Stat.of(os.fstat(fd))
            if stat.kind is not FILE:
                raise paths.error(errno.EINVAL, path)
            attributes = self.attributes_of(fd)
        finally:
            os.close(fd)
        self.put(path, Entry(FILE, stat.mode, (stat.uid, stat.gid), None, dict(attributes.xattrs), data))

    def remove(self, path: bytes, *, whiteout: bool) -> None:
        """As `layers.Upper.remove`."""
        with self._parent(path) as (parent_fd, name):
            if not whiteout:
                try:
                    os.unlink(name, dir_fd=parent_fd)
                except (IsADirectoryError, PermissionError):
                    # POSIX has EPERM for a directory.
                    if _kind_at(parent_fd, name) is not DIR:
                        raise
                    self._remove_directory(parent_fd, name)
                return
            staging = self._stage()
            try:
                staging.link_whiteout(parent_fd, name)
            except FileExistsError:
                with staging.new() as staged:
                    self.make_whiteout(staging.fd, staged)
                    if _kind_at(parent_fd, name) is DIR:
                        staging.exchange(staged, parent_fd, name)
                    else:
                        os.rename(staged, name, src_dir_fd=staging.fd, dst_dir_fd=parent_fd)

    def _remove_directory(self, parent_fd: int, name: bytes) -> None:
        try:
            os.rmdir(name, dir_fd=parent_fd)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            staging = self._stage()
            with staging.new() as staged:
                staging.take(staged, parent_fd, name)

    def move(self, src: bytes, dst: bytes, *, whiteout: bool, opaque: bool) -> None:
        """As `layers.Upper.move`."""
        with self._parent(src) as (src_fd, src_name), self._parent(dst) as (dst_fd, dst_name):
            is_directory = _kind_at(src_fd, src_name) is DIR
            if opaque:
                self._mark_opaque(src_fd, src_name)
            there = _kind_at(dst_fd, dst_name)
            if is_directory and there is WHITEOUT:
                syscalls.renameat2(src_fd, src_name, dst_fd, dst_name, syscalls.RENAME_EXCHANGE)
                if not whiteout:
                    os.unlink(src_name, dir_fd=src_fd)
                return
            if there is DIR:
                self._clear(dst_fd, dst_name)
            flags = syscalls.RENAME_WHITEOUT if whiteout else 0
            syscalls.renameat2(src_fd, src_name, dst_fd, dst_name, flags)

    def _clear(self, parent_fd: int, name: bytes) -> None:
        """Put an empty opaque directory in place of one that holds whiteouts only, as the kernel does."""
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent_fd)
        try:
            if not os.listdir(fd):
                return
            entry = Entry.of(Stat.of(os.fstat(fd)), dict(self.xattrs_of(fd)), b"")
        finally:
            os.close(fd)
        staging = self._stage()
        with staging.new() as staged:
            os.mkdir(staged, _NEW_DIRECTORY, dir_fd=staging.fd)
            fd = os.open(staged, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=staging.fd)
            try:
                self.set_opaque(fd, True)
                inodes.dress(fd, entry, mark=False)
            finally:
                os.close(fd)
            staging.exchange(staged, parent_fd, name)

    def make_opaque(self, path: bytes) -> None:
        """As `layers.Upper.make_opaque`."""
        with self._parent(path) as (parent_fd, name):
            self._mark_opaque(parent_fd, name)
        # Only now: without the mark, what they hide would come back.
        waiting = [path]
        while waiting:
            here = waiting.pop()
            for name, kind in self.entries(here):
                below = here + b"/" + name
                if kind is DIR:
                    waiting.append(below)
                elif kind is WHITEOUT:
                    with self._parent(below) as (parent_fd, name), inodes.unchanged(parent_fd):
                        os.unlink(name, dir_fd=parent_fd)

    def chmod(self, path: bytes, mode: int) -> None:
        """As `layers.Upper.chmod`."""
        with self._itself(path) as target:
            os.chmod(target, mode)

    def utime(self, path: bytes, atime_ns: int, mtime_ns: int) -> None:
        """As `layers.Upper.utime`."""
        with self._itself(path) as target:
            os.utime(target, ns=(atime_ns, mtime_ns))

    def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        """As `layers.Upper.setxattr`."""
        with self._itself(path) as target:
            os.setxattr(target, name, value)

    def removexattr(self, path: bytes, name: bytes) -> None:
        """As `layers.Upper.removexattr`."""
        with self._itself(path) as target:
            os.removexattr(target, name)

    def _stage(self) -> Staging:
        if self._staging is None:
            if self._work is None:
                raise OSError(errno.EROFS, f"{os.strerror(errno.EROFS)}: this upper layer has no work directory")
            self._staging = Staging(self._work)
        return self._staging

    def _mark_opaque(self, dir_fd: int, name: bytes) -> None:
        fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            with inodes.unchanged(fd):
                self.set_opaque(fd, True)
        finally:
            os.close(fd)

    @contextmanager
    def _parent(self, path: bytes) -> Iterator[tuple[int, bytes]]:
        """The directory that holds a path, and the name in it; what fails inside is said of the path."""
        above, _, name = path.rpartition(b"/")
        paths.parts(path)
        fd = paths.open_below(self.root_fd, above, os.O_PATH | os.O_DIRECTORY)
        try:
            yield fd, name
        except OSError as error:
            raise _said_of(error, path) from error
        finally:
            os.close(fd)

    @contextmanager
    def _itself(self, path: bytes) -> Iterator[bytes]:
        fd = paths.open_below(self.root_fd, path, os.O_PATH)
        try:
            yield marks.itself(fd)
        except OSError as error:
            raise _said_of(error, path) from error
        finally:
            os.close(fd)

    @contextmanager
    def _making(
        self, path: bytes, *, inherits: bool = True, copy_up: bool = False, replace: bool = False
    ) -> Iterator[tuple[int, bytes]]:
        """Where to make a new entry, which is then put in place; if it `inherits` it takes on what its directory hands down."""
        staging = self._stage()
        with self._parent(path) as (parent_fd, name), staging.mould(parent_fd, inherits=inherits) as (dir_fd, staged):
            yield dir_fd, staged
            if inherits and self._owner is not None:
                inodes.hand_over(dir_fd, staged, *self._owner)
            with inodes.unchanged(parent_fd) if copy_up else contextlib.nullcontext():
                staging.place(staged, parent_fd, name, dir_fd=dir_fd, replace=replace and not copy_up)


def _found(found: os.stat_result, directories: int, lower: bool, below: bool) -> Found:
    return Found(kind_of(found), directories, lower, below, found.st_ino, lambda: Stat.of(found))


def _said_of(error: OSError, path: bytes) -> OSError:
    return paths.error(error.errno or errno.EIO, path)


def _kind_at(dir_fd: int, name: bytes) -> Kind | None:
    try:
        return Stat.of(os.stat(name, dir_fd=dir_fd, follow_symlinks=False)).kind
    except FileNotFoundError:
        return None
