"""The decisions of a review: what a person or a program accepted and rejected of a change set, kept with its checkpoint.

They are in `review.json` in the overlay's directory. A newer checkpoint takes over those on changes whose old and new are
the same as they were; of what changed since nothing is decided.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum

from workbench.errors import OptionsError, StateError
from workbench.protocol.records import DecisionRecord, IncludedRecord, ReviewRecord, SelectionRecord
from workbench.review.changeset import Change, ChangeKind, ChangeSet, Included, Left
from workbench.review.compare import digest_of
from workbench.review.diff import Contents
from workbench.review.hunks import Lines, NamedHunk, derived, named_hunks, with_parts
from workbench.review.selection import Selection
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.statefile import read_json, write_json

_FILE = "review.json"
_ID_PREFIX = re.compile(r"[0-9a-f]{8,16}")


class Verdict(StrEnum):
    """What was decided of a change; `PART` where only some of its hunks were accepted."""

    UNDECIDED = "undecided"
    ACCEPTED = "accepted"
    REJECTED = "rejected"
    PART = "part"


@dataclass(slots=True)
class Decision:
    """`accepted` says of the whole change, None where `hunks` say so by the ids of their smallest parts.

    `edits` are the lines that accepted hunks, or parts of them, are to be instead, by the id of what was edited.
    """

    accepted: bool | None = None
    hunks: dict[str, bool] = field(default_factory=dict)
    edits: dict[str, Lines] = field(default_factory=dict)


class Review:
    """A change set and what was decided of it."""

    def __init__(self, changes: ChangeSet, included: Included, lower: LocalStorage, store: Contents) -> None:
        self.changes = changes
        self.included = included
        self._lower = lower
        self._store = store
        self._shown = {change.path: change for change in changes.shown}
        self._decisions: dict[bytes, Decision] = {}

    def take_over(self, record: ReviewRecord) -> None:
        """Decide as was decided before, wherever a change is the very same."""
        for decision in record.decisions:
            change = self._shown.get(decision.path)
            if change is not None and digest_of((change,)) == decision.of:
                self._decisions[decision.path] = Decision(decision.accepted, dict(decision.hunks), dict(decision.edits))

    def decide(self, path: bytes, accepted: bool | None) -> list[Change]:
        """Accept or reject every change at and below a path, or with None take back what was decided; the changes.

        Raises OptionsError where there is none.
        """
        found = [
            change
            for change in self._shown.values()
            if not path or any(step == path or paths.is_below(step, path) for step, _, _ in change.steps())
        ]
        if not found:
            raise OptionsError(
                f"Nothing changed at '{paths.display(path)}'.", hint="`workbench diff --stat` names the changed paths."
            )
        for change in found:
            self.decide_change(change, accepted)
        return found

    def decide_change(self, change: Change, accepted: bool | None) -> None:
        """As `decide`, of this change alone."""
        self._decisions[change.path] = Decision(accepted)

    def decide_hunk(self, name: str, accepted: bool) -> Change:
        """Accept or reject a hunk, or a part of one, by its id; a unique beginning of 8 or more digits is enough.

        Raises OptionsError where there is none or more than one, and as `diff.unified`.
        """
        found = [
            (change, hunk)
            for change in self._shown.values()
            for hunk in with_parts(self.hunks(change))
            if _ID_PREFIX.fullmatch(name) and hunk.id.startswith(name)
        ]
        if len(found) != 1:
            raise OptionsError(
                f"{name!r} names {'no hunk' if not found else 'more than one hunk'} of these changes.",
                hint="`workbench diff --json` has the ids of all hunks.",
            )
        change, hunk = found[0]
        self.decide_part(change, hunk, accepted)
        return change

    def decide_part(self, change: Change, hunk: NamedHunk, accepted: bool) -> None:
        """Accept or reject a hunk of a change, or a part of one, as it is. Raises as `diff.unified`."""
        decision = self._by_hunk(change)
        for each in self.hunks(change):
            if hunk in each.parts and each.id in decision.edits:
                # What it was edited to was decided of all of its parts together.
                del decision.edits[each.id]
                decision.hunks = {name: yes for name, yes in decision.hunks.items() if name not in _ids(each.leaves)}
        for name in (hunk.id, *_ids(hunk.leaves)):
            decision.edits.pop(name, None)
        decision.hunks |= dict.fromkeys(_ids(hunk.leaves), accepted)

    def edit_part(self, change: Change, hunk: NamedHunk, lines: Lines) -> None:
        """Accept a hunk of a change, or a part of one, as other lines, of `hunks.edited`.

        Raises OptionsError where a change is none of a text that stays, or where two edits change the same lines; as
        `diff.unified`.
        """
        if change.kind not in (ChangeKind.ADDED, ChangeKind.MODIFIED):
            raise OptionsError("Only hunks of a new or a modified file can be edited.", hint="Take it or leave it.")
        before = deepcopy(self._decisions.get(change.path, Decision()))
        self.decide_part(change, hunk, True)
        decision = self._decisions[change.path]
        decision.edits[hunk.id] = lines
        with self._lower.open(change.path) if change.old is not None else io.BytesIO() as file:
            old = file.read()
        accepted = {name for name, taken in decision.hunks.items() if taken}
        try:
            derived(old, self.hunks(change), accepted, decision.edits)
        except OptionsError:
            self._decisions[change.path] = before
            raise

    def hunks(self, change: Change) -> tuple[NamedHunk, ...]:
        """The hunks of a change. Raises as `diff.unified`."""
        return named_hunks(change, self._lower, self._store)

    def _by_hunk(self, change: Change) -> Decision:
        """The decision of a change, hunk by hunk from now on."""
        decision = self._decisions.setdefault(change.path, Decision())
        if decision.accepted is not None:
            decision.hunks = {part.id: decision.accepted for each in self.hunks(change) for part in each.leaves}
            decision.accepted = None
        return decision

    def decision(self, change: Change) -> Decision:
        """What was decided of a change; one without a word where nothing was."""
        return self._decisions.get(change.path, Decision())

    def verdict(self, change: Change) -> Verdict:
        """As `decision`, in one word."""
        decision = self.decision(change)
        if decision.accepted is not None:
            return Verdict.ACCEPTED if decision.accepted else Verdict.REJECTED
        if any(decision.hunks.values()):
            return Verdict.PART
        return Verdict.REJECTED if decision.hunks else Verdict.UNDECIDED

    def selection(self) -> Selection:
        """What was accepted."""
        accepted = {path for path, decision in self._decisions.items() if decision.accepted}
        hunks = {
            path: frozenset(name for name, is_accepted in decision.hunks.items() if is_accepted)
            for path, decision in self._decisions.items()
            if decision.accepted is None and any(decision.hunks.values())
        }
        refused = {path for path, decision in self._decisions.items() if decision.accepted is False}
        edits = {path: decision.edits for path, decision in self._decisions.items() if decision.edits and path in hunks}
        return Selection(frozenset(accepted), hunks, frozenset(refused), edits)

    def record(self, digest: str) -> ReviewRecord:
        """What is kept of it; `digest` is that of what was accepted."""
        return ReviewRecord(
            checkpoint=self.changes.checkpoint,
            digest=digest,
            included=included_record(self.included),
            decisions=tuple(
                DecisionRecord(
                    path=path,
                    of=digest_of((self._shown[path],)),
                    accepted=one.accepted,
                    hunks=one.hunks,
                    edits=one.edits,
                )
                for path, one in sorted(self._decisions.items())
                if one.accepted is not None or one.hunks
            ),
        )


def _ids(hunks: Iterable[NamedHunk]) -> set[str]:
    return {hunk.id for hunk in hunks}


def load(overlay_path: str) -> ReviewRecord | None:
    """The decisions kept of an overlay, None where there are none. Raises OSError."""
    # One that was damaged is set aside: what it said was never decided.
    with contextlib.suppress(FileNotFoundError, StateError):
        return read_json(os.path.join(overlay_path, _FILE), ReviewRecord)
    return None


def save(overlay_path: str, record: ReviewRecord) -> None:
    """Keep decisions in place of those before. Raises OSError."""
    write_json(os.path.join(overlay_path, _FILE), record)


def selection_record(selection: Selection) -> SelectionRecord:
    """A selection as it's kept."""
    return SelectionRecord(
        accepted=tuple(sorted(selection.accepted)),
        hunks=tuple((path, tuple(sorted(ids))) for path, ids in sorted(selection.hunks.items())),
        refused=tuple(sorted(selection.refused)),
        edits=tuple(
            (path, name, lines)
            for path, edits in sorted(selection.edits.items())
            for name, lines in sorted(edits.items())
        ),
    )


def selection_of(record: SelectionRecord) -> Selection:
    """The selection that was kept."""
    hunks = {path: frozenset(ids) for path, ids in record.hunks}
    edits: dict[bytes, dict[str, Lines]] = {}
    for path, name, lines in record.edits:
        edits.setdefault(path, {})[name] = lines
    return Selection(frozenset(record.accepted), hunks, frozenset(record.refused), edits)


def included_record(included: Included) -> IncludedRecord:
    """What was asked for, as it's kept."""
    return IncludedRecord(classes=tuple(sorted(included.classes)), paths=tuple(sorted(included.paths)))


def included_of(record: IncludedRecord) -> Included:
    """What was asked for and kept."""
    return Included(frozenset(map(Left, record.classes)), frozenset(record.paths))


def included(named: Sequence[str], paths_named: Iterable[bytes]) -> Included:
    """What is asked for by names: `ignored`, `scratch`, and paths."""
    return Included(frozenset(map(Left, named)), frozenset(paths_named))
