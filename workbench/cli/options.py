"""What the commands share: their options, how they open a workspace, how they fail."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, TypeVar

import anyio
import typer

from workbench import sessions
from workbench.cli import output
from workbench.cli.failure import exit_code, find_error
from workbench.cli.places import inside
from workbench.errors import WorkbenchError
from workbench.mounting import SandboxOptions
from workbench.review.changeset import Included
from workbench.warm import find_workspace
from workbench.workspace import Workspace

T = TypeVar("T")

WorkspaceOption = Annotated[
    str | None,
    typer.Option(
        "-w",
        "--workspace",
        metavar="DIR",
        help="The workspace: by default the nearest directory with a .git, else this one.",
    ),
]


def _session_names(context: typer.Context, incomplete: str) -> list[str]:
    """For a shell: the sessions of the workspace that the line so far names."""
    try:
        root = os.path.realpath(workspace_path(context.params.get("workspace")))
        return [name for name in sessions.names(root) if name.startswith(incomplete)]
    except OSError:
        return []


SessionOption = Annotated[
    str,
    typer.Option(
        "--session",
        metavar="NAME",
        envvar="WORKBENCH_SESSION",
        autocompletion=_session_names,
        help="Which overlay to work on.",
    ),
]
# The empty metavar: else the help shows a switch with a value to it.
JsonOption = Annotated[bool, typer.Option("--json", metavar="", help="Print one JSON object for programs.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", metavar="", help="Say nothing but results and errors.")]
ImageOption = Annotated[
    str,
    typer.Option(
        "--image",
        metavar="IMAGE",
        envvar="WORKBENCH_IMAGE",
        help="The image of the sandbox; the session keeps it, else takes workbench/python.",
    ),
]
BackendOption = Annotated[
    str,
    typer.Option(
        "--backend",
        metavar="NAME",
        envvar="WORKBENCH_BACKEND",
        help="docker, namespace, or auto: what the session had last, else docker where it works.",
    ),
]
IncludeOption = Annotated[
    list[str] | None,
    typer.Option(
        "--include",
        metavar="WHAT",
        help="Also what stays in the overlay by itself: ignored, scratch, or a path (./ignored for one of that name).",
    ),
]
ForceStopOption = Annotated[bool, typer.Option("--stop", metavar="", help="Also end a shell that is attached.")]


@dataclass(frozen=True, slots=True)
class Context:
    """What a command was called with."""

    workspace: str | None
    session: str = "default"
    json: bool = False
    quiet: bool = False

    def open(self, options: SandboxOptions | None = None) -> Workspace:
        """Open the workspace, and say what a crash had left to put right."""
        opened = Workspace.open(
            workspace_path(self.workspace), session=self.session, options=options, report=output.say
        )
        for sentence in opened.recovered:
            output.say(sentence)
        return opened


def workspace_path(named: str | None) -> bytes:
    """The directory that was named, else the nearest one with a `.git`, else the current one."""
    return find_workspace(None if named is None else os.fsencode(named))


def included(root: bytes, named: list[str] | None) -> Included:
    """What `--include` asks for. Raises OptionsError for a path outside the workspace."""
    classes = frozenset(kind for kind in Included.CLASSES if kind.value in (named or ()))
    words = {kind.value for kind in Included.CLASSES}
    return Included(classes, frozenset(inside(root, name) for name in named or () if name not in words))


def run(function: Callable[..., Any], *args: Any, context: Context) -> Any:
    """Run an async command to its end; an error becomes its exit code, with the error on stderr (or as JSON)."""
    with failing(context.json):
        return anyio.run(partial(function, *args))


def keep_small(workspace: Workspace) -> None:
    """Put the checkpoints together where there are many; what went wrong with that is said, and no more than that."""
    try:
        workspace.keep_small_if_grown()
    except WorkbenchError as error:
        output.error(error, as_json=False)


@contextmanager
def failing(as_json: bool) -> Iterator[None]:
    """Turn an error of the workbench into its message, its hint and its exit code."""
    try:
        yield
    except (WorkbenchError, OSError, BaseExceptionGroup) as raised:
        error = find_error(raised)
        if error is None:
            raise
        output.error(error, as_json=as_json)
        raise typer.Exit(exit_code(error)) from raised


def terminal_name() -> str:
    """The terminal this process talks to and its session, empty where there is none."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        try:
            return f"{os.ttyname(stream.fileno())}:{os.getsid(0)}"
        except (OSError, ValueError, AttributeError):
            continue
    return ""
