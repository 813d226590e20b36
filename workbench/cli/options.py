"""What the commands share: their options, how they open a workspace, how they fail."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from workbench.sandbox.backend import Limits
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
        return [name for name, _ in sessions.named(root=root) if name.startswith(incomplete)]
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
        help="docker, namespace, none (files only), or auto: what the session had last, else docker where it works.",
    ),
]


RuntimeOption = Annotated[
    str,
    typer.Option(
        "--runtime",
        metavar="NAME",
        envvar="WORKBENCH_RUNTIME",
        help="The engine's runtime for the sandbox, such as runsc (gVisor); `workbench doctor` tries that.",
    ),
]


def _size(text: str) -> int:
    """`512m`, `2g`, or bytes: k, m, g and t are powers of 1,024."""
    digits, unit = text[:-1], text[-1:].lower()
    if unit not in _UNITS:
        digits, unit = text, ""
    try:
        number = float(digits)
    except ValueError:
        number = -1
    if not 0 <= number < 1 << 40:
        raise typer.BadParameter(f"{text!r} is no size, such as 512m or 2g.")
    return int(number * _UNITS[unit])


_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def _limit(flag: str, what: str, kind: str, **options: Any) -> Any:
    variable = f"WORKBENCH_{flag[2:].upper().replace('-', '_')}"
    return typer.Option(
        flag, metavar=kind, envvar=variable, show_envvar=False, help=what, rich_help_panel="Limits", **options
    )


MemoryOption = Annotated[
    int | None, _limit("--memory", "Memory of the sandbox, /tmp included (4g).", "SIZE", parser=_size)
]
PidsOption = Annotated[int | None, _limit("--pids", "Processes and threads (1024).", "NUMBER", min=0)]
CpusOption = Annotated[float | None, _limit("--cpus", "Processor cores (all).", "NUMBER", min=0)]
DiskOption = Annotated[
    int | None, _limit("--disk", "What the overlay may hold; what runs then is ended (10g).", "SIZE", parser=_size)
]
TmpOption = Annotated[int | None, _limit("--tmp-size", "Size of /tmp, in memory (1g).", "SIZE", parser=_size)]
HomeOption = Annotated[int | None, _limit("--home-size", "Size of the home, in memory (512m).", "SIZE", parser=_size)]
FilesOption = Annotated[int | None, _limit("--open-files", "Open files of each process (65536).", "NUMBER", min=0)]


def limits(
    memory: int | None,
    pids: int | None,
    cpus: float | None,
    disk: int | None,
    tmp: int | None,
    home: int | None,
    files: int | None,
) -> Limits | None:
    """The limits that were asked for, with the defaults for the rest; None where none was."""
    asked = {
        "memory_bytes": memory,
        "pids": pids,
        "cpus": cpus,
        "disk_bytes": disk,
        "open_files": files,
        "tmp_bytes": tmp,
        "home_bytes": home,
    }
    said: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    if not said:
        return None
    sizes = {name: said.pop(name) for name in ("tmp_bytes", "home_bytes") if name in said}
    return replace(replace(Limits(), **said).within(), **sizes)


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

    def __post_init__(self) -> None:
        output.about(self.workspace, self.session)

    def report(self, sentence: str) -> None:
        """Say a sentence of the library's on how it goes on, unless only results are wanted."""
        if not self.quiet:
            output.say(output.typed(sentence))

    def open(self, options: SandboxOptions | None = None) -> Workspace:
        """Open the workspace, and say what a crash had left to put right."""
        opened = Workspace.open(
            workspace_path(self.workspace),
            session=self.session,
            options=options,
            report=lambda sentence: output.say(output.typed(sentence)),
        )
        for sentence in opened.recovered:
            output.say(output.typed(sentence))
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
            if isinstance(raised, BaseExceptionGroup) and raised.split(BrokenPipeError)[1] is None:
                # Nobody reads on: how that ends is the same whoever was at work.
                raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from raised
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
