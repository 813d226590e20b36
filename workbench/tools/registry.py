"""The tools that a session offers its model."""

from __future__ import annotations

from workbench.errors import DuplicateToolError
from workbench.protocol.disposer import Disposer
from workbench.protocol.messages import ToolSchema
from workbench.tools.base import Tool


class ToolRegistry:
    """Tools by name. A run keeps those that were there at its start."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    @property
    def size(self) -> int:
        """How many there are."""
        return len(self._tools)

    def register(self, tool: Tool) -> Disposer:
        """Add a tool until the disposer is called. Raises DuplicateToolError."""
        name = tool.schema.name
        if name in self._tools:
            raise DuplicateToolError(
                f"A tool named {name} is registered already.", hint="Give one of both another name."
            )
        self._tools[name] = tool

        def remove() -> None:
            if self._tools.get(name) is tool:
                del self._tools[name]

        return Disposer(remove)

    def get(self, name: str) -> Tool | None:
        """The tool of this name, None where there is none."""
        return self._tools.get(name)

    def list(self) -> tuple[Tool, ...]:
        """All tools, sorted by name."""
        return tuple(tool for _, tool in sorted(self._tools.items()))

    def schemas(self) -> tuple[ToolSchema, ...]:
        """What models are sent, sorted by name, so that a prompt's prefix stays the same over restarts."""
        return tuple(tool.schema for tool in self.list())
