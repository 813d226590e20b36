"""The commit to a storage that isn't a directory of this machine: object by object, each only over what was reviewed.

There is no exchange of names and no lock there, so less is promised than of a directory. Objects appear one after the
other, for everybody to see. Each is written by a conditional request, where the storage has them (else the result is
`weak`), so nothing that somebody changed meanwhile is overwritten: then what was done is undone. Before the first of them
a journal stands in the storage itself, with the old contents beside it. It keeps a second commit out, and after a crash
`recover` puts back whatever isn't somebody else's by then.
"""

from __future__ import annotations

import base64
import errno
import json
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from workbench.checkpoints.manifest import Base, Certainty, Manifest
from workbench.errors import CommitError, ConflictError, WorkbenchError
from workbench.review.bases import ContentHasher, Found, Step, content_id, examine, holds, look
from workbench.review.changeset import ChangeSet, State
from workbench.review.plan import check_complete, check_landable
from workbench.review.staging import Blobs
from workbench.vfs import paths
from workbench.vfs.any_lower import AnyLower
from workbench.vfs.storage import Kind, StorageWriter

JOURNAL = b".workbench-commit.json"
_PRE_IMAGES = b".workbench-commit"

_FILE_MODE = 0o644


@dataclass(frozen=True, slots=True)
class StorageCommitted:
    """One commit that landed in a storage.

    `landed`, `added` and `landed_bases` as of `landed.Committed`. `weak` says that the storage couldn't check each object in
    one step with the change, so that an edit at that very moment could be missed.
    """

    commit_id: str
    digest: str
    landed: tuple[bytes, ...]
    added: frozenset[bytes]
    landed_bases: dict[bytes, Base]
    weak: bool


@dataclass(frozen=True, slots=True)
class _Task:
    """One object that changes: the id of its old and new content, "" where there is none, and where the old one is kept."""

    path: bytes
    old: str
    new: str
    kept: bytes


def commit_to_storage(
    lower: AnyLower,
    writer: StorageWriter,
    change_set: ChangeSet,
    manifest: Manifest,
    store: Blobs,
    *,
    on_step: Callable[[str], None] | None = None,
) -> StorageCommitted:
    """Land a change set in a storage: all of it, or nothing and the reason why.

    Arguments as of `commit.commit`. Raises ConflictError, and CommitError: not_landable for what the storage has no
    words for (modes, symlinks), commit_incomplete where another commit is on its way or was cut short, commit_failed.
    """
    examination = examine(lower, change_set, manifest)
    if examination.conflicts:
        raise _conflict(sorted(examination.conflicts))
    check_complete(examination.missing)
    check_landable(examination.steps, ())
    steps = {path: step for path, step in examination.steps.items() if path not in examination.satisfied}
    _check_expressible(steps)
    _Commit(lower, writer, store, steps, examination.bases, on_step or (lambda _: None)).run()
    bases = {path: _base(lower, path, new) for path, (_, new) in examination.steps.items()}
    return StorageCommitted(
        secrets.token_hex(8),
        change_set.digest,
        tuple(examination.steps),
        frozenset(path for path, (old, _) in examination.steps.items() if old is None),
        bases,
        writer.weak,
    )


def recover(lower: AnyLower, writer: StorageWriter) -> tuple[bytes, ...]:
    """Undo a commit that was cut short; only while no other process commits to this storage.

    Returns the paths that somebody has changed since, which stay as they are. Raises CommitError (commit_incomplete)
    where it can't be undone yet; OSError.
    """
    if lower.identify(JOURNAL) is None:
        return ()
    try:
        with lower.open(JOURNAL) as file:
            tasks = [_task(record) for record in json.load(file)["tasks"]]
    except (ValueError, KeyError, TypeError) as error:
        raise CommitError(
            f"The journal '{paths.display(JOURNAL)}' of a commit that was cut short can't be read.",
            code="commit_incomplete",
            hint="Look at the storage, put right what has to be, and remove that object.",
        ) from error
    kept = tuple(task.path for task in reversed(tasks) if not _undo(lower, writer, task))
    _clear(lower, writer, tasks)
    return kept


