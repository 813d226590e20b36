"""Big files, kept as they are: `big/<sha256>`, reflinked or copied with their holes, beside the packs."""

from __future__ import annotations

import hashlib
import os
import re
from typing import BinaryIO

from workbench.checkpoints import files, objects
from workbench.errors import CheckpointError
from workbench.vfs import syscalls

PREFIX = "big:"
"""What the blob of a big file begins with, in a manifest; 64 hex digits follow."""

LIMIT = 8 << 20
"""Bytes. A file that is larger is big: compressing it would take longer than all else (facts: 26 s a GB, a copy 0.3 s)."""

_BLOB = re.compile(r"big:[0-9a-f]{64}\Z")
_CHUNK = 1 << 20


class SideStore:
    """The directory `big/` of a store."""

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def add(self, fd: int) -> str:
        """Take a copy of an open file, its offset moves; returns its blob (`big:…`). On disk when this returns.

        Raises OSError.
        """
        dir_fd = self._open_directory()
        try:
            name, copy_fd = files.create_temporary(dir_fd, "big")
            try:
                syscalls.copy_data(fd, copy_fd)
                # The copy's own bytes are hashed, so that the name is right whatever happens to the original.
                digest = sha256_of(copy_fd)
                os.fchmod(copy_fd, 0o444)
                os.fsync(copy_fd)
                os.rename(name, digest, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            except BaseException:
                os.unlink(name, dir_fd=dir_fd)
                raise
            finally:
                os.close(copy_fd)
            os.fsync(dir_fd)
        finally:
            os.close(dir_fd)
        return PREFIX + digest

    def has(self, blob: str) -> bool:
        """Whether a big file is there. Raises OSError."""
        try:
            os.stat(self._path(blob))
        except FileNotFoundError:
            return False
        return True

    def open(self, blob: str) -> BinaryIO:
        """A big file, for reading. Raises CheckpointError (store_corrupt) where it's missing, OSError."""
        try:
            return open(self._path(blob), "rb")
        except FileNotFoundError as error:
            raise objects.corrupt(f"the big file {blob.removeprefix(PREFIX)} is missing") from error

    def check(self, blob: str) -> None:
        """Compare a big file with its name. Raises CheckpointError (store_corrupt), OSError."""
        with self.open(blob) as file:
            if PREFIX + sha256_of(file.fileno()) != blob:
                raise objects.corrupt(f"the big file {blob.removeprefix(PREFIX)} was changed")

    def _path(self, blob: str) -> str:
        if not _BLOB.match(blob):
            raise CheckpointError(f"'{blob}' isn't the name of a big file.", code="checkpoint_not_found")
        return os.path.join(self._directory, blob.removeprefix(PREFIX))

    def _open_directory(self) -> int:
        return os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def sha256_of(fd: int) -> str:
    """The SHA-256 of a whole file, in hex; the descriptor's offset stays. Raises OSError."""
    digest = hashlib.sha256()
    position = 0
    while True:
        data = os.pread(fd, _CHUNK, position)
        if not data:
            return digest.hexdigest()
        digest.update(data)
        position += len(data)


def pointer(blob: str, size: int) -> bytes:
    """What stands in a checkpoint's tree in place of a big file: text that names it, for people."""
    digest = blob.removeprefix(PREFIX)
    return f"This file is kept outside of git, in the store's directory 'big'.\nsha256 {digest}\nsize {size}\n".encode()
