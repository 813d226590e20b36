"""The extended attributes of upper entries: the kernel's own marks, told apart from everything else.

A descriptor given to these functions may be an O_PATH one.
"""

from __future__ import annotations

import errno
import os
import struct
import sys
from dataclasses import dataclass

from workbench.errors import OverlayError
from workbench.vfs.storage import Kind, Stat

PREFIX = b"user.overlay."
OPAQUE = b"user.overlay.opaque"
ORIGIN = b"user.overlay.origin"
_REFUSED = (b"user.overlay.redirect", b"user.overlay.metacopy")
_HEEDED = frozenset(os.fsdecode(name) for name in (OPAQUE, *_REFUSED))

# struct ovl_fb: version, magic, length of all, flags, handle type, uuid of the lower filesystem; the handle follows.
_ORIGIN_HEADER = struct.Struct("=BBBBB16s")
_ORIGIN_VERSION = 0
_ORIGIN_MAGIC = 0xFB
_ORIGIN_FLAGS = 0 if sys.byteorder == "little" else 1
_HANDLE_KIND = struct.Struct(">i")


@dataclass(frozen=True, slots=True)
class Attributes:
    """The extended attributes of an upper entry, read at once.

    `origin` is the handle of the lower entry that it was copied up from, in the form of `syscalls.file_handle`, `b""`
    where there is none. `xattrs` are the others, (name, value), sorted, without everything below `user.overlay.`.
    """

    opaque: bool
    origin: bytes
    xattrs: tuple[tuple[bytes, bytes], ...]


def itself(fd: int) -> bytes:
    """A path to the very inode behind a descriptor, a symlink's too: the calls on descriptors refuse O_PATH ones."""
    return b"/proc/self/fd/%d" % fd


def get(fd: int, name: bytes) -> bytes | None:
    """One attribute; None where there is none, or can't be one. Raises OSError."""
    try:
        return os.getxattr(itself(fd), name)
    except OSError as error:
        # EOPNOTSUPP: a filesystem without extended attributes, or a symlink, which can't carry `user.` ones.
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return None
        # EPERM, EACCES: `user.` attributes exist on files and directories only.
        if error.errno in (errno.EPERM, errno.EACCES) and not _may_carry_user_attributes(fd):
            return None
        raise


def _may_carry_user_attributes(fd: int) -> bool:
    return Stat.of(os.fstat(fd)).kind in (Kind.FILE, Kind.DIR)


def names(fd: int, *, is_open: bool = False) -> list[bytes]:
    """The names of all attributes. It costs less where `fd` `is_open`, no O_PATH descriptor. Raises OSError."""
    try:
        found = os.listxattr(fd if is_open else itself(fd))
        return [os.fsencode(name) for name in found] if found else []
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        if is_open and error.errno == errno.EBADF:
            return names(fd)
        raise


def shows_below(fd: int) -> bool:
    """Whether an upper directory lets a lower one show. Raises OSError, and OverlayError as `check`."""
    try:
        present = os.listxattr(fd)
    except OSError:
        present = [os.fsdecode(name) for name in names(fd)]
    if _HEEDED.isdisjoint(present):
        return True
    check_names([os.fsencode(name) for name in present])
    return get(fd, OPAQUE) != b"y"


def others(fd: int, present: list[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    """Those attributes of `present` that aren't the overlay's, with their values. Raises OSError."""
    found = []
    for name in sorted(present):
        if name.startswith(PREFIX):
            continue
        value = get(fd, name)
        if value is not None:
            found.append((name, value))
    return tuple(found)


def check(fd: int, present: list[bytes]) -> None:
    """Raises OverlayError (layer_unsupported) for what can't be read as the kernel would; `present` are the names."""
    check_names(present)
    if Stat.of(os.fstat(fd)).kind is Kind.DEVICE:
        raise OverlayError(
            "The overlay holds a device node, which workbench never carries.",
            hint="Delete the device node inside the sandbox.",
        )


def check_names(present: list[bytes]) -> None:
    """As `check`, by the names alone."""
    refused = [name for name in _REFUSED if name in present]
    if refused:
        raise OverlayError(
            f"An entry of the overlay carries '{refused[0].decode()}', which workbench never uses.",
            hint="The overlay was mounted with other options. Discard it, or copy what you need out of such a mount.",
        )


def origin(value: bytes) -> bytes:
    """The file handle in a `user.overlay.origin`. Raises OverlayError (layer_unsupported) for an unknown form."""
    # The kernel writes an empty one where the lower filesystem has no handles.
    if not value:
        return b""
    if len(value) < _ORIGIN_HEADER.size:
        raise _unreadable_origin()
    version, magic, length, _flags, kind, _uuid = _ORIGIN_HEADER.unpack_from(value)
    if version != _ORIGIN_VERSION or magic != _ORIGIN_MAGIC or length != len(value):
        raise _unreadable_origin()
    return _HANDLE_KIND.pack(kind) + value[_ORIGIN_HEADER.size :]


def origin_of(handle: bytes) -> bytes:
    """The other way round: a `user.overlay.origin` for a file handle, an empty one for none.

    It names no filesystem, which only the kernel can: to it, the origin isn't known.
    """
    if not handle:
        return b""
    (kind,) = _HANDLE_KIND.unpack_from(handle)
    fid = handle[_HANDLE_KIND.size :]
    length = _ORIGIN_HEADER.size + len(fid)
    if not 0 <= kind < 0xFF or length > 0xFF:
        return b""
    return _ORIGIN_HEADER.pack(_ORIGIN_VERSION, _ORIGIN_MAGIC, length, _ORIGIN_FLAGS, kind, bytes(16)) + fid


def origin_mark(handle: bytes) -> bytes:
    """The `user.overlay.origin` that stands for a file handle: the other way round of `origin`."""
    size = _ORIGIN_HEADER.size + len(handle) - 4
    kind = struct.unpack_from(">i", handle)[0]
    # No filesystem has this uuid, so the kernel itself never follows it.
    return _ORIGIN_HEADER.pack(_ORIGIN_VERSION, _ORIGIN_MAGIC, size, 0, kind, bytes(16)) + handle[4:]


def _unreadable_origin() -> OverlayError:
    return OverlayError(
        "An entry of the overlay carries a 'user.overlay.origin' in a form that isn't known.",
        hint="The kernel is newer than this workbench, or something else wrote into the overlay. Update workbench.",
    )
