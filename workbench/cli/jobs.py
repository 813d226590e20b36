"""`ps`, `logs`, `attach`, `wait` and `kill`: the commands that run in a warm sandbox."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Iterable
from typing import Annotated

import anyio
import typer

from workbench.cli import output, terminal
from workbench.cli.asked import exit_code
from workbench.cli.job import follow_size
from workbench.cli.options import Context, JsonOption, QuietOption, SessionOption, WorkspaceOption, run
from workbench.cli.report import job_reports
from workbench.errors import OptionsError
from workbench.protocol.commands import CommandResult
from workbench.protocol.reports import JobsReport, LogsReport, text
from workbench.sandbox import frames
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.facts import JobFacts
from workbench.sandbox.job import AttachedJob

_DETACH_KEYS = b"\x10\x11"  # ^P ^Q, as elsewhere
_SHOWN_AT_FIRST = 10
_GRACE_MS = 2000

JobArgument = Annotated[str, typer.Argument(metavar="ID", help="Its id, or the beginning of it.")]


def ps(
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
) -> None:
    """What runs in the sandbox, and what ended lately in the background."""
    context = Context(workspace, session, json)
    run(_ps, context, context=context)


async def _ps(context: Context) -> None:
    async with context.open() as workspace:
        found = await workspace.jobs()
    if context.json:
        output.write_json(JobsReport(jobs=job_reports(found)))
        return
    print(f"{'ID':8}  {'STATE':18}  {'RAN':>6}  {'CPU':>7}  {'MEMORY':>8}  COMMAND")
    for job in found:
        cpu_ms = job.result.user_cpu_ms + job.result.system_cpu_ms if job.result else job.cpu_ms
        memory = f"{job.memory_bytes >> 20} MiB" if job.memory_bytes else ""
        print(
            f"{job.id:8}  {_state(job):18}  {age(job.running_ms):>6}  {cpu_ms / 1000:>5.1f} s  {memory:>8}  {shown(job)}"
        )


def _state(job: JobFacts) -> str:
    if job.result is not None:
        return f"{job.result.signal or f'exit {job.result.exit_code}'}"
    if job.over:
        return "lost"
    return "running" if job.background else f"running for {job.client}"


def age(milliseconds: int) -> str:
    """A length of time in its two largest units at most: `340 ms`, `12 s`, `5 m`, `3 h`, `2 d`."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1000, "s")):
        if milliseconds >= size:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds} ms"


def shown(job: JobFacts) -> str:
    """The command of a job as one line for people."""
    return output.visible(os.fsencode(shlex.join(job.argv)))


def say_ended(ended: Iterable[JobFacts]) -> None:
    """Say which commands something ended, a line each."""
    for job in ended:
        where = " in the background" if job.background else ""
        output.say(f"ended {job.id}, which ran{where} for {age(job.running_ms)}: {shlex.join(job.argv)}")


def logs(
    job: JobArgument,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", metavar="", help="Go on with what comes, until it has ended.")
    ] = False,
    tail: Annotated[
        int | None, typer.Option("--tail", min=0, metavar="LINES", help="Only so many lines from the end on.")
    ] = None,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
) -> None:
    """What a command in the background wrote; of much output its beginning and its end are kept."""
    if json and follow:
        raise typer.BadParameter("--json prints one object, so it can't go with --follow.")
    context = Context(workspace, session, json)
    run(_logs, context, job, follow, tail, context=context)


async def _logs(context: Context, job: str, follow: bool, tail: int | None) -> None:
    kept, left_out = {frames.STDOUT: bytearray(), frames.STDERR: bytearray()}, 0

    def count(size: int) -> None:
        nonlocal left_out
        left_out += size

    async with context.open() as workspace, workspace.attached(job, tail=tail, follow=follow) as attached:
        if not context.json:
            await _follow(attached)
            return
        result = await attached.wait(
            on_stdout=kept[frames.STDOUT].extend, on_stderr=kept[frames.STDERR].extend, on_left_out=count
        )
    output.write_json(
        LogsReport(
            id=job,
            state="ended" if result else "running",
            stdout=text(bytes(kept[frames.STDOUT])),
            stderr=text(bytes(kept[frames.STDERR])),
            omitted_bytes=left_out,
        )
    )


async def _follow(attached: AttachedJob, stdin: AsyncIterator[bytes] | None = None) -> CommandResult | None:
    """Pass a job's output on to ours."""
    with terminal.writer(1) as out, terminal.writer(2) as err:
        return await attached.wait(stdin=stdin, on_stdout=out, on_stderr=err, on_left_out=_say_left_out)


def _say_left_out(size: int) -> None:
    output.say(f"{size:,} bytes of its output aren't kept any more")


