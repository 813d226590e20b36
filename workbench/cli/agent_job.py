"""One call of `run`: the agent at work, and what becomes of what it did. Imported once that's wanted: it takes a while."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import IO

import anyio

from workbench.agent.options import SessionOptions
from workbench.agent.permissions import ApprovalHandler, PermissionRules
from workbench.agent.settings import load
from workbench.agent.workspace_session import WorkspaceSession
from workbench.cli import output, terminal
from workbench.cli.approving import Approver, approve_all
from workbench.cli.conversation import Conversation, how_it_ended
from workbench.cli.failure import EXIT_CHECK, EXIT_CONFLICT, EXIT_ERROR
from workbench.cli.look import count_changes
from workbench.cli.options import Context, keep_small
from workbench.errors import ConflictError, OptionsError, RunFailedError, WorkbenchError
from workbench.models.adapter import WireModel
from workbench.models.base import LanguageModel
from workbench.models.resolving import resolve
from workbench.mounting import SandboxOptions
from workbench.protocol.commands import Command
from workbench.protocol.runs import Budget, EndReason, RunReport, RunResult
from workbench.review.policy import Mode
from workbench.workspace import Workspace

EXIT_LIMIT, EXIT_WAITS, EXIT_CANCELLED = 5, 7, 130
LIMITS = frozenset({EndReason.MAX_TURNS, EndReason.BUDGET, EndReason.STUCK})
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
        self.context = context
        self.options = options
        self.wishes = wishes
        self.check = Command(("sh", "-c", wishes.check)) if wishes.check else None
        self._settings = load()
        self._rules = PermissionRules(self._settings.permissions)
        self._asking = anyio.Lock()

    async def run(self) -> int:
        """The exit code."""
        asked = self.model()
        async with AsyncExitStack() as stack:
            workspace = await stack.enter_async_context(self.context.open(self.options))
            model = await stack.enter_async_context(asked)
            session = await stack.enter_async_context(self.session(workspace, model))
            log: IO[str] | None = None
            if self.wishes.events:
                log = stack.enter_context(open(self.wishes.events, "a", encoding="utf-8"))  # noqa: SIM115
            code = await self._follow(workspace, session, log)
            keep_small(workspace)
            return code

    def model(self) -> WireModel:
        """The model that is asked. Raises OptionsError where none is named, and as `resolve`."""
        name = self.wishes.model or self._settings.model
        if not name:
            raise OptionsError(
                "No model is named.",
                hint="Give --model PROVIDER/NAME, set WORKBENCH_MODEL, or write `model` below [agent] into your config.toml; "
                "`workbench models` lists what is configured.",
            )
        return resolve(name, key_command=self.wishes.key_command)

    @asynccontextmanager
    async def session(
        self, workspace: Workspace, model: LanguageModel, *, share: int = 1, tag: str = ""
    ) -> AsyncIterator[WorkspaceSession]:
        """The session that works on a workspace, its conversation empty unless it's to be continued.

        It has the budget's part of one of `share` sessions; `tag` is what a question to a person begins with. Raises as
        `WorkspaceSession.open`.
        """
        budget = self.wishes.budget
        options = SessionOptions(
            max_turns=self.wishes.max_turns,
            run_timeout=self.wishes.timeout,
            budget=Budget(run_usd=budget / share) if budget is not None else None,
            resolve_permission=self._rules,
            approve=self._approve(workspace, tag),
        )
        async with WorkspaceSession.open(workspace, model=model, options=options, notes=self.wishes.notes) as session:
            if not self.wishes.continued:
                await session.agent.reset()
            yield session

    def _approve(self, workspace: Workspace, tag: str) -> ApprovalHandler | None:
        if self.wishes.yes:
            return approve_all
        if self.context.json:
            return None
        return Approver(workspace, self._rules, lasting="the rest of the run", tag=tag, asking=self._asking)

    async def _follow(self, workspace: Workspace, session: WorkspaceSession, log: IO[str] | None) -> int:
        conversation = Conversation(quiet=self.context.quiet or self.context.json)
        async with await session.run(self.wishes.task) as run, anyio.create_task_group() as group:
            group.start_soon(cancel_on_interrupt, run.cancel)
            with conversation:
                async for event in run:
                    if log is not None and event.type != "thinking":
                        print(event.model_dump_json(), file=log, flush=True)
                    if self.context.json:
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
        if self.context.json:
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
        code = EXIT_LIMIT if result.end_reason in LIMITS else 0
        if result.end_reason is EndReason.CANCELLED:
            code = EXIT_CANCELLED
        elif not code and changes and self.wishes.commit is not Mode.NEVER:
            code, commit_id, waits = await self.decide(workspace, result.ok)
            changes = await count_changes(workspace)
        if self.context.json:
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
        if not self.context.quiet:
            output.say(how_it_ended(result))
        if commit_id:
            checked = "after the check passed" if self.check is not None else "without a check"
            output.say(f"landed {checked}, as commit {commit_id}")
        elif code in (EXIT_LIMIT, EXIT_CANCELLED, EXIT_CHECK):
            self._say_what_stays(changes, result.message_id)
        elif changes:
            output.say(f"{output.count(changes, 'file')} changed: {output.command('review', self.context.session)}")
        return code

    async def decide(
        self, workspace: Workspace, ok: bool, *, passed: str = ""
    ) -> tuple[int, str, WorkbenchError | None]:
        """The exit code, what landed, and why it doesn't land by itself; `passed` is the digest of what passed the check."""
        try:
            if self.wishes.commit is Mode.SUCCESS and ok:
                landed = await workspace.land_by_itself(
                    self.check, on_stdout=_to_stderr, on_stderr=_to_stderr, report=self.context.report, passed=passed
                )
                return 0, landed.committed.commit_id if landed is not None else "", None
            if self.check is not None and not passed:
                digest = workspace.reviewed(await workspace.changes())
                await workspace.check(
                    digest, self.check, on_stdout=_to_stderr, on_stderr=_to_stderr, report=self.context.report
                )
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
            rewind = output.command(f"rewind {message_id}", self.context.session)
            output.say(f"{stay}; {rewind} takes back what the run did")


async def cancel_on_interrupt(cancel: Callable[[], object]) -> None:
    """Call `cancel` at each ^C, and when the process is to end or its terminal is closed; until it's cancelled itself."""
    with anyio.open_signal_receiver(*terminal.ending_signals()) as signals:
        async for _ in signals:
            cancel()


def _to_stderr(data: bytes) -> None:
    os.write(sys.stderr.fileno(), data)
