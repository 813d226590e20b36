"""An upper layer on disk, in the format of Linux overlayfs under its `userxattr` mount option.

A whiteout is a character device 0:0, an opaque directory carries `user.overlay.opaque=y`, and what was copied up
carries `user.overlay.origin`, the file handle of the lower entry (kernel, `Documentation/filesystems/overlayfs.rst` and
`fs/overlayfs/overlayfs.h`). Nothing here is written while the overlay is mounted.
"""

from __future__ import annotations

import errno
import os
import stat as stat_module
import struct
from dataclasses import dataclass

from workbench.errors import OverlayError
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind, Stat

_PREFIX = b"user.overlay."
_OPAQUE = b"user.overlay.opaque"
_ORIGIN = b"user.overlay.origin"
_REFUSED = (b"user.overlay.redirect", b"user.overlay.metacopy")

# struct ovl_fb: version, magic, length of all, flags, handle type, uuid of the lower filesystem; the handle follows.
_ORIGIN_HEADER = struct.Struct("=BBBBB16s")
_ORIGIN_VERSION = 0
_ORIGIN_MAGIC = 0xFB


@dataclass(frozen=True, slots=True)
class Attributes:
    """The extended attributes of an upper entry, read at once.

    `origin` is the handle of the lower entry that it was copied up from, in the form of `syscalls.file_handle`, `b""`
    where there is none. `xattrs` are the others, (name, value), sorted, without everything below `user.overlay.`.
    """

    opaque: bool
    origin: bytes
    xattrs: tuple[tuple[bytes, bytes], ...]


class LocalUpper(LocalStorage):
    """An upper layer: `LocalStorage` over its raw entries, whiteouts included, and the kernel's marks on them.

    Descriptors given to its methods may be O_PATH ones.
    """

    def is_opaque(self, path: bytes) -> bool:
        """Whether a directory hides what the lower has in it. Raises as `LocalStorage.stat`."""
        fd = paths.open_below(self.root_fd, path, os.O_PATH)
        try:
            return self.opaque_of(fd)
        finally:
            os.close(fd)

    def opaque_of(self, fd: int) -> bool:
        """As `is_opaque`, of a descriptor. Raises OSError."""
        return _get(fd, _OPAQUE) == b"y"

    def origin_of(self, fd: int) -> bytes:
        """As `Attributes.origin`, of a descriptor. Raises OSError, OverlayError (layer_unsupported)."""
        return _origin(_get(fd, _ORIGIN) or b"")

    def is_copied_up(self, fd: int) -> bool:
        """Whether the kernel's mark says that an entry was copied up; a symlink, and a lower hard link, gets none.

        Raises OSError.
        """
        return _ORIGIN in _names(fd)

    def check_entry(self, fd: int) -> None:
        """Refuse what we can't read as the kernel would.

        Raises OSError, and OverlayError (layer_unsupported) for a device node, a redirected directory, and a file whose
        content stayed in the lower layer (`metacopy`).
        """
        _check(fd, _names(fd))

    def xattrs_of(self, fd: int) -> tuple[tuple[bytes, bytes], ...]:
        """As `Attributes.xattrs`, of a descriptor. Raises OSError."""
        return _others(fd, _names(fd))

    def attributes_of(self, fd: int) -> Attributes:
        """All of the above in one pass: `check_entry`, then what the entry carries. Raises as they do."""
        names = _names(fd)
        _check(fd, names)
        opaque = _OPAQUE in names and _get(fd, _OPAQUE) == b"y"
        origin = _origin(_get(fd, _ORIGIN) or b"") if _ORIGIN in names else b""
        return Attributes(opaque, origin, _others(fd, names))

    def make_whiteout(self, dir_fd: int, name: bytes) -> None:
        """Make a whiteout, which needs no privilege since Linux 5.8. Raises OSError."""
        os.mknod(name, stat_module.S_IFCHR, 0, dir_fd=dir_fd)

    def set_opaque(self, fd: int, opaque: bool) -> None:
        """Mark a directory as opaque, or take the mark away. Raises OSError."""
        target = _target(fd)
        if opaque:
            os.setxattr(target, _OPAQUE, b"y")
            return
        try:
            os.removexattr(target, _OPAQUE)
        except OSError as error:
            if error.errno != errno.ENODATA:
                raise


def _target(fd: int) -> bytes:
    # The fxattr calls refuse O_PATH descriptors; through /proc the kernel jumps to the very inode, a symlink's too.
    return os.fsencode(f"/proc/self/fd/{fd}")


def _get(fd: int, name: bytes) -> bytes | None:
    try:
        return os.getxattr(_target(fd), name)
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


def _names(fd: int) -> list[bytes]:
    try:
        return [os.fsencode(name) for name in os.listxattr(_target(fd))]
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            return []
        raise


def _others(fd: int, names: list[bytes]) -> tuple[tuple[bytes, bytes], ...]:
    found = []
    for name in sorted(names):
        if name.startswith(_PREFIX):
            continue
        value = _get(fd, name)
        if value is not None:
            found.append((name, value))
    return tuple(found)


def _check(fd: int, names: list[bytes]) -> None:
    refused = [name for name in _REFUSED if name in names]
    if refused:
        raise OverlayError(
            f"An entry of the overlay carries '{refused[0].decode()}', which workbench never uses.",
            hint="The overlay was mounted with other options. Discard it, or copy what you need out of such a mount.",
        )
    if Stat.of(os.fstat(fd)).kind is Kind.DEVICE:
        raise OverlayError(
            "The overlay holds a device node, which workbench never carries.",
            hint="Delete the device node inside the sandbox.",
        )


def _origin(value: bytes) -> bytes:
    # The kernel writes an empty one where the lower filesystem has no handles.
    if not value:
        return b""
    if len(value) < _ORIGIN_HEADER.size:
        raise _unreadable_origin()
    version, magic, length, _flags, kind, _uuid = _ORIGIN_HEADER.unpack_from(value)
    if version != _ORIGIN_VERSION or magic != _ORIGIN_MAGIC or length != len(value):
        raise _unreadable_origin()
    return struct.pack(">i", kind) + value[_ORIGIN_HEADER.size :]


def _unreadable_origin() -> OverlayError:
    return OverlayError(
        "An entry of the overlay carries a 'user.overlay.origin' in a form that isn't known.",
        hint="The kernel is newer than this workbench, or something else wrote into the overlay. Update workbench.",
    )
