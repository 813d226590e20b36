"""Any fsspec filesystem as a lower layer: memory, zip, tar, git, http, s3 and whatever else has an implementation."""

from __future__ import annotations

import builtins
import errno
import io
import os
import re
import tarfile
from typing import Any, BinaryIO, cast

from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.tar import TarFileSystem
from fsspec.implementations.zip import ZipFileSystem
from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from workbench.errors import OptionsError
from workbench.vfs import fsspec_info, paths
from workbench.vfs.fsspec_errors import said_of
from workbench.vfs.fsspec_info import Info
from workbench.vfs.fsspec_writer import WRITABLE, FsspecWriter
from workbench.vfs.scoped import ScopedStorage
from workbench.vfs.storage import Kind, Stat

# Where a path is only a name, so that no symlink, and no file, in the middle of it can lead anywhere. In any other
# filesystem every component is looked at.
_FLAT = frozenset({"memory", "zip", "tar", "libarchive", "http", "https", "reference"}) | frozenset(
    {"s3", "s3a", "gcs", "gs", "abfs", "az", "adl", "oss", "oci"}
)

_HTTP_MISSING = (404, 410)


class FsspecStorage:
    """An fsspec filesystem, or a directory of it, for reading. Implements `Storage`; nothing is read before it's asked
    for, and a file is streamed.

    Names are encoded as UTF-8, with surrogate escapes for what isn't. A directory needs no entry of its own: that
    something is below it is enough. What a listing names `.`, `..` or with a NUL is left out, since no path leads to
    it. A symlink is followed by nobody, where the filesystem tells of symlinks (zip and tar do, with their targets). Of
    two entries with one name the filesystem's own `info` decides. Over http a name is as the server's page spells it,
    percent-encoded, and what isn't on the page is found by its exact path alone. What modes and times are where the
    filesystem has none says `fsspec_info.stat_of`. Whether it may be used from several threads is up to the filesystem.

    `root` is a path of that filesystem, without a protocol or with its own. A directory of this machine is refused with
    OptionsError: `LocalStorage` reaches it without the races that names have. All methods raise OptionsError for an
    impossible path, and OSError with errno and path: EIO for whatever else the filesystem raised, with its own error as
    the cause.
    """

    def __init__(self, fs: AbstractFileSystem, root: str = "") -> None:
        if _is_local(fs):
            raise OptionsError(
                "A directory of this machine can't be a storage through fsspec.",
                hint="Use LocalStorage, which never follows a symlink out of its root.",
            )
        protocols = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
        self._fs = fs
        self._protocols = protocols
        self._http = bool(protocols & {"http", "https"})
        self._git = type(fs).__module__ == "fsspec.implementations.git"
        self._flat = bool(protocols & _FLAT)
        self._members = _members(fs)
        base = root if self._git else str(fs._strip_protocol(root))
        self._base = self._archive_base(base.rstrip("/"))
        self._rooted = fs.root_marker == "/"

    def stat(self, path: bytes) -> Stat:
        """An entry's metadata. Raises FileNotFoundError, NotADirectoryError, or another OSError."""
        return self._stat_of(*self._look(path), path)

    def _stat_of(self, kind: Kind, info: Info, path: bytes) -> Stat:
        if kind is Kind.SYMLINK and fsspec_info.target_of(info) is None:
            info = {**info, "destination": self._content(path)}
        return fsspec_info.stat_of(info, kind)

    def list(self, path: bytes) -> builtins.list[bytes]:
        """The names in a directory, sorted bytewise. Raises as `stat`, and NotADirectoryError."""
        return [name for name, _ in self.entries(path)]

    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """As `list`, with the kind of each entry, for one listing of the filesystem."""
        if self._look(path)[0] is not Kind.DIR:
            raise paths.error(errno.ENOTDIR, path)
        found: dict[bytes, Kind] = {}
        for info in self._ls(path, path):
            name, kind = self._entry(path, info)
            if name and found.get(name, kind) is not kind:
                kind = self._look(paths.join(path, name))[0]
            if name:
                found[name] = kind
        return sorted(found.items())

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """No extended attributes: fsspec has none. Raises as `stat`."""
        self._look(path)
        return {}

    def identify(self, path: bytes) -> tuple[Stat, bytes] | None:
        """As `IdentifiedStorage.identify`: the version of a file's content where the filesystem tells of one (an ETag)."""
        try:
            kind, info = self._look(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return self._stat_of(kind, info, path), fsspec_info.version_of(info) if kind is Kind.FILE else b""

    def scope(self, directory: bytes) -> ScopedStorage:
        """What is below one of its directories, as a storage of its own: a tenant's, say. Raises OptionsError."""
        return ScopedStorage(self, directory)

    def writer(self) -> FsspecWriter | None:
        """What writes to it; only where it's known how the filesystem makes what isn't there, and nothing else."""
        if not self._protocols & WRITABLE:
            return None
        self._fs.invalidate_cache()
        return FsspecWriter(self._fs, self._name, self)

    def open(self, path: bytes) -> BinaryIO:
        """A regular file, for reading; it can be sought in where the filesystem can.

        Raises as `stat`, IsADirectoryError, and OSError: ELOOP on a symlink, EINVAL on what is neither.
        """
        kind, _ = self._look(path)
        if kind is not Kind.FILE:
            codes = {Kind.DIR: errno.EISDIR, Kind.SYMLINK: errno.ELOOP}
            raise paths.error(codes.get(kind, errno.EINVAL), path)
        return self._open(path)

    def read_bytes(self, path: bytes) -> bytes:
        """A regular file's content. Raises as `open`."""
        with self.open(path) as file:
            return file.read()

    def readlink(self, path: bytes) -> bytes:
        """A symlink's target. Raises as `stat`, and OSError(EINVAL) on anything else."""
        kind, info = self._look(path)
        if kind is not Kind.SYMLINK:
            raise paths.error(errno.EINVAL, path)
        target = fsspec_info.target_of(info)
        return self._content(path) if target is None else target

    def _open(self, path: bytes) -> BinaryIO:
        with said_of(path):
            file = self._fs.open(self._name(path), "rb")
        return cast(BinaryIO, io.BufferedReader(_Reader(file, path)))

    def _content(self, path: bytes) -> bytes:
        """Where a zip or git keeps the target of a symlink."""
        with self._open(path) as file:
            return file.read()

    def _look(self, path: bytes) -> tuple[Kind, Info]:
        names = paths.parts(path)
        if not self._flat:
            for depth in range(1, len(names)):
                above = b"/".join(names[:depth])
                if self._kind(above, self._info(above, path)) is not Kind.DIR:
                    raise paths.error(errno.ENOTDIR, path)
        if not names and not self._base:
            return Kind.DIR, {}
        try:
            info = self._info(path, path)
        except FileNotFoundError as missing:
            if self._is_below_other(names, path):
                raise paths.error(errno.ENOTDIR, path) from missing
            raise
        return self._kind(path, info), info

    def _is_below_other(self, names: tuple[bytes, ...], asked: bytes) -> bool:
        """Whether the nearest thing above is no directory."""
        for depth in range(len(names) - 1, 0, -1):
            above = b"/".join(names[:depth])
            try:
                return self._kind(above, self._info(above, asked)) is not Kind.DIR
            except FileNotFoundError:
                continue
        return False

    def _info(self, path: bytes, asked: bytes) -> Info:
        """What the filesystem says of a path; `asked` is the one that an error names."""
        if self._http:
            return self._http_info(path, asked)
        with said_of(asked):
            return dict(self._fs.info(self._name(path)))

    def _kind(self, path: bytes, info: Info) -> Kind:
        member = self._members.get(self._name(path)) if self._members else None
        if member is None or member.isdir() or member.islnk() or member.isfile():
            return fsspec_info.kind_of(info)
        return Kind.SYMLINK if member.issym() else Kind.DEVICE

    def _ls(self, path: bytes, asked: bytes) -> builtins.list[Info]:
        name = self._name(path)
        with said_of(asked):
            try:
                return list(self._fs.ls(name + "/" if self._http else name, detail=True))
            except FileNotFoundError:
                # An object store has nothing to list where a directory is only a name.
                return []

    def _entry(self, directory: bytes, info: Info) -> tuple[bytes, Kind]:
        """The name and kind of what a listing has; no name for what isn't in the directory or can't be named."""
        full = str(info["name"])
        base = self._name(directory).strip("/")
        inside = full.strip("/")
        if inside == base:
            return b"", Kind.DIR
        if base and inside.startswith(base + "/"):
            inside = inside[len(base) + 1 :]
        elif base:
            inside = inside.rpartition("/")[2]
        component, _, below = inside.partition("/")
        if component in ("", ".", "..") or "\0" in component or (self._http and _is_query(inside)):
            return b"", Kind.DIR
        with said_of(directory):
            name = component.encode("utf-8", "surrogateescape")
        return name, Kind.DIR if below else self._kind(paths.join(directory, name), info)

    def _name(self, path: bytes) -> str:
        inside = b"/".join(paths.parts(path)).decode("utf-8", "surrogateescape")
        name = f"{self._base}/{inside}" if inside and (self._base or self._rooted) else self._base + inside
        # fsspec's git takes what is before a ':' or '@' for a repository and a revision.
        return ":@" + name if self._git else name

    def _http_info(self, path: bytes, asked: bytes) -> Info:
        """Every URL is a file to fsspec; the page above it tells which are directories."""
        if not path:
            return {"type": "directory"}
        if _is_query(os.fsdecode(path)):
            raise paths.error(errno.ENOENT, asked)
        above, name = paths.parent(path), paths.name(path)
        if any(self._entry(above, info) == (name, Kind.DIR) for info in self._ls(above, asked)):
            return {"type": "directory"}
        with said_of(asked):
            try:
                return dict(self._fs.info(self._name(path)))
            except FileNotFoundError as error:
                # It says so of a server that doesn't answer, too.
                if error.__cause__ is None or getattr(error.__cause__, "status", None) in _HTTP_MISSING:
                    raise
                raise error.__cause__ from None

    def _archive_base(self, base: str) -> str:
        """Where an archive keeps everything below `./`, as `tar -c .` makes it, that is its root."""
        if base or not isinstance(self._fs, TarFileSystem | ZipFileSystem):
            return base
        with said_of(b""):
            names = {str(info["name"]).strip("/") for info in self._fs.ls("", detail=True)}
        return "." if names == {"."} else base


class _Reader(io.RawIOBase):
    """A file of fsspec as one of Python's, read-only and with a position of its own."""

    mode = "rb"

    def __init__(self, file: Any, path: bytes) -> None:
        super().__init__()
        # The memory filesystem hands out the one file that it keeps; a copy shares the bytes, not the position.
        self._file = io.BytesIO(file.getvalue()) if isinstance(file, io.BytesIO) else file
        self._path = path
        self._position = 0
        self._seekable = not (isinstance(file, AbstractBufferedFile) and file.size is None) and file.seekable()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._seekable

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        with said_of(self._path):
            data = self._file.read(len(view))
        view[: len(data)] = data
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if not self._seekable:
            raise io.UnsupportedOperation("seek")
        with said_of(self._path):
            self._file.seek(offset, whence)
            self._position = int(self._file.tell())
        return self._position

    def tell(self) -> int:
        return self._position

    def close(self) -> None:
        if not self.closed:
            super().close()
            with said_of(self._path):
                self._file.close()


def _is_local(fs: Any) -> bool:
    while fs is not None:
        if isinstance(fs, LocalFileSystem):
            return True
        fs = getattr(fs, "fs", None)
    return False


def _members(fs: AbstractFileSystem) -> dict[str, tarfile.TarInfo]:
    """The members of a tar, which fsspec calls files whatever they are."""
    if not isinstance(fs, TarFileSystem):
        return {}
    return {re.sub("/+", "/", member.name.rstrip("/")): member for member in fs.tar.getmembers()}


def _is_query(url: str) -> bool:
    return "?" in url or "#" in url
