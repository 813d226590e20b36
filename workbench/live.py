"""An overlay on disk that may be written at any time: directly while nothing is mounted, else through its sandbox."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import mmap
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, BinaryIO, TypeVar, cast

from anyio import to_thread
from anyio.from_thread import start_blocking_portal

from workbench.errors import OverlayError, SandboxError
from workbench.inside import Inside
from workbench.mounting import Mounting, owner_of_new
from workbench.protocol.records import MountRecord
from workbench.sandbox import runtime
from workbench.sandbox.client import KeeperClient
from workbench.vfs import handles, paths
from workbench.vfs.changed_mark import mark_changed
from workbench.vfs.local import LocalStorage
from workbench.vfs.merged import Fitting
from workbench.vfs.overlay import Overlay
from workbench.vfs.overlay_lock import OverlayLock
from workbench.vfs.session import OverlayDirectory
from workbench.vfs.storage import Kind, Stat

T = TypeVar("T")

_PATIENCE_S = 0.2
_LOCK_TIMEOUT_S = 30.0
_NEW_FILE = 0o666


class LiveOverlay(Overlay):
    """The merged view of a workspace's overlay, for reading and writing, whether a sandbox runs or not.

    Each change takes the overlay's lock for itself, or is made in the sandbox where one runs; it may so be called from
    anywhere, a thread of an event loop too, but blocks. A file opened for writing is kept on this machine's disk and put
    in place, whole, when it's closed (one opened `ab` is added to); a new one is there, empty, from the start.

    What a later commit takes for the state that a change departed from is the real workspace as it was when the first
    change since the last checkpoint was made; or, of a file that was read through this very object, as it was read.

    Raises as `Overlay`, and OverlayError (overlay_busy), SandboxError, CheckpointError. Extended attributes can't be set
    while a sandbox runs: OSError(ENOTSUP).
    """

    def __init__(
        self,
        lower: LocalStorage,
        directory: OverlayDirectory,
        mounting: Mounting,
        complete: Callable[[], None],
    ) -> None:
        """`complete` is called with the lock held, before a change, to finish what a crash cut short."""
        self._layer = directory.upper()
        super().__init__(lower, self._layer, scratch=os.fsencode(directory.record().scratch))
        self._directory = directory
        self._mounting = mounting
        self._complete = complete
        self._owner = owner_of_new(os.readlink(b"/proc/self/fd/%d" % lower.root_fd))
        self._departures = _Departures(lower, directory, mounting)

    def close(self) -> None:
        """Let go of the layer's directory; safe to call again."""
        self._layer.close()

    # Reading

    def stat(self, path: bytes) -> Stat:
        """As `Overlay.stat`; what changed under a running sandbox as commands see it."""
        if self._is_stale(path):
            return self._in_sandbox(path, lambda inside: inside.stat(path), lambda: super(LiveOverlay, self).stat(path))
        return super().stat(path)

    def read_bytes(self, path: bytes) -> bytes:
        """As `Overlay.read_bytes`; what changed under a running sandbox as commands see it."""
        self._departures.note(path)
        if self._is_stale(path):
            return self._in_sandbox(
                path, lambda inside: inside.read_bytes(path), lambda: super(LiveOverlay, self).read_bytes(path)
            )
        return super().read_bytes(path)

    def open(self, path: bytes, mode: str = "rb") -> BinaryIO:
        """As `Overlay.open`, but for what the class says of writing."""
        if mode == "rb":
            self._departures.note(path)
            return io.BytesIO(self.read_bytes(path)) if self._is_stale(path) else super().open(path)
        asked = handles.open_mode(mode)
        if asked.create:
            self.create(path, exclusive=asked.exclusive)
        draft = _Draft(path, mode, self.append if asked.append and not asked.read else self.write_bytes)
        try:
            if not asked.truncate and not asked.exclusive and not draft.adds:
                with self.open(path) as file:
                    draft.fill(file)
        except BaseException:
            draft.forget()
            raise
        return handles.buffered(draft, asked)

    def kind(self, path: bytes) -> Kind | None:
        """As `Overlay.kind`; what changed under a running sandbox as commands see it."""
        if not self._is_stale(path):
            return super().kind(path)
        try:
            return self.stat(path).kind
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, path: bytes) -> builtins.list[bytes]:
        """As `Overlay.list`."""
        self._catch_up()
        return super().list(path)

    def xattrs(self, path: bytes) -> dict[bytes, bytes]:
        """As `Overlay.xattrs`."""
        self._catch_up()
        return super().xattrs(path)

    def entries(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """As `Overlay.entries`."""
        self._catch_up()
        return super().entries(path)

    def walk(self, path: bytes = b"") -> Iterator[tuple[bytes, builtins.list[bytes], builtins.list[bytes]]]:
        """As `Overlay.walk`, as it is at the start."""
        self._catch_up()
        return super().walk(path)

    def find(self, path: bytes = b"", *, kind: Kind | None = None) -> Iterator[bytes]:
        """As `Overlay.find`, as it is at the start."""
        self._catch_up()
        return super().find(path, kind=kind)

    def glob(self, pattern: bytes, fitting: Fitting | None = None) -> builtins.list[bytes]:
        """As `Overlay.glob`."""
        self._catch_up()
        return super().glob(pattern, fitting)

    def readlink(self, path: bytes) -> bytes:
        """As `Overlay.readlink`."""
        self._catch_up()
        return super().readlink(path)

    def _catch_up(self) -> None:
        """Have in the layer here what running commands have written into a copy of it."""

        async def read_out(inside: Inside) -> None:
            await inside.read_out()

        if runtime.find_socket(self._directory.path) is not None and self._mounting.is_copied():
            self._in_sandbox(b"", read_out, lambda: None)

    def _is_stale(self, path: bytes) -> bool:
        """Whether only the sandbox can tell what commands see at a path."""
        if runtime.find_socket(self._directory.path) is None:
            return False
        if self._mounting.lower_moved_on(path):
            mark_changed(self._directory.path)
            return True
        return self._mounting.is_copied()

    # Writing

    def write_bytes(self, path: bytes, data: bytes) -> None:
        """As `Overlay.write_bytes`."""
        self._change((path,), lambda overlay: overlay.write_bytes(path, data), lambda box: box.write_bytes(path, data))

    def append(self, path: bytes, data: bytes) -> None:
        """As `Overlay.append`."""
        self._change((path,), lambda overlay: overlay.append(path, data), lambda box: box.append(path, data))

    def create(self, path: bytes, mode: int = _NEW_FILE, *, exclusive: bool = True) -> None:
        """As `Overlay.create`."""
        self._change(
            (path,),
            lambda overlay: overlay.create(path, mode, exclusive=exclusive),
            lambda box: box.create(path, mode, exclusive=exclusive),
        )

    def mkdir(self, path: bytes, mode: int = 0o777) -> None:
        """As `Overlay.mkdir`."""
        self._change((path,), lambda overlay: overlay.mkdir(path, mode), lambda box: box.mkdir(path, mode))

    def makedirs(self, path: bytes, mode: int = 0o777, *, exist_ok: bool = False) -> None:
        """As `Overlay.makedirs`."""
        self._change(
            (path,),
            lambda overlay: overlay.makedirs(path, mode, exist_ok=exist_ok),
            lambda box: box.makedirs(path, mode, exist_ok=exist_ok),
        )

    def rmdir(self, path: bytes) -> None:
        """As `Overlay.rmdir`."""
        self._change((path,), lambda overlay: overlay.rmdir(path), lambda box: box.rmdir(path))

    def unlink(self, path: bytes) -> None:
        """As `Overlay.unlink`."""
        self._change((path,), lambda overlay: overlay.unlink(path), lambda box: box.unlink(path))

    def remove_tree(self, path: bytes) -> None:
        """As `Overlay.remove_tree`; in a sandbox in as many steps as it has entries."""
        self._catch_up()
        self._change((path,), lambda overlay: overlay.remove_tree(path), lambda box: box.remove_tree(path))

    def rename(self, src: bytes, dst: bytes, *, replace: bool = True) -> None:
        """As `Overlay.rename`."""
        self._catch_up()
        self._change(
            (src, dst),
            lambda overlay: overlay.rename(src, dst, replace=replace),
            lambda box: box.rename(src, dst, replace=replace),
        )

    def copy(self, src: bytes, dst: bytes, *, replace: bool = True) -> None:
        """As `Overlay.copy`."""
        self._catch_up()
        self._change(
            (dst,),
            lambda overlay: overlay.copy(src, dst, replace=replace),
            lambda box: box.copy(src, dst, replace=replace),
        )

    def symlink(self, target: bytes, path: bytes) -> None:
        """As `Overlay.symlink`."""
        self._change((path,), lambda overlay: overlay.symlink(target, path), lambda box: box.symlink(target, path))

    def link(self, src: bytes, dst: bytes) -> None:
        """As `Overlay.link`."""
        self._change((src, dst), lambda overlay: overlay.link(src, dst), lambda box: box.link(src, dst))

    def chmod(self, path: bytes, mode: int) -> None:
        """As `Overlay.chmod`."""
        self._change((path,), lambda overlay: overlay.chmod(path, mode), lambda box: box.chmod(path, mode))

    def utime(self, path: bytes, mtime_ns: int | None = None, *, atime_ns: int | None = None) -> None:
        """As `Overlay.utime`."""
        mtime = time.time_ns() if mtime_ns is None else mtime_ns
        atime = mtime if atime_ns is None else atime_ns
        self._change(
            (path,),
            lambda overlay: overlay.utime(path, mtime, atime_ns=atime),
            lambda box: box.utime(path, mtime, atime),
        )

    def setxattr(self, path: bytes, name: bytes, value: bytes) -> None:
        """As `Overlay.setxattr`."""
        self._change((path,), lambda overlay: overlay.setxattr(path, name, value), lambda _: _refuse(path))

    def removexattr(self, path: bytes, name: bytes) -> None:
        """As `Overlay.removexattr`."""
        self._change((path,), lambda overlay: overlay.removexattr(path, name), lambda _: _refuse(path))

    # The two ways

    def _change(
        self, at: tuple[bytes, ...], direct: Callable[[Overlay], None], boxed: Callable[[Inside], Awaitable[None]]
    ) -> None:
        for path in at:
            paths.parts(path)
        mounted = runtime.find_socket(self._directory.path) is not None
        try:
            lock = self._directory.take_lock(0.0 if mounted else _PATIENCE_S, notes=True)
        except OverlayError:
            with _said_of(at[0]), start_blocking_portal() as portal:
                portal.call(self._wait_and_change, at, direct, boxed)
        else:
            self._directly(lock, at, direct)

    async def _wait_and_change(
        self, at: tuple[bytes, ...], direct: Callable[[Overlay], None], boxed: Callable[[Inside], Awaitable[None]]
    ) -> None:
        while True:
            found = await KeeperClient.connect(self._directory.path) or await self._mounting.lock_or_keeper(
                _LOCK_TIMEOUT_S, notes=True
            )
            if not isinstance(found, KeeperClient):
                await to_thread.run_sync(self._directly, found, at, direct)
                return
            try:
                async with found:
                    await boxed(Inside(found, self))
                return
            except SandboxError as error:
                # One that is just being stopped refuses whatever comes, and frees the lock when it's gone.
                if error.code != "sandbox_busy" or runtime.find_socket(self._directory.path) is not None:
                    raise

    def _directly(self, lock: OverlayLock, at: tuple[bytes, ...], direct: Callable[[Overlay], None]) -> None:
        with contextlib.closing(lock):
            self._mounting.unmount_leftovers()
            self._complete()
            self._departures.begin(at)
            self._directory.dirty.note(at)
            with self._directory.upper(owner=self._owner) as upper:
                direct(Overlay(self.lower, upper, scratch=self.scratch))

    def _in_sandbox(self, path: bytes, ask: Callable[[Inside], Awaitable[T]], otherwise: Callable[[], T]) -> T:
        async def connected() -> T:
            client = await KeeperClient.connect(self._directory.path)
            if client is None:
                return await to_thread.run_sync(otherwise)
            async with client:
                return await ask(Inside(client, self))

        with _said_of(path), start_blocking_portal() as portal:
            return portal.call(connected)


class _Departures:
    """What direct changes depart from: which epoch the next scan judges them by, and what of the lower was read.

    Whoever writes directly knows what a mount doesn't tell: which state of a file it has seen. One that has changed since
    it was read is no base, and one that was read anew is, though it changed since the first change of all.
    """

    def __init__(self, lower: LocalStorage, directory: OverlayDirectory, mounting: Mounting) -> None:
        self._lower = lower
        self._directory = directory
        self._mounting = mounting
        self._seen: dict[bytes, tuple[int, int]] = {}
        self._epoch: MountRecord | None = None

    def note(self, path: bytes) -> None:
        """A file is about to be read."""
        stat = self._stat(path)
        if stat is None:
            self._seen.pop(path, None)
        else:
            self._seen[path] = (stat.inode, stat.ctime_ns)

    def begin(self, at: tuple[bytes, ...]) -> None:
        """Something is about to be changed at these paths, or below; the lock is held, nothing is mounted."""
        mounts = self._directory.record().mounts
        read = [seen for seen in self._seen if any(seen == path or paths.is_below(seen, path) for path in at)]
        now = {path: self._stat(path) for path in read}
        stale = [stat for path, stat in now.items() if stat is not None and self._seen[path] != _identity(stat)]
        ours = self._epoch is not None and mounts == (self._epoch,)
        anew = read and not stale and any(self._mounting.lower_moved_on(path) for path in read)
        if not ours or anew:
            self._epoch = self._mounting.begin_epoch()
        assert self._epoch is not None
        since = min([self._epoch.epoch_ns, *(stat.ctime_ns for stat in stale)])
        if since < self._epoch.epoch_ns:
            self._epoch = self._epoch.model_copy(update={"epoch_ns": since})
            self._mounting.set_epoch(self._epoch)
        # From now on the upper has them, and the next scan their bases.
        for path in read:
            self._seen.pop(path, None)

    def _stat(self, path: bytes) -> Stat | None:
        try:
            return self._lower.stat(path)
        except OSError:
            # What can't be looked at isn't copied up either.
            return None


def _identity(stat: Stat) -> tuple[int, int]:
    return stat.inode, stat.ctime_ns


class _Draft(io.FileIO):
    """A file on its way: nameless on this machine's disk, and put in place when it's closed, if anything was written."""

    def __init__(self, path: bytes, mode: str, put: Callable[[bytes, bytes], None]) -> None:
        asked = handles.open_mode(mode)
        with tempfile.TemporaryFile("w+b", buffering=0) as kept:
            super().__init__(os.dup(kept.fileno()), "r+b")
        self._path = path
        self._asked = asked
        self._put = put
        self._changed = asked.truncate
        self.adds = asked.append and not asked.read

    def fill(self, file: BinaryIO) -> None:
        """Take over what is there."""
        while data := file.read(1 << 20):
            super().write(data)
        self.seek(0)

    def readable(self) -> bool:
        return self._asked.read

    def writable(self) -> bool:
        return self._asked.write

    def write(self, data: Any) -> int | None:  # type: ignore[override]
        if self._asked.append:
            self.seek(0, os.SEEK_END)
        self._changed = True
        return super().write(data)

    def truncate(self, size: int | None = None) -> int:
        self._changed = True
        return super().truncate(size)

    def forget(self) -> None:
        """Close it, and leave everything as it was."""
        self._changed = False
        self.close()

    def close(self) -> None:
        if self.closed:
            return
        try:
            if self._changed:
                with self._content() as data:
                    self._put(self._path, data)
        finally:
            super().close()

    @contextlib.contextmanager
    def _content(self) -> Iterator[bytes]:
        if not os.fstat(self.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(self.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            yield cast(bytes, view)


@contextlib.contextmanager
def _said_of(path: bytes) -> Iterator[None]:
    """Have what the sandbox refused said of the path as it is, in bytes."""
    try:
        yield
    except OSError as error:
        raise paths.error(error.errno or errno.EIO, path) from error


async def _refuse(path: bytes) -> None:
    raise paths.error(errno.ENOTSUP, path)
