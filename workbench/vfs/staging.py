"""Where the entries of an upper layer on disk are made, complete, before one rename puts them in place."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import secrets
import stat as stat_module
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress

from workbench.vfs import marks, syscalls
from workbench.vfs.storage import Kind, Stat

_PREFIX = b"staging-"
_DEFAULT_ACL = b"system.posix_acl_default"
_PRIVATE = 0o700
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Staging:
    """A private directory in an overlay's work directory; what is left there by killed processes is removed first.

    `work` is a path or a descriptor. It holds a lock on its directory, so that another's in use isn't taken for a
    leftover. Raises OSError.
    """

    def __init__(self, work: bytes | int) -> None:
        self._work_fd = os.dup(work) if isinstance(work, int) else os.open(work, _DIRECTORY)
        self._name = _PREFIX + secrets.token_hex(8).encode()
        # Unlike those of any other, whose leftovers are brought up beside each other when they're removed.
        self._names = (self._name + b"-%d" % number for number in itertools.count())
        self._whiteout = b""
        try:
            self._sweep()
            os.mkdir(self._name, _PRIVATE, dir_fd=self._work_fd)
            self.fd = self._open(self._name)
        except BaseException:
            os.close(self._work_fd)
            raise

    def close(self) -> None:
        """Remove the directory with all that is in it. Raises OSError."""
        try:
            self._empty(self._name)
        finally:
            os.close(self.fd)
            os.close(self._work_fd)

    def _open(self, name: bytes) -> int:
        fd = os.open(name, _DIRECTORY, dir_fd=self._work_fd)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _sweep(self) -> None:
        for name in map(os.fsencode, os.listdir(self._work_fd)):
            if not name.startswith(_PREFIX):
                continue
            try:
                self.fd = self._open(name)
            except BlockingIOError:
                continue
            try:
                self._empty(name)
            finally:
                os.close(self.fd)

    def _empty(self, name: bytes) -> None:
        for left in os.listdir(self.fd):
            self._remove(os.fsencode(left))
        try:
            os.rmdir(name, dir_fd=self._work_fd)
        except OSError as error:
            # Another's directory, which we may not empty: nobody sees it, and who may can remove it.
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    @contextmanager
    def new(self) -> Iterator[bytes]:
        """A free name; whatever still has it in the end is removed."""
        name = next(self._names)
        try:
            yield name
        finally:
            self._remove(name)

    @contextmanager
    def mould(self, parent_fd: int, *, inherits: bool = True) -> Iterator[tuple[int, bytes]]:
        """A directory, and a free name in it, where a new entry takes on the group and the access control list that it
        would in `parent_fd`, if it `inherits`."""
        parent = os.fstat(parent_fd)
        acl = marks.get(parent_fd, _DEFAULT_ACL) if inherits else None
        group = inherits and parent.st_mode & stat_module.S_ISGID
        with self.new() as name:
            if not group and acl is None:
                yield self.fd, name
                return
            os.mkdir(name, _PRIVATE, dir_fd=self.fd)
            fd = os.open(name, _DIRECTORY, dir_fd=self.fd)
            try:
                if group:
                    os.chown(fd, -1, parent.st_gid)
                    os.chmod(fd, _PRIVATE | stat_module.S_ISGID)
                if acl is not None:
                    os.setxattr(fd, _DEFAULT_ACL, acl)
                yield fd, b"new"
            finally:
                os.close(fd)

    def link_whiteout(self, parent_fd: int, name: bytes) -> None:
        """Make a whiteout where nothing is: one more link of a staged one, as the kernel does, which costs no inode.

        Raises FileExistsError, OSError.
        """
        try:
            if not self._whiteout:
                whiteout = next(self._names)
                os.mknod(whiteout, stat_module.S_IFCHR, 0, dir_fd=self.fd)
                self._whiteout = whiteout
            os.link(self._whiteout, name, src_dir_fd=self.fd, dst_dir_fd=parent_fd, follow_symlinks=False)
        except OSError as error:
            # It has as many as the filesystem allows, or none are allowed.
            if error.errno not in (errno.EMLINK, errno.EPERM, errno.EOPNOTSUPP, errno.ENOENT):
                raise
            self._whiteout = b""
            os.mknod(name, stat_module.S_IFCHR, 0, dir_fd=parent_fd)

    def place(self, staged: bytes, parent_fd: int, name: bytes, *, dir_fd: int, replace: bool = False) -> None:
        """Put a staged entry in place of nothing or a whiteout, or, to `replace`, of anything but a directory.

        `dir_fd` is where it's staged. Raises FileExistsError, OSError.
        """
        is_directory = stat_module.S_ISDIR(os.stat(staged, dir_fd=dir_fd, follow_symlinks=False).st_mode)
        with _opened_up(dir_fd, staged) if is_directory else nullcontext():
            try:
                syscalls.renameat2(dir_fd, staged, parent_fd, name, syscalls.RENAME_NOREPLACE)
                return
            except FileExistsError:
                there = Stat.of(os.stat(name, dir_fd=parent_fd, follow_symlinks=False)).kind
                if there is not Kind.WHITEOUT and not replace:
                    raise
            if not is_directory:
                os.rename(staged, name, src_dir_fd=dir_fd, dst_dir_fd=parent_fd)
            elif there is Kind.WHITEOUT:
                syscalls.renameat2(dir_fd, staged, parent_fd, name, syscalls.RENAME_EXCHANGE)
            else:
                raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))

    def exchange(self, staged: bytes, parent_fd: int, name: bytes) -> None:
        """Put a staged entry in place of a directory, which is thereby staged. Raises OSError."""
        self._move(parent_fd, name, staged, syscalls.RENAME_EXCHANGE)

    def take(self, staged: bytes, parent_fd: int, name: bytes) -> None:
        """Take a directory out of its place, under a free name. Raises OSError."""
        self._move(parent_fd, name, staged, syscalls.RENAME_NOREPLACE)

    def _move(self, parent_fd: int, name: bytes, staged: bytes, flags: int) -> None:
        with _opened_up(parent_fd, name):
            syscalls.renameat2(parent_fd, name, self.fd, staged, flags)

    def _remove(self, name: bytes) -> None:
        try:
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            return
        except (IsADirectoryError, PermissionError):
            # What was asked for is done by now: a directory of another's that we may not empty doesn't undo it.
            with suppress(PermissionError):
                self._remove_tree(name)

    def _remove_tree(self, name: bytes) -> None:
        waiting = [name]
        while waiting:
            here = waiting.pop()
            found = os.stat(here, dir_fd=self.fd, follow_symlinks=False)
            if found.st_uid == os.geteuid() and found.st_mode & _PRIVATE != _PRIVATE:
                os.chmod(here, _PRIVATE, dir_fd=self.fd)
            fd = os.open(here, _DIRECTORY, dir_fd=self.fd)
            try:
                with os.scandir(fd) as listing:
                    entries = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in listing]
                for below, is_directory in entries:
                    if is_directory:
                        # Brought up here, so that no depth is too deep.
                        flat = next(self._names)
                        with _opened_up(fd, below):
                            os.rename(below, flat, src_dir_fd=fd, dst_dir_fd=self.fd)
                        waiting.append(flat)
                    else:
                        os.unlink(below, dir_fd=fd)
            finally:
                os.close(fd)
            os.rmdir(here, dir_fd=self.fd)


@contextmanager
def _opened_up(dir_fd: int, name: bytes) -> Iterator[None]:
    """Let the owner write in a directory for a while: only then may it be given another parent."""
    fd = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        found = os.fstat(fd)
        mode = stat_module.S_IMODE(found.st_mode)
        closed = found.st_uid == os.geteuid() != 0 and mode & _PRIVATE != _PRIVATE
        if closed:
            os.chmod(marks.itself(fd), mode | _PRIVATE)
        try:
            yield
        finally:
            if closed:
                os.chmod(marks.itself(fd), mode)
    finally:
        os.close(fd)
