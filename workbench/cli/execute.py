"""`exec`, `shell`, `refresh` and `stop`: what runs in the sandbox."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Annotated

import anyio
import typer

from workbench import warm
from workbench.cli import asked, job, network, output, terminal
from workbench.cli.failure import exit_code_before, find_error
from workbench.cli.jobs import say_ended
from workbench.cli.network import (
    AllowHostOption,
    AskHostOption,
    ForHostOption,
    HeaderOption,
    MaxHostBytesOption,
    SecretOption,
)
from workbench.cli.options import (
    BackendOption,
    Context,
    CpusOption,
    DiskOption,
    FilesOption,
    ForceStopOption,
    HomeOption,
    ImageOption,
    JsonOption,
    MemoryOption,
    PidsOption,
    QuietOption,
    RuntimeOption,
    SessionOption,
    TmpOption,
    WorkspaceOption,
    keep_small,
    limits,
    run,
)
from workbench.cli.report import exec_report, failed_exec_report, job_reports
from workbench.errors import WorkbenchError
from workbench.landing import Landed
from workbench.mounting import SandboxOptions
from workbench.protocol.commands import Command
from workbench.protocol.reports import StartedReport, StopReport
from workbench.review.policy import Mode
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.egress.options import Egress
from workbench.sandbox.facts import JobFacts
from workbench.workspace import Workspace

_JSON_OUTPUT_LIMIT = 1 << 20
_LONGEST_S = 365 * 86400
# A program of the person's choice that is there in any image.
_SHELL = ("sh", "-c", "if command -v bash >/dev/null; then exec bash; else exec sh; fi")


_Land = Callable[[Workspace], Awaitable[Landed | WorkbenchError | None]]


def execute(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command, best after `--`.")],
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout", min=0, max=_LONGEST_S, metavar="SECONDS", help="End the command after this time; 0 is never."
        ),
    ] = 0,
    max_output: Annotated[
        int | None,
        typer.Option(
            "--max-output",
            min=1,
            metavar="BYTES",
            help="Keep this much of each output stream, its head and its tail (with --json 1 MiB unless said).",
        ),
    ] = None,
    environment: Annotated[
        list[str] | None, typer.Option("-e", "--env", metavar="NAME[=VALUE]", help="Set or pass on a variable.")
    ] = None,
    tty: Annotated[
        bool | None,
        typer.Option(
            "-t/-T", "--tty/--no-tty", metavar="", help="A terminal for the command: where there is one, unless said."
        ),
    ] = None,
    commit: Annotated[
        Mode,
        typer.Option(
            "--commit",
            metavar="MODE",
            help="review, never, or success, which lands all there is when the command ends with 0; what is risky, or a rule "
            "of yours asks about, waits for a review.",
        ),
    ] = Mode.REVIEW,
    check: Annotated[
        str,
        typer.Option("--check", metavar="CMD", help="With --commit success: a shell command that must pass before."),
    ] = "",
    no_checkpoint: Annotated[
        bool, typer.Option("--no-checkpoint", metavar="", help="Don't keep what was there before, to rewind to.")
    ] = False,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", metavar="", help="Leave it in the background, and print its id.")
    ] = False,
    interactive: Annotated[
        bool,
        typer.Option("-i", "--interactive", metavar="", help="With -d: keep its standard input open for `attach`."),
    ] = False,
    allow_host: AllowHostOption = None,
    ask_host: AskHostOption = False,
    max_host_bytes: MaxHostBytesOption = 0,
    secret: SecretOption = None,
    for_host: ForHostOption = None,
    header: HeaderOption = None,
    image: ImageOption = "",
    backend: BackendOption = "auto",
    runtime: RuntimeOption = "",
    memory: MemoryOption = None,
    pids: PidsOption = None,
    cpus: CpusOption = None,
    disk: DiskOption = None,
    tmp_size: TmpOption = None,
    home_size: HomeOption = None,
    open_files: FilesOption = None,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Run a command in the sandbox; nothing of the workspace changes, unless you say --commit success.

    Its output streams, its exit code is the exit code; the workbench's own are 124 (timeout), 125
    (before it ran), 126 (not executable) and 127 (not found).

    ^C stops the command; where it lives on, a second one stops it and the sandbox. Where you have typed something to a
    program in a terminal, two may be meant for it: then it takes three within a second.
    """
    context = Context(workspace, session, json, quiet)
    if interactive and not detach:
        raise typer.BadParameter("-i goes with -d; without it standard input is passed on anyway.")
    if detach and max_output is not None:
        raise typer.BadParameter("--max-output doesn't go with -d: `workbench logs` keeps the beginning and the end.")
    wanted = asked.command(
        tuple(command),
        with_tty=bool(tty) if detach else not json and asked.wants_tty(tty),
        environment=_environment(environment or []),
        timeout_ms=math.ceil(timeout * 1000),
        output_limit=max_output if max_output is not None else _JSON_OUTPUT_LIMIT if json else 0,
    )
    if check and commit is not Mode.SUCCESS:
        raise typer.BadParameter("--check goes with --commit success.")
    if detach and commit is not Mode.REVIEW:
        raise typer.BadParameter(
            "A command in the background can't be waited for, so --commit doesn't go with --detach."
        )
    then = Command(("sh", "-c", check)) if check else None
    land = partial(_land, context, then) if commit is Mode.SUCCESS else None
    chosen = SandboxOptions(
        backend=backend,
        image=image,
        runtime=runtime,
        limits=limits(memory, pids, cpus, disk, tmp_size, home_size, open_files),
    )
    reach = partial(network.egress, allow_host, ask_host, max_host_bytes, secret, for_host, header)
    if detach:
        wanted = replace(wanted, stdin=interactive)
        run_command(context, chosen, wanted, reach, partial(_start, checkpoint=not no_checkpoint))
    else:
        run_command(context, chosen, wanted, reach, partial(to_its_end, checkpoint=not no_checkpoint, land=land))


