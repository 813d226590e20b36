"""A real directory as a storage: reached from one descriptor, without following any symlink or entering any mount."""

from __future__ import annotations

import builtins
import errno
import io
import os
import stat as stat_module
import sys
from types import TracebackType
from typing import BinaryIO, Self

from workbench.vfs import marks, paths, syscalls
from workbench.vfs.scoped import ScopedStorage
from workbench.vfs.storage import BY_NAME, Kind, Stat, kind_of

_CHUNK = 1 << 20
_ENCODING = sys.getfilesystemencoding()
_OCTAL_ESCAPE = 4
"""The length of an escaped byte in /proc/self/mountinfo: `\\040`."""


class LocalStorage:
    """A directory of this machine, for reading. Implements `Storage`; a context manager that closes its descriptor.

    A symlink in the middle of a path is not a directory here: NotADirectoryError. A mount point inside is an empty
    directory, and what is below it isn't found; that is how the kernel's overlay sees its lower layer.

    `root` is a path, opened as it is now (a symlink there is followed: it's the caller's own), or a directory's
    descriptor, which is duplicated. Raises OSError.
    """

    root_fd: int
    """The directory. An O_PATH descriptor where it may be entered and not read."""

    def __init__(self, root: bytes | int) -> None:
        if isinstance(root, int):
            self.root_fd = os.dup(root)
            return
        try:
            self.root_fd = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except PermissionError:
            self.root_fd = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Close the root; safe to call again."""
        if self.root_fd >= 0:
            os.close(self.root_fd)
            self.root_fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def stat(self, path: bytes) -> Stat:
        """An entry's metadata, a symlink's own; of a mount point that of the directory mounted there.

        Raises OptionsError for an impossible path, FileNotFoundError, NotADirectoryError, or another OSError.
        """
        try:
            fd = paths.open_below(self.root_fd, path, os.O_PATH)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return self._stat_of_mount(path)
        try:
            return Stat.of(os.fstat(fd))
        finally:
            os.close(fd)

    def kind(self, path: bytes) -> Kind:
        """What is at a path. Raises as `stat`."""
        try:
            fd = paths.open_below(self.root_fd, path, os.O_PATH)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return self._stat_of_mount(path).kind
        try:
            return kind_of(os.fstat(fd))
        finally:
            os.close(fd)

    def exists(self, path: bytes) -> bool:
        """Whether anything is there, a dangling symlink too. Raises OptionsError, and OSError where it's not told."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: bytes) -> builtins.list[bytes]:
        """The names in a directory, sorted bytewise; none in a mount point. Raises as `stat`, NotADirectoryError."""
        try:
            fd = self._open_quietly(path, os.O_DIRECTORY)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return self._list_of_mount(path)
        try:
            return _encoded(os.listdir(fd))
        finally:
            os.close(fd)

    def names(self, path: bytes) -> builtins.list[bytes]:
        """As `list`, without the names of whiteouts."""
        try:
            fd = self._open_quietly(path, os.O_DIRECTORY)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return self._list_of_mount(path)
        try:
            whiteout = Kind.WHITEOUT
            with os.scandir(fd) as listing:
                return _encoded(
                    [
                        entry.name
                        for entry in listing
                        if entry.is_file(follow_symlinks=False) or _kind(entry) is not whiteout
                    ]
                )
        finally:
            os.close(fd)

    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """The names in a directory with their kinds, sorted bytewise; as cheap as `list` for ordinary entries.

        An entry that vanishes meanwhile is left out. Raises as `list`.
        """
        try:
            fd = self._open_quietly(path, os.O_DIRECTORY)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._list_of_mount(path)
            return []
        try:
            file = Kind.FILE
            # Files first, as most are.
            with os.scandir(fd) as listing:
                found = [
                    (entry.name.encode(_ENCODING, "surrogateescape"), kind)
                    for entry in listing
                    if (kind := file if entry.is_file(follow_symlinks=False) else _kind(entry)) is not None
                ]
            found.sort(key=BY_NAME)
            return found
        finally:
            os.close(fd)

    def open(self, path: bytes) -> BinaryIO:
        """A regular file, for reading, without touching its access time where that's permitted. Never blocks.

        Raises as `stat`, IsADirectoryError, and OSError: ELOOP on a symlink, EINVAL on a FIFO, socket or device, EXDEV
        on a file that is a mount point.
        """
        return io.BufferedReader(io.FileIO(self.open_file(path), "rb"))

    def open_file(self, path: bytes) -> int:
        """As `open`, but a descriptor, which the caller closes."""
        return self._open_file(path)[0]

    def _open_file(self, path: bytes) -> tuple[int, int]:
        """As `open_file`, and the file's size just before."""
        # Opening a FIFO wakes its writers, and opening a device may do anything: look first. What is then opened is the
        # very inode that was looked at, whatever has its name by now.
        try:
            looked = paths.open_below(self.root_fd, path, os.O_PATH)
        except OSError as error:
            if error.errno == errno.EXDEV:
                _refuse_irregular(self._stat_of_mount(path).kind, path)
            raise
        try:
            found = os.fstat(looked)
            if not stat_module.S_ISREG(found.st_mode):
                _refuse_irregular(Stat.of(found).kind, path)
            return open_quietly(looked), found.st_size
        except OSError as error:
            raise paths.error(error.errno or errno.EIO, path) from error
        finally:
            os.close(looked)

    def read_bytes(self, path: bytes) -> bytes:
        """A regular file's content. Raises as `open`."""
        fd, size = self._open_file(path)
        try:
            return read_whole(fd, size)
        finally:
            os.close(fd)

    def open_directory(self, path: bytes) -> int:
        """A directory's descriptor, which the caller closes.

        Raises as `stat`, NotADirectoryError, and OSError(EXDEV) at or below a mount point.
        """
        return self._open_quietly(path, os.O_DIRECTORY)

    def readlink(self, path: bytes) -> bytes:
        """A symlink's target. Raises as `stat`, and OSError(EINVAL) on anything else."""
        try:
            fd = paths.open_below(self.root_fd, path, os.O_PATH)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._stat_of_mount(path)
            raise paths.error(errno.EINVAL, path) from error
        try:
            if not stat_module.S_ISLNK(os.fstat(fd).st_mode):
                raise paths.error(errno.EINVAL, path)
            return os.readlink(b"", dir_fd=fd)
        finally:
            os.close(fd)

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """The extended attributes of an entry but those of overlayfs (`user.overlay.*`); none of a mount point.

        Raises as `stat`.
        """
        try:
            fd = paths.open_below(self.root_fd, path, os.O_PATH)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            self._stat_of_mount(path)
            return {}
        try:
            return dict(marks.others(fd, marks.names(fd)))
        finally:
            os.close(fd)

    def handle(self, path: bytes) -> bytes:
        """The file handle of an entry, as `syscalls.file_handle`. Raises as `stat`, and OSError(EXDEV) as
        `open_directory`."""
        fd = paths.open_below(self.root_fd, path, os.O_PATH)
        try:
            return syscalls.file_handle(fd)
        finally:
            os.close(fd)

    def identify(self, path: bytes) -> tuple[Stat, bytes] | None:
        """As `IdentifiedStorage.identify`."""
        try:
            fd = paths.open_below(self.root_fd, path, os.O_PATH)
        except (FileNotFoundError, NotADirectoryError):
            return None
        try:
            return Stat.of(os.fstat(fd)), syscalls.file_handle(fd)
        finally:
            os.close(fd)

    def directory(self, path: bytes) -> OpenDirectory:
        """As `open_directory`, to look into."""
        return OpenDirectory(self.open_directory(path))

    def scope(self, directory: bytes) -> ScopedStorage:
        """What is below one of its directories, as a storage of its own: a tenant's, say. Raises OptionsError."""
        return ScopedStorage(self, directory)

    @property
    def root_path(self) -> bytes:
        """Where the root is at this moment, absolute. Raises OSError without /proc."""
        return os.readlink(b"/proc/self/fd/%d" % self.root_fd)

    def resolve(self, path: bytes) -> bytes:
        """Follow every symlink in `path`, the last one too, inside the root; raises as `stat` and `paths.resolve`."""
        return paths.resolve(path, lambda at: self.stat(at).kind, self.readlink)

    def mount_points(self) -> builtins.list[bytes]:
        """The outermost mount points below the root, sorted bytewise. Raises OSError without /proc."""
        root = os.readlink(os.fsencode(f"/proc/self/fd/{self.root_fd}")).strip(b"/")
        with builtins.open("/proc/self/mountinfo", "rb") as mounts:
            targets = {_unescape(line.split(b" ")[4]).strip(b"/") for line in mounts}
        found: builtins.list[bytes] = []
        for target in sorted(target for target in targets if paths.is_below(target, root)):
            path = b"/".join(paths.parts(target)[len(paths.parts(root)) :])
            if not any(paths.is_below(path, outer) for outer in found) and self._is_mount_point(path):
                found.append(path)
        return sorted(found)

    def _open_quietly(self, path: bytes, flags: int) -> int:
        try:
            return paths.open_below(self.root_fd, path, os.O_RDONLY | os.O_NOATIME | flags)
        except PermissionError as error:
            # Only the owner may ask for O_NOATIME; EACCES would come again.
            if error.errno != errno.EPERM:
                raise
            return paths.open_below(self.root_fd, path, os.O_RDONLY | flags)

    def _is_mount_point(self, path: bytes) -> bool:
        try:
            self._stat_of_mount(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError:
            # The kernel's table names it, and nobody who may not look there can say that it isn't one.
            return True
        return True

    def _stat_of_mount(self, path: bytes) -> Stat:
        """The stat of a mount point; FileNotFoundError for anything else, what is below one above all."""
        above = paths.open_below(self.root_fd, b"", os.O_PATH | os.O_DIRECTORY)
        try:
            names = paths.parts(path)
            for position, name in enumerate(names):
                try:
                    below = syscalls.openat2(above, name, os.O_PATH | os.O_NOFOLLOW)
                except OSError as error:
                    if error.errno != errno.EXDEV or position + 1 < len(names):
                        code = errno.ENOENT if error.errno == errno.EXDEV else error.errno
                        raise paths.error(code or errno.EIO, path) from error
                    return Stat.of(os.stat(name, dir_fd=above, follow_symlinks=False))
                os.close(above)
                above = below
        finally:
            os.close(above)
        raise paths.error(errno.ENOENT, path)

    def _list_of_mount(self, path: bytes) -> builtins.list[bytes]:
        if self._stat_of_mount(path).kind is not Kind.DIR:
            raise paths.error(errno.ENOTDIR, path)
        return []


class OpenDirectory:
    """A directory by its descriptor, whatever becomes of its path. Implements `storage.Directory`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def stat(self, name: bytes) -> Stat | None:
        """As `Directory.stat`."""
        try:
            return Stat.of(os.stat(name, dir_fd=self._fd, follow_symlinks=False))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self) -> builtins.list[bytes]:
        """As `Directory.names`."""
        return _encoded(os.listdir(self._fd))

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def open_quietly(looked: int) -> int:
    """Open the regular file behind an O_PATH descriptor for reading, not touching its access time where that's permitted.

    Raises OSError.
    """
    itself = marks.itself(looked)
    try:
        return os.open(itself, os.O_RDONLY | os.O_NOATIME | os.O_CLOEXEC)
    except PermissionError as error:
        if error.errno != errno.EPERM:
            raise
        return os.open(itself, os.O_RDONLY | os.O_CLOEXEC)


def read_whole(fd: int, size: int) -> bytes:
    """All that is left of a regular file of about `size` bytes. Raises OSError."""
    data = os.read(fd, size + 1)
    if len(data) == size:
        return data
    pieces = [data]
    while data:
        data = os.read(fd, _CHUNK)
        pieces.append(data)
    return b"".join(pieces)


def _refuse_irregular(kind: Kind, path: bytes) -> None:
    if kind is Kind.FILE:
        return
    codes = {Kind.DIR: errno.EISDIR, Kind.SYMLINK: errno.ELOOP, Kind.WHITEOUT: errno.ENOENT}
    raise paths.error(codes.get(kind, errno.EINVAL), path)


def _kind(entry: os.DirEntry[str]) -> Kind | None:
    if entry.is_dir(follow_symlinks=False):
        return Kind.DIR
    if entry.is_symlink():
        return Kind.SYMLINK
    try:
        return Stat.of(entry.stat(follow_symlinks=False)).kind
    except FileNotFoundError:
        return None


def _encoded(names: list[str]) -> list[bytes]:
    """Names as the bytes that they are on disk, sorted."""
    # All of them at once, which is a tenth of the work.
    return sorted("/".join(names).encode(_ENCODING, "surrogateescape").split(b"/")) if names else []


def _unescape(field: bytes) -> bytes:
    # mountinfo writes space, tab, newline and backslash as octal, nothing else.
    if b"\\" not in field:
        return field
    shown = bytearray()
    position = 0
    while position < len(field):
        if field[position : position + 1] == b"\\":
            shown.append(int(field[position + 1 : position + _OCTAL_ESCAPE], 8))
            position += _OCTAL_ESCAPE
        else:
            shown.append(field[position])
            position += 1
    return bytes(shown)
