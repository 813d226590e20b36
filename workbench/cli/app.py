"""The `workbench` command: its commands, and the status that it shows without one."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from workbench import __version__
from workbench.cli.agent_run import run
from workbench.cli.attempts import attempts
from workbench.cli.chat import chat
from workbench.cli.decide import commit, revert
from workbench.cli.discard import discard
from workbench.cli.doctor import doctor
from workbench.cli.execute import execute, refresh, shell, stop
from workbench.cli.images import images
from workbench.cli.jobs import attach, kill, logs, ps, wait
from workbench.cli.look import diff, status
from workbench.cli.ls import ls
from workbench.cli.merge import merge
from workbench.cli.models import models
from workbench.cli.port import port
from workbench.cli.prune import command as prune
from workbench.cli.review import review
from workbench.cli.serve import serve
from workbench.cli.sessions import sessions
from workbench.cli.transcripts import transcripts
from workbench.cli.travel import checkpoint, fork, log, redo, rewind
from workbench.cli.wrap import wrap

WORK, BACKGROUND, LOOK, DECIDE = "Work", "In the background", "Look", "Decide"
TRAVEL, OTHERS = "Travel", "Others"

app = typer.Typer(
    name="workbench",
    help="Let an agent, or any command, work on a real directory without touching it.",
    epilog="Start with: workbench exec -- COMMAND. Nothing of the directory changes before workbench commit. "
    "Every command ends with 0 when it's done, 1 after an error, 2 when used wrongly, 3 at a conflict with the real "
    "workspace, 4 where a rule refuses, 6 where a check failed; exec with what its command ended with; "
    "run also with 5 at a limit, and 7 where its changes wait for your review.",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)

app.command("exec", rich_help_panel=WORK, context_settings={"allow_interspersed_args": False})(execute)
app.command(rich_help_panel=WORK)(shell)
app.command(rich_help_panel=WORK)(run)
app.command(rich_help_panel=WORK)(chat)
app.command(rich_help_panel=WORK, context_settings={"allow_interspersed_args": False})(wrap)
app.command(rich_help_panel=BACKGROUND)(ps)
app.command(rich_help_panel=BACKGROUND)(logs)
app.command(rich_help_panel=BACKGROUND)(attach)
app.command(rich_help_panel=BACKGROUND)(wait)
app.command(rich_help_panel=BACKGROUND)(kill)
app.command(rich_help_panel=BACKGROUND)(port)
app.command(rich_help_panel=WORK)(refresh)
app.command(rich_help_panel=WORK)(stop)
app.command(rich_help_panel=LOOK)(status)
app.command(rich_help_panel=LOOK)(diff)
app.command(rich_help_panel=LOOK)(ls)
app.add_typer(sessions, name="sessions", rich_help_panel=LOOK)
app.command(rich_help_panel=LOOK)(log)
app.command(rich_help_panel=LOOK)(doctor)
app.command(rich_help_panel=DECIDE)(review)
app.command(rich_help_panel=DECIDE)(commit)
app.command(rich_help_panel=DECIDE)(merge)
app.command(rich_help_panel=DECIDE)(revert)
app.command(rich_help_panel=DECIDE)(discard)
app.command(rich_help_panel=TRAVEL)(checkpoint)
app.command(rich_help_panel=TRAVEL)(rewind)
app.command(rich_help_panel=TRAVEL)(redo)
app.command(rich_help_panel=TRAVEL)(fork)
app.add_typer(attempts, name="attempts", rich_help_panel=TRAVEL)
app.command("prune", rich_help_panel=TRAVEL)(prune)
app.add_typer(models, name="models", rich_help_panel=OTHERS)
app.add_typer(images, name="images", rich_help_panel=OTHERS)
app.add_typer(transcripts, name="transcripts", rich_help_panel=OTHERS)
app.command(rich_help_panel=OTHERS)(serve)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"workbench {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", metavar="", callback=_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Let an agent, or any command, work on a real directory without touching it.

    Everything it does lands in a copy-on-write overlay. Look at it with `review`, land it with `commit`, or `discard` it.
    """
    if context.invoked_subcommand is None:
        context.invoke(status, workspace=None, session=os.environ.get("WORKBENCH_SESSION") or "default", json=False)
