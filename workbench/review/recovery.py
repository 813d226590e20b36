"""Recovery: after a crash in the middle of a commit, the workspace is all old or all new again."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from workbench.errors import CommitError
from workbench.review.bases import look
from workbench.review.journal import VERSION, Intent, Journal, clear_pending, pending_id
from workbench.review.landed import Committed, base_of_record, unsettled
from workbench.review.pending import pending
from workbench.review.staging import Staging
from workbench.review.transaction import Kept, Transaction
from workbench.review.trees import remove_tree
from workbench.vfs import paths, syscalls
from workbench.vfs.local import LocalStorage

__all__ = ["Recovered", "pending", "recover", "unsettled"]

_NO_LOCKS = (errno.EBADF, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""How flock(2) fails on a directory of a filesystem that doesn't lock them (NFS, some FUSE)."""

_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Recovered:
    """What became of a commit that was cut short: `committed` where it was finished, else it was undone.

    `kept` are paths at which a person's edit stays, each with the file in `directory` that what stood there before the
    commit is kept as; empty where nothing had to be.
    """

    commit_id: str
    directory: str
    committed: Committed | None = None
    kept: tuple[Kept, ...] = ()

    def __str__(self) -> str:
        what = "finished" if self.committed is not None else "undone"
        sentence = f"Commit {self.commit_id} had been cut short, and was {what}."
        for path, place in self.kept:
            sentence += f" Your edit of '{paths.display(path)}' stays"
            sentence += f"; what stood there before is kept as {os.path.join(self.directory, place)}." if place else "."
        return sentence


def recover(
    root: LocalStorage,
    commits_dir: str,
    *,
    lock_timeout_s: float = 60.0,
    on_step: Callable[[str], None] | None = None,
) -> list[Recovered]:
    """Complete what a crash cut short: a commit that was applied whole is finished, any other is undone.

    What a person edited since stays. Waits for a commit that is on its way. `on_step` hears of every step, by name.
    Returns what was found, nothing where nothing was. Raises CommitError: commit_failed where the lock can't be had,
    commit_incomplete where it can't be completed now; doing it again goes on.
    """
    if not pending(commits_dir):
        return []
    with locked(root, commits_dir, (), lock_timeout_s):
        return recover_locked(root, commits_dir, on_step or (lambda _: None))


def recover_locked(root: LocalStorage, commits_dir: str, on_step: Callable[[str], None]) -> list[Recovered]:
    """As `recover`, by who holds the lock."""
    try:
        commit_id = pending_id(commits_dir)
        return [] if commit_id is None else [_recover(root, commits_dir, commit_id, on_step)]
    except OSError as error:
        where = f" at '{paths.display(os.fsencode(error.filename))}'" if error.filename else ""
        raise CommitError(
            f"A commit that had been cut short can't be completed{where}: {error.strerror or error}.",
            code="commit_incomplete",
            hint="Make room or restore the permission; the next `workbench` command tries again.",
        ) from error


def _recover(root: LocalStorage, commits_dir: str, commit_id: str, on_step: Callable[[str], None]) -> Recovered:
    with Journal(commits_dir, commit_id) as journal, contextlib.ExitStack() as stack:
        begin = journal.find("begin")
        if begin is None:
            # It was cut short before it had said what it would do, so it did nothing.
            with LocalStorage(os.fsencode(commits_dir)) as commits:
                remove_tree(commits, os.fsencode(commit_id))
            clear_pending(commits_dir)
            return Recovered(commit_id, journal.directory)
        if begin["version"] != VERSION:
            raise CommitError(
                f"Commit {commit_id} was cut short by another version of workbench.",
                code="commit_incomplete",
                hint="Complete it with that version.",
            )
        intent = Intent.of_record(begin)
        _require_same_root(root, intent, commit_id)
        transaction = Transaction(root, journal, intent, on_step, staging=Staging.reopen(root, intent.staging))
        if transaction.staging is not None:
            stack.enter_context(transaction.staging)
        staged = journal.find("staged")
        if staged is not None:
            transaction.standing = {
                int(number): tuple(base_of_record(fields) for fields in bases)
                for number, bases in staged["standing"].items()
            }
            transaction.resume_times(staged["root_mtime_ns"])
        committed = None
        if journal.find("undone") is not None:
            transaction.kept.extend(transaction.kept_before())
            transaction.clear(undone=True)
        else:
            committed = _complete(transaction, staged is not None)
        return Recovered(commit_id, journal.directory, committed, tuple(transaction.kept))


def _complete(transaction: Transaction, was_staged: bool) -> Committed | None:
    applied = transaction.journal.find("applied")
    if applied is None:
        whole = was_staged and all(transaction.is_applied(operation) for operation in transaction.intent.operations)
        if not whole:
            transaction.undo()
            return None
        root_fd = transaction.root.open_directory(b"")
        try:
            syscalls.syncfs(root_fd)
        finally:
            os.close(root_fd)
        applied = {"record": "applied", "weak": False}
        transaction.journal.append(applied)
        transaction.on_step("applied")
    transaction.weak = applied["weak"]
    return transaction.finish()


def _require_same_root(root: LocalStorage, intent: Intent, commit_id: str) -> None:
    found = look(root, b"")
    same = found is not None and (
        found.handle == intent.root_handle
        if found.handle and intent.root_handle
        else found.stat.inode == intent.root_inode
    )
    if not same:
        raise CommitError(
            f"Commit {commit_id} was cut short in another directory than the one that is now in its place.",
            code="commit_incomplete",
            hint="Put the directory back where it was; what the commit was about is kept until then.",
        )


@contextlib.contextmanager
def locked(root: LocalStorage, commits_dir: str, shared: Sequence[int], timeout_s: float) -> Iterator[bool]:
    """Hold the workspace's lock, which is the directory's own, and those of the directories above it shared.

    Yields False where the filesystem doesn't lock directories: then it's the lock of `commits_dir`, which keeps out
    only who has the same state directory. Raises CommitError (commit_failed) where it can't be had in time, and
    OSError.
    """
    deadline = time.monotonic() + timeout_s
    with contextlib.ExitStack() as stack:
        root_fd = root.open_directory(b"")
        stack.callback(os.close, root_fd)
        is_locked = _flock(stack, root_fd, fcntl.LOCK_EX, deadline)
        if not is_locked:
            commits_fd = os.open(commits_dir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, commits_fd)
            _flock(stack, commits_fd, fcntl.LOCK_EX, deadline)
        for fd in shared:
            is_locked &= _flock(stack, fd, fcntl.LOCK_SH, deadline)
        yield is_locked


def _flock(stack: contextlib.ExitStack, fd: int, how: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, how | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise CommitError(
                    "Another commit holds the lock of the workspace; nothing was applied.",
                    hint="Wait for it, or end what holds a lock on the directory (`lslocks`).",
                ) from error
            time.sleep(_POLL_S)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            return False
        else:
            # Closing isn't enough: a forked child may have a copy of the descriptor.
            stack.callback(fcntl.flock, fd, fcntl.LOCK_UN)
            return True
