"""Search of a workspace's merged view: ours decides, and ripgrep, where there is one, tells it where to look.

In a warm sandbox ripgrep runs over what is mounted there. With nothing mounted it runs here, over the real workspace
alone: what commands made is never walked by another program of the host's, only by us.
"""

from __future__ import annotations

import io
import os
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import BinaryIO, TypedDict, TypeVar, Unpack

import anyio
from anyio import from_thread, to_thread

from workbench.errors import CommandError, OptionsError
from workbench.mounting import Mounting
from workbench.protocol.commands import Command
from workbench.sandbox.client import KeeperClient
from workbench.vfs import paths, ripgrep, search
from workbench.vfs.changed_mark import mark_changed
from workbench.vfs.layers import Upper
from workbench.vfs.local import LocalStorage
from workbench.vfs.merged import MergedView
from workbench.vfs.search import Matches
from workbench.vfs.session import OverlayDirectory
from workbench.vfs.storage import Kind, Storage

T = TypeVar("T")

_OUTPUT_LIMIT = 16 << 20
_SECONDS = 60.0
"""How much ripgrep may say, and how long it may take; beyond it we look everywhere ourselves."""

_PIECE = 1 << 20


class GrepOptions(TypedDict, total=False):
    """As the arguments of `vfs.search.grep`."""

    names: bytes
    literal: bool
    ignore_case: bool
    ignored: bool
    limit: int
    columns: int


class Searching:
    """The search of one overlay."""

    def __init__(self, overlay: OverlayDirectory, lower: LocalStorage, mounting: Mounting) -> None:
        self._overlay = overlay
        self._lower = lower
        self._mounting = mounting

    async def look(self, find: Callable[[MergedView], T]) -> T:
        """What a function, which runs in a thread, finds in the merged view that commands see.

        What the real workspace changed under a running sandbox is read through the sandbox, which may still show the old.
        Raises as `find`, SandboxError (sandbox_lost).
        """
        async with self._view() as (view, _):
            return await to_thread.run_sync(find, view)

    async def grep(self, pattern: bytes, path: bytes = b"", **options: Unpack[GrepOptions]) -> Matches:
        """As `vfs.search.grep`, with the help of ripgrep where there is one. Raises as it does, SandboxError (sandbox_lost)."""
        async with self._view() as (view, client):
            among = await self._among(view, client, pattern, path, options)
            return await to_thread.run_sync(partial(search.grep, view, pattern, path, among=among, **options))

    @asynccontextmanager
    async def _view(self) -> AsyncIterator[tuple[MergedView, KeeperClient | None]]:
        client = await KeeperClient.connect(self._overlay.path)
        try:
            record = await to_thread.run_sync(self._overlay.record)
            if client is not None and self._mounting.is_copied():
                # Holding what runs has in the layer here what it has written into its copy.
                async with client.freeze():
                    pass
            with self._overlay.upper() as upper:
                moved_on = partial(self._mounting.lower_moved_on, since=self._mounting.epoch)
                view = _SeenView(self._lower, upper, os.fsencode(record.scratch), client, moved_on, self._overlay.path)
                yield view, client
        finally:
            if client is not None:
                await client.aclose()

    async def _among(
        self, view: MergedView, client: KeeperClient | None, pattern: bytes, path: bytes, options: GrepOptions
    ) -> set[bytes] | None:
        """The files that may have a match, None where only looking can tell."""
        ignored = options.get("ignored", False)
        words = {"literal": options.get("literal", False), "ignore_case": options.get("ignore_case", False)}
        search.compiled(pattern, **words)
        expression = ripgrep.expression(pattern, **words)
        if expression is None or await to_thread.run_sync(view.kind, path) is not Kind.DIR:
            return None

        left_out: list[bytes] = []
        if not ignored:
            left_out = await to_thread.run_sync(search.ignored_directories, view, path)
        if client is not None:
            return await in_sandbox(client, expression, path, left_out)
        found = await on_host(self._lower, expression, path, left_out)
        if found is None:
            return None
        return found.union(await to_thread.run_sync(partial(search.overlaid, view, path, ignored=ignored)))


