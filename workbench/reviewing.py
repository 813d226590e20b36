"""The review of one overlay's changes: what was decided, and which change set a digest that was shown stands for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from workbench.checkpoints.store import CheckpointStore
from workbench.errors import CommitError
from workbench.protocol.records import SelectionRecord, ShownRecord
from workbench.review import decisions
from workbench.review.changeset import ChangeSet, Included
from workbench.review.comments import Comments
from workbench.review.decisions import Review
from workbench.review.selection import selected
from workbench.review.shown import ShownDigests
from workbench.vfs.local import LocalStorage

Compare = Callable[[str, Included], ChangeSet]
"""The change set of a checkpoint (its commit), with what was asked for of what stays behind."""


class Reviewing:
    """The decisions on an overlay's changes, one review at a time."""

    def __init__(
        self, overlay_path: str, lower: LocalStorage, store: CheckpointStore, shown: ShownDigests, compare: Compare
    ) -> None:
        self._overlay_path = overlay_path
        self._lower = lower
        self._store = store
        self._shown = shown
        self._compare = compare
        self.comments = Comments(overlay_path)
        """What a person has to say to the agent."""

    def begin(self, checkpoint: str, included: Included | None = None) -> Review:
        """The review of a checkpoint's changes, with what was decided before of those that are the same.

        `included` None is what the last review asked for. Raises OSError, CheckpointError.
        """
        kept = decisions.load(self._overlay_path)
        if included is None:
            included = decisions.included_of(kept.included) if kept is not None else Included()
        review = Review(self._compare(checkpoint, included), included, self._lower, self._store)
        if kept is not None:
            review.take_over(kept)
        return review

    def keep(self, review: Review, terminal: str = "") -> ChangeSet:
        """Keep the decisions of a review; what was accepted, whose digest a commit may name from now on.

        `terminal` is the name of the one that it was shown on, if any. Raises CommitError (not_landable) as `selected`,
        ConflictError, OSError, CheckpointError.
        """
        record = decisions.selection_record(review.selection())
        accepted = self._select(review.changes, record)
        has_any = bool(accepted.changes)
        decisions.save(self._overlay_path, review.record(accepted.digest if has_any else ""))
        if has_any:
            included = decisions.included_record(review.included)
            self._shown.add(accepted.digest, accepted.checkpoint, terminal, record, included)
        return accepted

    def save(self, review: Review) -> None:
        """Keep the decisions of a review that isn't at its end: until `keep` nothing is accepted. Raises OSError."""
        decisions.save(self._overlay_path, review.record(""))

    def accepted(self) -> ShownRecord | None:
        """What was accepted, None where nothing was or it has landed. Raises OSError."""
        kept = decisions.load(self._overlay_path)
        if kept is None or not kept.digest:
            return None
        try:
            return self._shown.find(kept.digest)
        except CommitError:
            return None

    def show(self, accepted: ShownRecord, changes: ChangeSet, terminal: str) -> str:
        """Say that what was accepted, which is `changes`, was shown on a terminal of this name; its digest.

        Raises CommitError (digest_changed) where the real workspace changed around it since.
        """
        self.require_same(accepted, changes)
        self._shown.add(accepted.digest, accepted.checkpoint, terminal, accepted.selection, accepted.included)
        return accepted.digest

    def require_same(self, shown: ShownRecord, changes: ChangeSet) -> None:
        """Raise CommitError (digest_changed) where `changes` aren't what was shown."""
        if changes.digest != shown.digest:
            raise CommitError(
                "What would land is no longer what was shown: the real workspace changed around it.",
                code="digest_changed",
                hint="Look again with `workbench diff`, and commit the digest it names.",
            )

    def partly_taken(self, shown: ShownRecord) -> ChangeSet | None:
        """The whole changes of those files of which only some hunks were taken, None where there are none.

        Where the real workspace changed in one, its hunks are others, and nothing tells by what's selected.
        """
        if shown.selection is None or not shown.selection.hunks:
            return None
        changes = self._compare(shown.checkpoint, decisions.included_of(shown.included))
        named = {path for path, _ in shown.selection.hunks}
        return replace(changes, changes=tuple(change for change in changes.changes if change.path in named))

    def stands_for(self, shown: ShownRecord) -> ChangeSet:
        """The change set that was shown, made again from its checkpoint and the real workspace as it is now.

        Raises as `keep`.
        """
        changes = self._compare(shown.checkpoint, decisions.included_of(shown.included))
        return changes if shown.selection is None else self._select(changes, shown.selection)

    def _select(self, changes: ChangeSet, record: SelectionRecord) -> ChangeSet:
        selection = decisions.selection_of(record)
        with self._store.adding() as sink:
            return selected(changes, selection, self._lower, self._store, sink)
