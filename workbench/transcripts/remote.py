"""Any fsspec filesystem as a platform: session files in an archive, on another host, in a bucket."""

from __future__ import annotations

import errno
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from anyio import to_thread
from fsspec import AbstractFileSystem

from workbench.transcripts.homes import join
from workbench.transcripts.platform import FileKind, SessionEntry, SessionStat, link_refused
from workbench.transcripts.values import moment
from workbench.transcripts.zstd import decompress

_NEVER = datetime(1970, 1, 1, tzinfo=UTC)


class FsspecPlatform:
    """An fsspec filesystem. It has no SQLite; `home` is where on it the user's home directory is."""

    def __init__(self, fs: AbstractFileSystem, *, env: Mapping[str, str] | None = None, home: str = "/") -> None:
        self.env: Mapping[str, str] = env or {}
        self.home = home
        self.fs = _FsspecFs(fs)
        self.decompress = decompress
        self.sqlite = None


class _FsspecFs:
    def __init__(self, fs: AbstractFileSystem) -> None:
        self._fs = fs

    async def stat(self, path: str) -> SessionStat:
        return _stat_of(await to_thread.run_sync(self._fs.info, path))

    async def list(self, path: str) -> tuple[SessionEntry, ...]:
        if (await self.stat(path)).kind != "directory":
            raise NotADirectoryError(errno.ENOTDIR, "not a directory", path)
        found = await to_thread.run_sync(lambda: self._fs.ls(path, detail=True))
        entries = []
        for info in found:
            name, stat = _name_of(info), _stat_of(info)
            if stat.is_link:
                try:
                    stat = await self.stat(join(path, name))
                except OSError:  # it leads nowhere
                    continue
            entries.append(SessionEntry(name, stat))
        return tuple(sorted(entries, key=lambda entry: entry.name))

    async def read(self, path: str, *, offset: int = 0, length: int | None = None) -> bytes:
        stat = await self.stat(path)
        if stat.is_link:
            raise link_refused(path)
        end = stat.size if length is None else min(stat.size, offset + length)
        if offset >= end:
            return b""
        return bytes(await to_thread.run_sync(lambda: self._fs.cat_file(path, start=offset, end=end)))


def _name_of(info: Mapping[str, Any]) -> str:
    return str(info["name"]).rstrip("/").rpartition("/")[2]


def _stat_of(info: Mapping[str, Any]) -> SessionStat:
    kinds: dict[object, FileKind] = {"file": "file", "directory": "directory"}
    changed = next((info[key] for key in ("mtime", "LastModified", "last_modified", "created") if info.get(key)), None)
    if isinstance(changed, datetime):
        changed = changed.replace(tzinfo=UTC) if changed.tzinfo is None else changed
    else:
        changed = moment(changed)
    kind, size = kinds.get(info.get("type"), "other"), int(info.get("size") or 0)
    return SessionStat(kind, size, changed or _NEVER, is_link=bool(info.get("islink")))
