"""The packs of a store, read back by object id.

Formats: gitformat-pack(5), packs and indexes of version 2. What we write holds no deltas; what git's own repacking leaves is
read all the same.
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from bisect import bisect_left
from collections import OrderedDict

from workbench.checkpoints import objects
from workbench.errors import CheckpointError

PACK_HEADER = struct.Struct(">4sII")
INDEX_HEADER = b"\xfftOc\0\0\0\2"
FANOUT = struct.Struct(">256I")
LARGE_OFFSET = 0x80000000
"""The bit of an offset in an index that says: the rest is a position in the table of 64-bit offsets."""

_ID = 20
_READ_CHUNK = 1 << 15
_OPEN_PACKS = 16
_MAX_DELTA_CHAIN = 4096
"""git-config(1), pack.depth: no chain that git writes is longer than 4095."""

_SMALL = 4096
"""Objects. Checkpoints make many packs that have fewer: those are looked up together."""

_SET_AFTER = 256
"""After so many look-ups the ids of all packs are held as one set: 28 bytes are read and some 100 ns spent on each."""

_OFS_DELTA, _REF_DELTA = 6, 7


class _Index:
    """A pack's index, checked and held in memory: 28 bytes an object."""

    def __init__(self, content: bytes) -> None:
        tail = len(content) - 2 * _ID
        if tail < len(INDEX_HEADER) + FANOUT.size or not content.startswith(INDEX_HEADER):
            raise ValueError("no index of version 2")
        if hashlib.sha1(content[:-_ID], usedforsecurity=False).digest() != content[-_ID:]:
            raise ValueError("its checksum is wrong")
        self._content = content
        self._fanout = FANOUT.unpack_from(content, len(INDEX_HEADER))
        self.size = self._fanout[-1]
        self._ids = len(INDEX_HEADER) + FANOUT.size
        self._offsets = self._ids + self.size * (_ID + 4)
        self._large = self._offsets + self.size * 4
        if self._large > tail:
            raise ValueError("it is cut short")
        self.pack_digest = content[tail : tail + _ID]

    def _id(self, position: int) -> bytes:
        start = self._ids + position * _ID
        return self._content[start : start + _ID]

    def ids(self) -> list[bytes]:
        return [self._id(position) for position in range(self.size)]

    def find(self, oid: bytes) -> int | None:
        """An object's offset in the pack."""
        first = self._fanout[oid[0] - 1] if oid[0] else 0
        last = self._fanout[oid[0]]
        if first == last:
            return None
        position = bisect_left(range(self.size), oid, first, last, key=self._id)
        if position >= last or self._id(position) != oid:
            return None
        (offset,) = struct.unpack_from(">I", self._content, self._offsets + position * 4)
        if offset & LARGE_OFFSET:
            (offset,) = struct.unpack_from(">Q", self._content, self._large + (offset & ~LARGE_OFFSET) * 8)
        return int(offset)


