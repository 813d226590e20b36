"""A tree in which everything happens at once, told as an overlay would keep it: as the upper layer over what was there before.

Where no overlay can be mounted there is but one tree, the merged one. What was copied in is remembered; whatever departs from
that is the upper layer, with whiteouts for what has gone and opaque directories for those that are others now.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import struct
import tarfile
import time
from typing import Any, Dict  # noqa: UP035

from workbench.sandbox.tree_packer import RACY_NS, Packer
from workbench.sandbox.tree_stream import (
    ESCAPED,
    OVERLAY,
    PAX_COPIED,
    PAX_OPAQUE,
    XATTR,
    Known,
    Signature,
    forget_members,
    open_tar,
    signature,
    text,
)

# Linux uapi, fs.h: a number that tells an inode from another that had its number before.
_GET_GENERATION = 0x80087601
_MODE, _INODE, _CTIME, _GENERATION = 0, 1, 7, 8
_WHITEOUT: Signature = (0,)

Base = Dict[bytes, Signature]  # noqa: UP006
"""What was copied in: the signature of each path, followed by the inode's generation where it is a directory."""


class Departures(Packer):
    """Writes what of a merged tree departs from its base, as a `Packer` writes an upper layer. Runs as root."""

    def __init__(self, root: int, base: Base) -> None:
        super().__init__(root, layer=True, found=self._enter)
        self._base = base
        self._generations: dict[bytes, int] = {}
        self._opaque: set[bytes] = set()
        self._copied: set[bytes] = set()

    def base(self) -> Base:
        """What there is now, in a tree that nobody writes in, to be the base of later ones."""
        found = {}
        for path, _, _, status in self._walk():
            # A device of whoever writes in the tree, who could only make a whiteout: that is no file.
            if not stat.S_ISCHR(status.st_mode):
                found[path] = signature(status)
        for path, generation in self._generations.items():
            if path in found:
                found[path] = (*found[path], generation)
        return found

    def pack(self, sink: Any, known: Known) -> Known:
        """Write those entries of the layer that aren't `known` as they stand; what there is of it now."""
        racy = time.time_ns() - RACY_NS
        layer = self._layer_now()
        with open_tar(sink) as tar:
            for path, parent, name, status in self._walk():
                if path in layer and known.get(path) != layer[path] and not self._tell(tar, path, parent, name, status):
                    del layer[path]
            for path, found in layer.items():
                if found == _WHITEOUT != known.get(path):
                    info = tarfile.TarInfo(text(path))
                    info.type = tarfile.CHRTYPE
                    tar.addfile(info)
                    forget_members(tar)
        return {path: None if found != _WHITEOUT and found[_CTIME] >= racy else found for path, found in layer.items()}

    def _layer_now(self) -> dict[bytes, Signature]:
        """The layer's entries; remembers which of them are opaque, and which were there before."""
        found = self.base()
        layer: dict[bytes, Signature] = {b"": found[b""]}
        # The directories that were copied in, and no others with their names: only there is anything below merged.
        merged = {b""}
        self._opaque, self._copied = set(), {b""}

        def departs(path: bytes, what: Signature) -> None:
            layer[path] = what
            while (path := path.rpartition(b"/")[0]) not in layer:
                layer[path] = found[path]

        for path, what in found.items():
            if not path:
                continue
            before = self._base.get(path) if path.rpartition(b"/")[0] in merged else None
            if before is not None and stat.S_IFMT(before[_MODE]) == stat.S_IFMT(what[_MODE]):
                if not stat.S_ISDIR(what[_MODE]):
                    self._copied.add(path)
                elif (before[_INODE], before[_GENERATION:]) == (what[_INODE], what[_GENERATION:]):
                    self._copied.add(path)
                    merged.add(path)
                else:
                    self._opaque.add(path)
            if before != what:
                departs(path, what)
        for path in self._base:
            if path not in found and path.rpartition(b"/")[0] in merged:
                departs(path, _WHITEOUT)
        return layer

    def _enter(self, path: bytes, fd: int) -> None:
        number = bytearray(8)
        # Where a filesystem has none, the number of the inode has to do.
        with contextlib.suppress(OSError):
            fcntl.ioctl(fd, _GET_GENERATION, number)
        self._generations[path] = struct.unpack("=q", number)[0]

    def _describe(self, headers: dict[str, str], path: bytes, fd: int) -> None:
        for attribute in os.listxattr(fd):
            if attribute.startswith("user."):
                # As the kernel does, so that nobody forges a layer's marks.
                kept = ESCAPED + attribute[len(OVERLAY) :] if attribute.startswith(OVERLAY) else attribute
                headers[XATTR + os.fsencode(kept).hex()] = "=" + os.getxattr(fd, attribute).hex()
        if path in self._opaque:
            headers[PAX_OPAQUE] = "1"
        if path in self._copied:
            headers[PAX_COPIED] = "1"
