"""Which contents files had from one of an agent's replies to the next, told from its edits and from what is there now.

An agent that worked in the real directory has left its work there. So of each file it's found out first which of its edits
it has already: by applying them, and else by taking them back from what it holds. What they were made on is then worked
out, and the overlay begins with that.
"""

from __future__ import annotations

import errno
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from workbench.importing.operations import UNKNOWN, Content, FileDeed, Files, Operation, UnfitError, of_diff, of_patch
from workbench.importing.operations import said as said_of
from workbench.importing.places import Places
from workbench.review.names import is_git
from workbench.transcripts.changes import Delete, Diff, Patch, Unrecorded, Write
from workbench.transcripts.importing import Edit
from workbench.vfs import paths
from workbench.vfs.storage import Kind, Storage

_MOST_BYTES = 64 << 20

Told = Callable[[int, int], None]
"""Called with how many edits are done, and how many there are."""


class Status(StrEnum):
    """What became of an edit.

    `APPLIED`: what it was made on is there. `ALREADY`: the file has it. `CONFLICT`: neither, so it's left out. `OUTSIDE`: its
    path leads out of the workspace, or into a repository's `.git`; it's left out. `UNRECORDED`: the records don't hold it.
    """

    APPLIED = "applied"
    ALREADY = "already"
    CONFLICT = "conflict"
    OUTSIDE = "outside"
    UNRECORDED = "unrecorded"


@dataclass(slots=True)
class Planned:
    """One edit of one file; `path` is as recorded, `reason` says why it's left out."""

    message_id: str
    path: str
    action: str
    status: Status
    reason: str = ""