class Packs:
    """The packs of a store, for reading. Not shared between threads.

    A pack or index that can't be read is set apart: what it held counts as missing, and every error for a missing object
    then says that the store is damaged.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._indexes: dict[str, _Index] = {}
        self._in_small: dict[bytes, str] = {}
        self._large: set[str] = set()
        self._broken: dict[str, str] = {}
        self._state: tuple[int, int] | None = None
        self._fds: OrderedDict[str, int] = OrderedDict()
        self._lookups = 0
        self._all: set[bytes] | None = None
        self.losses = 0
        """How many packs were seen to be gone."""

    def close(self) -> None:
        """Close the packs that are open; safe to call again."""
        while self._fds:
            os.close(self._fds.popitem()[1])

    @property
    def damage(self) -> dict[str, str]:
        """What is wrong with each pack that can't be read, by the pack's name."""
        return dict(self._broken)

    def names(self) -> frozenset[str]:
        """The names of the packs that could be read when they were last looked at."""
        return frozenset(self._indexes)

    def __contains__(self, oid: bytes) -> bool:
        if self._all is None:
            self._lookups += 1
            if self._lookups < _SET_AFTER:
                return self._find(oid) is not None
            self.refresh()
            self._all = {known for index in self._indexes.values() for known in index.ids()}
        # A pack that another process has added since isn't seen: the object is then written twice, which is harmless.
        return oid in self._all

    def pack_of(self, oid: bytes) -> str | None:
        """The path of the pack that has an object, None where none has. Raises OSError."""
        found = self._find(oid)
        return None if found is None else os.path.join(self._directory, f"{found[0]}.pack")

    def read(self, oid: bytes) -> tuple[int, bytes]:
        """An object's kind (COMMIT, TREE or BLOB) and content, checked against its id.

        Raises CheckpointError: checkpoint_not_found where the store hasn't got it, store_corrupt where it should have.
        """
        try:
            found = self._find(oid, look_again=True)
            entry = self._read_at_offset(*found) if found else None
        except FileNotFoundError:
            # Another process has repacked the store.
            self.refresh()
            found = self._find(oid)
            entry = self._read_at_offset(*found) if found else None
        if entry is None:
            if self._broken:
                name, reason = next(iter(self._broken.items()))
                raise objects.corrupt(
                    f"the object {oid.hex()} is missing, and the pack {name} can't be read ({reason})"
                )
            raise CheckpointError(f"The checkpoint store has no object {oid.hex()}.", code="checkpoint_not_found")
        kind, data = entry
        if kind not in objects.NAMES or objects.object_id(kind, data) != oid:
            raise objects.corrupt(f"the object {oid.hex()} doesn't have the content it was written with")
        return kind, data

    def refresh(self) -> None:
        """See what has been added and removed since. Raises OSError."""
        self._all, self._lookups = None, 0
        status = os.stat(self._directory)
        self._state = (status.st_mtime_ns, status.st_ino)
        self._read_indexes()

    def _find(self, oid: bytes, *, look_again: bool = False) -> tuple[str, int] | None:
        found = self._find_loaded(oid)
        if found is None:
            # A directory that changes twice within one tick of the clock shows one time: where a miss matters, look.
            status = os.stat(self._directory)
            if look_again or (status.st_mtime_ns, status.st_ino) != self._state:
                self.refresh()
                found = self._find_loaded(oid)
        return found

    def _find_loaded(self, oid: bytes) -> tuple[str, int] | None:
        name = self._in_small.get(oid)
        for each in (name,) if name is not None else self._large:
            offset = self._indexes[each].find(oid)
            if offset is not None:
                return each, offset
        return None

    def _read_indexes(self) -> None:
        names = set(os.listdir(self._directory))
        present = {name[:-4] for name in names if name.startswith("pack-") and name[-4:] == ".idx"}
        gone = [name for name in self._indexes if name not in present or f"{name}.pack" not in names]
        for name in gone:
            del self._indexes[name]
            if name in self._fds:
                os.close(self._fds.pop(name))
        if gone:
            self.losses += len(gone)
            self._large &= self._indexes.keys()
            small = self._indexes.keys() - self._large
            self._in_small = {oid: name for name in small for oid in self._indexes[name].ids()}
        self._broken = {name: reason for name, reason in self._broken.items() if name in present}
        for name in sorted(present - self._indexes.keys() - self._broken.keys()):
            try:
                index = self._open_index(name)
            except FileNotFoundError as error:
                self._broken[name] = f"{os.path.basename(error.filename)} is missing"
            except ValueError as error:
                self._broken[name] = str(error)
            else:
                self._indexes[name] = index
                if index.size > _SMALL:
                    self._large.add(name)
                else:
                    self._in_small |= dict.fromkeys(index.ids(), name)

    def _open_index(self, name: str) -> _Index:
        with open(os.path.join(self._directory, f"{name}.idx"), "rb") as file:
            index = _Index(file.read())
        with open(os.path.join(self._directory, f"{name}.pack"), "rb", buffering=0) as pack:
            size = os.fstat(pack.fileno()).st_size
            header = os.pread(pack.fileno(), PACK_HEADER.size, 0)
            if header != PACK_HEADER.pack(b"PACK", 2, index.size):
                raise ValueError("its pack has another header")
            if os.pread(pack.fileno(), _ID, max(size - _ID, 0)) != index.pack_digest:
                raise ValueError("its pack was cut short or replaced")
        return index

    def _pack_fd(self, name: str) -> int:
        if name not in self._fds:
            path = os.path.join(self._directory, f"{name}.pack")
            self._fds[name] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            if len(self._fds) > _OPEN_PACKS:
                os.close(self._fds.popitem(last=False)[1])
        self._fds.move_to_end(name)
        return self._fds[name]

    def _read_at_offset(self, name: str, offset: int) -> tuple[int, bytes]:
        deltas: list[bytes] = []
        while True:
            kind, base, data = self._read_entry(name, offset)
            if base is None:
                break
            deltas.append(data)
            if len(deltas) > _MAX_DELTA_CHAIN:
                raise objects.corrupt(f"a chain of deltas in {name} has no end")
            if isinstance(base, int):
                offset = base
            else:
                found = self._find(base)
                if found is None:
                    raise objects.corrupt(f"the base {base.hex()} of a delta in {name} is missing")
                name, offset = found
        if deltas:
            from dulwich.errors import ApplyDeltaError
            from dulwich.pack import apply_delta

            for delta in reversed(deltas):
                try:
                    data = b"".join(apply_delta(data, delta))
                except ApplyDeltaError as error:
                    raise objects.corrupt(f"a delta in {name} can't be applied") from error
        return kind, data

    def _read_entry(self, name: str, offset: int) -> tuple[int, int | bytes | None, bytes]:
        fd = self._pack_fd(name)
        data = os.pread(fd, _READ_CHUNK, offset)
        position = offset + len(data)
        try:
            byte = data[0]
            kind = byte >> 4 & 7
            size = byte & 0x0F
            shift, at = 4, 1
            while byte & 0x80:
                byte = data[at]
                size |= (byte & 0x7F) << shift
                shift += 7
                at += 1
            base: int | bytes | None = None
            if kind == _REF_DELTA:
                base = data[at : at + _ID]
                at += _ID
            elif kind == _OFS_DELTA:
                byte = data[at]
                at += 1
                distance = byte & 0x7F
                while byte & 0x80:
                    byte = data[at]
                    at += 1
                    distance = (distance + 1) << 7 | byte & 0x7F
                base = offset - distance
            inflate = zlib.decompressobj()
            content = [inflate.decompress(data[at:])]
            while not inflate.eof:
                data = os.pread(fd, _READ_CHUNK, position)
                if not data:
                    raise ValueError("it ends early")
                position += len(data)
                content.append(inflate.decompress(data))
        except (IndexError, ValueError, zlib.error) as error:
            raise objects.corrupt(f"an object at offset {offset} of {name} can't be read") from error
        joined = b"".join(content)
        if len(joined) != size or (isinstance(base, int) and not 0 < base < offset):
            raise objects.corrupt(f"an object at offset {offset} of {name} has another size than it says")
        return kind, base, joined
