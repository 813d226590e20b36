"""Bases: whether the real workspace still holds, path by path, what the overlay departed from."""

from __future__ import annotations

import errno
import hashlib
import os
import stat as stat_module
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from workbench.checkpoints.manifest import Base, Certainty, Manifest
from workbench.errors import OptionsError
from workbench.review.changeset import Change, ChangeSet, State
from workbench.review.exact_names import ExactNames
from workbench.vfs import paths, syscalls
from workbench.vfs.storage import Kind, Lower, Stat

BIG = "big:"
"""How the id of a file in the side store begins; 64 hex digits of SHA-256 follow."""

_CHUNK = 1 << 20

_CHANGED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EINVAL)
"""How opening fails where something else has taken an entry's place since it was looked at."""

Restored = Mapping[bytes, frozenset[int]]
"""By file handle, the ctimes (ns) that renames of ours gave to a file: put back by an undone commit, or to another name."""

Step = tuple[State | None, State | None]
"""What stands at a path before and after, None where nothing does."""


@dataclass(frozen=True, slots=True)
class Found:
    """What stands at a path at this moment; `handle` as of `syscalls.file_handle`."""

    stat: Stat
    handle: bytes

    def is_inode_of(self, base: Base) -> bool:
        """Whether it is the very inode that `base` names: by handle where both have one, else by number."""
        if self.handle and base.handle:
            return self.handle == base.handle
        return self.stat.inode == base.inode

    def base(self, path: bytes, blob: str = "") -> Base:
        """What stands here, as a known base of `path`."""
        stat = self.stat
        return Base(
            path,
            Certainty.KNOWN,
            stat.kind,
            stat.mode,
            stat.uid,
            stat.gid,
            stat.size,
            stat.mtime_ns,
            stat.ctime_ns,
            stat.inode,
            self.handle,
            blob,
        )


@dataclass(slots=True)
class Examination:
    """What `examine` found.

    `conflicts` are paths that changed, `missing` ones that a selection would have to take along, `satisfied` steps
    that are already as they would be. `bases` is what stands at the others, with its content's id where the change
    set has one; `directories` are the inodes of the directories above, `linked` the files that have other names as
    well and of which the mode alone changes.
    """

    steps: dict[bytes, Step]
    conflicts: set[bytes] = field(default_factory=set)
    missing: set[bytes] = field(default_factory=set)
    satisfied: set[bytes] = field(default_factory=set)
    bases: dict[bytes, Base] = field(default_factory=dict)
    directories: dict[bytes, int] = field(default_factory=dict)
    linked: set[bytes] = field(default_factory=set)


def look(root: Lower, path: bytes) -> Found | None:
    """What stands at a path, a symlink itself; None where nothing does.

    Raises OSError: EXDEV at or below a mount point, and whatever else keeps it from being seen.
    """
    found = root.identify(path)
    return None if found is None else Found(*found)


def look_at(fd: int) -> Found:
    """What stands behind a descriptor (O_PATH will do). Raises OSError."""
    return Found(Stat.of(os.fstat(fd)), syscalls.file_handle(fd))


class ContentHasher:
    """The id that a content has in a store, taken piece by piece.

    `like` is any id of the same sort: of a file in the side store, else of a git blob (gitformat-object(5)). `size`
    is the content's length in bytes.
    """

    def __init__(self, like: str, size: int) -> None:
        self._prefix = BIG if like.startswith(BIG) else ""
        self._hash = hashlib.sha256() if self._prefix else hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

    def update(self, data: bytes) -> None:
        self._hash.update(data)

    def id(self) -> str:
        return self._prefix + self._hash.hexdigest()


