"""What happens around a mount of an overlay: preparing it, starting a sandbox over it, scanning its upper afterwards.

Three things are kept true here. Every path's base is judged by the epoch of the mount it was first touched in, so what
an earlier mount left is scanned before the next one. A repository is one unit: while any of it is in the upper, the
real one must be as it was, else the upper's part is set aside (a checkpoint keeps it). And nobody writes the upper but
the holder of the overlay's lock, with nothing mounted.
"""

from __future__ import annotations

import contextlib
import grp
import os
import pwd
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial

from anyio import to_thread

from workbench import warm
from workbench.checkpoints import upkeep
from workbench.checkpoints.history import Purpose, RowKind
from workbench.checkpoints.manifest import Entry, Manifest
from workbench.checkpoints.restore import pending, restore
from workbench.checkpoints.store import Checkpoint, CheckpointStore
from workbench.errors import CheckpointError, OptionsError, OverlayError, SandboxError, WorkspaceError
from workbench.protocol.records import MountRecord, OverlayRecord
from workbench.review import repository
from workbench.sandbox import devcontainer, filesystems, images, leftovers
from workbench.sandbox.backend import Limits, OverlayMount, SandboxSpec
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.egress.options import Egress
from workbench.sandbox.facts import KeeperInfo
from workbench.sandbox.probe import WAYS_OF_SHARING, pick
from workbench.sandbox.targets import DEFAULT_HOME, target_for
from workbench.state import StateDirectory, WorkspaceDirectory
from workbench.vfs import paths
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay_lock import OverlayLock
from workbench.vfs.session import OverlayDirectory
from workbench.vfs.storage import Kind
from workbench.vfs.upper import LocalUpper

Report = Callable[[str], None]

# A step backwards of the real-time clock that is smaller than this is its ordinary discipline, not a step.
_CLOCK_SLACK_NS = 50_000_000
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_ATTEMPTS = 5
_UPKEEP = Purpose(RowKind.UPKEEP)
# A copy has other inodes and change times: git would read every file anew, and write its index.
_GIT_OF_COPIES = {
    "GIT_CONFIG_COUNT": "2",
    "GIT_CONFIG_KEY_0": "core.checkStat",
    "GIT_CONFIG_VALUE_0": "minimal",
    "GIT_CONFIG_KEY_1": "core.trustctime",
    "GIT_CONFIG_VALUE_1": "false",
}
_EGRESS = "egress"
_HOME = "home"
_PASSED_ON = ("LANG", "LC_ALL", "LC_CTYPE", "TZ")


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """How a sandbox is made.

    `backend` is `auto`, `docker`, `namespace` or `none` (files only); what a session had first stays, unless it's
    named. `image` empty is the session's, else the default one. `environment` is added to what commands get. `limits`
    None are those of the warm sandbox, else the default ones. `idle_seconds` is how long a sandbox without commands
    stays. `runtime` is the engine's, such as runsc, `$WORKBENCH_RUNTIME` where it isn't given. `sharing` is `mounted`, or
    `copied`: then a container engine works on copies of the layers, as one that doesn't share this machine's files must;
    or `plain`, where it can mount no overlay either; `$WORKBENCH_SHARING` where it isn't given. `keep_home` has the home
    directory inside kept with the session, from then on. `egress` is what the commands that are run with these options
    may reach.
    """

    backend: str = "auto"
    image: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    limits: Limits | None = None
    idle_seconds: float = 600
    runtime: str = field(default_factory=lambda: os.environ.get("WORKBENCH_RUNTIME", ""))
    sharing: str = field(default_factory=lambda: os.environ.get("WORKBENCH_SHARING") or "mounted")
    keep_home: bool = False
    egress: Egress = field(default_factory=Egress)


