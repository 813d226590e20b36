"""Git's index file, read as data: which paths are tracked, and what as."""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterator
from dataclasses import dataclass

_STAT_LENGTH = 40
_MODE_OFFSET = 24
_EXTENDED = 0x4000
_STAGE_MASK = 0xB000
"""Assume-valid and the merge stage; the rest of the flags is the name's length, and that an extended word follows."""
_NAME_MASK = 0x0FFF
_DIRECTORY = 0o040000


class UnreadableIndexError(ValueError):
    """An index in a form that isn't read here: a split one, an unknown version, a damaged one."""


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """A tracked path; `mode` is git's (0o160000 for a submodule), `flags` assume-valid, stage and the extended word."""

    path: bytes
    mode: int
    id: bytes
    flags: int


def read_index(data: bytes) -> list[IndexEntry]:
    """Parse an index of version 2 to 4, with SHA-1 or SHA-256 ids (git's Documentation/gitformat-index).

    Raises UnreadableIndexError.
    """
    failure = "not an index"
    for length in (20, 32):
        try:
            entries, end = _entries(data, length)
            for name in _extensions(data, end, length):
                # Half of a split index stands in another file.
                if name == b"link":
                    raise UnreadableIndexError("a split index")
                if not name.isalpha():
                    raise UnreadableIndexError("extensions are damaged")
            return entries
        except (struct.error, IndexError, ValueError) as error:
            failure = str(error)
    raise UnreadableIndexError(failure)


def _entries(data: bytes, id_length: int) -> tuple[list[IndexEntry], int]:
    signature, version, count = struct.unpack_from(">4sLL", data)
    if signature != b"DIRC" or version not in (2, 3, 4):
        raise UnreadableIndexError("not an index of version 2 to 4")
    entries: list[IndexEntry] = []
    at = 12
    previous = b""
    for _ in range(count):
        (mode,) = struct.unpack_from(">L", data, at + _MODE_OFFSET)
        name_at = at + _STAT_LENGTH + id_length + 2
        identity = data[at + _STAT_LENGTH : name_at - 2]
        (flags,) = struct.unpack_from(">H", data, name_at - 2)
        extended = 0
        if flags & _EXTENDED:
            (extended,) = struct.unpack_from(">H", data, name_at)
            name_at += 2
        if version == 4:
            drop, name_at = _variable(data, name_at)
            if drop > len(previous):
                raise UnreadableIndexError("names are damaged")
            end = data.index(b"\0", name_at)
            path = previous[: len(previous) - drop] + data[name_at:end]
            at = end + 1
        else:
            end = data.index(b"\0", name_at) if flags & _NAME_MASK == _NAME_MASK else name_at + (flags & _NAME_MASK)
            path = data[name_at:end]
            # An entry is padded with one to eight NULs to a multiple of eight.
            at += (end - at + 8) & ~7
            if data[end] or b"\0" in path:
                raise UnreadableIndexError("names are damaged")
        if path < previous or not path:
            raise UnreadableIndexError("names are out of order")
        entries.append(IndexEntry(path, mode, identity, (flags & _STAGE_MASK) | extended << 16))
        previous = path
    return entries, at


def _variable(data: bytes, at: int) -> tuple[int, int]:
    """The offset encoding of pack files (`decode_varint` in git's varint.c)."""
    byte = data[at]
    at += 1
    value = byte & 0x7F
    while byte & 0x80:
        byte = data[at]
        at += 1
        value = ((value + 1) << 7) | (byte & 0x7F)
    return value, at


def _extensions(data: bytes, at: int, id_length: int) -> Iterator[bytes]:
    while at < len(data) - id_length:
        name, length = struct.unpack_from(">4sL", data, at)
        yield name
        at += 8 + length


class TrackedPaths:
    """The paths of an index; one whose index can't be read tracks everything."""

    def __init__(self, entries: list[IndexEntry] | None) -> None:
        self._all = entries is None
        listed = entries or []
        self._paths = sorted({entry.path for entry in listed})
        # A sparse index has whole directories as entries, their names ending in "/".
        self._directories = {entry.path.rstrip(b"/") for entry in listed if entry.mode == _DIRECTORY}

    def __contains__(self, path: bytes) -> bool:
        """Whether a path is tracked: itself, something below it, or a directory of a sparse index above it."""
        if self._all:
            return True
        at = bisect.bisect_left(self._paths, path)
        if at < len(self._paths) and self._paths[at] == path:
            return True
        below = path + b"/"
        at = bisect.bisect_left(self._paths, below)
        if at < len(self._paths) and self._paths[at].startswith(below):
            return True
        return bool(self._directories) and any(
            path[:position] in self._directories for position, byte in enumerate(path) if byte == 0x2F
        )