async def in_sandbox(client: KeeperClient, expression: str, path: bytes, left_out: list[bytes]) -> set[bytes] | None:
    """The files below a directory of the mounted view in which an expression of ripgrep's matches, or more.

    None where that can't be told. Raises SandboxError (sandbox_lost).
    """
    argv = tuple(os.fsdecode(word) for word in ripgrep.command("rg", expression, path, left_out))
    command = Command(argv, timeout_ms=int(_SECONDS * 1000), output_limit=_OUTPUT_LIMIT)
    with anyio.move_on_after(_SECONDS):
        try:
            result = await client.run(command)
        except CommandError:
            return None
        if result.exit_code in (0, 1) and not (result.omitted_bytes or result.ended_by):
            return _paths(result.stdout, path)
    return None


async def on_host(lower: LocalStorage, expression: str, path: bytes, left_out: list[bytes]) -> set[bytes] | None:
    """As `in_sandbox`, of the real workspace; an entry of it that isn't a directory has nothing below."""
    executable = _executable(lower)
    mounts: list[bytes] = await to_thread.run_sync(lower.mount_points)
    # It would enter them, and wait for a dead one for ever.
    if executable is None or mounts:
        return None
    try:
        directory = await to_thread.run_sync(lower.open_directory, path)
    except (FileNotFoundError, NotADirectoryError):
        return set()
    except OSError:
        return None
    try:
        with anyio.move_on_after(_SECONDS):
            return await _run(ripgrep.command(executable, expression, b"", left_out), directory, path)
        return None
    finally:
        os.close(directory)


async def _run(argv: tuple[bytes, ...], directory: int, path: bytes) -> set[bytes] | None:
    output = bytearray()
    here = f"/proc/self/fd/{directory}"
    process = await anyio.open_process(
        argv, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=here, env={"PATH": "/usr/bin:/bin"}
    )
    async with process:
        assert process.stdout is not None
        async for data in process.stdout:
            # Read to its end even then: asyncio never closes a pipe that still holds something.
            if len(output) > _OUTPUT_LIMIT:
                process.kill()
            else:
                output += data
    return _paths(bytes(output), path) if process.returncode in (0, 1) else None


def _executable(lower: LocalStorage) -> str | None:
    """The `rg` of the search path; not one from inside the workspace."""
    inside = os.fstat(lower.root_fd)
    for directory in os.get_exec_path():
        found = os.path.join(directory, "rg")
        if os.path.isabs(directory) and os.path.isfile(found) and os.access(found, os.X_OK):
            above = os.path.realpath(found)
            while above != os.path.dirname(above):
                above = os.path.dirname(above)
                if os.path.samestat(os.stat(above), inside):
                    return None
            return os.path.realpath(found)
    return None


def _paths(output: bytes, directory: bytes) -> set[bytes]:
    found = set()
    for path in ripgrep.files(output):
        try:
            found.add(paths.join(directory, path))
        except OptionsError:
            # The sandbox says what it likes.
            continue
    return found


class _SeenView(MergedView):
    """The merged view as what is mounted shows it; a search in it ends when its caller is cancelled."""

    def __init__(
        self,
        lower: Storage,
        upper: Upper,
        scratch: bytes,
        client: KeeperClient | None,
        moved_on: Callable[[bytes], bool],
        overlay_path: str,
    ) -> None:
        super().__init__(lower, upper, scratch=scratch)
        self._client = client
        self._moved_on = moved_on
        self._overlay_path = overlay_path

    def open(self, path: bytes) -> BinaryIO:
        """As `MergedView.open`; raises SandboxError (sandbox_lost), too."""
        from_thread.check_cancelled()
        if self._client is None or not self._moved_on(path):
            return super().open(path)
        mark_changed(self._overlay_path)
        return io.BufferedReader(_SandboxFile(self._client, path), _PIECE)


class _SandboxFile(io.RawIOBase):
    """A file read through the sandbox, from a thread of the event loop."""

    def __init__(self, client: KeeperClient, path: bytes) -> None:
        super().__init__()
        self._client = client
        self._path = os.fsdecode(path)
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        read = partial(self._client.read_file, self._path, offset=self._position, length=len(buffer))
        data = from_thread.run(read)
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
