"""A tool that applies a patch to files of the merged view: to all of them, or to none."""

from __future__ import annotations

import os

from pydantic import Field

from workbench.errors import ToolError
from workbench.tools import hunks, patches, text
from workbench.tools.base import Tool
from workbench.tools.outcome import Outcome
from workbench.tools.patches import FilePatch
from workbench.tools.places import place
from workbench.tools.seen import SeenFiles
from workbench.tools.workspace_tool import Arguments, WorkspaceTool
from workbench.vfs import paths
from workbench.vfs.storage import Kind
from workbench.workspace import Workspace


class ApplyPatch(Arguments):
    patch: str = Field(
        description="A patch in the unified format (as of diff -u or git diff), or between '*** Begin Patch' and "
        "'*** End Patch' with '*** Add File: PATH', '*** Update File: PATH' and '*** Delete File: PATH'. Keep at least "
        "two unchanged lines around each change; line numbers needn't be right."
    )


class PatchTools:
    """The tool that applies patches to one workspace."""

    def __init__(self, workspace: Workspace, seen: SeenFiles) -> None:
        self._workspace = workspace
        self._seen = seen

    def tools(self) -> tuple[Tool, ...]:
        """The one there is."""
        return (WorkspaceTool(self.apply_patch, ApplyPatch),)

    async def apply_patch(self, args: ApplyPatch) -> str:
        """Change, add, move and delete files by a patch. Where a part of it doesn't fit, nothing is changed."""
        outcomes = await self.outcomes(args)
        for outcome in outcomes:
            await self._carry_out(outcome)
        return "\n".join(outcome.told for outcome in outcomes)

    async def outcomes(self, args: ApplyPatch) -> tuple[Outcome, ...]:
        """What a patch comes to. Raises ToolError, OptionsError, OSError."""
        outcomes: list[Outcome] = []
        for file in patches.parse(args.patch):
            outcome = await self._outcome(file)
            if any(outcome.path == other.path or outcome.source == other.path for other in outcomes):
                raise ToolError(
                    f"The patch has {paths.display(outcome.path)} twice.", hint="Give all changes of a file together."
                )
            outcomes.append(outcome)
        return tuple(outcomes)

    async def _outcome(self, file: FilePatch) -> Outcome:
        source = await place(self._workspace, file.old) if file.old is not None else None
        path = await place(self._workspace, file.new) if file.new is not None else source or b""
        if path != source and await self._workspace.files.kind(path) is not None:
            raise ToolError(f"{paths.display(path)} is there already.", hint="Update it, or delete it first.")
        if source is None:
            content = hunks.apply(text.Text(""), file.hunks, paths.display(path))
            return Outcome(path, None, content.encode(), f"Added {paths.display(path)}.", mode=file.mode)
        if await self._workspace.files.kind(source) is not Kind.FILE:
            raise ToolError(f"{paths.display(source)} isn't a file that is there.", hint="Look for its name with glob.")
        before = await self._workspace.files.read(source)
        if (difference := self._seen.difference(source, before)) is not None:
            raise ToolError(difference, code="invalid_arguments")
        if file.new is None:
            return Outcome(path, before, None, f"Deleted {paths.display(path)}.")
        old = text.decoded(before)
        if old is None:
            raise ToolError(f"{paths.display(source)} is a binary file.", hint="Change it with a command.")
        after = hunks.apply(old, file.hunks, paths.display(source))
        moved = f"Moved {paths.display(source)} to {paths.display(path)}."
        told = f"Changed {paths.display(path)}." if path == source else moved
        source = source if source != path else None
        return Outcome(path, before, old.encoded(after), told, source=source, mode=file.mode)

    async def _carry_out(self, outcome: Outcome) -> None:
        files = self._workspace.files
        if outcome.after is None:
            await files.unlink(outcome.path)
            self._seen.forget(outcome.path)
            return
        await files.makedirs(os.path.dirname(outcome.path), exist_ok=True)
        if outcome.source is not None:
            await files.rename(outcome.source, outcome.path, replace=False)
            self._seen.forget(outcome.source)
        await files.write(outcome.path, outcome.after)
        if outcome.mode is not None:
            await files.chmod(outcome.path, outcome.mode)
        self._seen.note(outcome.path, outcome.after)
