"""An overlay as a filesystem of PyFilesystem2; needs the extra `pyfilesystem`."""

from __future__ import annotations

import errno
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Any, BinaryIO

from workbench.vfs import face_paths, paths
from workbench.vfs._pyfs_compat import import_fs
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind, Stat

import_fs()

from fs import errors  # noqa: E402 (only now it can be imported)
from fs.base import FS  # noqa: E402
from fs.copy import copy_modified_time  # noqa: E402
from fs.enums import ResourceType  # noqa: E402
from fs.error_tools import convert_os_errors  # noqa: E402
from fs.info import Info  # noqa: E402
from fs.mode import Mode  # noqa: E402
from fs.path import basename  # noqa: E402
from fs.permissions import Permissions  # noqa: E402
from fs.subfs import SubFS  # noqa: E402

_TYPES = {
    Kind.FILE: ResourceType.file,
    Kind.DIR: ResourceType.directory,
    Kind.SYMLINK: ResourceType.symlink,
    Kind.FIFO: ResourceType.fifo,
    Kind.SOCKET: ResourceType.socket,
}
_SECONDS = 1e9


class OverlayFS(FS):
    """The merged view of an overlay for PyFilesystem2: `OverlayFS(overlay)`.

    A name that isn't UTF-8 comes with surrogate escapes, as from `os.fsdecode`. Symlinks are followed inside the overlay,
    as `OSFS` does it; one that leads nowhere, or out, isn't found. The namespaces are basic, details, access and link.
    `move` and `movedir` are one rename where they can be. Raises what `fs.errors` has, and OverlayError as `Overlay`.
    Closing it leaves the overlay open.
    """

    _meta: Mapping[str, object] = {
        "case_insensitive": False,
        "invalid_path_chars": "\0",
        "network": False,
        "read_only": False,
        "supports_rename": False,  # of paths of this machine: there are none
        "thread_safe": True,
        "unicode_paths": True,
        "virtual": False,
    }

    def __init__(self, overlay: Overlay) -> None:
        super().__init__()
        self.overlay = overlay

    def __repr__(self) -> str:
        return f"OverlayFS({self.overlay!r})"

    def validatepath(self, path: str) -> str:
        """As `fs.base.FS.validatepath`; InvalidCharsInPath also for a surrogate that stands for no byte."""
        valid = super().validatepath(path)
        try:
            path.encode("utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise errors.InvalidCharsInPath(path) from error
        return str(valid)

    # What every filesystem has to have

    def getinfo(self, path: str, namespaces: Collection[str] | None = None) -> Info:
        """As `fs.base.FS.getinfo`."""
        valid = self.validatepath(path)
        with _errors("getinfo", path):
            return self._info(basename(valid), self._entry(valid), namespaces or ())

    def listdir(self, path: str) -> list[str]:
        """As `fs.base.FS.listdir`, sorted bytewise."""
        valid = self.validatepath(path)
        with _errors("listdir", path, directory=True):
            return [face_paths.decode(name) for name in self.overlay.list(self._target(valid))]

    def scandir(
        self, path: str, namespaces: Collection[str] | None = None, page: tuple[int, int] | None = None
    ) -> Iterator[Info]:
        """As `fs.base.FS.scandir`, without symlinks that lead nowhere."""
        valid = self.validatepath(path)
        with _errors("scandir", path, directory=True):
            at = self._target(valid)
            names = self.overlay.list(at)
        found = self._scan(at, names, namespaces or ())
        return found if page is None else islice(found, *page)

    def makedir(self, path: str, permissions: Permissions | None = None, recreate: bool = False) -> SubFS:
        """As `fs.base.FS.makedir`."""
        valid = self.validatepath(path)
        with _errors("makedir", path, directory=True):
            at = self._entry(valid)
            if self.overlay.kind(at) is None:
                self.overlay.mkdir(at, Permissions.get_mode(permissions))
            elif not recreate:
                raise paths.error(errno.EEXIST, at)
        return self.opendir(valid)

    def openbin(self, path: str, mode: str = "r", buffering: int = -1, **_: Any) -> BinaryIO:
        """As `fs.base.FS.openbin`."""
        asked = Mode(mode)
        asked.validate_bin()
        valid = self.validatepath(path)
        with _errors("openbin", path):
            at = self._entry(valid) if asked.exclusive else self._target(valid)
            return self.overlay.open(at, asked.to_platform_bin())

    def remove(self, path: str) -> None:
        """As `fs.base.FS.remove`."""
        valid = self.validatepath(path)
        with _errors("remove", path):
            self.overlay.unlink(self._entry(valid))

    def removedir(self, path: str) -> None:
        """As `fs.base.FS.removedir`."""
        valid = self.validatepath(path)
        if valid == "/":
            raise errors.RemoveRootError(path)
        with _errors("removedir", path, directory=True):
            self.overlay.rmdir(self._entry(valid))

    def setinfo(self, path: str, info: Mapping[str, Mapping[str, Any]]) -> None:
        """As `fs.base.FS.setinfo`: times and permissions."""
        valid = self.validatepath(path)
        with _errors("setinfo", path):
            at = self._target(valid)
            self.overlay.stat(at)
            details = info.get("details", {})
            modified = details.get("modified", details.get("accessed"))
            if modified is not None:
                accessed = details.get("accessed", modified)
                self.overlay.utime(at, _ns(modified), atime_ns=_ns(accessed))
            permissions = info.get("access", {}).get("permissions")
            if permissions is not None:
                self.overlay.chmod(at, Permissions.load(list(permissions)).mode)

    # What it can do better than the ways that every filesystem has

    def islink(self, path: str) -> bool:
        """As `fs.base.FS.islink`."""
        valid = self.validatepath(path)
        with _errors("islink", path):
            return self.overlay.stat(self._entry(valid)).kind is Kind.SYMLINK

    def removetree(self, dir_path: str) -> None:
        """As `fs.base.FS.removetree`, in one step; of the root everything that is listed."""
        valid = self.validatepath(dir_path)
        with _errors("removetree", dir_path, directory=True):
            at = self._entry(valid)
            if self.overlay.stat(at).kind is not Kind.DIR:
                raise paths.error(errno.ENOTDIR, at)
            for each in [at] if at else self.overlay.list(b""):
                self.overlay.remove_tree(each)

    def move(self, src_path: str, dst_path: str, overwrite: bool = False, preserve_time: bool = False) -> None:
        """As `fs.base.FS.move`. A moved file keeps its time in any case."""
        source, target = self._both("move", src_path, dst_path, overwrite)
        with _errors("move", dst_path):
            self.overlay.rename(source, target)

    def copy(self, src_path: str, dst_path: str, overwrite: bool = False, preserve_time: bool = False) -> None:
        """As `fs.base.FS.copy`. Onto itself it copies nothing, which fs-next has an error for."""
        source, target = self._both("copy", src_path, dst_path, overwrite)
        if source == target and hasattr(errors, "IllegalDestination"):
            raise errors.IllegalDestination(dst_path)
        with _errors("copy", dst_path):
            self.overlay.copy(self.overlay.resolve(source), target)
        if preserve_time:
            copy_modified_time(self, src_path, self, dst_path)

    def movedir(self, src_path: str, dst_path: str, create: bool = False, preserve_time: bool = False) -> None:
        """As `fs.base.FS.movedir`: into a directory that is there goes what is in the other."""
        source, target = self.validatepath(src_path), self.validatepath(dst_path)
        if not create or self.exists(target) or not self.isdir(source):
            super().movedir(src_path, dst_path, create=create, preserve_time=preserve_time)
            return
        with _errors("movedir", dst_path, directory=True):
            self.overlay.rename(self._target(source), self._entry(target))

    # Within

    def _entry(self, valid: str) -> bytes:
        return face_paths.entry(self.overlay, face_paths.encode(valid.strip("/")))

    def _target(self, valid: str) -> bytes:
        return face_paths.target(self.overlay, face_paths.encode(valid.strip("/")))

    def _both(self, operation: str, src_path: str, dst_path: str, overwrite: bool) -> tuple[bytes, bytes]:
        """Where a file stands and where it shall."""
        source, target = self.validatepath(src_path), self.validatepath(dst_path)
        if not overwrite and self.exists(target):
            raise errors.DestinationExists(dst_path)
        if self.getinfo(source).is_dir:
            raise errors.FileExpected(src_path)
        with _errors(operation, dst_path):
            return self._entry(source), self._entry(target)

    def _scan(self, at: bytes, names: list[bytes], namespaces: Collection[str]) -> Iterator[Info]:
        for name in names:
            try:
                yield self._info(face_paths.decode(name), paths.join(at, name), namespaces)
            except OSError as error:
                # Gone meanwhile, or a symlink that leads nowhere.
                if error.errno not in _NOWHERE:
                    raise

    def _info(self, name: str, at: bytes, namespaces: Collection[str]) -> Info:
        own = self.overlay.stat(at)
        behind = self.overlay.stat(self.overlay.resolve(at)) if own.kind is Kind.SYMLINK else own
        raw: dict[str, dict[str, object]] = {"basic": {"name": name, "is_dir": behind.kind is Kind.DIR}}
        if "details" in namespaces:
            raw["details"] = _details(behind)
        if "access" in namespaces:
            permissions = Permissions(mode=behind.mode).dump()
            raw["access"] = {"permissions": permissions, "uid": behind.uid, "gid": behind.gid}
        if "link" in namespaces:
            target = face_paths.decode(self.overlay.readlink(at)) if own.kind is Kind.SYMLINK else None
            raw["link"] = {"target": target}
        return Info(raw)


_NOWHERE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV})


@contextmanager
def _errors(operation: str, path: str, *, directory: bool = False) -> Iterator[None]:
    """OSErrors as what `fs.errors` has for them."""
    with convert_os_errors(operation, path, directory=directory):
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EXDEV):
                raise
            raise errors.ResourceNotFound(path, exc=error) from error


def _details(stat: Stat) -> dict[str, object]:
    return {
        "_write": ["modified"],
        "type": int(_TYPES.get(stat.kind, ResourceType.unknown)),
        "size": stat.size,
        "accessed": None,  # can be set, isn't told
        "modified": stat.mtime_ns / _SECONDS,
        "metadata_changed": stat.ctime_ns / _SECONDS,
        "created": None,
    }


def _ns(seconds: float) -> int:
    return int(seconds * _SECONDS)