def content_id(root: Lower, path: bytes, found: Found, *, like: str) -> str:
    """The id of the content of a file or symlink, of the same sort as `like`; "" where it is neither, or no longer.

    Raises OSError.
    """
    try:
        if found.stat.kind is Kind.SYMLINK:
            target = root.readlink(path)
            hasher = ContentHasher(like, len(target))
            hasher.update(target)
            return hasher.id()
        if found.stat.kind is not Kind.FILE:
            return ""
        file = root.open(path)
    except OSError as error:
        if error.errno in _CHANGED:
            return ""
        raise
    with file:
        size = found.stat.size
        if file.seekable():
            size = file.seek(0, os.SEEK_END)
            file.seek(0)
        hasher = ContentHasher(like, size)
        while data := file.read(_CHUNK):
            hasher.update(data)
    return hasher.id()


def _names(root: Lower, path: bytes) -> set[bytes] | None:
    """The names in a directory, None where there is no directory any more."""
    try:
        return set(root.list(path))
    except OSError as error:
        if error.errno in _CHANGED:
            return None
        raise


def holds(
    root: Lower,
    path: bytes,
    base: Base,
    *,
    moved: bool = False,
    exact: bool = True,
    restored: Restored | None = None,
) -> bool:
    """Whether `path` holds what `base` says, which must be certain.

    Where the base's content is known, content, kind and mode decide, whatever the times; with `exact` False a file
    whose inode, size and both times are the base's isn't read. Where it isn't known, they all must be equal: a time
    alone never clears a path. `moved` says that we renamed this very entry since, which sets its ctime. `restored` as
    `Restored`. Of a directory only the inode and the mode are compared. Raises OSError.
    """
    return _holds(root, path, look(root, path), base, moved=moved, exact=exact, restored=restored)


def _holds(
    root: Lower,
    path: bytes,
    found: Found | None,
    base: Base,
    *,
    moved: bool = False,
    exact: bool = True,
    restored: Restored | None = None,
) -> bool:
    if base.certainty is Certainty.ABSENT:
        return found is None
    if found is None or found.stat.kind is not base.kind or found.stat.mode != base.mode:
        return False
    stat = found.stat
    if base.kind is Kind.DIR:
        return found.is_inode_of(base)
    same_time = (
        moved or stat.ctime_ns == base.ctime_ns or _was_restored(found, base.ctime_ns, stat.ctime_ns, restored or {})
    )
    same = found.is_inode_of(base) and (stat.size, stat.mtime_ns) == (base.size, base.mtime_ns) and same_time
    if base.blob and (exact or not same):
        return stat.size == base.size and content_id(root, path, found, like=base.blob) == base.blob
    return same


def _was_restored(found: Found, was_ns: int, is_ns: int, restored: Restored) -> bool:
    known = restored.get(found.handle, frozenset())
    return bool(found.handle) and was_ns in known and is_ns in known


def tree_holds(
    root: Lower,
    at: bytes,
    bases: Iterable[Base],
    *,
    moved: bool = False,
    renamed: Collection[int] = (),
    restored: Restored | None = None,
) -> bool:
    """Whether the entry at `at` and everything below it is as `bases` say: nothing more, nothing less.

    The first of `bases` is the entry's own, the others lie below it; their paths are where they all once were. `moved`
    says that the entry itself was renamed since, and so were the inodes `renamed`, under other names. `restored` as for
    `holds`. Raises OSError.
    """
    bases = tuple(bases)
    top = bases[0].path
    expected: dict[bytes, set[bytes]] = {base.path: set() for base in bases if base.kind is Kind.DIR}
    for base in bases[1:]:
        above, _, name = base.path.rpartition(b"/")
        if above not in expected:
            return False
        expected[above].add(name)

    def here(path: bytes) -> bytes:
        return at + path[len(top) :]

    def was_moved(base: Base) -> bool:
        return moved and (base.path == top or base.inode in renamed)

    if not all(holds(root, here(base.path), base, moved=was_moved(base), restored=restored) for base in bases):
        return False
    return all(_names(root, here(path)) == names for path, names in expected.items())


def reaches(root: Lower, path: bytes, old: State | None, new: State | None) -> bool:
    """Whether the workspace is at `path` already what a step would make of it. Raises OSError."""
    return _reaches(root, path, look(root, path), old, new)


