"""A change set as text: git's patch format that `git apply` takes, `--stat`, and `--name-status`."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from workbench.errors import ConflictError
from workbench.review.bases import BIG
from workbench.review.changeset import Change, ChangeKind, State
from workbench.review.lines import Hunk, changed_ranges, hunks, split
from workbench.vfs import paths
from workbench.vfs.storage import Kind, Storage

BINARY_PROBE = 8000
"""Bytes in which git looks for a NUL (FIRST_FEW_BYTES in its xdiff-interface.c)."""
TEXT_LIMIT = 32 << 20
"""Bytes beyond which a file isn't compared line by line, as git does beyond core.bigFileThreshold."""
_CHUNK = 1 << 16
_ROW = 52
"""Bytes of compressed data on one line of a binary patch."""
_ABBREVIATED = 7
_NO_BLOB = "0" * 40

_QUOTED = re.compile(rb'[\x00-\x1f"\\\x7f-\xff]')
_ESCAPES = {7: b"\\a", 8: b"\\b", 9: b"\\t", 10: b"\\n", 11: b"\\v", 12: b"\\f", 13: b"\\r", 34: b'\\"', 92: b"\\\\"}


class Contents(Protocol):
    """What keeps the contents of an upper layer: `CheckpointStore` does."""

    def open(self, blob: str, /) -> BinaryIO:
        """A blob's content as a stream. Raises CheckpointError."""
        ...


def unified(
    changes: Iterable[Change],
    lower: Storage,
    store: Contents,
    *,
    binary: bool = True,
    rendered: Callable[[Hunk], Iterable[bytes]] = Hunk.render,
) -> Iterator[bytes]:
    """The changes as one patch in git's format, in pieces that each end a line.

    A binary file is a `GIT binary patch` that applies in both directions; with `binary` False only a line that says it
    differs. What git has no words for (directories that come or go empty) isn't in it; modes beyond the executable bit
    are named where they're all that changed. `rendered` shows the hunks for people, who don't apply them. Raises
    ConflictError where the lower no longer holds what was compared, OSError, and CheckpointError.
    """
    for change in changes:
        for diff in _diffs(change, lower, store):
            yield from diff.render(binary=binary, rendered=rendered)


def hunks_of(change: Change, lower: Storage, store: Contents) -> tuple[Hunk, ...]:
    """The hunks of a change's text, none where it's binary or equal. Raises as `unified`."""
    return tuple(hunk for diff in _diffs(change, lower, store) for hunk in hunks(*diff.texts()))


def is_binary(change: Change, lower: Storage, store: Contents) -> bool:
    """Whether a change is shown without its lines: a NUL in the first 8,000 bytes of either side, too long, or unreadable.

    Raises as `unified`.
    """
    return any(diff.is_binary() for diff in _diffs(change, lower, store))


def name_status(changes: Iterable[Change], *, nul: bool = False) -> Iterator[bytes]:
    """A letter and a name for each change, as `git diff --name-status`, and with `nul` its `-z`.

    A directory's name ends in `/`.
    """
    for change in changes:
        names = [change.renamed_from, change.path] if change.renamed_from else [change.path]
        shown = [name + b"/" if _is_directory(change) else name for name in names]
        fields = [_letter(change), *(shown if nul else map(quoted, shown))]
        yield b"".join(field + b"\0" for field in fields) if nul else b"\t".join(fields) + b"\n"


def stat(changes: Iterable[Change], lower: Storage, store: Contents, *, width: int = 80) -> Iterator[bytes]:
    """A line for each change with its number of lines and a graph, and a sum, as `git diff --stat`.

    `width` is in columns. Raises as `unified`.
    """
    rows = [_row(change, lower, store) for change in changes]
    if not rows:
        return
    columns = _columns(rows, width)
    for row in rows:
        yield row.render(columns)
    added, deleted = _summed(rows)
    total = [f"{len(rows)} file{'s' if len(rows) != 1 else ''} changed"]
    if added or not deleted:
        total.append(f"{added} insertion{'s' if added != 1 else ''}(+)")
    if deleted or not added:
        total.append(f"{deleted} deletion{'s' if deleted != 1 else ''}(-)")
    yield f" {', '.join(total)}\n".encode()


def counted_lines(changes: Iterable[Change], lower: Storage, store: Contents) -> tuple[int, int]:
    """How many lines come and go, none in what is binary. Raises as `unified`."""
    rows = [_row(change, lower, store) for change in changes]
    return _summed(rows)


