"""Whose the files are that lie in one directory with very many others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from workbench.transcripts.homes import join
from workbench.transcripts.platform import SessionPlatform, SessionStat
from workbench.transcripts.reading import END_BYTES

_DIRECTORIES = 64
_SETTLED = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class _Directory:
    """What a directory held; `is_settled` where a later change has another time, of which a filesystem may have few."""

    platform: SessionPlatform
    stat: SessionStat
    is_settled: bool
    names: tuple[str, ...]
    owned: dict[str, list[str]]


class Siblings:
    """Finds the files of a directory that belong to a session, as their beginnings tell.

    A directory is looked through once for all of its sessions, until it has other files; the last 64 are remembered. It isn't
    even listed again where its modification time says that no name came or went since.
    """

    def __init__(self, is_wanted: Callable[[str], bool], owner: Callable[[bytes], str]) -> None:
        """`is_wanted` judges a file by its name, `owner` tells its session's id from its first 64 KB."""
        self._is_wanted, self._owner = is_wanted, owner
        self._known: dict[tuple[int, str], _Directory] = {}

    async def of(self, platform: SessionPlatform, directory: str, session: str) -> list[str]:
        """The paths of the files that belong to a session. Raises OSError."""
        key = (id(platform), directory)
        known = self._known.get(key)
        stat = await platform.fs.stat(directory)
        if known is None or not known.is_settled or known.stat != stat:
            names = tuple(entry.name for entry in await platform.fs.list(directory) if self._is_wanted(entry.name))
            same = known is not None and known.platform is platform and known.names == names
            owned = known.owned if known is not None and same else await self._look(platform, directory, names)
            settled = stat.identity is not None and datetime.now(UTC) - stat.modified_at > _SETTLED
            known = _Directory(platform, stat, settled, names, owned)
        # The last one used stands last; it's there all the while for those who ask at the same time.
        self._known.pop(key, None)
        self._known[key] = known
        if len(self._known) > _DIRECTORIES:
            del self._known[next(iter(self._known))]
        return known.owned.get(session, [])

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