def attach(
    job: JobArgument,
    stdin: Annotated[
        bool, typer.Option("--stdin/--no-stdin", metavar="", help="Whether it gets what is typed, or piped, here.")
    ] = True,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    quiet: QuietOption = False,
) -> None:
    """Follow a command in the background, and type into it; ends with its exit code.

    It goes on when you leave: with ^P ^Q where it has a terminal, else with ^C. What is piped in goes to a command that
    was started with `-i`, whose input ends with it.
    """
    context = Context(workspace, session, quiet=quiet)
    raise typer.Exit(run(_attach, context, job, stdin, context=context))


async def _attach(context: Context, name: str, with_stdin: bool) -> int:
    async with context.open() as workspace, await workspace.running() as client:
        job = await _known(client, name)
        attached = await client.attach(job.id, tail=_SHOWN_AT_FIRST)
        result: CommandResult | None = None
        async with anyio.create_task_group() as group, contextlib.AsyncExitStack() as stack:
            group.start_soon(_leave_on_signals, attached)
            keys = terminal.stdin_bytes() if with_stdin else None
            if job.tty and keys is not None:
                keys = _until_detached(keys, attached)
                if sys.stdin.isatty():
                    stack.enter_context(terminal.raw(sys.stdin.fileno()))
            if job.tty and sys.stdout.isatty():
                await attached.resize(*terminal.size(sys.stdout.fileno()))
                group.start_soon(follow_size, attached)
            result = await _follow(attached, keys)
            group.cancel_scope.cancel()
    if result is not None:
        return exit_code(result)
    if not context.quiet:
        attach, kill = (output.command(f"{words} {job.id}", context.session) for words in ("attach", "kill"))
        output.say(f"left {job.id}, which goes on: {attach}, {kill}")
    return 0


async def _known(client: KeeperClient, name: str) -> JobFacts:
    """The one job in the background of that name. Raises SandboxError (job_not_found)."""
    found = [job for job in await client.jobs() if job.id.startswith(name) and job.background]
    if len(found) != 1:
        # The keeper says what is wrong with the name.
        await (await client.attach(name, tail=0, follow=False)).wait()
    return found[0]


async def _leave_on_signals(attached: AttachedJob) -> None:
    with anyio.open_signal_receiver(*terminal.ending_signals()) as signals:
        async for _ in signals:
            await attached.detach()


async def _until_detached(keys: AsyncIterator[bytes], attached: AttachedJob) -> AsyncIterator[bytes]:
    """Pass keys on until the two come that mean to leave; the first is held back until it's clear what it is."""
    held = b""
    async for data in keys:
        data, found, _ = (held + data).partition(_DETACH_KEYS)
        held = _DETACH_KEYS[:1] if not found and data.endswith(_DETACH_KEYS[:1]) else b""
        if data.removesuffix(held):
            yield data.removesuffix(held)
        if found:
            await attached.detach()
            await anyio.sleep_forever()
    # The end of what is typed here is none of what the others type.
    await anyio.sleep_forever()


def wait(
    job: JobArgument,
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
) -> None:
    """Wait until a command in the background has ended; ends with its exit code."""
    context = Context(workspace, session, json)
    raise typer.Exit(run(_wait, context, job, context=context))


async def _wait(context: Context, name: str) -> int:
    async with context.open() as workspace, await workspace.running() as client:
        result = await (await client.attach(name, tail=0)).wait()
        assert result is not None  # nobody detaches it
        if context.json:
            output.write_json(JobsReport(jobs=job_reports([await _known(client, name)])))
    return exit_code(result)


def kill(
    job: Annotated[list[str], typer.Argument(metavar="ID", help="Their ids, or the beginnings of them.")],
    signal_name: Annotated[
        str,
        typer.Option(
            "-s", "--signal", metavar="SIGNAL", help="Only send this signal (INT, SIGHUP, 15) to the command."
        ),
    ] = "",
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """End commands of the sandbox with everything they started: asked first, killed two seconds later."""
    context = Context(workspace, session, json, quiet)
    run(_kill, context, job, signal_name, context=context)


async def _kill(context: Context, names: list[str], signal_name: str) -> None:
    number = _signal_number(signal_name) if signal_name else 0
    async with context.open() as workspace, await workspace.running() as client:
        before = await client.jobs()
        for name in names:
            if number:
                await client.signal_job(name, number)
            else:
                await client.end_job(name, grace_ms=_GRACE_MS)
        after = {job.id: job for job in await client.jobs()}
    meant = [after.get(job.id, job) for job in before if any(job.id.startswith(name) for name in names)]
    if context.json:
        output.write_json(JobsReport(jobs=job_reports(meant)))
    elif not context.quiet and not number:
        say_ended(meant)


def _signal_number(name: str) -> int:
    """A signal by its name, with or without SIG, or its number. Raises OptionsError."""
    if name.isascii() and name.isdigit():
        return int(name)
    try:
        return signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
    except KeyError:
        raise OptionsError(f"There is no signal {name!r}.", hint="`kill -l` lists their names.") from None
