"""Reading session files piece by piece: both ends for a listing, line after line for everything."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

from workbench.protocol.signal import CancelSignal
from workbench.transcripts.adapter import ReadProgress
from workbench.transcripts.homes import join
from workbench.transcripts.models import Place
from workbench.transcripts.platform import SessionEntry, SessionPlatform, SessionStat, link_refused
from workbench.transcripts.values import last_moment_in, mapping, parse_all, parse_fast, parse_partial
from workbench.transcripts.zstd import MAGIC

T = TypeVar("T")

END_BYTES = 65_536
_CHUNK_BYTES = 1 << 20
_LONGEST_LINE = 64 << 20
_DEEPEST = 12


@dataclass(slots=True)
class Ends:
    """What both ends of a file hold: whole records, or, where none fits, what its cut beginning tells.

    `head` and `tail` are objects in the file's order, none in both. `last_at` is the latest time that the raw bytes of
    the tail name. `value` is what a file that is one document begins with.
    """

    head: list[dict[str, Any]]
    tail: list[dict[str, Any]] = field(default_factory=list)
    last_at: datetime | None = None
    value: Any = None

    @property
    def records(self) -> list[dict[str, Any]]:
        """Those of both ends."""
        return self.head + self.tail


@dataclass(slots=True)
class Line:
    """One line of a file, without its end, which the last one may not have. `problem` says why it's not here."""

    offset: int
    data: bytes
    problem: str = ""
    ended: bool = True


@dataclass(slots=True)
class Record:
    """One JSON object of a file, or, with a `problem`, what stands there instead."""

    source: Place
    value: dict[str, Any]
    problem: str = ""


@asynccontextmanager
async def closing(iterator: AsyncIterator[T]) -> AsyncIterator[AsyncIterator[T]]:
    """As `contextlib.aclosing`, of an iterator of somebody else's too, which may have nothing to close."""
    try:
        yield iterator
    finally:
        if isinstance(iterator, AsyncGenerator):
            await iterator.aclose()


def raise_if_cancelled(signal: CancelSignal | None) -> None:
    """Raises the signal's reason once it's cancelled."""
    if signal is not None:
        signal.raise_if_cancelled()


async def read_ends(platform: SessionPlatform, path: str, size: int) -> Ends:
    """At most 64 KB from each end of a file of lines. Of a compressed one the beginning is all that can be told.

    Raises OSError.
    """
    data = await platform.fs.read(path, offset=0, length=END_BYTES)
    if data.startswith(MAGIC):
        return Ends(_head(await _decompressed(platform, path, data), whole=False))
    if len(data) < END_BYTES or size <= END_BYTES:
        return Ends(_head(data, whole=True), last_at=last_moment_in(data))
    start = max(size - END_BYTES, END_BYTES)
    end = await platform.fs.read(path, offset=start, length=END_BYTES)
    # Where nothing lies between, the line that is cut at the boundary is whole.
    if start == END_BYTES:
        return Ends(_head(data + end, whole=True), last_at=last_moment_in(end))
    first, _, rest = end.partition(b"\n")
    return Ends(_head(data, whole=False), _objects(rest.split(b"\n")), last_moment_in(end or first))


async def read_document_ends(platform: SessionPlatform, path: str, size: int) -> Ends:
    """At most 64 KB from each end of a file that is one document. Raises OSError."""
    data = await platform.fs.read(path, offset=0, length=END_BYTES)
    value = parse_partial(data)
    if size <= END_BYTES:
        return Ends([], last_at=last_moment_in(data), value=value)
    end = await platform.fs.read(path, offset=max(size - END_BYTES, END_BYTES), length=END_BYTES)
    return Ends([], last_at=last_moment_in(end), value=value)


async def _decompressed(platform: SessionPlatform, path: str, data: bytes) -> bytes:
    if platform.decompress is None:
        raise OSError("this host can't decode a compressed session")

    async def given() -> AsyncIterator[bytes]:
        yield data

    pieces, size = [], 0
    async with closing(platform.decompress(given())) as decompressed:
        async for piece in decompressed:
            pieces.append(piece)
            size += len(piece)
            if size >= END_BYTES:
                break
    return b"".join(pieces)[:END_BYTES]


