"""`exec`, `shell`, `refresh` and `stop`: what runs in the sandbox."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Annotated

import anyio
import typer

from workbench.cli import output, terminal
from workbench.cli.options import (
    BackendOption,
    Context,
    ForceStopOption,
    ImageOption,
    JsonOption,
    QuietOption,
    SessionOption,
    WorkspaceOption,
    exit_code,
    find_error,
    run,
)
from workbench.cli.report import exec_report
from workbench.errors import CommandError, OptionsError, WorkbenchError
from workbench.mounting import SandboxOptions
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.connection import Job
from workbench.workspace import Workspace

EXIT_TIMEOUT, EXIT_BEFORE, EXIT_NOT_EXECUTABLE, EXIT_NOT_FOUND = 124, 125, 126, 127
_JSON_OUTPUT_LIMIT = 1 << 20
# A program of the person's choice that is there in any image.
_SHELL = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


def execute(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="The command, best after `--`.")],
    timeout: Annotated[
        float, typer.Option("--timeout", metavar="SECONDS", help="End the command after this time.")
    ] = 0,
    max_output: Annotated[
        int | None,
        typer.Option(
            "--max-output",
            metavar="BYTES",
            help="Keep this much of each output stream, its head and its tail (with --json 1 MiB unless said).",
        ),
    ] = None,
    environment: Annotated[
        list[str] | None, typer.Option("-e", "--env", metavar="NAME[=VALUE]", help="Set or pass on a variable.")
    ] = None,
    tty: Annotated[
        bool | None,
        typer.Option("-t/-T", "--tty/--no-tty", help="A terminal for the command: where there is one, unless said."),
    ] = None,
    image: ImageOption = "",
    backend: BackendOption = "auto",
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a command in the sandbox; nothing of the workspace changes.

    Its output streams, its exit code is the exit code; the workbench's own are 124 (timeout), 125 (before it ran), 126 (not
    executable) and 127 (not found). ^C stops the command, twice also the sandbox.
    """
    context = Context(workspace, session, json, quiet)
    with_tty = tty if tty is not None else not json and sys.stdin.isatty() and sys.stdout.isatty()
    rows, columns = terminal.size(sys.stdout.fileno())
    wanted = Command(
        tuple(command),
        environment=_environment(environment or [], with_tty),
        tty=with_tty,
        rows=rows,
        columns=columns,
        stdin=True,
        timeout_ms=round(timeout * 1000),
        output_limit=max_output if max_output is not None else _JSON_OUTPUT_LIMIT if json else 0,
    )
    _run(context, SandboxOptions(backend=backend, image=image), wanted)


def shell(
    image: ImageOption = "",
    backend: BackendOption = "auto",
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    quiet: QuietOption = False,
) -> None:
    """Open an interactive shell in the sandbox; nothing of the workspace changes."""
    with_tty = sys.stdin.isatty() and sys.stdout.isatty()
    rows, columns = terminal.size(sys.stdout.fileno())
    wanted = Command(
        _SHELL, environment=_environment([], with_tty), tty=with_tty, rows=rows, columns=columns, stdin=True
    )
    _run(Context(workspace, session, quiet=quiet), SandboxOptions(backend=backend, image=image), wanted)


def _environment(named: list[str], with_tty: bool) -> dict[str, str]:
    """`NAME=VALUE` as it is, `NAME` alone with the value it has here; a terminal's kind goes along with a terminal."""
    found = {}
    if with_tty:
        found = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ}
    for one in named:
        name, given, value = one.partition("=")
        if not name:
            raise typer.BadParameter(f"{one!r} names no variable.")
        if given:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def _run(context: Context, options: SandboxOptions, command: Command) -> None:
    """Run to the end of the command and of this process, whose exit code is the command's."""
    try:
        code = anyio.run(_execute, context, options, command)
    except (WorkbenchError, BaseExceptionGroup) as raised:
        error = find_error(raised)
        if error is None:
            raise
        output.error(error, as_json=context.json)
        raise typer.Exit(_exit_code_before(error)) from raised
    raise typer.Exit(code)


def _exit_code_before(error: WorkbenchError) -> int:
    codes = {"command_not_found": EXIT_NOT_FOUND, "command_not_executable": EXIT_NOT_EXECUTABLE}
    if isinstance(error, CommandError):
        return codes.get(error.code, EXIT_BEFORE)
    return exit_code(error) if isinstance(error, OptionsError) else EXIT_BEFORE


