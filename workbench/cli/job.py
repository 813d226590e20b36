"""One command in a warm sandbox, on this process's streams, terminal and signals.

Stands on the path of every warm command: it imports nothing heavy.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio

from workbench import warm
from workbench.cli import output, terminal
from workbench.errors import WorkbenchError
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.connection import Job

if TYPE_CHECKING:
    from workbench.review.changeset import ChangeSet

EXIT_TIMEOUT = 124
_GRACE_MS = 1000
_LAST_OUTPUT_S = 5.0
_LONGEST_NAME = 100
_INTERRUPT = b"\x03"
_TWICE_S = 1.0
_PATIENCE_S = 0.5


def wants_tty(said: bool | None) -> bool:
    """Whether a command gets a terminal: what was said, else where standard input and output are one."""
    return said if said is not None else sys.stdin.isatty() and sys.stdout.isatty()


def command(
    argv: tuple[str, ...],
    *,
    with_tty: bool,
    environment: dict[str, str] | None = None,
    timeout_ms: int = 0,
    output_limit: int = 0,
) -> Command:
    """The command for this process's streams; with a terminal its size and kind go along."""
    rows, columns = terminal.size(sys.stdout.fileno())
    kind = {name: os.environ[name] for name in ("TERM", "COLORTERM") if name in os.environ} if with_tty else {}
    return Command(
        argv,
        environment={**kind, **(environment or {})},
        tty=with_tty,
        rows=rows,
        columns=columns,
        stdin=True,
        timeout_ms=timeout_ms,
        output_limit=output_limit,
    )


def located(wanted: Command, target: str, root: bytes, here: bytes) -> Command:
    """The command in the directory that corresponds to `here` inside, where that lies in the workspace `root`.

    `target` is where the sandbox has the workspace. Elsewhere it's the workspace's root.
    """
    inside = os.path.commonpath((here, root)) == root
    cwd = os.path.normpath(os.path.join(target, os.fsdecode(os.path.relpath(here, root)))) if inside else target
    return replace(wanted, cwd=cwd)


@dataclass(frozen=True, slots=True)
class Before:
    """What the overlay held before a command: its signature, and the commit of a checkpoint of it, empty where there's none."""

    signature: str = ""
    checkpoint: str = ""


_NOTHING = Before()


async def kept_before(take: Callable[[], Awaitable[str]], overlay_path: str) -> Before:
    """What the overlay holds, kept: by the last checkpoint where nothing changed since, else `take` takes one.

    The command may run where none can be taken, which is said.
    """
    now, _, checkpoint = warm.counted(overlay_path)
    try:
        return Before(now, checkpoint or await take())
    except WorkbenchError as error:
        output.error(error, as_json=False)
        return Before(now)


async def count(
    look: Callable[[str], Awaitable[ChangeSet]], overlay_path: str, before: Before = _NOTHING
) -> int | None:
    """How many changes the overlay holds, which `look` finds, remembered for as long as nothing in it changes.

    `look` gets the commit of what was there before, where there's one and something changed. None where it can't be told,
    which is said: the command has run, whatever it left.
    """
    now, known, _ = warm.counted(overlay_path)
    if known is not None:
        return known
    try:
        changes = await look(before.checkpoint if now != before.signature else "")
    except WorkbenchError as error:
        output.error(error, as_json=False)
        return None
    warm.note_counted(overlay_path, now, len(changes.shown), changes.checkpoint)
    return len(changes.shown)


def named(argv: tuple[str, ...]) -> str:
    """A command on one line, as the log names it."""
    line = shlex.join(argv)
    return line if len(line) <= _LONGEST_NAME else f"{line[:_LONGEST_NAME]}…"


