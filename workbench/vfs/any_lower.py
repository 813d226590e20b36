"""Any storage as a lower layer that can be reviewed: what `Lower` asks beyond `Storage`, answered path by path."""

from __future__ import annotations

import builtins
from typing import BinaryIO

from workbench.vfs import paths
from workbench.vfs.storage import DetailedStorage, IdentifiedStorage, Kind, Stat, Storage


class AnyLower:
    """A storage that isn't a directory of this machine, as a `Lower`. All methods raise as the storage's own."""

    root_path = b""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._detailed = storage if isinstance(storage, DetailedStorage) else None
        self._identified = storage if isinstance(storage, IdentifiedStorage) else None

    def stat(self, path: bytes) -> Stat:
        """As `Storage.stat`."""
        return self.storage.stat(path)

    def list(self, path: bytes) -> builtins.list[bytes]:
        """As `Storage.list`."""
        return self.storage.list(path)

    def open(self, path: bytes) -> BinaryIO:
        """As `Storage.open`."""
        return self.storage.open(path)

    def read_bytes(self, path: bytes) -> bytes:
        """As `DetailedStorage.read_bytes`."""
        if self._detailed is not None:
            return self._detailed.read_bytes(path)
        with self.open(path) as file:
            return file.read()

    def readlink(self, path: bytes) -> bytes:
        """As `Storage.readlink`."""
        return self.storage.readlink(path)

    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """As `DetailedStorage.entries`."""
        if self._detailed is not None:
            return self._detailed.entries(path)
        return [(name, self.stat(paths.join(path, name)).kind) for name in self.list(path)]

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """As `DetailedStorage.xattrs`; none where the storage doesn't tell."""
        return self._detailed.xattrs(path) if self._detailed is not None else {}

    def exists(self, path: bytes) -> bool:
        """As `Lower.exists`."""
        return self.identify(path) is not None

    def identify(self, path: bytes) -> tuple[Stat, bytes] | None:
        """As `IdentifiedStorage.identify`; by nothing where the storage doesn't tell."""
        if self._identified is not None:
            return self._identified.identify(path)
        try:
            return self.stat(path), b""
        except (FileNotFoundError, NotADirectoryError):
            return None

    def directory(self, path: bytes) -> PathDirectory:
        """As `Lower.directory`."""
        return PathDirectory(self, path, frozenset(self.list(path)))

    def resolve(self, path: bytes) -> bytes:
        """As `Lower.resolve`."""
        return paths.resolve(path, lambda at: self.stat(at).kind, self.readlink)

    def mount_points(self) -> builtins.list[bytes]:
        """There are none."""
        return []


class PathDirectory:
    """A directory by its path, and the names that it had. Implements `storage.Directory`."""

    def __init__(self, lower: AnyLower, path: bytes, names: frozenset[bytes]) -> None:
        self._lower = lower
        self._path = path
        self._names = names

    def stat(self, name: bytes) -> Stat | None:
        """As `Directory.stat`."""
        if name not in self._names:
            return None
        try:
            return self._lower.stat(paths.join(self._path, name))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self) -> list[bytes]:
        """As `Directory.names`."""
        return sorted(self._names)

    def close(self) -> None:
        """Nothing is open."""
