"""What remains of an upper layer after a commit: the least that keeps the merged view over the new lower."""

from __future__ import annotations

import errno
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.review.bases import Found, holds, look
from workbench.review.nearest import Nearest, with_ancestors
from workbench.vfs.storage import Kind, Lower


def remaining(now: Manifest, lower: Lower, landed_bases: Mapping[bytes, Base], *, added: Collection[bytes]) -> Manifest:
    """The upper layer that shows over the new lower what `now` shows over the old one, without what landed.

    `landed_bases` and `added` are those of `landed.Committed`. `now` may be newer than what landed: what was changed
    since stays, with what landed as its base, and what landed as new and was deleted since gets a whiteout. A path
    that the upper no longer departs in follows the lower. Names, kinds, modes and bytes are kept, not the times of
    directories. Raises OSError where the lower can't be looked at.
    """
    rest = _Rest(now, lower, landed_bases)
    rest.open_directories()
    rest.drop_landed()
    rest.hide_deleted(added)
    entries = {path: rest.entries[path] for path in sorted(rest.entries)}
    return now.with_entries(entries, rest.bases())


@dataclass(slots=True)
class _Rest:
    now: Manifest
    lower: Lower
    landed: Mapping[bytes, Base]
    entries: dict[bytes, Entry] = field(default_factory=dict)
    touched: set[bytes] = field(default_factory=set)
    """Every path at or below which something landed."""
    hidden: dict[bytes, bool] = field(default_factory=dict)
    """Whether nothing of the lower shows at an entry's path, since a directory above it stays opaque."""
    standing: dict[bytes, Found | None] = field(default_factory=dict)
    fresh: dict[bytes, Base] = field(default_factory=dict)
    """Bases of entries that `now` doesn't have."""

    def open_directories(self) -> None:
        """Let the lower show through directories that hid it, where something in them landed, but for what they hid."""
        self.touched = with_ancestors(self.landed)
        children: dict[bytes, set[bytes]] = {}
        for path, entry in self.now.entries.items():
            if path and entry.kind is not Kind.WHITEOUT:
                children.setdefault(_parent(path), set()).add(path)
        pure: dict[bytes, bool] = {}
        for path in sorted(self.now.entries):
            entry = self.now.entries[path]
            above = _parent(path)
            self.hidden[path] = bool(path) and (self.hidden[above] or self.entries[above].opaque)
            pure[path] = entry.kind is Kind.DIR and (entry.opaque or (bool(path) and pure[above]))
            self.entries[path] = entry
            if not pure[path] or self.hidden[path]:
                continue
            found = self._look(path)
            if path not in self.touched or found is None or found.stat.kind is not Kind.DIR:
                # It may have been hidden only by a directory above it that no longer hides anything.
                self.entries[path] = entry._replace(opaque=True)
                continue
            self.entries[path] = entry._replace(opaque=False)
            for name in self.lower.list(path):
                child = path + b"/" + name if path else name
                if child not in children.get(path, ()):
                    self._whiteout(child)

    def drop_landed(self) -> None:
        """Drop what the lower now shows by itself, and directories that were there for it alone."""
        held: set[bytes] = {b""}
        for path in sorted(self.entries, reverse=True):
            if path in held or self._departs(path, self.entries[path]):
                held.add(_parent(path))
            else:
                del self.entries[path]

    def _departs(self, path: bytes, entry: Entry) -> bool:
        """Whether an entry, apart from what is in it, shows something else than the lower would."""
        if self.hidden[path]:
            return entry.kind is not Kind.WHITEOUT
        found = self._look(path)
        if entry.kind is Kind.WHITEOUT:
            return found is not None
        if entry.kind is Kind.DIR:
            return entry.opaque or found is None or found.stat.kind is not Kind.DIR or found.stat.mode != entry.mode
        base = self.landed.get(path)
        if base is None or base.certainty is not Certainty.KNOWN or entry.omitted:
            return True
        as_landed = (entry.kind, entry.mode, entry.blob) == (base.kind, base.mode, base.blob)
        if not as_landed:
            return True
        # Where nothing of it changed there's nothing to look at again.
        untouched = found is not None and found.base(path, base.blob) == base
        return not untouched and not holds(self.lower, path, base, exact=False)

    def hide_deleted(self, added: Collection[bytes]) -> None:
        """Hide what landed as new and was deleted in the overlay since."""
        gone: set[bytes] = set()
        for path in sorted(added):
            if _parent(path) in gone:
                gone.add(path)
                continue
            if path in self.now.entries or self._is_hidden(path) or self._look(path) is None:
                continue
            missing = []
            above = _parent(path)
            while above not in self.entries:
                missing.append(above)
                above = _parent(above)
            for directory in reversed(missing):
                self._copy_up(directory)
            self._whiteout(path)
            gone.add(path)

    def _copy_up(self, path: bytes) -> None:
        if path in self.now.entries:
            self.entries[path] = self.now.entries[path]._replace(opaque=False)
            return
        found = self._look(path)
        assert found is not None
        stat = found.stat
        self.entries[path] = Entry(path, Kind.DIR, stat.mode, stat.uid, stat.gid, 0, stat.mtime_ns, stat.ctime_ns, 0)
        self.fresh[path] = found.base(path)

    def _whiteout(self, path: bytes) -> None:
        self.entries[path] = Entry(path, Kind.WHITEOUT, 0, 0, 0, 0, 0, 0, 0)
        self.hidden[path] = False
        # The overlay never saw what has no base, so it can't speak for it.
        self.fresh[path] = Base(path, Certainty.UNKNOWN)

    def _look(self, path: bytes) -> Found | None:
        if path not in self.standing:
            try:
                self.standing[path] = look(self.lower, path)
            except OSError as error:
                # Nothing lands at or below a mount point, so all that the upper has there stays.
                if error.errno != errno.EXDEV:
                    raise
                self.standing[path] = None
        return self.standing[path]

    def _is_hidden(self, path: bytes) -> bool:
        """Whether an entry above a path that has none hides what the lower has there."""
        while path:
            path = _parent(path)
            entry = self.entries.get(path)
            if entry is not None:
                return self._hides(path, entry)
        return False

    def _hides(self, path: bytes, entry: Entry) -> bool:
        return entry.kind is not Kind.DIR or entry.opaque or self.hidden.get(path, False)

    def bases(self) -> dict[bytes, Base]:
        """The bases of what remains: of every entry, and of all that the entries hide."""
        known = {**self.fresh, **self.now.bases, **self.landed}
        hides = Nearest({path: self._hides(path, entry) for path, entry in self.entries.items()})
        return {path: known[path] for path in sorted(known) if path in self.entries or hides.above(path)}


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]
