"""A workspace as a filesystem of fsspec, found by protocol: `fsspec.open("workbench://docs/plan.md", path="repo")`."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any

from workbench.errors import OptionsError
from workbench.vfs.fsspec_face import OverlayFileSystem
from workbench.vfs.overlay import Overlay
from workbench.warm import find_workspace
from workbench.workspace import Workspace


class WorkspaceFileSystem(OverlayFileSystem):
    """The merged view of a workspace's session: `fsspec.filesystem("workbench", path="repo", session="default")`.

    `path` None is the workspace around the current directory. What is written lands in the session's overlay, whether a
    sandbox runs or not, and in the real directory only by a commit; see `LiveOverlay`. It can be pickled, and is then the
    same session in another process of this machine. With `overlay` instead of all that it's an `OverlayFileSystem`.
    Raises as `Workspace.open`, and OptionsError where both are named.
    """

    def __init__(
        self,
        overlay: Overlay | None = None,
        *,
        path: str | bytes | os.PathLike[str] | None = None,
        session: str = "default",
        state_path: str | None = None,
        auto_mkdir: bool = True,
        **storage_options: Any,
    ) -> None:
        self._reopened: tuple[bytes, str, str | None, bool] | None = None
        if overlay is None:
            root = find_workspace(None if path is None else os.fsencode(path))
            workspace = Workspace.open(root, session=session, state_path=state_path)
            weakref.finalize(self, workspace.close)
            self._reopened = (workspace.root, session, state_path, auto_mkdir)
            overlay = workspace.view
        elif path is not None:
            raise OptionsError("Either an overlay or a workspace's path can be named, not both.")
        super().__init__(overlay, auto_mkdir=auto_mkdir, **storage_options)

    def __reduce__(self) -> tuple[Callable[..., OverlayFileSystem], tuple[Any, ...]]:
        return super().__reduce__() if self._reopened is None else (_reopen, self._reopened)


def _reopen(root: bytes, session: str, state_path: str | None, auto_mkdir: bool) -> WorkspaceFileSystem:
    return WorkspaceFileSystem(path=root, session=session, state_path=state_path, auto_mkdir=auto_mkdir)
