"""A workspace whose overlay the test itself mounts, as root: thousands of operations without a sandbox for each."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.bench import Bench
from tests.checkpoints.layers import Shown, show
from workbench.checkpoints.store import Checkpoint
from workbench.workspace import Travelled, Workspace


class Worked(Bench):
    """One session of a workspace, and the kernel's overlay over it at `mount`."""

    def __init__(self, workspace: Path, mount: Path, session: str = "default") -> None:
        super().__init__(workspace, session)
        self.mount = mount
        mount.mkdir(exist_ok=True)

    @contextlib.contextmanager
    def mounted(self) -> Iterator[Path]:
        """The merged view."""
        overlay = self.do(self._prepared)
        options = f"lowerdir={os.fsdecode(self.workspace)},upperdir={overlay}/upper,workdir={overlay}/work"
        options += ",userxattr,nosuid,nodev,index=off,xino=off"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(self.mount)], check=True)
        try:
            yield self.mount
        finally:
            subprocess.run(["umount", str(self.mount)], check=True)

    @staticmethod
    async def _prepared(workspace: Workspace) -> str:
        """As before any mount the root is what the lower's is; the overlay's directory."""
        workspace._overlay.adopt_root(workspace.lower)
        return workspace.overlay_path

    def view(self) -> dict[bytes, Shown]:
        with self.mounted() as merged:
            return show(merged)

    def checkpoint(self, message_id: str | None = None, **options: object) -> Checkpoint:
        return self.do(lambda workspace: workspace.checkpoint(message_id, **options))  # type: ignore[arg-type]

    def rewind(self, message_id: str, **options: object) -> Travelled:
        return self.do(lambda workspace: workspace.rewind(message_id, **options))  # type: ignore[arg-type]

    def redo(self) -> Travelled:
        return self.do(lambda workspace: workspace.redo())

    def redo_levels(self) -> int:
        async def levels(workspace: Workspace) -> int:
            return len(workspace.timeline.redo_points())

        return self.do(levels)

    def fork(self, message_id: str, session: str) -> Worked:
        self.do(lambda workspace: workspace.fork(message_id, session))
        return Worked(Path(os.fsdecode(self.workspace)), self.mount, session)
