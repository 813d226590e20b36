"""A workspace over a storage that isn't a directory of this machine: its overlay is in memory, and no command runs in it."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from dataclasses import dataclass
from types import TracebackType
from typing import NoReturn, Self

from anyio import Lock, to_thread
from fsspec.spec import AbstractFileSystem

from workbench.checkpoints.memory_layer import MemoryLayer, SeenLower
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.errors import CommitError, ConflictError, SandboxError
from workbench.files import Files
from workbench.protocol.commands import Command
from workbench.review.bases import conflicts
from workbench.review.changeset import ChangeSet
from workbench.review.compare import change_set
from workbench.review.remaining import remaining
from workbench.review.shown import ShownDigests
from workbench.review.storage_commit import StorageCommitted, commit_to_storage, recover
from workbench.vfs.any_lower import AnyLower
from workbench.vfs.fsspec_storage import FsspecStorage
from workbench.vfs.overlay import Overlay
from workbench.vfs.session import scratch_name
from workbench.vfs.storage import Storage, StorageWriter, WritableStorage


@dataclass(frozen=True, slots=True)
class StorageLanded:
    """A commit that landed in a storage, and what stayed in the overlay."""

    committed: StorageCommitted
    left: ChangeSet


class StorageWorkspace:
    """A storage that is worked on through an overlay in memory, and changes only through `commit`.

    Open it with `Workspace.open(storage)`, and use it as an async context manager. Its files, checkpoints, changes and
    commits are as those of `Workspace`; there is no sandbox. The overlay ends with it, the checkpoints do unless they were
    given a directory.
    """

    def __init__(
        self, storage: Storage | AbstractFileSystem, *, session: str = "default", directory: str | None = None
    ) -> None:
        self.session = session
        self._storage = storage = _as_storage(storage)
        self._temporary = tempfile.mkdtemp(prefix="workbench-") if directory is None else None
        self._store = CheckpointStore(directory or self._temporary or "")
        self.shown = ShownDigests(self._store.directory)
        self._lower = AnyLower(storage)
        seen = SeenLower(storage)
        self._layer = MemoryLayer(seen)
        self.view = Overlay(seen, self._layer)
        # One at a time uses the store, and none while a commit or a restore is at the layer.
        self._turn = Lock()

    async def __aenter__(self) -> Self:
        """Raises OSError where the storage can't be asked whether it has a `_notes` of its own."""
        self.view.scratch = await to_thread.run_sync(scratch_name, self._lower.exists)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of what is open, and of a temporary directory; safe to call again."""
        self._store.close()
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)
            self._temporary = None

    @property
    def lower(self) -> AnyLower:
        """The storage, for reading."""
        return self._lower

    @property
    def store(self) -> CheckpointStore:
        """The checkpoints."""
        return self._store

    @property
    def files(self) -> Files:
        """The files of the merged view, in calls that can be awaited."""
        return Files(self.view)

    async def exec(self, command: Command) -> NoReturn:
        """No command runs over a storage. Raises SandboxError (sandbox_unsupported)."""
        raise SandboxError(
            "A command can't be run here: the workspace is a storage, not a directory of this machine.",
            code="sandbox_unsupported",
            hint="Copy it into a directory, and open that as the workspace.",
        )

    async def read(self, path: bytes) -> bytes:
        """The content of a file of the merged view. Raises OSError as opening the file does."""
        return await self.files.read(path)

    # Checkpoints

    async def checkpoint(self, message_id: str | None = None, *, label: str = "") -> Checkpoint:
        """Keep the overlay as it is at this moment. Raises CheckpointError, OptionsError."""
        async with self._turn:
            return await to_thread.run_sync(self._take, message_id or f"auto-{uuid.uuid4().hex}", label)

    async def checkpoints(self) -> list[Checkpoint]:
        """All of them, newest first. Raises CheckpointError."""
        async with self._turn:
            return await to_thread.run_sync(self._store.list, self.session)

    async def restore(self, checkpoint: Checkpoint) -> Checkpoint:
        """Make the overlay what it was; what it is now is checkpointed first, and returned. Raises CheckpointError."""
        async with self._turn:
            return await to_thread.run_sync(self._restore, checkpoint)

    def _take(self, message_id: str, label: str) -> Checkpoint:
        return self._store.take_of(self.session, self._layer, message_id=message_id, label=label)

    def _restore(self, checkpoint: Checkpoint) -> Checkpoint:
        before = self._take(f"restore-{uuid.uuid4().hex}", "before a restore")
        self._layer.restore(checkpoint.manifest, self._store)
        return before

    # Looking

    async def changes(self) -> ChangeSet:
        """Take a checkpoint and compare it with the storage. Raises CheckpointError, OSError."""
        async with self._turn:
            return await to_thread.run_sync(lambda: self._compare(self._take(f"auto-{uuid.uuid4().hex}", "looked at")))

    def reviewed(self, changes: ChangeSet, terminal: str = "") -> str:
        """Say that a change set was shown; its digest, which a commit may now name."""
        self.shown.add(changes.digest, changes.checkpoint, terminal)
        return changes.digest

    async def conflicts(self, changes: ChangeSet) -> list[bytes]:
        """The paths of a change set that can't land: the storage changed there meanwhile. Raises OSError."""
        async with self._turn:
            return await to_thread.run_sync(
                lambda: conflicts(self._lower, changes, self._store.get(changes.checkpoint).manifest)
            )

    def _compare(self, checkpoint: Checkpoint) -> ChangeSet:
        return change_set(checkpoint.commit, checkpoint.manifest, self._lower, self._store, scratch=self.view.scratch)

    # Deciding

    async def commit(self, digest: str, *, allow_risky: bool = False) -> StorageLanded:
        """Land exactly the change set that was shown under `digest`, all of it or nothing; what came later stays.

        Less is promised than of a directory: `review.storage_commit` says what, and the result's `weak`. Raises CommitError
        (storage_read_only, digest_unknown, nothing_to_commit, digest_changed, risky_paths, not_landable, commit_incomplete,
        commit_failed), ConflictError.
        """
        async with self._turn:
            return await to_thread.run_sync(self._commit, digest, allow_risky)

    def _commit(self, digest: str, allow_risky: bool) -> StorageLanded:
        writer = self._writer()
        shown = self.shown.find_some(digest)
        reviewed = self._store.get(shown.checkpoint)
        changes = self._compare(reviewed)
        if found := conflicts(self._lower, changes, reviewed.manifest):
            raise ConflictError(
                "The storage changed meanwhile in paths of this commit; nothing was applied.",
                paths=found,
                hint="Look at what changed; discard, or take those paths out of the overlay.",
            )
        if changes.digest != shown.digest:
            raise CommitError(
                "What would land is no longer what was shown: the storage changed around it.",
                code="digest_changed",
                hint="Look at the changes again, and commit the digest they have now.",
            )
        if changes.risky and not allow_risky:
            raise CommitError(
                "Some of it would make a host run code.",
                code="risky_paths",
                paths=[change.path for change in changes.risky],
                hint="Look at those paths, then allow them.",
            )
        committed = commit_to_storage(self._lower, writer, changes, reviewed.manifest, self._store)
        with self._layer.lock:
            now = self._take(f"commit-{uuid.uuid4().hex}", "after a commit")
            rest = remaining(now.manifest, self._lower, committed.landed_bases, added=committed.added)
            self._layer.restore(rest, self._store)
        self.shown.clear()
        return StorageLanded(committed, self._compare(self._take(f"rest-{uuid.uuid4().hex}", "after a commit")))

    async def recover(self) -> tuple[bytes, ...]:
        """Undo what a commit of a process that is gone left half done; nobody else may be committing.

        Returns the paths that somebody has changed since: they stay as they are. Raises as `storage_commit.recover`, and
        CommitError (storage_read_only).
        """
        async with self._turn:
            return await to_thread.run_sync(lambda: recover(self._lower, self._writer()))

    async def discard(self) -> Checkpoint:
        """Drop everything that the overlay holds; the checkpoint that still has it. Raises CheckpointError."""
        async with self._turn:
            return await to_thread.run_sync(self._discard)

    def _discard(self) -> Checkpoint:
        now = self._take(f"discard-{uuid.uuid4().hex}", "before a discard")
        root = now.manifest.entries[b""]
        self._layer.restore(now.manifest.with_entries({b"": root}, {}), self._store)
        self.shown.clear()
        return now

    def _writer(self) -> StorageWriter:
        writer = self._storage.writer() if isinstance(self._storage, WritableStorage) else None
        if writer is None:
            raise CommitError(
                "Nothing can be committed to this storage: it can't be written, or only without a check of what it holds.",
                code="storage_read_only",
                hint="Take the changes as a patch, or commit to a directory or an S3 bucket.",
            )
        return writer


def _as_storage(storage: Storage | AbstractFileSystem) -> Storage:
    return FsspecStorage(storage) if isinstance(storage, AbstractFileSystem) else storage
