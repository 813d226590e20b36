"""A selection: what of a change set was accepted, and the change set that lands of it.

What is accepted brings along what it depends on: the new directories above it, the change of kind that makes one of a
file, and of a directory that goes everything in it. A directory that comes or goes only with what is in it needs no yes
of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from workbench.checkpoints.scan import Sink
from workbench.errors import CommitError
from workbench.review.changeset import Change, ChangeKind, ChangeSet, State
from workbench.review.compare import digest_of
from workbench.review.diff import Contents
from workbench.review.hunks import Lines, derived, is_accepted, named_hunks
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.storage import Kind


@dataclass(frozen=True, slots=True)
class Selection:
    """`accepted` are the paths of changes taken whole, `hunks` by path the ids of those taken of others.

    `edits` are by path and id the lines that hunks were edited to. `refused` are paths that nothing may bring along.
    A rename is named by its new path.
    """

    accepted: frozenset[bytes] = frozenset()
    hunks: Mapping[bytes, frozenset[str]] = field(default_factory=dict)
    refused: frozenset[bytes] = frozenset()
    edits: Mapping[bytes, Mapping[str, Lines]] = field(default_factory=dict)


def selected(changes: ChangeSet, selection: Selection, lower: LocalStorage, store: Contents, sink: Sink) -> ChangeSet:
    """What lands of a change set, under a digest of its own; derived contents go into `sink`.

    Of a file of which some hunks are accepted, or edited, a derived one lands: the old content with those hunks, and the
    old mode.
    Where all are accepted of a file that comes or goes, it's taken whole. Raises CommitError (not_landable) where
    something accepted depends on what is refused; ConflictError where the lower no longer holds what was compared;
    OSError, CheckpointError.
    """
    known = {change.path: change for change in changes.changes}
    taken = {path: known[path] for path in selection.accepted if path in known}
    for path, ids in selection.hunks.items():
        change = known.get(path)
        if change is None or path in taken or not ids:
            continue
        part = _part(change, ids, selection.edits.get(path, {}), lower, store, sink)
        if part is not None:
            taken[path] = part
    _Closure(known, taken, selection.refused).run()
    picked = tuple(taken[path] for path in sorted(taken))
    return replace(changes, changes=picked, digest=digest_of(picked))


def _part(
    change: Change,
    ids: frozenset[str],
    edits: Mapping[str, Lines],
    lower: LocalStorage,
    store: Contents,
    sink: Sink,
) -> Change | None:
    """What lands of a change of which some hunks are accepted or edited, None where that's nothing."""
    hunks = named_hunks(change, lower, store)
    is_whole = not edits and bool(hunks) and all(is_accepted(hunk, ids) for hunk in hunks)
    old, new = change.old, change.new
    if edits and change.kind is ChangeKind.ADDED and new is not None and new.kind is Kind.FILE:
        content = derived(b"", hunks, ids, edits)
        return replace(change, new=replace(new, size=len(content), blob=sink.blob(content)))
    if change.kind is not ChangeKind.MODIFIED or old is None or new is None or old.kind is not Kind.FILE:
        return change if is_whole else None
    if is_whole and old.mode == new.mode:
        return change
    with lower.open(change.path) as file:
        before = file.read()
    content = derived(before, hunks, ids, edits)
    if content == before:
        return None
    state = State(Kind.FILE, old.mode, len(content), sink.blob(content))
    return replace(change, new=state, new_executable=False, drops_setid=False)


class _Closure:
    """Adds to what is taken all that it depends on."""

    def __init__(self, known: Mapping[bytes, Change], taken: dict[bytes, Change], refused: frozenset[bytes]) -> None:
        self._known = known
        self._taken = taken
        self._refused = refused
        self._by_step: dict[bytes, Change] = {
            path: change for change in known.values() for path, _, _ in change.steps()
        }
        self._going: dict[bytes, list[Change]] = {}
        """What goes, by the directory that it lies in."""
        for change in known.values():
            for path, old, new in change.steps():
                if old is not None and (new is None or new.kind is not old.kind) and path:
                    self._going.setdefault(paths.parent(path), []).append(change)

    def run(self) -> None:
        waiting = list(self._taken.values())
        while waiting:
            change = waiting.pop()
            for needed in self._needed(change):
                if needed.path in self._taken and self._taken[needed.path] == needed:
                    continue
                if needed.path in self._refused:
                    raise CommitError(
                        f"'{paths.display(change.path)}' can't land without '{paths.display(needed.path)}', which was "
                        "rejected.",
                        code="not_landable",
                        paths=(needed.path,),
                        hint="Accept both, or reject both.",
                    )
                self._taken[needed.path] = needed
                waiting.append(needed)
        self._take_emptied()

    def _needed(self, change: Change) -> list[Change]:
        found = []
        for path, old, new in change.steps():
            if new is not None and path:
                above = self._by_step.get(paths.parent(path))
                if above is not None and above.new is not None and not _is_directory(above.old):
                    found.append(above)
            if _is_directory(old) and not _is_directory(new):
                found += self._going.get(path, [])
        return found

    def _take_emptied(self) -> None:
        """Directories that go with what is in them, where all of that goes."""
        for path in sorted(self._known, reverse=True):
            change = self._known[path]
            if (
                change.implied
                and change.kind is ChangeKind.DELETED
                and path not in self._refused
                and all(below.path in self._taken for below in self._going.get(path, []))
            ):
                self._taken[path] = change


def _is_directory(state: State | None) -> bool:
    return state is not None and state.kind is Kind.DIR
