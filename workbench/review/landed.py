"""What landed: the record of one commit, `landed.json` in its directory, and whether its overlay knows of it yet."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from workbench.checkpoints.manifest import Base, Certainty
from workbench.errors import CommitError, StateError
from workbench.review.changeset import Change, ChangeKind, State
from workbench.vfs import paths
from workbench.vfs.statefile import sync_directory
from workbench.vfs.storage import Kind

_LANDED = "landed.json"
_UNSETTLED = ".unsettled"
_VERSION = 1

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Committed:
    """One commit that landed.

    `directory` is where its journal, pre-images and record are. `landed` are all paths that are now as reviewed, `added`
    those of them where nothing stood before, `landed_bases` what stands at each of them now: the next base. `weak` says
    that the filesystem couldn't exchange two names or create one exclusively, so that an edit at that very moment could
    be missed. `kept` are (path, file below `directory`) of a person's edits that couldn't be put anywhere else.
    `message` is what was said of it.
    """

    commit_id: str
    session: str
    checkpoint: str
    digest: str
    created_ns: int
    directory: str
    changes: tuple[Change, ...]
    landed: tuple[bytes, ...]
    added: frozenset[bytes]
    landed_bases: dict[bytes, Base]
    weak: bool = False
    kept: tuple[tuple[bytes, str], ...] = ()
    message: str = ""

    def settle(self) -> None:
        """Note that the overlay's upper layer is now what remained of it; safe to call again. Raises OSError."""
        markers = os.path.join(os.path.dirname(self.directory), _UNSETTLED)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(markers, self.commit_id))
            sync_directory(markers)


def unsettled(commits_dir: str) -> list[Committed]:
    """The commits that landed and whose overlay wasn't brought up to date yet, oldest first.

    Costs what there are of those. Raises OSError, and StateError (state_corrupt) where a record can't be read.
    """
    try:
        names = sorted(os.listdir(os.path.join(commits_dir, _UNSETTLED)))
    except FileNotFoundError:
        return []
    found = [load(commits_dir, name) for name in names]
    return sorted(found, key=lambda committed: committed.created_ns)


def mark_unsettled(commits_dir: str, commit_id: str) -> None:
    """Note that a commit's overlay isn't up to date yet; safe to call again. Raises OSError."""
    markers = os.path.join(commits_dir, _UNSETTLED)
    os.makedirs(markers, mode=0o700, exist_ok=True)
    os.close(os.open(os.path.join(markers, commit_id), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
    sync_directory(markers)
    sync_directory(commits_dir)


def save(committed: Committed) -> None:
    """Write a commit's record, whole or not at all, and on disk when this returns. Raises OSError."""
    record = {
        "version": _VERSION,
        "commit_id": committed.commit_id,
        "session": committed.session,
        "checkpoint": committed.checkpoint,
        "digest": committed.digest,
        "created_ns": committed.created_ns,
        "weak": committed.weak,
        "changes": [change_record(change) for change in committed.changes],
        "landed": [text(path) for path in committed.landed],
        "added": sorted(text(path) for path in committed.added),
        "bases": [base_record(base) for base in committed.landed_bases.values()],
        "kept": [[text(path), place] for path, place in committed.kept],
        "message": committed.message,
    }
    temporary = os.path.join(committed.directory, f".{_LANDED}.{secrets.token_hex(8)}")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "w", encoding="ascii") as file:
            file.write(json.dumps(record))
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, os.path.join(committed.directory, _LANDED))
    except BaseException:
        os.unlink(temporary)
        raise
    sync_directory(committed.directory)


