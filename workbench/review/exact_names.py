"""Whether something stands under a very name: a filesystem that ignores upper and lower case answers to others as well."""

from __future__ import annotations

from workbench.vfs import paths
from workbench.vfs.storage import Lower


class ExactNames:
    """The names in a lower's directories, each listed once, when it's first asked for."""

    def __init__(self, lower: Lower) -> None:
        self._lower = lower
        self._listed: dict[bytes, frozenset[bytes]] = {}
        self._known: dict[bytes, bool] = {b"": True}

    def has(self, path: bytes) -> bool:
        """Whether a path at which something was found is there by this very name, and so are the directories above it.

        Raises OSError where a directory can't be listed.
        """
        missing = []
        while path not in self._known:
            missing.append(path)
            path = paths.parent(path)
        stands = self._known[path]
        for below in reversed(missing):
            stands = stands and paths.name(below) in self._names(paths.parent(below))
            self._known[below] = stands
        return stands

    def _names(self, directory: bytes) -> frozenset[bytes]:
        if directory not in self._listed:
            try:
                self._listed[directory] = frozenset(self._lower.list(directory))
            except (FileNotFoundError, NotADirectoryError):
                self._listed[directory] = frozenset()
        return self._listed[directory]
