"""The changes of an overlay, made from inside the sandbox that has it mounted: nobody else may write it then."""

from __future__ import annotations

import errno
import os
import secrets
import stat as stat_module

from workbench.sandbox.client import KeeperClient
from workbench.sandbox.facts import FileFacts
from workbench.vfs import paths
from workbench.vfs.merged import MergedView
from workbench.vfs.storage import Kind, Stat

_UMASK = 0o022
_SHARED = 0o777


class Inside:
    """What `Overlay` has for writing, as requests to the supervisor of a running sandbox.

    Each method is one system call inside, but for what goes through a tree: `makedirs`, `remove_tree`, `copy`, and
    `rename` of a directory that the lower has, which is copied beside its new place, then put there in one step, then
    removed. What a tree holds is looked up from outside (`view`). Raises as `Overlay`'s methods, and SandboxError.
    """

    def __init__(self, client: KeeperClient, view: MergedView) -> None:
        self._client = client
        # Nothing is hidden from who copies or removes.
        self._view = MergedView(view.lower, view.upper, scratch=view.scratch)

    async def read_out(self) -> None:
        """Have the upper layer here be what the sandbox's is, where that is a copy of it."""
        # Holding what runs does that.
        async with self._client.freeze():
            pass

    async def stat(self, path: bytes) -> Stat:
        """An entry's metadata, as commands see it. Raises FileNotFoundError, NotADirectoryError."""
        return _stat(await self._client.stat(os.fsdecode(path)))

    async def read_bytes(self, path: bytes) -> bytes:
        """A file's content, as commands see it. Raises as `Overlay.open`."""
        return await self._client.read_file(os.fsdecode(path))

    async def write_bytes(self, path: bytes, data: bytes) -> None:
        kind = await self._kind(path)
        if kind not in (None, Kind.FILE):
            raise _irregular(kind, path)
        await self._client.write_file(os.fsdecode(path), data)

    async def append(self, path: bytes, data: bytes) -> None:
        await self._client.append_file(os.fsdecode(path), data)

    async def create(self, path: bytes, mode: int, *, exclusive: bool) -> None:
        try:
            await self._client.write_file(os.fsdecode(path), b"", mode=mode & ~_UMASK, exclusive=True)
        except FileExistsError:
            if exclusive:
                raise
            kind = await self._kind(path)
            if kind is not Kind.FILE:
                raise _irregular(kind, path) from None

    async def mkdir(self, path: bytes, mode: int) -> None:
        await self._client.edit("mkdir", os.fsdecode(path), mode=mode)

    async def makedirs(self, path: bytes, mode: int, *, exist_ok: bool) -> None:
        names = paths.parts(path)
        there = len(names)
        while there and await self._kind(b"/".join(names[:there])) is None:
            there -= 1
        if there == len(names) and not (exist_ok and await self._kind(path) is Kind.DIR):
            raise paths.error(errno.EEXIST, path)
        for depth in range(there + 1, len(names) + 1):
            await self.mkdir(b"/".join(names[:depth]), mode)

    async def rmdir(self, path: bytes) -> None:
        await self._client.edit("rmdir", os.fsdecode(path))

    async def unlink(self, path: bytes) -> None:
        await self._client.edit("unlink", os.fsdecode(path))

    async def remove_tree(self, path: bytes) -> None:
        if not path:
            raise paths.error(errno.EBUSY, path)
        if (await self.stat(path)).kind is not Kind.DIR:
            await self.unlink(path)
            return
        for directory, _, others in reversed(list(self._view.walk(path))):
            for name in others:
                await self.unlink(paths.join(directory, name))
            await self.rmdir(directory)

    async def rename(self, src: bytes, dst: bytes, *, replace: bool) -> None:
        try:
            await self._rename(src, dst, replace=replace)
        except OSError as error:
            if error.errno != errno.EXDEV:
                raise
            beside = paths.join(paths.parent(dst), b".workbench-move-" + secrets.token_hex(8).encode())
            await self._copy_tree(src, beside, exactly=True)
            await self._rename(beside, dst, replace=replace)
            await self.remove_tree(src)

    async def _rename(self, src: bytes, dst: bytes, *, replace: bool) -> None:
        await self._client.edit("rename", os.fsdecode(src), target=os.fsdecode(dst), exclusive=int(not replace))

    async def copy(self, src: bytes, dst: bytes, *, replace: bool) -> None:
        kind, there = (await self.stat(src)).kind, await self._kind(dst)
        if there is not None and (kind is Kind.DIR or not replace):
            raise paths.error(errno.EEXIST, dst)
        if there is Kind.DIR:
            raise paths.error(errno.EISDIR, dst)
        if src == dst:
            return
        if kind is not Kind.DIR:
            await self._copy(src, dst)
        elif paths.is_below(dst, src):
            raise paths.error(errno.EINVAL, dst)
        else:
            await self._copy_tree(src, dst, exactly=False)

    async def _copy(self, src: bytes, dst: bytes, *, exactly: bool = False) -> None:
        stat = await self.stat(src)
        if stat.kind is Kind.SYMLINK:
            if await self._kind(dst) is not None:
                await self.unlink(dst)
            await self.symlink(self._view.readlink(src), dst)
        elif stat.kind is Kind.FILE:
            mode = stat.mode if exactly else stat.mode & _SHARED
            await self._client.write_file(os.fsdecode(dst), await self.read_bytes(src), mode=mode)
        else:
            raise paths.error(errno.EPERM, src)
        if exactly:
            await self.utime(dst, stat.mtime_ns, stat.mtime_ns)

    async def _copy_tree(self, src: bytes, dst: bytes, *, exactly: bool) -> None:
        """Copy a directory to where nothing is; `exactly` with times, setuid and its like."""
        made = []
        for directory, _, others in self._view.walk(src):
            into = dst + directory[len(src) :]
            stat = await self.stat(directory)
            await self.mkdir(into, 0o700)
            made.append((into, stat))
            for name in others:
                await self._copy(paths.join(directory, name), paths.join(into, name), exactly=exactly)
        for into, stat in reversed(made):
            await self.chmod(into, stat.mode if exactly else stat.mode & _SHARED)
            if exactly:
                await self.utime(into, stat.mtime_ns, stat.mtime_ns)

    async def symlink(self, target: bytes, path: bytes) -> None:
        await self._client.edit("symlink", os.fsdecode(path), target=os.fsdecode(target))

    async def link(self, src: bytes, dst: bytes) -> None:
        await self._client.edit("link", os.fsdecode(src), target=os.fsdecode(dst))

    async def chmod(self, path: bytes, mode: int) -> None:
        await self._client.edit("chmod", os.fsdecode(path), mode=mode)

    async def utime(self, path: bytes, mtime_ns: int, atime_ns: int) -> None:
        await self._client.edit("utime", os.fsdecode(path), mtime_ns=mtime_ns, atime_ns=atime_ns)

    async def _kind(self, path: bytes) -> Kind | None:
        try:
            return (await self.stat(path)).kind
        except FileNotFoundError:
            return None


def _stat(facts: FileFacts) -> Stat:
    fields = (facts.mode, facts.inode, facts.device, facts.nlink, facts.uid, facts.gid, facts.size, 0, 0, 0)
    kind = Stat.of(os.stat_result(fields)).kind
    return Stat(
        kind,
        stat_module.S_IMODE(facts.mode),
        facts.uid,
        facts.gid,
        facts.size,
        facts.mtime_ns,
        facts.ctime_ns,
        facts.inode,
        facts.nlink,
        facts.device,
    )


def _irregular(kind: Kind | None, path: bytes) -> OSError:
    codes = {Kind.DIR: errno.EISDIR, Kind.SYMLINK: errno.ELOOP, None: errno.ENOENT}
    return paths.error(codes.get(kind, errno.EINVAL), path)
