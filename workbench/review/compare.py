"""From a checkpoint to its change set: every path in which the merged view departs from the real workspace."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import stat
from collections.abc import Iterable
from dataclasses import replace

from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.review.bases import BIG, Found, content_id
from workbench.review.changeset import Change, ChangeKind, ChangeSet, Included, Left, LeftPath, State
from workbench.review.ignore import OWN_RULES_BYTES, Directory, IgnoreRules, ignores_all
from workbench.review.names import REPOSITORY_NAMES, folded, is_git, is_repository
from workbench.review.nearest import Nearest, with_ancestors
from workbench.review.renames import with_renames
from workbench.review.risk import Contents, RiskRules
from workbench.vfs.storage import Directory as LowerDirectory
from workbench.vfs.storage import Kind, Lower, Stat

_SETID = 0o6000
_LANDING = 0o1777
_EXECUTABLE = 0o111
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
_DIGEST_HEAD = b"workbench change set 1\0"

_SPECIAL = {Kind.FIFO: Left.FIFO, Kind.SOCKET: Left.SOCKET, Kind.DEVICE: Left.DEVICE, Kind.WHITEOUT: Left.DEVICE}
"""Kinds that never land; a whiteout in the lower is a character device to everybody else."""


def change_set(
    checkpoint: str,
    manifest: Manifest,
    lower: Lower,
    store: Contents,
    *,
    scratch: bytes,
    root_mode: int | None = None,
    included: Included | None = None,
) -> ChangeSet:
    """Compare a checkpoint's upper layer with the real workspace.

    `checkpoint` is its commit and `manifest` its manifest. `scratch` is the name of the scratch directory. `root_mode`
    is the mode that the upper's root was given: only where it's known can a change of the root's mode be told. `included`
    is what was asked for of what would stay behind.

    Costs what the upper departs in: the lower is read only at those paths, and a file's content only where the sizes
    are equal or the digest needs it. Equal inputs give an equal digest. Raises OSError where the lower fails in another
    way than by refusing access, and CheckpointError where the store can't give a symlink's target.
    """
    comparison = _Comparison(manifest, lower, store, scratch, root_mode, included or Included())
    comparison.run()
    changes = sorted(_settle(comparison), key=lambda change: change.path)
    rules = RiskRules(manifest, lower, store)
    changes = [replace(change, risk=why) if (why := rules.reason(change)) else change for change in changes]
    left = tuple(sorted(comparison.left.values(), key=lambda one: one.path))
    return ChangeSet(checkpoint, tuple(changes), left, digest_of(changes))


def digest_of(changes: Iterable[Change]) -> str:
    """64 hex digits of SHA-256 over the old and new kind, mode and blob of every path, in bytewise order of path.

    The encoding is the head `workbench change set 1`, then for each path seven fields, each ended by a NUL: the path,
    old kind, mode (octal) and blob, new kind, mode and blob; three empty ones where nothing stands.
    """
    found = hashlib.sha256(_DIGEST_HEAD)
    steps = sorted((step for change in changes for step in change.steps()), key=lambda step: (step[0], step[2] is None))
    for path, old, new in steps:
        found.update(b"%s\0%s%s" % (path, _encoded(old), _encoded(new)))
    return found.hexdigest()


def _encoded(state: State | None) -> bytes:
    if state is None:
        return b"\0\0\0"
    return f"{state.kind.value}\0{state.mode:o}\0{state.blob}\0".encode()


class _Comparison:
    """One walk over the upper layer, from the root down; what it finds is in `changes` and `left`."""

    def __init__(
        self,
        manifest: Manifest,
        lower: Lower,
        store: Contents,
        scratch: bytes,
        root_mode: int | None,
        included: Included,
    ) -> None:
        self._manifest = manifest
        self._lower = lower
        self._store = store
        self._scratch = scratch
        self._root_mode = root_mode
        self._included = included
        self._rules = IgnoreRules(lower)
        self._mounts = frozenset(lower.mount_points())
        self._uid = os.geteuid()
        self._children: dict[bytes, dict[bytes, Entry]] = {}
        for path, entry in manifest.entries.items():
            if path:
                parent, _, name = path.rpartition(b"/")
                self._children.setdefault(parent, {})[name] = entry
        self._directories: list[tuple[bytes, bool, bool]] = []
        self.changes: dict[bytes, Change] = {}
        self.left: dict[bytes, LeftPath] = {}
        self.kept: dict[bytes, Left] = {}
        """Directories of the lower that can't go, because something in them stays, and why that does."""

    def run(self) -> None:
        root = self._manifest.entries.get(b"")
        if root is not None and self._root_mode is not None and root.mode != self._root_mode:
            self._compare_modes(b"", root, self._lower.stat(b""))
        self._directories.append((b"", False, True))
        while self._directories:
            self._directory(*self._directories.pop())

    # What the upper holds

    def _directory(self, path: bytes, hidden: bool, in_lower: bool) -> None:
        """Compare what an upper directory holds; `hidden` says that nothing of the lower shows through."""
        entries = self._children.get(path, {})
        if not entries and not hidden:
            return
        below_it: LowerDirectory | None = None
        if in_lower:
            try:
                below_it = self._lower.directory(path)
            except PermissionError:
                self._leave(path, Left.UNREADABLE, emptied=hidden)
                return
            except OSError as error:
                # Whoever took it away meanwhile is met again at the commit.
                if error.errno not in _GONE:
                    raise
        try:
            if self._is_repository(entries, below_it):
                self._leave(path, Left.REPOSITORY, emptied=hidden)
                return
            rules = self._rules.directory(path)
            below = path + b"/" if path else b""
            standing = self._names_to_check(entries, below_it, hidden)
            for name, entry in entries.items():
                is_another = standing is not None and entry.kind is not Kind.WHITEOUT and name not in standing
                self._entry(below + name, name, entry, rules, None if is_another else below_it, hidden)
            if hidden and below_it is not None:
                gone = (name for name in below_it.names() if name not in entries or entries[name].kind is Kind.WHITEOUT)
                self._delete([below + name for name in gone])
        finally:
            if below_it is not None:
                below_it.close()

    def _names_to_check(
        self, entries: dict[bytes, Entry], lower: LowerDirectory | None, hidden: bool
    ) -> frozenset[bytes] | None:
        """What the lower lists, where a name goes that it might take for another's that comes: `README` for `readme`."""
        if lower is None:
            return None
        gone = {folded(name) for name, entry in entries.items() if entry.kind is Kind.WHITEOUT}
        if not hidden and not any(
            entry.kind is not Kind.WHITEOUT and folded(name) in gone for name, entry in entries.items()
        ):
            return None
        return frozenset(lower.names())

    def _entry(
        self, path: bytes, name: bytes, entry: Entry, rules: Directory, lower: LowerDirectory | None, hidden: bool
    ) -> None:
        try:
            old = lower.stat(name) if lower is not None else None
            if entry.kind is Kind.WHITEOUT:
                # In a hidden directory a whiteout says nothing: what isn't in the upper is gone anyway.
                if old is not None and not hidden:
                    self._delete([path])
                return
            reason = self._reason_to_leave(path, name, entry.kind, old, rules)
            if reason is None and old is None and rules.is_active and self._ignores_itself(path):
                reason = Left.IGNORED
            if reason is None and entry.omitted:
                reason = Left.OMITTED
            is_copied_up = old is not None and old.kind is Kind.DIR and entry.kind is Kind.DIR
            if reason is None and self._is_closed(entry) and not is_copied_up:
                reason = Left.UNREADABLE
            if reason is not None:
                self._leave(path, reason, emptied=not is_copied_up or hidden or entry.opaque)
            elif entry.kind is Kind.DIR:
                self._compare_directory(path, entry, old)
                self._directories.append((path, hidden or entry.opaque, old is not None and old.kind is Kind.DIR))
            else:
                self._compare_leaf(path, entry, old)
        except PermissionError:
            self._leave(path, Left.UNREADABLE)

    def _reason_to_leave(self, path: bytes, name: bytes, kind: Kind, old: Stat | None, rules: Directory) -> Left | None:
        """Why a path never lands, whatever it's compared with; `kind` is a whiteout for what is gone."""
        if path.partition(b"/")[0] == self._scratch and not self._included.has(path, Left.SCRATCH):
            return Left.SCRATCH
        if is_git(name):
            return Left.REPOSITORY
        if path in self._mounts:
            return Left.MOUNT_POINT
        if old is not None and old.kind in _SPECIAL:
            return _SPECIAL[old.kind]
        ignored = old is not None and rules.ignores(path, name, is_dir=old.kind is Kind.DIR)
        if not ignored and kind is not Kind.WHITEOUT and (old is None or old.kind is not kind):
            ignored = rules.ignores(path, name, is_dir=kind is Kind.DIR)
        # What the lower doesn't have isn't tracked, and the index isn't read for it.
        if ignored and not (old is not None and rules.tracks(path)) and not self._included.has(path, Left.IGNORED):
            return Left.IGNORED
        return None if kind is Kind.WHITEOUT else _SPECIAL.get(kind)

    def _ignores_itself(self, path: bytes) -> bool:
        """Whether a new path is a directory of a tool's own, such as `.pytest_cache`, which git would never show."""
        said = self._children.get(path, {}).get(b".gitignore")
        if said is None or said.kind is not Kind.FILE or not said.blob or said.size > OWN_RULES_BYTES:
            return False
        return ignores_all(self._store.read(said.blob)) and not self._included.has(path, Left.IGNORED)

    def _is_repository(self, entries: dict[bytes, Entry], lower: LowerDirectory | None) -> bool:
        """Whether git could take a directory for a repository: in the lower, in the merged view or after a commit."""
        names = {folded(name) for name, entry in entries.items() if entry.kind is not Kind.WHITEOUT}
        if lower is not None and ("head" in names or lower.stat(b"HEAD") is not None):
            names.update(folded(name) for name in REPOSITORY_NAMES if lower.stat(name) is not None)
        return is_repository(names)

    def _compare_directory(self, path: bytes, entry: Entry, old: Stat | None) -> None:
        if old is not None and old.kind is Kind.DIR:
            base = self._manifest.bases.get(path)
            # A directory is copied up for what is in it: only a mode that isn't its base's was set inside.
            if not (_is_known(base, Kind.DIR) and base is not None and base.mode == entry.mode):
                self._compare_modes(path, entry, old)
            return
        new = State(Kind.DIR, entry.mode & _LANDING)
        kind = ChangeKind.ADDED if old is None else ChangeKind.KIND
        dropped = entry.mode & _SETID
        drops = bool(dropped & stat.S_ISUID or (dropped and not self._inherits_group(path)))
        self._change(path, kind, self._old_state(path, old), new, drops_setid=drops)

    def _inherits_group(self, path: bytes) -> bool:
        """Whether what is made at a path gets a setgid bit from the real directory above it."""
        while path:
            path = os.path.dirname(path)
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                above = self._lower.stat(path)
                if above.kind is Kind.DIR:
                    return bool(above.mode & stat.S_ISGID)
        return False

    def _compare_leaf(self, path: bytes, entry: Entry, old: Stat | None) -> None:
        new = State(entry.kind, entry.mode & _LANDING, entry.size, entry.blob)
        drops = bool(entry.mode & _SETID)
        if old is None:
            self._change(path, ChangeKind.ADDED, None, new, drops_setid=drops)
        elif old.kind is Kind.DIR:
            names = self._lower.list(path)
            if is_repository({folded(name) for name in names}):
                self._leave(path, Left.REPOSITORY)
                return
            self._change(path, ChangeKind.KIND, self._old_state(path, old), new, drops_setid=drops)
            self._delete([path + b"/" + name for name in names])
        elif old.kind is not entry.kind:
            self._change(path, ChangeKind.KIND, self._old_state(path, old), new, drops_setid=drops)
        else:
            blob = self._old_blob(path, old, entry.blob if old.size == entry.size else "")
            before = State(old.kind, old.mode, old.size, blob)
            if entry.kind is Kind.SYMLINK:
                if blob != entry.blob:
                    self._change(path, ChangeKind.MODIFIED, before, replace(new, mode=old.mode))
            elif blob == entry.blob:
                self._compare_modes(path, entry, old, blob)
            else:
                self._change(path, ChangeKind.MODIFIED, before, new, drops_setid=drops)

    def _compare_modes(self, path: bytes, entry: Entry, old: Stat, blob: str = "") -> None:
        """Compare a file of equal content, or a directory: setuid and setgid bits may go, and never come."""
        if entry.mode == old.mode:
            return
        if self._is_closed(entry):
            self.left[path] = LeftPath(path, Left.UNREADABLE)
            return
        kept, dropped = entry.mode & old.mode & _SETID, entry.mode & ~old.mode & _SETID
        if entry.mode & ~dropped == old.mode:
            self.left[path] = LeftPath(path, Left.SETID)
            return
        if entry.kind is Kind.FILE:
            kept, dropped = 0, entry.mode & _SETID
        before = State(entry.kind, old.mode, 0 if entry.kind is Kind.DIR else old.size, blob)
        after = replace(before, mode=(entry.mode & _LANDING) | kept)
        self._change(path, ChangeKind.MODE, before, after, drops_setid=bool(dropped))

    def _is_closed(self, entry: Entry) -> bool:
        """Whether a mode keeps even us from reading a path: once landed, nothing could be compared there any more."""
        needed = {Kind.FILE: 0o400, Kind.DIR: 0o500}.get(entry.kind, 0)
        return self._uid != 0 and entry.mode & needed != needed

    def _old_state(self, path: bytes, old: Stat | None) -> State | None:
        if old is None:
            return None
        if old.kind is Kind.DIR:
            return State(Kind.DIR, old.mode)
        return State(old.kind, old.mode, old.size, self._old_blob(path, old, ""))

    def _old_blob(self, path: bytes, old: Stat, like: str) -> str:
        """The id of what the lower has, of the sort of `like` if that's given; not read where the base tells it."""
        base = self._manifest.bases.get(path)
        if (
            base is not None
            and _is_known(base, old.kind)
            and base.blob
            and (not like or base.blob.startswith(BIG) == like.startswith(BIG))
            and (base.size, base.mtime_ns, base.ctime_ns, base.inode)
            == (old.size, old.mtime_ns, old.ctime_ns, old.inode)
        ):
            return base.blob
        return content_id(self._lower, path, Found(old, b""), like=like)

    # What the lower has and the merged view hasn't

    def _delete(self, gone: list[bytes]) -> None:
        """Take paths of the lower, with everything below them, for deleted."""
        waiting = gone
        while waiting:
            path = waiting.pop()
            names: list[bytes] = []
            try:
                old = self._lower.stat(path)
                reason = self._reason_to_keep(path, old)
                if reason is None and old.kind is Kind.DIR:
                    names = self._lower.list(path)
                    if is_repository({folded(name) for name in names}):
                        reason = Left.REPOSITORY
                elif reason is None and old.kind is Kind.FILE and self._uid not in (0, old.uid):
                    # What can't be read can't be looked at before it goes, nor brought back.
                    self._lower.open(path).close()
            except PermissionError:
                reason = Left.UNREADABLE
            except (FileNotFoundError, NotADirectoryError):
                continue
            if reason is not None:
                self._leave(path, reason)
                # Where one is known, so are those above it.
                above = path
                while above and (above := above.rpartition(b"/")[0]) not in self.kept:
                    self.kept[above] = reason
                continue
            blob = self._old_blob(path, old, "") if old.kind is Kind.SYMLINK else ""
            state = State(old.kind, old.mode, 0 if old.kind is Kind.DIR else old.size, blob)
            self._change(path, ChangeKind.DELETED, state, None)
            waiting.extend(path + b"/" + name for name in names)

    def _reason_to_keep(self, path: bytes, old: Stat) -> Left | None:
        parent, _, name = path.rpartition(b"/")
        return self._reason_to_leave(path, name, Kind.WHITEOUT, old, self._rules.directory(parent))

    def content_of(self, path: bytes, like: str) -> str:
        """The id of a deleted file's content, of the sort of `like`; empty where it can't be read."""
        try:
            return self._old_blob(path, self._lower.stat(path), like)
        except (PermissionError, FileNotFoundError, NotADirectoryError):
            return ""

    # Results

    def _change(
        self, path: bytes, kind: ChangeKind, old: State | None, new: State | None, *, drops_setid: bool = False
    ) -> None:
        self.changes[path] = Change(path, kind, old, new, drops_setid=drops_setid)

    def _leave(self, path: bytes, reason: Left, *, emptied: bool = True) -> None:
        """Leave a path with all that the upper has below it.

        `emptied` says that even an upper directory without entries is a departure: it wasn't copied up for nothing.
        """
        count = self._count(path)
        if not count and emptied and path != self._scratch:
            count = 1
        if count:
            self.left[path] = LeftPath(path, reason, count)
            # What was found of a directory before it was opened.
            self.changes.pop(path, None)

    def _count(self, top: bytes) -> int:
        """How many entries the upper has below a path, directories that hold others not counted."""
        count = 0
        waiting = [top]
        while waiting:
            path = waiting.pop()
            children = self._children.get(path, {})
            count += not children and path != top
            waiting.extend(path + b"/" + name if path else name for name in children)
        return count