class _Commit:
    def __init__(
        self,
        lower: AnyLower,
        writer: StorageWriter,
        store: Blobs,
        steps: dict[bytes, Step],
        bases: dict[bytes, Base],
        on_step: Callable[[str], None],
    ) -> None:
        self._lower = lower
        self._writer = writer
        self._store = store
        self._steps = steps
        self._on_step = on_step
        self._expected: dict[bytes, Found] = {}
        self._tasks: list[_Task] = []
        for path, (old, new) in steps.items():
            before = self._look_again(path, old, bases[path]) if _kind(old) is Kind.FILE else ""
            if before or _kind(new) is Kind.FILE:
                kept = b"%s/%d" % (_PRE_IMAGES, len(self._tasks))
                self._tasks.append(_Task(path, before, _blob(new), kept))

    def _look_again(self, path: bytes, old: State | None, base: Base) -> str:
        """The id of a file's content, which the review of a deletion had no need of. Raises ConflictError."""
        found = look(self._lower, path)
        if found is None or not holds(self._lower, path, base, exact=False):
            raise _conflict([path])
        self._expected[path] = found
        return _blob(old) or content_id(self._lower, path, found, like="")

    def run(self) -> None:
        if not self._steps:
            return
        self._begin()
        try:
            self._on_step("journal")
            self._keep_old()
            self._apply()
            self._on_step("applied")
        except BaseException as error:
            self._put_back(error)
            if isinstance(error, OSError):
                if error.errno in (errno.ESTALE, errno.EEXIST) and error.filename in self._steps:
                    raise _conflict([error.filename]) from error
                raise CommitError(f"The commit failed, and was undone: {error}.") from error
            raise
        _clear(self._lower, self._writer, self._tasks)

    def _begin(self) -> None:
        records = [
            {"path": base64.b64encode(task.path).decode(), "old": task.old, "new": task.new, "kept": task.kept.decode()}
            for task in self._tasks
        ]
        try:
            self._writer.create(JOURNAL, json.dumps({"version": 1, "tasks": records}).encode())
        except FileExistsError as error:
            raise CommitError(
                "Another commit to this storage is on its way, or was cut short.",
                code="commit_incomplete",
                hint="Wait for it; if there is none, undo what it left with `recover`, then try again.",
            ) from error
        except OSError as error:
            raise CommitError(f"The commit failed, nothing was applied: {error}.") from error

    def _keep_old(self) -> None:
        for task in self._tasks:
            if not task.old:
                continue
            content = _read(self._lower, task.path)
            hasher = ContentHasher(task.old, len(content))
            hasher.update(content)
            if hasher.id() != task.old:
                raise paths.error(errno.ESTALE, task.path)
            self._writer.create(task.kept, content)
            self._on_step("kept")

    def _apply(self) -> None:
        directories = [
            (path, old, new) for path, (old, new) in self._steps.items() if Kind.DIR in (_kind(old), _kind(new))
        ]
        for task in sorted(self._tasks, key=lambda task: bool(task.new)):
            found = self._expected.get(task.path)
            expected = (found.stat, found.handle) if found is not None else None
            if expected is None:
                # What takes the place of a directory comes when that is gone.
                self._remove_directories(directories, below=task.path)
                self._writer.create(task.path, self._content(task))
            elif not task.new:
                self._writer.remove(task.path, expected)
            else:
                self._writer.replace(task.path, self._content(task), expected)
            self._on_step("object")
        self._remove_directories(directories, below=b"")
        for path, _, new in directories:
            # Any other is there by what is in it.
            if _kind(new) is Kind.DIR and not any(task.new and paths.is_below(task.path, path) for task in self._tasks):
                self._writer.make_directory(path)

    def _remove_directories(self, directories: list[tuple[bytes, State | None, State | None]], *, below: bytes) -> None:
        for path, old, new in reversed(directories):
            if _kind(old) is Kind.DIR and _kind(new) is not Kind.DIR and (path == below or paths.is_below(path, below)):
                self._writer.remove_directory(path)

    def _content(self, task: _Task) -> bytes:
        with self._store.open(task.new) as file:
            return file.read()

    def _put_back(self, error: BaseException) -> None:
        try:
            for task in reversed(self._tasks):
                _undo(self._lower, self._writer, task)
            for path, (old, _) in self._steps.items():
                if _kind(old) is Kind.DIR and self._lower.identify(path) is None:
                    self._writer.make_directory(path)
            _clear(self._lower, self._writer, self._tasks)
        except (OSError, WorkbenchError) as failed:
            raise CommitError(
                f"The commit failed ({error}), and what it had done couldn't be undone yet: {failed}.",
                code="commit_incomplete",
                hint="Undo it with `recover` when the storage answers again.",
            ) from error


