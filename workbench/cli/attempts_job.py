"""One call of `run --attempts`: agents at work side by side, each in a fork of the session, and what becomes of the best."""

from __future__ import annotations

import json
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import IO, Any

import anyio
from anyio import CancelScope, CapacityLimiter

from workbench.agent.run import RunStream
from workbench.agent.workspace_session import WorkspaceSession, last_id
from workbench.attempts import Attempts, best, measured
from workbench.cli import output
from workbench.cli.agent_job import (
    EXIT_CANCELLED,
    EXIT_LIMIT,
    EXIT_WAITS,
    LIMITS,
    Job,
    cancel_on_interrupt,
)
from workbench.cli.attempts_report import attempt_report, print_table
from workbench.cli.conversation import called, how_it_ended, note
from workbench.cli.failure import EXIT_CHECK, EXIT_ERROR, find_error
from workbench.cli.jobs import say_ended
from workbench.cli.look import count_changes
from workbench.cli.options import keep_small
from workbench.errors import RunFailedError, WorkbenchError
from workbench.models.base import LanguageModel
from workbench.protocol.attempts import AttemptRecord, AttemptsGroup, AttemptsRunReport, CheckResult
from workbench.protocol.events import RunEvent
from workbench.protocol.messages import Usage, now
from workbench.protocol.runs import EndReason
from workbench.review.changeset import ChangeSet
from workbench.review.policy import Mode
from workbench.workspace import Workspace

_TAIL_BYTES = 4096
_TAIL_LINES = 10
# The best of them is there all the same, in its own session.
_IN_THE_WAY = frozenset({"session_changed", "session_busy", "sandbox_busy", "overlay_busy"})


