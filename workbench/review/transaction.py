"""One commit between its intent and its end: what of it stands where, how it's finished, how it's undone."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

from workbench.checkpoints.manifest import Base, Certainty
from workbench.review.bases import Restored, content_id, look, look_at, steps_of, tree_holds
from workbench.review.changeset import State
from workbench.review.directories import DirectoryTimes, open_parent, rename_new
from workbench.review.journal import Action, Intent, Journal, Operation, add_restored, clear_pending, restored
from workbench.review.landed import Committed, mark_unsettled, save, text
from workbench.review.staging import ELSEWHERE, Staging
from workbench.review.trees import change_mode, move_tree, remove_tree
from workbench.vfs import paths, syscalls
from workbench.vfs.local import LocalStorage
from workbench.vfs.statefile import sync_directory
from workbench.vfs.storage import Kind

_MOST_OPEN = 256
"""How many directories are kept open, well below the usual limit of 1,024 descriptors."""

Kept = tuple[bytes, str]
"""A path at which a person's edit stays, and where below the commit's directory what would have gone there is, if
anywhere."""


@dataclass(slots=True)
class Transaction:
    """What `commit` and `recover` share. `standing` is what was staged, by operation, top first."""

    root: LocalStorage
    journal: Journal
    intent: Intent
    on_step: Callable[[str], None]
    staging: Staging | None = None
    standing: dict[int, tuple[Base, ...]] = field(default_factory=dict)
    times: DirectoryTimes = field(default_factory=DirectoryTimes)
    kept: list[Kept] = field(default_factory=list)
    weak: bool = False
    _parents: dict[bytes, LocalStorage] = field(default_factory=dict)
    """Directories that this process applied something in: found again even where a person has moved them since."""
    _renamed: frozenset[int] = field(init=False)
    """The inodes that are taken out: a rename sets the ctime, which shows at all the other names of a hard link."""

    _restored: Restored = field(init=False)

    def __post_init__(self) -> None:
        self._restored = restored(self.journal.commits_dir)
        self._renamed = frozenset(operation.old[0].inode for operation in self.intent.operations if operation.old)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for directory in self._parents.values():
            directory.close()

    def remember(self, path: bytes, fd: int) -> None:
        """Keep a directory open that something is about to be applied in, up to a bound."""
        if path not in self._parents and len(self._parents) < _MOST_OPEN:
            self._parents[path] = LocalStorage(fd)

    def resume_times(self, mtime_ns: int) -> None:
        """Go on with the root's mtime where a crash left off: it was `mtime_ns` after the staging directory was made."""
        root_fd = self.root.open_directory(b"")
        try:
            self.times.resume(root_fd, self.intent.root_mtime_ns, mtime_ns)
        finally:
            os.close(root_fd)

    # What stands where

    @property
    def _staged(self) -> LocalStorage:
        assert self.staging is not None
        return self.staging.storage

    def came_out(self, operation: Operation) -> bytes | None:
        """Where in the staging directory what an operation took out of the workspace stands; None where nothing does."""
        if self.staging is None or operation.action not in (Action.REPLACE, Action.DELETE):
            return None
        if not self._slot_is_empty(operation.old_slot):
            return operation.old_slot
        found = look(self._staged, operation.slot)
        if found is None:
            return None
        ours = operation.action is Action.REPLACE and found.is_inode_of(self.standing[operation.number][0])
        return None if ours else operation.slot

    def is_applied(self, operation: Operation) -> bool:
        """Whether an operation was applied whole and what came out is what the overlay departed from."""
        found = look(self.root, operation.path)
        if operation.action is Action.MODE:
            return found is not None and found.stat.mode == operation.new_mode
        if self.staging is None:
            return False
        if operation.action is Action.CREATE:
            return found is not None and self._slot_is_empty(operation.slot)
        place = self.came_out(operation)
        if place is None or (place == operation.old_slot and not self._slot_is_empty(operation.slot)):
            return False
        return self.holds_old(operation, place)

    def holds_old(self, operation: Operation, place: bytes) -> bool:
        """Whether what came out is what the overlay departed from: nothing more, nothing less. Raises OSError."""
        return tree_holds(
            self._staged, place, operation.old, moved=True, renamed=self._renamed, restored=self._restored
        )

    def _holds_new(self, operation: Operation, storage: LocalStorage, place: bytes) -> bool:
        return tree_holds(storage, place, self.standing[operation.number], moved=True)

    # Undoing

    def undo(self) -> None:
        """Take back every operation where ours still stands; a person's edit stays, and what it displaced is kept.

        Doing it again after a crash completes it. Raises OSError where it can't be completed now.
        """
        put_back: list[tuple[bytes, int, int]] = []
        if self.staging is not None and self.journal.find("staged") is not None:
            self.kept.extend(self.kept_before())
            for operation in reversed(self.intent.operations):
                self.on_step(f"undo:{operation.number}")
                if self._undo(operation) and (found := look(self.root, operation.path)) is not None:
                    put_back.append((found.handle, operation.old[0].ctime_ns, found.stat.ctime_ns))
            self.on_step("undo:applied")
            self._restore_times()
            syscalls.syncfs(self.staging.fd)
        # Where there's no room for these two, what stands on the disk says the same, if a little less.
        with contextlib.suppress(OSError):
            add_restored(self.journal.commits_dir, put_back)
        with contextlib.suppress(OSError):
            self.journal.append({"record": "undone", "kept": [[text(path), place] for path, place in self.kept]})
        self.on_step("undone")
        self.clear(undone=True)

    def undo_one(self, operation: Operation, parent: LocalStorage) -> bool:
        """Undo one operation, but MODE, in the directory that it was applied in, wherever that is now.

        Returns whether an old entry, unchanged but for its ctime, stands in its place again. Raises OSError.
        """
        if operation.action is Action.CREATE:
            if self._slot_is_empty(operation.slot):
                self._take_back(operation, parent)
            return False
        place = self.came_out(operation)
        if place is None:
            return False
        if operation.action is Action.DELETE:
            return self._put_back(operation, place, parent)
        if place == operation.slot:
            return self._exchange_back(operation, parent)
        # Without an exchange: ours may stand where the old one belongs.
        if self._slot_is_empty(operation.slot) and not self._take_back(operation, parent):
            self._keep(operation, place)
            return False
        return self._put_back(operation, place, parent)

    def _undo(self, operation: Operation) -> bool:
        if operation.action is Action.MODE:
            return self._undo_mode(operation)
        with self._directory(paths.parent(operation.path)) as parent:
            if parent is not None:
                return self.undo_one(operation, parent)
        place = self.came_out(operation)
        if place is not None:
            self._keep(operation, place)
        return False

    def _undo_mode(self, operation: Operation) -> bool:
        try:
            fd = paths.open_below(self.root.root_fd, operation.path, os.O_PATH)
        except OSError as error:
            if error.errno in ELSEWHERE:
                return False
            raise
        try:
            found = look_at(fd)
            if not operation.is_target(found) or found.stat.mode != operation.new_mode:
                return False
            change_mode(fd, operation.old_mode)
        finally:
            os.close(fd)
        return True

    def _restore_times(self) -> None:
        for path in {paths.parent(operation.path) for operation in self.intent.operations if operation.path}:
            with self._directory(path) as directory:
                if directory is not None:
                    self.times.restore(directory.root_fd)

    def _slot_is_empty(self, slot: bytes) -> bool:
        # Without what `look` costs: a commit asks that of each of its operations, again and again.
        try:
            os.stat(slot, dir_fd=self._staged.root_fd, follow_symlinks=False)
        except FileNotFoundError:
            return True
        return False

    def _take_back(self, operation: Operation, parent: LocalStorage) -> bool:
        """Take what we made out of the workspace again, if it's still as we made it; whether nothing is left of it."""
        name = paths.name(operation.path)
        found = look(parent, name)
        if found is None:
            return True
        if not self._holds_new(operation, parent, name):
            if found.stat.kind is Kind.DIR and found.is_inode_of(self.standing[operation.number][0]):
                return self._take_back_pieces(operation, parent)
            self.kept.append((operation.path, ""))
            return False
        with self.times.around(parent.root_fd):
            try:
                rename_new(parent.root_fd, name, self._staged.root_fd, operation.slot)
            except FileNotFoundError:
                return True
        if self._holds_new(operation, self._staged, operation.slot):
            return True
        # A person was quicker: it goes back, and of a directory only what is ours alone comes out.
        if not self._put_back(operation, operation.slot, parent):
            return False
        return self._take_back_pieces(operation, parent)

    def _take_back_pieces(self, operation: Operation, parent: LocalStorage) -> bool:
        """Of a directory of ours that a person has worked in since, take out what is still as we made it."""
        top = paths.name(operation.path)
        for number, base in enumerate(reversed(self.standing[operation.number])):
            path = top + base.path[len(operation.path) :]
            found = look(parent, path)
            if found is None or not found.is_inode_of(base):
                continue
            with open_parent(parent, path) as directory_fd:
                if base.kind is Kind.DIR:
                    try:
                        os.rmdir(paths.name(path), dir_fd=directory_fd)
                    except OSError as error:
                        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
                            raise
                elif tree_holds(parent, path, (base,)):
                    self._take_back_piece(operation, base, b"%d.%d" % (operation.number, number), directory_fd)
        if look(parent, top) is None:
            return True
        self.kept.append((operation.path, ""))
        return False

    def _take_back_piece(self, operation: Operation, base: Base, slot: bytes, directory_fd: int) -> None:
        name = paths.name(base.path)
        try:
            rename_new(directory_fd, name, self._staged.root_fd, slot)
        except FileNotFoundError:
            return
        if not tree_holds(self._staged, slot, (base,), moved=True):
            try:
                rename_new(self._staged.root_fd, slot, directory_fd, name)
            except (FileExistsError, FileNotFoundError):
                self._keep(operation, slot)

    def _put_back(self, operation: Operation, place: bytes, parent: LocalStorage) -> bool:
        """Rename something staged to the operation's path; where a person has put something there, keep it."""
        with self.times.around(parent.root_fd):
            try:
                rename_new(self._staged.root_fd, place, parent.root_fd, paths.name(operation.path))
            except (FileExistsError, FileNotFoundError):
                # Something of a person's stands there, or the directory is gone.
                taken = True
            else:
                taken = False
        if taken:
            self._keep(operation, place)
        return not taken

    def _exchange_back(self, operation: Operation, parent: LocalStorage) -> bool:
        """Exchange the old entry with ours; what a person saves meanwhile stands in the end, the newest of it."""
        slot, name = operation.slot, paths.name(operation.path)
        if not self._holds_new(operation, parent, name):
            self._keep(operation, slot)
            return False
        expected: int | None = None
        while True:
            placed = look(self._staged, slot)
            with self.times.around(parent.root_fd):
                try:
                    syscalls.renameat2(self._staged.root_fd, slot, parent.root_fd, name, syscalls.RENAME_EXCHANGE)
                except FileNotFoundError:
                    # Deleted at this very moment: that stands as well.
                    self._keep(operation, slot)
                    return False
            if expected is None and self._holds_new(operation, self._staged, slot):
                return True
            out = look(self._staged, slot)
            if out is not None and out.stat.inode == expected:
                self._keep(operation, slot)
                return False
            # What came out is newer than what went in: it goes back, and what went in is expected out.
            expected = placed.stat.inode if placed is not None else None

    def _keep(self, operation: Operation, place: bytes) -> None:
        """Move what can't go back where it was to the commit's directory, and name it."""
        os.makedirs(os.path.join(self.journal.directory, "kept"), mode=0o700, exist_ok=True)
        with LocalStorage(os.fsencode(self.journal.directory)) as directory:
            number = itertools.count(1)
            name = b"kept/%d" % operation.number
            while look(directory, name) is not None:
                name = b"kept/%d-%d" % (operation.number, next(number))
            move_tree(self._staged, place, directory, name)
        sync_directory(os.path.join(self.journal.directory, "kept"))
        self.kept.append((operation.path, os.fsdecode(name)))

    def kept_before(self) -> list[Kept]:
        """What an undo that a crash cut short has kept already."""
        try:
            names = sorted(os.listdir(os.path.join(self.journal.directory, "kept")))
        except FileNotFoundError:
            return []
        by_number = {operation.number: operation.path for operation in self.intent.operations}
        return [
            (by_number[int(name.partition("-")[0])], f"kept/{name}") for name in names if not name.endswith(".copy")
        ]

    @contextlib.contextmanager
    def _directory(self, path: bytes) -> Iterator[LocalStorage | None]:
        if path in self._parents:
            yield self._parents[path]
            return
        try:
            fd = self.root.open_directory(path)
        except OSError as error:
            if error.errno not in ELSEWHERE:
                raise
            yield None
            return
        try:
            with LocalStorage(fd) as directory:
                yield directory
        finally:
            os.close(fd)

    # Finishing

    def finish(self) -> Committed:
        """Keep the pre-images, write what landed, clear up. Doing it again after a crash completes it.

        Raises OSError where it can't be completed now.
        """
        self._keep_pre_images()
        committed = self._committed()
        save(committed)
        self.on_step("landed")
        mark_unsettled(self.journal.commits_dir, self.intent.commit_id)
        self.journal.append({"record": "done"})
        self.on_step("done")
        self.clear()
        return committed

    def _keep_pre_images(self) -> None:
        old = os.path.join(self.journal.directory, "old")
        os.makedirs(old, mode=0o700, exist_ok=True)
        with LocalStorage(os.fsencode(old)) as directory:
            for operation in self.intent.operations:
                place = self.came_out(operation)
                if place is None:
                    continue
                self.on_step(f"pre-image:{operation.number}")
                if self._keep_pre_image(place, directory, operation.slot):
                    continue
                if self.holds_old(operation, place):
                    # It was copied before, to another filesystem.
                    remove_tree(self._staged, place)
                else:
                    self._keep(operation, place)
            self._note_linked(directory)
        sync_directory(old)

    def _keep_pre_image(self, place: bytes, directory: LocalStorage, name: bytes) -> bool:
        """Move what came out to where pre-images are kept; False where there is one of this name already."""
        try:
            rename_new(self._staged.root_fd, place, directory.root_fd, name)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            if look(directory, name) is not None:
                return False
            move_tree(self._staged, place, directory, name)
        return True

    def _note_linked(self, old: LocalStorage) -> None:
        """Note what the renames did to the ctimes of files that have other names, which may still be in the workspace."""
        linked = []
        for operation in self.intent.operations:
            if operation.old and operation.old[0].kind is Kind.FILE and _has_other_names(old, operation.slot):
                found = look(old, operation.slot)
                if found is not None:
                    linked.append((found.handle, operation.old[0].ctime_ns, found.stat.ctime_ns))
        add_restored(self.journal.commits_dir, linked)

    def _committed(self) -> Committed:
        steps = steps_of(self.intent.changes)
        staged = {base.path: base for bases in self.standing.values() for base in bases}
        return Committed(
            commit_id=self.intent.commit_id,
            session=self.intent.session,
            checkpoint=self.intent.checkpoint,
            digest=self.intent.digest,
            created_ns=self.intent.created_ns,
            directory=self.journal.directory,
            changes=self.intent.changes,
            landed=tuple(steps),
            added=frozenset(path for path, (old, _) in steps.items() if old is None),
            landed_bases={path: self._landed_base(path, new, staged.get(path)) for path, (_, new) in steps.items()},
            weak=self.weak,
            kept=tuple(self.kept),
            message=self.intent.message,
        )

    def _landed_base(self, path: bytes, new: State | None, staged: Base | None) -> Base:
        if new is None:
            return Base(path, Certainty.ABSENT)
        found = look(self.root, path)
        if found is not None and found.stat.kind is new.kind:
            stat = found.stat
            if new.kind is Kind.DIR:
                return found.base(path)
            untouched = (
                staged is not None
                and found.is_inode_of(staged)
                and (stat.mode, stat.size, stat.mtime_ns) == (staged.mode, staged.size, staged.mtime_ns)
            )
            if untouched or content_id(self.root, path, found, like=new.blob) == new.blob:
                return found.base(path, new.blob)
        # A person has edited it since: no inode is this one, so that the next commit sees that.
        return Base(path, Certainty.KNOWN, new.kind, new.mode, size=new.size, blob=new.blob)

    def clear(self, *, undone: bool = False) -> None:
        """Remove the staging directory, put the root's mtime back where no entry of its own changed, end the transaction.

        Where it was `undone` and nothing had to be kept, the commit's own directory goes too. Raises OSError.
        """
        root_fd = self.root.open_directory(b"")
        try:
            if self.intent.operations:
                with self.times.around(root_fd):
                    remove_tree(self.root, self.intent.staging)
                if undone or not any(b"/" not in operation.path for operation in self.intent.operations):
                    self.times.restore(root_fd)
                os.fsync(root_fd)
            self.on_step("cleared")
        finally:
            os.close(root_fd)
        if undone and not self.kept:
            with LocalStorage(os.fsencode(self.journal.commits_dir)) as commits:
                remove_tree(commits, os.fsencode(self.intent.commit_id))
        clear_pending(self.journal.commits_dir)


def _has_other_names(directory: LocalStorage, name: bytes) -> bool:
    try:
        return os.stat(name, dir_fd=directory.root_fd, follow_symlinks=False).st_nlink > 1
    except FileNotFoundError:
        return False
