"""What an overlay asks of its upper layer, in memory or on disk, and what passes between the two."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from workbench.vfs.storage import Kind, Stat


@dataclass(slots=True)
class Found:
    """What an upper layer says of a path.

    `kind` is that of its own entry, None where it has none, `WHITEOUT` where the path was deleted; `directories` is how
    many leading components are directories of the upper; `lower` whether the lower still shows at the path itself,
    `lower_below` whether it does below it. `identity` is the entry's inode; `stat` gives its metadata. `bare` is a lower
    of which the layer remembers that it has nothing at the path or above it, from some directory down.
    """

    kind: Kind | None
    directories: int
    lower: bool
    lower_below: bool
    identity: int = 0
    stat: Callable[[], Stat] | None = None
    bare: object = None

    def same_directory(self, other: Found) -> bool:
        """Whether both are of one upper entry, that hides the same of the lower."""
        if self.kind is None or other.kind is None:
            return False
        return (self.identity, self.lower_below) == (other.identity, other.lower_below)


@dataclass(frozen=True, slots=True)
class Entry:
    """A whole entry to be put into an upper layer. `content` and `target` as the kind has them.

    `owner` is (uid, gid), None whatever a new entry gets there; `mtime_ns` None is now. `single` says that the source
    has no other hard link: the kernel marks only such files as copied up. `origin` is the file handle of the directory
    that it's copied up from, empty where that isn't known.
    """

    kind: Kind
    mode: int
    owner: tuple[int, int] | None = None
    mtime_ns: int | None = None
    xattrs: Mapping[bytes, bytes] = field(default_factory=dict)
    content: BinaryIO | bytes = b""
    target: bytes = b""
    single: bool = True
    origin: bytes = b""

    @classmethod
    def of(
        cls,
        stat: Stat,
        xattrs: Mapping[bytes, bytes],
        content: BinaryIO | bytes,
        target: bytes = b"",
        origin: bytes = b"",
    ) -> Entry:
        """The entry that a layer has, with its time."""
        single = stat.nlink == 1
        return cls(stat.kind, stat.mode, (stat.uid, stat.gid), stat.mtime_ns, xattrs, content, target, single, origin)


@dataclass(frozen=True, slots=True)
class OpenMode:
    """What a mode such as `r+b` asks for."""

    read: bool
    write: bool
    append: bool
    create: bool
    exclusive: bool
    truncate: bool

    def __str__(self) -> str:
        """As `io.FileIO.mode` says it."""
        kind = "x" if self.exclusive else "w" if self.truncate else "a" if self.append else "r"
        return f"{kind}b+" if self.read and self.write else f"{kind}b"


class Upper(Protocol):
    """An upper layer, raw: whiteouts are entries, of kind `WHITEOUT`, and nothing of the lower is known.

    Each changing method is one step that happens whole or not at all, also across `kill -9`; what the rules of overlayfs
    ask for is the caller's to know. The directory that holds a path is there. Where two threads share a layer they hold
    `lock` around whatever belongs together. All raise OptionsError for an impossible path and OSError with the path.
    """

    @property
    def lock(self) -> AbstractContextManager[object]:
        """A lock that its holder may take again."""
        ...

    def look(self, path: bytes, above: Found | None = None) -> Found:
        """What the layer says of a path; `above` is what it says of the parent, where that's known.

        Raises FileNotFoundError below a whiteout, NotADirectoryError below anything else but a directory.
        """
        ...

    def entries(self, path: bytes) -> list[tuple[bytes, Kind]]:
        """The names in a directory with their kinds, whiteouts too, sorted bytewise."""
        ...

    def names(self, path: bytes) -> list[bytes]:
        """The names in a directory, sorted bytewise, without those of whiteouts."""
        ...

    def content(self, path: bytes) -> bytes | Found:
        """The content of a regular file of this layer; of anything else, and of nothing, what `look` says."""
        ...

    def open(self, path: bytes) -> BinaryIO:
        """A regular file of this layer, for reading."""
        ...

    def readlink(self, path: bytes) -> bytes:
        """A symlink's target."""
        ...

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """The extended attributes of an entry, without those of overlayfs."""
        ...

    def edit(self, path: bytes, mode: OpenMode) -> io.RawIOBase:
        """A regular file of this layer, open for writing, emptied where `mode` says so."""
        ...

    def write(self, path: bytes, data: bytes, bare: object) -> bool:
        """Write a whole file if that takes nothing but this layer, and say whether it was done.

        As `replace` over a regular file of its own; as `make_file`, with 0o666, where there is nothing and nothing of a
        lower shows, `bare` being that lower. A layer may leave it to its caller all the same.
        """
        ...

    def make_file(self, path: bytes, mode: int, data: bytes = b"") -> None:
        """A new file with this content, where there is nothing or a whiteout. `mode` is subject to the umask."""
        ...

    def make_directory(self, path: bytes, mode: int, *, opaque: bool, bare: object = None) -> None:
        """A new empty directory, where there is nothing or a whiteout. `mode` is subject to the umask.

        `bare` is a lower that has nothing there: what the kernel remembers for as long as it's mounted. A layer may, too.
        """
        ...

    def make_symlink(self, path: bytes, target: bytes) -> None:
        """A new symlink, where there is nothing or a whiteout."""
        ...

    def link(self, src: bytes, dst: bytes) -> None:
        """Another name for an entry, where there is nothing or a whiteout."""
        ...

    def put(self, path: bytes, entry: Entry, *, copy_up: bool = False) -> None:
        """A whole entry with its metadata, in place of nothing, a whiteout, or anything but a directory.

        For a `copy_up` the times of the directory that holds it stay as they were.
        """
        ...

    def replace(self, path: bytes, data: bytes) -> None:
        """A new file with this content in place of the regular file there, whose metadata it takes on but the times."""
        ...

    def remove(self, path: bytes, *, whiteout: bool) -> None:
        """Take an entry away with all that is below it, and leave a whiteout where that's asked for.

        With a whiteout there may be nothing.
        """
        ...

    def move(self, src: bytes, dst: bytes, *, whiteout: bool, opaque: bool) -> None:
        """Move an entry over nothing, a whiteout, or what a rename may replace; whiteouts in a directory there don't count.

        With `whiteout` one is left at `src`; with `opaque` the directory becomes so before it's moved.
        """
        ...

    def make_opaque(self, path: bytes) -> None:
        """Make a directory hide all of the lower, and drop the whiteouts below, which hide nothing any more."""
        ...

    def chmod(self, path: bytes, mode: int) -> None:
        """Set the permission bits."""
        ...

    def utime(self, path: bytes, atime_ns: int, mtime_ns: int) -> None:
        """Set the times."""
        ...

    def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        """Set an extended attribute."""
        ...

    def removexattr(self, path: bytes, name: bytes) -> None:
        """Take an extended attribute away; OSError(ENODATA) where there is none."""
        ...
