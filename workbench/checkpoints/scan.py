"""Reading an upper layer: every entry with what git can't hold, each content into a sink, nothing left out silently.

The layer is an agent's work: it may be nested thousands of levels deep, hold a million entries, names longer than PATH_MAX
together, and change while it's read. So it's walked by an explicit stack, relative to directory descriptors, without
following any symlink, and within a budget.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from workbench.checkpoints import objects, side_store
from workbench.checkpoints.directories import Directories
from workbench.checkpoints.manifest import Entry, Manifest, Omitted
from workbench.checkpoints.parts import Totals
from workbench.vfs import syscalls
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

TRUST_AFTER_NS = 2_000_000_000
"""How much older than the scan that read it an entry's ctime must be: the coarsest clock of a filesystem ticks every two
seconds, and within one tick a second change leaves no trace."""

TMPFS_MAGIC = 0x01021994
"""Of statfs(2)."""

_ATTEMPTS = 3
_BLOCK = 512
"""The unit of st_blocks (stat(2))."""

_KINDS = {
    stat_module.S_IFREG: Kind.FILE,
    stat_module.S_IFDIR: Kind.DIR,
    stat_module.S_IFLNK: Kind.SYMLINK,
    stat_module.S_IFIFO: Kind.FIFO,
    stat_module.S_IFSOCK: Kind.SOCKET,
    stat_module.S_IFBLK: Kind.DEVICE,
    stat_module.S_IFCHR: Kind.DEVICE,
}
_LINKABLE = (Kind.FILE, Kind.SYMLINK, Kind.FIFO, Kind.SOCKET)


@dataclass(frozen=True, slots=True)
class Budget:
    """What one scan may take in; what is over it is `omitted`, and said.

    `file_bytes` bounds one file, `total_bytes` all of them, `entries` counts entries, `path_bytes` bounds the lengths of all
    paths together (which is what a manifest costs in memory).
    """

    file_bytes: int = 4 << 30
    total_bytes: int = 64 << 30
    entries: int = 2_000_000
    path_bytes: int = 512 << 20


class Sink(Protocol):
    """Where contents go."""

    def blob(self, data: bytes) -> str:
        """Take in a content; returns its blob id, 40 hex digits. Raises OSError."""
        ...

    def big(self, fd: int) -> str:
        """Take in an open file of more than `side_store.LIMIT` bytes; returns `big:…`. Raises OSError."""
        ...

    def has(self, blob: str) -> bool:
        """Whether a content that an earlier scan took in is still there. Raises OSError."""
        ...


class Hasher:
    """A sink that keeps nothing: for comparing a layer with a manifest."""

    def blob(self, data: bytes) -> str:
        return objects.object_id(objects.BLOB, data).hex()

    def big(self, fd: int) -> str:
        return side_store.PREFIX + side_store.sha256_of(fd)

    def has(self, blob: str) -> bool:
        return True


def scan(
    upper: LocalUpper,
    sink: Sink,
    *,
    boot_id: str,
    previous: Manifest | None = None,
    offline: bool = False,
    budget: Budget | None = None,
) -> dict[bytes, Entry]:
    """Every entry of an upper layer by path, in bytewise order; the root (`b""`) is always there.

    `previous` is a manifest of the same layer, scanned under the boot `boot_id` or another: an entry whose size, mtime,
    ctime and inode are those recorded, by a scan of this boot that began two seconds after that ctime, isn't read again.
    `offline` says that the layer isn't mounted: what its owner locked against himself (mode 000) is then opened up for the
    moment, else it's omitted. Raises OSError, and OverlayError (layer_unsupported) as `LocalUpper.check_entry`, but for
    device nodes, which are omitted.
    """
    walk = LayerWalk(upper, sink, offline, budget or Budget())
    if previous is not None and previous.boot_id == boot_id:
        walk.trust(previous.entries.get, previous.scanned_ns)
    return walk.run()


@dataclass(frozen=True, slots=True)
class _LockAgain:
    """A step of the walk: the directory had to be opened up, and what is below it has been read."""

    path: bytes
    mode: int


class LayerWalk:
    """One look at a layer. Arguments as of `scan`."""

    def __init__(self, upper: LocalUpper, sink: Sink, offline: bool, budget: Budget) -> None:
        self._upper = upper
        self._sink = sink
        self._offline = offline
        self._uid = os.geteuid()
        self._budget = budget
        self._bytes = 0
        self._count = 1
        self._path_bytes = 0
        self._entries: dict[bytes, Entry] = {}
        self._linked: dict[int, Entry] = {}
        self._known: Callable[[bytes], Entry | None] = lambda _: None
        self._trusted_before = 0

    def trust(self, known: Callable[[bytes], Entry | None], scanned_ns: int) -> None:
        """Go by what an earlier scan of this boot found, as far as that can be told."""
        # What is written to shared pages in memory leaves no time on a file that has no other place.
        if syscalls.filesystem_type(self._upper.root_fd) != TMPFS_MAGIC:
            self._known = known
            self._trusted_before = scanned_ns - TRUST_AFTER_NS

    def begin_at(self, totals: Totals) -> None:
        """Count what is there already against the budget, what is looked at again twice."""
        self._count, self._bytes, self._path_bytes = totals.entries, totals.size, totals.path_bytes

    def run(self) -> dict[bytes, Entry]:
        with Directories(self._upper.root_fd) as self._directories:
            self._walk(b"")
        return self._numbered()

    def run_below(self, tops: Iterable[bytes]) -> dict[bytes, Entry] | None:
        """What is at and below some paths, and the directories above; None where inodes are shared, or something is locked.

        What isn't there isn't among it.
        """
        with Directories(self._upper.root_fd) as self._directories:
            for top in tops:
                try:
                    self._descend(top)
                except (FileNotFoundError, NotADirectoryError):
                    # There's no directory above it.
                    continue
                except OSError:
                    return None
        return None if self._linked else self._entries

    def _descend(self, top: bytes) -> None:
        for above in ancestors(top):
            fd = self._directories.open(above)
            if above not in self._entries:
                self._entries[above] = self._directory_entry(above, fd, os.fstat(fd))
        name = top.rpartition(b"/")[2]
        status = _status(fd, name)
        if status is not None and stat_module.S_ISDIR(status.st_mode):
            self._walk(top)
        elif status is not None and (entry := self._child(fd, name, top, status)) is not None:
            self._entries[top] = entry

    def _walk(self, top: bytes) -> None:
        """Read a directory with all that is in it."""
        locked: list[_LockAgain] = []
        waiting: list[bytes | _LockAgain] = [top]
        try:
            while waiting:
                step = waiting.pop()
                if isinstance(step, _LockAgain):
                    self._lock_again(step)
                    locked.remove(step)
                    continue
                try:
                    mode = self._unlock(step)
                    if mode is not None:
                        locked.append(_LockAgain(step, mode))
                        waiting.append(locked[-1])
                    waiting.extend(reversed(self._directory(step, mode)))
                except (FileNotFoundError, NotADirectoryError):
                    # Gone since its parent was listed.
                    if not step:
                        raise
        except BaseException:
            for step in reversed(locked):
                # The first error is the one to tell; this one would only say that it's still so.
                with suppress(OSError):
                    self._lock_again(step)
            raise

    def _numbered(self) -> dict[bytes, Entry]:
        """The entries in order, those of one inode under one number."""
        if not self._linked:
            return {path: self._entries[path] for path in sorted(self._entries)}
        numbers: dict[int, int] = {}
        members: dict[int, int] = {}
        for entry in self._entries.values():
            if entry.inode in self._linked and entry.kind in _LINKABLE:
                members[entry.inode] = members.get(entry.inode, 0) + 1
        ordered = {}
        for path in sorted(self._entries):
            entry = self._entries[path]
            if members.get(entry.inode, 0) > 1 and entry.kind in _LINKABLE:
                number = numbers.setdefault(entry.inode, len(numbers) + 1)
                entry = entry._replace(link_group=number)
            ordered[path] = entry
        return ordered

    def _unlock(self, path: bytes) -> int | None:
        """Open up a directory that its owner can't read or enter; returns its mode from before, None where it may stay."""
        if not self._offline or self._uid == 0:
            return None
        fd = self._directories.open(path)
        status = os.fstat(fd)
        mode = stat_module.S_IMODE(status.st_mode)
        if status.st_uid != self._uid or mode & 0o500 == 0o500:
            return None
        os.chmod(f"/proc/self/fd/{fd}", mode | 0o700)
        self._directories.forget(path)
        return mode

    def _lock_again(self, step: _LockAgain) -> None:
        fd = self._directories.open(step.path)
        os.fchmod(fd, step.mode)
        entry = self._entries.get(step.path)
        if entry is not None:
            self._entries[step.path] = entry._replace(ctime_ns=os.fstat(fd).st_ctime_ns)

    def _directory(self, path: bytes, mode: int | None) -> list[bytes]:
        """Read a directory and all that is in it but directories, whose paths are returned."""
        fd = self._directories.open(path)
        status = os.fstat(fd)
        try:
            names = sorted(os.fsencode(name) for name in os.listdir(fd))
            entry = self._directory_entry(path, fd, status)
        except OSError as error:
            # EBADF: an O_PATH descriptor, which is all that there is to be had.
            if error.errno not in (errno.EBADF, errno.EACCES):
                raise
            self._entries[path] = _entry(path, Kind.DIR, status, omitted=Omitted.UNREADABLE)
            return []
        self._entries[path] = entry if mode is None else entry._replace(mode=mode)
        lengths = sum(len(name) for name in names) + len(names) * (len(path) + 1)
        if self._count + len(names) > self._budget.entries or self._path_bytes + lengths > self._budget.path_bytes:
            self._entries[path] = self._entries[path]._replace(omitted=Omitted.OVER_BUDGET)
            return []
        self._count += len(names)
        self._path_bytes += lengths
        found: dict[bytes, Entry] = {}
        below = []
        try:
            for name in names:
                child = path + b"/" + name if path else name
                child_status = _status(fd, name)
                if child_status is None:
                    continue
                if stat_module.S_ISDIR(child_status.st_mode):
                    below.append(child)
                    continue
                # Nearly all of a layer is as it was: what that takes is what a scan takes.
                child_entry = self._trusted(child, child_status) if child_status.st_nlink == 1 else None
                child_entry = child_entry or self._child(fd, name, child, child_status)
                if child_entry is not None:
                    found[child] = child_entry
        except PermissionError:
            # The directory can be listed and not entered.
            self._entries[path] = self._entries[path]._replace(omitted=Omitted.UNREADABLE)
            return []
        self._entries.update(found)
        return below

    def _directory_entry(self, path: bytes, fd: int, status: os.stat_result) -> Entry:
        known = self._trusted(path, status)
        if known is not None:
            return known
        attributes = self._upper.attributes_of(fd)
        return _entry(path, Kind.DIR, status, xattrs=attributes.xattrs, opaque=attributes.opaque)

    def _child(self, dir_fd: int, name: bytes, path: bytes, status: os.stat_result) -> Entry | None:
        kind = _kind(status)
        if kind is Kind.DEVICE:
            return _entry(path, kind, status, omitted=Omitted.DEVICE)
        if status.st_nlink > 1 and kind in _LINKABLE:
            first = self._linked.get(status.st_ino)
            if first is not None and first.ctime_ns == status.st_ctime_ns:
                return first._replace(path=path)
        entry: Entry | None
        if kind is Kind.FILE:
            entry = self._trusted(path, status) or self._file(dir_fd, name, path, status)
        elif kind is Kind.SYMLINK:
            entry = self._trusted(path, status) or self._symlink(dir_fd, name, path, status)
        else:
            entry = _entry(path, kind, status)
        if entry is not None and status.st_nlink > 1:
            self._linked[status.st_ino] = entry
        return entry

    def _trusted(self, path: bytes, status: os.stat_result) -> Entry | None:
        """What is known of a path, where that's still what is there."""
        known = self._known(path)
        if (
            known is None
            or known.ctime_ns != status.st_ctime_ns
            or known.ctime_ns >= self._trusted_before
            or known.mtime_ns != status.st_mtime_ns
            or known.inode != status.st_ino
            or known.kind is not _KINDS[stat_module.S_IFMT(status.st_mode)]
            or (known.size != status.st_size and known.kind is not Kind.DIR)
            or known.omitted
            or (known.blob and not self._sink.has(known.blob))
        ):
            return None
        self._bytes += known.size
        return known._replace(link_group=0) if known.link_group else known

    def _symlink(self, dir_fd: int, name: bytes, path: bytes, status: os.stat_result) -> Entry | None:
        for _ in range(_ATTEMPTS):
            try:
                target = os.readlink(name, dir_fd=dir_fd)
            except FileNotFoundError:
                return None
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                break
            after = _status(dir_fd, name)
            if after is not None and _same(status, after):
                return _entry(path, Kind.SYMLINK, status, blob=self._sink.blob(target))
            status = after or status
        return _entry(path, Kind.SYMLINK, status, omitted=Omitted.UNSTABLE)

    def _file(self, dir_fd: int, name: bytes, path: bytes, status: os.stat_result) -> Entry | None:
        if status.st_size > self._budget.file_bytes:
            return _entry(path, Kind.FILE, status, omitted=Omitted.TOO_BIG)
        if self._bytes + status.st_size > self._budget.total_bytes:
            return _entry(path, Kind.FILE, status, omitted=Omitted.OVER_BUDGET)
        for _ in range(_ATTEMPTS):
            try:
                fd, locked_mode = self._open_file(dir_fd, name, status)
                try:
                    try:
                        xattrs = self._xattrs(fd)
                    finally:
                        if locked_mode is not None:
                            os.fchmod(fd, locked_mode)
                            status = os.fstat(fd)
                    blob = self._content(fd, status.st_size)
                    holes = tuple(syscalls.holes(fd, status.st_size)) if _is_sparse(status) else ()
                    after = os.fstat(fd)
                finally:
                    os.close(fd)
            except FileNotFoundError:
                return None
            except PermissionError:
                return _entry(path, Kind.FILE, status, omitted=Omitted.UNREADABLE)
            except OSError as error:
                # ELOOP: a symlink has taken its place, ENXIO a FIFO or a socket.
                if error.errno not in (errno.ELOOP, errno.ENXIO):
                    raise
                break
            # The same inode as was looked at by name, and nothing changed since.
            if blob and _same(status, after):
                self._bytes += status.st_size
                return _entry(path, Kind.FILE, status, blob=blob, xattrs=xattrs, holes=holes)
            status = after
            if not stat_module.S_ISREG(status.st_mode) or status.st_size > self._budget.file_bytes:
                break
        return _entry(path, Kind.FILE, status, omitted=Omitted.UNSTABLE)

    def _xattrs(self, fd: int) -> tuple[tuple[bytes, bytes], ...]:
        # Most files have none, and this is the cheapest call that says so.
        try:
            if not os.listxattr(fd):
                return ()
        except OSError as error:
            if error.errno == errno.EOPNOTSUPP:
                return ()
            raise
        return self._upper.attributes_of(fd).xattrs

    def _content(self, fd: int, size: int) -> str:
        """The blob of an open file, empty where it turned out to be longer or shorter than `size`."""
        if size > side_store.LIMIT:
            return self._sink.big(fd)
        data = os.read(fd, size + 1)
        # Short of a signal, a read of a regular file ends at its end.
        while len(data) < size:
            more = os.read(fd, size + 1 - len(data))
            if not more:
                break
            data += more
        return self._sink.blob(data) if len(data) == size else ""

    def _open_file(self, dir_fd: int, name: bytes, status: os.stat_result) -> tuple[int, int | None]:
        """A file's descriptor, and the mode to set again where it had to be opened up."""
        # O_NONBLOCK: what was a file a moment ago may be a FIFO by now.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            return os.open(name, flags, dir_fd=dir_fd), None
        except PermissionError:
            if not self._offline or status.st_uid != self._uid:
                raise
        path_fd = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
        try:
            found = os.fstat(path_fd)
            if not stat_module.S_ISREG(found.st_mode):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
            mode = stat_module.S_IMODE(found.st_mode)
            itself = f"/proc/self/fd/{path_fd}"
            os.chmod(itself, mode | 0o400)
            try:
                return os.open(itself, os.O_RDONLY | os.O_CLOEXEC), mode
            except BaseException:
                os.chmod(itself, mode)
                raise
        finally:
            os.close(path_fd)


