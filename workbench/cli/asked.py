"""A command as this process has it run, and how its end is told; whoever runs it.

Stands on the path of every warm command: it imports nothing heavy.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

from workbench.cli import output, terminal
from workbench.protocol.commands import Command, CommandResult

EXIT_TIMEOUT = 124
GRACE_MS = 1000
"""What a command that is to end has between SIGTERM and SIGKILL."""

LAST_OUTPUT_S = 5.0
"""How long the last output of a command that was told to end is waited for."""


_unwritten: dict[int, OSError] = {}
"""Why no more of what the command writes goes to our standard output or error: there is one command in a process."""


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


def say_stopping(others: int) -> None:
    """Say that the command is being stopped, and the sandbox, unless `others` run in it."""
    what = f"the sandbox stays, where {output.count(others, 'other command')} run" if others else "and the sandbox"
    output.say(f"stopping the command{';' if others else ''} {what}")


def is_written(fd: int) -> bool:
    """Whether all that the command wrote went to a standard stream of ours."""
    return fd not in _unwritten


def cannot_write(fd: int, error: OSError) -> None:
    """From here on a standard stream of ours takes nothing; the command, whose work it isn't to blame for, goes on."""
    _unwritten[fd] = error


def exit_code(result: CommandResult) -> int:
    """What this process ends with: the command's own exit code, 124 where its time was up, 1 where its output is lost."""
    return EXIT_TIMEOUT if result.timed_out else result.exit_code or bool(_unwritten)


def say_how_it_ended(result: CommandResult, changes: int | None, session: str, *, quiet: bool, timeout_ms: int) -> None:
    """What the exit code alone doesn't tell, a line each on stderr."""
    for fd, error in _unwritten.items():
        output.say(
            f"{'standard output' if fd == 1 else 'standard error'} can't be written to: {error.strerror}; the rest of what "
            f"the command wrote there is lost, which itself ended with exit code {result.exit_code}"
        )
    if result.timed_out:
        output.say(f"ended after {timeout_ms / 1000:g} s, its time limit")
    elif result.ended_by == "disk_limit":
        output.say("ended: what the overlay holds grew over its limit (--disk)")
    elif result.ended_by == "disk_full":
        output.say("ended: the disk that holds the overlay is nearly full")
    elif result.ended_by:
        output.say(f"ended by {result.ended_by}")
    elif result.out_of_memory:
        output.say("a process was killed: the sandbox ran out of memory (--memory)")
    elif result.out_of_processes:
        output.say("the sandbox ran out of processes (--pids), and couldn't start all that were wanted")
    elif result.tmp_full:
        output.say("/tmp, which is in memory, is full (--tmp-size)")
    elif result.home_full:
        output.say("the home directory, which is in memory, is full (--home-size)")
    if result.omitted_bytes:
        output.say(f"{result.omitted_bytes:,} bytes of its output were left out, between the head and the tail")
    if quiet or result.ended_by:
        return
    if result.stopped_processes:
        output.say(f"ended {result.stopped_processes} of its processes that were still running")
    if changes:
        output.say(f"{output.count(changes, 'file')} changed: {output.command('review', session)}")
