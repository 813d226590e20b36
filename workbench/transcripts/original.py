"""Reading a record back as its agent wrote it."""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from workbench.protocol.signal import CancelSignal
from workbench.transcripts.adapter import ReadProgress
from workbench.transcripts.files import read_failed
from workbench.transcripts.models import (
    DocumentPointer,
    LinePointer,
    Original,
    ReadFailed,
    ReadOriginalError,
    RowPointer,
    SessionNotFound,
    SourceChanged,
    SourcePointer,
)
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import Content, read_document
from workbench.transcripts.values import mapping, parse, without_surrogates

_TEXT = (".md", ".txt")  # of agents whose records are no JSON: their text


async def read_original(
    platform: SessionPlatform,
    source: SourcePointer,
    *,
    progress: ReadProgress | None = None,
    signal: CancelSignal | None = None,
) -> Original | ReadOriginalError:
    """The record that a source pointer names, parsed; of a database's row its columns, JSON in them parsed.

    Failures are values: SourceChanged where those bytes are no longer one JSON value. Raises the signal's reason.
    """
    if signal is not None:
        signal.raise_if_cancelled()
    try:
        match source:
            case LinePointer():
                data = await _line(platform, source, progress, signal)
                if source.path.endswith(_TEXT):
                    return Original(value=data.decode("utf-8", "replace"))
                return Original(value=parse(data))
            case DocumentPointer():
                data = await read_document(platform, source.path, progress=progress, signal=signal)
                return Original(value=resolve(parse(data), source.pointer))
            case RowPointer():
                return await _row(platform, source)
    except (ValueError, LookupError):
        return SourceChanged(path=source.path)
    except (FileNotFoundError, NotADirectoryError):
        return SessionNotFound(path=source.path)
    except OSError as error:
        return read_failed(source.path, error)


async def _line(
    platform: SessionPlatform, source: LinePointer, progress: ReadProgress | None, signal: CancelSignal | None
) -> bytes:
    if not source.compressed:
        data = await platform.fs.read(source.path, offset=source.offset, length=source.length)
        if progress is not None:
            progress(len(data), source.length)
        return data
    pieces, at, end = [], 0, source.offset + source.length
    async with aclosing(Content(platform, source.path, progress=progress, signal=signal).chunks()) as chunks:
        async for chunk in chunks:
            pieces.append(chunk[max(0, source.offset - at) : max(0, end - at)])
            at += len(chunk)
            if at >= end:
                break
    return b"".join(pieces)


def resolve(value: Any, pointer: str) -> Any:
    """What a JSON pointer names in a document. Raises LookupError, ValueError where that is nothing."""
    for token in pointer.split("/")[1:]:
        name = token.replace("~1", "/").replace("~0", "~")
        value = value[int(name)] if isinstance(value, list) else mapping(value)[name]
    return value


async def _row(platform: SessionPlatform, source: RowPointer) -> Original | ReadOriginalError:
    if platform.sqlite is None:
        return ReadFailed(path=source.path, message="this host has no SQLite")
    await platform.fs.stat(source.path)
    table = source.table.replace('"', '""')
    columns = [row async for row in platform.sqlite.rows(source.path, f'PRAGMA table_info("{table}")')]
    key = next((row[1] for row in columns if row[5]), "rowid")
    found = [
        row
        async for row in platform.sqlite.rows(
            source.path, f'SELECT * FROM "{table}" WHERE "{key!s}" = ? LIMIT 1', (source.key,)
        )
    ]
    if not found:
        return SourceChanged(path=source.path)
    return Original(value={column[1]: _column(value) for column, value in zip(columns, found[0], strict=True)})


def _column(value: object) -> Any:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "replace")
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return parse(value.encode("utf-8", "replace"))
        except ValueError:
            return value
    return without_surrogates(value)