async def _execute(context: Context, options: SandboxOptions, command: Command) -> int:
    report = (lambda _: None) if context.quiet else output.say
    async with context.open(options) as workspace:
        async with await workspace.sandbox(report) as client:
            command = workspace.located(command, await client.hello(), os.getcwdb())
            result = await _run_job(client, command, as_json=context.json)
        changes = await _count(workspace)
    if context.json:
        print(exec_report(result, changes).model_dump_json())
    else:
        _say_how_it_ended(result, changes, quiet=context.quiet, timeout_ms=command.timeout_ms)
    return EXIT_TIMEOUT if result.timed_out else result.exit_code


async def _run_job(client: KeeperClient, command: Command, *, as_json: bool) -> CommandResult:
    job = await client.spawn(command)
    async with anyio.create_task_group() as group, contextlib.AsyncExitStack() as stack:
        if command.tty:
            group.start_soon(_follow_size, job)
            stack.enter_context(terminal.raw(sys.stdin.fileno()) if sys.stdin.isatty() else contextlib.nullcontext())
        group.start_soon(_pass_signals, client, job)
        outputs = (None, None) if as_json else (_writer(sys.stdout.fileno()), _writer(sys.stderr.fileno()))
        result = await job.wait(stdin=_stdin(), on_stdout=outputs[0], on_stderr=outputs[1])
        group.cancel_scope.cancel()
    return result


async def _follow_size(job: Job) -> None:
    async for rows, columns in terminal.sizes(sys.stdout.fileno()):
        await job.resize(rows, columns)


async def _pass_signals(client: KeeperClient, job: Job) -> None:
    """^C goes to the command; a second one, and a SIGTERM, end it; the second ^C the sandbox as well."""
    interrupted = False
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for number in signals:
            if number != signal.SIGINT:
                await job.kill("cancel", grace_ms=1000)
            elif not interrupted:
                interrupted = True
                await job.signal(signal.SIGINT)
            else:
                output.say("stopping the command and the sandbox")
                await job.kill("cancel")
                await client.stop(force=True, reason="cancel")


async def _stdin() -> AsyncIterator[bytes]:
    async for data in terminal.stdin_bytes():
        yield data


def _writer(fd: int) -> Callable[[bytes], object]:
    def write(data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]

    return write


async def _count(workspace: Workspace) -> int | None:
    return len((await workspace.changes()).shown)


def _say_how_it_ended(result: CommandResult, changes: int | None, *, quiet: bool, timeout_ms: int) -> None:
    if result.timed_out:
        output.say(f"ended after {timeout_ms / 1000:g} s, its time limit")
    elif result.ended_by:
        output.say(f"ended by {result.ended_by}")
    elif result.out_of_memory:
        output.say("it, or a process of it, was killed: the sandbox ran out of memory")
    if result.omitted_bytes:
        output.say(f"{result.omitted_bytes:,} bytes of its output were left out, between the head and the tail")
    if quiet:
        return
    if result.stopped_processes:
        output.say(f"ended {result.stopped_processes} of its processes that were still running")
    if changes:
        output.say(f"{output.count(changes, 'file')} changed: workbench diff, workbench commit")


def refresh(
    stop: ForceStopOption = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    quiet: QuietOption = False,
) -> None:
    """Mount the sandbox anew, so that it sees the real workspace as it is now; what runs in it ends."""
    context = Context(workspace, session, quiet=quiet)
    run(_refresh, context, stop, context=context)


async def _refresh(context: Context, stop: bool) -> None:
    report = (lambda _: None) if context.quiet else output.say
    async with context.open() as workspace:
        ended = await workspace.refresh(force=stop, report=report)
    report(f"mounted anew; ended {output.count(ended, 'command')}")


def stop(
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    quiet: QuietOption = False,
) -> None:
    """End the warm sandbox and whatever runs in it; what the overlay holds stays."""
    context = Context(workspace, session, quiet=quiet)
    run(_stop, context, context=context)


async def _stop(context: Context) -> None:
    async with context.open() as workspace:
        ended = await workspace.stop(force=True)
    if not context.quiet:
        output.say(f"stopped; ended {output.count(ended, 'command')}")
