"""Whose the files are that lie in one directory with very many others."""

from __future__ import annotations

from collections.abc import Callable

from workbench.transcripts.homes import join
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import END_BYTES

_DIRECTORIES = 64


class Siblings:
    """Finds the files of a directory that belong to a session, as their beginnings tell.

    A directory is looked through once for all of its sessions, until it has other files; the last 64 are remembered.
    """

    def __init__(self, is_wanted: Callable[[str], bool], owner: Callable[[bytes], str]) -> None:
        """`is_wanted` judges a file by its name, `owner` tells its session's id from its first 64 KB."""
        self._is_wanted, self._owner = is_wanted, owner
        self._known: dict[tuple[int, str], tuple[SessionPlatform, tuple[str, ...], dict[str, list[str]]]] = {}

    async def of(self, platform: SessionPlatform, directory: str, session: str) -> list[str]:
        """The paths of the files that belong to a session. Raises OSError."""
        names = tuple(entry.name for entry in await platform.fs.list(directory) if self._is_wanted(entry.name))
        if not names:
            return []
        key = (id(platform), directory)
        known = self._known.pop(key, None)
        if known is None or known[1] != names:
            known = (platform, names, await self._look(platform, directory, names))
        self._known[key] = known
        if len(self._known) > _DIRECTORIES:
            del self._known[next(iter(self._known))]
        return known[2].get(session, [])

    async def _look(self, platform: SessionPlatform, directory: str, names: tuple[str, ...]) -> dict[str, list[str]]:
        owned: dict[str, list[str]] = {}
        for name in names:
            path = join(directory, name)
            try:
                data = await platform.fs.read(path, length=END_BYTES)
            except OSError:
                continue  # gone meanwhile, or it will fail where it is read
            owned.setdefault(self._owner(data), []).append(path)
        return owned