class AttemptsJob:
    """`count` attempts at what a job is to do, at most `at_once` of them at a time."""

    def __init__(self, job: Job, count: int, at_once: int) -> None:
        self._job = job
        self._count = count
        self._at_once = min(count, at_once)
        self._at_work: list[_Attempt] = []
        self._is_cancelled = False

    async def run(self) -> int:
        """The exit code."""
        context, asked = self._job.context, self._job.model()
        async with AsyncExitStack() as stack:
            workspace = await stack.enter_async_context(context.open(self._job.options))
            model = await stack.enter_async_context(asked)
            session = await stack.enter_async_context(WorkspaceSession.open_to_travel(workspace))
            log: IO[str] | None = None
            if self._job.wishes.events:
                log = stack.enter_context(open(self._job.wishes.events, "a", encoding="utf-8"))  # noqa: SIM115
            attempts = Attempts(workspace)
            stack.enter_context(attempts.alone())
            group = await self._side_by_side(attempts, session, model, log)
            code = await self._conclude(attempts, session, group)
            keep_small(workspace)
            return code

    async def _side_by_side(
        self, attempts: Attempts, session: WorkspaceSession, model: LanguageModel, log: IO[str] | None
    ) -> AttemptsGroup:
        """All of them, ended."""
        async with anyio.create_task_group() as interrupts:
            interrupts.start_soon(cancel_on_interrupt, self._cancel)
            group, text = await attempts.begin(
                session,
                self._job.wishes.task,
                self._count,
                model=model.info.id,
                checks=self._job.check is not None,
            )
            if not self._job.context.quiet:
                output.say(f"{output.count(self._count, 'attempt')}, {self._at_once} at a time")
            await attempts.fork(session, group, until=lambda: self._is_cancelled)
            limiter = CapacityLimiter(self._at_once)
            async with anyio.create_task_group() as workers:
                # Those that never began are like those of a run that was killed.
                for record in group.attempts if not self._is_cancelled else ():
                    attempt = _Attempt(self._job, self._count, record, log)
                    self._at_work.append(attempt)
                    workers.start_soon(attempt.carry_out, attempts, limiter, model, text, group.message_id)
            interrupts.cancel_scope.cancel()
        return attempts.find(group.attempts[0].number)[0]

    def _cancel(self) -> None:
        self._is_cancelled = True
        for attempt in self._at_work:
            attempt.cancel()

    async def _conclude(self, attempts: Attempts, session: WorkspaceSession, group: AttemptsGroup) -> int:
        """Offer the best of them, and say what became of all."""
        workspace = session.workspace
        found = None if self._is_cancelled else best(group)
        code, commit_id, waits = (EXIT_CANCELLED if self._is_cancelled else _without_any(group)), "", None
        if found is not None:
            code, commit_id, waits = await self._offer(attempts, session, found)
        group = attempts.find(group.attempts[0].number)[0]
        reports = tuple(attempt_report(group, each, running=False) for each in group.attempts)
        is_taken = found is not None and group.offered == found.number
        told = found if found is not None else group.attempts[0]
        if self._job.context.json:
            output.write_json(
                AttemptsRunReport(
                    exit_code=code,
                    end_reason=EndReason.CANCELLED if self._is_cancelled else told.end_reason or EndReason.ERROR,
                    message_id=group.message_id,
                    usage=sum((each.usage for each in group.attempts), Usage()),
                    changes=await count_changes(workspace) if is_taken else told.files,
                    text=told.text if found is not None else "",
                    turns=told.turns if found is not None else 0,
                    commit_id=commit_id or None,
                    waits={"code": waits.code, "message": waits.message, "hint": waits.hint} if waits else None,
                    session=workspace.session if is_taken else told.session,
                    offered=group.offered,
                    attempts=reports,
                )
            )
            return code
        name = self._job.context.session
        if found is not None and found.text:
            print(output.visible(found.text.encode("utf-8", "replace")), flush=True)
        if not self._job.context.quiet:
            print_table([group], running=False, file=sys.stderr)
        if waits is not None:
            output.error(waits, as_json=False)
        if found is None:
            output.say(f"{'cancelled' if self._is_cancelled else 'none of them is good enough'}: {_others(name)}")
        elif not is_taken:
            output.say(f"attempt {found.number} is the best: {output.command('review', found.session)}")
        elif commit_id:
            checked = "after the check passed" if found.check is CheckResult.PASSED else "without a check"
            output.say(f"attempt {found.number} landed {checked}, as commit {commit_id}")
        else:
            changed = f"{output.count(found.files, 'file')} changed"
            output.say(f"attempt {found.number} is in the overlay, {changed}: {output.command('review', name)}")
            output.say(f"{output.command(f'rewind {group.message_id}', name)} takes it back; {_others(name)}")
        return code

    async def _offer(
        self, attempts: Attempts, session: WorkspaceSession, found: AttemptRecord
    ) -> tuple[int, str, WorkbenchError | None]:
        """Have the session take it over; the rest as `Job.decide`."""
        try:
            travelled = await attempts.take(session, found.number)
        except WorkbenchError as error:
            return EXIT_WAITS if error.code in _IN_THE_WAY else EXIT_ERROR, "", error
        if not self._job.context.quiet and not self._job.context.json:
            say_ended(travelled.ended)
        if self._job.wishes.commit is Mode.NEVER or not await count_changes(session.workspace):
            return 0, "", None
        passed = found.digest if found.check is CheckResult.PASSED else ""
        return await self._job.decide(session.workspace, found.ok, passed=passed)