def _reaches(root: Lower, path: bytes, found: Found | None, old: State | None, new: State | None) -> bool:
    if found is None or new is None:
        return found is None and new is None
    stat = found.stat
    if stat.kind is not new.kind:
        return False
    if new.kind is Kind.DIR:
        # A directory below a setgid directory has that bit from its parent, never from the change set.
        return stat.mode == new.mode or (old is None and stat.mode == new.mode | stat_module.S_ISGID)
    if new.kind is Kind.FILE and (stat.mode != new.mode or stat.size != new.size):
        return False
    return bool(new.blob) and content_id(root, path, found, like=new.blob) == new.blob


def differing(root: Lower, changes: Iterable[Change]) -> list[bytes]:
    """The paths at which the workspace isn't what landed there: kind, mode and the hash of the content. Raises OSError."""
    return [path for path, (old, new) in steps_of(changes).items() if not reaches(root, path, old, new)]


def is_mode_alone(old: State | None, new: State | None) -> bool:
    """Whether a step changes nothing but permission bits."""
    if old is None or new is None or old.kind is not new.kind or old.kind is Kind.SYMLINK:
        return False
    return old.kind is Kind.DIR or (bool(old.blob) and old.blob == new.blob)


def steps_of(changes: Iterable[Change]) -> dict[bytes, Step]:
    """What a change set does, path by path in bytewise order: (old, new), None where nothing stands.

    Raises OptionsError (invalid_options) where two of its changes contradict each other.
    """
    steps: dict[bytes, Step] = {}
    for change in changes:
        for path, old, new in change.steps():
            if path not in steps:
                steps[path] = (old, new)
                continue
            # A rename away from a path and a new file there are two changes and one step.
            earlier_old, earlier_new = steps[path]
            if (earlier_new is None) == (new is None) or (earlier_old is None) == (old is None):
                raise OptionsError(
                    f"The change set has two changes of '{paths.display(path)}' that contradict each other."
                )
            steps[path] = (old if earlier_old is None else earlier_old, new if earlier_new is None else earlier_new)
    return dict(sorted(steps.items()))


def conflicts(
    root: Lower,
    change_set: ChangeSet,
    manifest: Manifest,
    *,
    exact: bool = False,
    restored: Restored | None = None,
) -> list[bytes]:
    """The paths in which the real workspace is no longer what a change set of `manifest` departs from, sorted.

    `exact` and `restored` as for `holds`. Raises OptionsError as `steps_of`, and OSError where a path can't be looked
    at.
    """
    return sorted(examine(root, change_set, manifest, exact=exact, restored=restored).conflicts)


def examine(
    root: Lower,
    change_set: ChangeSet,
    manifest: Manifest,
    *,
    exact: bool = True,
    restored: Restored | None = None,
) -> Examination:
    """Compare the workspace with the bases of all that a change set touches; nothing is changed, every conflict is found.

    Raises as `conflicts`.
    """
    examination = Examination(steps_of(change_set.changes))
    ancestors: dict[bytes, bool] = {}
    recorded = _recorded_children(manifest.bases)
    names = ExactNames(root)
    for path, (old, new) in examination.steps.items():
        if not _ancestors_stand(root, path, examination, manifest, ancestors):
            examination.conflicts.add(path)
            continue
        found = look(root, path)
        if old is None and found is not None and not names.has(path):
            # Nothing stands under this very name, whatever the scan found: whether it can land `plan.check_names` says.
            examination.bases[path] = Base(path, Certainty.ABSENT)
            continue
        if _reaches(root, path, found, old, new):
            examination.satisfied.add(path)
            continue
        base = base_of(manifest, path)
        if not _agrees(base, old) or not _holds(root, path, found, base, exact=exact, restored=restored):
            examination.conflicts.add(path)
            continue
        if old is not None and old.blob and not base.blob:
            # No base holds the content of a large file or a deleted one, but it was read for the review.
            base = base._replace(blob=old.blob)
            if exact and not _holds(root, path, found, base):
                examination.conflicts.add(path)
                continue
        examination.bases[path] = base
        if base.kind is Kind.FILE and is_mode_alone(old, new) and found is not None and found.stat.nlink > 1:
            examination.linked.add(path)
        if base.kind is Kind.DIR and (new is None or new.kind is not Kind.DIR):
            _examine_listing(root, path, recorded.get(path, set()), examination)
    return examination