def quoted(name: bytes) -> bytes:
    """A name as git writes it with core.quotePath: in double quotes with C escapes where it has anything odd."""
    if not _QUOTED.search(name):
        return name
    return b'"' + _QUOTED.sub(lambda found: _ESCAPES.get(found[0][0]) or b"\\%03o" % found[0][0], name) + b'"'


# One file


@dataclass(frozen=True, slots=True)
class _Side:
    """One side of a diff: what stands there, and how to open its content."""

    path: bytes
    state: State
    open: Callable[[], AbstractContextManager[BinaryIO]]
    in_lower: bool

    @property
    def mode(self) -> int:
        if self.state.kind is Kind.SYMLINK:
            return 0o120000
        return 0o100755 if self.state.mode & 0o100 else 0o100644

    def beginning(self) -> bytes | None:
        """Its first bytes, None where it can't be read: somebody else's in the real workspace."""
        try:
            with self.open() as file:
                return file.read(BINARY_PROBE)
        except PermissionError:
            return None

    def content(self) -> bytes:
        return b"".join(self.chunks())

    def chunks(self) -> Iterator[bytes]:
        """The content piece by piece. Raises ConflictError at its end where the lower isn't what was compared."""
        length = 0
        found = hashlib.sha1(b"blob %d\0" % self.state.size, usedforsecurity=False)
        with self.open() as file:
            while data := file.read(_CHUNK):
                length += len(data)
                if self.in_lower:
                    found.update(data)
                yield data
        known = "" if self.state.blob.startswith(BIG) else self.state.blob
        if self.in_lower and (length != self.state.size or (known and found.hexdigest() != known)):
            raise ConflictError(
                f"'{paths.display(self.path)}' changed in the real workspace while it was compared.",
                paths=(self.path,),
                hint="Look again.",
            )

    def blob(self) -> str:
        """The git blob id of the content."""
        if self.state.blob and not self.state.blob.startswith(BIG):
            return self.state.blob
        found = hashlib.sha1(b"blob %d\0" % self.state.size, usedforsecurity=False)
        for data in self.chunks():
            found.update(data)
        return found.hexdigest()


@dataclass(frozen=True, slots=True)
class _Diff:
    """One `diff --git` section; a side is None where no file stands."""

    old: _Side | None
    new: _Side | None
    similarity: int = 0
    """Of a rename, in percent."""

    @property
    def is_equal(self) -> bool:
        old, new = self.old, self.new
        return old is not None and new is not None and bool(old.state.blob) and old.state.blob == new.state.blob

    def is_binary(self) -> bool:
        sides = [side for side in (self.old, self.new) if side is not None]
        for side in sides:
            beginning = side.beginning()
            if side.state.size > TEXT_LIMIT or beginning is None or b"\0" in beginning:
                return True
        return False

    def is_closed(self) -> bool:
        """Whether a side can't be read, so that nothing can be told but that it differs."""
        return any(side is not None and side.beginning() is None for side in (self.old, self.new))

    def texts(self) -> tuple[bytes, bytes]:
        """Both contents; two empty ones where they're equal or not text."""
        if self.is_equal or self.is_binary():
            return b"", b""
        return self.old.content() if self.old else b"", self.new.content() if self.new else b""

    def render(self, *, binary: bool, rendered: Callable[[Hunk], Iterable[bytes]]) -> Iterator[bytes]:
        old, new = self.old, self.new
        old_name = old.path if old else new.path if new else b""
        new_name = new.path if new else old_name
        yield b"diff --git %s %s\n" % (quoted(b"a/" + old_name), quoted(b"b/" + new_name))
        yield from self._modes()
        if self.similarity:
            yield b"similarity index %d%%\n" % self.similarity
            yield b"rename from %s\n" % quoted(old_name)
            yield b"rename to %s\n" % quoted(new_name)
        if self.is_equal:
            return
        is_binary = self.is_binary()
        is_closed = is_binary and self.is_closed()
        if not is_closed:
            yield self._index_line(full=is_binary and binary)
        if is_binary and binary and not is_closed:
            yield from self._binary_patch()
        elif is_binary:
            names = (
                quoted(b"a/" + old_name) if old else b"/dev/null",
                quoted(b"b/" + new_name) if new else b"/dev/null",
            )
            yield b"Binary files %s and %s differ\n" % names
        else:
            found = hunks(*self.texts())
            if found:
                yield b"--- %s\n" % (_labelled(b"a/" + old_name) if old else b"/dev/null")
                yield b"+++ %s\n" % (_labelled(b"b/" + new_name) if new else b"/dev/null")
            for hunk in found:
                yield from rendered(hunk)

    def _modes(self) -> Iterator[bytes]:
        old, new = self.old, self.new
        if old is None and new is not None:
            yield b"new file mode %06o\n" % new.mode
        elif new is None and old is not None:
            yield b"deleted file mode %06o\n" % old.mode
        elif old is not None and new is not None:
            before, after = old.mode, new.mode
            if before == after and old.state.kind is Kind.FILE:
                # Modes that git has no word for; `git apply` takes them, and keeps what it can.
                before, after = 0o100000 | old.state.mode, 0o100000 | new.state.mode
            if before != after:
                yield b"old mode %06o\nnew mode %06o\n" % (before, after)

    def _index_line(self, *, full: bool) -> bytes:
        length = 40 if full else _ABBREVIATED
        ids = [(side.blob() if side else _NO_BLOB)[:length].encode() for side in (self.old, self.new)]
        old, new = self.old, self.new
        mode = b" %06o" % old.mode if old is not None and new is not None and old.mode == new.mode else b""
        return b"index %s..%s%s\n" % (*ids, mode)

    def _binary_patch(self) -> Iterator[bytes]:
        yield b"GIT binary patch\n"
        for side in (self.new, self.old):
            yield b"literal %d\n" % (side.state.size if side else 0)
            yield from _literal(side.chunks() if side else ())
            yield b"\n"