def shell(
    allow_host: AllowHostOption = None,
    ask_host: AskHostOption = False,
    max_host_bytes: MaxHostBytesOption = 0,
    secret: SecretOption = None,
    for_host: ForHostOption = None,
    header: HeaderOption = None,
    image: ImageOption = "",
    backend: BackendOption = "auto",
    runtime: RuntimeOption = "",
    memory: MemoryOption = None,
    pids: PidsOption = None,
    cpus: CpusOption = None,
    disk: DiskOption = None,
    tmp_size: TmpOption = None,
    home_size: HomeOption = None,
    open_files: FilesOption = None,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    quiet: QuietOption = False,
) -> None:
    """Open an interactive shell in the sandbox; nothing of the workspace changes.

    ^C and every other key is for what runs in it; `exit` ends it, and workbench stop in another terminal.
    """
    wanted = asked.command(_SHELL, with_tty=asked.wants_tty(None))
    context = Context(workspace, session, quiet=quiet)
    chosen = limits(memory, pids, cpus, disk, tmp_size, home_size, open_files)
    reach = partial(network.egress, allow_host, ask_host, max_host_bytes, secret, for_host, header)
    options = SandboxOptions(backend=backend, image=image, runtime=runtime, limits=chosen)
    run_command(context, options, wanted, reach, partial(to_its_end, name="a shell", is_shell=True))


def _environment(named: list[str]) -> dict[str, str]:
    """`NAME=VALUE` as it is, `NAME` alone with the value it has here."""
    found = {}
    for one in named:
        name, given, value = one.partition("=")
        if not name:
            raise typer.BadParameter(f"{one!r} names no variable.")
        if given:
            found[name] = value
        elif name in os.environ:
            found[name] = os.environ[name]
    return found


def run_command(
    context: Context,
    options: SandboxOptions,
    command: Command,
    reach: Callable[[], Egress],
    how: Callable[[Context, SandboxOptions, Command], Awaitable[int]],
) -> None:
    """Run to the end of the command and of this process, whose exit code is the command's; it may `reach` so much."""
    try:
        code = anyio.run(how, context, replace(options, egress=reach()), command)
    except (WorkbenchError, OSError, BaseExceptionGroup) as raised:
        error = find_error(raised)
        if error is None:
            raise
        code = exit_code_before(error)
        if context.json:
            output.write_json(failed_exec_report(error, code))
        else:
            output.error(error, as_json=False)
        raise typer.Exit(code) from raised
    raise typer.Exit(code)


