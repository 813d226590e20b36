"""One real directory with its overlay, its sandbox, its checkpoints and its review."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, overload

from anyio import to_thread

from workbench import collector, warm
from workbench.checking import Checking
from workbench.checkpoints import upkeep
from workbench.checkpoints.history import Purpose, RowKind
from workbench.checkpoints.manifest import Omitted
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.checkpoints.upkeep import Retention
from workbench.errors import CheckpointError, CommitError, OptionsError, OverlayError, SandboxError
from workbench.files import Files
from workbench.landing import Landed, Landing
from workbench.live import LiveOverlay
from workbench.mounting import Mounting, SandboxOptions, git_session
from workbench.protocol.commands import Command, CommandResult
from workbench.protocol.egress import EgressEvent
from workbench.pruning import remove_unfinished
from workbench.review.audit import counted
from workbench.review.bases import differing
from workbench.review.branch import Branch
from workbench.review.changeset import ChangeSet, Included
from workbench.review.concerned import concerned
from workbench.review.decisions import Review, included_record
from workbench.review.landed import Committed
from workbench.review.landed import find as find_landed
from workbench.review.merge import Merge
from workbench.review.recovery import pending, recover
from workbench.sandbox.client import Ask, KeeperClient
from workbench.sandbox.egress.attempt import EgressLog
from workbench.sandbox.facts import JobFacts
from workbench.sandbox.job import AttachedJob
from workbench.sandbox.shell import ShellSession
from workbench.searching import GrepOptions, Searching
from workbench.state import StateDirectory, WorkspaceDirectory
from workbench.timeline import Journey, Preview, Target, Timeline
from workbench.vfs import paths, search
from workbench.vfs.changed_mark import mark_changed
from workbench.vfs.listing import Listed, listing
from workbench.vfs.local import LocalStorage
from workbench.vfs.merged import MergedView
from workbench.vfs.search import Matches, Paths, Tree
from workbench.vfs.session import OverlayDirectory
from workbench.warm import SESSION_NAME

if TYPE_CHECKING:
    from fsspec.spec import AbstractFileSystem

    from workbench.storage_workspace import StorageWorkspace
    from workbench.vfs.storage import Storage

Report = Callable[[str], None]

_LOCK_TIMEOUT_S = 30.0
_VERIFIED_BY_ITSELF = 10_000
"""How many changes are read back after they landed without being asked to."""


@dataclass(frozen=True, slots=True)
class SandboxStatus:
    """`backend` is empty before the first command; `jobs` counts what runs at this moment."""

    backend: str
    running: bool
    jobs: int = 0


@dataclass(frozen=True, slots=True)
class WorkspaceStatus:
    """What `Workspace.status` found; `digest` is the one last shown, None where none was. `unresolved` have markers of a
    merge in them."""

    changes: ChangeSet
    digest: str | None
    sandbox: SandboxStatus
    conflicts: tuple[bytes, ...]
    lower_changed: bool
    mount_points: tuple[bytes, ...]
    unresolved: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Discarded:
    """What `Workspace.discard` dropped, the checkpoint that still holds it, which commands that ended, and what is left.

    Left is only what no checkpoint could keep: too big, or not readable.
    """

    changes: int
    checkpoint: str
    ended: tuple[JobFacts, ...]
    left: ChangeSet


@dataclass(frozen=True, slots=True)
class Travelled:
    """A rewind or a redo that was done, and the commands it ended."""

    journey: Journey
    ended: tuple[JobFacts, ...]


def _silent(_: str) -> None:
    pass


def _drop(_: bytes) -> None:
    pass


class Workspace:
    """A real directory that is worked on through an overlay, and changes only through `commit`.

    Open it with `Workspace.open`, and use it as an async context manager.
    """

    def __init__(
        self,
        state: StateDirectory,
        directory: WorkspaceDirectory,
        overlay: OverlayDirectory,
        session: str,
        options: SandboxOptions,
    ) -> None:
        self._state = state
        self._directory = directory
        self._overlay = overlay
        self._store = CheckpointStore(directory.checkpoints)
        self._lower = LocalStorage(directory.root)
        self._mounting = Mounting(state, directory, overlay, self._store, self._lower, options)
        self.timeline = Timeline(overlay, self._mounting, self._store, self._lower, directory.commits, session)
        """The session's checkpoints, for looking back; `rewind`, `redo` and `fork` go there."""
        self._searching = Searching(overlay, self._lower, self._mounting)
        self._live: LiveOverlay | None = None
        self.session = session
        self._landing = Landing(state, directory, overlay, self._store, self._lower, self._mounting, session)
        self.shown = self._landing.shown
        self.reviewing = self._landing.reviewing
        """What was decided of the changes."""
        self.audit = self._landing.audit
        self._checking = Checking(state, directory, overlay, self._store, self._lower, options)
        self.recovered: tuple[str, ...] = ()
        """What opening it had to put right after a crash, a sentence each."""

    @overload
    @classmethod
    def open(
        cls,
        path: str | bytes | os.PathLike[str] = ".",
        *,
        session: str = "default",
        options: SandboxOptions | None = None,
        state_path: str | None = None,
        report: Report = ...,
    ) -> Self: ...

    @overload
    @classmethod
    def open(cls, path: Storage | AbstractFileSystem, *, session: str = "default") -> StorageWorkspace: ...

    @classmethod
    def open(
        cls,
        path: str | bytes | os.PathLike[str] | Storage | AbstractFileSystem = ".",
        *,
        session: str = "default",
        options: SandboxOptions | None = None,
        state_path: str | None = None,
        report: Report = _silent,
    ) -> Self | StorageWorkspace:
        """Open the workspace of a directory; nothing is mounted, nothing copied. Of a storage it's a `StorageWorkspace`.

        First completes a commit or a rewind that a crash cut short, and removes an import that was. `session` is 1 to 64
        letters, digits and `._-`. `report` hears what had to be put right later on, a sentence each. Raises OptionsError,
        StateError, WorkspaceError, OverlayError (overlay_busy) while an import goes on, and CommitError
        (commit_incomplete) where what a crash left can't be put right.
        """
        _check_session(session)
        if not isinstance(path, str | bytes | os.PathLike):
            # Only here: it would cost every command the import of fsspec.
            from workbench.storage_workspace import StorageWorkspace

            return StorageWorkspace(path, session=session)
        state = StateDirectory.open(state_path)
        directory = state.workspace(os.path.realpath(os.fsencode(path)))
        removed = remove_unfinished(state, directory, session)
        workspace = cls(state, directory, directory.overlay(session), session, options or SandboxOptions())
        workspace._mounting.report = report
        try:
            workspace._complete()
        except BaseException:
            workspace.close()
            raise
        if removed:
            cut_short = f"the import into the session '{session}' was cut short; what there was of it is removed"
            workspace.recovered = (cut_short, *workspace.recovered)
        return workspace

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of file descriptors; a warm sandbox stays."""
        if self._live is not None:
            self._live.close()
        self._lower.close()
        self._store.close()

    @property
    def root(self) -> bytes:
        """The real directory, absolute and without symlinks."""
        return self._directory.root

    @property
    def directory(self) -> str:
        """What is kept of this real directory, in the state directory."""
        return self._directory.path

    @property
    def conversation_path(self) -> str:
        """Where the session's conversation is kept, if it has one."""
        return self._directory.conversation_path(self.session)

    @property
    def overlay_path(self) -> str:
        """The overlay's directory in the state directory."""
        return self._overlay.path

    @property
    def lower(self) -> LocalStorage:
        """The real directory, for reading."""
        return self._lower

    @property
    def store(self) -> CheckpointStore:
        """The checkpoints of all sessions of this workspace."""
        return self._store

    # Files

    @property
    def view(self) -> LiveOverlay:
        """The merged view, for reading and writing in blocking calls, whether a sandbox runs or not."""
        if self._live is None:
            self._live = LiveOverlay(self._lower, self._overlay, self._mounting, self._complete_overlay)
        return self._live

    @property
    def files(self) -> Files:
        """As `view`, in calls that can be awaited."""
        return Files(self.view)

    # Commands

    async def exec(
        self,
        command: Command,
        *,
        stdin: AsyncIterator[bytes] | None = None,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
        ask: Ask | None = None,
        report: Report = _silent,
    ) -> CommandResult:
        """Run a command in the sandbox, which is started where none is warm.

        It may reach what the options' `egress` says, and `ask` is asked where that says so. A command that ran is a
        result, whatever its exit code. Raises CommandError where it never ran, SandboxError where there's no sandbox or it
        was lost, OverlayError (overlay_busy).
        """
        async with await self.sandbox(report) as client, client.allow(self._mounting.options.egress, ask) as allowed:
            command = replace(command, environment={**allowed.environment, **command.environment})
            return await client.run(command, stdin=stdin, on_stdout=on_stdout, on_stderr=on_stderr)

    async def start_job(self, command: Command, *, report: Report = _silent) -> str:
        """Have a command started in the background; returns the id it's known by. Raises as `KeeperClient.start_job`."""
        async with await self.sandbox(report) as client, client.allow(self._mounting.options.egress) as allowed:
            command = replace(command, environment={**allowed.environment, **command.environment})
            return await client.start_job(command)

    async def jobs(self) -> tuple[JobFacts, ...]:
        """What runs in the sandbox, and what ended lately in the background; nothing where no sandbox is warm."""
        client = await KeeperClient.connect(self._overlay.path)
        if client is None:
            return ()
        async with client:
            return await client.jobs()

    async def running(self) -> KeeperClient:
        """The warm sandbox, for what is done to its commands. Raises SandboxError (job_not_found) where there is none."""
        client = await KeeperClient.connect(self._overlay.path)
        if client is None:
            raise SandboxError(
                "No sandbox is running, and so no command in it.",
                code="job_not_found",
                hint="`workbench exec -d -- COMMAND` starts one in the background.",
            )
        return client

    @contextlib.asynccontextmanager
    async def attached(self, job: str, *, tail: int | None = None, follow: bool = True) -> AsyncIterator[AttachedJob]:
        """A command in the background, to be read and written to, as `KeeperClient.attach` says."""
        async with await self.running() as client:
            yield await client.attach(job, tail=tail, follow=follow)

    @contextlib.asynccontextmanager
    async def shell_session(
        self, *, environment: dict[str, str] | None = None, shell: str = "", report: Report = _silent
    ) -> AsyncIterator[ShellSession]:
        """A shell in which what one script sets the next one finds; it ends with the block. Raises as `exec`."""
        async with (
            await self.sandbox(report) as client,
            client.allow(self._mounting.options.egress) as allowed,
            await ShellSession.open(
                client, environment={**allowed.environment, **(environment or {})}, shell=shell
            ) as session,
        ):
            yield session

    async def end_job(self, job: str, *, grace_ms: int = 0) -> None:
        """Have a command of the sandbox ended, with all its processes. Raises SandboxError (job_not_found)."""
        async with await self.running() as client:
            await client.end_job(job, grace_ms=grace_ms)

    async def sandbox(self, report: Report = _silent) -> KeeperClient:
        """The warm sandbox, else a new one; `report` hears what takes long, a sentence each.

        One that the real workspace changed under, or of another backend, image or limits than were asked for, is replaced
        where nothing runs in it. Raises as `exec`, and SandboxError (sandbox_busy) where something runs in one of another kind.
        """
        self._mounting.require_commands()
        if pending(self._directory.commits):
            # Another process was killed in its commit since we opened: nobody is to work on half of that.
            await to_thread.run_sync(self._recover)
        client = await KeeperClient.connect(self._overlay.path)
        if client is None:
            return await self._mounting.start(report, self._complete_overlay)
        info = await client.info()
        fits, fresh = self._mounting.fits(info), warm.is_fresh(self._overlay.path, self.root)
        if fits and (fresh or info.jobs):
            if not fresh:
                report(
                    "the real workspace changed under the sandbox, which still shows some of the old one since commands "
                    "run in it; `workbench refresh` ends them and mounts it anew"
                )
            return client
        if info.jobs:
            await client.aclose()
            raise SandboxError(
                f"Commands run in a sandbox of another kind ({info.backend}, {info.image}), or with other limits.",
                code="sandbox_busy",
                hint="Wait for them, or end them with `workbench stop`.",
            )
        await self._stop(client, "refresh", force=False)
        return await self._mounting.start(report, self._complete_overlay)

    async def refresh(self, *, force: bool = False, report: Report = _silent) -> tuple[JobFacts, ...]:
        """Mount a running sandbox anew, so that it sees the real workspace as it is; which commands that ended.

        Without `force` raises SandboxError (sandbox_busy) where a shell is attached.
        """
        ended = await self.stop(force=force, reason="refresh")
        async with await self._mounting.start(report, self._complete_overlay):
            return ended

    async def stop(self, *, force: bool = True, reason: str = "stop") -> tuple[JobFacts, ...]:
        """End the sandbox where one runs, or is just starting, and what a killed one left; which commands that ended.

        Without `force` raises SandboxError (sandbox_busy) where a shell is attached; OverlayError (overlay_busy).
        """
        client = await KeeperClient.connect(self._overlay.path)
        if client is None:
            found = await self._mounting.lock_or_keeper(timeout=_LOCK_TIMEOUT_S)
            if not isinstance(found, KeeperClient):
                with contextlib.closing(found):
                    await to_thread.run_sync(self._mounting.unmount_leftovers)
                return ()
            client = found
        return await self._stop(client, reason, force=force)

    async def _stop(self, client: KeeperClient, reason: str, *, force: bool) -> tuple[JobFacts, ...]:
        async with client:
            return await client.stop(force=force, reason=reason)

    # Looking

    def egress_events(self) -> list[EgressEvent]:
        """What left, or wanted to leave, this session's sandboxes, as it began: the last thousands. Raises OSError."""
        return EgressLog(self._overlay.path).events()

    async def read(self, path: bytes) -> bytes:
        """The content of a file of the merged view, the same that commands in the sandbox see.

        `path` is relative to the root. What the real workspace changed under a running sandbox is read through the
        sandbox, which may still show the old. Raises OSError as opening the file does, SandboxError (sandbox_lost).
        """
        return await self.files.read(path)

    async def listing(self, path: bytes, *, everything: bool = False) -> tuple[list[Listed], bool]:
        """As `vfs.listing.listing`, of the merged view; `path` is relative to the root.

        Also whether a running sandbox may see it otherwise, since the real workspace changed under it. Raises OSError.
        """

        def look() -> tuple[list[Listed], bool]:
            with self._merged() as merged:
                found = listing(merged, path, everything=everything)
            return found, self._overlay.is_locked() and self._mounting.lower_moved_on(path)

        if self._mounting.is_copied() and (client := await KeeperClient.connect(self._overlay.path)) is not None:
            # Holding what runs brings the upper layer here up to date.
            async with client, client.freeze():
                return await to_thread.run_sync(look)
        return await to_thread.run_sync(look)

    @contextlib.contextmanager
    def _merged(self) -> Iterator[MergedView]:
        with self._overlay.upper() as upper:
            yield MergedView(self._lower, upper, scratch=os.fsencode(self._overlay.record().scratch))

    async def grep(self, pattern: bytes, path: bytes = b"", **options: Unpack[GrepOptions]) -> Matches:
        """The lines of the merged view that match, as `vfs.search.grep`; raises as it does, and as `read`.

        Where ripgrep is there (in the warm sandbox; on the host where nothing is mounted) it sorts out beforehand the
        files without any match.
        """
        return await self._searching.grep(pattern, path, **options)

    async def glob(self, pattern: bytes, *, ignored: bool = False, limit: int = 1000) -> Paths:
        """The paths of the merged view that fit a pattern, as `vfs.search.glob`; raises as it does, and as `read`."""
        return await self._searching.look(partial(search.glob, pattern=pattern, ignored=ignored, limit=limit))

    async def tree(self, path: bytes = b"", *, depth: int = 3, ignored: bool = False) -> Tree:
        """What is below a directory of the merged view, as `vfs.search.tree`; raises as it does, and as `read`."""
        return await self._searching.look(partial(search.tree, path=path, depth=depth, ignored=ignored))

    async def checkpoint(
        self,
        message_id: str | None = None,
        *,
        label: str = "",
        step: int = 0,
        replace: bool = False,
        kind: RowKind = RowKind.MESSAGE,
        may_stop: bool = True,
    ) -> Checkpoint:
        """Keep the upper layer as it is at this moment, under an id; without one under `@` and its number.

        A second one under one id and step is refused unless it's to `replace` it. Where a sandbox runs it is frozen for
        the while. Where commands closed files to themselves (mode 000), an idle one is stopped to read them, unless
        `may_stop` is False: then they're left out. Raises CheckpointError, OverlayError (overlay_busy).
        """
        taken = await self._checkpoint(message_id, label, Purpose(kind, step), replace=replace, may_stop=may_stop)
        await to_thread.run_sync(self._keep_small_beside)
        return taken

    async def _checkpoint(
        self, message_id: str | None, label: str, purpose: Purpose, *, replace: bool, may_stop: bool
    ) -> Checkpoint:
        def take(offline: bool, mapped: bool = False) -> Checkpoint:
            return self._mounting.take(
                message_id, label, offline=offline, purpose=purpose, replaces=replace, mapped=mapped, by_notes=True
            )

        while True:
            client = await KeeperClient.connect(self._overlay.path)
            if client is not None:
                try:
                    async with client, client.freeze() as mapped:
                        taken = await to_thread.run_sync(take, False, mapped)
                        if not may_stop or not _has_closed(taken) or (await client.info()).jobs:
                            return taken
                except SandboxError as error:
                    if error.code not in ("sandbox_lost", "sandbox_busy"):
                        raise
                    # It's just being stopped by somebody else.
                    continue
                # Only the owner can open up what a command closed to itself, and only while nothing is mounted.
                replace, message_id = True, taken.message_id
                await self.stop(force=False, reason="checkpoint")
            with contextlib.suppress(OverlayError):
                async with self._offline(timeout=1.0 if client is None else _LOCK_TIMEOUT_S):
                    return await to_thread.run_sync(take, True)
            if client is None and await KeeperClient.connect(self._overlay.path) is None:
                async with self._offline(timeout=_LOCK_TIMEOUT_S):
                    return await to_thread.run_sync(take, True)

    async def changes(self, *, may_stop: bool = True, included: Included | None = None) -> ChangeSet:
        """Take a checkpoint and compare it with the real workspace. `may_stop` and what is raised as of `checkpoint`."""
        checkpoint = await self.checkpoint(label="looked at", kind=RowKind.UPKEEP, may_stop=may_stop)
        return await to_thread.run_sync(lambda: self._landing.compare(checkpoint, included))

    async def keep_before_command(self) -> str:
        """Keep what is there before a command; the checkpoint's commit. Raises as `checkpoint`."""
        return (await self.checkpoint(label="before a command", kind=RowKind.UPKEEP, may_stop=False)).commit

    async def changes_after(self, before: str, command: str) -> ChangeSet:
        """As `changes` after a command that changed something; never stops the sandbox.

        The checkpoint of what was there `before` (its commit, empty where none was kept) is listed from now on, as that.
        """
        if before:
            await to_thread.run_sync(self._name_before, before, command)
        return await self.changes(may_stop=False)

    def _name_before(self, before: str, command: str) -> None:
        try:
            found = self._store.get(before)
        except CheckpointError as error:
            if error.code != "checkpoint_not_found":
                raise
            # The command ran for longer than what isn't listed is kept.
            return
        self._mounting.name(found, f"before: {command}", Purpose(RowKind.COMMAND))

    def reviewed(self, changes: ChangeSet, terminal: str = "", included: Included | None = None) -> str:
        """Say that a change set, with what was `included`, was shown on a terminal of this name; its digest, which a commit
        may now name."""
        asked = included_record(included) if included is not None else None
        self.shown.add(changes.digest, changes.checkpoint, terminal, included=asked)
        return changes.digest

    async def review(self, included: Included | None = None) -> Review:
        """Take a checkpoint for a review of it, with what was decided before; keep it with `reviewing.keep`.

        `included` as of `Reviewing.begin`. Raises as `checkpoint`.
        """
        checkpoint = await self.checkpoint(label="reviewed", kind=RowKind.UPKEEP)
        return await to_thread.run_sync(lambda: self.reviewing.begin(checkpoint.commit, included))

    async def conflicts(self, changes: ChangeSet) -> list[bytes]:
        """The paths of a change set that can't land: the real workspace changed there meanwhile. Raises OSError."""
        checkpoint = self._store.get(changes.checkpoint)
        return await to_thread.run_sync(lambda: self._landing.conflicts(changes, checkpoint))

    async def status(self) -> WorkspaceStatus:
        """What there is, what would conflict, and what runs. Raises as `checkpoint`."""
        checkpoint = await self.checkpoint(label="looked at", kind=RowKind.UPKEEP)
        changes = await to_thread.run_sync(lambda: self._landing.compare(checkpoint))
        conflicting = await to_thread.run_sync(lambda: self._landing.conflicts(changes, checkpoint))
        client = await KeeperClient.connect(self._overlay.path)
        sandbox = SandboxStatus(self._overlay.record().backend, running=False)
        if client is not None:
            async with client:
                info = await client.info()
                sandbox = SandboxStatus(info.backend, running=True, jobs=info.jobs)
        last = self.shown.last()
        return WorkspaceStatus(
            changes,
            last.digest if last else None,
            sandbox,
            tuple(conflicting),
            sandbox.running and not warm.is_fresh(self._overlay.path, self.root),
            tuple(self._lower.mount_points()),
            tuple(self._landing.unresolved(checkpoint)),
        )

    # Deciding

    async def commit(
        self,
        digest: str,
        *,
        allow_risky: bool = False,
        force: bool = False,
        message: str = "",
        verify: bool | None = None,
    ) -> Landed:
        """Land exactly the change set that was shown under `digest`, all of it or nothing; what isn't in it stays.

        What landed under that digest before is left as it is. Ends the sandbox first; `force` also where a shell is
        attached. `message` is kept with the commit. `verify` reads back what landed, None where that isn't too much.
        Raises CommitError (digest_unknown, nothing_to_commit, digest_changed, risky_paths, not_landable, commit_failed,
        commit_incomplete), ConflictError, SandboxError (sandbox_busy).
        """
        with self._landing.refusals_noted(digest):
            try:
                shown = self.shown.find_some(digest)
            except CommitError as error:
                if error.code != "digest_unknown":
                    raise
                if (landed := find_landed(self._directory.commits, self.session, digest)) is None:
                    raise
                return Landed(landed, await self.changes(), (), already=True)
            ended = await self.stop(force=force, reason="commit")
            async with self._offline(timeout=_LOCK_TIMEOUT_S):
                await to_thread.run_sync(self._complete_overlay)
                landing = await to_thread.run_sync(lambda: self._landing.commit(shown, allow_risky, ended, message))
        changes = landing.committed.changes
        if verify is False or (verify is None and len(changes) >= _VERIFIED_BY_ITSELF):
            return landing
        differs = await to_thread.run_sync(differing, self._lower, changes)
        return replace(landing, verified=True, differs=tuple(differs))

    async def land_by_itself(
        self,
        check: Command | None,
        *,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
        report: Report = _silent,
        passed: str = "",
    ) -> Landed | None:
        """Land all there is without a review, as far as the policy allows that; None where there is nothing.

        A `check` runs first, and must pass, unless the change set is the one of the digest that `passed` it.
        Raises CommitError (policy_waits) where something is risky or a rule asks for a review: then the whole set waits; and
        as `check` and `commit`.
        """
        changes = await self.changes()
        if not changes.changes:
            return None
        with self._landing.refusals_noted(changes.digest):
            self._landing.require_unasked(changes)
        digest = self.reviewed(changes)
        if check is not None and digest != passed:
            await self.check(digest, check, on_stdout=on_stdout, on_stderr=on_stderr, report=report)
        return await self.commit(digest)

    async def rehearse(self, digest: str, *, allow_risky: bool = False) -> ChangeSet:
        """What `commit` would land, and nothing is done. Raises as it does, but for what only shows on the way."""
        shown = self.shown.find_some(digest)
        return await to_thread.run_sync(lambda: self._landing.landable(shown, allow_risky)[1])

    async def check(
        self,
        digest: str,
        command: Command,
        *,
        on_stdout: Callable[[bytes], object] | None = None,
        on_stderr: Callable[[bytes], object] | None = None,
        report: Report = _silent,
    ) -> None:
        """Run a command over what was shown under `digest`, and raise CommitError (check_failed) unless it ends with 0.

        Where that's all that the overlay holds at this moment, in the session's sandbox, where what it writes stays in the
        overlay; else in one that shows the real workspace with exactly what would land, where it's dropped. Raises as
        `exec`, and as `rehearse` but for conflicts and risky paths.
        """
        with self._landing.refusals_noted(digest):
            shown = self.shown.find(digest)
            now = await self.checkpoint(label="before a check", kind=RowKind.UPKEEP)
            if shown.selection is None and shown.checkpoint == now.commit:
                result = await self.exec(command, on_stdout=on_stdout, on_stderr=on_stderr, report=report)
            else:
                layer = await to_thread.run_sync(self._landing.layer, shown)
                result = await self._checking.run(layer, command, on_stdout or _drop, on_stderr or _drop, report)
            if result.exit_code or result.ended_by:
                how = f"was ended by {result.ended_by}" if result.ended_by else f"ended with {result.exit_code}"
                raise CommitError(
                    f"The check {how}; nothing was applied.",
                    code="check_failed",
                    hint="Put right what it found, and review.",
                )

    async def merge(
        self, *, ours: Sequence[bytes] = (), theirs: Sequence[bytes] = (), force: bool = False
    ) -> tuple[Merge, tuple[JobFacts, ...]]:
        """Bring what the real workspace changed meanwhile into the overlay, path by path of what conflicts.

        What it did, and the commands that ended. Of paths at and below `ours` the overlay's version is meant, at and
        below `theirs` the real workspace's. What was there is kept as a checkpoint. Ends the sandbox first; `force` also
        where a shell is attached. Raises CommitError, CheckpointError, SandboxError (sandbox_busy), OverlayError
        (overlay_busy).
        """
        ended = await self.stop(force=force, reason="merge")

        async with self._offline(timeout=_LOCK_TIMEOUT_S):
            await to_thread.run_sync(self._complete_overlay)
            return await to_thread.run_sync(self._landing.merge, ours, theirs), ended

    async def branch(
        self,
        digest: str,
        name: str,
        *,
        message: str = "",
        author: str = "",
        allow_risky: bool = False,
        keep_history: bool = False,
    ) -> Branch:
        """Make a branch of the real repository with exactly what was shown under `digest`, on top of its HEAD.

        The working tree, the index and HEAD aren't touched, and the overlay keeps what it holds. With `keep_history` the
        commits that the agent made in the overlay are on it, verified object by object. Raises as `rehearse`,
        `make_branch`, and `carried` (history_unavailable).
        """
        with self._landing.refusals_noted(digest):
            return await to_thread.run_sync(
                lambda: self._landing.branch(
                    digest, name, message=message, author=author, allow_risky=allow_risky, keep_history=keep_history
                )
            )

    async def revert(
        self, commit_id: str, *, message: str = "", dry_run: bool = False
    ) -> tuple[ChangeSet, Committed | None]:
        """Take back what a commit did, all of it or nothing: what landed, and the commit that it landed as.

        With `dry_run` nothing is done. What the workspace changed since is a conflict. No overlay is touched: what one
        holds on top of it conflicts when it would land. Raises CommitError (commit_unknown, nothing_to_commit where that was
        done before, not_landable, commit_failed, commit_incomplete), ConflictError.
        """
        with self._landing.refusals_noted(""):
            return await to_thread.run_sync(self._landing.revert, commit_id, message, dry_run)

    async def discard(self, *, only: Sequence[bytes] = (), force: bool = False) -> Discarded:
        """Drop everything the overlay holds; a checkpoint of it is kept, and `redo` goes back to it.

        `only` are paths, relative to the root, and what `concerned` says of them: all else stays. Ends the sandbox first;
        `force` also where a shell is attached. Raises CheckpointError, SandboxError (sandbox_busy), OverlayError
        (overlay_busy), OptionsError for an impossible path.
        """
        ended = await self.stop(force=force, reason="discard")
        async with self._offline(timeout=_LOCK_TIMEOUT_S):
            return await to_thread.run_sync(lambda: self._discard(only, ended))

    def _discard(self, only: Sequence[bytes], ended: tuple[JobFacts, ...]) -> Discarded:
        self._complete_overlay()
        now = self._mounting.take(None, "before a discard", offline=True, purpose=Purpose(RowKind.BEFORE))
        changes = self._landing.compare(now)
        nothing = Target(self._mounting.nothing(), git="" if self._mounting.git_beside(now) is not None else None)
        target = self.timeline.part(now, nothing, concerned(changes, only) if only else ())
        rest = self.timeline.go(RowKind.DISCARD, target, now, "discarded in part" if only else "discarded")
        left = self._landing.compare(rest)
        staying = {change.path for change in left.shown}
        gone = [change for change in changes.shown if change.path not in staying]
        self.audit.append("discard", session=self.session, digest=changes.digest, counts=counted(gone))
        return Discarded(len(gone), now.commit, ended, left)

    # Travelling

    async def rewind(
        self, message_id: str, *, step: int = 0, only: Sequence[bytes] = (), force: bool = False
    ) -> Travelled:
        """Make the overlay show what it showed at a checkpoint; what is there is kept, and `redo` goes back to it.

        `only` are paths, relative to the root: all else stays. Ends the sandbox first; `force` also where a shell is
        attached. What was committed since is taken back in the overlay alone: the real workspace changes when that is
        reviewed and committed. Raises CheckpointError (checkpoint_not_found, store_corrupt, checkpoint_failed),
        SandboxError (sandbox_busy), OverlayError (overlay_busy).
        """
        checkpoint = await to_thread.run_sync(self.timeline.find, message_id, step)
        return await self._travel(RowKind.REWIND, checkpoint, only, f"rewound to {_named(checkpoint)}", force=force)

    async def redo(self, *, force: bool = False) -> Travelled:
        """Take back the last rewind or discard that wasn't taken back yet; any number of times.

        What was done since is kept as a checkpoint. `force` and what is raised as of `rewind`, and CheckpointError
        (nothing_to_redo).
        """
        points = await to_thread.run_sync(self.timeline.redo_points)
        if not points:
            raise CheckpointError(
                "There is no rewind or discard to take back.",
                code="nothing_to_redo",
                hint="`workbench log` lists what you can rewind to.",
            )
        return await self._travel(RowKind.REDO, points[-1], (), f"back to {_named(points[-1])}", force=force)

    async def adopt(self, fork: str, commit: str, *, instead_of: Sequence[str], force: bool = False) -> Travelled:
        """Make the overlay show what another session, forked from this one, showed at a checkpoint of its own.

        `commit` is that checkpoint's; what is there is kept, and `redo` goes back to it. Only where the overlay holds what it
        did at one of the checkpoints `instead_of`, by their commits: else raises SessionChangedError. Else as `rewind`.
        """
        checkpoint = await to_thread.run_sync(self.timeline.of_commit, fork, commit)
        # Before anything ends: whether it may be replaced at all.
        now = await self.checkpoint(label="looked at", kind=RowKind.UPKEEP, may_stop=False)
        await to_thread.run_sync(self.timeline.require_at, now, instead_of)
        return await self._travel(
            RowKind.REWIND, checkpoint, (), f"took over {fork}", force=force, instead_of=instead_of
        )

    async def _travel(
        self,
        kind: RowKind,
        checkpoint: Checkpoint,
        only: Sequence[bytes],
        label: str,
        *,
        force: bool,
        instead_of: Sequence[str] = (),
    ) -> Travelled:
        # Before anything ends: whether one can get there at all.
        if not only:
            await to_thread.run_sync(lambda: self.timeline.require(Target(checkpoint.manifest)))
        ended = await self.stop(force=force, reason="rewind")

        async with self._offline(timeout=_LOCK_TIMEOUT_S):
            await to_thread.run_sync(self._complete_overlay)
            journey = await to_thread.run_sync(
                lambda: self.timeline.travel(kind, checkpoint, only, label, instead_of=instead_of)
            )
            counts = {"removed": len(journey.removed), "restored": len(journey.restored)}
            self.audit.append(kind.value, session=self.session, message=label, counts=counts)
        return Travelled(journey, ended)

    async def preview(self, message_id: str, *, step: int = 0, only: Sequence[bytes] = ()) -> Preview:
        """What `rewind` would change in the overlay; nothing is changed. Raises as `rewind`."""
        checkpoint = await to_thread.run_sync(self.timeline.find, message_id, step)
        now = await self.checkpoint(label="looked at", kind=RowKind.UPKEEP)

        return await to_thread.run_sync(
            lambda: self.timeline.preview(now.manifest, self.timeline.part(now, self.timeline.target(checkpoint), only))
        )

    async def difference(self, old: str, new: str | None = None, *, only: Sequence[bytes] = ()) -> Preview:
        """What changed from one checkpoint to another, or to what is there now, of that `only` at and below some paths,
        where there are any. Raises as `rewind`."""
        before = await to_thread.run_sync(self.timeline.find, old)
        if new is None:
            after = await self.checkpoint(label="looked at", kind=RowKind.UPKEEP)
        else:
            after = await to_thread.run_sync(self.timeline.find, new)

        found = await to_thread.run_sync(
            lambda: self.timeline.preview(self.timeline.target(before).manifest, self.timeline.target(after))
        )
        if not only:
            return found
        wanted = [each for each in found.changes if any(_is_at(each.path, path) for path in only)]
        return replace(found, changes=wanted)

    def keep_small(self, policy: Retention | None = None) -> None:
        """Drop what the session's checkpoints have beyond their retention, and put the rest of the store together.

        What `redo` goes back to and what was shown and may yet land stay.

        Raises CheckpointError, OSError.
        """
        needed = [point.commit for point in self.timeline.redo_points()] + self.shown.checkpoints()
        policy = policy or Retention()
        dropped = upkeep.retain(self._store, self.session, policy, needed)
        upkeep.retain_beside(self._store, self.session, git_session(self.session), policy)
        if dropped:
            self.audit.append(
                "prune", session=self.session, message="beyond what is kept", counts={"checkpoint": dropped}
            )
        upkeep.collect(self._store)

    def keep_small_if_grown(self) -> None:
        """As `keep_small`, where it pays and nobody is at it: at the end of what takes a while anyway. Raises as it."""
        if upkeep.wants_collection(self._store) and not upkeep.is_collecting(self._store):
            self.keep_small()

    def _keep_small_beside(self) -> None:
        """Have another process do that where it pays, so that nobody waits for it.

        It says nothing: what it can't do, `keep_small_if_grown` can't either, and says so.
        """
        with contextlib.suppress(OSError):
            if upkeep.is_due(self._store):
                collector.start(self._directory.path, self.session, self._state.path)

    def drop(self, message_id: str, *, step: int = 0) -> None:
        """Drop one checkpoint. Raises CheckpointError: checkpoint_not_found, checkpoint_failed where it's needed."""
        checkpoint = self.timeline.find(message_id, step)
        upkeep.drop(self._store, self.session, checkpoint)
        self.audit.append("drop", session=self.session, message=_named(checkpoint), counts={"checkpoint": 1})

    def purge(self, path: bytes) -> int:
        """Take a path out of every checkpoint of every session of this workspace. Returns and raises as `upkeep.purge`."""
        held = upkeep.purge(self._store, path)
        self.audit.append("purge", session="", message=paths.display(path), counts={"checkpoint": held})
        return held

    def free_session(self) -> str:
        """A name for another session: this one's, and the first number that isn't taken."""
        taken, number = set(self._directory.sessions()), 2
        while (name := f"{self.session[:58]}-{number}") in taken:
            number += 1
        return name

    async def fork(self, message_id: str, session: str, *, step: int = 0) -> int:
        """Start another session whose overlay shows what this one showed at a checkpoint; how many paths it holds.

        Both go on by themselves from there. Raises as `rewind`, OptionsError for an impossible name, and OverlayError
        (session_exists) where there is a session of that name.
        """
        checkpoint = await to_thread.run_sync(self.timeline.find, message_id, step)
        return await to_thread.run_sync(self._fork, checkpoint, session)

    def _fork(self, checkpoint: Checkpoint, session: str) -> int:
        target = self.timeline.target(checkpoint)
        self.timeline.require(target)
        _check_session(session)
        exists = OverlayError(
            f"There is a session '{session}' already.", code="session_exists", hint="Choose another name."
        )
        is_there = session in self._directory.sessions()
        overlay = self._directory.overlay(session)
        if is_there and overlay.is_locked():
            raise exists
        fork = type(self)(self._state, self._directory, overlay, session, self._mounting.options)
        with contextlib.closing(fork), fork._overlay.lock(_LOCK_TIMEOUT_S):
            if not fork.is_unused():
                raise exists
            ours = self._overlay.record()
            kept = {"scratch": ours.scratch, "backend": ours.backend, "image": ours.image, "root_mode": ours.root_mode}
            fork._overlay.save(fork._overlay.record().model_copy(update=kept))
            fork.timeline.go(RowKind.FORK, target, checkpoint, f"forked from {self.session}: {_named(checkpoint)}")
        return len(target.manifest.entries) - 1

    def is_unused(self) -> bool:
        """Whether nothing was done in the session yet: so a fork leaves it that is killed before it has begun."""
        is_begun = self._is_overlay_incomplete() or self._store.latest(self.session) is not None
        return not is_begun and not os.path.isdir(self.conversation_path) and not os.listdir(self._overlay.upper_path)

    # Crashes, locks

    def _complete(self) -> None:
        """Finish what a crash cut short: a commit on its way, or an upper on its way to what it should be."""
        self._recover()
        if self._is_overlay_incomplete():
            with self._overlay.lock(_LOCK_TIMEOUT_S):
                self._mounting.unmount_leftovers()
                self._complete_overlay()

    def _recover(self) -> None:
        commits = self._directory.commits
        if pending(commits):
            self.recovered += tuple(str(found) for found in recover(self._lower, commits))
            # What is mounted, for whichever session, may show what stood there meanwhile.
            for session in self._directory.sessions():
                mark_changed(self._directory.overlay_path(session))

    def _is_overlay_incomplete(self) -> bool:
        return self._mounting.is_restore_pending or self.timeline.is_under_way or self._landing.is_unsettled

    def _complete_overlay(self) -> None:
        """All of it; the overlay's lock is held, nothing is mounted."""
        # Another process may have been killed in its commit since this workspace was opened.
        self._recover()
        self.timeline.complete()
        self._mounting.complete()
        self._landing.settle()

    def _offline(self, timeout: float) -> AbstractAsyncContextManager[None]:
        """Hold the overlay's lock, with nothing mounted."""
        return self._mounting.offline(timeout)


