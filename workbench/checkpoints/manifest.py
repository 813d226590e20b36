"""The manifest of an upper layer: what git can't hold, and the base of every changed path.

Entries and bases are named tuples: a layer has tens of thousands of them, read anew by every process, and a frozen
dataclass takes four times as long to make.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from workbench.vfs.storage import Kind


class Omitted(StrEnum):
    """Why an entry's content isn't kept; of a directory, why what is in it isn't.

    `UNREADABLE`: the caller may not read it. `UNSTABLE`: it changed each time it was read. `DEVICE`: a device node that is
    no whiteout. `TOO_BIG`: larger than the budget for one file. `OVER_BUDGET`: more than the budget for all.
    """

    UNREADABLE = "unreadable"
    UNSTABLE = "unstable"
    DEVICE = "device"
    TOO_BIG = "too-big"
    OVER_BUDGET = "over-budget"


class Entry(NamedTuple):
    """One entry of the upper layer, as it was scanned.

    `path` is relative to the layer's root; the root itself is `b""` and always present. `blob` is, for files and
    symlinks (their target), 40 hex digits of a git blob id, or `big:` and 64 hex digits of a file in the side store.
    `link_group` is 0, or a number that entries of one inode share. `holes` are (offset, length) in bytes. `xattrs`
    leave out everything below `user.overlay.`. `omitted` says why the content isn't kept (one of `Omitted`); a restore
    leaves such an entry alone. `size` is 0 but for files and symlinks.
    """

    path: bytes
    kind: Kind
    mode: int
    uid: int
    gid: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    link_group: int = 0
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    holes: tuple[tuple[int, int], ...] = ()
    blob: str = ""
    opaque: bool = False
    omitted: str = ""


class Certainty(StrEnum):
    """What is known of a path's base: `KNOWN` as recorded, `ABSENT` (known not to have been there), or `UNKNOWN`."""

    KNOWN = "known"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class Base(NamedTuple):
    """What the lower layer held at a path when the overlay first departed from it.

    Also stands for every path below a lower directory that was deleted or hidden by an opaque one. `handle` is the
    file handle (type and bytes, see `workbench.vfs.syscalls`), empty where the filesystem has none. `blob` is empty for
    directories, for paths that were deleted, and wherever the content wasn't read.
    """

    path: bytes
    certainty: Certainty
    kind: Kind = Kind.FILE
    mode: int = 0
    uid: int = 0
    gid: int = 0
    size: int = 0
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    handle: bytes = b""
    blob: str = ""


@dataclass(frozen=True, slots=True)
class Manifest:
    """An upper layer at one moment: its entries and the bases of its paths, each by path, in bytewise order of path."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    bases: dict[bytes, Base] = field(default_factory=dict)
    boot_id: str = ""
    scanned_ns: int = 0
    """The upper filesystem's own clock when the scan began."""

    def with_entries(self, entries: dict[bytes, Entry], bases: dict[bytes, Base] | None = None) -> Manifest:
        return replace(self, entries=entries, bases=self.bases if bases is None else bases)
