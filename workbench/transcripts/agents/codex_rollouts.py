"""The files of Codex's threads: what their names tell, and where a thread's is."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass

from workbench.transcripts.files import Reading, stem
from workbench.transcripts.homes import join
from workbench.transcripts.platform import SessionPlatform
from workbench.transcripts.reading import walk

_ROLLOUT = re.compile(r"rollout-.+\.jsonl(\.zst)?$")
_ID = re.compile(r"rollout-\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d-(.+)$")
_FRESH_SECONDS = 10.0
_HOMES = 64
FOLDERS = ("sessions", "archived_sessions")


def is_rollout(path: str) -> bool:
    """Whether a file is a rollout, by its name."""
    return _ROLLOUT.match(path.rpartition("/")[2]) is not None


def thread_id(path: str) -> str:
    """The id in a rollout's name, else the whole name."""
    name = stem(path)
    found = _ID.match(name)
    return found[1] if found else name


@dataclass(frozen=True, slots=True)
class _Home:
    platform: SessionPlatform
    paths: dict[str, str]
    looked_at: float


class Rollouts:
    """Where threads' rollouts are: a home is looked through once for many threads, again once that is ten seconds ago."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, str], _Home] = {}

    async def find(self, reading: Reading, path: str, thread: str) -> str | None:
        """The rollout of a thread in the home that a path is in, a plain one before a compressed one.

        Raises the signal's reason.
        """
        home = next((home for home, found, _ in (path.rpartition(f"/{name}/") for name in FOLDERS) if found), "")
        if not home or not thread:
            return None
        key = (id(reading.platform), home)
        known = self._known.get(key)
        if known is not None:
            if thread in known.paths and (there := await _still_there(reading.platform, known.paths[thread])):
                return there
            if thread not in known.paths and time.monotonic() - known.looked_at < _FRESH_SECONDS:
                return None
        self._known.pop(key, None)
        found = self._known[key] = _Home(reading.platform, await _paths(reading, home), time.monotonic())
        if len(self._known) > _HOMES:
            del self._known[next(iter(self._known))]
        return found.paths.get(thread)


async def _paths(reading: Reading, home: str) -> dict[str, str]:
    paths: dict[str, str] = {}
    for name in FOLDERS:
        for path, found in await walk(reading.platform, join(home, name), signal=reading.signal):
            if not isinstance(found, OSError) and is_rollout(path):
                thread = thread_id(path)
                if thread not in paths or (paths[thread].endswith(".zst") and not path.endswith(".zst")):
                    paths[thread] = path
    return paths


async def _still_there(platform: SessionPlatform, path: str) -> str | None:
    """A rollout by the name that it has now: it may have been compressed, or decompressed, meanwhile."""
    plain = path.removesuffix(".zst")
    for name in (plain, f"{plain}.zst"):
        try:
            await platform.fs.stat(name)
        except OSError:
            continue
        return name
    return None
