"""The inverse of a commit that landed: the layer that shows over the real workspace as it is what it was before."""

from __future__ import annotations

import os
import stat as stat_module
from collections.abc import Mapping
from dataclasses import dataclass, field

from workbench.checkpoints import side_store
from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.checkpoints.scan import Sink
from workbench.checkpoints.stacking import whiteout
from workbench.review.bases import holds, look
from workbench.review.between import View
from workbench.review.changeset import State
from workbench.review.journal import Action, Operation
from workbench.review.landed import Committed
from workbench.review.pre_images import operations_of, placed, pre_images
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind


@dataclass(frozen=True, slots=True)
class Inverse:
    """`manifest` has the layer and what it departs from; `left` are paths that a person has changed since, or that nothing
    was kept of: they stay as they are. What is as it was before already, after a revert, is neither."""

    manifest: Manifest
    left: tuple[bytes, ...]


def inverse(committed: Committed, view: View, sink: Sink) -> Inverse:
    """The inverse of a commit; the contents that it needs go into `sink`.

    `view` is the real workspace as it is now, under the inverses of all commits that landed later. Raises OSError, and
    what the sink raises.
    """
    found = _Inverse(committed, view, sink)
    found.run()
    entries = {path: found.entries[path] for path in sorted(found.entries)}
    return Inverse(Manifest(entries, found.bases), tuple(sorted(found.left)))


