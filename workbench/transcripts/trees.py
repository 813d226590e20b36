"""Records that name the one before them: which of them lead to the last one."""

from __future__ import annotations


class Branches:
    """Takes records in the order of a file, by their ids and those of their parents."""

    def __init__(self) -> None:
        self._parents: dict[str, str | None] = {}
        self._leaf: str | None = None

    def add(self, id: str, parent: str | None, *, leaf: bool = True) -> None:
        """A record; `leaf` is False for one that says nothing of where the conversation is."""
        if id:
            self._parents[id] = parent
            if leaf:
                self._leaf = id

    def dead(self) -> set[str]:
        """Those that don't lead to the last one; none where its line of parents is broken or goes in a circle."""
        alive: set[str] = set()
        at = self._leaf
        while at is not None:
            if at not in self._parents or at in alive:
                return set()
            alive.add(at)
            at = self._parents[at]
        return set(self._parents) - alive