def _diffs(change: Change, lower: Storage, store: Contents) -> Iterator[_Diff]:
    old = _old_side(change.renamed_from or change.path, change.old, lower)
    new = _new_side(change.path, change.new, store)
    if old is not None and new is not None and old.state.kind is not new.state.kind:
        # What changes its kind goes and comes, for git too.
        yield _Diff(old, None)
        yield _Diff(None, new)
    elif old is not None or new is not None:
        yield _Diff(old, new, change.similarity if change.kind is ChangeKind.RENAMED else 0)


def _old_side(path: bytes, state: State | None, lower: Storage) -> _Side | None:
    if state is None or state.kind not in (Kind.FILE, Kind.SYMLINK):
        return None
    if state.kind is Kind.SYMLINK:
        return _Side(path, state, lambda: io.BytesIO(lower.readlink(path)), in_lower=True)
    return _Side(path, state, lambda: lower.open(path), in_lower=True)


def _new_side(path: bytes, state: State | None, store: Contents) -> _Side | None:
    if state is None or state.kind not in (Kind.FILE, Kind.SYMLINK):
        return None
    return _Side(path, state, lambda: store.open(state.blob), in_lower=False)


def _labelled(name: bytes) -> bytes:
    # A tab ends a name with spaces, for readers that take what follows for a date.
    return quoted(name) + (b"\t" if b" " in name else b"")


