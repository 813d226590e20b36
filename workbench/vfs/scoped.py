"""A part of a storage as a storage of its own: one tenant's, say."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import BinaryIO

from workbench.errors import OptionsError
from workbench.vfs import paths
from workbench.vfs.storage import (
    DetailedStorage,
    IdentifiedStorage,
    Kind,
    Stat,
    Storage,
    StorageWriter,
    WritableStorage,
)


class ScopedStorage:
    """What a storage has below one directory. Implements `Storage`.

    Confined by components, not by characters: what is beside the directory and merely begins with its name is
    elsewhere. Since no storage follows a symlink, none leads out. `scope` is relative to the storage's root. It fails
    closed: OptionsError (invalid_options) for a scope that is empty, absolute or dotted, or that isn't a directory of
    the storage at this moment, reached without a symlink. A scope that vanishes later is a FileNotFoundError like any
    other. Methods raise as the storage's own, with the path inside the scope.
    """

    def __init__(self, storage: Storage, scope: bytes) -> None:
        if not scope:
            raise OptionsError(
                "A storage can't be confined to an empty scope, which would be all of it.",
                hint="Name a directory of the storage.",
            )
        names = paths.parts(scope)
        for depth in range(1, len(names) + 1):
            try:
                kind = storage.stat(b"/".join(names[:depth])).kind
            except OSError as error:
                raise _refused(scope, error.strerror or "it can't be looked at") from error
            if kind is not Kind.DIR:
                raise _refused(scope, f"a {kind} is in its way")
        self._storage = storage
        self._scope = scope

    def stat(self, path: bytes) -> Stat:
        """As `Storage.stat`."""
        with self._inside(path) as there:
            return self._storage.stat(there)

    def list(self, path: bytes) -> builtins.list[bytes]:
        """As `Storage.list`."""
        with self._inside(path) as there:
            return self._storage.list(there)

    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """As `list`, with the kind of each entry."""
        if isinstance(self._storage, DetailedStorage):
            with self._inside(path) as there:
                return self._storage.entries(there)
        return [(name, self.stat(paths.join(path, name)).kind) for name in self.list(path)]

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """The extended attributes of an entry; none where the storage doesn't tell of any. Raises as `stat`."""
        if isinstance(self._storage, DetailedStorage):
            with self._inside(path) as there:
                return self._storage.xattrs(there)
        self.stat(path)
        return {}

    def open(self, path: bytes) -> BinaryIO:
        """As `Storage.open`."""
        with self._inside(path) as there:
            return self._storage.open(there)

    def read_bytes(self, path: bytes) -> bytes:
        """A regular file's content. Raises as `open`."""
        if isinstance(self._storage, DetailedStorage):
            with self._inside(path) as there:
                return self._storage.read_bytes(there)
        with self.open(path) as file:
            return file.read()

    def readlink(self, path: bytes) -> bytes:
        """As `Storage.readlink`. The target is as it was made: one that climbs out of the scope resolves nowhere."""
        with self._inside(path) as there:
            return self._storage.readlink(there)

    def identify(self, path: bytes) -> tuple[Stat, bytes] | None:
        """As `IdentifiedStorage.identify`; by nothing where the storage doesn't tell."""
        if isinstance(self._storage, IdentifiedStorage):
            with self._inside(path) as there:
                return self._storage.identify(there)
        try:
            return self.stat(path), b""
        except (FileNotFoundError, NotADirectoryError):
            return None

    def writer(self) -> StorageWriter | None:
        """As `WritableStorage.writer`, confined as well."""
        writer = self._storage.writer() if isinstance(self._storage, WritableStorage) else None
        return None if writer is None else _ScopedWriter(writer, self._inside)

    def scope(self, directory: bytes) -> ScopedStorage:
        """A scope inside this one, confined by both. Raises OptionsError."""
        return ScopedStorage(self, directory)

    @contextmanager
    def _inside(self, path: bytes) -> Iterator[bytes]:
        there = paths.join(self._scope, path)
        try:
            yield there
        except OSError as error:
            if error.filename == there:
                error.filename = path
            raise


class _ScopedWriter:
    """A storage's writer, below one directory."""

    def __init__(self, writer: StorageWriter, inside: Callable[[bytes], AbstractContextManager[bytes]]) -> None:
        self._writer = writer
        self._inside = inside
        self.weak = writer.weak

    def create(self, path: bytes, data: bytes) -> None:
        with self._inside(path) as there:
            self._writer.create(there, data)

    def replace(self, path: bytes, data: bytes, expected: tuple[Stat, bytes]) -> None:
        with self._inside(path) as there:
            self._writer.replace(there, data, expected)

    def remove(self, path: bytes, expected: tuple[Stat, bytes]) -> None:
        with self._inside(path) as there:
            self._writer.remove(there, expected)

    def make_directory(self, path: bytes) -> None:
        with self._inside(path) as there:
            self._writer.make_directory(there)

    def remove_directory(self, path: bytes) -> None:
        with self._inside(path) as there:
            self._writer.remove_directory(there)


def _refused(scope: bytes, why: str) -> OptionsError:
    return OptionsError(
        f"A storage can't be confined to '{paths.display(scope)}': {why}.",
        hint="Name a directory that the storage has, without symlinks on the way.",
    )
