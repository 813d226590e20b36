"""The session that a command is told by its name, in whatever workspace it is."""

from __future__ import annotations

import difflib
import os
import shlex
from typing import Annotated

import typer

from workbench.cli import output
from workbench.cli.options import workspace_path
from workbench.errors import OptionsError, SessionNotFoundError
from workbench.sessions import Session, WorkspaceSessions, linked_root, named, survey_workspace


def _completed(context: typer.Context, incomplete: str) -> list[str]:
    """For a shell: every session, with -w those of that workspace."""
    try:
        found = named(root=_root(context.params.get("workspace")))
    except OSError:
        return []
    return sorted({name for name, _ in found if name.startswith(incomplete)})


NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="The session.", autocompletion=_completed)]


def find(name: str, workspace: str | None, *, limit: int | None = None) -> tuple[WorkspaceSessions, Session]:
    """The session of a name, of all workspaces or of the one that was named, looked at as `survey` does.

    Raises SessionNotFoundError, OptionsError (session_ambiguous) where several workspaces have one.
    """
    root = _root(workspace)
    places = [path for _, path in named(name, root)]
    if len(places) > 1:
        raise OptionsError(
            f"{len(places)} workspaces have a session {name}.",
            code="session_ambiguous",
            hint=f"Say which one is meant: {', '.join(f'-w {_argument(path, places)}' for path in places)}.",
        )
    for path in places:
        found = survey_workspace(path, limit=limit, only=name)
        for session in found.sessions:
            return found, session
    there = "" if root is None else f" of {output.path(root)}"
    near = difflib.get_close_matches(name, sorted({other for other, _ in named(root=root)}), cutoff=0.5)
    meant = f"There is {' and '.join(near)}. " if near else ""
    raise SessionNotFoundError(
        f"There is no session {name}{there}.", hint=f"{meant}`workbench sessions` lists what there is."
    )


def _root(workspace: str | None) -> bytes | None:
    return None if workspace is None else os.path.realpath(workspace_path(workspace))


def _argument(path: str, places: list[str]) -> str:
    """What -w names a workspace by: its real directory, or, where another has the same one, its own."""
    root = linked_root(path)
    is_one = bool(root) and [linked_root(other) for other in places].count(root) == 1
    return shlex.quote(output.path(root if is_one else os.fsencode(path)))
