"""An overlay as a filesystem of fsspec, and so of everything that reads and writes through fsspec."""

from __future__ import annotations

import errno
import glob
import io
import os
import shutil
import stat as stat_module
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any, BinaryIO, cast

from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

from workbench.errors import OptionsError
from workbench.vfs import face_paths, paths
from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind, Stat

_FORMATS = {
    Kind.FILE: stat_module.S_IFREG,
    Kind.DIR: stat_module.S_IFDIR,
    Kind.SYMLINK: stat_module.S_IFLNK,
    Kind.FIFO: stat_module.S_IFIFO,
    Kind.SOCKET: stat_module.S_IFSOCK,
}
_TYPES = {Kind.FILE: "file", Kind.DIR: "directory"}


class OverlayFileSystem(AbstractFileSystem):
    """The merged view of an overlay for fsspec: `fsspec.filesystem("workbench", overlay=overlay)`.

    `workbench://a/b`, `/a/b` and `a/b` are the same path, shown as `/a/b`. A name that isn't
    UTF-8 comes with surrogate escapes, as from `os.fsdecode`. Symlinks are followed inside the overlay, as a local
    filesystem does it: by everything but `rm`, `mv`, `islink`, `lexists`, and by listings where they lead to files;
    one that leads to a directory is listed as `other`, so that nothing walks through it. `mv` is one rename. Where
    `auto_mkdir` is true, as on an object store, whatever makes a file makes the directories above it. Files written in
    a transaction are kept on this machine's disk until it ends. Nothing is cached.

    Raises OSError with errno and path, OptionsError for an impossible path (`..`, NUL), and OverlayError as `Overlay`.
    It can't be pickled: an overlay belongs to its process.
    """

    protocol = "workbench"
    root_marker = "/"
    cachable = False

    def __init__(self, overlay: Overlay, *, auto_mkdir: bool = True, **storage_options: Any) -> None:
        super().__init__(**storage_options)
        self.overlay = overlay
        self.auto_mkdir = auto_mkdir

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(each) for each in path]
        inside = str(stringify_path(path)).removeprefix("workbench://")
        return "/" + "/".join(name for name in inside.split("/") if name not in ("", "."))

    def __reduce__(self) -> Any:
        raise TypeError("an overlay can't be pickled: open it anew in the other process")

    # Looking

    def info(self, path: Any, **_: Any) -> dict[str, Any]:
        """What is at a path, behind any symlinks; `islink` and `destination` tell of one at the path itself."""
        shown, at = self._entry(path)
        return self._describe(shown, at, self.overlay.stat(at))

    def ls(self, path: Any, detail: bool = True, *, described: bool = True, **_: Any) -> list[Any]:
        """The entries of a directory, sorted bytewise, or a file alone; as dicts, or with `detail=False` as paths.

        Unless `described`, dicts have the name and the type alone, for which no entry is looked at.
        """
        shown = self._strip_protocol(path)
        at = face_paths.target(self.overlay, _encoded(shown))
        if self.overlay.stat(at).kind is not Kind.DIR:
            return [self.info(shown)] if detail else [shown]
        found: list[Any] = []
        for name, kind in self.overlay.entries(at):
            child = _child(shown, face_paths.decode(name))
            if not detail:
                found.append(child)
            elif described:
                found.extend(self._listed(child, paths.join(at, name), kind))
            else:
                found.append({"name": child, "type": _TYPES.get(kind, "other")})
        return found

    def walk(
        self,
        path: Any,
        maxdepth: int | None = None,
        topdown: bool = True,
        on_error: str | Callable[[OSError], object] = "omit",
        *,
        detail: bool = False,
        described: bool | None = None,
        **_: Any,
    ) -> Iterator[tuple[str, Any, Any]]:
        """As fsspec's own, to any depth."""
        if maxdepth is not None and maxdepth < 1:
            raise ValueError("maxdepth must be at least 1")
        waiting: list[tuple[str, int, tuple[Any, Any] | None]] = [(self._strip_protocol(path), 1, None)]
        while waiting:
            here, depth, done = waiting.pop()
            if done is not None:
                yield here, *done
                continue
            try:
                listing = self.ls(here, described=detail if described is None else described)
            except OSError as error:
                if callable(on_error):
                    on_error(error)
                elif on_error == "raise":
                    raise
                continue
            named = {"" if each["name"] == here else each["name"].rpartition("/")[2]: each for each in listing}
            below: Any = {name: each for name, each in named.items() if each["type"] == "directory"}
            files: Any = {name: each for name, each in named.items() if name not in below}
            if not detail:
                below, files = list(below), list(files)
            if topdown:
                yield here, below, files
            else:
                waiting.append((here, depth, (below, files)))
            if maxdepth is None or depth < maxdepth:
                waiting.extend((_child(here, name), depth + 1, None) for name in reversed(list(below)))

    def find(
        self, path: Any, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **options: Any
    ) -> Any:
        """As fsspec's own."""
        # What it passes on reaches `ls`.
        return super().find(path, maxdepth, withdirs, detail, **{"described": detail, **options})

    def glob(self, path: Any, maxdepth: int | None = None, **options: Any) -> Any:
        """As fsspec's own."""
        return super().glob(path, maxdepth, described=bool(options.get("detail")), **options)

    def exists(self, path: Any, **_: Any) -> bool:
        """Whether a path leads to anything; a symlink that leads nowhere, or out of the overlay, doesn't."""
        try:
            self.info(path)
        except (FileNotFoundError, NotADirectoryError, OptionsError):
            return False
        except OSError as error:
            if error.errno not in (errno.ELOOP, errno.EXDEV):
                raise
            return False
        return True

    def lexists(self, path: Any, **_: Any) -> bool:
        """As `exists`, and true of any symlink."""
        try:
            return self.overlay.exists(self._entry(path)[1])
        except (FileNotFoundError, NotADirectoryError, OptionsError):
            return False

    def islink(self, path: Any) -> bool:
        """Whether a path is a symlink itself."""
        try:
            return self.overlay.stat(self._entry(path)[1]).kind is Kind.SYMLINK
        except (FileNotFoundError, NotADirectoryError):
            return False

    def created(self, path: Any) -> datetime:
        """When the entry last changed, in any way: a Linux filesystem keeps no better answer."""
        return datetime.fromtimestamp(self.info(path)["created"], UTC)

    def modified(self, path: Any) -> datetime:
        """When the content last changed."""
        return datetime.fromtimestamp(self.info(path)["mtime"], UTC)

    def cat_file(self, path: Any, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """A file's content, or a part of it; negative numbers count from its end."""
        with self._open(self._strip_protocol(path), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            first, last, _step = slice(start, end).indices(size)
            file.seek(first)
            return file.read(max(0, last - first))

    def tail(self, path: Any, size: int = 1024) -> bytes:
        """The last `size` bytes of a file."""
        return self.cat_file(path, -size) if size else b""

    # Writing

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: object = None,
        **_: Any,
    ) -> BinaryIO:
        if "r" not in mode and not autocommit:
            return cast(BinaryIO, _Deferred(self, path, mode))
        if "r" in mode and "+" in mode and self._intrans:
            raise OptionsError(
                f"A file can't be changed in place (mode {mode!r}) in a transaction.",
                hint="Write it whole, or outside of the transaction.",
            )
        if "r" not in mode:
            self._make_above(path)
        at = _encoded(path)
        find = face_paths.entry if "x" in mode else face_paths.target
        return self.overlay.open(find(self.overlay, at), mode)

    def pipe_file(self, path: Any, value: Any, mode: str = "overwrite", **_: Any) -> None:
        """Put a file's content in place; with `mode="create"` FileExistsError where something is there."""
        with self.open(path, "xb" if mode == "create" else "wb") as file:
            file.write(value)

    def touch(self, path: Any, truncate: bool = True, **_: Any) -> None:
        """Make an empty file, or empty the one that is there; without `truncate` only its time changes."""
        if truncate or not self.exists(path):
            self.open(path, "wb").close()
        else:
            self.overlay.utime(self._target(path)[1])

    def mkdir(self, path: Any, create_parents: bool = True, **_: Any) -> None:
        """Make a directory. Raises FileExistsError, FileNotFoundError without `create_parents`."""
        if create_parents:
            self.makedirs(path)
        else:
            self.overlay.mkdir(self._entry(path)[1])

    def makedirs(self, path: Any, exist_ok: bool = False) -> None:
        """Make a directory and those above it. Raises FileExistsError, NotADirectoryError."""
        at = _encoded(self._strip_protocol(path))
        if not face_paths.make_directories(self.overlay, at) and not exist_ok:
            raise paths.error(errno.EEXIST, at)

    def rmdir(self, path: Any) -> None:
        """Remove an empty directory."""
        self.overlay.rmdir(self._entry(path)[1])

    def rm_file(self, path: Any) -> None:
        """Remove anything but a directory."""
        self.overlay.unlink(self._entry(path)[1])

    def _rm(self, path: Any) -> None:
        self.rm_file(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove files and, with `recursive`, directories. IsADirectoryError without.

        A glob is expanded, unless something is called just like it.
        """
        trees = recursive and maxdepth is None
        found = self._matching(path)
        if recursive and not trees:
            found = self.expand_path(found, recursive=True, maxdepth=maxdepth)
        for each in reversed(found):
            _, at = self._entry(each)
            if self.overlay.stat(at).kind is not Kind.DIR:
                self.overlay.unlink(at)
            elif trees:
                self._remove_tree(at)
            elif recursive:
                self.overlay.rmdir(at)
            else:
                raise paths.error(errno.EISDIR, at)

    def cp_file(self, path1: Any, path2: Any, **_: Any) -> None:
        """Copy a file; of a directory only itself."""
        source = self._target(path1)[1]
        if self.overlay.stat(source).kind is Kind.DIR:
            self.makedirs(path2, exist_ok=True)
            return
        self._make_above(self._strip_protocol(path2))
        self.overlay.copy(source, self._target(path2)[1])

    def mv(self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any) -> None:
        """Move one entry, whole, into `path2` where that's a directory; a file there is replaced.

        Of a list, a glob, or the content of a directory (`a/`) each entry is copied and removed, as elsewhere.
        """
        several = isinstance(path1, list) or isinstance(path2, list)
        if several or maxdepth is not None or str(path1).endswith("/") or not self._is_literal(path1):
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth, **options)
            return
        shown, source = self._entry(path1)
        into = self._strip_protocol(path2)
        if into == shown:
            return
        if str(path2).endswith("/") or self.isdir(path2):
            into = _child(into, shown.rpartition("/")[2])
        self.overlay.stat(source)
        self._make_above(into)
        self.overlay.rename(source, self._entry(into)[1])

    def chmod(self, path: Any, mode: int) -> None:
        """Set permission bits, behind symlinks."""
        self.overlay.chmod(self._target(path)[1], mode)

    def symlink(self, src: Any, dst: Any) -> None:
        """Make a symlink at `dst` that leads to the path `src`, which needn't be there."""
        _, link = self._entry(dst)
        source = _encoded(self._strip_protocol(src))
        self.overlay.symlink(face_paths.relative_target(link, source), link)

    def link(self, src: Any, dst: Any) -> None:
        """Make `dst` another name of a file."""
        self.overlay.link(self._entry(src)[1], self._entry(dst)[1])

    # Within

    def _entry(self, path: Any) -> tuple[str, bytes]:
        """A path as it is shown, and where its entry stands: a symlink there isn't followed."""
        shown = self._strip_protocol(path)
        return shown, face_paths.entry(self.overlay, _encoded(shown))

    def _target(self, path: Any) -> tuple[str, bytes]:
        shown = self._strip_protocol(path)
        return shown, face_paths.target(self.overlay, _encoded(shown))

    def _is_literal(self, path: Any) -> bool:
        """Whether a path is no glob, or something is called just like it."""
        return not glob.has_magic(str(path)) or self.lexists(path)

    def _matching(self, path: Any) -> list[str]:
        found: list[str] = []
        for each in path if isinstance(path, list) else [path]:
            found += [self._strip_protocol(each)] if self._is_literal(each) else self.expand_path(each)
        return found

    def _make_above(self, path: str) -> None:
        if not self.auto_mkdir:
            return
        above = paths.parent(_encoded(path))
        if self.overlay.kind(above) is not Kind.DIR:
            try:
                face_paths.make_directories(self.overlay, above)
            except FileExistsError as error:
                raise paths.error(errno.ENOTDIR, _encoded(path)) from error

    def _remove_tree(self, at: bytes) -> None:
        # The root itself stays, and what isn't listed in it.
        for path in [at] if at else self.overlay.list(b""):
            self.overlay.remove_tree(path)

    def _listed(self, shown: str, at: bytes, kind: Kind) -> Iterator[dict[str, Any]]:
        """What a listing says of an entry; nothing of one that has vanished meanwhile."""
        try:
            own = self.overlay.stat(at)
        except (FileNotFoundError, NotADirectoryError):
            return
        if kind is not Kind.SYMLINK:
            yield self._describe(shown, at, own)
            return
        link = _info(shown, own) | {"islink": True, "destination": face_paths.decode(self.overlay.readlink(at))}
        try:
            behind = self._describe(shown, at, own)
        except OSError:
            # It leads nowhere, round in circles, or out.
            yield link
            return
        yield behind if behind["type"] == "file" else link

    def _describe(self, shown: str, at: bytes, own: Stat) -> dict[str, Any]:
        if own.kind is not Kind.SYMLINK:
            return _info(shown, own)
        behind = self.overlay.stat(self.overlay.resolve(at))
        destination = face_paths.decode(self.overlay.readlink(at))
        return _info(shown, behind) | {"islink": True, "destination": destination}


class _Deferred(io.BufferedRandom):
    """A file written in a transaction: a nameless file on this machine's disk until it's committed or discarded."""

    def __init__(self, fs: OverlayFileSystem, path: str, mode: str) -> None:
        if fs.isdir(path):
            raise paths.error(errno.EISDIR, _encoded(path))
        if "x" in mode and fs.lexists(path):
            raise paths.error(errno.EEXIST, _encoded(path))
        kept = tempfile.TemporaryFile("w+b", buffering=0)  # noqa: SIM115 (it lives until the transaction ends)
        super().__init__(io.FileIO(os.dup(kept.fileno()), "r+b"))
        self._kept = kept
        self._fs = fs
        self._path = path
        self._mode = mode

    def commit(self) -> None:
        """Bring what was written to where it belongs."""
        self.close()
        with self._kept as written, self._fs._open(self._path, self._mode, autocommit=True) as file:
            written.seek(0)
            shutil.copyfileobj(written, file)

    def discard(self) -> None:
        """Forget what was written."""
        self.close()
        self._kept.close()


def _encoded(shown: str) -> bytes:
    return face_paths.encode(shown.strip("/"))


def _child(path: str, name: str) -> str:
    return f"{path.rstrip('/')}/{name}"


def _info(shown: str, stat: Stat) -> dict[str, Any]:
    return {
        "name": shown,
        "size": 0 if stat.kind is Kind.DIR else stat.size,
        "type": _TYPES.get(stat.kind, "other"),
        "mode": _FORMATS[stat.kind] | stat.mode,
        "uid": stat.uid,
        "gid": stat.gid,
        "mtime": stat.mtime_ns / 1e9,
        "created": stat.ctime_ns / 1e9,
        "ino": stat.inode,
        "nlink": stat.nlink,
        "islink": False,
    }
