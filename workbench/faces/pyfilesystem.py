"""A workspace as a filesystem of PyFilesystem2, found by its address; needs the extra `pyfilesystem`."""

from __future__ import annotations

import os
from typing import Any

from workbench.vfs._pyfs_compat import import_fs
from workbench.vfs.pyfilesystem_face import OverlayFS
from workbench.workspace import Workspace

import_fs()

from fs.opener import Opener  # noqa: E402 (only now it can be imported)


class WorkspaceFS(OverlayFS):
    """The merged view of a workspace, which is closed with it."""

    def __init__(self, workspace: Workspace) -> None:
        super().__init__(workspace.view)
        self._workspace = workspace

    def close(self) -> None:
        """As `fs.base.FS.close`."""
        super().close()
        self._workspace.close()


class WorkspaceOpener(Opener):
    """Opens `workbench://repo`, a path as of this process's directory, and `workbench://repo?session=other`."""

    protocols = ("workbench",)

    def open_fs(self, fs_url: str, parse_result: Any, writeable: bool, create: bool, cwd: str) -> WorkspaceFS:
        """As `fs.opener.base.Opener.open_fs`; the directory has to exist. Raises as `Workspace.open`."""
        root = os.path.join(cwd, parse_result.resource)
        return WorkspaceFS(Workspace.open(root, session=parse_result.params.get("session", "default")))
