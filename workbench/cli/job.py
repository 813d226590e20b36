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
from typing import TYPE_CHECKING

import anyio

from workbench import warm
from workbench.cli import output, terminal
from workbench.cli.asked import GRACE_MS, LAST_OUTPUT_S, cannot_write, is_written, say_stopping
from workbench.errors import WorkbenchError
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox.client import KeeperClient
from workbench.sandbox.job import Job, RunningCommand

if TYPE_CHECKING:
    from workbench.review.changeset import ChangeSet

Keys = Callable[[AsyncIterator[bytes]], AsyncIterator[bytes]]

_LONGEST_NAME = 100
_INTERRUPT = b"\x03"
_EMPTY_LINES = b" \r\n"
_AT_ONCE_S = 1.0
_PATIENCE_S = 1.0


async def kept_before(take: Callable[[], Awaitable[str]], overlay_path: str) -> warm.Before:
    """What the overlay holds, kept: by the last checkpoint where nothing changed since, else `take` takes one.

    The command may run where none can be taken, which is said.
    """
    now, _, checkpoint = warm.counted(overlay_path)
    try:
        return warm.Before(now, checkpoint or await take())
    except WorkbenchError as error:
        output.error(error, as_json=False)
        return warm.Before(now)


async def count(
    look: Callable[[str], Awaitable[ChangeSet]],
    overlay_path: str,
    before: warm.Before = warm.NOTHING,
    written: str = "",
) -> int | None:
    """How many changes the overlay holds, which `look` finds, remembered for as long as nothing in it changes.

    `look` gets the commit of what was there before, where there's one and something changed. None where it can't be told,
    which is said: the command has run, whatever it left.
    """
    now, known, _ = warm.counted(overlay_path)
    if known is not None and before.signature in ("", now):
        return known
    try:
        changes = await look(before.checkpoint if now != before.signature else "")
    except WorkbenchError as error:
        output.error(error, as_json=False)
        return None
    warm.note_counted(overlay_path, now, len(changes.shown), changes.checkpoint, written)
    return len(changes.shown)


def named(argv: tuple[str, ...]) -> str:
    """A command on one line, as the log names it."""
    line = shlex.join(argv)
    return line if len(line) <= _LONGEST_NAME else f"{line[:_LONGEST_NAME]}…"


async def run(
    client: KeeperClient, wanted: Command, *, as_json: bool, is_shell: bool = False, keys: Keys | None = None
) -> CommandResult:
    """Run a command to its end with this process's streams, terminal and signals; `as_json` keeps the output back.

    A command with a terminal gets every key, ^C too. Where it lives on after a second, both it and the sandbox are
    stopped, as without a terminal; where something else was typed before, after three at once; a shell (`is_shell`) is
    left alone. What is typed goes through `keys` first, where it's given.
    """
    job = await client.spawn(wanted)
    result: CommandResult | None = None
    asked: list[signal.Signals] = []
    async with anyio.create_task_group() as group, contextlib.AsyncExitStack() as stack:
        if wanted.tty:
            group.start_soon(follow_size, job)
            stack.enter_context(terminal.raw(sys.stdin.fileno()) if sys.stdin.isatty() else contextlib.nullcontext())
        outputs = (
            [None, None] if as_json else [_tolerant(fd, stack.enter_context(terminal.writer(fd))) for fd in (1, 2)]
        )
        try:
            with anyio.CancelScope() as waiting:
                group.start_soon(_pass_signals, client, job, waiting, asked)
                typed = terminal.stdin_bytes()
                if keys is not None:
                    typed = keys(typed)
                if wanted.tty and not is_shell:
                    typed = _watched(typed, lambda: group.start_soon(_stop_both, client, job, waiting, asked))
                result = await job.wait(stdin=typed, on_stdout=outputs[0], on_stderr=outputs[1])
        except BrokenPipeError:
            # Whoever read our output is gone: the command ends as it would have, writing to that pipe itself.
            result = CommandResult(128 + signal.SIGPIPE, signal=signal.SIGPIPE.name)
        group.cancel_scope.cancel()
    return result or CommandResult(128 + asked[-1], signal=asked[-1].name, ended_by="cancel")


def _tolerant(fd: int, write: Callable[[bytes], Awaitable[None]]) -> Callable[[bytes], Awaitable[None]]:
    """`write`, which from its first error on does nothing; but a reader that has gone is still one."""

    async def written(data: bytes) -> None:
        if is_written(fd):
            try:
                await write(data)
            except BrokenPipeError:
                raise
            except OSError as error:
                cannot_write(fd, error)

    return written


async def follow_size(job: RunningCommand) -> None:
    """Give a command's terminal the size of ours each time that changes."""
    async for rows, columns in terminal.sizes(sys.stdout.fileno()):
        await job.resize(rows, columns)


async def _pass_signals(
    client: KeeperClient, job: Job, waiting: anyio.CancelScope, asked: list[signal.Signals]
) -> None:
    """^C goes to the command; a second one, and a SIGTERM, end it; the second ^C the sandbox as well."""
    with anyio.open_signal_receiver(*terminal.ending_signals()) as signals:
        async for number in signals:
            asked.append(number)
            if number != signal.SIGINT:
                await job.kill("cancel", grace_ms=GRACE_MS, first=number)
                # Its last output is waited for, but not for a reader that reads no more.
                waiting.deadline = anyio.current_time() + LAST_OUTPUT_S
            elif asked.count(signal.SIGINT) == 1:
                await job.signal(signal.SIGINT)
            else:
                await _stop_both(client, job, waiting, asked, patience_s=0)


async def _watched(keys: AsyncIterator[bytes], stop: Callable[[], object]) -> AsyncIterator[bytes]:
    """Pass keys on; call `stop` once, after the second ^C.

    Where something else was typed before, after three within a second: two may well be meant for the program, which is
    being used. The empty lines of somebody who waits are no use of it.
    """
    used = False
    pressed: list[float] = []
    async for data in keys:
        yield data
        now = anyio.current_time()
        keystrokes = data.rstrip(_INTERRUPT + _EMPTY_LINES)
        if keystrokes:
            used, pressed = True, []
        pressed += [now] * data.count(_INTERRUPT, len(keystrokes))
        if used:
            pressed = [at for at in pressed if now - at < _AT_ONCE_S]
        if len(pressed) >= (3 if used else 2):
            stop()
            break
    async for data in keys:
        yield data


async def _stop_both(
    client: KeeperClient,
    job: Job,
    waiting: anyio.CancelScope,
    asked: list[signal.Signals],
    patience_s: float = _PATIENCE_S,
) -> None:
    """End the command, where it hasn't ended by itself in `patience_s`, and the sandbox, where nothing else runs in it."""
    await anyio.sleep(patience_s)
    asked.append(signal.SIGINT)
    others = sum(one.client != os.getpid() for one in (await client.info()).running)
    say_stopping(others)
    await job.kill("cancel", discard=True)
    if not others:
        await client.stop(force=True, reason="cancel")
    waiting.cancel()