def base_of(manifest: Manifest, path: bytes) -> Base:
    """The base of a path: its own, else absent below a path that was absent or no directory, else unknown."""
    own = manifest.bases.get(path)
    if own is not None:
        return own
    above = path
    while above:
        above = above.rpartition(b"/")[0]
        base = manifest.bases.get(above)
        if base is not None:
            gone = base.certainty is Certainty.ABSENT or (
                base.certainty is Certainty.KNOWN and base.kind is not Kind.DIR
            )
            return _UNKNOWN._replace(path=path, certainty=Certainty.ABSENT if gone else Certainty.UNKNOWN)
    return _UNKNOWN._replace(path=path)


_UNKNOWN = Base(b"", Certainty.UNKNOWN)


def _agrees(base: Base, old: State | None) -> bool:
    """Whether what was reviewed as old is what the overlay departed from."""
    if base.certainty is Certainty.UNKNOWN:
        return False
    if base.certainty is Certainty.ABSENT or old is None:
        return base.certainty is Certainty.ABSENT and old is None
    if (base.kind, base.mode) != (old.kind, old.mode):
        return False
    comparable = base.blob and old.blob and base.blob.startswith(BIG) == old.blob.startswith(BIG)
    return not comparable or base.blob == old.blob


def _recorded_children(bases: Mapping[bytes, Base]) -> dict[bytes, set[bytes]]:
    children: dict[bytes, set[bytes]] = {}
    for path, base in bases.items():
        if path and base.certainty is not Certainty.ABSENT:
            above, _, name = path.rpartition(b"/")
            children.setdefault(above, set()).add(name)
    return children


def _ancestors_stand(
    root: Lower, path: bytes, examination: Examination, manifest: Manifest, known: dict[bytes, bool]
) -> bool:
    """Whether every directory above a step is still the one that the overlay knew, or one that the change set makes."""
    if not path:
        return True
    pending = []
    above = path.rpartition(b"/")[0]
    while above not in known:
        pending.append(above)
        if not above:
            break
        above = above.rpartition(b"/")[0]
    stands = known.get(above, True)
    for directory in reversed(pending):
        stands = stands and _directory_stands(root, directory, examination, manifest)
        known[directory] = stands
    return stands


def _directory_stands(root: Lower, path: bytes, examination: Examination, manifest: Manifest) -> bool:
    if path in examination.steps:
        # It comes, goes or changes with this very change set, and is examined as a path of its own.
        return True
    found = look(root, path)
    base = manifest.bases.get(path)
    if found is None and base is not None and base.certainty is Certainty.ABSENT:
        examination.missing.add(path)
        return True
    if found is None or found.stat.kind is not Kind.DIR:
        examination.conflicts.add(path)
        return False
    examination.directories[path] = found.stat.inode
    known = base is not None and base.certainty is Certainty.KNOWN and base.kind is Kind.DIR
    if known and base is not None and not found.is_inode_of(base):
        examination.conflicts.add(path)
        return False
    return True


def _examine_listing(root: Lower, path: bytes, recorded: set[bytes], examination: Examination) -> None:
    """A directory that goes must hold what was recorded of it, all of which goes with it."""
    standing = _names(root, path)
    if standing is None:
        examination.conflicts.add(path)
        return
    for name in standing | recorded:
        child = paths.join(path, name)
        if name not in standing:
            examination.conflicts.add(child)
        elif child not in examination.steps:
            (examination.missing if name in recorded else examination.conflicts).add(child)
