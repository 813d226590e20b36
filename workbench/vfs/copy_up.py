"""What a change takes before it's made: the way to its path, and what the lower has there, in the upper layer."""

from __future__ import annotations

import builtins
import errno
from weakref import WeakSet

from workbench.vfs import paths
from workbench.vfs.handles import LowerFile
from workbench.vfs.layers import Entry, Found, Upper
from workbench.vfs.merged import MergedView
from workbench.vfs.storage import IdentifiedStorage, Kind, Stat, Storage


class CopyUp(MergedView):
    """A merged view that brings entries of the lower into the upper, where nobody sees that they are.

    Who calls what it adds holds the lock of the upper. A lower file that is open for writing is copied up when it's
    first written to, or about to be taken away.
    """

    def __init__(
        self, lower: Storage, upper: Upper, *, scratch: bytes = b"_notes", hide_hidden_paths: bool = False
    ) -> None:
        super().__init__(lower, upper, scratch=scratch, hide_hidden_paths=hide_hidden_paths)
        self._identified = lower if isinstance(lower, IdentifiedStorage) else None
        self._waiting: dict[bytes, WeakSet[LowerFile]] = {}

    def _target(self, path: bytes) -> tuple[Found, Kind | None]:
        """What the upper says of a path, and what the merged view has there. Raises for the way to it."""
        found, kind, _ = self._target_stat(path)
        return found, kind

    def _target_stat(self, path: bytes) -> tuple[Found, Kind | None, Stat | None]:
        """As `_target`, with the lower's stat where it's the lower's entry that shows."""
        found = self._asked(path)
        if found.kind is Kind.WHITEOUT:
            return found, None, None
        if found.kind is not None:
            return found, found.kind, None
        if not found.lower:
            self._require_parent(path, found)
            return found, None, None
        try:
            stat = self._stat_below(path, found)
        except FileNotFoundError:
            self._require_parent(path, found)
            return found, None, None
        return found, stat.kind, stat

    def _require_parent(self, path: bytes, found: Found) -> None:
        if path.count(b"/") <= found.directories:
            return
        parent = paths.parent(path)
        try:
            kind = self.stat(parent).kind
        except (FileNotFoundError, NotADirectoryError) as error:
            raise paths.error(error.errno or errno.ENOENT, path) from error
        if kind is not Kind.DIR:
            raise paths.error(errno.ENOTDIR, path)

    def _lower_has(self, path: bytes, found: Found) -> bool:
        """Whether the lower would show at a path if the upper had nothing there."""
        if not found.lower:
            return False
        try:
            return self.lower.stat(path).kind is not Kind.WHITEOUT
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _lower_xattrs(self, path: bytes) -> dict[bytes, bytes]:
        return self._detailed.xattrs(path) if self._detailed is not None else {}

    def _make_way(self, path: bytes, found: Found) -> None:
        """Have the directory that holds a path, and those above it, in the upper."""
        if path.count(b"/") <= found.directories:
            return
        names = paths.parts(path)
        # Again: something else may have been copied up since.
        for depth in range(self.upper.look(path).directories + 1, len(names)):
            above = b"/".join(names[:depth])
            self._put_from_lower(above, self.lower.stat(above))

    def _copy_up(self, path: bytes, found: Found | None = None, *, content: bytes | None = None) -> None:
        """Have an entry in the upper as it is; a directory without what is in it, a file with other `content` if given."""
        found = found or self._look(path)
        if found.kind is not None:
            return
        stat = self._stat_below(path, found)
        self._make_way(path, found)
        self._put_from_lower(path, stat, content)
        for waiting in self._waiting.pop(path, ()):
            if not waiting.closed:
                waiting.attach(self.upper.edit(path, waiting.open_mode))

    def _put_from_lower(self, path: bytes, stat: Stat, content: bytes | None = None) -> None:
        if stat.kind is Kind.DEVICE:
            raise paths.error(errno.EPERM, path)
        # First: what is copied from now on is of this very directory, or of one that can be told from it.
        origin = self._origin(path) if stat.kind is Kind.DIR else b""
        xattrs = self._lower_xattrs(path)
        target = self.lower.readlink(path) if stat.kind is Kind.SYMLINK else b""
        if stat.kind is not Kind.FILE or content is not None:
            self.upper.put(path, Entry.of(stat, xattrs, content or b"", target, origin), copy_up=True)
            return
        with self.lower.open(path) as file:
            self.upper.put(path, Entry.of(stat, xattrs, file), copy_up=True)

    def _origin(self, path: bytes) -> bytes:
        if self._identified is None:
            return b""
        try:
            found = self._identified.identify(path)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            return b""
        return found[1] if found is not None else b""

    def _copy_up_tree(self, top: bytes) -> None:
        """Have a directory in the upper with all that is in it."""
        self._copy_up(top)
        waiting: builtins.list[tuple[bytes, Found | None]] = [(top, None)]
        while waiting:
            here, above = waiting.pop()
            found, merged = self._merge(here, above)
            if not found.lower_below:
                continue
            for name, kind in merged:
                below = paths.child(here, name)
                self._copy_up(below, self.upper.look(below, found))
                if kind is Kind.DIR:
                    waiting.append((below, found))

    def _settle(self, path: bytes) -> None:
        """Copy up what is open for writing at a path, or below, before it's taken away: it stays that file."""
        if not self._waiting:
            return
        for waiting in [at for at in self._waiting if at == path or paths.is_below(at, path)]:
            if any(not file.closed for file in self._waiting[waiting]):
                self._copy_up(waiting)
            self._waiting.pop(waiting, None)

    def _copy_up_waiting(self, file: LowerFile) -> None:
        with self.upper.lock:
            self._copy_up(file.name)
            if not file.attached:
                # Somebody else, with an overlay of his own over these layers, has copied it up.
                file.attach(self.upper.edit(file.name, file.open_mode))
