"""Several attempts at one task: forks of a session as it is now, the best of which the session then takes over.

They are written down before anything is forked, and each once it has ended, in `attempts.json` beside the session's
overlay. Who works on them holds the lock of that file: where nobody does, what hasn't ended was interrupted.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import anyio
from anyio import to_thread

from workbench.agent.workspace_session import WorkspaceSession, last_id
from workbench.deletion import collect, delete
from workbench.errors import OptionsError, SessionBusyError, WorkbenchError
from workbench.protocol.attempts import AttemptRecord, AttemptsGroup, AttemptsRecord, CheckResult
from workbench.protocol.messages import now
from workbench.review import diff
from workbench.review.changeset import ChangeSet
from workbench.sessions import survey_workspace
from workbench.state import StateDirectory, WorkspaceDirectory
from workbench.vfs.statefile import read_json, write_json
from workbench.workspace import Travelled, Workspace

_RECORD, _LOCK = "attempts.json", "attempts.lock"
_NAMED = 48
"""Characters of a session's name that those of its attempts begin with: with the rest they are still names."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """The sessions that were removed, and the errors of those that weren't."""

    removed: list[str] = field(default_factory=list)
    failed: list[WorkbenchError | OSError] = field(default_factory=list)

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """Go on after an error, and keep it."""
        try:
            yield
        except (WorkbenchError, OSError) as error:
            self.failed.append(error)


def best(group: AttemptsGroup) -> AttemptRecord | None:
    """The one that succeeded, and passed the check where there is one, with the smallest change; None where none did.

    Smallest is what has the fewest lines that come or go, then the fewest files, then the lowest number; what changed
    nothing at all comes after everything else.
    """
    good = [
        each
        for each in group.attempts
        if each.ok and each.checkpoint and (each.check is CheckResult.PASSED or not group.checks)
    ]
    return min(
        good,
        key=lambda each: (each.digest == group.digest, each.added + each.deleted, each.files, each.number),
        default=None,
    )


class Attempts:
    """The attempts at tasks of one session, whose workspace is open."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._path = os.path.join(workspace.overlay_path, _RECORD)
        self._lock_path = os.path.join(workspace.overlay_path, _LOCK)
        self._noting = anyio.Lock()
        self._state_path = os.path.dirname(os.path.dirname(workspace.directory))

    def groups(self) -> tuple[AttemptsGroup, ...]:
        """What is kept of them, the newest group last. Raises StateError (state_corrupt), OSError."""
        try:
            return read_json(self._path, AttemptsRecord).groups
        except FileNotFoundError:
            return ()

    def are_running(self) -> bool:
        """Whether somebody works on them at this moment. Raises OSError."""
        try:
            with self.alone():
                return False
        except SessionBusyError:
            return True

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Have nobody else work on them meanwhile. Raises SessionBusyError where somebody does, OSError."""
        fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise SessionBusyError(
                    f"Attempts of session '{self._workspace.session}' are at work.",
                    hint="Wait for their end, or interrupt the command that began them.",
                ) from None
            yield
        finally:
            os.close(fd)

    async def begin(
        self, session: WorkspaceSession, task: str, count: int, *, model: str, checks: bool
    ) -> tuple[AttemptsGroup, str]:
        """Write down `count` attempts of a session as it is now; they, and what each is to be told.

        `fork` makes their sessions. They are named after the session, with numbers that go on from what is kept. The
        checkpoint that all began from has the id of the message, so that `rewind` takes back what is taken over of them.
        Raises as `WorkspaceSession.start`.
        """
        message_id, told = await session.prepare(task)
        changes = await self._workspace.changes()
        group = AttemptsGroup(
            message_id=message_id,
            task=task,
            model=model,
            base=self._workspace.timeline.find(message_id).commit,
            digest=changes.digest,
            last_message=last_id(session.agent.detail().messages),
            checks=checks,
            started_at=now(),
            attempts=tuple(AttemptRecord(number=number, session=name) for number, name in self._names(count)),
        )
        await to_thread.run_sync(self._save, (*self.groups(), group))
        return group, told

    async def fork(
        self, session: WorkspaceSession, group: AttemptsGroup, *, until: Callable[[], bool] = lambda: False
    ) -> None:
        """Make the sessions of attempts, one after the other, and no more once `until` is true.

        Raises as `WorkspaceSession.fork`.
        """
        for attempt in group.attempts:
            if until():
                break
            await session.fork(group.message_id, name=attempt.session)

    async def note(self, ended: AttemptRecord) -> None:
        """Write down what became of one. Raises StateError, OSError."""
        async with self._noting:
            groups = tuple(
                group.model_copy(update={"attempts": tuple(_either(each, ended) for each in group.attempts)})
                for group in self.groups()
            )
            await to_thread.run_sync(self._save, groups)

    def find(self, number: int) -> tuple[AttemptsGroup, AttemptRecord]:
        """An attempt, with those that it was begun with. Raises OptionsError, StateError, OSError."""
        for group in self.groups():
            for attempt in group.attempts:
                if attempt.number == number:
                    return group, attempt
        raise OptionsError(f"There is no attempt {number}.", hint="`workbench attempts` lists those that there are.")

    async def take(self, session: WorkspaceSession, number: int, *, force: bool = False) -> Travelled:
        """Give the session what an attempt left, files and conversation; what is there is kept, and `rewind` goes back.

        Only where the session is still what the attempts began from, or holds what another one of them left. Ends its sandbox;
        `force` also where a shell is attached. Raises OptionsError where it left nothing, and as `WorkspaceSession.adopt`.
        """
        group, attempt = self.find(number)
        if not attempt.checkpoint:
            raise OptionsError(
                f"Attempt {number} was interrupted before its end.",
                hint=f"What there is of it is in its session: `workbench diff --session {attempt.session}`.",
            )
        ended = [(each.checkpoint, each.last_message) for each in group.attempts if each.checkpoint]
        travelled = await session.adopt(
            attempt.session,
            attempt.checkpoint,
            message_id=group.message_id,
            instead_of=[(group.base, group.last_message), *ended],
            force=force,
        )
        offered = group.model_copy(update={"offered": number})
        groups = tuple(offered if each.message_id == group.message_id else each for each in self.groups())
        await to_thread.run_sync(self._save, groups)
        return travelled

    async def drop(self) -> Dropped:
        """Remove the sessions of all attempts, whatever they hold, and end their sandboxes; what was taken over stays.

        What couldn't be removed stays kept; a session of such a name that isn't an attempt's is left alone. Raises StateError,
        OSError.
        """
        bases = {attempt.session: group.base for group in self.groups() for attempt in group.attempts}
        kept = set(bases)
        state = StateDirectory.open(self._state_path)
        dropped = Dropped()
        for name in sorted(kept & set(self._sessions())):
            with dropped.noting():
                # Also brings to its end what a crash cut short in it.
                async with Workspace.open(self._workspace.root, session=name, state_path=self._state_path) as workspace:
                    # Of a fork that was killed before it had begun there is nothing yet.
                    if workspace.is_unused() or workspace.timeline.is_forked_from(bases[name]):
                        await workspace.stop()
                    else:
                        kept.remove(name)
        found = await to_thread.run_sync(lambda: survey_workspace(self._workspace.directory, limit=None))
        for session in found.sessions:
            if session.name in kept:
                with dropped.noting():
                    await delete(state, found, session, with_changes=True)
                    dropped.removed.append(session.name)
        if not kept & set(self._sessions()):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
        await to_thread.run_sync(collect, found)
        return dropped

    def _sessions(self) -> list[str]:
        return WorkspaceDirectory.read(self._workspace.directory).sessions()

    def _names(self, count: int) -> Iterable[tuple[int, str]]:
        taken = set(self._sessions())
        number = max((each.number for group in self.groups() for each in group.attempts), default=0)
        while count:
            number += 1
            name = f"{self._workspace.session[:_NAMED]}.attempt-{number}"
            if name not in taken:
                count -= 1
                yield number, name

    def _save(self, groups: Sequence[AttemptsGroup]) -> None:
        write_json(self._path, AttemptsRecord(groups=tuple(groups)))


async def measured(workspace: Workspace, attempt: AttemptRecord) -> tuple[AttemptRecord, ChangeSet]:
    """What an attempt has left in its workspace. Raises as `Workspace.changes`, ConflictError."""
    changes = await workspace.changes()
    added, deleted = await to_thread.run_sync(
        lambda: diff.counted_lines(changes.shown, workspace.lower, workspace.store)
    )
    size = {"files": len(changes.shown), "added": added, "deleted": deleted}
    left = {"checkpoint": changes.checkpoint, "digest": changes.digest}
    return attempt.model_copy(update={**size, **left}), changes


def _either(old: AttemptRecord, new: AttemptRecord) -> AttemptRecord:
    return new if new.number == old.number else old
