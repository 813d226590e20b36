"""What a call would make of files, worked out as the tools do it, and not carried out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from pydantic import ValidationError

from workbench.errors import ToolError
from workbench.protocol.messages import ToolCall
from workbench.tools.files import EditFile, FileTools, WriteFile
from workbench.tools.outcome import Outcome
from workbench.tools.patching import ApplyPatch, PatchTools
from workbench.tools.seen import SeenFiles
from workbench.tools.workspace_tool import issues
from workbench.workspace import Workspace


async def preview(workspace: Workspace, call: ToolCall) -> tuple[Outcome, ...] | None:
    """What becomes of each file; None of a call that isn't of a tool that changes files by itself.

    Raises what the tool would have to say of a call that fails: WorkbenchError (ToolError where its arguments are wrong),
    OSError.
    """
    files, patches = FileTools(workspace, SeenFiles()), PatchTools(workspace, SeenFiles())

    async def written(arguments: dict[str, Any]) -> tuple[Outcome, ...]:
        return (await files.written(WriteFile.model_validate(arguments)),)

    async def edited(arguments: dict[str, Any]) -> tuple[Outcome, ...]:
        return (await files.edited(EditFile.model_validate(arguments)),)

    async def patched(arguments: dict[str, Any]) -> tuple[Outcome, ...]:
        return await patches.outcomes(ApplyPatch.model_validate(arguments))

    known: dict[str, Callable[[dict[str, Any]], Awaitable[tuple[Outcome, ...]]]] = {
        "write_file": written,
        "edit_file": edited,
        "apply_patch": patched,
    }
    if call.name not in known:
        return None
    try:
        return await known[call.name](call.arguments or {})
    except ValidationError as error:
        raise ToolError(issues(error), code="invalid_arguments") from error
