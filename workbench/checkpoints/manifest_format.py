"""The manifest as a file: whole in a journal, in parts in a checkpoint's tree (see `parts`).

Fields end with a NUL, records have a fixed number of fields, and each record's first field begins with a newline, so that
`git show REF:m/0 | tr '\\0' ' '` shows a record a line (a path may hold a newline; readers count fields). First the header,
then the entries, then the bases, each in bytewise order of path::

    workbench-manifest 1 2 1
    dir  755 1000 1000 0 1767225600000000000 1767225600123456789 4711 0
    file src/a.py 644 1000 1000 12 1767225600000000000 1767225600123456789 4712 0 8ab686eafeb1f44702738c8b0f24f2567c36da6d
    known file src/a.py 644 1000 1000 5 1767139200000000000 1767139200123456789 815 000000010000032f… ce013625030b…

header: the word, the version, the number of entries, the number of bases.
entry:  kind, path, mode (octal), uid, gid, size, mtime_ns, ctime_ns, inode, link group, blob, `opaque` or nothing, xattrs
        (`name=value` in hex, joined by commas), holes (`offset+length`, joined by commas), why it was omitted.
base:   certainty, kind, path, mode (octal), uid, gid, size, mtime_ns, ctime_ns, inode, handle (hex), blob.

When and under which boot a manifest was scanned is no part of it (equal layers are equal files): that stands in the
commit's trailers.
"""

from __future__ import annotations

from collections.abc import Iterator

from workbench.checkpoints import objects
from workbench.checkpoints.manifest import Base, Certainty, Entry, Manifest
from workbench.vfs.storage import Kind

_WORD = b"workbench-manifest"
_VERSION = b"1"
_HEADER_FIELDS = 4
_ENTRY_FIELDS = 15
_BASE_FIELDS = 12

_KINDS = {b"\n" + kind.value.encode(): kind for kind in Kind}
_BASE_KINDS = {kind.value.encode(): kind for kind in Kind}
_CERTAINTIES = {b"\n" + certainty.value.encode(): certainty for certainty in Certainty}
_KIND_FIELDS = {kind: field for field, kind in _KINDS.items()}
_CERTAINTY_FIELDS = {certainty: field for field, certainty in _CERTAINTIES.items()}


def to_bytes(manifest: Manifest) -> bytes:
    """A manifest's entries and bases in the format above."""
    header = b"%s\0%s\0%d\0%d\0" % (_WORD, _VERSION, len(manifest.entries), len(manifest.bases))
    entries = [_encode_entry(manifest.entries[path]) for path in sorted(manifest.entries)]
    bases = [_encode_base(manifest.bases[path]) for path in sorted(manifest.bases)]
    return b"".join((header, *entries, *bases))


def from_bytes(data: bytes, *, boot_id: str = "", scanned_ns: int = 0) -> Manifest:
    """Read what `to_bytes` wrote; `boot_id` and `scanned_ns` are as in `Manifest`.

    Raises CheckpointError (store_corrupt) for anything else, and for a version that isn't known.
    """
    fields = data.split(b"\0")
    if fields[0] != _WORD or fields[1:2] != [_VERSION]:
        raise objects.corrupt("a manifest is of another kind or version")
    try:
        entry_count, base_count = int(fields[2]), int(fields[3])
        bases_at = _HEADER_FIELDS + entry_count * _ENTRY_FIELDS
        if len(fields) != bases_at + base_count * _BASE_FIELDS + 1 or fields[-1]:
            raise ValueError("wrong number of fields")
        entries = {entry.path: entry for entry in _decode_entries(fields[_HEADER_FIELDS:bases_at])}
        bases = {base.path: base for base in _decode_bases(fields[bases_at:-1])}
    except (ValueError, KeyError, IndexError) as error:
        raise objects.corrupt("a manifest can't be read") from error
    return Manifest(entries, bases, boot_id, scanned_ns)


def _encode_entry(entry: Entry) -> bytes:
    return b"%s\0%s\0%o\0%d\0%d\0%d\0%d\0%d\0%d\0%d\0%s\0%s\0%s\0%s\0%s\0" % (
        _KIND_FIELDS[entry.kind],
        entry.path,
        entry.mode,
        entry.uid,
        entry.gid,
        entry.size,
        entry.mtime_ns,
        entry.ctime_ns,
        entry.inode,
        entry.link_group,
        entry.blob.encode("ascii"),
        b"opaque" if entry.opaque else b"",
        b",".join(b"%s=%s" % (name.hex().encode(), value.hex().encode()) for name, value in entry.xattrs),
        b",".join(b"%d+%d" % hole for hole in entry.holes),
        entry.omitted.encode("utf-8"),
    )


def _encode_base(base: Base) -> bytes:
    return b"%s\0%s\0%s\0%o\0%d\0%d\0%d\0%d\0%d\0%d\0%s\0%s\0" % (
        _CERTAINTY_FIELDS[base.certainty],
        base.kind.value.encode(),
        base.path,
        base.mode,
        base.uid,
        base.gid,
        base.size,
        base.mtime_ns,
        base.ctime_ns,
        base.inode,
        base.handle.hex().encode(),
        base.blob.encode("ascii"),
    )


def _decode_entries(fields: list[bytes]) -> Iterator[Entry]:
    columns = (fields[at::_ENTRY_FIELDS] for at in range(_ENTRY_FIELDS))
    for kind, path, mode, uid, gid, size, mtime, ctime, inode, group, blob, opaque, xattrs, holes, omitted in zip(
        *columns, strict=True
    ):
        yield Entry(
            path,
            _KINDS[kind],
            int(mode, 8),
            int(uid),
            int(gid),
            int(size),
            int(mtime),
            int(ctime),
            int(inode),
            int(group),
            _decode_xattrs(xattrs) if xattrs else (),
            _decode_holes(holes) if holes else (),
            blob.decode("ascii"),
            opaque == b"opaque",
            omitted.decode("utf-8"),
        )


def _decode_bases(fields: list[bytes]) -> Iterator[Base]:
    columns = (fields[at::_BASE_FIELDS] for at in range(_BASE_FIELDS))
    for certainty, kind, path, mode, uid, gid, size, mtime, ctime, inode, handle, blob in zip(*columns, strict=True):
        yield Base(
            path,
            _CERTAINTIES[certainty],
            _BASE_KINDS[kind],
            int(mode, 8),
            int(uid),
            int(gid),
            int(size),
            int(mtime),
            int(ctime),
            int(inode),
            bytes.fromhex(handle.decode("ascii")),
            blob.decode("ascii"),
        )


def _decode_xattrs(field: bytes) -> tuple[tuple[bytes, bytes], ...]:
    pairs = (pair.partition("=") for pair in field.decode("ascii").split(","))
    return tuple((bytes.fromhex(name), bytes.fromhex(value)) for name, _, value in pairs)


def _decode_holes(field: bytes) -> tuple[tuple[int, int], ...]:
    return tuple((int(start), int(length)) for start, _, length in (hole.partition(b"+") for hole in field.split(b",")))
