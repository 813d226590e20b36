"""The journal of one commit: what it's about to do, written before it does it, so that a crash can be put right.

In `commits/`:

```
.pending -> <commit-id>    the one commit on its way, if any; made first, removed last
.unsettled/<commit-id>     landed, and its overlay doesn't know yet
.restored                  the ctimes of files that our renames alone touched (`bases.Restored`), lines like the journal's
<commit-id>/
  journal                  the records below
  old/<number>             pre-images: what operation <number> replaced or deleted, a file, symlink or whole directory
  kept/<number>            what an undo couldn't put back, because a person's edit stands there
  landed.json              the change set that landed, and the bases it left (`landed.Committed`)
```

A record is a line: 8 hex digits of its CRC-32 (zlib's), a space, JSON in ASCII. Reading ends at the first line that is
torn or wrong. The records, in order:

- `begin`: the operations, and the name of the staging directory, which doesn't exist yet. On disk before anything is.
- `staged`: what stands in the staging directory, inode by inode. On disk before the workspace is touched.
- `applied`: every operation was applied and verified, and is on disk. From here on a crash is finished, not undone.
- `done`, or `undone` with the places of what was kept.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

from workbench.checkpoints.manifest import Base
from workbench.review.bases import Found, Restored
from workbench.review.changeset import Change, State
from workbench.review.landed import (
    Json,
    base_of_record,
    base_record,
    change_of_record,
    change_record,
    data,
    state_of_record,
    state_record,
    text,
)
from workbench.review.pending import PENDING
from workbench.vfs.statefile import sync_directory

VERSION = 1
_RESTORED = ".restored"


class Action(StrEnum):
    """One step of applying: a new name, another entry at a name, a name less, other permission bits."""

    CREATE = "create"
    REPLACE = "replace"
    DELETE = "delete"
    MODE = "mode"


@dataclass(frozen=True, slots=True)
class Operation:
    """One step at `path`.

    `old` is what must come out of there, `new` what goes in: the entry at `path` first, then everything below it.
    `old_mode` and `new_mode` count for MODE alone.
    """

    number: int
    action: Action
    path: bytes
    old: tuple[Base, ...] = ()
    new: tuple[tuple[bytes, State], ...] = ()
    old_mode: int = 0
    new_mode: int = 0

    @property
    def slot(self) -> bytes:
        """Its name in the staging directory: of what goes in, and after an exchange of what came out."""
        return b"%d" % self.number

    @property
    def old_slot(self) -> bytes:
        """Where what came out stands, where the filesystem has no exchange."""
        return b"%d.old" % self.number

    def is_target(self, found: Found) -> bool:
        """Whether a MODE operation means this very inode; that of a directory that is itself new isn't known."""
        return not self.old[0].inode or found.is_inode_of(self.old[0])

    def record(self) -> Json:
        return {
            "number": self.number,
            "action": self.action.value,
            "path": text(self.path),
            "old": [base_record(base) for base in self.old],
            "new": [[text(path), state_record(state)] for path, state in self.new],
            "modes": [self.old_mode, self.new_mode],
        }

    @classmethod
    def of_record(cls, fields: Json) -> Self:
        new = [(data(path), state_of_record(state)) for path, state in fields["new"]]
        return cls(
            fields["number"],
            Action(fields["action"]),
            data(fields["path"]),
            tuple(base_of_record(base) for base in fields["old"]),
            tuple((path, state) for path, state in new if state is not None),
            *fields["modes"],
        )


@dataclass(frozen=True, slots=True)
class Intent:
    """The `begin` record: all that a recovery needs to know. `root_*` identify the workspace's directory."""

    commit_id: str
    session: str
    checkpoint: str
    digest: str
    created_ns: int
    staging: bytes
    root_inode: int
    root_handle: bytes
    root_mtime_ns: int
    operations: tuple[Operation, ...]
    changes: tuple[Change, ...]
    message: str = ""

    def record(self) -> Json:
        return {
            "record": "begin",
            "version": VERSION,
            "commit_id": self.commit_id,
            "session": self.session,
            "checkpoint": self.checkpoint,
            "digest": self.digest,
            "created_ns": self.created_ns,
            "staging": text(self.staging),
            "root": [self.root_inode, self.root_handle.hex(), self.root_mtime_ns],
            "operations": [operation.record() for operation in self.operations],
            "changes": [change_record(change) for change in self.changes],
            "message": self.message,
        }

    @classmethod
    def of_record(cls, fields: Json) -> Self:
        inode, handle, mtime_ns = fields["root"]
        return cls(
            fields["commit_id"],
            fields["session"],
            fields["checkpoint"],
            fields["digest"],
            fields["created_ns"],
            data(fields["staging"]),
            inode,
            bytes.fromhex(handle),
            mtime_ns,
            tuple(Operation.of_record(operation) for operation in fields["operations"]),
            tuple(change_of_record(change) for change in fields["changes"]),
            fields.get("message", ""),
        )


