"""What has to be done to make one upper layer equal to a manifest: pure comparison, nothing is touched here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from workbench.checkpoints.manifest import Entry
from workbench.errors import CheckpointError
from workbench.vfs import paths
from workbench.vfs.storage import Kind

CONTENT = (Kind.FILE, Kind.SYMLINK)
"""The kinds that have a blob."""

LINKABLE = (Kind.FILE, Kind.SYMLINK, Kind.FIFO, Kind.SOCKET)
"""The kinds of which several names may share an inode and mean it. (The kernel links whiteouts to save inodes.)"""


@dataclass(frozen=True, slots=True)
class Create:
    """An entry to make. `link_to` is a path that it's to share its inode with, and that stands by then; else None."""

    entry: Entry
    link_to: bytes | None = None


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps, in the order of the fields.

    `delete` has children before parents, `create` parents before children; what is created with content or as a link
    takes the place of a standing file. `adjust` are entries that stand, but for their metadata. `touched` are the
    directories whose own metadata has to be set after all else, children before parents. `wanted` is the target without
    what is left alone, and `left` what is: paths whose content no checkpoint keeps, and what is below them. `above_left`
    are directories that only stay for their sake.
    """

    delete: tuple[Entry, ...]
    create: tuple[Create, ...]
    adjust: tuple[Entry, ...]
    touched: tuple[bytes, ...]
    wanted: Mapping[bytes, Entry]
    left: frozenset[bytes]
    above_left: frozenset[bytes]


def make_plan(current: Mapping[bytes, Entry], target: Mapping[bytes, Entry], *, keep_omitted: bool) -> Plan:
    """Compare two layers by their entries.

    `keep_omitted` leaves alone what `current` omitted; what `target` omitted always is. Raises CheckpointError
    (checkpoint_failed) where that stands in the way.
    """
    left, above_left = _left(current, target, keep_omitted)
    wanted = {path: target[path] for path in sorted(target) if path not in left}
    present = {path: current[path] for path in sorted(current) if path not in left}
    leaders = _leaders(present, wanted)
    delete, create, adjust = [], [], []
    touched = set()
    for path, want in wanted.items():
        here = present.get(path)
        leader = leaders.get(path)
        if here is not None and here.kind is want.kind and (want.kind not in LINKABLE or leader == (path, True)):
            if want.kind is Kind.DIR and not equal_metadata(here, want):
                touched.add(path)
            elif want.kind in LINKABLE and not equal_metadata(here, want):
                adjust.append(want)
            continue
        link_to = leader[0] if leader is not None and leader[0] != path else None
        if here is not None and (here.kind is Kind.DIR or not (want.kind in CONTENT or link_to is not None)):
            delete.append(here)
        create.append(Create(want, link_to))
        touched.add(parent(path))
        if want.kind is Kind.DIR:
            touched.add(path)
    for path, here in present.items():
        if path not in wanted and path not in above_left:
            delete.append(here)
            touched.add(parent(path))
    delete.sort(key=lambda entry: entry.path, reverse=True)
    return Plan(
        tuple(delete),
        tuple(create),
        tuple(adjust),
        tuple(sorted((path for path in touched if path in above_left or _is_directory(wanted, path)), reverse=True)),
        wanted,
        left,
        above_left,
    )


def equal_metadata(here: Entry, want: Entry) -> bool:
    """Whether two entries of one kind agree on everything a restore sets but their content."""
    if here.kind is Kind.WHITEOUT:
        return True
    return (
        (here.mode == want.mode or here.kind is Kind.SYMLINK)
        and here.uid == want.uid
        and here.gid == want.gid
        and here.mtime_ns == want.mtime_ns
        and here.xattrs == want.xattrs
        and here.opaque == want.opaque
    )


def _is_directory(entries: Mapping[bytes, Entry], path: bytes) -> bool:
    return path in entries and entries[path].kind is Kind.DIR


def parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _left(
    current: Mapping[bytes, Entry], target: Mapping[bytes, Entry], keep_omitted: bool
) -> tuple[frozenset[bytes], frozenset[bytes]]:
    kept = {path for path, entry in current.items() if entry.omitted and keep_omitted}
    left = kept | {path for path, entry in target.items() if entry.omitted}
    if left:
        for path in sorted(current.keys() | target.keys()):
            if path and parent(path) in left:
                left.add(path)
    above_left = set()
    for path in kept:
        above = path
        while above:
            above = parent(above)
            if above in left:
                continue
            want = target.get(above)
            if want is None:
                above_left.add(above)
            elif want.kind is not Kind.DIR:
                raise CheckpointError(
                    f"'{paths.display(above)}' can't be restored: it holds '{paths.display(path)}', which isn't kept.",
                    hint="Move that away or delete it in the sandbox, then try again.",
                )
    return frozenset(left), frozenset(above_left)


def _leaders(present: Mapping[bytes, Entry], wanted: Mapping[bytes, Entry]) -> dict[bytes, tuple[bytes, bool]]:
    """For every linkable path the first of those that share its inode, and whether the path has that inode already.

    An inode that stands with the right content is used by one group of links only.
    """
    groups: dict[object, list[bytes]] = {}
    for path, want in wanted.items():
        if want.kind in LINKABLE:
            groups.setdefault(want.link_group or path, []).append(path)
    claimed: set[int] = set()
    leaders = {}
    for members in groups.values():
        inode = -1
        leader = members[0]
        for path in members:
            here, want = present.get(path), wanted[path]
            if here is not None and _equal_content(here, want) and here.inode not in claimed:
                claimed.add(here.inode)
                inode, leader = here.inode, path
                break
        for path in members:
            here = present.get(path)
            leaders[path] = (leader, here is not None and here.inode == inode)
        if inode >= 0:
            # Those that have the inode stay themselves; the others are linked to the one that was found.
            for path in members:
                if leaders[path][1]:
                    leaders[path] = (path, True)
    return leaders


def _equal_content(here: Entry, want: Entry) -> bool:
    return here.kind is want.kind and here.blob == want.blob and here.size == want.size and not here.omitted
