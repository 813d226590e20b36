"""One readable history of a session: its checkpoints, what each changed, and where lines part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from workbench.checkpoints.history import RowKind
from workbench.checkpoints.store import Checkpoint
from workbench.review.between import count_changes
from workbench.review.changeset import ChangeKind


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One checkpoint as it's listed.

    The counts are of paths: of a command's those that it changed, of any other's those that differ from the one listed
    before. `steps` are the numbered steps of its message, oldest first. `is_left` says that a rewind went back behind it,
    so that it's not among what led to what is there now. `forks` are the sessions that were forked from it.
    """

    checkpoint: Checkpoint
    added: int
    modified: int
    removed: int
    steps: tuple[Checkpoint, ...] = ()
    is_left: bool = False
    forks: tuple[str, ...] = ()

    @property
    def changes(self) -> int:
        return self.added + self.modified + self.removed


def log_entries(
    checkpoints: Sequence[Checkpoint],
    *,
    most: int = 0,
    called_now: Callable[[str], str],
    forks: dict[str, list[str]] | None = None,
) -> list[LogEntry]:
    """What a log lists of `checkpoints` (all of them, oldest first), newest first, no more than `most` unless it's 0.

    `called_now` is the store's. `forks` are the sessions that were forked, by commit. Reads the manifests of those that it
    lists. Raises CheckpointError (store_corrupt), OSError.
    """
    last = {(each.session, each.message_id, each.purpose.step): each for each in checkpoints}
    shown = [
        each
        for each in checkpoints
        if each.is_listed and not each.purpose.step and last[each.session, each.message_id, 0] is each
    ]
    on_the_way = _on_the_way(checkpoints, called_now)
    after = {id(each): following for each, following in pairwise(checkpoints)}
    steps: dict[tuple[str, str], list[Checkpoint]] = {}
    for each in checkpoints:
        if each.purpose.step:
            steps.setdefault((each.session, each.message_id), []).append(each)
    entries = []
    for number in range(len(shown) - 1, max(-1, len(shown) - 1 - most) if most else -1, -1):
        checkpoint = shown[number]
        old, new = (shown[number - 1] if number else None), checkpoint
        if checkpoint.purpose.kind is RowKind.COMMAND and id(checkpoint) in after:
            old, new = checkpoint, after[id(checkpoint)]
        added, modified, removed = _counts(old, new)
        entries.append(
            LogEntry(
                checkpoint,
                added,
                modified,
                removed,
                tuple(steps.get((checkpoint.session, checkpoint.message_id), ())),
                (checkpoint.session, checkpoint.number) not in on_the_way,
                tuple((forks or {}).get(checkpoint.commit, ())),
            )
        )
    return entries


def _counts(old: Checkpoint | None, new: Checkpoint) -> tuple[int, int, int]:
    # A commit changes what is below, and a fork's beginning is another session's: nothing was done there.
    if old is None or new.purpose.kind in (RowKind.LANDED, RowKind.FORK) or old.commit == new.commit:
        return 0, 0, 0
    counts = count_changes(old.manifest, new.manifest)
    return counts[ChangeKind.ADDED], counts[ChangeKind.MODIFIED], counts[ChangeKind.DELETED]


def _on_the_way(checkpoints: Sequence[Checkpoint], called_now: Callable[[str], str]) -> set[tuple[str, int]]:
    """Those that led to what is there now, each by its session and number: a journey leads on from where it went to."""
    found: set[tuple[str, int]] = set()
    at = len(checkpoints) - 1
    while at >= 0:
        checkpoint = checkpoints[at]
        found.add((checkpoint.session, checkpoint.number))
        goal = called_now(checkpoint.purpose.goal)
        at -= 1
        if goal and checkpoint.purpose.kind in (RowKind.REWIND, RowKind.REDO):
            before = [number for number in range(at + 1) if checkpoints[number].commit == goal]
            at = before[-1] if before else at
    return found
