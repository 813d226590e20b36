"""Tools that run commands in the workspace's sandbox."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from pydantic import Field

from workbench.errors import SandboxError
from workbench.protocol.commands import Command, CommandResult
from workbench.tools.base import Tool
from workbench.tools.places import place
from workbench.tools.workspace_tool import RESULT_CHARACTERS, Arguments, WorkspaceTool, shortened
from workbench.workspace import Workspace

_OUTPUT_BYTES = RESULT_CHARACTERS
_SECONDS = 100
"""By default; below the time that a run grants a call (`SessionOptions.tool_call_timeout`), so that its output is seen."""

_MOST_SECONDS = 3_600
_TAIL_LINES = 200


_HINTS = {
    "job_not_found": "Take the id that shell gave; what an earlier sandbox ran is gone, and has to be started again.",
    "sandbox_busy": "Wait for a command, or end one: read_output with stop.",
}


class Shell(Arguments):
    command: str = Field(description="A command line, run by bash -c, or sh where there's no bash.")
    directory: str = Field(default=".", description="Where to run it, relative to the workspace's root.")
    timeout_seconds: int = Field(default=_SECONDS, ge=1, le=_MOST_SECONDS, description="When to end it.")
    background: bool = Field(default=False, description="Leave it running, for a server or what takes long.")


class ReadOutput(Arguments):
    job: str = Field(description="The id that the command got in the background.")
    lines: int = Field(default=_TAIL_LINES, ge=1, description="How many of its last lines to read.")
    stop: bool = Field(default=False, description="End the command first.")


class ShellTools:
    """Tools over the sandbox of one workspace."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace

    def tools(self) -> tuple[Tool, ...]:
        """All of them."""
        return (WorkspaceTool(self.shell, Shell), WorkspaceTool(self.read_output, ReadOutput, parallel=True))

    async def shell(self, args: Shell) -> str:
        """Run a command in the sandbox, whose working directory is the workspace, and return its output.

        What it changes in the workspace is seen by all tools at once. Nothing of it outlives the call unless it runs in
        the background; read_output then says how it goes.
        """
        directory = await place(self._workspace, args.directory)
        script = 'if command -v bash >/dev/null; then exec bash -c "$0"; fi; exec sh -c "$0"'
        command = Command(
            ("sh", "-c", script, args.command),
            cwd=os.fsdecode(directory),
            output_limit=0 if args.background else _OUTPUT_BYTES,
            timeout_ms=0 if args.background else args.timeout_seconds * 1000,
            label=args.command,
        )
        if args.background:
            with _hints_for_a_model():
                job = await self._workspace.start_job(command)
            return f"Started in the background as {job}; read_output says how it goes."
        return told(await self._workspace.exec(command))

    async def read_output(self, args: ReadOutput) -> str:
        """Read the last lines of a command that was left in the background, and whether it has ended."""
        output = bytearray()
        left_out: list[int] = []
        with _hints_for_a_model():
            if args.stop:
                await self._workspace.end_job(args.job, grace_ms=2_000)
            async with self._workspace.attached(args.job, tail=args.lines, follow=args.stop) as job:
                result = await job.wait(on_stdout=output.extend, on_stderr=output.extend, on_left_out=left_out.append)
        text = shortened(output.decode(errors="replace").rstrip("\n"))
        if left_out:
            text += f"\n[{sum(left_out)} bytes of the output weren't kept]"
        return "\n".join(filter(None, (text, f"[{_ended(result) if result else 'still running'}]")))


@contextlib.contextmanager
def _hints_for_a_model() -> Iterator[None]:
    """What to do next with these tools: a person's hint names commands that a model hasn't."""
    try:
        yield
    except SandboxError as error:
        error.hint = _HINTS.get(error.code, error.hint)
        raise


def told(result: CommandResult) -> str:
    """A command's result for a model to read: its output, errors after it, and how it ended."""
    parts = [result.stdout.decode(errors="replace").rstrip("\n")]
    if errors := result.stderr.decode(errors="replace").rstrip("\n"):
        parts += ["[errors]", errors] if parts[0] else [errors]
    if result.omitted_bytes:
        parts.append(f"[{result.omitted_bytes} bytes of the output were left out in the middle]")
    parts.append(f"[{_ended(result)}]")
    return "\n".join(filter(None, parts))


def _ended(result: CommandResult) -> str:
    how = f"exit code {result.exit_code}"
    if result.signal:
        how += f", by {result.signal}"
    if result.timed_out:
        how = "ended: it took longer than its timeout"
    if result.out_of_memory:
        how += "; the sandbox ran out of memory"
    if result.out_of_processes:
        how += "; the sandbox ran out of processes"
    if result.tmp_full:
        how += "; /tmp, which is in memory, is full"
    if result.home_full:
        how += "; the home directory, which is in memory, is full"
    if result.ended_by:
        how += f"; ended by {result.ended_by}"
    if result.stopped_processes:
        how += f"; {result.stopped_processes} processes that it had left running were ended"
    return how
