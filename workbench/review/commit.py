"""The commit: the only way by which anything reaches the real workspace, all of it or none of it.

What is replaced breaks its hard links: the other names, in the workspace or outside it, keep the old content and mode.
A directory's own times are the workspace's, never the agent's.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from workbench.checkpoints.manifest import Manifest
from workbench.errors import CommitError, ConflictError, WorkbenchError
from workbench.review.bases import Examination, examine, look, look_at, steps_of
from workbench.review.changeset import ChangeSet
from workbench.review.compare import digest_of
from workbench.review.directories import NO_FLAG, rename_new, sync_parents
from workbench.review.journal import Action, Intent, Journal, Operation, restored
from workbench.review.landed import Committed, base_record, load
from workbench.review.plan import check_complete, check_landable, check_names, operations_of
from workbench.review.recovery import locked, recover_locked
from workbench.review.staging import ELSEWHERE, IRREGULAR, Blobs, ChangedError, Staging, colliding
from workbench.review.transaction import Kept, Transaction
from workbench.review.trees import change_mode, copy_tree
from workbench.vfs import paths, syscalls
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind

__all__ = ["Committed", "commit"]

_NAMED = 5


def commit(
    root: LocalStorage,
    commits_dir: str,
    change_set: ChangeSet,
    manifest: Manifest,
    store: Blobs,
    *,
    session: str = "",
    message: str = "",
    locks: Sequence[int] = (),
    lock_timeout_s: float = 60.0,
    on_step: Callable[[str], None] | None = None,
) -> Committed:
    """Land a change set in the real workspace: all of it, or nothing and the reason why.

    `manifest` is that of the checkpoint that the change set was made from; contents come from `store`, by the ids in
    the change set. `session` and `message` are written to the record. `locks` are descriptors of the workspaces above this one,
    locked shared for the while. `on_step` hears of every step, by name, before the next; what it raises undoes the
    commit.

    What lands is owned, and has ACLs and extended attributes, as what it replaces. A new entry belongs to the caller,
    or, where that is root, to whom the manifest says; a setgid directory and a default ACL above it count as for any
    new file.

    Raises ConflictError with every path in which the workspace changed meanwhile; CommitError: digest_changed,
    not_landable, commit_failed (the disk is full, a permission is missing, the lock is held; nothing was applied), and
    commit_incomplete (an undo failed as well: `recover` completes it); OptionsError, StateError, CheckpointError.
    """
    if digest_of(change_set.changes) != change_set.digest:
        raise CommitError(
            "The change set isn't the one that its digest names.",
            code="digest_changed",
            hint="Look again with `workbench diff`, and commit the digest it names.",
        )
    step = on_step or _ignore
    try:
        os.makedirs(commits_dir, mode=0o700, exist_ok=True)
        with locked(root, commits_dir, locks, lock_timeout_s) as is_locked:
            step("locked")
            recover_locked(root, commits_dir, step)
            step("recovered")
            check_landable(steps_of(change_set.changes), root.mount_points())
            examination = examine(root, change_set, manifest, restored=restored(commits_dir))
            if examination.conflicts:
                raise _conflict(sorted(examination.conflicts))
            check_complete(examination.missing)
            operations = operations_of(examination)
            check_names(root, operations, manifest)
            _check_permissions(root, operations)
            step("examined")
            intent = _intent(root, change_set, session, message, operations)
            try:
                with Journal.begin(commits_dir, intent) as journal:
                    step("begun")
                    with Transaction(root, journal, intent, step, weak=not is_locked) as transaction:
                        return _Commit(transaction, examination, manifest, store).run()
            except CommitError as error:
                if error.code != "commit_incomplete":
                    raise
                return _recovered(root, commits_dir, intent, step, error)
    except OSError as error:
        raise _failed(error) from error


def _recovered(
    root: LocalStorage, commits_dir: str, intent: Intent, step: Callable[[str], None], failure: CommitError
) -> Committed:
    """Try once more to complete a commit that was neither undone nor finished; the lock is held."""
    try:
        found = recover_locked(root, commits_dir, step)
    except CommitError:
        raise failure from None
    for recovered in found:
        if recovered.committed is not None:
            return recovered.committed
        kept = _kept(recovered.directory, recovered.kept)
        raise CommitError(
            f"The commit failed, and was undone at the second try; nothing was applied.{kept}",
            hint="Put right what it failed for, and commit again.",
        ) from failure
    # It was complete but for the last word on the disk.
    return load(commits_dir, intent.commit_id)


def _kept(directory: str, kept: Iterable[Kept]) -> str:
    return "".join(
        f" What stood at '{paths.display(path)}' before is kept as {os.path.join(directory, place)}."
        for path, place in kept
        if place
    )


def _intent(
    root: LocalStorage, change_set: ChangeSet, session: str, message: str, operations: tuple[Operation, ...]
) -> Intent:
    found = look(root, b"")
    if found is None:
        raise paths.error(errno.ENOENT, b"")
    commit_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{secrets.token_hex(3)}"
    return Intent(
        commit_id,
        session,
        change_set.checkpoint,
        change_set.digest,
        time.time_ns(),
        f".workbench-{commit_id}".encode(),
        found.stat.inode,
        found.handle,
        found.stat.mtime_ns,
        operations,
        change_set.changes,
        message,
    )


@dataclass(slots=True)
class _Commit:
    transaction: Transaction
    examination: Examination
    manifest: Manifest
    store: Blobs
    inodes: dict[bytes, int] = field(default_factory=dict)
    """Of the directory above each operation, as it was examined."""
    left: dict[int, tuple[bytes, tuple[int, int, int]]] = field(default_factory=dict)
    """Where each file that came out stands in the staging directory; its inode, size and mtime when it was compared with its
    base."""

    def run(self) -> Committed:
        transaction = self.transaction
        with contextlib.ExitStack() as stack:
            try:
                if transaction.intent.operations:
                    self._stage(stack)
                    self._apply_all()
                    sync_parents(transaction.root, transaction.intent.operations)
                    transaction.on_step("synced")
                transaction.journal.append({"record": "applied", "weak": transaction.weak})
            except BaseException as error:
                refusal = self._undo_for(error)
                if refusal is error:
                    raise
                raise refusal from error
            transaction.on_step("applied")
            try:
                return transaction.finish()
            except OSError as error:
                raise CommitError(
                    f"The commit landed, but couldn't be cleared up after: {error.strerror}.",
                    code="commit_incomplete",
                    hint="Make room or restore the permission; the next `workbench` command completes it.",
                ) from error

    def _undo_for(self, error: BaseException) -> BaseException:
        """Undo everything because of `error`; what the caller is told instead of it, or itself."""
        transaction = self.transaction
        try:
            transaction.undo()
        except OSError as failure:
            return CommitError(
                f"The commit failed, and can't be undone whole{_at(failure)}: {failure.strerror or failure}.",
                code="commit_incomplete",
                hint="Make room or restore the permission; the next `workbench` command completes the undo.",
            )
        kept = _kept(transaction.journal.directory, transaction.kept)
        if isinstance(error, ChangedError):
            return _conflict([error.path], kept)
        if isinstance(error, OSError):
            return _failed(error, kept)
        if kept and isinstance(error, WorkbenchError):
            error.message += kept
        return error

    # Staging

    def _stage(self, stack: contextlib.ExitStack) -> None:
        transaction, intent, root = self.transaction, self.transaction.intent, self.transaction.root
        for operation in intent.operations:
            if operation.path:
                parent = paths.parent(operation.path)
                self.inodes[parent] = self._examined_inode(parent)
        root_fd = root.open_directory(b"")
        stack.callback(os.close, root_fd)
        with transaction.times.around(root_fd):
            transaction.staging = stack.enter_context(Staging.make(root, intent.staging))
        transaction.on_step("made")
        os.fsync(root_fd)
        transaction.standing = transaction.staging.fill(
            intent.operations,
            self.manifest.entries,
            self.store,
            lambda operation: transaction.on_step(f"made:{operation.number}"),
        )
        if not self._same_filesystem(transaction.staging):
            self._copy_pre_images()
        transaction.on_step("filled")
        transaction.journal.append(
            {
                "record": "staged",
                "root_mtime_ns": os.fstat(root_fd).st_mtime_ns,
                "standing": {
                    str(number): [base_record(base) for base in bases] for number, bases in transaction.standing.items()
                },
            }
        )
        transaction.on_step("staged")

    def _examined_inode(self, parent: bytes) -> int:
        if parent in self.examination.directories:
            return self.examination.directories[parent]
        # A directory of the change set itself: there already, or its mode alone changes.
        found = look(self.transaction.root, parent)
        if found is None or found.stat.kind is not Kind.DIR:
            raise ChangedError(parent)
        return found.stat.inode

    def _same_filesystem(self, staging: Staging) -> bool:
        """Whether pre-images can be moved to the commit's directory by rename; device numbers don't tell."""
        os.close(os.open(b"probe", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=staging.fd))
        probe = os.path.join(self.transaction.journal.directory, "probe")
        try:
            os.rename(b"probe", os.fsencode(probe), src_dir_fd=staging.fd)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            os.unlink(b"probe", dir_fd=staging.fd)
            return False
        os.unlink(probe)
        return True

    def _copy_pre_images(self) -> None:
        directory = self.transaction.journal.directory
        os.makedirs(os.path.join(directory, "old"), mode=0o700, exist_ok=True)
        with LocalStorage(os.fsencode(directory)) as target:
            for operation in self.transaction.intent.operations:
                if operation.action in (Action.REPLACE, Action.DELETE):
                    try:
                        copy_tree(self.transaction.root, operation.path, target, b"old/%d" % operation.number)
                    except OSError as error:
                        if error.errno in (*ELSEWHERE, *IRREGULAR):
                            raise ChangedError(operation.path) from error
                        raise

    # Applying

    def _apply_all(self) -> None:
        transaction = self.transaction
        for operation in transaction.intent.operations:
            transaction.on_step(f"apply:{operation.number}")
            if operation.action is Action.MODE:
                self._change_mode(operation)
            else:
                self._apply(operation)
            transaction.on_step(f"applied:{operation.number}")
        # Who has a file open can write to it after it came out: it's looked at once more.
        for operation in transaction.intent.operations:
            if operation.number in self.left:
                place, left = self.left[operation.number]
                if left != self._left(operation, place):
                    raise ChangedError(operation.path)
        for parent, inode in self.inodes.items():
            found = look(transaction.root, parent)
            if found is None or found.stat.inode != inode:
                raise ChangedError(parent)

    def _left(self, operation: Operation, place: bytes) -> tuple[int, int, int]:
        assert self.transaction.staging is not None
        try:
            found = os.stat(place, dir_fd=self.transaction.staging.fd, follow_symlinks=False)
        except FileNotFoundError as error:
            raise ChangedError(operation.path) from error
        return found.st_ino, found.st_size, found.st_mtime_ns

    def _apply(self, operation: Operation) -> None:
        transaction, parent = self.transaction, paths.parent(operation.path)
        with self._opened(parent, operation) as fd, LocalStorage(fd) as directory:
            with transaction.times.around(fd):
                self._rename(operation, fd)
            transaction.on_step(f"renamed:{operation.number}")
            place = transaction.came_out(operation)
            wrong = operation.old and (place is None or not transaction.holds_old(operation, place))
            # Where the directory was moved away meanwhile, this was applied in a place that nobody meant.
            if wrong or not self._stands(parent, fd):
                transaction.undo_one(operation, directory)
                raise ChangedError(operation.path)
            if place is not None and operation.old[0].kind is not Kind.DIR:
                self.left[operation.number] = place, self._left(operation, place)

    @contextlib.contextmanager
    def _opened(self, parent: bytes, operation: Operation) -> Iterator[int]:
        try:
            fd = self.transaction.root.open_directory(parent)
        except OSError as error:
            if error.errno in ELSEWHERE:
                raise ChangedError(operation.path) from error
            raise
        try:
            if os.fstat(fd).st_ino != self.inodes[parent]:
                raise ChangedError(operation.path)
            self.transaction.remember(parent, fd)
            yield fd
        finally:
            os.close(fd)

    def _stands(self, path: bytes, fd: int) -> bool:
        try:
            return self.transaction.root.stat(path).inode == os.fstat(fd).st_ino
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _rename(self, operation: Operation, fd: int) -> None:
        transaction = self.transaction
        assert transaction.staging is not None
        staged, name = transaction.staging.fd, paths.name(operation.path)
        try:
            if operation.action is Action.CREATE:
                transaction.weak |= not rename_new(staged, operation.slot, fd, name)
            elif operation.action is Action.DELETE:
                transaction.weak |= not rename_new(fd, name, staged, operation.slot)
            else:
                self._exchange(operation, fd)
        except FileNotFoundError as error:
            raise ChangedError(operation.path) from error
        except FileExistsError as error:
            if name not in {os.fsencode(standing) for standing in os.listdir(fd)}:
                raise colliding(operation.path) from error
            raise ChangedError(operation.path) from error

    def _exchange(self, operation: Operation, fd: int) -> None:
        transaction = self.transaction
        assert transaction.staging is not None
        staged, name = transaction.staging.fd, paths.name(operation.path)
        try:
            syscalls.renameat2(staged, operation.slot, fd, name, syscalls.RENAME_EXCHANGE)
        except OSError as error:
            if error.errno not in NO_FLAG:
                raise
        else:
            return
        # Between these two the path is empty for a moment, and somebody else may take it.
        transaction.weak = True
        rename_new(fd, name, staged, operation.old_slot)
        transaction.on_step(f"emptied:{operation.number}")
        rename_new(staged, operation.slot, fd, name)

    def _change_mode(self, operation: Operation) -> None:
        root = self.transaction.root
        try:
            fd = paths.open_below(root.root_fd, operation.path, os.O_PATH)
        except OSError as error:
            if error.errno in ELSEWHERE:
                raise ChangedError(operation.path) from error
            raise
        try:
            found = look_at(fd)
            if not operation.is_target(found) or found.stat.mode != operation.old_mode:
                raise ChangedError(operation.path)
            change_mode(fd, operation.new_mode)
            if not self._stands(operation.path, fd):
                change_mode(fd, operation.old_mode)
                raise ChangedError(operation.path)
        finally:
            os.close(fd)


def _check_permissions(root: LocalStorage, operations: Sequence[Operation]) -> None:
    """Find out before anything is touched what the caller's permissions won't allow."""
    if os.geteuid() == 0:
        return
    opened = {operation.path for operation in operations if operation.action is Action.MODE}
    groups = {os.getegid(), *os.getgroups()}
    for operation in operations:
        parent = paths.parent(operation.path)
        if operation.action is Action.MODE:
            continue
        if parent not in opened:
            fd = paths.open_below(root.root_fd, parent, os.O_PATH | os.O_DIRECTORY)
            try:
                if not os.access(b".", os.W_OK | os.X_OK, dir_fd=fd, effective_ids=True):
                    raise paths.error(errno.EACCES, parent)
            finally:
                os.close(fd)
        if operation.action is Action.REPLACE and operation.old[0].kind is operation.new[0][1].kind:
            found = look(root, operation.path)
            if found is not None and (found.stat.uid != os.geteuid() or found.stat.gid not in groups):
                raise CommitError(
                    f"The owner of '{paths.display(operation.path)}' can't be kept; nothing was applied.",
                    hint="Commit as its owner, or leave that path out.",
                )


def _conflict(conflicting: Sequence[bytes], kept: str = "") -> ConflictError:
    named = ", ".join(f"'{paths.display(path)}'" for path in conflicting[:_NAMED])
    more = f" and {len(conflicting) - _NAMED} more" if len(conflicting) > _NAMED else ""
    return ConflictError(
        f"The real workspace changed meanwhile in {named}{more}; nothing was applied.{kept}",
        paths=conflicting,
        hint="Look with `workbench status`; discard, or put those paths back as they were.",
    )


def _at(error: OSError) -> str:
    return f" at '{paths.display(os.fsencode(error.filename))}'" if error.filename else ""


def _failed(error: OSError, kept: str = "") -> CommitError:
    return CommitError(
        f"The commit failed{_at(error)}: {error.strerror or error}; nothing was applied.{kept}",
        hint="Make room on the disk."
        if error.errno in (errno.ENOSPC, errno.EDQUOT)
        else "Put that right, and commit again.",
    )


def _ignore(_: str) -> None:
    pass
