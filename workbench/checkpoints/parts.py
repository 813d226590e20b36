"""A checkpoint's manifest in parts, so that what it costs is what was changed: the tree `m`.

::

    m/index   how many parts there are, and what all of them hold together
    m/0 …     the parts, numbered in hex, each a manifest in the format of `manifest_format`; empty ones aren't there

All that is said of the paths in one directory stands in one part: the one whose number is the CRC-32 of the directory's path,
modulo the number of parts. That number is a power of two and follows from what there is, so that equal layers have equal
trees. The index is one line of words: `workbench-manifest 2`, then `parts=256` and the like, as in `Totals`.

Manifests of before were one file, the blob `m`; they're read as one part.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import TypeVar

from workbench.checkpoints import manifest_format, objects
from workbench.checkpoints.manifest import Base, Entry, Manifest

T = TypeVar("T")
R = TypeVar("R", Entry, Base)

INDEX = b"index"

_WORDS = b"workbench-manifest 2"
_RECORDS_A_PART = 64
_MOST_PARTS = 4096

Read = Callable[[bytes, int], bytes]
"""Gives an object's content by its id and kind. Raises CheckpointError (store_corrupt), OSError."""

Add = Callable[[int, bytes], bytes]
"""Takes an object's kind and content in, and returns its id."""

Pair = tuple[Entry | None, Entry | None]
BasePair = tuple[Base | None, Base | None]


@dataclass(frozen=True, slots=True)
class Totals:
    """What a manifest holds: contents of `size` bytes, paths of `path_bytes`, `omitted` entries."""

    entries: int = 0
    bases: int = 0
    size: int = 0
    path_bytes: int = 0
    omitted: int = 0

    @property
    def parts(self) -> int:
        """Into how many parts it's divided."""
        wanted = (self.entries + self.bases) // _RECORDS_A_PART
        return min(_MOST_PARTS, 1 << max(0, wanted.bit_length() - 1))

    def after(self, difference: Difference) -> Totals:
        """What it holds once some of it is something else."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        for sign, which in ((-1, 0), (1, 1)):
            entries = [entry for pair in difference.entries if (entry := pair[which]) is not None]
            found["entries"] += sign * len(entries)
            found["bases"] += sign * sum(pair[which] is not None for pair in difference.bases)
            found["size"] += sign * sum(entry.size for entry in entries)
            found["path_bytes"] += sign * sum(len(entry.path) for entry in entries)
            found["omitted"] += sign * sum(bool(entry.omitted) for entry in entries)
        return Totals(**found)


@dataclass(frozen=True, slots=True)
class Difference:
    """What two manifests say differently: of each such path what the old one says and the new one, None for nothing."""

    entries: list[Pair]
    bases: list[BasePair]

    @classmethod
    def between(cls, old: Manifest, new: Manifest) -> Difference:
        """Compare two whole ones. Cheap where most of the new one's records are the old one's very objects."""
        return cls(_pairs(old.entries, new.entries), _pairs(old.bases, new.bases))


def _pairs(old: Mapping[bytes, T], new: Mapping[bytes, T]) -> list[tuple[T | None, T | None]]:
    if not old:
        return [(None, now) for now in new.values()]
    found: list[tuple[T | None, T | None]] = []
    for path, now in new.items():
        before = old.get(path)
        if before is not now and before != now:
            found.append((before, now))
    if len(old) + sum(pair[0] is None for pair in found) != len(new):
        found += [(before, None) for path, before in old.items() if path not in new]
    return found


class Recorded:
    """A manifest, of which no more is read from the store than is asked for. `boot_id` and `scanned_ns` as in `Manifest`."""

    def __init__(
        self,
        read: Read,
        ids: Mapping[int, bytes] | None,
        totals: Totals,
        whole: Manifest | None,
        boot_id: str,
        scanned_ns: int,
    ) -> None:
        """Use `of` or `at`. `ids` are those of the parts, None where it isn't stored in parts."""
        self.totals = totals
        self.boot_id = boot_id
        self.scanned_ns = scanned_ns
        self._read = read
        self._ids = ids
        self._whole = whole
        self._parts: dict[int, Manifest] = {}

    @classmethod
    def of(cls, manifest: Manifest) -> Recorded:
        """One that is in no store."""
        return cls(_nowhere, None, _totals(manifest), manifest, manifest.boot_id, manifest.scanned_ns)

    @classmethod
    def at(
        cls, read: Read, oid: bytes, *, is_blob: bool, whole: Manifest | None, boot_id: str, scanned_ns: int
    ) -> Recorded:
        """The one at a checkpoint's `m`; `is_blob` says that it's the one file of before, `whole` is all of it, where that
        was read already. Raises CheckpointError (store_corrupt), OSError."""
        if whole is not None:
            whole = replace(whole, boot_id=boot_id, scanned_ns=scanned_ns)
        if is_blob:
            data = b"" if whole is not None else read(oid, objects.BLOB)
            return cls.of(whole or manifest_format.from_bytes(data, boot_id=boot_id, scanned_ns=scanned_ns))
        found = objects.decode_tree(read(oid, objects.TREE))
        try:
            totals = _decode_index(read(found.pop(INDEX)[1], objects.BLOB))
            ids = {int(name, 16): part for name, (_, part) in found.items()}
        except (KeyError, ValueError) as error:
            raise objects.corrupt("a manifest has no index that can be read") from error
        return cls(read, ids, totals, whole, boot_id, scanned_ns)

    @property
    def is_whole(self) -> bool:
        """Whether all of it is in memory."""
        return self._whole is not None

    def whole(self) -> Manifest:
        """All of it. Raises CheckpointError (store_corrupt), OSError."""
        if self._whole is None:
            entries: dict[bytes, Entry] = {}
            bases: dict[bytes, Base] = {}
            for number in self._ids or ():
                part = self._part(number)
                entries |= part.entries
                bases |= part.bases
            if (len(entries), len(bases)) != (self.totals.entries, self.totals.bases):
                raise objects.corrupt("a part of a manifest is missing")
            self._whole = Manifest(_ordered(entries), _ordered(bases), self.boot_id, self.scanned_ns)
        return self._whole

    def entry(self, path: bytes) -> Entry | None:
        """What it says of a path. Raises as `whole`."""
        return self._with(path).entries.get(path)

    def base(self, path: bytes) -> Base | None:
        """The base of a path. Raises as `whole`."""
        return self._with(path).bases.get(path)

    def _with(self, path: bytes) -> Manifest:
        return self._whole or self._part(_number(path, self.totals.parts))

    def _part(self, number: int) -> Manifest:
        if number not in self._parts:
            oid = (self._ids or {}).get(number)
            data = self._read(oid, objects.BLOB) if oid is not None else None
            self._parts[number] = Manifest() if data is None else manifest_format.from_bytes(data)
        return self._parts[number]

    def edited(self, difference: Difference, add: Add) -> bytes | None:
        """The tree `m` of what this one is with some differences; None where all of it has to be written anew."""
        totals = self.totals.after(difference)
        if self._ids is None or totals.parts != self.totals.parts:
            return None
        changed: dict[int, Manifest] = {}

        def part_of(path: bytes) -> Manifest:
            number = _number(path, totals.parts)
            if number not in changed:
                part = self._part(number)
                changed[number] = Manifest(dict(part.entries), dict(part.bases))
            return changed[number]

        for entries in difference.entries:
            _apply(lambda path: part_of(path).entries, *entries)
        for bases in difference.bases:
            _apply(lambda path: part_of(path).bases, *bases)
        return _tree(totals, self._ids, changed, add)


