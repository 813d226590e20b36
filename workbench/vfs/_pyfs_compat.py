"""Importing PyFilesystem2 where setuptools no longer has `pkg_resources`.

`fs` 2.4.16, its last release, imports that module for two functions; setuptools 82 removed it. We lend `fs` a module
with these two while it's being imported. Forks that don't ask for it are imported as they are.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import sys
from collections.abc import Iterator
from types import ModuleType


def import_fs() -> ModuleType:
    """The package `fs`. Raises ImportError where it isn't installed: the extra `pyfilesystem` brings it."""
    if "fs" in sys.modules:
        return sys.modules["fs"]
    lent = ModuleType("pkg_resources")
    lent.declare_namespace = _declare_namespace  # type: ignore[attr-defined]
    lent.iter_entry_points = _iter_entry_points  # type: ignore[attr-defined]
    owned = sys.modules.get("pkg_resources")
    sys.modules["pkg_resources"] = lent
    try:
        return importlib.import_module("fs")
    except ModuleNotFoundError as error:
        if error.name != "fs":
            raise
        raise ImportError("PyFilesystem2 isn't installed: pip install 'overlay-workbench[pyfilesystem]'") from error
    finally:
        if owned is None:
            del sys.modules["pkg_resources"]
        else:
            sys.modules["pkg_resources"] = owned


def _declare_namespace(name: str) -> None:
    """Nothing to declare: whatever else is installed below `fs` is in the same directory."""


def _iter_entry_points(group: str, name: str | None = None) -> Iterator[importlib.metadata.EntryPoint]:
    found = importlib.metadata.entry_points(group=group)
    return iter(found if name is None else found.select(name=name))