def _head(data: bytes, *, whole: bool) -> list[dict[str, Any]]:
    lines = data.split(b"\n")
    if whole:
        return _objects(lines)
    found = _objects(lines[:-1])
    if not found and (cut := mapping(parse_partial(lines[0]))):
        return [cut]
    return found


def _objects(lines: list[bytes]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for line in lines:
        if line:
            try:
                found.extend(value for value, _, _ in parse_all(line) if isinstance(value, dict))
            except ValueError:
                continue
    return found


class Content:
    """A file's content, of what it holds when the reading starts, decompressed where it is compressed.

    `compressed` says whether it is, once the first of it has been read.
    """

    def __init__(
        self,
        platform: SessionPlatform,
        path: str,
        *,
        progress: ReadProgress | None = None,
        signal: CancelSignal | None = None,
    ) -> None:
        self._platform, self._path = platform, path
        self._progress, self._signal = progress, signal
        self.compressed = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """The bytes, in pieces of bounded size. Raises OSError, and the signal's reason."""
        chunks = _chunks(self._platform, self._path, self._progress, self._signal)
        first = await anext(chunks, b"")
        self.compressed = first.startswith(MAGIC)
        if not self.compressed:
            yield first
            async for chunk in chunks:
                yield chunk
            return
        if self._platform.decompress is None:
            raise OSError("this host can't decode a compressed session")

        async def again() -> AsyncIterator[bytes]:
            yield first
            async for chunk in chunks:
                yield chunk

        async for chunk in self._platform.decompress(again()):
            raise_if_cancelled(self._signal)
            yield chunk

    async def lines(self) -> AsyncIterator[list[Line]]:
        """The lines, a chunk's at a time; one of more than 64 MB is left out, with its problem. Raises as `chunks`."""
        carried: list[bytes] = []
        offset, carried_size, too_long = 0, 0, False
        async for chunk in self.chunks():
            first, *others = chunk.split(b"\n")
            carried_size += len(first)
            if carried_size > _LONGEST_LINE:
                carried, too_long = [], True
            elif not too_long:
                carried.append(first)
            if not others:
                continue
            lines = [_line(offset, carried, too_long)]
            offset += carried_size + 1
            *whole, last = others
            for data in whole:
                lines.append(Line(offset, data))
                offset += len(data) + 1
            carried, carried_size, too_long = [last], len(last), False
            yield lines
        if carried_size:
            line = _line(offset, carried, too_long)
            line.ended = False
            yield [line]


def _line(offset: int, pieces: list[bytes], too_long: bool) -> Line:
    return Line(offset, b"".join(pieces), "longer than 64 MB" if too_long else "")


async def _chunks(
    platform: SessionPlatform, path: str, progress: ReadProgress | None, signal: CancelSignal | None
) -> AsyncIterator[bytes]:
    raise_if_cancelled(signal)
    # Most files are one chunk, whose length tells their size.
    chunk = await platform.fs.read(path, offset=0, length=_CHUNK_BYTES)
    offset = size = len(chunk)
    if size == _CHUNK_BYTES:
        size = max(size, (await platform.fs.stat(path)).size)
    while chunk:
        if progress is not None:
            progress(offset, size)
        yield chunk
        raise_if_cancelled(signal)
        if offset >= size:
            return
        chunk = await platform.fs.read(path, offset=offset, length=min(_CHUNK_BYTES, size - offset))
        offset += len(chunk)


async def read_records(
    platform: SessionPlatform,
    path: str,
    *,
    progress: ReadProgress | None = None,
    signal: CancelSignal | None = None,
    wanted: Callable[[bytes], bool] | None = None,
) -> AsyncIterator[Iterator[Record]]:
    """The JSON objects of a file of lines, a chunk's at a time; what is none comes with its problem.

    Lines that aren't `wanted` are passed over, unparsed.

    A last line without an end that isn't whole yet is left out: its writer is still at it. Raises OSError, and the
    signal's reason.
    """
    content = Content(platform, path, progress=progress, signal=signal)
    async for lines in content.lines():
        yield _records_in(path, lines, content.compressed, wanted)


def _records_in(
    path: str, lines: list[Line], compressed: bool, wanted: Callable[[bytes], bool] | None
) -> Iterator[Record]:
    # One by one: a chunk's records alive together are work for the garbage collector, as much as for the parser.
    for line in lines:
        if line.data and wanted is not None and not wanted(line.data):
            continue
        if line.problem:
            yield from _records_of(path, line, compressed)
        elif line.data:
            try:
                value = parse_fast(line.data)
            except ValueError:
                value = None  # the slower way tells more of it
            if isinstance(value, dict):
                yield Record(Place(path, line.offset, len(line.data), compressed), value)
            else:
                yield from _records_of(path, line, compressed)


def _records_of(path: str, line: Line, compressed: bool) -> list[Record]:
    """The records of a line that isn't one object and nothing else."""
    records = []
    problem = line.problem
    if not problem:
        try:
            for value, at, length in parse_all(line.data):
                source = Place(path, line.offset + at, length, compressed)
                problem = "" if isinstance(value, dict) else "not an object"
                records.append(Record(source, mapping(value), problem))
            return records
        except ValueError as error:
            if not line.ended:
                return records
            problem = f"not JSON: {error}"
    source = Place(path, line.offset, len(line.data), compressed)
    return [*records, Record(source, {}, problem)]


async def read_document(
    platform: SessionPlatform, path: str, *, progress: ReadProgress | None = None, signal: CancelSignal | None = None
) -> bytes:
    """A file that is one document, whole, up to 64 MB.

    Raises:
        OSError: it can't be read, or is larger.
    """
    size = (await platform.fs.stat(path)).size
    if size > _LONGEST_LINE:
        raise OSError(f"a document of {size:,} bytes is larger than 64 MB")
    return b"".join([chunk async for chunk in _chunks(platform, path, progress, signal)])


async def small_document(platform: SessionPlatform, path: str) -> dict[str, Any]:
    """The object that a small file beside a session holds; {} where there is none, or it isn't one."""
    try:
        data = await platform.fs.read(path, length=END_BYTES)
    except OSError:
        return {}
    return mapping(parse_partial(data))


async def walk(
    platform: SessionPlatform, root: str, *, depth: int = _DEEPEST, inside: int = 0, signal: CancelSignal | None = None
) -> list[tuple[str, SessionEntry | OSError]]:
    """Every file below a root, with its path, in the order of names; a directory that can't be listed with its error.

    The root may be reached through symlinks: people keep an agent's directory elsewhere. Below it none is followed, since
    the agent could have made it; a directory's is told as an error, but for one that leads to what is walked anyway, and a
    file's can't be read. The last `inside` names of the root are below such a root themselves: none of them may be a
    symlink, and those that are found aren't told. Raises the signal's reason.
    """
    found: list[tuple[str, SessionEntry | OSError]] = []
    seen: set[str] = set()
    links: list[tuple[str, SessionStat]] = []
    place = root
    for _ in range(inside):
        try:
            if (await platform.fs.stat(place)).is_link:
                return []
        except OSError as error:
            return [(root, error)]
        place = place.rpartition("/")[0]
    pending = [(root, 0)]
    while pending:
        raise_if_cancelled(signal)
        directory, level = pending.pop()
        try:
            entries = await platform.fs.list(directory)
        except OSError as error:
            found.append((directory, error))
            continue
        below = []
        for entry in entries:
            path = join(directory, entry.name)
            if entry.stat.is_link and (inside or entry.stat.kind == "directory"):
                if level < depth:
                    links.append((path, entry.stat))
            elif entry.stat.kind == "file":
                found.append((path, entry))
            elif entry.stat.kind == "directory" and level < depth and _is_new(entry.stat, seen):
                below.append((path, level + 1))
        pending.extend(reversed(below))
    if links and not inside:
        _is_new(await platform.fs.stat(root), seen)
        found.extend((path, link_refused(path)) for path, stat in links if _is_new(stat, seen))
    return found


def _is_new(stat: SessionStat, seen: set[str]) -> bool:
    if stat.identity is None:
        return True
    new = stat.identity not in seen
    seen.add(stat.identity)
    return new
