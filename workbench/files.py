"""The files of a workspace's merged view, in calls that can be awaited: each is one of `Overlay` in a thread of its own."""

from __future__ import annotations

import builtins

from anyio import AsyncFile, to_thread, wrap_file

from workbench.vfs.overlay import Overlay
from workbench.vfs.storage import Kind, Stat


class Files:
    """What a tool needs of a workspace's files. Paths are bytes relative to the root; no symlink is followed.

    Each call raises what the method of `view` that it stands for raises: OSError with errno and path, OptionsError for an
    impossible path, OverlayError, and of a live overlay SandboxError and CheckpointError. A change that has begun is
    brought to its end before a cancellation comes through.
    """

    def __init__(self, view: Overlay) -> None:
        self.view = view

    # Looking

    async def stat(self, path: bytes) -> Stat:
        """An entry's metadata, of a symlink itself."""
        return await to_thread.run_sync(lambda: self.view.stat(path))

    async def kind(self, path: bytes) -> Kind | None:
        """What is there, None where nothing is."""
        return await to_thread.run_sync(lambda: self.view.kind(path))

    async def list(self, path: bytes) -> builtins.list[tuple[bytes, Kind]]:
        """The names in a directory with their kinds, sorted bytewise, without hidden ones."""
        return await to_thread.run_sync(lambda: self.view.entries(path))

    async def walk(self, path: bytes = b"") -> builtins.list[tuple[bytes, Kind]]:
        """Every path below a directory with its kind, a directory before what is in it, without hidden ones."""
        return await to_thread.run_sync(lambda: _walk(self.view, path))

    async def glob(self, pattern: bytes) -> builtins.list[bytes]:
        """The paths that fit a pattern, as `MergedView.glob`."""
        return await to_thread.run_sync(lambda: self.view.glob(pattern))

    async def readlink(self, path: bytes) -> bytes:
        """A symlink's target."""
        return await to_thread.run_sync(lambda: self.view.readlink(path))

    # Content

    async def read(self, path: bytes, *, offset: int = 0, length: int | None = None) -> bytes:
        """A file's content, or `length` bytes of it from `offset`."""
        if not offset and length is None:
            return await to_thread.run_sync(lambda: self.view.read_bytes(path))

        def part() -> bytes:
            with self.view.open(path) as file:
                file.seek(offset)
                return file.read(-1 if length is None else length)

        return await to_thread.run_sync(part)

    async def open(self, path: bytes, mode: str = "rb") -> AsyncFile[bytes]:
        """A file, to be read or written in pieces; `mode` as of `LiveOverlay.open`."""
        return wrap_file(await to_thread.run_sync(lambda: self.view.open(path, mode)))

    async def write(self, path: bytes, data: bytes) -> None:
        """Put a file's content in place, whole; its mode stays."""
        await to_thread.run_sync(lambda: self.view.write_bytes(path, data))

    async def append(self, path: bytes, data: bytes) -> None:
        """Add to the end of a file, made where there is none."""
        await to_thread.run_sync(lambda: self.view.append(path, data))

    async def create(self, path: bytes, *, mode: int = 0o666) -> None:
        """Make an empty file where nothing is. FileExistsError where something is."""
        await to_thread.run_sync(lambda: self.view.create(path, mode))

    # Changing

    async def mkdir(self, path: bytes, mode: int = 0o777) -> None:
        """Make a directory."""
        await to_thread.run_sync(lambda: self.view.mkdir(path, mode))

    async def makedirs(self, path: bytes, *, exist_ok: bool = False) -> None:
        """Make a directory, and those above it that aren't there."""
        await to_thread.run_sync(lambda: self.view.makedirs(path, exist_ok=exist_ok))

    async def unlink(self, path: bytes) -> None:
        """Remove anything but a directory."""
        await to_thread.run_sync(lambda: self.view.unlink(path))

    async def rmdir(self, path: bytes) -> None:
        """Remove an empty directory."""
        await to_thread.run_sync(lambda: self.view.rmdir(path))

    async def remove_tree(self, path: bytes) -> None:
        """Remove a directory with all that is in it, or any other entry."""
        await to_thread.run_sync(lambda: self.view.remove_tree(path))

    async def rename(self, src: bytes, dst: bytes, *, replace: bool = True) -> None:
        """Move an entry to another path."""
        await to_thread.run_sync(lambda: self.view.rename(src, dst, replace=replace))

    async def copy(self, src: bytes, dst: bytes, *, replace: bool = True) -> None:
        """Copy a file, a symlink, or a directory with all that is in it."""
        await to_thread.run_sync(lambda: self.view.copy(src, dst, replace=replace))

    async def symlink(self, target: bytes, path: bytes) -> None:
        """Make a symlink at `path`."""
        await to_thread.run_sync(lambda: self.view.symlink(target, path))

    async def link(self, src: bytes, dst: bytes) -> None:
        """Make `dst` another name of `src`."""
        await to_thread.run_sync(lambda: self.view.link(src, dst))

    async def chmod(self, path: bytes, mode: int) -> None:
        """Set the permission bits."""
        await to_thread.run_sync(lambda: self.view.chmod(path, mode))

    async def utime(self, path: bytes, mtime_ns: int | None = None) -> None:
        """Set the times, in ns; None is now."""
        await to_thread.run_sync(lambda: self.view.utime(path, mtime_ns))


def _walk(view: Overlay, path: bytes) -> list[tuple[bytes, Kind]]:
    found = []
    for below in view.find(path):
        kind = view.kind(below)
        if kind is not None:
            found.append((below, kind))
    return found
