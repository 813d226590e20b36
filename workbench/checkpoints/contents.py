"""What a store holds, by its ids: objects in packs, and big files beside them."""

from __future__ import annotations

import io
import os
from typing import BinaryIO

from workbench.checkpoints import objects, side_store
from workbench.checkpoints.packs import Packs
from workbench.checkpoints.side_store import SideStore
from workbench.errors import CheckpointError


class StoredContents:
    """The contents of the store at `directory`, for reading."""

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.pack_directory = os.path.join(directory, "objects", "pack")
        self.big_directory = os.path.join(directory, "big")
        self._packs = Packs(self.pack_directory)
        self._had: set[str] = set()
        self._losses = 0
        self._side = SideStore(self.big_directory)

    def has(self, blob: str) -> bool:
        """Whether a manifest's blob is there. Raises OSError."""
        if blob.startswith(side_store.PREFIX):
            return self._side.has(blob)
        if self._losses != self._packs.losses:
            self._losses, self._had = self._packs.losses, set()
        if blob not in self._had:
            if bytes.fromhex(blob) not in self._packs:
                return False
            self._had.add(blob)
        return True

    def read(self, blob: str) -> bytes:
        """A manifest's blob, whole. Raises CheckpointError (store_corrupt) where it's missing or damaged, OSError."""
        if blob.startswith(side_store.PREFIX):
            with self._side.open(blob) as file:
                return file.read()
        return self.object(bytes.fromhex(blob), objects.BLOB)

    def open(self, blob: str) -> BinaryIO:
        """A manifest's blob as a stream; a big file isn't read into memory. Raises as `read`."""
        if blob.startswith(side_store.PREFIX):
            return self._side.open(blob)
        return io.BytesIO(self.read(blob))

    def check(self, blob: str) -> None:
        """Compare a manifest's blob with its id. Raises as `read`."""
        if blob.startswith(side_store.PREFIX):
            self._side.check(blob)
        else:
            self.object(bytes.fromhex(blob), objects.BLOB)

    def size(self, blob: str) -> int:
        """A blob's length in bytes. Raises as `read`."""
        with self.open(blob) as file:
            return file.seek(0, os.SEEK_END)

    def object(self, oid: bytes, kind: int) -> bytes:
        """An object that something in the store, or a manifest, says is there."""
        try:
            found, data = self._packs.read(oid)
        except CheckpointError as error:
            if error.code != "checkpoint_not_found":
                raise
            raise objects.corrupt(f"the object {oid.hex()} is missing") from error
        if found != kind:
            raise objects.corrupt(f"the object {oid.hex()} is of another kind")
        return data
