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
    from workbench.agent.manager import SessionManager
    from workbench.agent.models import ModelRegistry
    from workbench.agent.options import SessionOptions
    from workbench.agent.run import drain
    from workbench.agent.session import AgentSession
    from workbench.agent.workspace_session import WorkspaceSession
    from workbench.protocol.commands import Command, CommandResult
    from workbench.protocol.messages import Thinking
    from workbench.protocol.runs import RunOptions, RunResult
    from workbench.tools.base import tool
    from workbench.tools.registry import ToolRegistry
    from workbench.workspace import Workspace

__version__ = "0.1.0"
__all__ = [
    "AgentSession",
    "Command",
    "CommandResult",
    "ModelRegistry",
    "RunOptions",
    "RunResult",
    "SessionManager",
    "SessionOptions",
    "Thinking",
    "ToolRegistry",
    "WorkbenchError",
    "Workspace",
    "WorkspaceSession",
    "__version__",
    "drain",
    "tool",
]
# Where each name is. It's loaded on first use: a warm command must not pay for the imports of a commit.
_PLACES = {
    "AgentSession": "agent.session",
    "Command": "protocol.commands",
    "CommandResult": "protocol.commands",
    "ModelRegistry": "agent.models",
    "RunOptions": "protocol.runs",
    "RunResult": "protocol.runs",
    "SessionManager": "agent.manager",
    "SessionOptions": "agent.options",
    "Thinking": "protocol.messages",
    "ToolRegistry": "tools.registry",
    "Workspace": "workspace",
    "WorkspaceSession": "agent.workspace_session",
    "drain": "agent.run",
    "tool": "tools.base",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"workbench.{_PLACES[name]}"), name)
