"""The short way of `workbench exec` where a warm sandbox is there: what it needs, and no import more.

The full command line costs several times what a warm command does, in imports alone. This understands only the plain
form, `exec [-w DIR] [--session NAME] [-q] [-t|-T] [--no-checkpoint] [--] COMMAND...`; anything else, and whatever it isn't
sure of, is left to the full one.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench import warm

if TYPE_CHECKING:
    from workbench.review.changeset import ChangeSet

_VALUES = {"-w": "workspace", "--workspace": "workspace", "--session": "session"}
_FLAGS = {"-q": ("quiet", True), "--quiet": ("quiet", True), "-t": ("tty", True), "-T": ("tty", False)}
_FLAGS["--no-checkpoint"] = ("checkpoint", False)
_OTHERS = ("WORKBENCH_IMAGE", "WORKBENCH_BACKEND")


@dataclass(slots=True)
class _Wanted:
    argv: tuple[str, ...] = ()
    workspace: str | None = None
    session: str = "default"
    quiet: bool = False
    tty: bool | None = None
    checkpoint: bool = True


def run(arguments: list[str]) -> int | None:
    """Run the command where it's an `exec` of the plain form and its sandbox is warm; its exit code, else None."""
    wanted = _parse(arguments)
    if wanted is None or not warm.SESSION_NAME.fullmatch(wanted.session):
        return None
    named = None if wanted.workspace is None else os.fsencode(wanted.workspace)
    root = os.path.realpath(warm.find_workspace(named))
    overlay = warm.find_overlay(root, wanted.session)
    if overlay is None:
        return None
    import anyio

    from workbench.cli import failure, output

    try:
        return anyio.run(_run, wanted, overlay, root)
    except Exception as raised:
        error = failure.find_error(raised)
        if error is None:
            raise
        output.error(error, as_json=False)
        return failure.exit_code_before(error)


def _parse(arguments: list[str]) -> _Wanted | None:
    if arguments[:1] != ["exec"] or any(name in os.environ for name in _OTHERS):
        return None
    wanted = _Wanted(session=os.environ.get("WORKBENCH_SESSION") or "default")
    rest = arguments[1:]
    while rest and rest[0].startswith("-"):
        option, *rest = rest
        if option == "--":
            break
        if option in _FLAGS:
            setattr(wanted, *_FLAGS[option])
        elif option in _VALUES and rest:
            setattr(wanted, _VALUES[option], rest.pop(0))
        else:
            return None
    wanted.argv = tuple(rest)
    return wanted if rest else None


async def _run(wanted: _Wanted, overlay: str, root: bytes) -> int | None:
    from workbench.cli import job, output
    from workbench.sandbox.client import KeeperClient

    client = await KeeperClient.connect(overlay)
    if client is None:
        return None

    async def take() -> str:
        from workbench.workspace import Workspace

        async with Workspace.open(root, session=wanted.session, report=output.say) as workspace:
            return await workspace.keep_before_command()

    async with client:
        kept = await job.kept_before(take, overlay) if wanted.checkpoint else job.Before()
        command = job.command(wanted.argv, with_tty=job.wants_tty(wanted.tty))
        command = job.located(command, (await client.hello()).mounts[0].target, root, os.getcwdb())
        result = await job.run(client, command, as_json=False)

    async def look(before: str) -> ChangeSet:
        from workbench.workspace import Workspace

        async with Workspace.open(root, session=wanted.session, report=output.say) as workspace:
            return await workspace.changes_after(before, job.named(wanted.argv))

    changes = await job.count(look, overlay, kept)
    job.say_how_it_ended(result, changes, quiet=wanted.quiet, timeout_ms=0)
    return job.exit_code(result)


def prepare_streams() -> None:
    """Make the three standard streams such that writing to them never fails for want of one.

    Where this process was started with one closed, it becomes the null device: else the next file that is opened would
    take its place. What a stream's encoding has no character for is escaped.
    """
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115  it's there to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def main() -> None:
    """The entry point of the `workbench` command."""
    prepare_streams()
    try:
        code = run(sys.argv[1:])
        if code is None:
            from workbench.cli.app import app

            app(prog_name="workbench")
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    sys.exit(code)