class Mounting:
    """The mounts of one overlay."""

    def __init__(
        self,
        state: StateDirectory,
        directory: WorkspaceDirectory,
        overlay: OverlayDirectory,
        store: CheckpointStore,
        lower: LocalStorage,
        options: SandboxOptions,
    ) -> None:
        self._state = state
        self._directory = directory
        self._overlay = overlay
        self._store = store
        self._lower = lower
        self.options = options
        self.report: Report = lambda _: None
        """Hears what had to be put right on the way."""

    # Starting

    def fits(self, sandbox: KeeperInfo) -> bool:
        """Whether a sandbox is one that the options ask for: by its backend, image, limits, runtime and home."""
        wanted = self.options
        return (
            wanted.backend in ("auto", sandbox.backend)
            and (not wanted.image or images.reference(wanted.image) == sandbox.image)
            and wanted.limits in (None, sandbox.limits)
            and wanted.runtime in ("", sandbox.runtime)
            and (not wanted.keep_home or DEFAULT_HOME in sandbox.targets)
        )

    def require_commands(self) -> None:
        """Raises SandboxError (sandbox_unsupported) where there is to be no sandbox at all."""
        if self.options.backend == "none":
            raise SandboxError(
                "The backend is none, which is for files only: there is no sandbox to run a command in.",
                code="sandbox_unsupported",
                hint="--backend auto takes one that works here.",
            )

    def is_copied(self) -> bool:
        """Whether what is mounted is a copy: until a command has ended, what it wrote isn't in the upper layer here."""
        return any(mount.live and mount.copied for mount in self._overlay.record().mounts)

    async def start(self, report: Report, before: Callable[[], None]) -> KeeperClient:
        """A sandbox over the overlay, started unless another process has just done so.

        `before` runs under the lock, before anything is mounted. Raises SandboxError, OverlayError (overlay_busy),
        CheckpointError, WorkspaceError (workspace_unsupported).
        """
        self.require_commands()
        spec = await self._picked(report)
        lock = await self.lock_or_keeper(timeout=30.0)
        if isinstance(lock, KeeperClient):
            return lock
        try:
            prepare = partial(to_thread.run_sync, self._prepare, spec, report, before)
            return await KeeperClient.start(self._overlay, spec, lock, report, prepare)
        finally:
            lock.close()

    async def lock_or_keeper(self, timeout: float, *, notes: bool = False) -> OverlayLock | KeeperClient:
        """The overlay's lock, or a client as soon as a keeper answers, which holds the lock for as long as it lives.

        One of the two comes, unless another process is at the overlay for longer than `timeout`, in seconds. `notes` as of
        `OverlayDirectory.take_lock`. Raises OverlayError (overlay_busy).
        """
        deadline = time.monotonic() + timeout
        while True:
            with contextlib.suppress(OverlayError):
                return await to_thread.run_sync(partial(self._overlay.take_lock, 0.2, notes=notes))
            client = await KeeperClient.connect(self._overlay.path)
            if client is not None:
                return client
            if time.monotonic() >= deadline:
                raise OverlayError(
                    f"The session's overlay at {self._overlay.path} is in use by another process.",
                    code="overlay_busy",
                    hint="Wait for the other command to end, then try again.",
                )

    async def _picked(self, report: Report) -> SandboxSpec:
        """What to start, with the backend that works here."""
        self._require_files()
        record = self._overlay.record()
        preference = self.options.backend
        # Only ever back to the stronger one by itself, and said: never from docker to less because docker is down.
        if preference == "auto" and (record.backend_asked or record.backend == "docker"):
            preference = record.backend
        image = images.reference(self.options.image or record.image)
        if self.options.sharing not in WAYS_OF_SHARING:
            raise OptionsError(
                f"There is no way of sharing called {self.options.sharing!r}.",
                hint=f"Choose one of {', '.join(WAYS_OF_SHARING)}.",
            )
        spec = await to_thread.run_sync(self._spec, image)
        picked = await pick(preference, spec, self._state.path, report)
        if picked.backend == "docker" and record.backend not in ("", "docker"):
            report(f"using the docker backend again, instead of {record.backend}")
        elif picked.backend != "docker":
            kept = preference != self.options.backend
            why = "this session was given it (--backend names another one)" if kept else picked.why
            report(f"using the {picked.backend} backend: {why}. Compared with docker it has {picked.isolation}")
        elif picked.result.sharing != self.options.sharing:
            report(f"the engine works on {picked.result.way}: {picked.result.reason}")
        begins = not record.image and not self.options.image
        if begins and picked.backend == "docker" and (offered := devcontainer.offered(self._lower)):
            report(offered)
        copied = picked.result.sharing != "mounted"
        return replace(
            spec,
            backend=picked.backend,
            image=picked.image,
            sharing=picked.result.sharing,
            environment={**_GIT_OF_COPIES, **spec.environment} if copied else spec.environment,
            # What doesn't share our files can't share a socket, either: then it's the supervisor's stream.
            egress_path=os.path.join(self._overlay.path, _EGRESS) if self.options.egress and not copied else "",
        )

    def _require_files(self) -> None:
        if problem := filesystems.lower_problem(self._directory.root):
            raise WorkspaceError(
                f"The directory {self._directory.record.root} can't be a workspace: {problem}.",
                code="workspace_unsupported",
                hint="Name a directory on a disk of this machine with -w.",
            )

    def _spec(self, image: str) -> SandboxSpec:
        mounts = [self._workspace_mount(image)]
        if common := repository.common_directory(self._directory.root, self._lower):
            mounts.append(self._git_mount(common))
        uid, gid, groups = _who(self._directory.root)
        home = os.path.join(self._overlay.path, _HOME)
        if self.options.keep_home or os.path.isdir(home):
            mounts.append(_home_mount(home, uid, gid))
        limits = self.options.limits or Limits()
        limits.check()
        return SandboxSpec(
            backend="auto",
            image=image,
            mounts=tuple(mounts),
            uid=uid,
            gid=gid,
            groups=groups,
            environment=self._environment(),
            limits=limits,
            labels={leftovers.STATE_LABEL: self._state.id, leftovers.OVERLAY_LABEL: self._overlay.path},
            idle_seconds=self.options.idle_seconds,
            runtime=self.options.runtime,
            sharing=self.options.sharing,
        )

    def _workspace_mount(self, image: str) -> OverlayMount:
        target = target_for(self._directory.root, image)
        return OverlayMount(self._directory.lower_link, self._overlay.upper_path, self._overlay.work_path, target)

    def _git_mount(self, common: bytes) -> OverlayMount:
        """The common git directory of a linked worktree, as an overlay of its own beside the workspace's."""
        git = self._git_overlay()
        link = os.path.join(git.path, "lower")
        with contextlib.suppress(FileExistsError):
            os.symlink(common, os.fsencode(link))
        return OverlayMount(link, git.upper_path, git.work_path, os.fsdecode(common))

    def _git_overlay(self) -> OverlayDirectory:
        return OverlayDirectory.create(os.path.join(self._overlay.path, "git"), session="git")

    def _git_overlay_or_none(self) -> OverlayDirectory | None:
        try:
            return OverlayDirectory.open(os.path.join(self._overlay.path, "git"))
        except FileNotFoundError:
            return None

    def _environment(self) -> dict[str, str]:
        passed = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
        # Without GIT_OPTIONAL_LOCKS=0 every `git status` inside would copy the index up.
        fixed = {"PATH": _PATH, "HOME": DEFAULT_HOME, "USER": "workbench", "GIT_OPTIONAL_LOCKS": "0"}
        return {"LANG": "C.UTF-8", **passed, **fixed, **self.options.environment}

    def _prepare(self, spec: SandboxSpec, report: Report, before: Callable[[], None]) -> None:
        """Bring the upper to where a mount may begin; the lock is held."""
        self.unmount_leftovers()
        before()
        if spec.backend == "docker":
            leftovers.sweep(self._state.path, self._state.id)
        self._depart_anew("before a mount", report)
        record = self._overlay.record()
        asked = self.options.backend != "auto" or (record.backend_asked and record.backend == spec.backend)
        kind = {"backend": spec.backend, "backend_asked": asked, "image": spec.image}
        self._overlay.save(record.model_copy(update=kind))
        warm.note_mounted(self._overlay.path, self._directory.root, record.git_fingerprint)

    def _depart_anew(self, why: str, report: Report) -> None:
        """Have nothing left that an earlier epoch judges, and both layers agree on what they share."""
        if self._overlay.record().mounts:
            self.take(None, why, offline=True)
        self._overlay.adopt_root(self._lower)
        if (git := self._git_overlay_or_none()) is not None:
            with LocalStorage(os.fsencode(os.path.join(git.path, "lower"))) as lower:
                git.adopt_root(lower)
        self._agree_on_repository(report)

    def begin_epoch(self) -> MountRecord:
        """Have what is written directly from now on judged as if the overlay were mounted at this moment.

        The lock is held, nothing is mounted. Returns what overlay.json now has in `mounts`, alone. Raises CheckpointError,
        OSError, StateError.
        """
        self._depart_anew("before direct changes", lambda _: None)
        begun = MountRecord(
            name="",
            backend="none",
            boot_id=boot_id(),
            epoch_ns=self._overlay.tick(),
            clock_offset_ns=clock_offset_ns(),
            live=False,
        )
        self.set_epoch(begun)
        return begun

    def set_epoch(self, mount: MountRecord) -> None:
        """Have overlay.json name this mount alone; the lock is held, nothing is mounted."""
        self._overlay.save(self._overlay.record().model_copy(update={"mounts": (mount,)}))

    def _agree_on_repository(self, report: Report) -> None:
        """Set aside what the overlay has of the repository where the real one moved on since it was copied up."""
        record = self._overlay.record()
        fingerprint = repository.fingerprint(self._lower)
        if record.git_fingerprint not in ("", fingerprint) and (kept := self.set_repositories_aside()):
            report(
                "the real repository changed since, so what commands did to its .git in the overlay was set aside "
                f"(checkpoint {kept[:12]} keeps it)"
            )
        self._overlay.save(self._overlay.record().model_copy(update={"git_fingerprint": fingerprint}))

    def set_repositories_aside(self) -> str:
        """Drop what the overlay has of the real repositories; the lock is held, nothing is mounted.

        Returns the checkpoint that keeps it, empty where there was nothing. Raises CheckpointError.
        """
        kept = self.empty_git_overlay()
        latest = self._store.latest(self._overlay.record().session)
        if latest is not None:
            rest = self.without_repositories(latest.manifest)
            if len(rest.entries) != len(latest.manifest.entries):
                self.replace_upper(rest, "without the repository")
                kept = latest.commit
        return kept

    def empty_git_overlay(self) -> str:
        """Drop what a linked worktree's git directory holds in the overlay; the checkpoint of it, or nothing."""
        git = self._git_overlay_or_none()
        if git is None:
            return ""
        session = git_session(self._overlay.record().session)
        with git.upper() as upper, LocalStorage(os.fsencode(os.path.join(git.path, "lower"))) as lower:
            if not upper.list(b""):
                return ""
            taken = self._store.take(session, upper, lower, purpose=_UPKEEP, epoch_ns=0, offline=True)
            restore(git.upper_path, upper, _nothing(upper), self._store)
        return taken.commit

    # Scanning and writing the upper

    def take(
        self,
        message_id: str | None,
        label: str,
        *,
        offline: bool,
        purpose: Purpose | None = None,
        previous: Manifest | None = None,
        replaces: bool = False,
        mapped: bool = False,
        scanned: bool = False,
        by_notes: bool = False,
    ) -> Checkpoint:
        """Keep the upper as a checkpoint, for ourselves unless `purpose` says what for.

        `offline` says that the caller holds the lock and nothing is mounted; what mounts left to judge by is then done
        with. Otherwise the sandbox is frozen. `message_id` as in `CheckpointStore.take`, `replaces` says that one of this
        id may be there already, `mapped` and `scanned` as there. `by_notes` spares what nobody noted to have written:
        not for what is kept before something is taken away. Raises CheckpointError.
        """
        record = self._overlay.record()
        if offline and record.root_mode is None:
            # Before its first mount the upper's root isn't yet what will be seen of it.
            record = self._overlay.adopt_root(self._lower)
        touched = self._touched(record) if offline and by_notes else None
        with self._overlay.upper() as upper:
            take = partial(
                self._store.take,
                record.session,
                upper,
                self._lower,
                message_id=message_id,
                label=label,
                purpose=replace(purpose or _UPKEEP, repository=record.git_fingerprint),
                epoch_ns=epoch(record.mounts),
                previous=previous,
                offline=offline,
                replace=replaces,
                mapped=mapped,
                scanned=scanned,
                touched=touched,
            )
            checkpoint = self._persistent(take)
        if offline:
            self._overlay.dirty.begin(self._store.standing(checkpoint))
        if (git := self._git_overlay_or_none()) is not None:
            self._take_git(git, checkpoint, offline=offline, mapped=mapped)
        if offline and record.mounts:
            self._overlay.save(record.model_copy(update={"mounts": ()}))
        return checkpoint

    def _touched(self, record: OverlayRecord) -> frozenset[bytes] | None:
        """What was written since the last checkpoint, where all of it is known. The lock is held, nothing is mounted."""
        known = self._overlay.dirty.known()
        # Of what commands wrote, nothing is. Where nothing was noted there's time to look whether that's so.
        if known is None or not known[1] or any(mount.live for mount in record.mounts):
            return None
        since, paths = known
        return paths if self._store.stands(record.session, since) else None

    def _take_git(self, git: OverlayDirectory, beside: Checkpoint, *, offline: bool, mapped: bool) -> None:
        """Keep what a linked worktree's git directory holds in the overlay, beside a checkpoint of the workspace."""
        with git.upper() as upper, LocalStorage(os.fsencode(os.path.join(git.path, "lower"))) as lower:
            self._store.take(
                git_session(beside.session),
                upper,
                lower,
                message_id=str(beside.number),
                purpose=_UPKEEP,
                epoch_ns=0,
                offline=offline,
                replace=True,
                mapped=mapped,
            )

    def git_beside(self, checkpoint: Checkpoint) -> str | None:
        """The commit of what a linked worktree's git directory held at a checkpoint, empty where that was nothing; None
        where this is no such worktree. Raises CheckpointError (store_corrupt), OSError."""
        if repository.common_directory(self._directory.root, self._lower) is None:
            return None
        try:
            return self._store.find(git_session(checkpoint.session), str(checkpoint.number)).commit
        except CheckpointError as error:
            if error.code != "checkpoint_not_found":
                raise
            return ""

    def restore_git(self, commit: str) -> None:
        """Make the git overlay what `git_beside` said; the lock is held, nothing is mounted. Raises CheckpointError."""
        common = repository.common_directory(self._directory.root, self._lower)
        if not commit or common is None:
            self.empty_git_overlay()
            return
        self._git_mount(common)
        git = self._git_overlay()
        with git.upper() as upper:
            restore(git.upper_path, upper, self._store.get(commit).manifest, self._store)

    def name(self, of: Checkpoint, label: str, purpose: Purpose) -> Checkpoint:
        """Another checkpoint of what `of` was taken of. Raises CheckpointError."""
        session = self._overlay.record().session
        return self._persistent(lambda: self._store.name(session, of, label=label, purpose=purpose))

    def _persistent(self, take: Callable[[], Checkpoint]) -> Checkpoint:
        """Take a checkpoint though others take some at the same moment, or the store turns out to be damaged."""
        for _ in range(_ATTEMPTS):
            try:
                return take()
            except CheckpointError as error:
                if error.code == "store_corrupt":
                    self._start_afresh(error)
                elif error.code != "checkpoint_raced":
                    raise
        return take()

    def _start_afresh(self, error: CheckpointError) -> None:
        """Go on in a fresh store with all checkpoints that are whole, and say so."""
        aside, found = upkeep.start_afresh(self._store)
        lost = f", {len(found.broken)} can't be restored" if found.broken else ""
        self.report(
            f"{error.message} It was set aside as {aside}; {found.whole} checkpoints are whole and were taken over{lost}"
        )

    def replace_upper(
        self, target: Manifest, label: str, purpose: Purpose | None = None, *, current: Manifest | None = None
    ) -> Checkpoint:
        """Make the upper equal to `target`, and keep that as a checkpoint; the lock is held, nothing is mounted.

        `current` as in `restore`, `purpose` as in `take`. Raises CheckpointError.
        """
        restored = self.restore_upper(target, current=current)
        return self.take(None, label, offline=True, purpose=purpose, previous=restored, scanned=True)

    def restore_upper(self, target: Manifest, *, current: Manifest | None = None) -> Manifest:
        """As `replace_upper`, without the checkpoint, which has to follow with what this returns as `previous`."""
        self._overlay.dirty.forget()
        with self._overlay.upper() as upper:
            return restore(self._overlay.upper_path, upper, target, self._store, current=current)

    def note_replaced(self, target: Manifest, *, is_empty: bool) -> None:
        """Say that the upper is another one than the sandbox left; `is_empty`: nothing of before stands any more."""
        record = self._overlay.record()
        if is_empty:
            self._overlay.save(record.model_copy(update={"root_mode": None, "git_fingerprint": ""}))
            self._overlay.adopt_root(self._lower)
        elif self.without_repositories(target) is not target:
            # Only a part of the repository as it is now was let in again.
            fingerprint = repository.fingerprint(self._lower)
            self._overlay.save(record.model_copy(update={"git_fingerprint": fingerprint}))

    def root_departs(self, manifest: Manifest) -> bool:
        """Whether an upper's root has another mode than the one it was given from the real directory's."""
        return self._overlay.record().root_mode not in (None, manifest.entries[b""].mode)

    def note_root_mode(self, mode: int) -> None:
        """Say that the root's mode landed: what the upper's root departs from is this one now."""
        self._overlay.save(self._overlay.record().model_copy(update={"root_mode": mode}))

    @property
    def is_restore_pending(self) -> bool:
        """Whether a process died on the way of making the upper equal to a manifest."""
        return pending(self._overlay.upper_path) is not None

    def complete(self) -> None:
        """Bring such a restore to its end; the lock is held, nothing is mounted. As `replace_upper`."""
        target = pending(self._overlay.upper_path)
        if target is not None:
            self.replace_upper(target, "after a crash")

    def nothing(self) -> Manifest:
        """The manifest of the upper without anything in it."""
        with self._overlay.upper() as upper:
            return _nothing(upper)

    def without_repositories(self, manifest: Manifest) -> Manifest:
        """What is left of an upper without its part of the real repositories."""
        return repository.without_repositories(manifest, self._lower)

    @property
    def epoch(self) -> int:
        """The time in ns from which a change of the real workspace may not be seen by what is mounted, 0 for any time."""
        return epoch(self._overlay.record().mounts) or 0

    def lower_moved_on(self, path: bytes, since: int | None = None) -> bool:
        """Whether the real workspace changed, anywhere along a path, since the overlay was mounted, or `since` a time.

        The kernel doesn't promise what a mount shows of a lower that changes; what is older than the mount it shows.
        """
        since = self.epoch if since is None else since
        names = paths.parts(path)
        for depth in range(len(names) + 1):
            try:
                if self._lower.stat(paths.join(*names[:depth])).ctime_ns >= since:
                    return True
            except (FileNotFoundError, NotADirectoryError):
                return False
        return False

    # Locks and leftovers

    @asynccontextmanager
    async def offline(self, timeout: float) -> AsyncIterator[None]:
        """Hold the overlay's lock, with nothing mounted. Raises OverlayError (overlay_busy), SandboxError.

        Whatever then writes the upper is `restore_upper`, or notes it.
        """
        lock = await to_thread.run_sync(partial(self._overlay.take_lock, timeout, notes=True))
        try:
            await to_thread.run_sync(self.unmount_leftovers)
            yield
        finally:
            lock.close()

    def unmount_leftovers(self) -> None:
        """Remove whatever a killed keeper left mounted; the lock is held. Raises SandboxError where it can't."""
        leftovers.unmount(self._overlay, self._state.id)