async def let_go_replaced(path: str | bytes | os.PathLike[str], *, state_path: str | None = None) -> int:
    """Let go of the overlays of directories that stood at a path before another one was put there.

    Their sandboxes end, and their checkpoints stay in the state directory. How many workspaces that were. Raises as
    `Workspace.open`, and SandboxError.
    """
    found = StateDirectory.open(state_path).replaced(os.path.realpath(os.fsencode(path)))
    for workspace in found:
        for session in workspace.sessions():
            client = await KeeperClient.connect(workspace.overlay_path(session))
            if client is not None:
                async with client:
                    await client.stop(force=True, reason="discard")
        workspace.retire()
    return len(found)


def _check_session(name: str) -> None:
    if not SESSION_NAME.fullmatch(name):
        raise OptionsError(
            f"{name!r} can't name a session.",
            hint="Use 1 to 64 letters, digits, dots, underscores and hyphens, beginning with a letter or digit.",
        )


def _is_at(path: bytes, top: bytes) -> bool:
    return path == top or paths.is_below(path, top)


def _named(checkpoint: Checkpoint) -> str:
    step = f", step {checkpoint.purpose.step}" if checkpoint.purpose.step else ""
    return f"{checkpoint.message_id}{step}"


def _has_closed(taken: Checkpoint) -> bool:
    """Whether something was left out that its owner, who we are, could open up."""
    uid = os.geteuid()
    return any(entry.omitted == Omitted.UNREADABLE and entry.uid == uid for entry in taken.manifest.entries.values())
