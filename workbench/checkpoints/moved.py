"""The commits of a store that were rewritten: which id each has now.

The file `moved` has a line for each, the old id and the new one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from workbench.checkpoints import files

_NAME = "moved"


class MovedCommits:
    """The rewritten commits of the store at `directory`."""

    def __init__(self, directory: str) -> None:
        self._path = os.path.join(directory, _NAME)

    def now(self, commit: str) -> str:
        """The id that a commit has now: its own where it was never rewritten. Raises OSError."""
        return self._load().get(commit, commit)

    def note(self, moved: Mapping[str, str]) -> None:
        """Add some, by their ids until now. Needs the store's lock. Raises OSError."""
        known = {old: moved.get(new, new) for old, new in self._load().items()} | dict(moved)
        content = "".join(f"{old} {new}\n" for old, new in known.items())
        files.replace(self._path, content.encode("ascii"))

    def _load(self) -> dict[str, str]:
        try:
            with open(self._path, encoding="ascii", errors="replace") as file:
                pairs = [line.split() for line in file]
        except FileNotFoundError:
            return {}
        # A line that was damaged names nothing.
        return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}
