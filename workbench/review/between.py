"""What differs between two upper layers over one real workspace, for looking at it: nothing here lands."""

from __future__ import annotations

import builtins
import errno
import io
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.review.bases import Found, content_id, look
from workbench.review.changeset import Change, ChangeKind, State
from workbench.review.diff import Contents
from workbench.review.nearest import Nearest
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind, Stat

_CONTENT = (Kind.FILE, Kind.SYMLINK)
_LIKE_GIT = "0" * 40


@dataclass(slots=True)
class View:
    """What an upper layer shows over the lower: a `Storage` by stat, open and readlink, and `Contents` by blob.

    Contents of the lower's own files are found by the blob ids that `state` has given them. With `reads` False it reads
    none of them and gives none.
    """

    manifest: Manifest
    lower: LocalStorage
    store: Contents
    reads: bool = True
    _revealed: dict[str, bytes] = field(default_factory=dict)
    _by_directory: dict[bytes, set[bytes]] | None = None
    _hides: Nearest[bool] = field(init=False)

    def __post_init__(self) -> None:
        entries = self.manifest.entries
        self._hides = Nearest()
        for path in sorted(entries):
            entry = entries[path]
            self._hides[path] = bool(self._hides.above(path)) or entry.kind is not Kind.DIR or entry.opaque

    def entry(self, path: bytes) -> Entry | None:
        """The layer's own entry at a path."""
        return self.manifest.entries.get(path)

    def shows_lower(self, path: bytes) -> bool:
        """Whether what is at a path is the lower's."""
        return path not in self.manifest.entries and not self._hides.above(path)

    def state(self, path: bytes, like: str = "") -> State | None:
        """What is to be seen at a path, None where nothing is; `like` as of `ContentHasher`. Raises OSError."""
        entry = self.entry(path)
        if entry is not None:
            return None if entry.kind is Kind.WHITEOUT else State(entry.kind, entry.mode, entry.size, entry.blob)
        found = self._found(path) if not self._hides.above(path) else None
        if found is None:
            return None
        stat = found.stat
        reads = self.reads and stat.kind in _CONTENT
        blob = content_id(self.lower, path, found, like=like or _LIKE_GIT) if reads else ""
        if blob:
            self._revealed[blob] = path
        return State(stat.kind, stat.mode, stat.size if stat.kind in _CONTENT else 0, blob)

    def _found(self, path: bytes) -> Found | None:
        try:
            return look(self.lower, path)
        except OSError as error:
            # Below a mount point everything is as it is, on both sides.
            if error.errno != errno.EXDEV:
                raise
            return None

    # As a storage, and as contents

    def stat(self, path: bytes) -> Stat:
        entry = self.entry(path)
        if entry is None and not self._hides.above(path):
            return self.lower.stat(path)
        if entry is None or entry.kind is Kind.WHITEOUT:
            raise paths.error(errno.ENOENT, path)
        times = (entry.mtime_ns, entry.ctime_ns)
        return Stat(entry.kind, entry.mode, entry.uid, entry.gid, entry.size, *times, entry.inode, 1, 0)

    def list(self, path: bytes) -> builtins.list[bytes]:
        entry = self.entry(path)
        shows = self.shows_lower(path) if entry is None else self._merges(path, entry)
        names = set(self.lower.list(path)) if shows else set()
        if self._by_directory is None:
            self._by_directory = {}
            for each in self.manifest.entries:
                if each:
                    self._by_directory.setdefault(paths.parent(each), set()).add(paths.name(each))
        own = self._by_directory.get(path, set())
        hidden = {name for name in own if self.manifest.entries[paths.join(path, name)].kind is Kind.WHITEOUT}
        return sorted((names | own) - hidden)

    def _merges(self, path: bytes, entry: Entry) -> bool:
        if entry.kind is not Kind.DIR or entry.opaque or self._hides.above(path):
            return False
        found = self._found(path)
        return found is not None and found.stat.kind is Kind.DIR

    def open(self, name: bytes | str) -> BinaryIO:
        """A file by its path, or a content by its blob."""
        if isinstance(name, str):
            path = self._revealed.get(name)
            if path is None:
                return self.store.open(name)
            return (
                io.BytesIO(self.lower.readlink(path))
                if self.lower.stat(path).kind is Kind.SYMLINK
                else self.lower.open(path)
            )
        entry = self.entry(name)
        return self.lower.open(name) if entry is None else self.store.open(entry.blob)

    def readlink(self, path: bytes) -> bytes:
        entry = self.entry(path)
        if entry is None:
            return self.lower.readlink(path)
        with self.store.open(entry.blob) as file:
            return file.read()


