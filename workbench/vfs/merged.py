"""The merged view of a lower and an upper layer, by the rules of Linux overlayfs, for reading."""

from __future__ import annotations

import builtins
import errno
from collections.abc import Callable, Iterator
from typing import BinaryIO, TypeVar

from workbench.vfs import paths, patterns
from workbench.vfs.layers import Found, Upper
from workbench.vfs.storage import BY_NAME, DIR, WHITEOUT, BriefStorage, DetailedStorage, Kind, Stat, Storage

T = TypeVar("T")

Fitting = Callable[[bytes, list[tuple[bytes, Kind]]], list[tuple[bytes, Kind]]]
"""What a wildcard may fit of the entries of a directory, (name, kind)."""


class MergedView:
    """What a sandbox sees: the upper layer over the lower, as the kernel merges them.

    An upper entry stands before a lower one; directories of both merge; a whiteout hides; below an opaque directory,
    and below an upper directory whose lower counterpart isn't one, nothing of the lower shows. Paths are bytes relative
    to the root. No method but `resolve` follows a symlink: in the middle of a path it's NotADirectoryError. The layers
    stay the caller's to close. It may be read while the overlay is mounted: each answer is then of some moment between
    the call and its return.

    `scratch` is the name, at the root, of the directory that listings leave out; with `hide_hidden_paths` they also
    leave out every name that starts with one `_` and that the lower doesn't have. A hidden path can be read, and
    listed, by name. All methods raise OptionsError for an impossible path, OverlayError (layer_unsupported) for an
    upper entry that can't be read as the kernel would, and OSError with errno and path, and, as far as
    its layers are ours, a `code` as stable as a WorkbenchError's (`workbench.errors`).
    """

    def __init__(
        self, lower: Storage, upper: Upper, *, scratch: bytes = b"_notes", hide_hidden_paths: bool = False
    ) -> None:
        self.lower = lower
        self.upper = upper
        self.scratch = scratch
        self.hide_hidden_paths = hide_hidden_paths
        self._detailed = lower if isinstance(lower, DetailedStorage) else None
        self._brief = lower if isinstance(lower, BriefStorage) else None

    def stat(self, path: bytes) -> Stat:
        """An entry's metadata. Raises FileNotFoundError, NotADirectoryError."""
        found = self._look(path)
        return found.stat() if found.stat is not None else self._stat_below(path, found)

    def exists(self, path: bytes) -> bool:
        """Whether anything is there, a dangling symlink too."""
        return self.kind(path) is not None

    def kind(self, path: bytes) -> Kind | None:
        """What is there, None where nothing is."""
        try:
            return self._kind_of(path, self._look(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, path: bytes) -> builtins.list[bytes]:
        """The names in a directory, sorted bytewise, without hidden ones. Raises as `stat`, and NotADirectoryError."""
        _, names = self._steady(path, None, self._names_of_both, self.upper.names, self._names_below)
        if (path and not self.hide_hidden_paths) or self._is_hidden(path):
            return names
        return [name for name in names if not self._hides(path, name)]

    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """As `list`, with the kind of each entry."""
        return self._visible(path, self._merge(path)[1], self._is_hidden(path))

    def open(self, path: bytes) -> BinaryIO:
        """A regular file, for reading. Never blocks.

        Raises as `stat`, IsADirectoryError, and OSError: ELOOP on a symlink, EINVAL on a FIFO, a socket or a device.
        """
        return self._open(path, self._look(path))

    def read_bytes(self, path: bytes) -> bytes:
        """A regular file's content. Raises as `open`."""
        content = self.upper.content(path)
        if isinstance(content, bytes):
            return content
        if content.kind is None and self._detailed is not None:
            return self._read_below(path, content, self._detailed.read_bytes)
        with self._open(path, content) as file:
            return file.read()

    def _open(self, path: bytes, found: Found) -> BinaryIO:
        if found.kind is WHITEOUT:
            raise paths.error(errno.ENOENT, path)
        if found.kind is not None:
            return self.upper.open(path)
        return self._read_below(path, found, self.lower.open)

    def _read_below(self, path: bytes, found: Found, read: Callable[[bytes], T]) -> T:
        """What is in the lower's entry at a path that the upper has nothing of."""
        try:
            return self._told_below(path, found, read)
        except NotADirectoryError:
            # Or it's a whiteout of the lower's own.
            self._stat_below(path, found)
            raise

    def readlink(self, path: bytes) -> bytes:
        """A symlink's target. Raises as `stat`, and OSError(EINVAL) on anything else."""
        found = self._look(path)
        if found.kind is not None:
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
        waiting: builtins.list[tuple[bytes, Found | None]] = [(path, None)]
        while waiting:
            here, above = waiting.pop()
            try:
                found, merged = self._merge(here, above)
            except (FileNotFoundError, NotADirectoryError):
                if above is None:
                    raise
                continue
            entries = self._visible(here, merged, hidden)
            directories = [name for name, kind in entries if kind is DIR]
            yield here, directories, [name for name, kind in entries if kind is not DIR]
            waiting.extend((paths.child(here, name), found) for name in reversed(directories))

    def find(self, path: bytes = b"", *, kind: Kind | None = None) -> Iterator[bytes]:
        """Every path below a directory, a directory before what is in it, bytewise; only those of one kind if it's given.

        Hidden ones are left out, symlinks not followed. Raises as `list`.
        """
        hidden = self._is_hidden(path)
        found, merged = self._merge(path)
        waiting = [(path, found, iter(self._visible(path, merged, hidden)))]
        while waiting:
            here, above, entries = waiting[-1]
            entry = next(entries, None)
            if entry is None:
                waiting.pop()
                continue
            below = paths.child(here, entry[0])
            if kind is None or entry[1] is kind:
                yield below
            if entry[1] is DIR:
                try:
                    found, merged = self._merge(below, above)
                except (FileNotFoundError, NotADirectoryError):
                    continue
                waiting.append((below, found, iter(self._visible(below, merged, hidden))))

    def is_listed(self, path: bytes, top: bytes = b"") -> bool:
        """Whether a walk from `top` may come by a path below it: whether nothing on the way there is hidden."""
        names = paths.parts(path)
        depths = range(len(paths.parts(top)), len(names))
        return self._is_hidden(top) or not any(self._hides(b"/".join(names[:at]), names[at]) for at in depths)

    def glob(self, pattern: bytes, fitting: Fitting | None = None) -> builtins.list[bytes]:
        """The paths that fit a pattern, sorted bytewise.

        By component: `*` is any characters, `?` one character (or one byte that isn't UTF-8), `[a-c]`, `[!a-c]` one of
        them or not; `**` is any number of directories, none as well, at the end all that is below. Dotfiles fit too.
        Hidden paths only where the pattern names them; no symlink is followed. `fitting` says, of a directory's path and
        what is visible in it, what of that a wildcard may fit, all where there's none. Raises OptionsError.
        """

        def visible(path: bytes, merged: builtins.list[tuple[bytes, Kind]]) -> builtins.list[tuple[bytes, Kind]]:
            shown = self._visible(path, merged, self._is_hidden(path))
            return shown if fitting is None else fitting(path, shown)

        return patterns.glob(pattern, self.kind, self._merge, visible)

    def getxattr(self, path: bytes, name: bytes) -> bytes:
        """One extended attribute of an entry. Raises as `stat`, OSError(ENODATA) where there is none."""
        try:
            return self.xattrs(path)[name]
        except KeyError as error:
            raise paths.error(errno.ENODATA, path) from error

    def listxattr(self, path: bytes) -> builtins.list[bytes]:
        """The names of an entry's extended attributes, sorted, without those of overlayfs. Raises as `stat`."""
        return sorted(self.xattrs(path))

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """All extended attributes of an entry, without those of overlayfs. Raises as `stat`."""
        found = self._look(path)
        if found.kind is not None:
            return self.upper.xattrs(path)
        self._stat_below(path, found)
        return self._detailed.xattrs(path) if self._detailed is not None else {}

    def _merge(self, path: bytes, above: Found | None = None) -> tuple[Found, builtins.list[tuple[bytes, Kind]]]:
        """What the upper says of a directory, and all that is in it, sorted; `above` is what it says of the parent."""
        return self._steady(path, above, self._both, self._own, self._entries_below)

    def _steady(
        self,
        path: bytes,
        above: Found | None,
        both: Callable[[bytes], T],
        own: Callable[[bytes], T],
        below: Callable[[bytes], T],
    ) -> tuple[Found, T]:
        """What the upper says of a directory, and what is in it: in both layers, in the upper alone, or in the lower."""
        found = self._look(path, above)
        while found.kind is not None and found.lower_below:
            merged = both(path)
            # A directory that was deleted meanwhile has lost its whiteouts first, so that lower names would come back.
            again = self._look(path, above)
            if again.same_directory(found):
                return found, merged
            found = again
        if found.kind is not None:
            return found, own(path)
        return found, self._read_below(path, found, below)

    def _both(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        try:
            below = self._entries_below(path)
        except (FileNotFoundError, NotADirectoryError):
            return self._own(path)
        above = self.upper.entries(path)
        # Those of the upper stand before those of the lower.
        return _shown(sorted({**dict(below), **dict(above)}.items(), key=BY_NAME)) if above else below

    def _own(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        return _shown(self.upper.entries(path))

    def _names_of_both(self, path: bytes) -> builtins.list[bytes]:
        try:
            below = self._names_below(path)
        except (FileNotFoundError, NotADirectoryError):
            return self.upper.names(path)
        above = self.upper.entries(path)
        if not above:
            return below
        names = dict.fromkeys(below)
        for name, kind in above:
            if kind is WHITEOUT:
                names.pop(name, None)
            else:
                names[name] = None
        return sorted(names)

    def _visible(
        self, path: bytes, merged: builtins.list[tuple[bytes, Kind]], hidden: bool
    ) -> builtins.list[tuple[bytes, Kind]]:
        if not hidden and (self.hide_hidden_paths or not path):
            return [each for each in merged if not self._hides(path, each[0])]
        return merged

    def _hides(self, path: bytes, name: bytes) -> bool:
        if not path and name == self.scratch:
            return True
        if not self.hide_hidden_paths or not _is_hidden_name(name):
            return False
        return not _exists(self.lower, paths.child(path, name))

    def _is_hidden(self, path: bytes) -> bool:
        """Whether listings from further up pass over it; what is below is then shown as it is."""
        names = paths.parts(path)
        if names[:1] == (self.scratch,):
            return True
        return self.hide_hidden_paths and any(
            _is_hidden_name(name) and not _exists(self.lower, b"/".join(names[: depth + 1]))
            for depth, name in enumerate(names)
        )

    def _look(self, path: bytes, above: Found | None = None) -> Found:
        """What the upper says of a path that isn't deleted; `above` is what it says of the parent, where that's known."""
        found = self._asked(path, above)
        if found.kind is WHITEOUT:
            raise paths.error(errno.ENOENT, path)
        return found

    def _asked(self, path: bytes, above: Found | None = None) -> Found:
        """What the upper says of a path, with what it remembers of this lower."""
        found = self.upper.look(path, above)
        if found.bare is self.lower:
            found.lower = found.lower_below = False
        return found

    def _kind_of(self, path: bytes, found: Found) -> Kind:
        if found.kind is not None:
            return found.kind
        if self._brief is None:
            return self._stat_below(path, found).kind
        kind = self._told_below(path, found, self._brief.kind)
        if kind is WHITEOUT:
            raise paths.error(errno.ENOENT, path)
        return kind

    def _stat_below(self, path: bytes, found: Found) -> Stat:
        """The lower's stat of a path that the upper has nothing of."""
        stat = self._told_below(path, found, self.lower.stat)
        if stat.kind is WHITEOUT:
            raise paths.error(errno.ENOENT, path)
        return stat

    def _told_below(self, path: bytes, found: Found, tell: Callable[[bytes], T]) -> T:
        """What the lower tells of a path that the upper has nothing of."""
        if not found.lower:
            raise paths.error(errno.ENOENT, path)
        try:
            return tell(path)
        except NotADirectoryError as error:
            if self._replaces(path, found):
                raise paths.error(errno.ENOENT, path) from error
            raise

    def _replaces(self, path: bytes, found: Found) -> bool:
        """Whether the upper's last directory on the way stands where the lower has something else."""
        above = b"/".join(paths.parts(path)[: found.directories])
        try:
            return self.lower.stat(above).kind is not DIR
        except (FileNotFoundError, NotADirectoryError):
            return True

    def _entries_below(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        if self._detailed is not None:
            return _shown(self._detailed.entries(path))
        return [(name, self.lower.stat(paths.child(path, name)).kind) for name in self.lower.list(path)]

    def _names_below(self, path: bytes) -> builtins.list[bytes]:
        if self._brief is not None:
            return self._brief.names(path)
        return [name for name, _ in self._entries_below(path)]


def _shown(entries: list[tuple[bytes, Kind]]) -> list[tuple[bytes, Kind]]:
    return [each for each in entries if each[1] is not WHITEOUT]


def _is_hidden_name(name: bytes) -> bool:
    return name.startswith(b"_") and not name.startswith(b"__")


def _exists(storage: Storage, path: bytes) -> bool:
    try:
        storage.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True
