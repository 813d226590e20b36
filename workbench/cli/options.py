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

from workbench.cli import output
from workbench.errors import ConflictError, OptionsError, WorkbenchError
from workbench.mounting import SandboxOptions
from workbench.workspace import Workspace

T = TypeVar("T")

EXIT_ERROR, EXIT_USAGE, EXIT_CONFLICT, EXIT_REFUSED = 1, 2, 3, 4
_REFUSALS = frozenset({"digest_required", "digest_unknown", "digest_changed", "risky_paths"})

WorkspaceOption = Annotated[
    str | None,
    typer.Option("-w", "--workspace", metavar="DIR", help="The workspace: by default the nearest directory with a .git."),
]
SessionOption = Annotated[
    str, typer.Option("--session", metavar="NAME", envvar="WORKBENCH_SESSION", help="Which overlay to work on.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object for programs.")]
QuietOption = Annotated[bool, typer.Option("-q", "--quiet", help="Say nothing but results and errors.")]
ImageOption = Annotated[
    str,
    typer.Option("--image", metavar="IMAGE", envvar="WORKBENCH_IMAGE", help="The image of a new sandbox."),
]
BackendOption = Annotated[
    str,
    typer.Option(
        "--backend", metavar="NAME", envvar="WORKBENCH_BACKEND", help="docker, namespace, or auto (what can be had)."
    ),
]
ForceStopOption = Annotated[bool, typer.Option("--stop", help="Also end a shell that is attached.")]


@dataclass(frozen=True, slots=True)
class Context:
    """What a command was called with."""

    workspace: str | None
    session: str = "default"
    json: bool = False
    quiet: bool = False

    def open(self, options: SandboxOptions | None = None) -> Workspace:
        """Open the workspace, and say what a crash had left to put right."""
        opened = Workspace.open(find_workspace(self.workspace), session=self.session, options=options)
        for sentence in opened.recovered:
            output.say(sentence)
        return opened


def find_workspace(named: str | None) -> bytes:
    """`named`, else the nearest ancestor of the current directory that has a `.git`, else the current directory."""
    if named is not None:
        return os.fsencode(named)
    here = os.getcwdb()
    directory = here
    while True:
        if os.path.lexists(os.path.join(directory, b".git")):
            return directory
        parent = os.path.dirname(directory)
        if parent == directory:
            return here
        directory = parent


def run(function: Callable[..., Any], *args: Any, context: Context) -> Any:
    """Run an async command to its end; an error becomes its exit code, with the error on stderr (or as JSON)."""
    with failing(context.json):
        return anyio.run(partial(function, *args))


@contextmanager
def failing(as_json: bool) -> Iterator[None]:
    """Turn an error of the workbench into its message, its hint and its exit code."""
    try:
        yield
    except (WorkbenchError, BaseExceptionGroup) as raised:
        error = find_error(raised)
        if error is None:
            raise
        output.error(error, as_json=as_json)
        raise typer.Exit(exit_code(error)) from raised


def exit_code(error: WorkbenchError) -> int:
    """Conflict 3, refused by a rule 4, wrong use 2, anything else 1."""
    if isinstance(error, ConflictError):
        return EXIT_CONFLICT
    if error.code in _REFUSALS:
        return EXIT_REFUSED
    return EXIT_USAGE if isinstance(error, OptionsError) else EXIT_ERROR


def find_error(raised: BaseException) -> WorkbenchError | None:
    """The error itself, or the first one of ours in a group of errors."""
    if isinstance(raised, WorkbenchError):
        return raised
    if isinstance(raised, BaseExceptionGroup):
        return next(filter(None, map(find_error, raised.exceptions)), None)
    return None


def terminal_name() -> str:
    """The terminal this process talks to and its session, empty where there is none."""
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        try:
            return f"{os.ttyname(stream.fileno())}:{os.getsid(0)}"
        except (OSError, ValueError, AttributeError):
            continue
    return ""