def between(old: View, new: View) -> list[Change]:
    """What `new` shows that `old` doesn't and the other way round, in bytewise order of path.

    Both are over the same lower. Costs what the layers hold, and reading what of the lower only one of them shows.
    Directories that come or go with what is in them are `implied`. Raises OSError.
    """
    found: dict[bytes, tuple[State | None, State | None]] = {}
    waiting = sorted(_candidates(old.manifest.entries, new.manifest.entries), reverse=True)
    seen: set[bytes] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        before, after = old.state(path), new.state(path)
        if before != after:
            found[path] = (before, after)
        # What of the lower one layer hides and the other one doesn't differs all the way down.
        if _shows_into(old, path, before) != _shows_into(new, path, after):
            waiting += [paths.join(path, name) for name in old.lower.list(path)]
    return _changes(found)


def _candidates(old: Mapping[bytes, Entry], new: Mapping[bytes, Entry]) -> set[bytes]:
    return {path for path in old.keys() | new.keys() if _told(old.get(path)) != _told(new.get(path))}


def _told(entry: Entry | None) -> object:
    return None if entry is None else (entry.kind, entry.mode, entry.blob, entry.opaque, entry.omitted)


def _shows_into(view: View, path: bytes, state: State | None) -> bool:
    """Whether the lower's directory at a path is to be seen into."""
    if state is None or state.kind is not Kind.DIR:
        return False
    entry = view.entry(path)
    return view.shows_lower(path) if entry is None else view._merges(path, entry)


def _changes(found: Mapping[bytes, tuple[State | None, State | None]]) -> list[Change]:
    above = {paths.parent(path) for path in found if path}
    changes = []
    for path in sorted(found):
        old, new = found[path]
        if old is None:
            kind = ChangeKind.ADDED
        elif new is None:
            kind = ChangeKind.DELETED
        elif old.kind is not new.kind:
            kind = ChangeKind.KIND
        elif replace(old, mode=0) == replace(new, mode=0):
            kind = ChangeKind.MODE
        else:
            kind = ChangeKind.MODIFIED
        is_directory = all(state is None or state.kind is Kind.DIR for state in (old, new))
        implied = is_directory and path in above and kind in (ChangeKind.ADDED, ChangeKind.DELETED)
        changes.append(Change(path, kind, old, new, implied=implied))
    return changes


def is_git_internal(path: bytes) -> bool:
    """Whether a path is, or lies in, a `.git`: nobody counts what git keeps there, or reads it as a patch."""
    return b".git" in path.split(b"/")


def count_changes(old: Manifest, new: Manifest) -> dict[ChangeKind, int]:
    """How many paths differ between two layers, without a look at any file: for a list of many, so `.git` isn't counted."""
    counts = dict.fromkeys((ChangeKind.ADDED, ChangeKind.MODIFIED, ChangeKind.DELETED), 0)
    for path in _candidates(old.entries, new.entries):
        if is_git_internal(path):
            continue
        entries = (old.entries.get(path), new.entries.get(path))
        if any(entry is not None and entry.kind is Kind.DIR and not entry.opaque for entry in entries):
            continue
        base = (new if entries[0] is None else old).bases.get(path)
        shown = [_is_shown(entry, base) for entry in entries]
        if not any(shown):
            continue
        kind = ChangeKind.MODIFIED if all(shown) else ChangeKind.ADDED if shown[1] else ChangeKind.DELETED
        counts[kind] += 1
    return counts


def _is_shown(entry: Entry | None, base: Base | None) -> bool:
    """Whether something is to be seen at a path; where the layer has no entry, what it departs from says so."""
    if entry is not None:
        return entry.kind is not Kind.WHITEOUT
    return base is None or base.certainty is not Certainty.ABSENT
