"""Bases: what the lower layer held at each path of an upper layer when the overlay first departed from it.

Nobody tells of a copy-up, and the person may have saved in between. So a base is taken from the lower layer as it is at the
scan, and only believed where it can't have changed since before the mount: its ctime is older than the mount's epoch, and
it's reached through the same directories. Nothing of a process's own sets a ctime back. Where nothing is there, the parent
directory's ctime says since when, or the upper's entry that it was made and not copied up.

A path that is hidden (below a whiteout, an opaque directory, or anything that isn't a directory) gets its base when it's
first hidden, and never later: what a person adds there afterwards, the overlay has never seen.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
from collections.abc import Callable, Collection, Iterator, Mapping
from enum import Enum
from functools import cached_property

from workbench.checkpoints import side_store
from workbench.checkpoints.directories import Directories
from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.checkpoints.parts import Recorded
from workbench.checkpoints.scan import Sink
from workbench.vfs import syscalls
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind, Stat
from workbench.vfs.upper import LocalUpper

_WITH_CONTENT = (Kind.FILE, Kind.SYMLINK)


def take_bases(
    changes: Mapping[bytes, Entry | None],
    known: Recorded,
    upper: LocalUpper,
    lower: LocalStorage,
    sink: Sink,
    *,
    epoch_ns: int | None,
    again: Collection[bytes] = (),
) -> dict[bytes, Base | None]:
    """What differs in the bases of an upper layer's paths, and of every lower path that it hides; None for those that go.

    `changes` is what differs from `known` in the entries of `upper`, as of the scan just made: of what stands, directories
    before what is in them. `epoch_ns` is the epoch of the earliest mount since `known`, on the clock of the layers'
    filesystem; None where nothing was mounted (the lower is then taken as it is), 0 where no new base can be known. Bases
    in `known` are carried over, or dropped where nothing of the upper stands at or above their path any more. `again` are
    paths whose entry is as it was, and whose base has to be looked at again.

    The content of a lower file goes into the sink where a file or symlink took its place, but not beyond
    `side_store.LIMIT` bytes. Raises OSError of the sink's and the upper's; what of the lower can't be read is unknown.
    """
    with Directories(lower.root_fd) as directories, Directories(upper.root_fd) as upper_directories:
        return _Bases(changes, known, upper, upper_directories, lower, directories, sink, epoch_ns).run(again)


def wanting(known: Manifest, has: Callable[[str], bool]) -> list[bytes]:
    """The paths of a whole manifest whose base has to be looked at again: it's missing, or its content is."""
    found = []
    for path, entry in known.entries.items():
        base = known.bases.get(path)
        if base is None or (base.certainty is Certainty.KNOWN and not _has_content(entry, base, has)):
            found.append(path)
    return found


def _has_content(entry: Entry, base: Base, has: Callable[[str], bool]) -> bool:
    """Whether a base has the content that it may have."""
    if base.blob:
        return has(base.blob)
    return entry.kind not in _WITH_CONTENT or base.kind not in _WITH_CONTENT or base.size > side_store.LIMIT