def _home_mount(directory: str, uid: int, gid: int) -> OverlayMount:
    """A session's own home directory, made where there's none: an overlay over nothing, so that any backend can have it."""
    os.makedirs(directory, mode=0o700, exist_ok=True)
    lower, upper, work = (os.path.join(directory, name) for name in ("lower", "upper", "work"))
    for path in (lower, upper, work):
        with contextlib.suppress(FileExistsError):
            os.mkdir(path, 0o700)
            if os.geteuid() == 0:
                os.chown(path, uid, gid)
    return OverlayMount(lower, upper, work, DEFAULT_HOME)


def git_session(session: str) -> str:
    """What the checkpoints of a session's git overlay are kept under: no session can be called that."""
    return f"{session}/git"


def _nothing(upper: LocalUpper) -> Manifest:
    """The manifest of an upper with nothing in it."""
    root = os.fstat(upper.root_fd)
    mode, times = root.st_mode & 0o7777, (root.st_mtime_ns, root.st_ctime_ns)
    return Manifest({b"": Entry(b"", Kind.DIR, mode, root.st_uid, root.st_gid, 0, *times, root.st_ino)})


def epoch(mounts: tuple[MountRecord, ...]) -> int | None:
    """The epoch that a scan judges new paths by: the earliest of its mounts, 0 where one isn't known, None without any.

    A mount of another boot, or before a step backwards of the clock, has no epoch that could be trusted.
    """
    if not mounts:
        return None
    boot, offset = boot_id(), clock_offset_ns()
    for mount in mounts:
        if mount.boot_id != boot or offset < mount.clock_offset_ns - _CLOCK_SLACK_NS:
            return 0
    return min(mount.epoch_ns for mount in mounts)


def boot_id() -> str:
    """The kernel's name for this boot."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as stream:
        return stream.read().strip()


def clock_offset_ns() -> int:
    """The real-time clock less the boot-time clock: constant but for steps of the former."""
    return time.clock_gettime_ns(time.CLOCK_REALTIME) - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def owner_of_new(root: bytes) -> tuple[int, int] | None:
    """Who gets what is written directly, so that commands may change it as well; None where that's the caller anyway."""
    return _who(root)[:2] if os.geteuid() == 0 else None


def _who(root: bytes) -> tuple[int, int, tuple[int, ...]]:
    """The user, group and supplementary groups commands run as: the caller's, or the workspace owner's for root.

    Never in root's group or docker's, which would be as good as root outside.
    """
    uid, gid, groups = os.geteuid(), os.getegid(), os.getgroups()
    if uid == 0:
        found = os.stat(root, follow_symlinks=False)
        uid, gid, groups = found.st_uid, found.st_gid, []
        with contextlib.suppress(KeyError):
            groups = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    refused = {0, gid}
    with contextlib.suppress(KeyError):
        refused.add(grp.getgrnam("docker").gr_gid)
    return uid, gid, tuple(sorted(set(groups) - refused))
