"""Asking somebody at a terminal whether a tool's call may run: the whole call, and what it makes of files as a diff."""

from __future__ import annotations

import sys
import termios

import anyio

from workbench.agent.permissions import PermissionRules
from workbench.cli import output, terminal
from workbench.cli.conversation import print_arguments
from workbench.cli.prompt import Prompt
from workbench.errors import WorkbenchError
from workbench.protocol.messages import ToolCall
from workbench.protocol.sessions import ApprovalRequest
from workbench.tools.previews import preview
from workbench.workspace import Workspace

# The whole answer: "abort" isn't "always".
_YES, _ALWAYS = ("y", "yes"), ("a", "always")


async def approve_all(_: ApprovalRequest) -> bool:
    """Yes, whatever it is."""
    return True


class Approver:
    """Asks about calls one by one, also those that run side by side; where there's no terminal the answer is no."""

    def __init__(
        self,
        workspace: Workspace,
        rules: PermissionRules,
        *,
        lasting: str,
        tag: str = "",
        asking: anyio.Lock | None = None,
    ) -> None:
        """`lasting` is how long an answer of "always" holds, in the rules: "the rest of the run".

        Where several ask at one terminal they share a lock, and each question begins with a `tag`.
        """
        self._workspace = workspace
        self._rules = rules
        self._lasting = lasting
        self._tag = tag
        self._asking = asking or anyio.Lock()

    async def __call__(self, request: ApprovalRequest) -> bool:
        """The answer; a cancellation comes through while nobody gives one."""
        if not sys.stdin.isatty() or not sys.stdout.isatty():
            return False
        call = request.tool_call
        async with self._asking:
            await self._show(call)
            # What was typed before the question was seen is no answer to it.
            termios.tcflush(sys.stdin.fileno(), termios.TCIFLUSH)
            with terminal.echo(sys.stdin.fileno(), True):
                answer = await Prompt().line(
                    f"{self._tag}Allow it? y (yes), n (no), a (this tool, for {self._lasting})"
                )
            said = (answer or "").strip().lower()
            if said in _ALWAYS:
                self._rules.allow_for_session(request.session_id, call.name)
            return said in (*_YES, *_ALWAYS)

    async def _show(self, call: ToolCall) -> None:
        """Whole: what's cut off is what somebody would hide. A diff has all that such a call says."""
        try:
            outcomes = await preview(self._workspace, call)
        except (WorkbenchError, OSError) as error:
            print_arguments(call)
            output.say(f"it would fail: {error}")
            return
        if outcomes is None:
            print_arguments(call)
            return
        for outcome in outcomes:
            output.write_patch(outcome.patch())
