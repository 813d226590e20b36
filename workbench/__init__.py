"""Let an agent, or any command, work on a real directory without touching it.

::

    async with Workspace.open("repo") as workspace:
        await workspace.exec(Command(("make", "test")))
        changes = await workspace.changes()
        await workspace.commit(workspace.reviewed(changes))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from workbench.errors import WorkbenchError

if TYPE_CHECKING:
    from workbench.protocol.commands import Command, CommandResult
    from workbench.workspace import Workspace

__version__ = "0.1.0"
__all__ = ["Command", "CommandResult", "WorkbenchError", "Workspace", "__version__"]


def __getattr__(name: str) -> Any:
    # Loaded on first use: a warm command must not pay for the imports of a commit.
    if name == "Workspace":
        from workbench.workspace import Workspace

        return Workspace
    if name in ("Command", "CommandResult"):
        from workbench.protocol import commands

        return getattr(commands, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
