"""One call of `run`: the agent at work, and what becomes of what it did. Imported once that's wanted: it takes a while."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import IO

import anyio

from workbench.agent.options import SessionOptions
from workbench.agent.permissions import ApprovalHandler, PermissionRules
from workbench.agent.settings import load
from workbench.agent.workspace_session import WorkspaceSession
from workbench.cli import output
from workbench.cli.approving import Approver, approve_all
from workbench.cli.conversation import Conversation, how_it_ended
from workbench.cli.failure import EXIT_CHECK, EXIT_CONFLICT, EXIT_ERROR
from workbench.cli.look import count_changes
from workbench.cli.options import Context, keep_small
from workbench.errors import ConflictError, OptionsError, RunFailedError, WorkbenchError
from workbench.models.resolving import resolve
from workbench.mounting import SandboxOptions
from workbench.protocol.commands import Command
from workbench.protocol.runs import Budget, EndReason, RunReport, RunResult
from workbench.review.policy import Mode
from workbench.workspace import Workspace

EXIT_LIMIT, EXIT_WAITS, EXIT_CANCELLED = 5, 7, 130
_LIMITS = frozenset({EndReason.MAX_TURNS, EndReason.BUDGET, EndReason.STUCK})
_WAITING = frozenset({"policy_waits", "risky_paths", "not_landable", "policy_denied"})


@dataclass(frozen=True, kw_only=True, slots=True)
class Wishes:
    """What `run` was called with."""

    task: str
    model: str
    key_command: str
    continued: bool
    check: str
    commit: Mode
    max_turns: int
    budget: float | None
    timeout: float
    yes: bool
    notes: bool
    events: str


class Job:
    """One call of `run`."""

    def __init__(self, context: Context, options: SandboxOptions, wishes: Wishes) -> None:
        self._context = context
        self._options = options
        self._wishes = wishes
        self._check = Command(("sh", "-c", wishes.check)) if wishes.check else None
        self._settings = load()
        self._rules = PermissionRules(self._settings.permissions)

    async def run(self) -> int:
        """The exit code."""
        name = self._wishes.model or self._settings.model
        if not name:
            raise OptionsError(
                "No model is named.",
                hint="Give --model PROVIDER/NAME, or set WORKBENCH_MODEL; workbench models lists what is configured.",
            )
        async with AsyncExitStack() as stack:
            workspace = await stack.enter_async_context(self._context.open(self._options))
            options = SessionOptions(
                max_turns=self._wishes.max_turns,
                run_timeout=self._wishes.timeout,
                budget=Budget(run_usd=self._wishes.budget) if self._wishes.budget is not None else None,
                resolve_permission=self._rules,
                approve=self._approve(workspace),
            )
            model = await stack.enter_async_context(resolve(name, key_command=self._wishes.key_command))
            session = await stack.enter_async_context(
                WorkspaceSession.open(
                    workspace,
                    model=model,
                    options=options,
                    notes=self._wishes.notes,
                )
            )
            if not self._wishes.continued:
                await session.agent.reset()
            log: IO[str] | None = None
            if self._wishes.events:
                log = stack.enter_context(open(self._wishes.events, "a", encoding="utf-8"))  # noqa: SIM115
            code = await self._follow(workspace, session, log)
            keep_small(workspace)
            return code

    def _approve(self, workspace: Workspace) -> ApprovalHandler | None:
        if self._wishes.yes:
            return approve_all
        if self._context.json:
            return None
        return Approver(workspace, self._rules, lasting="the rest of the run")

    async def _follow(self, workspace: Workspace, session: WorkspaceSession, log: IO[str] | None) -> int:
        conversation = Conversation(quiet=self._context.quiet)
        async with await session.run(self._wishes.task) as run, anyio.create_task_group() as group:
            group.start_soon(_cancel_on_interrupt, run.cancel)
            async for event in run:
                if log is not None and event.type != "thinking":
                    print(event.model_dump_json(), file=log, flush=True)
                if self._context.json:
                    output.write_json(event)
                else:
                    conversation.show(event)
            group.cancel_scope.cancel()
        try:
            result = await run.result()
        except RunFailedError as error:
            return await self._failed(workspace, error)
        return await self._ended(workspace, result)

    async def _failed(self, workspace: Workspace, error: RunFailedError) -> int:
        code = EXIT_LIMIT if error.end_reason is EndReason.TIMEOUT else EXIT_ERROR
        changes = await count_changes(workspace)
        if self._context.json:
            info = {"code": error.code, "message": error.message, "hint": error.hint}
            output.write_json(
                RunReport(
                    exit_code=code,
                    end_reason=error.end_reason,
                    message_id=error.message_id,
                    usage=error.usage,
                    changes=changes,
                    error=info,
                )
            )
        else:
            output.error(error, as_json=False)
            self._say_what_stays(changes, error.message_id)
        return code

    async def _ended(self, workspace: Workspace, result: RunResult) -> int:
        changes = await count_changes(workspace)
        waits: WorkbenchError | None = None
        commit_id = ""
        code = EXIT_LIMIT if result.end_reason in _LIMITS else 0
        if result.end_reason is EndReason.CANCELLED:
            code = EXIT_CANCELLED
        elif not code and changes and self._wishes.commit is not Mode.NEVER:
            code, commit_id, waits = await self._decide(workspace, result)
            changes = await count_changes(workspace)
        if self._context.json:
            output.write_json(
                RunReport(
                    exit_code=code,
                    end_reason=result.end_reason,
                    message_id=result.message_id,
                    usage=result.usage,
                    text=result.text,
                    turns=result.turns,
                    changes=changes,
                    commit_id=commit_id or None,
                    waits={"code": waits.code, "message": waits.message, "hint": waits.hint} if waits else None,
                )
            )
            return code
        if waits is not None:
            output.error(waits, as_json=False)
        if not self._context.quiet:
            output.say(how_it_ended(result))
        if commit_id:
            checked = "after the check passed" if self._check is not None else "without a check"
            output.say(f"landed {checked}, as commit {commit_id}")
        elif code in (EXIT_LIMIT, EXIT_CANCELLED):
            self._say_what_stays(changes, result.message_id)
        elif changes:
            output.say(f"{output.count(changes, 'file')} changed: workbench review")
        return code

    async def _decide(self, workspace: Workspace, result: RunResult) -> tuple[int, str, WorkbenchError | None]:
        """The exit code, what landed, and why it doesn't land by itself."""
        report: Callable[[str], None] = (lambda _: None) if self._context.quiet else output.say
        try:
            if self._wishes.commit is Mode.SUCCESS and result.ok:
                landed = await workspace.land_by_itself(
                    self._check, on_stdout=_to_stderr, on_stderr=_to_stderr, report=report
                )
                return 0, landed.committed.commit_id if landed is not None else "", None
            if self._check is not None:
                digest = workspace.reviewed(await workspace.changes())
                await workspace.check(digest, self._check, on_stdout=_to_stderr, on_stderr=_to_stderr, report=report)
        except WorkbenchError as error:
            if error.code == "check_failed":
                return EXIT_CHECK, "", error
            if error.code in _WAITING:
                return EXIT_WAITS, "", error
            return EXIT_CONFLICT if isinstance(error, ConflictError) else EXIT_ERROR, "", error
        return EXIT_WAITS, "", None

    def _say_what_stays(self, changes: int, message_id: str | None) -> None:
        if changes and message_id is not None:
            stay = f"{output.count(changes, 'changed file')} {'stays' if changes == 1 else 'stay'} in the overlay"
            output.say(f"{stay}; workbench rewind {message_id} takes back what the run did")


async def _cancel_on_interrupt(cancel: Callable[[], bool]) -> None:
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            cancel()


def _to_stderr(data: bytes) -> None:
    os.write(sys.stderr.fileno(), data)