@dataclass(slots=True)
class Step:
    """What one reply of the agent's did: first files moved, then the contents of those that it changed; None is no file."""

    message_id: str
    moves: list[tuple[bytes, bytes]] = field(default_factory=list)
    tools: list[str] = field(default_factory=list)
    files: dict[bytes, bytes | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """All edits with what becomes of them, what the overlay begins with, and the steps in order."""

    edits: tuple[Planned, ...]
    before: Step
    steps: tuple[Step, ...]

    @property
    def counts(self) -> dict[Status, int]:
        """How many edits have each status."""
        found = Counter(edit.status for edit in self.edits)
        return {status: found[status] for status in Status}


def plan(edits: Sequence[Edit], places: Places, storage: Storage, *, told: Told | None = None) -> Plan:
    """What becomes of each edit on the files of a storage, of which nothing is changed. Raises OSError."""
    planning = _Planning(places, storage)
    for edit in edits:
        planning.add(edit)
    return planning.plan(told)


@dataclass(slots=True)
class _Task:
    """An operation, where its edit is listed, and the reply and tool that it came from."""

    operation: Operation
    row: Planned
    reply_id: str
    tool: str


class _Planning:
    """The edits so far, those that concern the same files together."""

    def __init__(self, places: Places, storage: Storage) -> None:
        self._places = places
        self._storage = storage
        self._rows: list[Planned] = []
        self._tasks: list[_Task] = []
        self._groups: dict[bytes, set[bytes]] = {}
        self._found: dict[bytes, Content] = {}
        self._above: set[bytes] = set()

    def add(self, edit: Edit) -> None:
        """Tell the operations of an edit."""
        deed = edit.deed
        try:
            if isinstance(deed, Patch):
                for path, each, target, creates in of_patch(deed.text):
                    self._operation(edit, path, each, target, creates)
            elif isinstance(deed, Diff):
                self._operation(edit, edit.path, of_diff(deed), deed.moved_to or edit.path, False)
            elif isinstance(deed, Unrecorded):
                self._row(edit, edit.path, "edit", Status.UNRECORDED, "the records don't hold what was written")
            else:
                creates = isinstance(deed, Write) and edit.action == "add"
                self._operation(edit, edit.path, deed, edit.path, creates)
        except UnfitError as error:
            for path in edit.named or (edit.path,):
                self._row(edit, path, "edit", Status.CONFLICT, str(error))

    def _row(self, edit: Edit, path: str, action: str, status: Status, reason: str = "") -> Planned:
        row = Planned(edit.message_id, path, action, status, reason)
        self._rows.append(row)
        return row

    def _operation(self, edit: Edit, path: str, deed: FileDeed, target: str, creates: bool) -> None:
        action = "move" if target != path else "add" if creates else said_of(deed)
        row = self._row(edit, path, action, Status.APPLIED)
        try:
            located = self._locate(path, edit.directory)
            arrives = located if target == path else self._locate(target, edit.directory)
        except _LeadsOutError as error:
            row.status, row.reason = Status.OUTSIDE, str(error)
            return
        except UnfitError as error:
            row.status, row.reason = Status.CONFLICT, str(error)
            return
        self._join(located, arrives)
        self._tasks.append(_Task(Operation(located, deed, arrives, creates), row, edit.reply_id, edit.tool))

    def _locate(self, recorded: str, directory: str) -> bytes:
        """A path in the workspace, its symlinks followed; its content is read. Raises _LeadsOutError, UnfitError."""
        path = self._places.locate(recorded, directory)
        if path is None:
            raise _LeadsOutError("it leads out of the workspace")
        try:
            path = self._followed(path)
            if any(map(is_git, paths.parts(path))):
                raise _LeadsOutError("it leads into a repository's .git")
            if path not in self._found:
                if path in self._above or any(above in self._found for above in _above(path)):
                    raise UnfitError("another edit makes a directory there, or a file above it")
                self._found[path] = self._read(path)
                self._above.update(_above(path))
        except OSError as error:
            if error.errno in (errno.EXDEV, errno.ELOOP):
                raise _LeadsOutError("a symlink leads out of the workspace") from error
            raise UnfitError(f"it can't be reached: {error.strerror}") from error
        return path

    def _followed(self, path: bytes) -> bytes:
        names = paths.parts(path)
        for count in range(len(names), -1, -1):
            try:
                there = paths.resolve(
                    b"/".join(names[:count]), lambda at: self._storage.stat(at).kind, self._storage.readlink
                )
            except FileNotFoundError:
                continue
            return paths.join(there, *names[count:])
        return path

    def _read(self, path: bytes) -> bytes | None:
        try:
            found = self._storage.stat(path)
        except FileNotFoundError:
            return None
        if found.kind is not Kind.FILE:
            raise UnfitError(f"a {found.kind.value} is there")
        if found.size > _MOST_BYTES:
            raise UnfitError("the file that is there is too big")
        with self._storage.open(path) as file:
            return file.read()

    def _join(self, *together: bytes) -> None:
        group = set().union(*(self._groups.get(path, {path}) for path in together))
        for path in group:
            self._groups[path] = group

    def plan(self, told: Told | None) -> Plan:
        """All of it."""
        before = Step("")
        steps: dict[str, Step] = {}
        by_group: dict[int, list[_Task]] = {}
        for task in self._tasks:
            by_group.setdefault(id(self._groups[task.operation.path]), []).append(task)
            steps.setdefault(task.reply_id, Step(task.row.message_id))
        done = 0
        for tasks in by_group.values():
            here: Files = {path: self._found[path] for path in sorted(self._groups[tasks[0].operation.path])}
            solution = _solved([task.operation for task in tasks], here)
            shown = dict(here)
            _take_over(shown, solution.start, before)
            taken_back = [task.operation for task in tasks[: solution.taken_back]]
            before.moves += [(each.target, each.path) for each in reversed(taken_back) if each.target != each.path]
            files = solution.start
            for task, outcome in zip(tasks, solution.outcomes, strict=True):
                operation, step = task.operation, steps[task.reply_id]
                task.row.status, task.row.reason = outcome.status, outcome.reason
                if outcome.files != files and operation.target != operation.path:
                    step.moves.append((operation.path, operation.target))
                if _take_over(shown, outcome.files, step) and task.tool not in step.tools:
                    step.tools.append(task.tool)
                files = outcome.files
                done += 1
                if told is not None:
                    told(done, len(self._tasks))
        return Plan(tuple(self._rows), before, tuple(step for step in steps.values() if step.files))


def _above(path: bytes) -> list[bytes]:
    """The directories that a path is in, but for the root."""
    names = paths.parts(path)
    return [b"/".join(names[:count]) for count in range(1, len(names))]


def _take_over(shown: dict[bytes, Content], files: Files, step: Step) -> bool:
    """Note in a step what differs from what was shown; whether anything does."""
    changed = {path: content for path, content in files.items() if content is not UNKNOWN and content != shown[path]}
    shown.update(changed)
    step.files.update(changed)
    return bool(changed)


class _LeadsOutError(Exception):
    """A path that nothing is written at; why, as part of a sentence."""


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of an operation, and what the files are after it."""

    status: Status
    files: Files
    reason: str = ""


@dataclass(frozen=True, slots=True)
class _Solution:
    """What the files were before the operations, how many of those were taken back for that, and what becomes of each."""

    start: Files
    taken_back: int
    outcomes: list[_Outcome]


def _solved(operations: Sequence[Operation], here: Files) -> _Solution:
    """How the operations fit what is there."""
    fits = _all_forward(operations, here) is not None
    for count in range(len(operations), 0, -1):
        if fits and isinstance(operations[count - 1].deed, Delete):
            # What isn't there needn't have been deleted.
            continue
        start = _taken_back(operations[:count], here)
        if start is not None and _all_forward(operations[count:], here) is not None:
            outcomes, files = [], start
            for operation in operations[:count]:
                files = _again(operation, files)
                outcomes.append(_Outcome(Status.ALREADY, files))
            return _Solution(start, count, outcomes + _one_by_one(operations[count:], here))
    return _Solution(here, 0, _one_by_one(operations, here))


def _all_forward(operations: Sequence[Operation], files: Files) -> Files | None:
    try:
        for operation in operations:
            files = operation.forward(files)
    except UnfitError:
        return None
    return files


def _again(operation: Operation, files: Files) -> Files:
    """What an operation that was done makes of files; where they are unknown it may not fit, and they stay."""
    try:
        return operation.forward(files)
    except UnfitError:
        return files


def _taken_back(operations: Sequence[Operation], here: Files) -> Files | None:
    """What the files were before all the operations, if those were done; it's made sure that they lead here again."""
    files: Files = here
    for operation in reversed(operations):
        before = operation.backward(files)
        if before is None:
            return None
        files = before
    again = files
    for operation in operations:
        again = _again(operation, again)
    known = all(content is UNKNOWN or content == here[path] for path, content in again.items())
    return files if known else None


def _one_by_one(operations: Sequence[Operation], files: Files) -> list[_Outcome]:
    outcomes = []
    for operation in operations:
        if _taken_back((operation,), files) is not None:
            outcomes.append(_Outcome(Status.ALREADY, files))
            continue
        try:
            files = operation.forward(files)
        except UnfitError as error:
            outcomes.append(_Outcome(Status.CONFLICT, files, str(error)))
        else:
            outcomes.append(_Outcome(Status.APPLIED, files))
    return outcomes
