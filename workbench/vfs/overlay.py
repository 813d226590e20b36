"""The merged view of a lower and an upper layer, by the rules of Linux overlayfs, for reading."""

from __future__ import annotations

import builtins
import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from workbench.vfs import paths, syscalls
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind, Stat, Storage
from workbench.vfs.upper import LocalUpper


@dataclass(frozen=True, slots=True)
class _Upper:
    """What the upper says of a path: its own entry, if any; how many leading components are directories of the upper;
    and whether the lower still shows at the path itself (`lower`) and below it (`lower_below`)."""

    stat: Stat | None
    directories: int
    lower: bool
    lower_below: bool

    def same_directory(self, other: _Upper) -> bool:
        if self.stat is None or other.stat is None:
            return False
        return (self.stat.inode, self.lower_below) == (other.stat.inode, other.lower_below)


class Overlay:
    """What a sandbox sees: the upper layer over the lower, as the kernel merges them.

    An upper entry stands before a lower one; directories of both merge; a whiteout hides; below an opaque directory,
    and below an upper directory whose lower counterpart isn't one, nothing of the lower shows. Paths are bytes relative
    to the root. No method but `resolve` follows a symlink: in the middle of a path it's NotADirectoryError. The layers
    stay the caller's to close. It may be read while the overlay is mounted: each answer is then of some moment between
    the call and its return.

    `scratch` is the name, at the root, of the directory that listings leave out; with `hide_hidden_paths` they also
    leave out every name that starts with one `_` and that the lower doesn't have. A hidden path can be read, and
    listed, by name. All methods raise OptionsError for an impossible path, OverlayError (layer_unsupported) for an
    upper entry that can't be read as the kernel would, and OSError with errno and path.
    """

    def __init__(
        self, lower: Storage, upper: LocalUpper, *, scratch: bytes = b"_notes", hide_hidden_paths: bool = False
    ) -> None:
        self.lower = lower
        self.upper = upper
        self.scratch = scratch
        self.hide_hidden_paths = hide_hidden_paths

    def stat(self, path: bytes) -> Stat:
        """An entry's metadata. Raises FileNotFoundError, NotADirectoryError."""
        found = self._look(path)
        return found.stat or self._stat_below(path, found)

    def exists(self, path: bytes) -> bool:
        """Whether anything is there, a dangling symlink too."""
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def list(self, path: bytes) -> builtins.list[bytes]:
        """The names in a directory, sorted bytewise, without hidden ones. Raises as `stat`, and NotADirectoryError."""
        return [name for name, _ in self.entries(path)]

    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """As `list`, with the kind of each entry."""
        return self._visible(path, self._merge(path)[1], self._is_hidden(path))

    def open(self, path: bytes, mode: str = "rb") -> BinaryIO:
        """A regular file; `mode` is rb, r+b, wb, w+b, ab, a+b, xb or x+b. Never blocks.

        Raises as `stat`, IsADirectoryError, and OSError: ELOOP on a symlink, EINVAL on a FIFO, a socket or a device.
        """
        found = self._look(path)
        if found.stat is None:
            self._stat_below(path, found)
            return self.lower.open(path)
        file = self.upper.open(path)
        try:
            self.upper.check_entry(file.fileno())
        except BaseException:
            file.close()
            raise
        return file

    def readlink(self, path: bytes) -> bytes:
        """A symlink's target. Raises as `stat`, and OSError(EINVAL) on anything else."""
        found = self._look(path)
        if found.stat is not None:
            return self.upper.readlink(path)
        self._stat_below(path, found)
        return self.lower.readlink(path)

    def resolve(self, path: bytes) -> bytes:
        """Follow every symlink in `path`, the last one too, inside the overlay; raises as `stat`, `paths.resolve`."""
        return paths.resolve(path, lambda at: self.stat(at).kind, self.readlink)

    def walk(self, path: bytes = b"") -> Iterator[tuple[bytes, builtins.list[bytes], builtins.list[bytes]]]:
        """Every directory from `path` down, parents first: (its path, names of directories, names of all else).

        Both are sorted bytewise and without hidden names. Names taken out of the list of directories before the next
        step aren't entered. A directory that vanishes meanwhile is passed over. Raises as `list`.
        """
        hidden = self._is_hidden(path)
        # What is looked up from its parent costs the same at any depth.
        waiting: builtins.list[tuple[bytes, _Upper | None]] = [(path, None)]
        while waiting:
            here, above = waiting.pop()
            try:
                found, merged = self._merge(here, above)
            except (FileNotFoundError, NotADirectoryError):
                if above is None:
                    raise
                continue
            entries = self._visible(here, merged, hidden)
            directories = [name for name, kind in entries if kind is Kind.DIR]
            yield here, directories, [name for name, kind in entries if kind is not Kind.DIR]
            waiting.extend((_child(here, name), found) for name in reversed(directories))

    # Writing. Signatures first; the bodies follow.

    def read_bytes(self, path: bytes) -> bytes:
        """A regular file's content. Raises as `open`."""
        with self.open(path) as file:
            return file.read()

    def write_bytes(self, path: bytes, data: bytes) -> None:
        """Put a file's whole content in place at once."""
        raise NotImplementedError

    def create(self, path: bytes, mode: int = 0o666, *, exclusive: bool = True) -> None:
        """Make an empty file."""
        raise NotImplementedError

    def truncate(self, path: bytes, size: int) -> None:
        """Cut or extend a file."""
        raise NotImplementedError

    def mkdir(self, path: bytes, mode: int = 0o777) -> None:
        """Make a directory."""
        raise NotImplementedError

    def makedirs(self, path: bytes, mode: int = 0o777, *, exist_ok: bool = False) -> None:
        """Make a directory and those above it."""
        raise NotImplementedError

    def rmdir(self, path: bytes) -> None:
        """Remove an empty directory."""
        raise NotImplementedError

    def unlink(self, path: bytes) -> None:
        """Remove anything but a directory."""
        raise NotImplementedError

    def remove_tree(self, path: bytes) -> None:
        """Remove a directory with all that is in it, or any other entry."""
        raise NotImplementedError

    def rename(self, src: bytes, dst: bytes, *, replace: bool = True) -> None:
        """Move an entry."""
        raise NotImplementedError

    def copy(self, src: bytes, dst: bytes, *, replace: bool = True) -> None:
        """Copy a file or a tree."""
        raise NotImplementedError

    def symlink(self, target: bytes, path: bytes) -> None:
        """Make a symlink at `path`."""
        raise NotImplementedError

    def link(self, src: bytes, dst: bytes) -> None:
        """Make `dst` another name of `src`."""
        raise NotImplementedError

    def chmod(self, path: bytes, mode: int) -> None:
        """Set permission bits."""
        raise NotImplementedError

    def utime(self, path: bytes, mtime_ns: int | None = None, *, atime_ns: int | None = None) -> None:
        """Set times; None is now."""
        raise NotImplementedError

    def getxattr(self, path: bytes, name: bytes) -> bytes:
        """One extended attribute; OSError(ENODATA) where there is none."""
        raise NotImplementedError

    def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        raise NotImplementedError

    def listxattr(self, path: bytes) -> builtins.list[bytes]:
        """The names of extended attributes, sorted."""
        raise NotImplementedError

    def removexattr(self, path: bytes, name: bytes) -> None:
        """Remove an extended attribute."""
        raise NotImplementedError

    def glob(self, pattern: bytes) -> builtins.list[bytes]:
        """The paths that fit a pattern, sorted bytewise."""
        raise NotImplementedError

    def find(self, path: bytes = b"", *, kind: Kind | None = None) -> Iterator[bytes]:
        """Every path below `path`, parents first, of one kind where that's given."""
        raise NotImplementedError

    def _merge(self, path: bytes, above: _Upper | None = None) -> tuple[_Upper, dict[bytes, Kind]]:
        """What the upper says of a directory, and all raw names in it; `above` is what it says of the parent."""
        found = self._look(path, above)
        while found.stat is not None and found.lower_below:
            merged = self._lower_entries(path) | dict(self.upper.entries(path))
            # A directory that was deleted meanwhile has lost its whiteouts first, so that lower names would come back.
            again = self._look(path, above)
            if again.same_directory(found):
                return found, merged
            found = again
        if found.stat is not None:
            return found, dict(self.upper.entries(path))
        self._stat_below(path, found)
        return found, dict(_entries(self.lower, path))

    def _visible(self, path: bytes, merged: dict[bytes, Kind], hidden: bool) -> builtins.list[tuple[bytes, Kind]]:
        return sorted(
            (name, kind)
            for name, kind in merged.items()
            if kind is not Kind.WHITEOUT and (hidden or not self._hides(path, name))
        )

    def _hides(self, path: bytes, name: bytes) -> bool:
        if not path and name == self.scratch:
            return True
        if not self.hide_hidden_paths or not _is_hidden_name(name):
            return False
        return not _exists(self.lower, _child(path, name))

    def _is_hidden(self, path: bytes) -> bool:
        """Whether listings from further up pass over it; what is below is then shown as it is."""
        names = paths.parts(path)
        if names[:1] == (self.scratch,):
            return True
        return self.hide_hidden_paths and any(
            _is_hidden_name(name) and not _exists(self.lower, b"/".join(names[: depth + 1]))
            for depth, name in enumerate(names)
        )

    def _look(self, path: bytes, above: _Upper | None = None) -> _Upper:
        """What the upper says of a path; `above` is what it says of the parent, where that's known.

        Raises for what the upper decides alone: a whiteout, or a file in the way.
        """
        return self._look_down(path) if above is None else self._look_from(above, path)

    def _look_down(self, path: bytes) -> _Upper:
        names = paths.parts(path)
        lower = True
        here = paths.open_below(self.upper.root_fd, b"", os.O_PATH | os.O_DIRECTORY)
        try:
            below = self._shows_below(here)
            for depth, name in enumerate(names):
                lower = below
                try:
                    entry = syscalls.openat2(here, name, os.O_PATH | os.O_NOFOLLOW)
                except FileNotFoundError:
                    return _Upper(None, depth, lower, lower)
                except OSError as error:
                    raise paths.error(error.errno or errno.EIO, path) from error
                os.close(here)
                here = entry
                kind = Stat.of(os.fstat(here)).kind
                if kind is Kind.WHITEOUT:
                    raise paths.error(errno.ENOENT, path)
                if kind is Kind.DIR:
                    below = lower and self._shows_below(here)
                elif depth + 1 < len(names):
                    raise paths.error(errno.ENOTDIR, path)
                else:
                    below = False
            return _Upper(Stat.of(os.fstat(here)), len(names), lower, below)
        finally:
            os.close(here)

    def _look_from(self, above: _Upper, path: bytes) -> _Upper:
        absent = _Upper(None, above.directories, above.lower_below, above.lower_below)
        if above.stat is None:
            return absent
        try:
            fd = paths.open_below(self.upper.root_fd, path, os.O_PATH)
        except FileNotFoundError:
            return absent
        try:
            stat = Stat.of(os.fstat(fd))
            if stat.kind is Kind.WHITEOUT:
                raise paths.error(errno.ENOENT, path)
            below = stat.kind is Kind.DIR and above.lower_below and self._shows_below(fd)
            return _Upper(stat, above.directories + 1, above.lower_below, below)
        finally:
            os.close(fd)

    def _shows_below(self, fd: int) -> bool:
        return not self.upper.attributes_of(fd).opaque

    def _stat_below(self, path: bytes, found: _Upper) -> Stat:
        """The lower's stat of a path that the upper has nothing of."""
        if not found.lower:
            raise paths.error(errno.ENOENT, path)
        try:
            stat = self.lower.stat(path)
        except NotADirectoryError as error:
            if self._replaces(path, found):
                raise paths.error(errno.ENOENT, path) from error
            raise
        if stat.kind is Kind.WHITEOUT:
            raise paths.error(errno.ENOENT, path)
        return stat

    def _replaces(self, path: bytes, found: _Upper) -> bool:
        """Whether the upper's last directory on the way stands where the lower has something else."""
        above = b"/".join(paths.parts(path)[: found.directories])
        try:
            return self.lower.stat(above).kind is not Kind.DIR
        except (FileNotFoundError, NotADirectoryError):
            return True

    def _lower_entries(self, path: bytes) -> dict[bytes, Kind]:
        try:
            return dict(_entries(self.lower, path))
        except (FileNotFoundError, NotADirectoryError):
            return {}


def _child(path: bytes, name: bytes) -> bytes:
    return path + b"/" + name if path else name


def _is_hidden_name(name: bytes) -> bool:
    return name.startswith(b"_") and not name.startswith(b"__")


def _exists(storage: Storage, path: bytes) -> bool:
    try:
        storage.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _entries(storage: Storage, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
    if isinstance(storage, LocalStorage):
        return storage.entries(path)
    return [(name, storage.stat(_child(path, name)).kind) for name in storage.list(path)]