def _literal(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Compressed data in git's base 85, a line for 52 bytes, each led by a letter for its length."""
    compressor = zlib.compressobj(zlib.Z_BEST_SPEED)
    waiting = b""
    for data in chunks:
        waiting += compressor.compress(data)
        while len(waiting) >= _ROW:
            yield _row85(waiting[:_ROW])
            waiting = waiting[_ROW:]
    waiting += compressor.flush()
    for at in range(0, len(waiting), _ROW):
        yield _row85(waiting[at : at + _ROW])


def _row85(data: bytes) -> bytes:
    length = len(data)
    letter = length + (ord("A") - 1 if length <= 26 else ord("a") - 27)
    return bytes((letter,)) + base64.b85encode(data, pad=True) + b"\n"


# Tables


@dataclass(frozen=True, slots=True)
class _Columns:
    name: int
    number: int
    graph: int
    most: int


@dataclass(frozen=True, slots=True)
class _Row:
    name: bytes
    added: int
    deleted: int
    sizes: tuple[int, int] | None
    """The old and new size in bytes, of a binary file."""

    def render(self, columns: _Columns) -> bytes:
        name = self.name
        if len(name) > columns.name:
            name = name[len(name) - columns.name + 3 :]
            slash = name.find(b"/")
            name = b"..." + (name[slash:] if slash >= 0 else name)
        start = b" " + name.ljust(columns.name) + b" | "
        if self.sizes is not None:
            sizes = b" %d -> %d bytes" % self.sizes if self.sizes[0] or self.sizes[1] else b""
            return start + b"Bin".rjust(columns.number) + sizes + b"\n"
        total = self.added + self.deleted
        plus, minus = self._graph(columns)
        graph = b" " + b"+" * plus + b"-" * minus if total else b""
        return start + b"%*d" % (columns.number, total) + graph + b"\n"

    def _graph(self, columns: _Columns) -> tuple[int, int]:
        """`scale_linear` and what is around it in git's diff.c: whatever changed is seen."""
        added, deleted = self.added, self.deleted
        if columns.graph > columns.most:
            return added, deleted
        total = _scaled(added + deleted, columns)
        if total < 2 and added and deleted:
            total = 2
        if added < deleted:
            plus = _scaled(added, columns)
            return plus, total - plus
        minus = _scaled(deleted, columns)
        return total - minus, minus


def _scaled(lines: int, columns: _Columns) -> int:
    return 1 + lines * (columns.graph - 1) // columns.most if lines else 0


def _columns(rows: list[_Row], width: int) -> _Columns:
    """`show_stats` in git's diff.c: the graph gives way first, down to three eighths, then the names."""
    most = max(row.added + row.deleted for row in rows)
    name = max(len(row.name) for row in rows)
    sizes = [row.sizes for row in rows if row.sizes is not None]
    binary = max((14 + len(str(old)) + len(str(new)) for old, new in sizes), default=0)
    number = max(len(str(most)), 3 if sizes else 1)
    width = max(width, 16 + 6 + number)
    graph = most if most + 4 > binary else binary - 4
    if name + number + 6 + graph > width:
        share = width * 3 // 8 - number - 6
        if graph > share:
            graph = max(share, 6)
        if name > width - number - 6 - graph:
            name = width - number - 6 - graph
        else:
            graph = width - number - 6 - name
    return _Columns(name, number, graph, most)


def _row(change: Change, lower: Storage, store: Contents) -> _Row:
    name = _renaming(change.renamed_from, change.path) if change.renamed_from else quoted(change.path)
    if _is_directory(change):
        return _Row(quoted(change.path + b"/"), 0, 0, None)
    diffs = list(_diffs(change, lower, store))
    if any(diff.is_binary() and not diff.is_equal for diff in diffs):
        sizes = (change.old.size if change.old else 0, change.new.size if change.new else 0)
        return _Row(name, 0, 0, sizes)
    ranges = [one for diff in diffs for one in changed_ranges(*map(split, diff.texts()))]
    added = sum(new_to - new_from for _, _, new_from, new_to in ranges)
    return _Row(name, added, sum(old_to - old_from for old_from, old_to, _, _ in ranges), None)


def _summed(rows: Iterable[_Row]) -> tuple[int, int]:
    found = list(rows)
    return sum(row.added for row in found), sum(row.deleted for row in found)


def _renaming(old: bytes, new: bytes) -> bytes:
    """`OLD => NEW` with what both begin and end with said once (`pprint_rename` in git's diff.c)."""
    if quoted(old) != old or quoted(new) != new:
        return quoted(old) + b" => " + quoted(new)
    prefix = 0
    for at, (left, right) in enumerate(zip(old, new, strict=False)):
        if left != right:
            break
        if left == 0x2F:
            prefix = at + 1
    suffix = 0
    # The slash that ends the prefix may begin the suffix too.
    room = min(len(old), len(new)) - prefix + bool(prefix)
    for length in range(1, room + 1):
        if old[-length] != new[-length]:
            break
        if old[-length] == 0x2F:
            suffix = length
    if not prefix and not suffix:
        return old + b" => " + new
    old_middle, new_middle = old[prefix : max(prefix, len(old) - suffix)], new[prefix : max(prefix, len(new) - suffix)]
    return old[:prefix] + b"{" + old_middle + b" => " + new_middle + b"}" + old[len(old) - suffix :]


def _letter(change: Change) -> bytes:
    if change.kind is ChangeKind.RENAMED:
        return b"R%03d" % change.similarity
    if change.kind is ChangeKind.KIND:
        if change.old is not None and change.old.kind is Kind.DIR:
            return b"A"
        return b"D" if change.new is not None and change.new.kind is Kind.DIR else b"T"
    return {ChangeKind.ADDED: b"A", ChangeKind.DELETED: b"D"}.get(change.kind, b"M")


def _is_directory(change: Change) -> bool:
    return all(state is None or state.kind is Kind.DIR for state in (change.old, change.new))
