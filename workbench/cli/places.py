"""Which path of a workspace somebody means who names one on the command line."""

from __future__ import annotations

import os

from workbench.errors import OptionsError
from workbench.vfs import paths


def inside(root: bytes, named: str) -> bytes:
    """The path, relative to the workspace's root, that was named as git takes names.

    A relative one starts from the current directory where that lies in the workspace, else from its root; an absolute one
    has to lie in it. What it names needn't be there, and `..` is taken by name, never through a symlink. Raises
    OptionsError for what leads out of the workspace.
    """
    name = os.fsencode(named)
    below = _below(root, name) if name.startswith(b"/") else os.path.join(_here(root), name)
    path = b"" if below is None else os.path.normpath(below)
    if not name or below is None or path.split(b"/")[0] == b".." or b"\0" in path:
        raise OptionsError(
            f"'{paths.display(name)}' leads out of the workspace.",
            hint="Name a path in the workspace, relative to the current directory there, or to the workspace's root.",
        )
    return b"" if path == b"." else path


def _here(root: bytes) -> bytes:
    """The current directory relative to the root; the root where it isn't in the workspace."""
    return _below(root, os.getcwdb()) or b""


def _below(root: bytes, path: bytes) -> bytes | None:
    """What is left of an absolute path below the workspace's root, None where it doesn't lead there."""
    names = os.path.normpath(path).strip(b"/").split(b"/")
    for depth in range(len(names) + 1):
        # The way to the workspace may have symlinks in it; the way inside isn't followed.
        if os.path.realpath(b"/" + b"/".join(names[:depth])) == root:
            return b"/".join(names[depth:])
    return None