def load(commits_dir: str, commit_id: str) -> Committed:
    """Read the record of a commit that landed.

    Raises FileNotFoundError where there's none, OSError, and StateError (state_corrupt).
    """
    directory = os.path.join(commits_dir, commit_id)
    with open(os.path.join(directory, _LANDED), "rb") as file:
        content = file.read()
    try:
        record = json.loads(content)
        bases = [base_of_record(fields) for fields in record["bases"]]
        return Committed(
            commit_id=record["commit_id"],
            session=record["session"],
            checkpoint=record["checkpoint"],
            digest=record["digest"],
            created_ns=record["created_ns"],
            directory=directory,
            changes=tuple(change_of_record(fields) for fields in record["changes"]),
            landed=tuple(data(path) for path in record["landed"]),
            added=frozenset(data(path) for path in record["added"]),
            landed_bases={base.path: base for base in bases},
            weak=record["weak"],
            kept=tuple((data(path), place) for path, place in record["kept"]),
            message=record.get("message", ""),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise StateError(
            f"The record of commit {commit_id} can't be read.",
            hint=f"What landed is in the workspace, and the journal in {paths.display(os.fsencode(directory))}.",
        ) from error


def all_landed(commits_dir: str) -> list[Committed]:
    """All commits that landed, newest first. Raises OSError, StateError (state_corrupt)."""
    names = os.listdir(commits_dir) if os.path.isdir(commits_dir) else []
    landed = [
        load(commits_dir, name)
        for name in names
        if not name.startswith(".") and os.path.exists(os.path.join(commits_dir, name, _LANDED))
    ]
    return sorted(landed, key=lambda committed: committed.created_ns, reverse=True)


def find(commits_dir: str, session: str, digest: str) -> Committed | None:
    """The newest commit of a session that landed under a digest. Raises OSError, StateError (state_corrupt)."""
    for committed in all_landed(commits_dir):
        if (committed.session, committed.digest) == (session, digest):
            return committed
    return None


def find_by_id(commits_dir: str, commit_id: str) -> Committed:
    """The commit of an id, or of a beginning that only one has.

    Raises CommitError (commit_unknown), OSError, StateError (state_corrupt).
    """
    names = os.listdir(commits_dir) if os.path.isdir(commits_dir) else []
    found = [
        name
        for name in names
        if commit_id
        and not name.startswith(".")
        and name.startswith(commit_id)
        and os.path.exists(os.path.join(commits_dir, name, _LANDED))
    ]
    if len(found) != 1:
        raise CommitError(
            f"{commit_id!r} names {'no commit' if not found else 'more than one commit'} of this workspace.",
            code="commit_unknown",
            hint="`workbench log --commits` names them.",
        )
    return load(commits_dir, found[0])


def landed_ids(commits_dir: str) -> list[str]:
    """The ids of all commits that landed and whose overlay knows of it, sorted. Raises OSError."""
    names = sorted(os.listdir(commits_dir)) if os.path.isdir(commits_dir) else []
    waiting = os.path.join(commits_dir, _UNSETTLED)
    return [
        name
        for name in names
        if not name.startswith(".")
        and os.path.exists(os.path.join(commits_dir, name, _LANDED))
        and not os.path.lexists(os.path.join(waiting, name))
    ]


def text(path: bytes) -> str:
    """A path as a JSON string: bytes that aren't UTF-8 are lone surrogates."""
    return path.decode("utf-8", "surrogateescape")


def data(path: str) -> bytes:
    """The path of a string that `text` made."""
    return path.encode("utf-8", "surrogateescape")


def state_record(state: State | None) -> list[Any] | None:
    return None if state is None else [state.kind.value, state.mode, state.size, state.blob]


def state_of_record(fields: Sequence[Any] | None) -> State | None:
    return None if fields is None else State(Kind(fields[0]), fields[1], fields[2], fields[3])


def change_record(change: Change) -> Json:
    return {
        "path": text(change.path),
        "kind": change.kind.value,
        "old": state_record(change.old),
        "new": state_record(change.new),
        "renamed_from": text(change.renamed_from),
        "risk": change.risk,
        "new_executable": change.new_executable,
        "drops_setid": change.drops_setid,
        "implied": change.implied,
    }


def change_of_record(fields: Json) -> Change:
    return Change(
        data(fields["path"]),
        ChangeKind(fields["kind"]),
        state_of_record(fields["old"]),
        state_of_record(fields["new"]),
        renamed_from=data(fields["renamed_from"]),
        risk=fields["risk"],
        new_executable=fields["new_executable"],
        drops_setid=fields["drops_setid"],
        implied=fields["implied"],
    )


def base_record(base: Base) -> list[Any]:
    return [
        text(base.path),
        base.certainty.value,
        base.kind.value,
        base.mode,
        base.uid,
        base.gid,
        base.size,
        base.mtime_ns,
        base.ctime_ns,
        base.inode,
        base.handle.hex(),
        base.blob,
    ]


def base_of_record(fields: Sequence[Any]) -> Base:
    path, certainty, kind, mode, uid, gid, size, mtime_ns, ctime_ns, inode, handle, blob = fields
    return Base(
        data(path),
        Certainty(certainty),
        Kind(kind),
        mode,
        uid,
        gid,
        size,
        mtime_ns,
        ctime_ns,
        inode,
        bytes.fromhex(handle),
        blob,
    )
