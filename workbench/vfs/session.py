"""The directory of one overlay: its record, its layers, its lock, and its filesystem's clock."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat as stat_module
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workbench.errors import OverlayError, StateError
from workbench.protocol.records import MountRecord, OverlayRecord
from workbench.vfs import overlay_lock, paths
from workbench.vfs.dirty import DirtyPaths
from workbench.vfs.local import LocalStorage
from workbench.vfs.overlay_lock import OverlayLock
from workbench.vfs.statefile import read_json, write_json
from workbench.vfs.upper import LocalUpper

_RECORD = "overlay.json"
_LOCK_POLL = 0.02
_TICK_POLL = 0.0005
_TICK_LIMIT = 10.0
"""Seconds. Clocks of filesystems tick every 1 to 10 ms; of old formats every one or two seconds."""

_ACLS = (b"system.posix_acl_access", b"system.posix_acl_default")


def scratch_name(is_taken: Callable[[bytes], bool]) -> bytes:
    """The name of a new overlay's scratch directory: `_notes`, or the next one that the lower layer doesn't have."""
    # Bounded, since a storage may answer to every name.
    names = (b"_notes", *(b"_notes-%d" % number for number in range(2, 100)))
    return next((name for name in names if not is_taken(name)), names[-1])


class OverlayDirectory:
    """`overlays/<session>/` on disk: `overlay.json`, `upper/`, `work/` and `lock`. Holds no descriptor."""

    def __init__(self, path: str) -> None:
        """Name it; use `create` or `open`."""
        self.path = path
        self.upper_path = os.path.join(path, "upper")
        self.work_path = os.path.join(path, "work")
        self._lock_path = os.path.join(path, overlay_lock.NAME)
        self._record_path = os.path.join(path, _RECORD)
        self.dirty = DirtyPaths(path)
        """What was written in the upper layer since its last checkpoint, as far as that's known."""

    @classmethod
    def create(cls, path: str, session: str, scratch: str = "_notes", timeout: float = 10.0) -> OverlayDirectory:
        """Make an overlay's directory (mode 0700), or complete one that a killed process left.

        An overlay that is there already is opened as it is; one whose record was lost gets another, with a mount of which
        nothing is known. `timeout` is how many seconds to wait for another process
        that is making it. Raises OSError, OverlayError (overlay_busy).
        """
        overlay = cls(path)
        os.makedirs(path, mode=0o700, exist_ok=True)
        if os.path.lexists(overlay._record_path):
            return overlay
        with overlay.lock(timeout):
            # The record comes last: where it stands, everything does.
            if not os.path.lexists(overlay._record_path):
                for layer in (overlay.upper_path, overlay.work_path):
                    os.makedirs(layer, mode=0o700, exist_ok=True)
                record = OverlayRecord(session=session, scratch=scratch)
                if os.listdir(overlay.upper_path) or os.listdir(overlay.work_path):
                    # It was mounted before, and its record is lost: nothing is known of when, and what it's mounted on.
                    lost = MountRecord(name="", backend="", boot_id="")
                    record = record.model_copy(update={"mounts": (lost,), "git_fingerprint": "lost"})
                overlay.save(record)
        return overlay

    @classmethod
    def open(cls, path: str) -> OverlayDirectory:
        """An overlay's directory that exists. Raises FileNotFoundError where there is none, OSError."""
        if not os.path.isdir(os.path.join(path, "upper")):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return cls(path)

    def record(self) -> OverlayRecord:
        """What `overlay.json` says.

        Raises OSError, and StateError (state_corrupt) where it can't be read and was set aside, or isn't there.
        """
        try:
            return read_json(self._record_path, OverlayRecord)
        except FileNotFoundError as error:
            raise StateError(
                f"The overlay at {paths.display(os.fsencode(self.path))} has no {_RECORD}.",
                hint="Its files are untouched. End its sandbox with 'workbench stop', then try again.",
            ) from error

    def save(self, record: OverlayRecord) -> None:
        """Replace `overlay.json`, durably. Only for the lock's holder. Raises OSError."""
        write_json(self._record_path, record)

    def upper(self, *, owner: tuple[int, int] | None = None) -> LocalUpper:
        """The upper layer, which the caller closes; only the lock's holder writes in it.

        `owner` as of `LocalUpper`. Raises OSError.
        """
        return LocalUpper(os.fsencode(self.upper_path), work=os.fsencode(self.work_path), owner=owner)

    @contextmanager
    def lock(self, timeout: float = 0.0) -> Iterator[OverlayLock]:
        """Hold the overlay's lock: flock(2) on `lock`, exclusive.

        `timeout` is in seconds, 0 tries once. What the holder writes in the upper layer isn't known of. Raises OverlayError
        (overlay_busy) where another holds it, OSError.
        """
        held = self.take_lock(timeout)
        try:
            yield held
        finally:
            held.close()

    def take_lock(self, timeout: float = 0.0, *, notes: bool = False) -> OverlayLock:
        """As `lock`, for the caller to close, or to leave to a child.

        `notes` promises to note in `dirty` whatever is written, before it is. Raises as `lock`.
        """
        deadline = time.monotonic() + timeout
        while True:
            held = self._try_lock(notes=notes)
            if held is not None:
                return held
            if time.monotonic() >= deadline:
                raise OverlayError(
                    f"The overlay at {paths.display(os.fsencode(self.path))} is in use by another process.",
                    code="overlay_busy",
                    hint="Wait for it to end, or stop the sandbox with 'workbench stop'.",
                )
            time.sleep(_LOCK_POLL)

    def is_locked(self) -> bool:
        """Whether somebody holds the lock at this moment; nothing is written. Raises OSError."""
        try:
            fd = os.open(self._lock_path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(fd)
        return False

    def _try_lock(self, *, notes: bool) -> OverlayLock | None:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._lock_path, flags, 0o600)
        try:
            if overlay_lock.take(self._lock_path, fd):
                if not notes:
                    self.dirty.forget()
                return OverlayLock(fd)
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)
        return None

    def adopt_root(self, lower: LocalStorage) -> OverlayRecord:
        """Give the upper's root the mode, group, owner (where permitted) and ACLs of the lower's: it's what's shown.

        Done at the first mount, and later only while the sandbox hasn't changed the mode. Only for the lock's holder,
        with nothing mounted. Returns the record as it now is on disk. Raises OSError, StateError.
        """
        record = self.record()
        source = os.fstat(lower.root_fd)
        mode = stat_module.S_IMODE(source.st_mode)
        with self.upper() as upper:
            target = os.fsencode(f"/proc/self/fd/{upper.root_fd}")
            current = stat_module.S_IMODE(os.fstat(upper.root_fd).st_mode)
            if record.root_mode is not None and current != record.root_mode:
                return record
            _copy_owner(source, target)
            _copy_acls(os.fsencode(f"/proc/self/fd/{lower.root_fd}"), target)
            # After the owner: chown takes setgid away.
            os.chmod(target, mode)
            # A set-gid bit is refused to who isn't in the group.
            given = stat_module.S_IMODE(os.fstat(upper.root_fd).st_mode)
            if record.root_mode is None:
                os.utime(target, ns=(source.st_atime_ns, source.st_mtime_ns))
        record = record.model_copy(update={"root_mode": given})
        self.save(record)
        return record

    def tick(self) -> int:
        """As the function `tick`, of this directory."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            return tick(fd)
        finally:
            os.close(fd)


def tick(dir_fd: int) -> int:
    """Wait until the clock of a directory's filesystem has moved on, by a few milliseconds as a rule.

    That clock is not the process's: it's coarser, and behind. Whatever was changed before the call carries a ctime that
    is less than the one returned; whatever is changed after it, one that isn't. Returns it in ns, the ctime of a file
    made for it. Raises OSError, and StateError (state_forbidden) where the clock stands still.
    """
    first = _probe(dir_fd)
    deadline = time.monotonic() + _TICK_LIMIT
    while True:
        now = _probe(dir_fd)
        if now > first:
            return now
        if time.monotonic() >= deadline:
            raise StateError(
                "The clock of the state directory's filesystem stands still, so changes can't be told apart.",
                code="state_forbidden",
                hint="Put the state directory on a local filesystem (set WORKBENCH_STATE).",
            )
        time.sleep(_TICK_POLL)


def _probe(dir_fd: int) -> int:
    name = f".probe-{secrets.token_hex(8)}"
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    try:
        return os.fstat(fd).st_ctime_ns
    finally:
        os.close(fd)
        os.unlink(name, dir_fd=dir_fd)


def _copy_owner(source: os.stat_result, target: bytes) -> None:
    owner = source.st_uid if os.geteuid() == 0 else -1
    try:
        os.chown(target, owner, source.st_gid)
    except PermissionError:
        # The caller isn't in the group: the files are the caller's own, who may do with them what owners may.
        if owner != -1:
            raise


def _copy_acls(source: bytes, target: bytes) -> None:
    for name in _ACLS:
        try:
            value = os.getxattr(source, name)
        except OSError as error:
            if error.errno not in (errno.ENODATA, errno.EOPNOTSUPP):
                raise
            continue
        os.setxattr(target, name, value)