async def run(client: KeeperClient, wanted: Command, *, as_json: bool, is_shell: bool = False) -> CommandResult:
    """Run a command to its end with this process's streams, terminal and signals; `as_json` keeps the output back.

    A command with a terminal gets every key, ^C too. Where it lives on after two, and nothing else was typed, both it and
    the sandbox are stopped, as without a terminal; a shell (`is_shell`) is left alone.
    """
    job = await client.spawn(wanted)
    result: CommandResult | None = None
    asked: list[signal.Signals] = []
    async with anyio.create_task_group() as group, contextlib.AsyncExitStack() as stack:
        if wanted.tty:
            group.start_soon(_follow_size, job)
            stack.enter_context(terminal.raw(sys.stdin.fileno()) if sys.stdin.isatty() else contextlib.nullcontext())
        outputs = [None, None] if as_json else [stack.enter_context(terminal.writer(fd)) for fd in (1, 2)]
        try:
            with anyio.CancelScope() as waiting:
                group.start_soon(_pass_signals, client, job, waiting, asked)
                keys = terminal.stdin_bytes()
                if wanted.tty and not is_shell:
                    keys = _watched(keys, lambda: group.start_soon(_stop_both, client, job, waiting, asked))
                result = await job.wait(stdin=keys, on_stdout=outputs[0], on_stderr=outputs[1])
        except BrokenPipeError:
            # Whoever read our output is gone: the command ends as it would have, writing to that pipe itself.
            result = CommandResult(128 + signal.SIGPIPE, signal=signal.SIGPIPE.name)
        group.cancel_scope.cancel()
    return result or CommandResult(128 + asked[-1], signal=asked[-1].name, ended_by="cancel")


async def _follow_size(job: Job) -> None:
    async for rows, columns in terminal.sizes(sys.stdout.fileno()):
        await job.resize(rows, columns)


async def _pass_signals(
    client: KeeperClient, job: Job, waiting: anyio.CancelScope, asked: list[signal.Signals]
) -> None:
    """^C goes to the command; a second one, and a SIGTERM, end it; the second ^C the sandbox as well."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as signals:
        async for number in signals:
            asked.append(number)
            if number != signal.SIGINT:
                await job.kill("cancel", grace_ms=_GRACE_MS)
                # Its last output is waited for, but not for a reader that reads no more.
                waiting.deadline = anyio.current_time() + _LAST_OUTPUT_S
            elif asked.count(signal.SIGINT) == 1:
                await job.signal(signal.SIGINT)
            else:
                await _stop_both(client, job, waiting, asked, patience_s=0)


async def _watched(keys: AsyncIterator[bytes], stop: Callable[[], object]) -> AsyncIterator[bytes]:
    """Pass keys on; call `stop` after two ^C within a second, unless somebody is using the program: typed anything else."""
    watching, last = True, -_TWICE_S
    async for data in keys:
        yield data
        watching = watching and not data.strip(_INTERRUPT)
        for _ in data if watching else b"":
            now = anyio.current_time()
            if now - last < _TWICE_S:
                watching = False
                stop()
                break
            last = now


async def _stop_both(
    client: KeeperClient,
    job: Job,
    waiting: anyio.CancelScope,
    asked: list[signal.Signals],
    patience_s: float = _PATIENCE_S,
) -> None:
    """End the command and the sandbox, where the command hasn't ended by itself in `patience_s`."""
    await anyio.sleep(patience_s)
    asked.append(signal.SIGINT)
    output.say("stopping the command and the sandbox")
    await job.kill("cancel", discard=True)
    await client.stop(force=True, reason="cancel")
    waiting.cancel()


def exit_code(result: CommandResult) -> int:
    """What this process ends with: the command's own exit code, or 124 where its time was up."""
    return EXIT_TIMEOUT if result.timed_out else result.exit_code


def say_how_it_ended(result: CommandResult, changes: int | None, *, quiet: bool, timeout_ms: int) -> None:
    """What the exit code alone doesn't tell, a line each on stderr."""
    if result.timed_out:
        output.say(f"ended after {timeout_ms / 1000:g} s, its time limit")
    elif result.ended_by:
        output.say(f"ended by {result.ended_by}")
    elif result.out_of_memory:
        output.say("it, or a process of it, was killed: the sandbox ran out of memory")
    if result.omitted_bytes:
        output.say(f"{result.omitted_bytes:,} bytes of its output were left out, between the head and the tail")
    if quiet or result.ended_by:
        return
    if result.stopped_processes:
        output.say(f"ended {result.stopped_processes} of its processes that were still running")
    if changes:
        output.say(f"{output.count(changes, 'file')} changed: workbench diff, workbench commit")
