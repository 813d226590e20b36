"""The landing of one overlay's changes: what would land, whether it may, and how the overlay goes on from what landed.

Everything here blocks, and the overlay's lock is held, with nothing mounted, wherever the upper layer is replaced.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from workbench.checkpoints import manifest_format
from workbench.checkpoints.history import Purpose, RowKind
from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.errors import CommitError, ConflictError
from workbench.merging import Merging
from workbench.mounting import Mounting
from workbench.protocol.records import ShownRecord
from workbench.review import policy
from workbench.review.audit import AuditLog, counted
from workbench.review.bases import conflicts, differing
from workbench.review.branch import Branch, make_branch
from workbench.review.carried import Carried, carried
from workbench.review.changeset import ChangeSet, Included
from workbench.review.commit import commit
from workbench.review.compare import change_set
from workbench.review.journal import restored
from workbench.review.landed import Committed, find_by_id, unsettled
from workbench.review.layer import layer_of
from workbench.review.merge import Merge
from workbench.review.remaining import remaining
from workbench.review.revert import inverted
from workbench.review.shown import ShownDigests
from workbench.reviewing import Reviewing
from workbench.sandbox.facts import JobFacts
from workbench.state import StateDirectory, WorkspaceDirectory
from workbench.vfs.changed_mark import mark_changed
from workbench.vfs.local import LocalStorage
from workbench.vfs.session import OverlayDirectory
from workbench.vfs.statefile import write_file


@dataclass(frozen=True, slots=True)
class Landed:
    """A commit that landed: what it was, what stayed in the overlay, which commands it ended.

    `already` says that it had landed before, and nothing was done now. `verified` says that what landed was read back and
    compared with what was reviewed, `differs` are the paths at which it's something else by now.
    """

    committed: Committed
    left: ChangeSet
    ended: tuple[JobFacts, ...]
    already: bool = False
    verified: bool = False
    differs: tuple[bytes, ...] = ()


class Landing:
    """Compares, commits, merges and reverts, for one overlay."""

    def __init__(
        self,
        state: StateDirectory,
        directory: WorkspaceDirectory,
        overlay: OverlayDirectory,
        store: CheckpointStore,
        lower: LocalStorage,
        mounting: Mounting,
        session: str,
    ) -> None:
        self._state = state
        self._directory = directory
        self._overlay = overlay
        self._store = store
        self._lower = lower
        self._mounting = mounting
        self._session = session
        self.shown = ShownDigests(overlay.path)
        self.audit = AuditLog(directory.path)
        self.reviewing = Reviewing(
            overlay.path,
            lower,
            store,
            self.shown,
            lambda checkpoint, included: self.compare(self._store.get(checkpoint), included),
        )
        self._merging = Merging(overlay.path, lower, store, mounting)

    def compare(self, checkpoint: Checkpoint, included: Included | None = None) -> ChangeSet:
        """The change set of a checkpoint, with what was asked for of what stays behind. Raises OSError, CheckpointError."""
        record = self._overlay.record()
        return change_set(
            checkpoint.commit,
            checkpoint.manifest,
            self._lower,
            self._store,
            scratch=os.fsencode(record.scratch),
            root_mode=record.root_mode,
            included=included,
        )

    def conflicts(self, changes: ChangeSet, checkpoint: Checkpoint) -> list[bytes]:
        """The paths of a checkpoint's changes at which the real workspace is no longer what it was. Raises OSError."""
        # An undone commit gave some paths a new change time, and nothing else.
        ours = restored(self._directory.commits)
        found = conflicts(self._lower, changes, checkpoint.manifest, restored=ours)
        if found:
            # Whatever is mounted now shows something else there than a reader outside sees.
            mark_changed(self._overlay.path)
        return found

    def unresolved(self, checkpoint: Checkpoint) -> list[bytes]:
        """The paths that have conflict markers of a merge in them. Raises OSError, CheckpointError."""
        return self._merging.unresolved(checkpoint.manifest)

    def layer(self, shown: ShownRecord) -> Manifest:
        """The layer that shows, on the real workspace, exactly what was shown. Raises CommitError (digest_changed)."""
        changes = self.reviewing.stands_for(shown)
        self.reviewing.require_same(shown, changes)
        return layer_of(changes, self._store.get(shown.checkpoint).manifest, self._lower)

    @contextlib.contextmanager
    def refusals_noted(self, digest: str) -> Iterator[None]:
        """Write down in the audit log where the block is refused, and for how many paths."""
        try:
            yield
        except CommitError as error:
            if error.code == "nothing_to_commit":
                raise
            counts = {"path": len(error.paths)} if error.paths else {}
            self.audit.append("refusal", session=self._session, digest=digest, code=error.code, counts=counts)
            raise

    def require_unasked(self, changes: ChangeSet) -> None:
        """Raise CommitError (policy_waits) where something of it may only land after a review; OptionsError."""
        if asked := policy.judge(changes, policy.load(self._session)).asked:
            raise CommitError(
                f"{_count(len(asked), 'path')} of it may only land after a review, so all of it waits.",
                code="policy_waits",
                paths=asked,
                hint="Look with `workbench review`, then `workbench commit --accepted`.",
            )

    def landable(
        self, shown: ShownRecord, allow_risky: bool, *, in_working_tree: bool = True
    ) -> tuple[Manifest, ChangeSet]:
        """What was shown, made again, with the manifest it's of. Raises as `commit` where it can't land."""
        reviewed = self._store.get(shown.checkpoint)
        changes = self.reviewing.stands_for(shown)
        conflicting = self.conflicts(changes, reviewed)
        if not conflicting and (partly := self.reviewing.partly_taken(shown)) is not None:
            conflicting = self.conflicts(partly, reviewed)
        if conflicting:
            raise ConflictError(
                f"The real workspace changed meanwhile in {_count(len(conflicting), 'path')} of this commit; "
                "nothing was applied.",
                paths=conflicting,
                hint="Bring them into the overlay with `workbench merge`, then review again.",
            )
        self.reviewing.require_same(shown, changes)
        if changes.risky and not allow_risky:
            raise CommitError(
                f"{_count(len(changes.risky), 'path')} would make a host run code or lead out of the workspace.",
                code="risky_paths",
                paths=[change.path for change in changes.risky],
                hint="Look at them in `workbench review`, then say `--allow-risky`.",
            )
        policy.require_allowed(changes, policy.load(self._session), in_working_tree=in_working_tree)
        self._merging.require_resolved(changes)
        return reviewed.manifest, changes

    def commit(self, shown: ShownRecord, allow_risky: bool, ended: tuple[JobFacts, ...], message: str) -> Landed:
        """Land what was shown, and make the upper what is left. Raises as `landable` and `review.commit.commit`."""
        manifest, changes = self.landable(shown, allow_risky)
        # What came later gets its bases now: once we have landed, ours could be taken for somebody else's changes.
        now = self._mounting.take(None, "before a commit", offline=True)
        with self._ancestors() as descriptors:
            committed = commit(
                self._lower,
                self._directory.commits,
                changes,
                manifest,
                self._store,
                session=self._session,
                message=message,
                locks=descriptors,
            )
        self._settle(committed, now)
        self._mark_siblings()
        rest = self._mounting.take(None, "after a commit", offline=True)
        return Landed(committed, self.compare(rest), ended)

    def _settle(self, committed: Committed, now: Checkpoint | None = None) -> None:
        """Make the upper what remains of it over the new lower.

        `now` is the checkpoint of the upper as it is, where one has just been taken under the same lock.
        What remains is written down first: computed again over an upper that it was already brought to, it would take
        what landed for what was deleted since.
        """
        file = os.path.join(committed.directory, "remaining")
        try:
            with open(file, "rb") as stream:
                rest = manifest_format.from_bytes(stream.read())
        except FileNotFoundError:
            # Here, since a crash may have come between: rather twice than never.
            self._note_landed("commit", committed)
            if now is None:
                now = self._mounting.take(None, "before a commit", offline=True)
            kept = self._mounting.without_repositories(now.manifest)
            self._mounting.empty_git_overlay()
            rest = remaining(kept, self._lower, committed.landed_bases, added=committed.added)
            write_file(file, manifest_format.to_bytes(rest))
        purpose = Purpose(RowKind.LANDED, landed=committed.commit_id)
        self._mounting.replace_upper(rest, f"after commit {committed.commit_id}", purpose)
        if root := committed.landed_bases.get(b""):
            self._mounting.note_root_mode(root.mode)
        self.shown.clear()
        committed.settle()

    def _settle_revert(self, committed: Committed) -> None:
        """A revert is of no overlay."""
        self._note_landed("revert", committed)
        committed.settle()

    @property
    def is_unsettled(self) -> bool:
        """Whether something landed that the overlay doesn't know of yet. Raises OSError."""
        return any(committed.session in (self._session, "") for committed in unsettled(self._directory.commits))

    def settle(self) -> None:
        """Bring the overlay up to date with what landed. Raises CheckpointError, OSError."""
        for committed in unsettled(self._directory.commits):
            if committed.session == self._session:
                self._settle(committed)
            elif not committed.session:
                self._settle_revert(committed)

    def merge(self, ours: Sequence[bytes], theirs: Sequence[bytes]) -> Merge:
        """Merge what conflicts into the upper. Raises CommitError, CheckpointError, OSError."""
        now = self._mounting.take(None, "before a merge", offline=True, purpose=Purpose(RowKind.BEFORE))
        found = self.conflicts(self.compare(now), now)

        def write(merged: Manifest) -> None:
            self._mounting.replace_upper(merged, "merged", Purpose(RowKind.UPKEEP))
            self.shown.clear()

        return self._merging.run(now.manifest, found, write, ours=ours, theirs=theirs)

    def _note_landed(self, action: str, committed: Committed) -> None:
        self.audit.append(
            action,
            session=self._session,
            digest=committed.digest,
            commit_id=committed.commit_id,
            message=committed.message,
            counts=counted(committed.changes),
        )

    def revert(self, commit_id: str, message: str, dry_run: bool) -> tuple[ChangeSet, Committed | None]:
        """Take a commit back: what that changes, and the commit that it landed as. Raises as `Workspace.revert`."""
        committed = find_by_id(self._directory.commits, commit_id)
        with self._store.adding() as sink:
            changes, manifest = inverted(committed, sink)
        if conflicting := conflicts(self._lower, changes, manifest, restored=restored(self._directory.commits)):
            raise ConflictError(
                f"The real workspace changed since commit {committed.commit_id} in {_count(len(conflicting), 'path')} of "
                "it; nothing was applied.",
                paths=conflicting,
                hint="Revert the later commits first, or put those paths back as they were.",
            )
        if not differing(self._lower, changes.changes):
            raise CommitError(
                f"The real workspace is already as it was before commit {committed.commit_id}; nothing was applied.",
                code="nothing_to_commit",
                hint="`workbench log --commits` names the commits.",
            )
        if dry_run:
            return changes, None
        with self._ancestors() as descriptors:
            reverted = commit(
                self._lower,
                self._directory.commits,
                changes,
                manifest,
                self._store,
                message=message or f"Revert {committed.commit_id}",
                locks=descriptors,
            )
        self._settle_revert(reverted)
        self._mark_siblings()
        mark_changed(self._overlay.path)
        return changes, reverted

    def _mark_siblings(self) -> None:
        for session in self._directory.sessions():
            if session != self._session:
                mark_changed(self._directory.overlay_path(session))

    @contextlib.contextmanager
    def _ancestors(self) -> Iterator[Sequence[int]]:
        """Descriptors of the workspaces that this one lies in: their commits and ours exclude each other."""
        with contextlib.ExitStack() as stack:
            found = []
            for workspace in self._state.workspaces():
                if (
                    workspace.root
                    and workspace.root != self._directory.root
                    and _lies_in(self._directory.root, workspace.root)
                ):
                    with contextlib.suppress(OSError):
                        found.append(os.open(workspace.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
                        stack.callback(os.close, found[-1])
            yield found

    def _history(self, shown: ShownRecord, manifest: Manifest, allow_risky: bool) -> Carried:
        if shown.selection is not None:
            raise CommitError(
                "The agent's commits have all it did, and only a part was accepted.",
                code="not_landable",
                hint="Make the branch of all changes (workbench diff), or without --keep-history.",
            )
        history = carried(manifest, self._lower, self._store, self._overlay.path)
        if history.risky and not allow_risky:
            raise CommitError(
                f"{_count(len(history.risky), 'path')} in the agent's commits would make a host run code.",
                code="risky_paths",
                paths=history.risky,
                hint="Say `--allow-risky`, or make the branch without --keep-history.",
            )
        return history

    def branch(
        self, digest: str, name: str, *, message: str, author: str, allow_risky: bool, keep_history: bool
    ) -> Branch:
        """Make a branch of what was shown. Raises as `landable`, `make_branch`, and with its history as `carried`."""
        shown = self.shown.find_some(digest)
        manifest, changes = self.landable(shown, allow_risky, in_working_tree=False)
        history = self._history(shown, manifest, allow_risky) if keep_history else None
        made = make_branch(self._lower, changes, self._store, name, message=message, author=author, history=history)
        self.audit.append(
            "branch",
            session=self._session,
            digest=changes.digest,
            commit_id=made.commit,
            message=message,
            counts=counted(changes.changes),
        )
        return made


def _lies_in(path: bytes, directory: bytes) -> bool:
    return os.path.commonpath((path, directory)) == directory


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
