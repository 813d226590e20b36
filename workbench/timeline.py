"""The time machine of one overlay: what it was at each of its checkpoints, and how it becomes that again.

A journey makes the upper layer equal to a manifest. It's written down first (`journey.json` in the overlay's directory),
so that whoever next holds the overlay's lock brings it to its end after a crash. Where one arrives is a checkpoint as well,
and says which one was left: `redo` goes back there, one level after the other.

A checkpoint is of an upper layer over the real workspace as it was then. What was committed from this session since is
taken back on the way: the target is the checkpoint's layer over the inverse of each later commit. What other sessions
committed, and what people changed, stays.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from workbench.checkpoints.history import Purpose, RowKind
from workbench.checkpoints.journey import is_under_way, journey_path
from workbench.checkpoints.manifest import Base, Entry, Manifest
from workbench.checkpoints.objects import corrupt
from workbench.checkpoints.plan import make_plan
from workbench.checkpoints.stacking import LowerView, grafted, stacked, without_idle_whiteouts
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.errors import CheckpointError, SessionChangedError
from workbench.mounting import Mounting
from workbench.protocol.records import JourneyRecord
from workbench.review import repository
from workbench.review.between import View, between
from workbench.review.changeset import Change
from workbench.review.inverse import directory_entry, inverse
from workbench.review.landed import Committed, all_landed, load
from workbench.review.log import LogEntry, log_entries
from workbench.review.nearest import Nearest
from workbench.review.shown import ShownDigests
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.session import OverlayDirectory
from workbench.vfs.statefile import read_json, write_json
from workbench.vfs.storage import Kind

_MISSING_SHOWN = 3


@dataclass(frozen=True, slots=True)
class Target:
    """What the upper layer is to become.

    `of` is the checkpoint that it's of, `held` the one whose very manifest it is, where there is one. `git` is as of
    `Mounting.git_beside`, None to leave that as it is. `taken_back` are the commits that landed since, whose inverse is
    part of it. `left` are paths that stay as a person made them after a commit, `without_repository` says that a part of
    the real repository is left out, since that moved on. `part` says that all but some paths is as it was.
    """

    manifest: Manifest
    of: Checkpoint | None = None
    held: Checkpoint | None = None
    git: str | None = None
    taken_back: tuple[str, ...] = ()
    left: tuple[bytes, ...] = ()
    without_repository: bool = False
    part: bool = False


@dataclass(frozen=True, slots=True)
class Preview:
    """What a journey would do: its changes, and the views that they lie between."""

    changes: Sequence[Change]
    old: View
    new: View
    target: Target


@dataclass(frozen=True, slots=True)
class Journey:
    """What a rewind or a redo did: `removed` went, `restored` is what it was.

    `before` is the id of the checkpoint of what was there. `left` and `without_repository` as in `Target`.
    """

    before: str
    removed: tuple[bytes, ...]
    restored: tuple[bytes, ...]
    left: tuple[bytes, ...]
    without_repository: bool


class Timeline:
    """The checkpoints of one overlay, those of the sessions it was forked from among them."""

    def __init__(
        self,
        overlay: OverlayDirectory,
        mounting: Mounting,
        store: CheckpointStore,
        lower: LocalStorage,
        commits_dir: str,
        session: str,
    ) -> None:
        self._overlay = overlay
        self._mounting = mounting
        self._store = store
        self._lower = lower
        self._commits_dir = commits_dir
        self._session = session
        self._journey = journey_path(overlay.path)

    # Looking back

    def checkpoints(self) -> list[Checkpoint]:
        """All checkpoints, oldest first: before a fork those of the session that it was forked from. Raises
        CheckpointError (store_corrupt), OSError."""
        found: list[Checkpoint] = []
        session, until = self._session, 0
        known: set[str] = set()
        while session and session not in known:
            known.add(session)
            own = [each for each in self._store.all(session) if not until or each.number <= until]
            found[:0] = own
            session = ""
            if own and own[0].purpose.kind is RowKind.FORK:
                # Where the session that it came from is gone, so is what was before.
                with contextlib.suppress(CheckpointError):
                    origin = self._store.get(own[0].purpose.origin)
                    session = origin.session
                    until = max(
                        (each.number for each in self._store.all(session) if each.commit == origin.commit),
                        default=origin.number,
                    )
        return found

    def log(self, *, most: int = 0, with_forks: bool = False) -> list[LogEntry]:
        """What is listed of the checkpoints, newest first, no more than `most` unless that's 0. Raises as `checkpoints`."""
        forks = self._forks() if with_forks else None
        return log_entries(self.checkpoints(), most=most, called_now=self._store.called_now, forks=forks)

    def is_forked_from(self, commit: str) -> bool:
        """Whether the session began as a fork of this checkpoint, named by its commit. Raises as `checkpoints`."""
        first = next(iter(self._store.all(self._session)), None)
        if first is None or first.purpose.kind is not RowKind.FORK:
            return False
        return self._store.called_now(first.purpose.goal) == self._store.called_now(commit)

    def _forks(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for session in self._store.sessions():
            first = next(iter(self._store.all(session)), None)
            if first is not None and first.purpose.kind is RowKind.FORK:
                found.setdefault(self._store.called_now(first.purpose.goal), []).append(session)
        return found

    def landed(self) -> list[tuple[Committed, list[str]]]:
        """The commits that landed in the real workspace, newest first, each with the ids of the messages and the labels of
        the commands that led to it where it was this session's. Raises as `checkpoints`, StateError (state_corrupt)."""
        led: dict[str, list[str]] = {}
        waiting: list[str] = []
        for checkpoint in self.checkpoints():
            if checkpoint.purpose.kind is RowKind.LANDED:
                led[checkpoint.purpose.landed] = waiting
                waiting = []
            elif checkpoint.purpose.kind is RowKind.MESSAGE and not checkpoint.purpose.step:
                waiting.append(checkpoint.message_id)
            elif checkpoint.purpose.kind is RowKind.COMMAND:
                waiting.append(checkpoint.label)
        return [(committed, led.get(committed.commit_id, [])) for committed in all_landed(self._commits_dir)]

    def find(self, message_id: str, step: int = 0) -> Checkpoint:
        """The newest checkpoint with a message id. Raises CheckpointError: checkpoint_not_found, store_corrupt; OSError."""
        for checkpoint in reversed(self.checkpoints()):
            if (checkpoint.message_id, checkpoint.purpose.step) == (message_id, step):
                return checkpoint
        return self._store.find(self._session, message_id, step)

    def redo_points(self) -> list[Checkpoint]:
        """The checkpoints that `redo` goes back to, the next one last. Raises as `checkpoints`."""
        points: list[Checkpoint] = []
        last: dict[str, Checkpoint] = {}
        for checkpoint in self._store.all(self._session):
            kind = checkpoint.purpose.kind
            if kind in (RowKind.REWIND, RowKind.DISCARD):
                left = last.get(self._store.called_now(checkpoint.purpose.origin))
                points += [left] if left is not None else []
            elif kind is RowKind.REDO and points:
                points.pop()
            last[checkpoint.commit] = checkpoint
        return points

    def target(self, checkpoint: Checkpoint) -> Target:
        """What the upper layer has to be to show what it showed at a checkpoint, over the real workspace as it is now.

        Raises CheckpointError (store_corrupt), StateError (state_corrupt), OSError.
        """
        recorded, left = checkpoint.manifest, list[bytes]()
        landed = self._landed_since(checkpoint)
        below = Manifest()
        for commit_id in reversed(landed):
            committed = load(self._commits_dir, commit_id)
            with self._store.adding() as sink:
                taken_back = inverse(committed, self.view(below), sink)
            below = _over(taken_back.manifest, below)
            left += taken_back.left
        manifest = self._trimmed(_over(recorded, below)) if landed else recorded
        rest = repository.without_repositories(manifest, self._lower)
        git = self._mounting.git_beside(checkpoint)
        without = False
        if rest is not manifest or git:
            without = checkpoint.purpose.repository != repository.fingerprint(self._lower)
            rest, git = (rest, git and "") if without else (manifest, git)
        held = checkpoint if rest is recorded else None
        return Target(rest, checkpoint, held, git, tuple(landed), tuple(sorted(set(left))), without)

    def part(self, now: Checkpoint, target: Target, named: Sequence[bytes]) -> Target:
        """What is there `now`, but at and below the paths `named` what `target` shows there; all of it without any.

        Raises CheckpointError (checkpoint_failed) where something is in the way, OptionsError for an impossible path.
        """
        if not named:
            return target
        manifest = now.manifest
        lower = self._lower_view
        for name in named:
            path = paths.join(*(part for part in name.split(b"/") if part not in (b"", b".")))
            entries = without_idle_whiteouts(grafted(manifest.entries, target.manifest.entries, path, lower), lower)
            bases = {**now.manifest.bases, **target.manifest.bases, **manifest.bases}
            manifest = replace(manifest, entries=entries, bases=_kept_bases(entries, bases))
        return replace(target, manifest=manifest, held=None, git=None, part=True)

    def preview(self, now: Manifest, target: Target, *, reads: bool = True) -> Preview:
        """What a journey from `now` to a target would change; `reads` as of `View`. Raises OSError, CheckpointError
        (store_corrupt)."""
        old, new = (View(each, self._lower, self._store, reads=reads) for each in (now, target.manifest))
        return Preview(between(old, new), old, new, target)

    def view(self, manifest: Manifest) -> View:
        """What a layer shows over the real workspace."""
        return View(manifest, self._lower, self._store)

    def _landed_since(self, checkpoint: Checkpoint) -> list[str]:
        """The commits of this line of sessions that landed after a checkpoint, oldest first."""
        found: list[str] = []
        is_later = False
        for each in self.checkpoints():
            if is_later:
                found += [commit_id for commit_id in each.purpose.landed.split() if commit_id not in found]
            is_later = is_later or (each.session, each.number) == (checkpoint.session, checkpoint.number)
        return found

    def _trimmed(self, manifest: Manifest) -> Manifest:
        entries = without_idle_whiteouts(manifest.entries, self._lower_view)
        return manifest.with_entries(entries, _kept_bases(entries, manifest.bases))

    @property
    def _lower_view(self) -> LowerView:
        return LowerView(self._directory, self._names)

    def _directory(self, path: bytes) -> Entry | None:
        return directory_entry(self._lower, path)

    def _names(self, path: bytes) -> list[bytes]:
        return self._lower.list(path)

    # Going there

    def require(self, target: Target) -> None:
        """Make sure that every content of a target is there, before anything is touched.

        Raises CheckpointError (store_corrupt) with the paths that aren't.
        """
        missing = [
            paths.display(path)
            for path, entry in target.manifest.entries.items()
            if entry.blob and not self._store.has(entry.blob)
        ]
        if missing:
            named = ", ".join(missing[:_MISSING_SHOWN]) + (", …" if len(missing) > _MISSING_SHOWN else "")
            error = corrupt(f"the contents of {named} are missing, so nothing was touched")
            error.hint = "Restore the rest by itself (`workbench rewind ID --path PATH`), or another checkpoint."
            raise error

    def require_at(self, now: Checkpoint, commits: Sequence[str]) -> None:
        """Make sure that the upper layer, of which `now` was just taken, holds what it did at one of some checkpoints.

        They are named by their commits. Raises SessionChangedError where it holds something else, or where something of this
        session landed since.
        """
        for commit in commits:
            there = self._arrived_at(commit)
            if there is not None and not self._differs(now, self.target(there)):
                return
        raise SessionChangedError(
            f"The session '{self._session}' holds something else by now, and that isn't replaced.",
            hint=f"Land it, or take it back (`workbench log --session {self._session}`).",
        )

    def _arrived_at(self, commit: str) -> Checkpoint | None:
        """The checkpoint of a commit; where its session is gone, the one with which this one came there, if it did."""
        try:
            return self.of_commit(self._store.get(commit).session, commit)
        except CheckpointError as error:
            if error.code != "checkpoint_not_found":
                raise
        rows = reversed(self._store.all(self._session))
        return next((checkpoint for checkpoint in rows if checkpoint.purpose.goal == commit), None)

    def of_commit(self, session: str, commit: str) -> Checkpoint:
        """The last checkpoint of a session that has a commit. Raises CheckpointError (checkpoint_not_found), OSError."""
        for checkpoint in reversed(self._store.all(session)):
            if checkpoint.commit == self._store.called_now(commit):
                return checkpoint
        raise CheckpointError(
            f"The session '{session}' has no such checkpoint any more.",
            code="checkpoint_not_found",
            hint=f"`workbench log --session {session}` lists those that there are.",
        )

    def travel(
        self,
        kind: RowKind,
        checkpoint: Checkpoint,
        only: Sequence[bytes],
        label: str,
        *,
        instead_of: Sequence[str] = (),
    ) -> Journey:
        """Keep what is there, and make it what it was at a checkpoint; of that `only` some paths, where there are any.

        With `instead_of` only as `require_at` says. As `go`. Raises as they and `part`.
        """
        purpose = Purpose(RowKind.BEFORE)
        before = self._mounting.take(None, f"before a {kind.value}", offline=True, purpose=purpose)
        if instead_of:
            self.require_at(before, instead_of)
        target = self.part(before, self.target(checkpoint), only)
        changes = self.preview(before.manifest, target, reads=False).changes
        self.go(kind, target, before, label)
        return Journey(
            before.message_id,
            tuple(change.path for change in changes if change.new is None),
            tuple(change.path for change in changes if change.new is not None),
            target.left,
            target.without_repository,
        )

    def go(self, kind: RowKind, target: Target, before: Checkpoint, label: str) -> Checkpoint:
        """Make the upper layer what a target says; the overlay's lock is held, and nothing is mounted.

        `before` is the checkpoint of what is there, just taken. Returns the one of where it arrived; it's `before` itself
        where nothing is to be done, and nothing to be taken back. Raises
        CheckpointError, with the journey to be completed by the next command where it was begun.
        """
        self.require(target)
        drops_mode = kind is RowKind.DISCARD and not target.part and self._mounting.root_departs(before.manifest)
        stays = kind in (RowKind.REWIND, RowKind.DISCARD) and not drops_mode
        if stays and not self._differs(before, target):
            return before
        held = target.held or self._store.hold(self._session, target.manifest)
        goal = target.of.commit if target.of is not None else ""
        landed = " ".join(target.taken_back) if kind is RowKind.FORK else ""
        write_json(
            self._journey,
            JourneyRecord(
                kind=kind.value,
                target=held.commit,
                origin=before.commit,
                label=label,
                goal=goal,
                landed=landed,
                git=target.git,
                part=target.part,
            ),
        )
        # A fork begins with another layer than the one that it's forked from.
        return self._arrive(before.manifest if kind is not RowKind.FORK else None)

    def _differs(self, now: Checkpoint, target: Target) -> bool:
        """Whether anything has to be done to get from what is there `now` to a target."""
        if _is_work(now.manifest.entries, target.manifest.entries):
            return True
        beside = self._mounting.git_beside(now) if target.git is not None else None
        if beside == target.git:
            return False
        # Two sessions have checkpoints of their own of what may be the same.
        here, there = (self._store.get(commit).manifest.entries if commit else {} for commit in (beside, target.git))
        return not (here and there) or _is_work(here, there)

    @property
    def is_under_way(self) -> bool:
        """Whether a journey was begun and not ended."""
        return is_under_way(self._overlay.path)

    def complete(self) -> None:
        """Bring a journey that a crash cut short to its end; the lock is held, nothing is mounted. Raises as `go`."""
        if self.is_under_way:
            self._arrive(None)

    def _arrive(self, current: Manifest | None) -> Checkpoint:
        journey = read_json(self._journey, JourneyRecord)
        kind = RowKind(journey.kind)
        empties = kind is RowKind.DISCARD and not journey.part
        target = self._store.get(journey.target).manifest
        if journey.git is not None:
            self._mounting.restore_git(journey.git)
        restored = self._mounting.restore_upper(target, current=current)
        self._mounting.note_replaced(target, is_empty=empties)
        arrived = self._store.latest(self._session)
        if arrived is None or (arrived.purpose.kind, arrived.purpose.origin) != (kind, journey.origin):
            purpose = Purpose(kind, origin=journey.origin, goal=journey.goal, landed=journey.landed)
            # Of an emptied layer the root is another one since: it's the real directory's again.
            arrived = self._mounting.take(
                None,
                journey.label,
                offline=True,
                purpose=purpose,
                previous=restored,
                scanned=not empties,
            )
        ShownDigests(self._overlay.path).clear()
        os.unlink(self._journey)
        self._store.release(self._session)
        return arrived


def _is_work(here: Mapping[bytes, Entry], there: Mapping[bytes, Entry]) -> bool:
    for path, entry in there.items():
        standing = here.get(path)
        # The most usual difference is told at once: another content of what is kept on both sides.
        if standing is not None and standing.blob != entry.blob and standing.blob and entry.blob:
            return True
    plan = make_plan(here, there, keep_omitted=True)
    return bool(plan.delete or plan.create or plan.adjust or plan.touched)


def _over(top: Manifest, below: Manifest) -> Manifest:
    # What landed is what the layer departs from now, wherever it was before.
    return top.with_entries(stacked(top.entries, below.entries), {**top.bases, **below.bases})


def _kept_bases(entries: Mapping[bytes, Entry], bases: Mapping[bytes, Base]) -> dict[bytes, Base]:
    """The bases of the entries, and of all that they hide."""
    hides: Nearest[bool] = Nearest()
    for path, entry in entries.items():
        hides[path] = bool(hides.above(path)) or entry.kind is not Kind.DIR or entry.opaque
    return {path: bases[path] for path in sorted(bases) if path in entries or hides.above(path)}