class Journal:
    """The journal in `commits/<commit-id>/`, open for appending; a context manager that closes it."""

    def __init__(self, commits_dir: str, commit_id: str) -> None:
        """Open the journal of a commit, made empty where it isn't there; what is torn at its end goes. Raises
        OSError."""
        self.commits_dir = commits_dir
        self.commit_id = commit_id
        self.directory = os.path.join(commits_dir, commit_id)
        os.makedirs(self.directory, mode=0o700, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd = os.open(os.path.join(self.directory, "journal"), flags, 0o600)
        self.records, self._length = _read(self._fd)
        os.ftruncate(self._fd, self._length)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)

    @classmethod
    def begin(cls, commits_dir: str, intent: Intent) -> Self:
        """Write the intent of a new commit; it's on disk when this returns. Raises OSError, with nothing left behind."""
        os.symlink(intent.commit_id, os.path.join(commits_dir, PENDING))
        journal = None
        try:
            journal = cls(commits_dir, intent.commit_id)
            journal.append(intent.record())
            sync_directory(journal.directory)
            sync_directory(commits_dir)
        except BaseException:
            if journal is not None:
                journal.__exit__()
            with contextlib.suppress(FileNotFoundError):
                os.unlink(os.path.join(commits_dir, intent.commit_id, "journal"))
                os.rmdir(os.path.join(commits_dir, intent.commit_id))
            clear_pending(commits_dir)
            raise
        return journal

    def append(self, record: Json) -> None:
        """Add a record; it's on disk when this returns. Raises OSError, with the journal as it was."""
        line = _line(record)
        try:
            written = 0
            while written < len(line):
                written += os.pwrite(self._fd, line[written:], self._length + written)
            os.fsync(self._fd)
        except BaseException:
            os.ftruncate(self._fd, self._length)
            raise
        self._length += len(line)
        self.records.append(record)

    def find(self, name: str) -> Json | None:
        """The record of that name, None where it was never written."""
        return next((record for record in self.records if record["record"] == name), None)


def pending_id(commits_dir: str) -> str | None:
    """The id of the commit on its way, None where there's none. Raises OSError."""
    try:
        return os.readlink(os.path.join(commits_dir, PENDING))
    except FileNotFoundError:
        return None


def clear_pending(commits_dir: str) -> None:
    """Note that no commit is on its way; safe to call again. Raises OSError."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(commits_dir, PENDING))
    sync_directory(commits_dir)


def restored(commits_dir: str) -> Restored:
    """The ctimes that our own renames gave to files (`bases.Restored`). Raises OSError."""
    try:
        fd = os.open(os.path.join(commits_dir, _RESTORED), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return {}
    try:
        records, _ = _read(fd)
    finally:
        os.close(fd)
    known: dict[bytes, frozenset[int]] = {}
    for record in records:
        handle = bytes.fromhex(record["handle"])
        known[handle] = known.get(handle, frozenset()) | set(record["ctimes"])
    return known


def add_restored(commits_dir: str, entries: Iterable[tuple[bytes, int, int]]) -> None:
    """Note files that were only renamed, or another name of theirs: (handle, ctime before, ctime now). Raises OSError."""
    lines = [_line({"handle": handle.hex(), "ctimes": [was, now]}) for handle, was, now in entries if handle]
    if not lines:
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(os.path.join(commits_dir, _RESTORED), flags, 0o600)
    with open(fd, "r+b", buffering=0) as file:
        _, length = _read(fd)
        os.ftruncate(fd, length)
        file.seek(length)
        file.write(b"".join(lines))
        os.fsync(fd)


def _line(record: Json) -> bytes:
    content = json.dumps(record).encode("ascii")
    return b"%08x %b\n" % (zlib.crc32(content), content)


def _read(fd: int) -> tuple[list[Json], int]:
    """The records up to the first that is torn or wrong, and the length in bytes that they take."""
    records: list[Json] = []
    length = 0
    with open(os.dup(fd), "rb") as file:
        file.seek(0)
        for line in file:
            content = line[9:-1]
            if not line.endswith(b"\n") or line[:9] != b"%08x " % zlib.crc32(content):
                break
            records.append(json.loads(content))
            length += len(line)
    return records, length
