"""Tools that find files and lines of the merged view."""

from __future__ import annotations

import os

from pydantic import Field

from workbench.tools.base import Tool
from workbench.tools.places import place
from workbench.tools.workspace_tool import Arguments, WorkspaceTool
from workbench.vfs import paths
from workbench.workspace import Workspace

_PATHS = 500
_LINES = 200


class Glob(Arguments):
    pattern: str = Field(description="Such as src/**/*.py, relative to the workspace's root.")
    ignored: bool = Field(default=False, description="Also what .gitignore files leave out.")


class Grep(Arguments):
    pattern: str = Field(description="A regular expression of Python's; it's searched for line by line.")
    path: str = Field(default=".", description="The file or directory to search, relative to the workspace's root.")
    names: str = Field(default="*", description="Only files whose name fits this pattern, such as *.py.")
    literal: bool = Field(default=False, description="Take the pattern for plain text.")
    ignore_case: bool = Field(default=False, description="Take upper and lower case letters for the same.")
    ignored: bool = Field(default=False, description="Also what .gitignore files leave out.")


class SearchTools:
    """Tools that search one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def tools(self) -> tuple[Tool, ...]:
        """All of them."""
        return (WorkspaceTool(self.glob, Glob, parallel=True), WorkspaceTool(self.grep, Grep, parallel=True))

    async def glob(self, args: Glob) -> str:
        """Find the paths of the workspace that fit a pattern, sorted by name."""
        found = await self._workspace.glob(os.fsencode(args.pattern), ignored=args.ignored, limit=_PATHS)
        if not found.paths:
            return "Nothing fits the pattern."
        lines = [paths.display(path) for path in found.paths]
        return "\n".join((*lines, *(() if found.complete else (f"[only the first {_PATHS} are shown]",))))

    async def grep(self, args: Grep) -> str:
        """Find the lines of the workspace's files that match, each as path:number:line."""
        path = await place(self._workspace, args.path)
        found = await self._workspace.grep(
            os.fsencode(args.pattern),
            path,
            names=os.fsencode(args.names),
            literal=args.literal,
            ignore_case=args.ignore_case,
            ignored=args.ignored,
            limit=_LINES,
        )
        lines = [
            f"{paths.display(match.path)}:{match.line}:{match.text.decode(errors='replace')}" for match in found.matches
        ] or ["No line matches."]
        if not found.complete:
            lines.append(f"[only the first {_LINES} lines are shown]")
        if found.binary:
            lines.append(f"[binary files that weren't searched: {found.binary}]")
        if found.unread:
            lines.append(f"[files that can't be read: {len(found.unread)}, such as {paths.display(found.unread[0])}]")
        return "\n".join(lines)
