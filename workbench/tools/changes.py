"""Tools that show what was changed, and that end the work."""

from __future__ import annotations

from collections.abc import Iterable

from anyio import to_thread
from pydantic import Field

from workbench.protocol.messages import ToolExecutionResult
from workbench.review import diff
from workbench.review.changeset import Change
from workbench.tools.base import Tool
from workbench.tools.places import place
from workbench.tools.workspace_tool import Arguments, WorkspaceTool, shortened
from workbench.vfs import paths
from workbench.vfs.storage import Storage
from workbench.workspace import Workspace


class CheckpointDiff(Arguments):
    since: str | None = Field(
        default=None, description="The id of a message; what changed since then. Without it, all that isn't committed."
    )
    path: str = Field(default=".", description="Only what lies here, relative to the workspace's root.")


class Finish(Arguments):
    summary: str = Field(description="What was done, and what is left, for a person to read.")


class ChangeTools:
    """Tools over the changes of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def tools(self) -> tuple[Tool, ...]:
        """All of them."""
        return (WorkspaceTool(self.checkpoint_diff, CheckpointDiff), WorkspaceTool(self.finish, Finish))

    async def checkpoint_diff(self, args: CheckpointDiff) -> str:
        """Show what was changed in the workspace, as a diff."""
        below = await place(self._workspace, args.path)
        if args.since is None:
            changes = (await self._workspace.changes(may_stop=False)).changes
            return await _shown(changes, self._workspace.lower, self._workspace.store, below)
        preview = await self._workspace.difference(args.since)
        return await _shown(preview.changes, preview.old, preview.new, below)

    async def finish(self, args: Finish) -> ToolExecutionResult:
        """End the work, with a summary of it. Call it when all is done, by itself and last."""
        return ToolExecutionResult(content=args.summary, terminate=True)


async def _shown(changes: Iterable[Change], old: Storage, new: diff.Contents, below: bytes) -> str:
    wanted = [change for change in changes if not below or change.path == below or paths.is_below(change.path, below)]
    data = await to_thread.run_sync(lambda: b"".join(diff.unified(wanted, old, new, binary=False)))
    return shortened(data.decode(errors="replace")) or "Nothing was changed."
