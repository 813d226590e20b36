"""The tools that an agent in a workspace has."""

from __future__ import annotations

from workbench.models.base import LanguageModel
from workbench.tools.base import Tool
from workbench.tools.changes import ChangeTools
from workbench.tools.files import FileTools
from workbench.tools.notes import NoteTools
from workbench.tools.patching import PatchTools
from workbench.tools.search import SearchTools
from workbench.tools.seen import SeenFiles
from workbench.tools.shell import ShellTools
from workbench.workspace import Workspace


def workspace_tools(workspace: Workspace, seen: SeenFiles | None = None) -> tuple[Tool, ...]:
    """Tools for files, search, commands and changes of one session of a workspace.

    They share what the model has `seen` of the files, which is nothing unless it's given.
    """
    seen = SeenFiles() if seen is None else seen
    return (
        *FileTools(workspace, seen).tools(),
        *PatchTools(workspace, seen).tools(),
        *SearchTools(workspace).tools(),
        *ShellTools(workspace).tools(),
        *ChangeTools(workspace).tools(),
    )


def note_tools(workspace: Workspace, model: LanguageModel) -> tuple[Tool, ...]:
    """Tools for notes in a workspace, which `model` merges into documents."""
    return NoteTools(workspace, model).tools()
