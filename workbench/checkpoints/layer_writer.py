"""The steps of a restore: each one change in an upper layer, relative to its directory, through no symlink."""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Iterable

from workbench.checkpoints import objects, side_store
from workbench.checkpoints.directories import Directories
from workbench.checkpoints.manifest import Entry
from workbench.checkpoints.plan import CONTENT, Create, parent
from workbench.checkpoints.store import CheckpointStore
from workbench.vfs import syscalls
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

_REFUSALS = (errno.EPERM, errno.EACCES, errno.EOPNOTSUPP)
_OPEN = 0o700
_PATH_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class LayerWriter:
    """Writes one upper layer that isn't mounted. `staging_fd` is a private directory on the same filesystem.

    `refused_owners` and `refused_xattrs` gather what the system didn't let us set: owners by path, attributes outside of
    `user.` by path and name. Every method raises OSError.
    """

    def __init__(self, upper: LocalUpper, directories: Directories, staging_fd: int, store: CheckpointStore) -> None:
        self._upper = upper
        self._directories = directories
        self._staging_fd = staging_fd
        self._store = store
        self._uid = os.geteuid()
        self.refused_owners: set[bytes] = set()
        self.refused_xattrs: set[tuple[bytes, bytes]] = set()

    def stage(self, entry: Entry, staged: str) -> None:
        """Make a file or symlink, complete with its metadata, under a name in the staging directory.

        Raises CheckpointError (store_corrupt) where its content isn't in the store as it was.
        """
        if entry.kind is Kind.SYMLINK:
            os.symlink(self._store.read(entry.blob), staged, dir_fd=self._staging_fd)
            fd = os.open(staged, _PATH_FLAGS, dir_fd=self._staging_fd)
        else:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(staged, flags, 0o600, dir_fd=self._staging_fd)
        try:
            if entry.kind is Kind.FILE:
                self._write(fd, entry)
            self._set(fd, entry)
        finally:
            os.close(fd)

    def open_up(self, entries: Iterable[Entry]) -> set[bytes]:
        """Give the owner all rights on those directories that he has locked; returns their paths. Parents come first."""
        opened = set()
        for entry in entries:
            if entry.kind is Kind.DIR and entry.uid == self._uid != 0 and entry.mode & _OPEN != _OPEN:
                os.chmod(_itself(self._directories.open(entry.path)), entry.mode | _OPEN)
                # It may have been opened without the right to read it.
                self._directories.forget(entry.path)
                opened.add(entry.path)
        return opened

    def delete(self, entry: Entry) -> None:
        """Remove an entry; a directory is empty by now, but where its content was omitted."""
        dir_fd, name = self._place(entry.path)
        if entry.kind is not Kind.DIR:
            os.unlink(name, dir_fd=dir_fd)
        elif entry.omitted:
            self._delete_tree(entry.path)
        else:
            self._directories.forget(entry.path)
            os.rmdir(name, dir_fd=dir_fd)

    def create(self, create: Create, staged: str) -> None:
        """Make an entry, or put the one in place that was staged under that name. Directories get their metadata later."""
        entry = create.entry
        dir_fd, name = self._place(entry.path)
        if create.link_to is not None:
            source_fd, source = self._place(create.link_to)
            os.link(source, staged, src_dir_fd=source_fd, dst_dir_fd=self._staging_fd, follow_symlinks=False)
            self._put(staged, dir_fd, name)
        elif entry.kind in CONTENT:
            self._put(staged, dir_fd, name)
        elif entry.kind is Kind.DIR:
            os.mkdir(name, _OPEN, dir_fd=dir_fd)
        elif entry.kind is Kind.WHITEOUT:
            self._upper.make_whiteout(dir_fd, name)
        else:
            kind = stat_module.S_IFIFO if entry.kind is Kind.FIFO else stat_module.S_IFSOCK
            os.mknod(name, kind | 0o600, dir_fd=dir_fd)
            self.adjust(entry)

    def adjust(self, entry: Entry) -> None:
        """Set the metadata of an entry that stands."""
        dir_fd, name = self._place(entry.path)
        fd = os.open(name, _PATH_FLAGS, dir_fd=dir_fd)
        try:
            self._set(fd, entry)
        finally:
            os.close(fd)

    def finish_directory(self, entry: Entry) -> None:
        """Set a directory's metadata, after all that is done in it."""
        self._set(self._directories.open(entry.path), entry)

    def _put(self, staged: str, dir_fd: int, name: bytes) -> None:
        """Put what was staged in its place; what stood there is staged then, or gone."""
        try:
            # Where a rename replaces a file, some filesystems write the new one to the disk first (ext4, auto_da_alloc).
            syscalls.renameat2(self._staging_fd, os.fsencode(staged), dir_fd, name, syscalls.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.EINVAL, errno.ENOSYS):
                raise
            os.rename(staged, name, src_dir_fd=self._staging_fd, dst_dir_fd=dir_fd)

    def _place(self, path: bytes) -> tuple[int, bytes]:
        return self._directories.open(parent(path)), path.rpartition(b"/")[2]

    def _delete_tree(self, top: bytes) -> None:
        waiting = [(top, False)]
        while waiting:
            path, is_empty = waiting.pop()
            if is_empty:
                dir_fd, name = self._place(path)
                self._directories.forget(path)
                os.rmdir(name, dir_fd=dir_fd)
                continue
            waiting.append((path, True))
            fd = self._directories.open(path)
            status = os.fstat(fd)
            if status.st_uid == self._uid != 0:
                os.chmod(_itself(fd), _OPEN)
                self._directories.forget(path)
                fd = self._directories.open(path)
            for name in map(os.fsencode, os.listdir(fd)):
                found = os.stat(name, dir_fd=fd, follow_symlinks=False)
                if stat_module.S_ISDIR(found.st_mode):
                    waiting.append((path + b"/" + name, False))
                else:
                    os.unlink(name, dir_fd=fd)

    def _write(self, fd: int, entry: Entry) -> None:
        if entry.blob.startswith(side_store.PREFIX):
            with self._store.open(entry.blob) as file:
                syscalls.copy_data(file.fileno(), fd)
            if side_store.PREFIX + side_store.sha256_of(fd) != entry.blob:
                raise objects.corrupt(f"the big file {entry.blob.removeprefix(side_store.PREFIX)} was changed")
            return
        content = self._store.read(entry.blob)
        if len(content) != entry.size:
            raise objects.corrupt(f"the content {entry.blob} has another length than its manifest says")
        offset = 0
        for hole, length in (*entry.holes, (entry.size, 0)):
            view = memoryview(content)[offset:hole]
            while view:
                count = os.pwrite(fd, view, offset)
                view = view[count:]
                offset += count
            offset = hole + length
        os.ftruncate(fd, entry.size)

    def _set(self, fd: int, entry: Entry) -> None:
        """Set all metadata of an inode by any descriptor of it: owner, attributes, mode, and last the time."""
        itself = _itself(fd)
        status = os.fstat(fd)
        mode = stat_module.S_IMODE(status.st_mode)
        if (status.st_uid, status.st_gid) != (entry.uid, entry.gid):
            self._set_owner(itself, entry)
            mode = -1
        if entry.kind in (Kind.FILE, Kind.DIR):
            if self._uid != 0 and status.st_uid == self._uid and mode & _OPEN != _OPEN:
                # Attributes are read and written by the mode's leave, the owner's too.
                os.chmod(itself, _OPEN)
                mode = _OPEN
            if self._set_attributes(fd, entry):
                mode = -1
        if entry.kind is not Kind.SYMLINK and mode != entry.mode:
            os.chmod(itself, entry.mode)
        os.utime(itself, ns=(status.st_atime_ns, entry.mtime_ns))

    def _set_owner(self, itself: str, entry: Entry) -> None:
        try:
            os.chown(itself, entry.uid, entry.gid)
        except PermissionError:
            self.refused_owners.add(entry.path)
            try:
                os.chown(itself, -1, entry.gid)
            except PermissionError:
                # Said by being in `refused_owners`: neither is ours to give away.
                return

    def _set_attributes(self, fd: int, entry: Entry) -> bool:
        """Whether any attribute had to be set: an access control list may have changed the mode with it."""
        standing = self._upper.attributes_of(fd)
        if entry.kind is Kind.DIR and standing.opaque != entry.opaque:
            self._upper.set_opaque(fd, entry.opaque)
        if standing.xattrs == entry.xattrs:
            return False
        have, want = dict(standing.xattrs), dict(entry.xattrs)
        for name in sorted(have.keys() | want.keys()):
            if have.get(name) == want.get(name):
                continue
            try:
                if name in want:
                    os.setxattr(_itself(fd), name, want[name])
                else:
                    os.removexattr(_itself(fd), name)
            except OSError as error:
                if error.errno not in _REFUSALS or name.startswith(b"user."):
                    raise
                self.refused_xattrs.add((entry.path, name))
        return True


def _itself(fd: int) -> str:
    # The calls on descriptors refuse O_PATH ones; through /proc the kernel jumps to the very inode, a symlink's too.
    return f"/proc/self/fd/{fd}"
