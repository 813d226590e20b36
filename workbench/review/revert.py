"""The inverse of a commit that landed, as a change set: what it took out comes back, what it brought goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from workbench.checkpoints.manifest import Entry, Manifest
from workbench.checkpoints.scan import Sink
from workbench.errors import CommitError
from workbench.review.changeset import Change, ChangeKind, ChangeSet, State
from workbench.review.compare import digest_of
from workbench.review.journal import Action, Operation
from workbench.review.landed import Committed
from workbench.review.pre_images import operations_of, placed, pre_images
from workbench.vfs import paths
from workbench.vfs.storage import Kind

_LANDING = 0o1777


def inverted(committed: Committed, sink: Sink) -> tuple[ChangeSet, Manifest]:
    """What takes back what a commit did, and the manifest that it's committed with; the contents go into `sink`.

    It departs from what landed: what was changed since is a conflict. What was there already, as the person's own change,
    is left. Raises CommitError (not_landable) where what was there before isn't kept any more, OSError.
    """
    operations = operations_of(committed)
    before = pre_images(committed, sink)
    changes: dict[bytes, Change] = {}
    entries: dict[bytes, Entry] = {}
    for operation in operations:
        if operation.action is not Action.MODE:
            old = _complete(before, operation)
            entries |= old
            for path, (was, new) in _both(operation, old).items():
                changes[path] = _inverse(path, was, new)
    for operation in operations:
        if operation.action is Action.MODE:
            change = _mode_back(committed, operation, changes.get(operation.path))
            if change is not None:
                changes[change.path] = change
    landed = tuple(changes[path] for path in sorted(changes))
    change_set = ChangeSet(committed.checkpoint, landed, (), digest_of(landed))
    return change_set, Manifest(entries, dict(committed.landed_bases))


def _complete(before: Mapping[bytes, Entry], operation: Operation) -> dict[bytes, Entry]:
    """As `placed`. Raises CommitError (not_landable) where something isn't kept."""
    found = placed(before, operation)
    for base in operation.old:
        kept = found.get(base.path)
        if kept is None or kept.omitted:
            raise CommitError(
                f"What stood at '{paths.display(base.path)}' before isn't kept any more; nothing was applied.",
                code="not_landable",
                hint="`workbench log --commits` names the commits; a newer one may be reverted.",
            )
    return found


def _both(operation: Operation, old: Mapping[bytes, Entry]) -> dict[bytes, tuple[State | None, State | None]]:
    """By path what stood before and what landed there."""
    landed = dict(operation.new)
    # A copy on another filesystem was left writable for its owner; what stood there is in the journal.
    modes = {base.path: base.mode for base in operation.old}
    states = {
        path: State(entry.kind, modes[path] & _LANDING, entry.size, entry.blob)
        for path, entry in old.items()
        if path in modes
    }
    return {path: (states.get(path), landed.get(path)) for path in sorted({*states, *landed})}


def _inverse(path: bytes, was: State | None, new: State | None) -> Change:
    if new is None:
        kind = ChangeKind.ADDED
    elif was is None:
        kind = ChangeKind.DELETED
    elif was.kind is not new.kind:
        kind = ChangeKind.KIND
    else:
        kind = ChangeKind.MODIFIED
    return Change(path, kind, new, was)


def _mode_back(committed: Committed, operation: Operation, known: Change | None) -> Change | None:
    before, after = operation.old_mode, operation.new_mode
    if known is not None:
        # It was opened up for the while, to be moved: the modes that count are those before and after.
        was, now = known.new, known.old
        if was is not None and was.mode == after:
            was = replace(was, mode=before)
        if now is not None and now.mode == before:
            now = replace(now, mode=after)
        return replace(known, old=now, new=was)
    base = committed.landed_bases.get(operation.path)
    if base is None:
        return None
    size = 0 if base.kind is Kind.DIR else base.size
    state = State(base.kind, after, size, base.blob)
    return Change(operation.path, ChangeKind.MODE, state, replace(state, mode=before))
