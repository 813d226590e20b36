"""The audit log of a workspace: what landed, was approved, refused, rewound, dropped and pruned, line chained to line.

`audit.jsonl` in the workspace's directory in the state directory: a JSON object a line, appended under a lock and on disk
when `append` returns. `previous` is the SHA-256 of the line before, with its newline; 64 zeros in the first. So a line
that was changed, taken out or put in shows at the next one. That the last ones were cut off shows nowhere: who wants to
prove that keeps the hash of the last line elsewhere.
"""

from __future__ import annotations

import fcntl
import getpass
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from workbench.errors import StateError
from workbench.protocol.records import AuditRecord
from workbench.review.changeset import Change

_FILE = "audit.jsonl"
_FIRST = "0" * 64
_BLOCK = 1 << 12


@dataclass(frozen=True, slots=True)
class Verified:
    """What `verify` found: how many lines are whole, the hash of the last one, and the first line that is wrong (from 1)
    and why; 0 where none is."""

    lines: int
    last: str
    wrong: int = 0
    why: str = ""


class AuditLog:
    """The audit log in a directory."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, _FILE)

    def append(
        self,
        action: str,
        *,
        session: str,
        digest: str = "",
        commit_id: str = "",
        code: str = "",
        message: str = "",
        counts: Mapping[str, int] | None = None,
    ) -> None:
        """Add a line; it's on disk when this returns. Raises OSError.

        `action` is `commit`, `revert`, `branch`, `refusal`, `discard`, `rewind`, `redo`; of checkpoints `drop`, `purge`
        of a path (of every session, so `session` is empty) or `prune` of what is old; of the session itself `delete` or
        `prune`, as of what a commit kept; of a call of the agent's `approval` or `refusal`, with the call's digest. `code`
        is an error's.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._path, flags, 0o600)
        with open(fd, "r+b", buffering=0) as file:
            fcntl.flock(fd, fcntl.LOCK_EX)
            last = _last_line(fd)
            record = AuditRecord(
                at_ns=time.time_ns(),
                uid=os.geteuid(),
                user=_user(),
                action=action,
                session=session,
                digest=digest,
                commit_id=commit_id,
                code=code,
                message=message,
                counts=dict(counts or {}),
                previous=_hash(last) if last else _FIRST,
            )
            file.write(record.model_dump_json().encode() + b"\n")
            os.fsync(fd)

    def records(self) -> Iterator[AuditRecord]:
        """The lines, oldest first. Raises OSError, StateError (state_corrupt) where one can't be read."""
        for number, line in enumerate(self._lines(), 1):
            try:
                yield AuditRecord.model_validate_json(line)
            except ValidationError as error:
                raise StateError(
                    f"Line {number} of the audit log {self._path} can't be read.",
                    hint="`workbench log --audit --verify` says from where on the log isn't what was written.",
                ) from error

    def verify(self) -> Verified:
        """Follow the chain from the first line to the last. Raises OSError."""
        previous, number = _FIRST, 0
        for number, line in enumerate(self._lines(), 1):
            try:
                record = AuditRecord.model_validate_json(line)
            except ValidationError:
                return Verified(number - 1, previous, number, "it can't be read")
            if record.previous != previous:
                return Verified(number - 1, previous, number, "it doesn't follow the line before")
            previous = _hash(line)
        return Verified(number, previous)

    def _lines(self) -> Iterator[bytes]:
        try:
            file = open(self._path, "rb")  # noqa: SIM115  it's there to the end of the generator
        except FileNotFoundError:
            return
        with file:
            yield from (line for line in file if line.endswith(b"\n"))


def counted(changes: Iterable[Change]) -> dict[str, int]:
    """How many changes there are of each kind, those that a listing shows."""
    return dict(Counter(change.kind.value for change in changes if not change.implied))


def _last_line(fd: int) -> bytes:
    """The last whole line, empty where there is none; what a crash cut short after it goes: it was never acknowledged."""
    size = os.fstat(fd).st_size
    length = _BLOCK
    while True:
        start = max(0, size - length)
        block = os.pread(fd, size - start, start)
        end = block.rfind(b"\n") + 1
        begin = block.rfind(b"\n", 0, end - 1) + 1 if end else 0
        if begin or not start:
            os.ftruncate(fd, start + end)
            return block[begin:end]
        length *= 2


def _hash(line: bytes) -> str:
    return hashlib.sha256(line).hexdigest()


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