class _Place(Enum):
    """What is known of the lower directory at a path: what stands below it can be looked up (`SAME`: the very directory
    that the overlay saw), isn't there (`ABSENT`), or nobody knows (`UNKNOWN`)."""

    SAME = "same"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class _Bases:
    def __init__(
        self,
        changes: Mapping[bytes, Entry | None],
        known: Recorded,
        upper: LocalUpper,
        upper_directories: Directories,
        lower: LocalStorage,
        directories: Directories,
        sink: Sink,
        epoch_ns: int | None,
    ) -> None:
        self._changes = changes
        self._known = known
        self._upper = upper
        self._upper_directories = upper_directories
        self._lower = lower
        self._directories = directories
        self._sink = sink
        self._epoch_ns = epoch_ns
        self._hiding = _Hiding(self._entry)
        self._was_hiding = _Hiding(known.entry)
        self._places: dict[bytes, tuple[_Place, int]] = {}
        self._bases: dict[bytes, Base] = {}

    def _entry(self, path: bytes) -> Entry | None:
        return self._changes[path] if path in self._changes else self._known.entry(path)

    @cached_property
    def _mounts(self) -> frozenset[bytes]:
        return frozenset(self._lower.mount_points())

    def run(self, again: Collection[bytes]) -> dict[bytes, Base | None]:
        for path in sorted({*self._changes, *again}) if again else self._changes:
            entry = self._entry(path)
            if entry is None:
                continue
            if path not in self._bases:
                self._bases[path] = self._of_entry(path, entry)
            if self._is_directory(path) and self._hides_anew(path):
                self._hide_below(path)
        found: dict[bytes, Base | None] = {
            path: base for path, base in self._bases.items() if base != self._known.base(path)
        }
        return found | dict.fromkeys(self._dropped())

    def _dropped(self) -> Iterator[bytes]:
        """The paths of bases that nothing of the upper speaks for any more."""
        shown = []
        for path in self._changes:
            if self._was_hiding.at(path) and not self._hiding.at(path) and self._may_have_hidden(path):
                shown.append(path + b"/")
            if self._changes[path] is None and not self._hiding.above(path) and self._known.base(path) is not None:
                yield path
        if shown:
            for path in self._known.whole().bases:
                if path.startswith(tuple(shown)) and self._entry(path) is None and not self._hiding.above(path):
                    yield path

    def _may_have_hidden(self, path: bytes) -> bool:
        base = self._known.base(path)
        return base is not None and (base.certainty is Certainty.UNKNOWN or base.kind is Kind.DIR)

    def _of_entry(self, path: bytes, entry: Entry) -> Base:
        carried = self._known.base(path)
        if carried is None:
            if self._was_hiding.above(path):
                return self._of_never_seen(path)
            base = self._look(path)
        else:
            base = carried
            if base.blob and not self._sink.has(base.blob):
                base = base._replace(blob="")
        if entry.kind in _WITH_CONTENT and base.kind in _WITH_CONTENT and not base.blob:
            return self._with_content(base)
        return base

    def _of_never_seen(self, path: bytes) -> Base:
        """The base of a path that has been hidden since before it was first written, and wasn't in the lower then."""
        above = path
        while above:
            above = _parent(above)
            base = self._known.base(above)
            if base is not None:
                unknown = base.certainty is Certainty.UNKNOWN
                return Base(path, Certainty.UNKNOWN if unknown else Certainty.ABSENT)
        return Base(path, Certainty.UNKNOWN)

    def _hides_anew(self, path: bytes) -> bool:
        """Whether a path hides what the lower has below it, which nothing did until now, and nothing above it does."""
        return self._hiding.at(path) and not self._was_hiding.at(path) and not self._hiding.above(path)

    def _is_directory(self, path: bytes) -> bool:
        """Whether the lower is known to have had a directory at a path whose base was taken."""
        base = self._bases[path]
        return base.certainty is Certainty.KNOWN and base.kind is Kind.DIR

    def _hide_below(self, top: bytes) -> None:
        """Take the bases of all that the lower has below a path that is hidden from now on."""
        waiting = [top]
        while waiting:
            path = waiting.pop()
            if not self._is_directory(path):
                continue
            place, inode = self._place(path)
            if place is _Place.ABSENT:
                continue
            try:
                names = sorted(os.fsencode(name) for name in os.listdir(self._open(path, place, inode)))
            except OSError:
                # What is in it can't be told, so neither can be what the overlay hides.
                self._bases[path] = Base(path, Certainty.UNKNOWN)
                continue
            for name in names:
                child = path + b"/" + name if path else name
                entry = self._entry(child)
                if entry is not None:
                    self._bases[child] = self._of_entry(child, entry)
                elif self._was_hiding.above(child):
                    continue
                else:
                    self._bases[child] = self._known.base(child) or self._look(child)
                if not self._was_hiding.at(child):
                    waiting.append(child)

    def _look(self, path: bytes) -> Base:
        """The base of a path as the lower has it now."""
        unknown = Base(path, Certainty.UNKNOWN)
        if self._epoch_ns == 0 or path in self._mounts:
            return unknown
        if path:
            place, inode = self._place(_parent(path))
            if place is not _Place.SAME:
                return Base(path, Certainty.ABSENT) if place is _Place.ABSENT else unknown
            try:
                dir_fd = self._open(_parent(path), place, inode)
                name = _name(path)
                try:
                    status = os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
                    handle = syscalls.file_handle(dir_fd, name)
                except FileNotFoundError:
                    return Base(path, Certainty.ABSENT) if self._was_absent(path, dir_fd) else unknown
            except OSError:
                return unknown
        else:
            status = os.fstat(self._lower.root_fd)
            handle = syscalls.file_handle(self._lower.root_fd)
        if not self._is_older(status.st_ctime_ns):
            return unknown
        found = Stat.of(status)
        return Base(
            path,
            Certainty.KNOWN,
            found.kind,
            found.mode,
            found.uid,
            found.gid,
            found.size,
            found.mtime_ns,
            found.ctime_ns,
            found.inode,
            handle,
        )

    def _with_content(self, base: Base) -> Base:
        """The base with its blob, where the lower still has that very content and lets us read it."""
        if base.certainty is not Certainty.KNOWN or base.size > side_store.LIMIT:
            return base
        try:
            content = self._read(base)
        except OSError:
            return base
        return base if content is None else base._replace(blob=self._sink.blob(content))

    def _read(self, base: Base) -> bytes | None:
        """The lower's content at a base's path, None where it isn't the base's any more."""
        if base.kind is Kind.SYMLINK:
            target = self._lower.readlink(base.path)
            return target if _is_that(self._lower.stat(base.path), base) else None
        with open(self._lower.open_file(base.path), "rb") as file:
            if not _is_that(Stat.of(os.fstat(file.fileno())), base):
                return None
            content = file.read(base.size + 1)
            return content if _is_that(Stat.of(os.fstat(file.fileno())), base) else None

    def _place(self, path: bytes) -> tuple[_Place, int]:
        """What is known of the lower directory at `path`, and its inode."""
        chain = []
        above = path
        while above not in self._places:
            chain.append(above)
            if not above:
                break
            above = _parent(above)
        for above in reversed(chain):
            try:
                self._places[above] = self._find_place(above)
            except OSError:
                self._places[above] = (_Place.UNKNOWN, 0)
        return self._places[path]

    def _find_place(self, path: bytes) -> tuple[_Place, int]:
        if not path:
            # Which directory the workspace is was made sure of by whoever opened it.
            return _Place.SAME, os.fstat(self._lower.root_fd).st_ino
        place, inode = self._places[_parent(path)]
        if place is not _Place.SAME:
            return place, 0
        if path in self._mounts:
            return _Place.UNKNOWN, 0
        dir_fd = self._open(_parent(path), place, inode)
        try:
            status = os.stat(_name(path), dir_fd=dir_fd, follow_symlinks=False)
        except FileNotFoundError:
            return (_Place.ABSENT if self._was_absent(path, dir_fd) else _Place.UNKNOWN), 0
        if not stat_module.S_ISDIR(status.st_mode):
            return (_Place.ABSENT if self._is_older(status.st_ctime_ns) else _Place.UNKNOWN), 0
        fd = self._directories.open(path)
        status = os.fstat(fd)
        expected = self._expected_handle(path) if self._epoch_ns is not None else b""
        same = syscalls.file_handle(fd) == expected if expected else self._is_older(status.st_ctime_ns)
        return (_Place.SAME if same else _Place.UNKNOWN), status.st_ino

    def _expected_handle(self, path: bytes) -> bytes:
        """The handle of the lower directory that the overlay merged at `path`, empty where nothing tells."""
        entry = self._entry(path)
        if entry is not None and entry.kind is Kind.DIR:
            try:
                origin = self._upper.origin_of(self._upper_directories.open(path))
            except PermissionError:
                origin = b""
            if origin:
                return origin
        base = self._known.base(path)
        if base is not None and base.certainty is Certainty.KNOWN and base.kind is Kind.DIR:
            return base.handle
        return b""

    def _open(self, path: bytes, place: _Place, inode: int) -> int:
        """The lower directory that was judged; OSError where another has taken its place since."""
        if place is not _Place.SAME:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        fd = self._directories.open(path)
        if os.fstat(fd).st_ino != inode:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), path)
        return fd

    def _was_absent(self, path: bytes, dir_fd: int) -> bool:
        """Whether the overlay, too, never saw anything at a path where the lower, with its parent `dir_fd`, has nothing."""
        return self._settled(dir_fd) or self._was_made(path)

    def _was_made(self, path: bytes) -> bool:
        """Whether an entry was made in the overlay: the kernel marks what it copies up, but for lower hard links.

        It may still have been made in the place of a file that a person has removed since. It can only come as a new one
        then, shown as that; to call it a conflict would do so to every new file next to one that a person saves.
        """
        entry = self._entry(path)
        before = self._known.base(path)
        if entry is None or (before is not None and before.certainty is not Certainty.ABSENT):
            return False
        if entry.kind is Kind.SYMLINK:
            return True
        if entry.kind not in (Kind.FILE, Kind.DIR):
            return False
        fd = os.open(
            _name(path), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._upper_directories.open(_parent(path))
        )
        try:
            return not self._upper.is_copied_up(fd)
        finally:
            os.close(fd)

    def _settled(self, dir_fd: int) -> bool:
        """Whether a directory has the names now that it had before the mount. Asked after the name was looked up."""
        return self._is_older(os.fstat(dir_fd).st_ctime_ns)

    def _is_older(self, ctime_ns: int) -> bool:
        return self._epoch_ns is None or ctime_ns < self._epoch_ns


class _Hiding:
    """Which paths of a layer hide all that the lower has below them."""

    def __init__(self, entry: Callable[[bytes], Entry | None]) -> None:
        self._entry = entry
        self._answers: dict[bytes, bool] = {}

    def at(self, path: bytes) -> bool:
        """Whether a path, or one above it, does."""
        chain = []
        while path not in self._answers:
            chain.append(path)
            if not path:
                break
            path = _parent(path)
        answer = self._answers.get(path, False)
        for below in reversed(chain):
            if not answer:
                entry = self._entry(below)
                answer = entry is not None and (entry.opaque or entry.kind is not Kind.DIR)
            self._answers[below] = answer
        return answer

    def above(self, path: bytes) -> bool:
        """Whether a path is hidden by what stands above it."""
        return bool(path) and self.at(_parent(path))


def _is_that(stat: Stat, base: Base) -> bool:
    return (
        stat.inode == base.inode
        and stat.ctime_ns == base.ctime_ns
        and stat.mtime_ns == base.mtime_ns
        and stat.size == base.size
    )


def _parent(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _name(path: bytes) -> bytes:
    return path.rpartition(b"/")[2]
