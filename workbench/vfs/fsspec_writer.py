"""Writing to an object store through fsspec: what isn't there is made, what is there only replaced as it was last seen."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from fsspec.spec import AbstractFileSystem

from workbench.vfs import paths
from workbench.vfs.fsspec_errors import said_of
from workbench.vfs.storage import IdentifiedStorage, Stat

_S3 = frozenset({"s3", "s3a"})

WRITABLE = _S3 | {"memory"}
"""Protocols whose `pipe_file(mode="create")` is known to be one step."""

_ONE_PUT = 5 << 30
"""Bytes that S3 takes in one request, which alone can carry a condition."""


class FsspecWriter:
    """Writes below a directory of an fsspec filesystem of one of the `WRITABLE` protocols. As `storage.StorageWriter`.

    S3 checks the ETag itself, in the same request. In fsspec's memory filesystem another thread might come in between.
    """

    def __init__(self, fs: AbstractFileSystem, name: Callable[[bytes], str], storage: IdentifiedStorage) -> None:
        """`name` says what the filesystem calls a path of `storage`."""
        self._fs = fs
        self._name = name
        self._storage = storage
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        self._s3 = bool(protocols & _S3)
        self.weak = not self._s3

    def create(self, path: bytes, data: bytes) -> None:
        """As `StorageWriter.create`."""
        options = {"chunksize": _ONE_PUT} if self._s3 else {}
        try:
            with said_of(path):
                self._fs.pipe_file(self._name(path), data, mode="create", **options)
        except OSError as error:
            if error.errno != errno.EEXIST and self._identify(path) is not None:
                raise paths.error(errno.EEXIST, path) from error
            raise

    def replace(self, path: bytes, data: bytes, expected: tuple[Stat, bytes]) -> None:
        """As `StorageWriter.replace`."""
        condition = {"IfMatch": expected[1].decode(), "chunksize": _ONE_PUT} if self._s3 else {}
        self._change(path, expected, lambda name: self._fs.pipe_file(name, data, **condition))

    def remove(self, path: bytes, expected: tuple[Stat, bytes]) -> None:
        """As `StorageWriter.remove`."""
        self._change(path, expected, lambda name: self._remove(name, expected[1]))

    def make_directory(self, path: bytes) -> None:
        """As `StorageWriter.make_directory`: in S3 an empty object whose name ends with a slash."""
        with said_of(path):
            if self._s3:
                bucket, key, _ = self._fs.split_path(self._name(path))
                self._fs.call_s3("put_object", Bucket=bucket, Key=key + "/", Body=b"")
                self._fs.invalidate_cache(self._name(path))
            else:
                self._fs.makedirs(self._name(path), exist_ok=True)

    def remove_directory(self, path: bytes) -> None:
        """As `StorageWriter.remove_directory`."""
        with said_of(path):
            if self._s3:
                bucket, key, _ = self._fs.split_path(self._name(path))
                self._fs.call_s3("delete_object", Bucket=bucket, Key=key + "/")
                self._fs.invalidate_cache(self._name(path))
            elif self._fs.isdir(self._name(path)) and not self._fs.ls(self._name(path)):
                self._fs.rmdir(self._name(path))

    def _remove(self, name: str, version: bytes) -> None:
        if not self._s3:
            self._fs.rm_file(name)
            return
        bucket, key, _ = self._fs.split_path(name)
        self._fs.call_s3("delete_object", Bucket=bucket, Key=key, IfMatch=version.decode())
        self._fs.invalidate_cache(name)

    def _change(self, path: bytes, expected: tuple[Stat, bytes], change: Callable[[str], Any]) -> None:
        if not is_same(self._identify(path), expected):
            raise paths.error(errno.ESTALE, path)
        try:
            with said_of(path):
                change(self._name(path))
        except OSError as error:
            if not is_same(self._identify(path), expected):
                raise paths.error(errno.ESTALE, path) from error
            raise

    def _identify(self, path: bytes) -> tuple[Stat, bytes] | None:
        self._fs.invalidate_cache()
        return self._storage.identify(path)


def is_same(found: tuple[Stat, bytes] | None, expected: tuple[Stat, bytes]) -> bool:
    """Whether it's the same content, as far as a storage tells: by its version, else by size and time."""
    if found is None or found[0].kind is not expected[0].kind:
        return False
    if found[1] and expected[1]:
        return found[1] == expected[1]
    return (found[0].size, found[0].mtime_ns) == (expected[0].size, expected[0].mtime_ns)
