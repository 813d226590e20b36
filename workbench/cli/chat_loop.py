"""One chat from its beginning to its end. Imported once that's wanted: it takes a while."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import anyio

from workbench.agent.options import SessionOptions
from workbench.agent.permissions import PermissionRules
from workbench.agent.prompt import title_from_input
from workbench.agent.settings import load
from workbench.cli import output, terminal
from workbench.cli.approving import Approver, approve_all
from workbench.cli.chat import Wishes
from workbench.cli.chat_commands import COMMANDS, Commands
from workbench.cli.chat_input import InputLine
from workbench.cli.chat_partner import Partner
from workbench.cli.conversation import Calls, Conversation, how_it_ended, note
from workbench.cli.failure import find_error
from workbench.cli.interrupts import Interrupts
from workbench.cli.look import count_changes
from workbench.cli.options import Context, keep_small
from workbench.errors import RunFailedError, WorkbenchError
from workbench.mounting import SandboxOptions
from workbench.protocol.runs import Budget, EndReason
from workbench.workspace import Workspace

_RUN_SECONDS = 86_400.0
"""How long a run may take, questions and their answers included: whoever is there ends it by ^C."""


class Chat:
    """One call of `chat`."""

    def __init__(self, context: Context, options: SandboxOptions | None, wishes: Wishes) -> None:
        """Raises OptionsError where the person's configuration can't be read."""
        self._context = context
        self._options = options
        self._wishes = wishes
        self._settings = load()
        self._interrupts = Interrupts()
        self._calls = Calls()

    async def run(self) -> int:
        """Until the person ends it, or a signal does; the exit code."""
        async with self._context.open(self._options) as workspace:
            with anyio.CancelScope() as whole, self._interrupts.heard(whole.cancel):
                async with self._partner(workspace) as partner:
                    await self._talk(workspace, partner)
            keep_small(workspace)
        return 128 + self._interrupts.ended_by if self._interrupts.ended_by else 0

    def _partner(self, workspace: Workspace) -> Partner:
        rules = PermissionRules(self._settings.permissions)
        approve = approve_all if self._wishes.yes else Approver(workspace, rules, lasting="the rest of the chat")
        options = SessionOptions(
            max_turns=self._wishes.max_turns,
            run_timeout=_RUN_SECONDS,
            budget=Budget(run_usd=self._wishes.budget) if self._wishes.budget is not None else None,
            resolve_permission=rules,
            approve=approve,
        )
        name = self._wishes.model or self._settings.model
        return Partner(workspace, name, self._wishes.key_command, options, notes=self._wishes.notes)

    async def _talk(self, workspace: Workspace, partner: Partner) -> None:
        commands = Commands(workspace, partner, self._calls, self._wishes.check)
        if self._wishes.new:
            await commands.new()
        await self._greet(workspace, partner, commands)
        history = os.path.join(workspace.directory, "chat_history")
        line = InputLine(history, {name: what for name, (_, what) in COMMANDS.items()})
        while not commands.ended and (typed := await line.read()) is not None:
            with anyio.CancelScope() as scope, self._interrupts.to(scope.cancel), _failures_said():
                if typed.startswith("/") and not typed.startswith("//"):
                    await commands.run(typed)
                elif typed.strip():
                    await self._say(workspace, partner, typed.removeprefix("/"))
            if scope.cancelled_caught and not self._interrupts.ended_by:
                output.say("stopped")
        if changes := await count_changes(workspace):
            review = output.command("review", workspace.session)
            output.say(f"{output.count(changes, 'file')} changed, not landed yet: {review}")

    async def _greet(self, workspace: Workspace, partner: Partner, commands: Commands) -> None:
        messages = await commands.messages()
        so_far = f"{output.count(len(messages), 'message')} so far" if messages else "a new conversation"
        output.say(f"session {workspace.session}, with {partner.name or 'no model yet'}: {so_far}")
        for role, mark in (("user", ">"), ("assistant", " ")):
            last = next((each.content for each in reversed(messages) if each.role == role and each.content), "")
            if last:
                note(f"{mark} {title_from_input(last)}")
        output.say("/help lists what you can say; ^D ends")

    async def _say(self, workspace: Workspace, partner: Partner, text: str) -> None:
        """One message, and what becomes of it."""
        session = await partner.session()
        conversation = Conversation()
        failed: RunFailedError | None = None
        # What is typed meanwhile is for the next line, and isn't shown in the midst of the reply.
        with terminal.echo(sys.stdin.fileno(), False):
            async with await session.run(text) as run:
                with self._interrupts.to(run.cancel), conversation:
                    async for event in run:
                        self._calls.note(event)
                        conversation.show(event)
            try:
                result = await run.result()
            except RunFailedError as error:
                failed = error
            changes = await count_changes(workspace)
        files = [f"{output.count(changes, 'file')} changed: /diff, /commit"] if changes else []
        if failed is not None:
            output.error(failed, as_json=False)
        elif result.end_reason is not EndReason.CANCELLED:
            note("; ".join((how_it_ended(result), *files)))
            return
        else:
            output.say(how_it_ended(result))
        note("The conversation is as it was before this message.")
        if files:
            note(f"{files[0]}; /rewind takes back what this run did")


@contextmanager
def _failures_said() -> Iterator[None]:
    """Say what goes wrong, with its next step, and go on."""
    try:
        yield
    except (WorkbenchError, OSError, BaseExceptionGroup) as raised:
        error = find_error(raised)
        if error is None:
            raise
        output.error(error, as_json=False)
