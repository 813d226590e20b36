"""The merged view of a lower and an upper layer, by the rules of Linux overlayfs, for reading and writing."""

from __future__ import annotations

import errno
import io
import stat as stat_module
import time
from typing import BinaryIO
from weakref import WeakSet

from workbench.vfs import handles, paths
from workbench.vfs.copy_up import CopyUp
from workbench.vfs.handles import LowerFile
from workbench.vfs.layers import Entry, Found, OpenMode
from workbench.vfs.marks import PREFIX
from workbench.vfs.storage import Kind

_NEW_FILE = 0o666
_SHARED = 0o777
"""What a copy takes on of a mode, as cp(1): not setuid and its like."""


class Overlay(CopyUp):
    """A lower layer that nothing changes, and an upper one that takes every change; together a writable tree.

    Each operation is one step in the upper layer, or several in an order in which none is seen before it's whole: a
    killed process leaves what was before or what was asked for, but for `copy` and `makedirs`, of which it may leave a
    part, and `rename` of what the lower has, of which it may leave copies that nobody sees. Nothing follows a symlink: as
    the last component it's an entry of its own, in the middle NotADirectoryError.

    With an upper on disk its caller holds the overlay's lock, for as long as a file is open for writing, too, and nothing
    is mounted. Permission bits are kept; whether they're obeyed is the upper's filesystem's affair. Threads may share one.
    Beyond what each method says all raise what `MergedView` does, FileNotFoundError and NotADirectoryError for the way to
    a path, and whatever the system has to say of the upper (ENOSPC, EACCES, EROFS).
    """

    # Files

    def open(self, path: bytes, mode: str = "rb") -> BinaryIO:
        """A regular file, buffered and seekable; `mode` is rb, r+b, wb, w+b, ab, a+b, xb or x+b. Never blocks.

        It stays the same file over a rename or a deletion. A lower file is copied up when it's first written to, not
        before; what was opened `rb` before that goes on showing the lower one, as in the kernel's overlay. Raises
        OptionsError for another mode, IsADirectoryError, FileExistsError (x), and OSError: ELOOP on a symlink, EINVAL on
        a FIFO, a socket or a device.
        """
        if mode == "rb":
            return super().open(path)
        asked = handles.open_mode(mode)
        with self.upper.lock:
            return handles.buffered(self._open_for_writing(path, asked), asked)

    def _open_for_writing(self, path: bytes, mode: OpenMode) -> io.RawIOBase:
        found, kind = self._target(path)
        if kind is None:
            if not mode.create:
                raise paths.error(errno.ENOENT, path)
            self._make_way(path, found)
            self.upper.make_file(path, _NEW_FILE)
            return self.upper.edit(path, mode)
        if mode.exclusive:
            raise paths.error(errno.EEXIST, path)
        _refuse_irregular(kind, path)
        if found.kind is None and mode.truncate:
            self._copy_up(path, found, content=b"")
        elif found.kind is None:
            waiting = LowerFile(path, mode, self.lower.open(path), self._copy_up_waiting)
            self._waiting.setdefault(path, WeakSet()).add(waiting)
            return waiting
        return self.upper.edit(path, mode)

    def write_bytes(self, path: bytes, data: bytes) -> None:
        """Put a file with this content in place of what is there, at once, as editors do; its mode and attributes stay.

        Other hard links, and what is open, keep the old content. Raises IsADirectoryError, and OSError as `open`.
        """
        with self.upper.lock:
            if self.upper.write(path, data, self.lower):
                return
            found, kind, stat = self._target_stat(path)
            if kind is None:
                self._make_way(path, found)
                self.upper.make_file(path, _NEW_FILE, data)
                return
            _refuse_irregular(kind, path)
            if self._waiting:
                self._settle(path)
                found, kind, stat = self._target_stat(path)
            if stat is not None:
                self._make_way(path, found)
                self.upper.put(
                    path, Entry(Kind.FILE, stat.mode, (stat.uid, stat.gid), None, self._lower_xattrs(path), data)
                )
            else:
                self.upper.replace(path, data)

    def append(self, path: bytes, data: bytes) -> None:
        """Add to the end of a file, made where there is none. Raises as `open` in mode ab."""
        with self.open(path, "ab") as file:
            file.write(data)

    def create(self, path: bytes, mode: int = _NEW_FILE, *, exclusive: bool = True) -> None:
        """Make an empty file; `mode` is subject to the umask. Unless `exclusive`, one that is there stays as it is.

        Raises FileExistsError, and IsADirectoryError and OSError as `open`.
        """
        with self.upper.lock:
            found, kind = self._target(path)
            if kind is None:
                self._make_way(path, found)
                self.upper.make_file(path, mode)
            elif exclusive:
                raise paths.error(errno.EEXIST, path)
            else:
                _refuse_irregular(kind, path)

    def truncate(self, path: bytes, size: int) -> None:
        """Cut a file to `size` bytes, or extend it by a hole. Raises as `open` in mode r+b, and OSError(EINVAL)."""
        if size < 0:
            raise paths.error(errno.EINVAL, path)
        with self.open(path, "r+b") as file:
            file.truncate(size)

    # Directories

    def mkdir(self, path: bytes, mode: int = 0o777) -> None:
        """Make a directory; `mode` is subject to the umask. Raises FileExistsError."""
        with self.upper.lock:
            found, kind = self._target(path)
            if kind is not None:
                raise paths.error(errno.EEXIST, path)
            self._make_way(path, found)
            is_deleted = found.kind is Kind.WHITEOUT
            is_bare = found.lower and not is_deleted
            self.upper.make_directory(path, mode, opaque=is_deleted, bare=self.lower if is_bare else None)

    def makedirs(self, path: bytes, mode: int = 0o777, *, exist_ok: bool = False) -> None:
        """Make a directory, and those above it that aren't there. Raises FileExistsError, NotADirectoryError.

        With `exist_ok` a directory that is there is as good; anything else isn't.
        """
        names = paths.parts(path)
        with self.upper.lock:
            there = len(names)
            while there and self.kind(b"/".join(names[:there])) is None:
                there -= 1
            if there == len(names) and not (exist_ok and self.kind(path) is Kind.DIR):
                raise paths.error(errno.EEXIST, path)
            for depth in range(there + 1, len(names) + 1):
                self.mkdir(b"/".join(names[:depth]), mode)

    def rmdir(self, path: bytes) -> None:
        """Remove an empty directory. Raises NotADirectoryError, OSError: ENOTEMPTY, EBUSY on the root.

        What listings hide counts: a root with a scratch directory isn't empty.
        """
        with self.upper.lock:
            found = self._removable(path)
            if self._kind_of(path, found) is not Kind.DIR:
                raise paths.error(errno.ENOTDIR, path)
            self._refuse_full(path)
            self._remove(path, found)

    def unlink(self, path: bytes) -> None:
        """Remove anything but a directory. Raises IsADirectoryError."""
        with self.upper.lock:
            found = self._look(path)
            if self._kind_of(path, found) is Kind.DIR:
                raise paths.error(errno.EISDIR, path)
            self._remove(path, found)

    def remove_tree(self, path: bytes) -> None:
        """Remove a directory with all that is in it, or any other entry, in one step. Raises OSError(EBUSY) on the root."""
        with self.upper.lock:
            found = self._removable(path)
            self._kind_of(path, found)
            self._remove(path, found)

    def _removable(self, path: bytes) -> Found:
        if not path:
            raise paths.error(errno.EBUSY, path)
        return self._look(path)

    def _remove(self, path: bytes, found: Found) -> None:
        # What isn't the upper's own is the lower's.
        whiteout = found.kind is None or self._lower_has(path, found)
        self._settle(path)
        self._make_way(path, found)
        self.upper.remove(path, whiteout=whiteout)

    # Moving and copying

    def rename(self, src: bytes, dst: bytes, *, replace: bool = True) -> None:
        """Move an entry to another path, over what rename(2) lets it replace.

        A directory that the lower has is copied up with all that is in it, where the kernel's overlay would refuse
        (EXDEV) and leave that to the caller. Without `replace` FileExistsError where anything is at `dst`. Else raises as
        rename(2): IsADirectoryError, NotADirectoryError, OSError: ENOTEMPTY, EINVAL into itself, EBUSY on the root.
        """
        with self.upper.lock:
            found = self._removable(src)
            kind = self._kind_of(src, found)
            target, there = self._target(dst)
            if not dst:
                raise paths.error(errno.EBUSY, dst)
            if kind is Kind.DIR and paths.is_below(dst, src):
                raise paths.error(errno.EINVAL, dst)
            if there is not None:
                if not replace:
                    raise paths.error(errno.EEXIST, dst)
                if src == dst or self._is_one_file(found, target):
                    return
                self._refuse_to_replace(kind, dst, there, src)
            self._move(src, dst, target, kind)

    def _refuse_to_replace(self, kind: Kind, dst: bytes, there: Kind, src: bytes) -> None:
        if there is not Kind.DIR:
            if kind is Kind.DIR:
                raise paths.error(errno.ENOTDIR, dst)
            return
        if paths.is_below(src, dst):
            raise paths.error(errno.ENOTEMPTY, dst)
        if kind is not Kind.DIR:
            raise paths.error(errno.EISDIR, dst)
        self._refuse_full(dst)

    @staticmethod
    def _is_one_file(found: Found, target: Found) -> bool:
        """Whether two paths are hard links of each other; then rename(2) does nothing."""
        if found.kind in (None, Kind.DIR) or target.kind in (None, Kind.DIR):
            return False
        return found.identity == target.identity

    def _move(self, src: bytes, dst: bytes, target: Found, kind: Kind) -> None:
        self._settle(dst)
        if kind is Kind.DIR:
            self._copy_up_tree(src)
        else:
            self._copy_up(src)
        self._make_way(dst, target)
        found = self.upper.look(src)
        whiteout = self._lower_has(src, found)
        if kind is Kind.DIR and found.lower_below:
            self.upper.make_opaque(src)
        self.upper.move(src, dst, whiteout=whiteout, opaque=kind is Kind.DIR and target.lower)

    def copy(self, src: bytes, dst: bytes, *, replace: bool = True) -> None:
        """Copy a file, a symlink, or a directory with all that is in it: content and permission bits, not the times.

        A file is complete when it appears, and replaces anything but a directory there, unless `replace` is False. A
        directory replaces nothing. Raises FileExistsError, IsADirectoryError, OSError: EINVAL into itself, EPERM for a
        device.
        """
        with self.upper.lock:
            kind = self._kind_of(src, self._look(src))
            target, there = self._target(dst)
            if there is not None and (kind is Kind.DIR or not replace):
                raise paths.error(errno.EEXIST, dst)
            if there is Kind.DIR:
                raise paths.error(errno.EISDIR, dst)
            if src == dst:
                return
            if kind is not Kind.DIR:
                self._copy(src, dst, target)
                return
            if paths.is_below(dst, src):
                raise paths.error(errno.EINVAL, dst)
            self._copy_tree(src, dst)

    def _copy(self, src: bytes, dst: bytes, target: Found) -> None:
        stat = self.stat(src)
        if stat.kind is Kind.DEVICE:
            raise paths.error(errno.EPERM, src)
        self._settle(dst)
        self._make_way(dst, target)
        link = self.readlink(src) if stat.kind is Kind.SYMLINK else b""
        with super().open(src) if stat.kind is Kind.FILE else io.BytesIO() as content:
            self.upper.put(dst, Entry(stat.kind, stat.mode & _SHARED, content=content, target=link))

    def _copy_tree(self, src: bytes, dst: bytes) -> None:
        waiting = [(src, dst)]
        made = []
        while waiting:
            here, there = waiting.pop()
            self.mkdir(there)
            made.append((there, self.stat(here).mode & _SHARED))
            for name, kind in self._merge(here)[1]:
                below = (paths.child(here, name), paths.child(there, name))
                if kind is Kind.DIR:
                    waiting.append(below)
                else:
                    self._copy(*below, self.upper.look(below[1]))
        # Last, since the owner may have closed a directory to himself.
        for there, mode in reversed(made):
            setgid = self.stat(there).mode & stat_module.S_ISGID
            self.upper.chmod(there, mode | setgid)

    # Links and metadata

    def symlink(self, target: bytes, path: bytes) -> None:
        """Make a symlink at `path` to `target`, which may be anything but empty. Raises FileExistsError, OSError(EINVAL)."""
        if not target or b"\0" in target:
            raise paths.error(errno.EINVAL, path)
        with self.upper.lock:
            found, kind = self._target(path)
            if kind is not None:
                raise paths.error(errno.EEXIST, path)
            self._make_way(path, found)
            self.upper.make_symlink(path, target)

    def link(self, src: bytes, dst: bytes) -> None:
        """Make `dst` another name of `src`, which is copied up. Raises FileExistsError, OSError(EPERM) on a directory."""
        with self.upper.lock:
            kind = self._kind_of(src, self._look(src))
            target, there = self._target(dst)
            if there is not None:
                raise paths.error(errno.EEXIST, dst)
            if kind is Kind.DIR:
                raise paths.error(errno.EPERM, src)
            self._copy_up(src)
            self._make_way(dst, target)
            self.upper.link(src, dst)

    def chmod(self, path: bytes, mode: int) -> None:
        """Set the permission bits, setuid, setgid and sticky (0 to 0o7777). Raises OSError(ENOTSUP) on a symlink."""
        with self.upper.lock:
            if self._kind_of(path, self._look(path)) is Kind.SYMLINK:
                raise paths.error(errno.ENOTSUP, path)
            self._copy_up(path)
            self.upper.chmod(path, mode)

    def utime(self, path: bytes, mtime_ns: int | None = None, *, atime_ns: int | None = None) -> None:
        """Set the times, in ns; None for `mtime_ns` is now, for `atime_ns` the same as `mtime_ns`."""
        mtime_ns = time.time_ns() if mtime_ns is None else mtime_ns
        with self.upper.lock:
            self._copy_up(path)
            self.upper.utime(path, mtime_ns if atime_ns is None else atime_ns, mtime_ns)

    def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        """Set an extended attribute. Raises OSError, EPERM for one of overlayfs itself, and for a `user.` one
        of anything but a file or a directory."""
        with self.upper.lock:
            self._refuse_attribute(path, name)
            self._copy_up(path)
            self.upper.setxattr(path, name, value)

    def removexattr(self, path: bytes, name: bytes) -> None:
        """Take an extended attribute away. Raises OSError: ENODATA where there is none, EPERM as `setxattr`."""
        with self.upper.lock:
            self._refuse_attribute(path, name)
            self.getxattr(path, name)
            self._copy_up(path)
            self.upper.removexattr(path, name)

    def _refuse_attribute(self, path: bytes, name: bytes) -> None:
        kind = self._kind_of(path, self._look(path))
        carries = kind in (Kind.FILE, Kind.DIR) or not name.startswith(b"user.")
        if name.startswith(PREFIX) or not carries:
            raise paths.error(errno.EPERM, path)

    def _refuse_full(self, path: bytes) -> None:
        if self._merge(path)[1]:
            raise paths.error(errno.ENOTEMPTY, path)


def _refuse_irregular(kind: Kind, path: bytes) -> None:
    if kind is not Kind.FILE:
        code = {Kind.DIR: errno.EISDIR, Kind.SYMLINK: errno.ELOOP}.get(kind, errno.EINVAL)
        raise paths.error(code, path)
