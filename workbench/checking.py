"""A check of what would land: a command in a sandbox that shows the real workspace with exactly that, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable

from anyio import CancelScope, to_thread

from workbench.checkpoints.manifest import Manifest
from workbench.checkpoints.restore import restore
from workbench.checkpoints.store import CheckpointStore
from workbench.mounting import Mounting, SandboxOptions
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import leftovers
from workbench.state import StateDirectory, WorkspaceDirectory
from workbench.vfs.local import LocalStorage
from workbench.vfs.session import OverlayDirectory

_NAME = "check"

Output = Callable[[bytes], object]


class Checking:
    """Checks of one overlay, one at a time, each in an overlay of its own beside it that goes when the check ends."""

    def __init__(
        self,
        state: StateDirectory,
        directory: WorkspaceDirectory,
        overlay: OverlayDirectory,
        store: CheckpointStore,
        lower: LocalStorage,
        options: SandboxOptions,
    ) -> None:
        self._state = state
        self._directory = directory
        self._overlay = overlay
        self._store = store
        self._lower = lower
        self._options = options

    async def run(
        self, layer: Manifest, command: Command, on_stdout: Output, on_stderr: Output, report: Callable[[str], None]
    ) -> CommandResult:
        """Run a command over the lower with a layer of `review.layer.layer_of` on it; whatever it writes is dropped.

        Raises as `Workspace.exec`, and CheckpointError.
        """
        overlay = await to_thread.run_sync(self._create)
        mounting = Mounting(self._state, self._directory, overlay, self._store, self._lower, self._options)
        try:

            def prepare() -> None:
                overlay.adopt_root(self._lower)
                with overlay.upper() as upper:
                    restore(overlay.upper_path, upper, layer, self._store)

            async with await mounting.start(report, prepare) as client:
                try:
                    return await client.run(command, on_stdout=on_stdout, on_stderr=on_stderr)
                finally:
                    with CancelScope(shield=True):
                        await client.stop(force=True, reason="check")
        finally:
            with CancelScope(shield=True):
                await to_thread.run_sync(self._remove, overlay)

    def _create(self) -> OverlayDirectory:
        """The check's overlay, empty; what an earlier one left goes first."""
        path = os.path.join(self._overlay.path, _NAME)
        if os.path.isdir(os.path.join(path, "upper")):
            self._remove(OverlayDirectory.open(path))
        ours = self._overlay.record()
        made = OverlayDirectory.create(path, session=f"{ours.session}/{_NAME}", scratch=ours.scratch)
        with made.lock(timeout=1.0):
            kept = {"backend": ours.backend, "backend_asked": ours.backend_asked, "image": ours.image}
            made.save(made.record().model_copy(update=kept))
        return made

    def _remove(self, overlay: OverlayDirectory) -> None:
        with overlay.lock(timeout=30.0):
            leftovers.unmount(overlay, self._state.id)
            aside = self._state.set_aside(overlay.path)
        leftovers.remove_tree(aside, image=self._overlay.record().image)
