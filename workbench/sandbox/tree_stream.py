"""Trees as uncompressed tar in frames: a length, `!I`, and so many bytes; a tree is frames of tar, ended by an empty one.

Like everything that `copier.py` is made of: standard library only, Python 3.8 or later.
"""

from __future__ import annotations

import os
import stat
import struct
import tarfile
from typing import Any, Callable, Dict, Optional, Tuple  # noqa: UP035  Python 3.8 evaluates the aliases below

FRAME = struct.Struct("!I")
CHUNK = 256 << 10

OVERLAY = "user.overlay."
ESCAPED = "user.overlay.overlay."
OPAQUE = "user.overlay.opaque"
ORIGIN = "user.overlay.origin"

XATTR = "workbench.xattr."
"""Followed by the attribute's name, in hex as its value is: both may hold what no header can."""

PAX_OPAQUE = "workbench.opaque"
PAX_COPIED = "workbench.copied"
PAX_SOCKET = "workbench.socket"

Signature = Tuple[int, ...]  # noqa: UP006
Known = Dict[bytes, Optional[Signature]]  # noqa: UP006,UP045
"""What was last told of each path; None where it may have changed without a trace since."""


class FrameReader:
    """A tree's frames as the file that `tarfile` reads from; `frame` gives the next one."""

    def __init__(self, frame: Callable[[], bytes]) -> None:
        self._frame = frame
        self._rest = b""
        self._over = False

    def read(self, size: int) -> bytes:
        """Up to `size` bytes, none at the end of the tree."""
        if not self._rest and not self._over:
            self._rest = self._frame()
            self._over = not self._rest
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def drain(self) -> None:
        """Go on to the end of the tree."""
        while not self._over:
            self._rest = b""
            self.read(1)


class FrameWriter:
    """The file that `tarfile` writes to; `send` takes what goes out."""

    def __init__(self, send: Callable[[bytes], object]) -> None:
        self._send = send

    def write(self, data: bytes) -> int:
        """Send one frame."""
        if data:
            self._send(FRAME.pack(len(data)) + data)
        return len(data)

    def end(self) -> None:
        """Say that the tree is over."""
        self._send(FRAME.pack(0))


def signature(status: os.stat_result) -> Signature:
    return (
        status.st_mode,
        status.st_ino,
        status.st_uid,
        status.st_gid,
        status.st_size,
        status.st_nlink if not stat.S_ISDIR(status.st_mode) else 0,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def open_tar(sink: Any) -> tarfile.TarFile:
    """A tar that is written to a sink as it comes."""
    return tarfile.open(
        fileobj=sink, mode="w|", format=tarfile.PAX_FORMAT, encoding="utf-8", errors="surrogateescape", bufsize=CHUNK
    )


def forget_members(tar: tarfile.TarFile) -> None:
    # It keeps what it has seen, which a stream has no use for.
    tar.members = []  # type: ignore[attr-defined]


def check(path: bytes) -> None:
    if any(name in (b"", b".", b"..") for name in path.split(b"/")):
        raise ValueError(f"{path!r} leads out of the tree")


def text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def raw(path: str) -> bytes:
    return path.encode("utf-8", "surrogateescape")
