"""What an fsspec filesystem says of an entry, read as a `Stat`: each filesystem names things its own way."""

from __future__ import annotations

import email.utils
import os
import stat as stat_module
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from workbench.vfs.storage import Kind, Stat

Info = Mapping[str, Any]

_FILE_MODE = 0o644
_DIRECTORY_MODE = 0o755
_LINK_MODE = 0o777

# In this order: local, tar and sftp; s3; azure; gcs; http and webdav; zip; memory, where nothing better is told.
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "date_time", "created")

# s3; gcs; azure.
_VERSIONS = ("ETag", "generation", "etag")

_UNIX = 3
"""`create_system` of a zip entry whose upper attribute half is a Unix mode (APPNOTE.TXT 4.4.2.2)."""


def kind_of(info: Info) -> Kind:
    """What an entry is: a symlink where the filesystem tells of it in any of its ways, else a file or a directory.

    What is none of these is a device, which every reader refuses.
    """
    named = info.get("type")
    if info.get("islink") or named in ("link", "symlink") or stat_module.S_IFMT(_mode(info)) == stat_module.S_IFLNK:
        return Kind.SYMLINK
    if named == "directory":
        return Kind.DIR
    return Kind.FILE if named == "file" else Kind.DEVICE


def target_of(info: Info) -> bytes | None:
    """A symlink's target, where the filesystem tells it with the rest."""
    target = info.get("destination") or info.get("linkname")
    if target is None or isinstance(target, bytes):
        return target
    return os.fsencode(str(target))


def version_of(info: Info) -> bytes:
    """What an object store calls the version of a content, empty where it has no word for it."""
    found = next((info[field] for field in _VERSIONS if info.get(field)), "")
    return str(found).encode()


def stat_of(info: Info, kind: Kind) -> Stat:
    """The `Stat` of an entry of this kind.

    Permissions are the filesystem's own, without setuid, setgid and sticky, which an archive shall not hand out; where
    it has none 0o644 and 0o755. Owner and group are the caller's. The time is the first that it tells of, else 0; a
    size that it doesn't know is 0. There are no inodes: 0, like the device.
    """
    mode = _mode(info) & 0o777 if kind is not Kind.SYMLINK else _LINK_MODE
    if not mode:
        mode = _DIRECTORY_MODE if kind is Kind.DIR else _FILE_MODE
    size = info.get("size") if kind is not Kind.DIR else 0
    if kind is Kind.SYMLINK and (target := target_of(info)) is not None:
        size = len(target)
    time_ns = _time_ns(info)
    return Stat(kind, mode, os.geteuid(), os.getegid(), int(size or 0), time_ns, time_ns, 0, 1, 0)


def _mode(info: Info) -> int:
    mode = info.get("mode")
    if isinstance(mode, int):
        return mode
    if isinstance(mode, str):  # git: octal digits
        try:
            return int(mode, 8)
        except ValueError:
            return 0
    attributes = info.get("external_attr")
    if isinstance(attributes, int) and info.get("create_system") == _UNIX:
        return attributes >> 16
    return 0


def _time_ns(info: Info) -> int:
    for field in _TIMES:
        if (value := info.get(field)) is not None and (time_ns := _as_ns(value)) is not None:
            return time_ns
    return 0


def _as_ns(value: object) -> int | None:
    try:
        if isinstance(value, str):
            value = _parsed(value)
        elif isinstance(value, Sequence):
            value = datetime(*value[:6]).replace(tzinfo=UTC)  # zip: the maker's local time, which it doesn't say
        if isinstance(value, datetime):
            aware = value if value.tzinfo else value.replace(tzinfo=UTC)
            return int(aware.timestamp()) * 1_000_000_000 + aware.microsecond * 1_000
        if isinstance(value, int | float):
            return int(value * 1_000_000_000)
    except (ValueError, TypeError, OverflowError, OSError):
        # What can't be read as a time is no time.
        return None
    return None


def _parsed(value: str) -> datetime:
    try:
        return datetime.fromisoformat(value)
    except ValueError:
        return email.utils.parsedate_to_datetime(value)