class _Attempt:
    """One of them, from its start to what its check said."""

    def __init__(self, job: Job, count: int, record: AttemptRecord, log: IO[str] | None) -> None:
        self._job = job
        self._count = count
        self._record = record
        self._log = log
        self._scope = CancelScope()
        self._run: RunStream | None = None
        self._how = ""

    def cancel(self) -> None:
        """End it; a run under way ends by itself, and keeps what it did."""
        if self._run is None or not self._run.cancel():
            self._scope.cancel()

    async def carry_out(
        self, attempts: Attempts, limiter: CapacityLimiter, model: LanguageModel, text: str, message_id: str
    ) -> None:
        """Do it once the limiter lets it; it's written down however it ends, and its sandbox goes."""
        with self._scope:
            async with limiter:
                try:
                    async with replace(self._job.context, session=self._record.session).open(
                        self._job.options
                    ) as workspace:
                        await self._work(workspace, model, text, message_id)
                except (WorkbenchError, OSError, BaseExceptionGroup) as raised:
                    # One that fails leaves the others alone.
                    if (error := find_error(raised)) is None:
                        raise
                    self._note(end_reason=EndReason.ERROR, ok=False, error=_told(error))
        if self._scope.cancelled_caught:
            self._note(end_reason=EndReason.CANCELLED, ok=False)
        self._note(ended_at=now())
        with CancelScope(shield=True):
            await attempts.note(self._record)
        if self._record.error is not None:
            self._say(f"{self._record.error['message']} [{self._record.error['code']}]")

    async def _work(self, workspace: Workspace, model: LanguageModel, text: str, message_id: str) -> None:
        try:
            await self._converse(workspace, model, text, message_id)
            self._record, changes = await measured(workspace, self._record)
            size = f"{output.count(self._record.files, 'file')}, +{self._record.added} -{self._record.deleted}"
            self._say(f"{self._how or 'failed'}: {size}")
            if self._record.ok and self._job.check is not None:
                await self._check(workspace, changes)
        finally:
            with CancelScope(shield=True):
                await workspace.stop()

    async def _converse(self, workspace: Workspace, model: LanguageModel, text: str, message_id: str) -> None:
        tag = f"[{self._record.number}] "
        async with self._job.session(workspace, model, share=self._count, tag=tag) as session:
            async with await session.run(text, message_id=message_id) as self._run:
                async for event in self._run:
                    self._show(event)
            try:
                result = await self._run.result()
            except RunFailedError as error:
                self._note(end_reason=error.end_reason, usage=error.usage, error=_told(error))
            else:
                self._how = how_it_ended(result)
                self._note(
                    end_reason=result.end_reason,
                    ok=result.ok,
                    text=result.text,
                    turns=result.turns,
                    usage=result.usage,
                )
            self._note(last_message=last_id(session.agent.detail().messages))

    async def _check(self, workspace: Workspace, changes: ChangeSet) -> None:
        assert self._job.check is not None
        output_tail = bytearray()

        def keep(data: bytes) -> None:
            output_tail.extend(data)
            del output_tail[:-_TAIL_BYTES]

        try:
            await workspace.check(workspace.reviewed(changes), self._job.check, on_stdout=keep, on_stderr=keep)
        except WorkbenchError as error:
            if error.code != "check_failed":
                raise
            self._note(check=CheckResult.FAILED)
            for line in bytes(output_tail).splitlines()[-_TAIL_LINES:]:
                self._say(f"  {line.decode(errors='replace')}")
            self._say("the check failed")
        else:
            self._note(check=CheckResult.PASSED)
            self._say("the check passed")

    def _note(self, **update: Any) -> None:
        self._record = self._record.model_copy(update=update)

    def _show(self, event: RunEvent) -> None:
        """For programs all there is, for people what is done."""
        if self._job.context.json or self._log is not None:
            line = json.dumps({"attempt": self._record.number, **json.loads(event.model_dump_json())})
            if self._log is not None and event.type != "thinking":
                print(line, file=self._log, flush=True)
            if self._job.context.json:
                output.write_json_text(line)
                return
        if event.type == "tool_call":
            self._say(f"→ {called(event.tool_call)}")
        elif event.type == "notice":
            self._say(event.message)

    def _say(self, text: str) -> None:
        if not self._job.context.quiet and not self._job.context.json:
            note(f"[{self._record.number}] {text}")


def _told(error: WorkbenchError) -> dict[str, str | None]:
    return {"code": error.code, "message": error.message, "hint": error.hint}


def _without_any(group: AttemptsGroup) -> int:
    """The exit code where none is offered: of the one that came furthest."""
    if any(each.check is CheckResult.FAILED for each in group.attempts):
        return EXIT_CHECK
    limits = {*LIMITS, EndReason.TIMEOUT}
    return EXIT_LIMIT if any(each.end_reason in limits for each in group.attempts) else EXIT_ERROR


def _others(session: str) -> str:
    listed, taken = output.command("attempts", session), output.command("attempts take N", session)
    return f"{listed} lists them all, {taken} offers another one"