def _undo(lower: AnyLower, writer: StorageWriter, task: _Task) -> bool:
    """Bring an object back to what it was; False where somebody has changed it since, who then keeps it."""
    found = look(lower, task.path)
    if found is not None and found.stat.kind is Kind.DIR and task.old:
        # It may be ours, and empty by now.
        writer.remove_directory(task.path)
        found = look(lower, task.path)
    if found is not None and found.stat.kind is not Kind.FILE:
        return not task.old
    now = "" if found is None else content_id(lower, task.path, found, like=task.old or task.new)
    if task.new and task.old and found is not None and now not in (task.old, task.new):
        now = content_id(lower, task.path, found, like=task.new)
    if now == task.old:
        return True
    if now != task.new:
        return False
    if found is None:
        writer.create(task.path, _read(lower, task.kept))
    elif task.old:
        writer.replace(task.path, _read(lower, task.kept), (found.stat, found.handle))
    else:
        writer.remove(task.path, (found.stat, found.handle))
    return True


def _clear(lower: AnyLower, writer: StorageWriter, tasks: list[_Task]) -> None:
    """The end of a commit, or of its undoing: the old contents go, the journal last."""
    for path in (task.kept for task in tasks if task.old):
        found = lower.identify(path)
        if found is not None:
            writer.remove(path, found)
    writer.remove_directory(_PRE_IMAGES)
    journal = lower.identify(JOURNAL)
    if journal is not None:
        writer.remove(JOURNAL, journal)


def _check_expressible(steps: dict[bytes, Step]) -> None:
    for path, (old, new) in steps.items():
        why = ""
        if _kind(new) is Kind.SYMLINK:
            why = "the storage holds no symbolic links"
        elif new is not None and new.kind is Kind.FILE:
            mode = old.mode if old is not None and old.kind is Kind.FILE else _FILE_MODE
            why = "" if new.mode == mode else "the storage keeps no modes"
        elif old is not None and new is not None and old.kind is new.kind is Kind.DIR:
            why = "the storage keeps no modes"
        if why:
            raise CommitError(
                f"'{paths.display(path)}' can't land: {why}; nothing was applied.",
                code="not_landable",
                paths=[path],
                hint="Leave that path out of the commit, or take back what can't be kept.",
            )


def _base(lower: AnyLower, path: bytes, new: State | None) -> Base:
    found = look(lower, path) if new is not None else None
    return Base(path, Certainty.ABSENT) if found is None else found.base(path, _blob(new))


def _conflict(found: list[bytes]) -> ConflictError:
    return ConflictError(
        f"The storage changed meanwhile in {len(found)} path{'' if len(found) == 1 else 's'} of this commit; "
        "nothing was applied.",
        paths=found,
        hint="Look at what changed; discard, or take those paths out of the overlay.",
    )


def _kind(state: State | None) -> Kind | None:
    return None if state is None else state.kind


def _blob(state: State | None) -> str:
    return "" if state is None else state.blob


def _read(lower: AnyLower, path: bytes) -> bytes:
    with lower.open(path) as file:
        return file.read()


def _task(record: dict[str, Any]) -> _Task:
    path = base64.b64decode(record["path"], validate=True)
    paths.parts(path)
    kept = str(record["kept"]).encode()
    return _Task(path, str(record["old"]), str(record["new"]), kept)