def apart(manifest: Manifest, add: Add) -> bytes:
    """The tree `m` of a manifest."""
    totals = _totals(manifest)
    count = totals.parts
    numbers: dict[bytes, int] = {}
    parts: dict[int, Manifest] = {}

    def part_of(path: bytes) -> Manifest:
        above = _above(path)
        number = numbers.get(above)
        if number is None:
            number = numbers[above] = zlib.crc32(above) % count
        found = parts.get(number)
        if found is None:
            found = parts[number] = Manifest()
        return found

    for path, entry in manifest.entries.items():
        part_of(path).entries[path] = entry
    for path, base in manifest.bases.items():
        part_of(path).bases[path] = base
    return _tree(totals, {}, parts, add)


def changed(known: Mapping[bytes, R], pairs: Iterable[tuple[R | None, R | None]]) -> dict[bytes, R]:
    """Some records with what differs in their place, in bytewise order of path."""
    found = dict(known)
    is_ordered = True
    for old, new in pairs:
        if new is not None:
            is_ordered = is_ordered and new.path in found
            found[new.path] = new
        elif old is not None:
            found.pop(old.path, None)
    return found if is_ordered else _ordered(found)


def _ordered(records: dict[bytes, T]) -> dict[bytes, T]:
    return {path: records[path] for path in sorted(records)}


def _apply(records: Callable[[bytes], dict[bytes, R]], old: R | None, new: R | None) -> None:
    if new is not None:
        records(new.path)[new.path] = new
    elif old is not None:
        records(old.path).pop(old.path, None)


def _above(path: bytes) -> bytes:
    return path.rpartition(b"/")[0]


def _number(path: bytes, parts: int) -> int:
    return zlib.crc32(_above(path)) % parts


def _totals(manifest: Manifest) -> Totals:
    entries = manifest.entries.values()
    return Totals(
        entries=len(manifest.entries),
        bases=len(manifest.bases),
        size=sum([entry.size for entry in entries]),
        path_bytes=sum(map(len, manifest.entries)),
        omitted=sum([1 for entry in entries if entry.omitted]),
    )


def _nowhere(oid: bytes, kind: int) -> bytes:
    raise objects.corrupt(f"the object {oid.hex()} is missing")


def _tree(totals: Totals, ids: Mapping[int, bytes], changed: Mapping[int, Manifest], add: Add) -> bytes:
    ids = dict(ids)
    for number, part in changed.items():
        if part.entries or part.bases:
            ids[number] = add(objects.BLOB, manifest_format.to_bytes(part))
        else:
            ids.pop(number, None)
    told = " ".join(f"{name}={value}" for name, value in _told(totals).items()).encode()
    found = [(b"%x" % number, objects.MODE_FILE, oid) for number, oid in ids.items()]
    found.append((INDEX, objects.MODE_FILE, add(objects.BLOB, b"%s %s\n" % (_WORDS, told))))
    return add(objects.TREE, objects.encode_tree(found))


def _told(totals: Totals) -> dict[str, int]:
    return {"parts": totals.parts} | {field.name: getattr(totals, field.name) for field in fields(totals)}


def _decode_index(data: bytes) -> Totals:
    if not data.startswith(_WORDS + b" "):
        raise objects.corrupt("a manifest is of another kind or version")
    told = dict(word.split("=", 1) for word in data[len(_WORDS) :].decode("ascii").split())
    totals = Totals(**{field.name: int(told[field.name]) for field in fields(Totals)})
    if int(told["parts"]) != totals.parts:
        raise objects.corrupt("a manifest is divided otherwise than it says")
    return totals