def _status(dir_fd: int, name: bytes) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _kind(status: os.stat_result) -> Kind:
    kind = _KINDS[stat_module.S_IFMT(status.st_mode)]
    if kind is Kind.DEVICE and stat_module.S_ISCHR(status.st_mode) and status.st_rdev == 0:
        return Kind.WHITEOUT
    return kind


def _same(before: os.stat_result, after: os.stat_result) -> bool:
    return (
        before.st_ctime_ns == after.st_ctime_ns
        and before.st_mtime_ns == after.st_mtime_ns
        and before.st_size == after.st_size
        and before.st_ino == after.st_ino
    )


def _is_sparse(status: os.stat_result) -> bool:
    return status.st_blocks * _BLOCK < status.st_size


def _entry(
    path: bytes,
    kind: Kind,
    status: os.stat_result,
    *,
    xattrs: tuple[tuple[bytes, bytes], ...] = (),
    holes: tuple[tuple[int, int], ...] = (),
    blob: str = "",
    opaque: bool = False,
    omitted: str = "",
) -> Entry:
    return Entry(
        path,
        kind,
        stat_module.S_IMODE(status.st_mode),
        status.st_uid,
        status.st_gid,
        status.st_size if kind in (Kind.FILE, Kind.SYMLINK) else 0,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        0,
        xattrs,
        holes,
        blob,
        opaque,
        omitted,
    )


def ancestors(path: bytes) -> list[bytes]:
    """The directories above a path, the root first."""
    names = path.split(b"/")
    return [b"/".join(names[:depth]) for depth in range(len(names))]