async def _start(context: Context, options: SandboxOptions, command: Command, *, checkpoint: bool) -> int:
    async with context.open(options) as workspace, await workspace.sandbox(context.report) as client:
        if checkpoint:
            await job.kept_before(workspace.keep_before_command, workspace.overlay_path)
        located = await _located(client, workspace, command)
        async with client.allow(options.egress) as allowed:
            name = await client.start_job(replace(located, environment={**allowed.environment, **located.environment}))
    if context.json:
        output.write_json(StartedReport(id=name))
    else:
        print(name)
    return 0


async def _located(client: KeeperClient, workspace: Workspace, command: Command) -> Command:
    target = (await client.hello()).mounts[0].target
    return asked.located(command, target, workspace.root, os.getcwdb())


async def to_its_end(
    context: Context,
    options: SandboxOptions,
    command: Command,
    *,
    name: str = "",
    is_shell: bool = False,
    checkpoint: bool = True,
    land: _Land | None = None,
) -> int:
    """Run a command with all that belongs to it; the exit code. `name` is what the log calls it, else its words."""
    async with context.open(options) as workspace:
        questions = network.Questions()
        ask, keys = (questions.ask, questions.keys) if options.egress.ask else (None, None)
        async with await workspace.sandbox(context.report) as client:
            before = warm.NOTHING
            if checkpoint:
                before = await job.kept_before(workspace.keep_before_command, workspace.overlay_path)
            located = await _located(client, workspace, command)
            async with client.allow(options.egress, ask) as allowed:
                located = replace(located, environment={**allowed.environment, **located.environment})
                result = await job.run(client, located, as_json=context.json, is_shell=is_shell, keys=keys)
        name = name or job.named(command.argv)
        landing = None
        if land is not None and not result.exit_code and not result.timed_out and not result.ended_by:
            landing = await land(workspace)
        changes = await job.count(lambda kept: workspace.changes_after(kept, name), workspace.overlay_path, before)
    if context.json:
        try:
            output.write_json(exec_report(result, asked.exit_code(result), changes, landing, allowed.events))
        except BrokenPipeError:
            raise
        except OSError as error:
            asked.cannot_write(1, error)
            # The command's own exit code is still ours.
            output.drop(sys.stdout)
    if not context.json or not asked.is_written(1):
        if not context.quiet:
            network.say_what_was_refused(allowed.events)
        asked.say_how_it_ended(result, changes, context.session, quiet=context.quiet, timeout_ms=command.timeout_ms)
    return asked.exit_code(result)


async def _land(context: Context, check: Command | None, workspace: Workspace) -> Landed | WorkbenchError | None:
    """Land all there is, or say why it waits; the command has run, whatever becomes of that."""
    try:
        with terminal.writer(2) as write:
            landed = await workspace.land_by_itself(check, on_stdout=write, on_stderr=write, report=context.report)
    except WorkbenchError as error:
        if not context.json:
            output.error(error, as_json=False)
        return error
    if landed is not None and not context.json:
        changes = sum(not change.implied for change in landed.committed.changes)
        checked = "after the check passed" if check is not None else "without a check"
        output.say(f"{output.count(changes, 'change')} landed {checked}, as commit {landed.committed.commit_id}")
    return landed


def refresh(
    stop: ForceStopOption = False,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Mount the sandbox anew, so that it sees the real workspace as it is now; what runs in it ends."""
    context = Context(workspace, session, json, quiet)
    run(_refresh, context, stop, context=context)


async def _refresh(context: Context, stop: bool) -> None:
    async with context.open() as workspace:
        ended = await workspace.refresh(force=stop, report=context.report)
    _say_stopped(context, ended, "mounted anew")


def stop(
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """End the warm sandbox and whatever runs in it; what the overlay holds stays."""
    context = Context(workspace, session, json, quiet)
    run(_stop, context, context=context)


async def _stop(context: Context) -> None:
    async with context.open() as workspace:
        ended = await workspace.stop(force=True)
        keep_small(workspace)
    _say_stopped(context, ended, "stopped")


def _say_stopped(context: Context, ended: tuple[JobFacts, ...], what: str) -> None:
    if context.json:
        output.write_json(StopReport(ended=job_reports(ended)))
    elif not context.quiet:
        say_ended(ended)
        output.say(what)