def _is_known(base: Base | None, kind: Kind) -> bool:
    return base is not None and base.certainty is Certainty.KNOWN and base.kind is kind


# From what the walk found to what is said


def _settle(comparison: _Comparison) -> list[Change]:
    """What lands of what was found; what can't, because of what stays, joins `left`."""
    _keep_what_is_held(comparison)
    _collapse_ignored(comparison)
    changes = with_renames(comparison.changes, comparison.content_of)
    above = with_ancestors(path.rpartition(b"/")[0] for change in changes for path, _, _ in change.steps() if path)
    return [_described(change, above) for change in changes]


def _keep_what_is_held(comparison: _Comparison) -> None:
    """A directory with something in it that stays can't go, and nothing can take its place."""
    held: list[bytes] = []
    for path, reason in comparison.kept.items():
        change = comparison.changes.get(path)
        if change is None or change.kind not in (ChangeKind.DELETED, ChangeKind.KIND):
            continue
        del comparison.changes[path]
        if change.kind is ChangeKind.KIND:
            held.append(path)
            comparison.left[path] = LeftPath(path, reason)
    if held:
        blocked = Nearest(dict.fromkeys(held, True))
        for path in [path for path in comparison.changes if blocked.above(path)]:
            del comparison.changes[path]


def _collapse_ignored(comparison: _Comparison) -> None:
    """A new directory in which everything is ignored is one ignored entry, as git shows it."""
    changes, left = comparison.changes, comparison.left
    ignored: dict[bytes, int] = {}
    live: set[bytes] = set()
    collapsed: set[bytes] = set()
    # Backwards, what is in a directory comes before it.
    for path in sorted({*changes, *left}, reverse=True):
        parent = path.rpartition(b"/")[0]
        change = changes.get(path)
        if change is None and left[path].reason is Left.IGNORED:
            ignored[parent] = ignored.get(parent, 0) + left[path].count
        elif (
            change is not None
            and change.kind is ChangeKind.ADDED
            and change.new is not None
            and change.new.kind is Kind.DIR
            and path in ignored
            and path not in live
        ):
            collapsed.add(path)
            del changes[path]
            left[path] = LeftPath(path, Left.IGNORED, ignored[path])
            ignored[parent] = ignored.get(parent, 0) + ignored[path]
        else:
            live.add(parent)
    if collapsed:
        inside = Nearest(dict.fromkeys(collapsed, True))
        for path in [path for path in left if inside.above(path)]:
            del left[path]


def _described(change: Change, above: set[bytes]) -> Change:
    old, new = change.old, change.new
    implied = change.path in above and (
        (change.kind is ChangeKind.ADDED and new is not None and new.kind is Kind.DIR)
        or (change.kind is ChangeKind.DELETED and old is not None and old.kind is Kind.DIR)
    )
    is_executable = new is not None and new.kind is Kind.FILE and bool(new.mode & _EXECUTABLE)
    was_executable = old is not None and old.kind is Kind.FILE and bool(old.mode & _EXECUTABLE)
    if implied or (is_executable and not was_executable):
        return replace(change, implied=implied, new_executable=is_executable and not was_executable)
    return change
