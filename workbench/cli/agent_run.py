"""`run`: an agent works on a task in the workspace's overlay, and what it did waits for a review unless you say otherwise."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import anyio
import typer

from workbench.cli import network, output
from workbench.cli.network import AllowHostOption
from workbench.cli.options import (
    BackendOption,
    Context,
    ImageOption,
    QuietOption,
    SessionOption,
    WorkspaceOption,
    failing,
)
from workbench.errors import OptionsError
from workbench.mounting import SandboxOptions
from workbench.review import policy
from workbench.review.policy import Mode

ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="PROVIDER/NAME",
        envvar="WORKBENCH_MODEL",
        help="The model to ask; by default that of [agent] in your configuration. workbench models lists them.",
    ),
]
KeyCommandOption = Annotated[
    str, typer.Option("--key-command", metavar="CMD", help="A command that prints the model's key.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", metavar="", help="Approve every call of a tool that would be asked about.")
]
NoNotesOption = Annotated[
    bool,
    typer.Option(
        "--no-project-notes",
        metavar="",
        help="Don't read AGENTS.md, CLAUDE.md and the like into the prompt; else they are, as untrusted.",
    ),
]


def run(
    task: Annotated[str, typer.Argument(metavar="TASK", help="What to do.")] = "",
    prompt_file: Annotated[
        str, typer.Option("--prompt-file", metavar="FILE", help="Read the task from a file; - is standard input.")
    ] = "",
    model: ModelOption = "",
    key_command: KeyCommandOption = "",
    continued: Annotated[
        bool,
        typer.Option("--continue", metavar="", help="Go on with the session's conversation, not with an empty one."),
    ] = False,
    check: Annotated[
        str, typer.Option("--check", metavar="CMD", help="A shell command that has to pass, over what would land.")
    ] = "",
    commit: Annotated[
        Mode | None,
        typer.Option(
            "--commit",
            metavar="MODE",
            help="review, never, or success, which lands all there is when the run succeeded (and the check passed); what is "
            "risky, or a rule of yours asks about, waits for a review. By default the policy of [commit] in your "
            "configuration, else review.",
        ),
    ] = None,
    max_turns: Annotated[
        int, typer.Option("--max-turns", min=1, metavar="N", help="End the run after so many replies of the model.")
    ] = 50,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget",
            min=0,
            metavar="USD",
            help="End the run once its model has cost this much; --attempts share it.",
        ),
    ] = None,
    attempts: Annotated[
        int,
        typer.Option(
            "--attempts",
            min=1,
            metavar="N",
            help="Make several attempts side by side, each in a fork of the session; the best of them is offered. Each gets an "
            "equal part of the budget, and all of the time and the turns.",
        ),
    ] = 1,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            min=1,
            metavar="K",
            help="Attempts at a time; by default half as many as there are cores, at least 2.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="End the run after this time.")
    ] = 3600,
    yes: YesOption = False,
    no_notes: NoNotesOption = False,
    events: Annotated[
        str, typer.Option("--events", metavar="FILE", help="Also write every event to a file, a JSON object a line.")
    ] = "",
    allow_host: AllowHostOption = None,
    image: ImageOption = "",
    backend: BackendOption = "auto",
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
    json: Annotated[
        bool,
        typer.Option("--json", metavar="", help="Print every event as a JSON object on a line, and the result last."),
    ] = False,
    quiet: QuietOption = False,
) -> None:
    """Have an agent work on a task; nothing of the workspace changes, unless you or your policy say --commit success.

    It ends with 0 when it's done and nothing waits, 5 at a limit (turns, budget, time, no progress), 6 where the
    check failed, 7 where the changes wait for your review, 130 after ^C. With --json every event is an object on a line,
    and the last line is the result.

    With --attempts the best is the one that succeeded, passed the check, and has the smallest change; what the session
    holds is then what that one left, and `workbench attempts` has the others. Where none is good enough nothing is
    offered, and it ends with 6 where a check failed.
    """
    # What asks models takes longer to import than most commands to run.
    from workbench.cli.agent_job import Job, Wishes

    context = Context(workspace, session, json, quiet)
    with failing(json):
        options = SandboxOptions(
            backend=backend, image=image, egress=network.egress(allow_host, False, 0, None, None, None)
        )
        wishes = Wishes(
            task=_task(task, prompt_file),
            model=model,
            key_command=key_command,
            continued=continued,
            check=check,
            commit=commit or policy.load(session).policy,
            max_turns=max_turns,
            budget=budget,
            timeout=timeout,
            yes=yes,
            notes=not no_notes,
            events=events,
        )
        job = Job(context, options, wishes)
        if attempts == 1:
            code = anyio.run(job.run)
        else:
            from workbench.cli.attempts_job import AttemptsJob

            at_once = jobs or max(2, len(os.sched_getaffinity(0)) // 2)
            code = anyio.run(AttemptsJob(job, attempts, at_once).run)
    raise typer.Exit(code)


def _task(task: str, prompt_file: str) -> str:
    if bool(task) == bool(prompt_file):
        raise typer.BadParameter("Say what to do, or where that stands (--prompt-file).")
    text = task or _read(prompt_file)
    if not text.strip():
        raise typer.BadParameter("The task is empty.")
    return text


def _read(prompt_file: str) -> str:
    """Raises OptionsError where that isn't text, OSError."""
    data = sys.stdin.buffer.read() if prompt_file == "-" else Path(prompt_file).read_bytes()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        where = "Standard input" if prompt_file == "-" else output.path(os.fsencode(prompt_file))
        raise OptionsError(
            f"{where} isn't text in UTF-8: byte {error.start + 1:,} isn't.", hint="Convert it, with iconv for example."
        ) from error