@dataclass(slots=True)
class _Inverse:
    committed: Committed
    view: View
    sink: Sink
    entries: dict[bytes, Entry] = field(default_factory=dict)
    bases: dict[bytes, Base] = field(default_factory=dict)
    left: set[bytes] = field(default_factory=set)
    back: dict[bytes, Base] = field(default_factory=dict)
    """What is as it was before the commit, as it stands in the real workspace or is absent there."""
    children: dict[bytes, list[bytes]] = field(default_factory=dict)
    """What landed, by the directory that it lies in."""

    def run(self) -> None:
        old = pre_images(self.committed, self.sink)
        for path in self.committed.landed_bases:
            if path:
                self.children.setdefault(paths.parent(path), []).append(path)
        self._copy_up(b"")
        for operation in operations_of(self.committed):
            if operation.action is Action.CREATE:
                self._hide(operation.path)
            elif operation.action is Action.MODE:
                self._change_mode(operation)
            elif self._is_ours(operation.path):
                self._put_tree(operation, old)
            elif not self._is_back(operation, old):
                self.left.add(operation.path)
        # What is as it was departs from what stands there, not from what landed.
        self.bases |= {path: base for path, base in self.committed.landed_bases.items() if path not in self.back}
        self.bases |= {path: base for path, base in self.back.items() if self.view.shows_lower(path)}

    def _holds(self, path: bytes) -> bool:
        base = self.committed.landed_bases[path]
        if self.view.shows_lower(path):
            try:
                return holds(self.view.lower, path, base, exact=False)
            except OSError:
                # What can't be looked at is somebody else's by now.
                return False
        entry = self.view.entry(path)
        if entry is None or entry.kind is Kind.WHITEOUT or base.certainty is Certainty.ABSENT:
            return base.certainty is Certainty.ABSENT and (entry is None or entry.kind is Kind.WHITEOUT)
        same_content = entry.kind is Kind.DIR or entry.blob == base.blob
        return (entry.kind, entry.mode) == (base.kind, base.mode) and same_content

    def _is_ours(self, path: bytes) -> bool:
        """Whether the workspace holds at and below a path what landed there, and nothing else."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            if not self._holds(path):
                return False
            base = self.committed.landed_bases[path]
            if base.certainty is Certainty.KNOWN and base.kind is Kind.DIR:
                known = self.children.get(path, [])
                if {paths.join(path, name) for name in self.view.list(path)} - set(known):
                    return False
                waiting += known
        return True

    def _is_back(self, operation: Operation, old: Mapping[bytes, Entry]) -> bool:
        """Whether what an operation took out stands there again, and nothing else."""
        before = placed(old, operation)
        modes = {base.path: base.mode for base in operation.old}
        found: dict[bytes, Base] = {}
        waiting = [operation.path]
        while waiting:
            path = waiting.pop()
            known = before.get(path)
            if known is None or known.omitted:
                return False
            base = self._standing(path, State(known.kind, modes.get(path, known.mode), known.size, known.blob))
            if base is None:
                return False
            found[path] = base
            if known.kind is Kind.DIR:
                waiting += [paths.join(path, name) for name in self.view.list(path)]
        if found.keys() != before.keys():
            return False
        self.back |= found
        return True

    def _standing(self, path: bytes, before: State | None) -> Base | None:
        """What stands at a path, where that is what was there before; else None."""
        blob = before.blob if before is not None else ""
        try:
            # First: where somebody saves meanwhile, this is the older.
            found = look(self.view.lower, path)
            if self.view.state(path, like=blob) != before:
                return None
        except OSError:
            # What can't be looked at is somebody else's by now.
            return None
        return Base(path, Certainty.ABSENT) if found is None else found.base(path, blob)

    def _hide(self, path: bytes) -> None:
        """Hide what landed as new: all of it, or where a person has worked in it, only what is as it landed."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            if self._is_ours(path):
                self._put(whiteout(path))
                continue
            if base := self._standing(path, None):
                self.back[path] = base
                waiting += self.children.get(path, [])
                continue
            self.left.add(path)
            base = self.committed.landed_bases[path]
            if base.kind is Kind.DIR and self._holds(path):
                waiting += self.children.get(path, [])

    def _put(self, entry: Entry) -> None:
        missing = []
        above = entry.path
        while above and (above := paths.parent(above)) not in self.entries:
            missing.append(above)
        if any(not self._copy_up(directory) for directory in reversed(missing)):
            self.left.add(entry.path)
            return
        self.entries[entry.path] = entry

    def _copy_up(self, path: bytes) -> bool:
        """Have a directory of the workspace in the layer, as it is; whether there is one."""
        entry = self.view.entry(path)
        if entry is None and self.view.shows_lower(path):
            entry = directory_entry(self.view.lower, path)
            found = look(self.view.lower, path)
            if entry is not None and found is not None:
                self.bases.setdefault(path, found.base(path))
        if entry is None or entry.kind is not Kind.DIR:
            return False
        self.entries[path] = entry._replace(opaque=False)
        return True

    def _change_mode(self, operation: Operation) -> None:
        path = operation.path
        if not self._holds(path):
            state = self.view.state(path)
            base = self._standing(path, state) if state is not None and state.mode == operation.old_mode else None
            if base is None:
                self.left.add(path)
            else:
                self.back[path] = base
            return
        entry = self.view.entry(path) or directory_entry(self.view.lower, path) or self._file(path)
        self._put(entry._replace(mode=operation.old_mode, opaque=False))

    def _file(self, path: bytes) -> Entry:
        """A file of the workspace as if it were copied up."""
        fd = self.view.lower.open_file(path)
        try:
            stat = os.fstat(fd)
            blob = self.sink.big(fd) if stat.st_size > side_store.LIMIT else self.sink.blob(_content(fd, stat.st_size))
            xattrs = tuple(sorted(self.view.lower.xattrs(path).items()))
        finally:
            os.close(fd)
        return Entry(
            path,
            Kind.FILE,
            stat_module.S_IMODE(stat.st_mode),
            stat.st_uid,
            stat.st_gid,
            stat.st_size,
            stat.st_mtime_ns,
            stat.st_ctime_ns,
            0,
            xattrs=xattrs,
            blob=blob,
        )

    def _put_tree(self, operation: Operation, old: Mapping[bytes, Entry]) -> None:
        tree = placed(old, operation)
        if operation.path not in tree or any(entry.omitted for entry in tree.values()):
            self.left.add(operation.path)
            return
        for entry in tree.values():
            # Owners and times are those that stood there; what the layer itself numbers isn't.
            self._put(entry._replace(opaque=False))


def directory_entry(lower: LocalStorage, path: bytes) -> Entry | None:
    """A directory of the lower as the kernel copies it up, None where there is none. Raises OSError."""
    found = look(lower, path)
    if found is None or found.stat.kind is not Kind.DIR:
        return None
    stat = found.stat
    xattrs = tuple(sorted(lower.xattrs(path).items()))
    return Entry(path, Kind.DIR, stat.mode, stat.uid, stat.gid, 0, stat.mtime_ns, stat.ctime_ns, 0, xattrs=xattrs)


def _content(fd: int, size: int) -> bytes:
    with open(os.dup(fd), "rb") as file:
        return file.read(size)
