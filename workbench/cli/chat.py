"""`chat`: a conversation with an agent at a terminal, over the workspace's overlay."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

import anyio
import typer

from workbench.cli import network
from workbench.cli.agent_run import KeyCommandOption, ModelOption, NoNotesOption, YesOption
from workbench.cli.network import AllowHostOption
from workbench.cli.options import BackendOption, Context, ImageOption, SessionOption, WorkspaceOption, failing
from workbench.errors import OptionsError
from workbench.mounting import SandboxOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What a chat is begun with: the options of `workbench chat`, as they are without being given."""

    model: str = ""
    key_command: str = ""
    check: str = ""
    max_turns: int = 50
    budget: float | None = None
    yes: bool = False
    notes: bool = True
    new: bool = False


_PLAIN = Wishes()


def chat(
    model: ModelOption = "",
    key_command: KeyCommandOption = "",
    new: Annotated[
        bool, typer.Option("--new", metavar="", help="Begin an empty conversation; the files stay as they are.")
    ] = False,
    check: Annotated[
        str,
        typer.Option("--check", metavar="CMD", help="A shell command that has to pass before /commit lands anything."),
    ] = "",
    max_turns: Annotated[
        int,
        typer.Option(
            "--max-turns", min=1, metavar="N", help="End what a message began after so many replies of the model."
        ),
    ] = 50,
    budget: Annotated[
        float | None,
        typer.Option(
            "--budget", min=0, metavar="USD", help="End what a message began once its model has cost this much."
        ),
    ] = None,
    yes: YesOption = False,
    no_notes: NoNotesOption = False,
    allow_host: AllowHostOption = None,
    image: ImageOption = "",
    backend: BackendOption = "auto",
    workspace: WorkspaceOption = None,
    session: SessionOption = "default",
) -> None:
    """Talk with an agent at the terminal, message by message; nothing of the workspace changes before you say /commit.

    It goes on with the session's conversation. Alt-Enter, or a \\ at the end of a line, adds a line to a message; ^C stops
    what goes on; ^D ends. /help lists the commands: /diff, /commit, /review, /rewind, /redo, /model and more.
    """
    with failing(False):
        options = SandboxOptions(
            backend=backend, image=image, egress=network.egress(allow_host, False, 0, None, None, None)
        )
    wishes = Wishes(
        model=model,
        key_command=key_command,
        check=check,
        max_turns=max_turns,
        budget=budget,
        yes=yes,
        notes=not no_notes,
        new=new,
    )
    converse(Context(workspace, session), options, wishes)


def converse(context: Context, options: SandboxOptions | None = None, wishes: Wishes = _PLAIN) -> None:
    """Talk in a session of a workspace until the person ends it.

    Raises typer.Exit with the exit code, after the error was said, where it isn't ended by them: 2 without a terminal.
    """
    with failing(False):
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise OptionsError(
                "A chat needs a terminal to type at.",
                hint="Without one: workbench run TASK, and --continue to go on with the session's conversation.",
            )
        # What asks models and reads lines takes longer to import than most commands to run.
        from workbench.cli.chat_loop import Chat

        code = anyio.run(Chat(context, options, wishes).run)
    if code:
        raise typer.Exit(code)
