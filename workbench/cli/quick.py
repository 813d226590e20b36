"""The short way of `workbench exec` where a warm sandbox is there: what it needs, and no import more.

The full command line costs several times what a warm command does, in imports alone. This understands only the plain
form, `exec [-w DIR] [--session NAME] [-q] [-t|-T] [--no-checkpoint] [--] COMMAND...`; anything else, and whatever it isn't
sure of, is left to the full one.
"""

from __future__ import annotations

import fcntl
import io
import os
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from workbench import warm

if TYPE_CHECKING:
    from workbench.protocol.commands import Command, CommandResult
    from workbench.review.changeset import ChangeSet

_VALUES = {"-w": "workspace", "--workspace": "workspace", "--session": "session"}
_FLAGS = {"-q": ("quiet", True), "--quiet": ("quiet", True), "-t": ("tty", True), "-T": ("tty", False)}
_FLAGS["--no-checkpoint"] = ("checkpoint", False)
_LIMITS = ("MEMORY", "PIDS", "CPUS", "DISK", "TMP_SIZE", "HOME_SIZE", "OPEN_FILES")
_OTHERS = ("WORKBENCH_IMAGE", "WORKBENCH_BACKEND", *(f"WORKBENCH_{name}" for name in _LIMITS))


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
    from workbench.cli import asked, output

    output.about(wanted.workspace, wanted.session)
    command = asked.command(wanted.argv, with_tty=asked.wants_tty(wanted.tty))
    try:
        if command.tty:
            import anyio

            return anyio.run(_run_with_tty, wanted, command, overlay, root)
        return _run(wanted, command, overlay, root)
    except Exception as raised:
        from workbench.cli import failure

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


def _run(wanted: _Wanted, command: Command, overlay: str, root: bytes) -> int | None:
    from workbench.cli import asked, direct

    keeper = direct.Keeper.connect(overlay)
    if keeper is None:
        return None
    with keeper:
        before = _kept_before(wanted, overlay, root, keeper.written)
        result = keeper.run(asked.located(command, keeper.target, root, os.getcwdb()))
        keeper.look_again()
    now, changes, checkpoint = warm.counted(overlay)
    # Also where it's now as it was once, and before the command it wasn't.
    if changes is None or before.signature not in ("", now):
        import anyio

        return anyio.run(_end, wanted, result, overlay, root, before, keeper.written)
    warm.note_counted(overlay, now, changes, checkpoint, keeper.written)
    asked.say_how_it_ended(result, changes, wanted.session, quiet=wanted.quiet, timeout_ms=0)
    return asked.exit_code(result)


def _kept_before(wanted: _Wanted, overlay: str, root: bytes, written: str) -> warm.Before:
    """What the overlay holds, kept: without an event loop where the last checkpoint has it, and without a look at the layer
    where nothing has written to it since."""
    if not wanted.checkpoint:
        return warm.NOTHING
    if (known := warm.unwritten(overlay, written)).checkpoint:
        return known
    now, _, checkpoint = warm.counted(overlay)
    if checkpoint:
        return warm.Before(now, checkpoint)
    import anyio

    return anyio.run(_keep, overlay, root, wanted.session)


async def _keep(overlay: str, root: bytes, session: str) -> warm.Before:
    from workbench.cli import job, output

    async def take() -> str:
        from workbench.workspace import Workspace

        async with Workspace.open(root, session=session, report=output.say) as workspace:
            return await workspace.keep_before_command()

    return await job.kept_before(take, overlay)


async def _run_with_tty(wanted: _Wanted, command: Command, overlay: str, root: bytes) -> int | None:
    from workbench.cli import asked, job
    from workbench.sandbox.client import KeeperClient

    client = await KeeperClient.connect(overlay)
    if client is None:
        return None
    async with client:
        before = await _keep(overlay, root, wanted.session) if wanted.checkpoint else warm.NOTHING
        command = asked.located(command, (await client.hello()).mounts[0].target, root, os.getcwdb())
        result = await job.run(client, command, as_json=False)
    return await _end(wanted, result, overlay, root, before)


async def _end(
    wanted: _Wanted, result: CommandResult, overlay: str, root: bytes, before: warm.Before, written: str = ""
) -> int:
    from workbench.cli import asked, job, output

    async def look(kept: str) -> ChangeSet:
        from workbench.workspace import Workspace

        async with Workspace.open(root, session=wanted.session, report=output.say) as workspace:
            return await workspace.changes_after(kept, job.named(wanted.argv))

    changes = await job.count(look, overlay, before, written)
    asked.say_how_it_ended(result, changes, wanted.session, quiet=wanted.quiet, timeout_ms=0)
    return asked.exit_code(result)


def prepare_streams() -> None:
    """Make the three standard streams such that writing to them never fails for want of one.

    Where this process was started with one closed, it becomes the null device: else the next file that is opened would
    take its place. So does a standard input that can't be read, as nohup(1) gives one. What a stream's encoding has no
    character for is escaped.
    """
    for fd, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None or (fd == 0 and _is_for_writing(fd)):
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != fd:
                os.dup2(opened, fd)
                os.close(opened)
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115  it's there to the end
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _is_for_writing(fd: int) -> bool:
    return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_WRONLY


def main() -> None:
    """The entry point of the `workbench` command."""
    prepare_streams()
    try:
        code: int | str | None = run(sys.argv[1:])
        if code is None:
            from workbench.cli.app import app

            app(prog_name="workbench")
    except KeyboardInterrupt:
        code = 128 + signal.SIGINT
    except SystemExit as ended:
        code = ended.code
    except OSError as raised:
        # Whatever isn't a command's own: where what was said of them, or of us, couldn't be written.
        from workbench.cli import failure, output

        if error := failure.find_error(raised):
            output.error(error, as_json=False)
        code = failure.EXIT_ERROR
    sys.exit(code if _is_read() else 1)


def _is_read() -> bool:
    """Whether all that was written is taken; else the rest is dropped, of which Python would complain."""
    is_read = True
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError as error:
            from workbench.cli import output

            is_read = False
            if not isinstance(error, BrokenPipeError) and stream is sys.stdout:
                output.say(f"standard output can't be written to: {error.strerror}")
            output.drop(stream)
    return is_read
