"""Running the calls of a reply.

A call goes: known? -> parsed and validated -> permission -> approval -> run -> capped. Whatever stops it is a result that
the model reads, and the run goes on.
"""

from __future__ import annotations

import copy
import inspect
import logging
import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import anyio
from anyio import from_thread
from anyio.lowlevel import current_token

from workbench.agent import telemetry
from workbench.agent.capping import capped
from workbench.agent.options import SessionOptions
from workbench.agent.permissions import ApprovalBroker, Permission, call_digest
from workbench.agent.prompt import new_id
from workbench.agent.run import Emit
from workbench.agent.tasks import is_exit, must_go_on
from workbench.agent.threads import WorkerThreads
from workbench.agent.validation import format_validation_issues, validate_arguments
from workbench.errors import OperationCancelledError, ToolError, WorkbenchError, described
from workbench.protocol.events import ApprovalRequested, ApprovalResolved, ToolProgress
from workbench.protocol.messages import ErrorInfo, ImageAttachment, ToolCall, ToolExecutionResult, ToolResult, now
from workbench.protocol.sessions import ApprovalRequest
from workbench.protocol.signal import CancelSignal
from workbench.tools.base import Tool, ToolSession

_CUT = (
    "The reply was cut before it was complete, so this call may be too: it wasn't run. "
    "Make it again, in smaller pieces where it's long."
)


@dataclass(frozen=True)
class Executed:
    """A call's result, the images that the model sees with it, and whether it ends the run."""

    result: ToolResult
    terminate: bool = False
    images: tuple[ImageAttachment, ...] = ()


class ToolCalls:
    """Runs calls with the tools that a run began with; `deadline` is the run's, by the event loop's clock."""

    def __init__(
        self,
        *,
        run_id: str,
        session: ToolSession,
        tools: Mapping[str, Tool],
        options: SessionOptions,
        threads: WorkerThreads,
        emit: Emit,
        deadline: float,
    ) -> None:
        self._run_id = run_id
        self._session = session
        self._tools = tools
        self._options = options
        self._threads = threads
        self._emit = emit
        self._deadline = deadline

    async def run(
        self, calls: Sequence[ToolCall], *, cut: bool, on_result: Callable[[int, Executed], None]
    ) -> tuple[Executed, ...]:
        """Run all calls of a reply, side by side where their tools allow it; `on_result` hears of each in call order.

        `cut` says that the reply ended before it was complete: its last call isn't run.
        """
        done: dict[int, Executed] = {}
        reported = 0

        def report(index: int, executed: Executed) -> None:
            nonlocal reported
            done[index] = executed
            while reported in done:
                on_result(reported, done[reported])
                reported += 1

        for stage in self._stages(calls):
            await self._stage(calls, stage, cut, report)
        return tuple(done[index] for index in range(len(calls)))

    def _stages(self, calls: Sequence[ToolCall]) -> list[list[int]]:
        """Calls that may run side by side; a call that may not has a stage to itself."""
        stages: list[list[int]] = []
        open_stage = False
        for index, call in enumerate(calls):
            tool = self._tools.get(call.name)
            parallel = tool is not None and tool.schema.parallel
            if parallel and open_stage:
                stages[-1].append(index)
            else:
                stages.append([index])
            open_stage = parallel
        return stages

    async def _stage(
        self, calls: Sequence[ToolCall], stage: Sequence[int], cut: bool, report: Callable[[int, Executed], None]
    ) -> None:
        ended = {index: anyio.Event() for index in stage}
        keys = {index: self._resources(calls[index]) for index in stage}
        before: dict[int, set[int]] = {}
        last: dict[str, int] = {}
        for index in stage:
            # Who holds a resource has waited for all who held it before.
            before[index] = {last[key] for key in keys[index] if key in last}
            last.update(dict.fromkeys(keys[index], index))

        async def one(index: int) -> None:
            for earlier in before[index]:
                await ended[earlier].wait()
            report(index, await self._execute(calls[index], cut=cut and index == len(calls) - 1))
            ended[index].set()

        if len(stage) == 1:
            await one(stage[0])
            return
        async with anyio.create_task_group() as group:
            for index in stage:
                group.start_soon(one, index)

    def _resources(self, call: ToolCall) -> frozenset[str]:
        tool, arguments = self._tools.get(call.name), call.arguments or {}
        if tool is None:
            return frozenset()
        return frozenset(repr(arguments[name]) for name in tool.schema.resources if name in arguments)

    async def _execute(self, call: ToolCall, *, cut: bool) -> Executed:
        with telemetry.tool_span(call) as span:
            try:
                tool = self._known(call, cut)
                await self._permit(tool, call)
                outcome = await self._run(tool, call)
            except WorkbenchError as error:
                executed = self._failed(call, ErrorInfo(code=error.code, message=error.message, hint=error.hint))
            else:
                executed = self._succeeded(call, outcome)
            if executed.result.error is not None:
                telemetry.failed(span, executed.result.error.code)
            return executed

    def _known(self, call: ToolCall, cut: bool) -> Tool:
        """The tool of a call that can be run. Raises ToolError."""
        tool = self._tools.get(call.name)
        if tool is None:
            offered = ", ".join(self._tools) or "none"
            raise ToolError(f"There is no tool named {call.name}. Tools: {offered}.", code="unknown_tool")
        if cut:
            raise ToolError(_CUT, code="invalid_arguments")
        if call.arguments is None:
            raise ToolError(
                "The arguments aren't a JSON object that can be read; the call wasn't run.", code="invalid_arguments"
            )
        try:
            issues = validate_arguments(tool.schema.parameters, call.arguments)
        except Exception as error:
            self._options.logger.exception("the schema of tool %s can't be used", call.name)
            raise ToolError(f"The schema of the tool {call.name} can't be used: {described(error)}") from error
        if issues:
            raise ToolError(format_validation_issues(issues), code="invalid_arguments")
        return tool

    async def _permit(self, tool: Tool, call: ToolCall) -> None:
        """Returns where the call may run. Raises ToolError (`tool_denied`)."""
        try:
            permission = await self._permission(tool, call)
        except BaseException as error:
            if must_go_on(error):
                raise
            self._options.logger.exception("the permission of tool %s can't be decided", call.name)
            raise ToolError("Whether this call may run can't be decided.", code="tool_denied") from error
        if permission == "auto":
            return
        if permission != "ask":
            raise ToolError("This call isn't allowed.", code="tool_denied")
        if self._options.approve is None:
            raise ToolError("This call must be approved, and nobody is there to ask.", code="tool_denied")
        if not await self._approved(call):
            raise ToolError("This call wasn't approved.", code="tool_denied")

    async def _permission(self, tool: Tool, call: ToolCall) -> Permission:
        if self._options.resolve_permission is None:
            return tool.schema.permission
        permission = self._options.resolve_permission(tool, call.model_copy(deep=True), self._session)
        return await permission if inspect.isawaitable(permission) else permission

    async def _approved(self, call: ToolCall) -> bool:
        handler = self._options.approve
        assert handler is not None
        request = ApprovalRequest(
            id=new_id("approval"),
            session_id=self._session.id,
            run_id=self._run_id,
            tool_call=call.model_copy(deep=True),
            digest=call_digest(call),
            expires_at=_moment(self._deadline),
        )
        self._emit(ApprovalRequested(request=request.model_copy(deep=True)))
        approved, by = False, "nobody"
        try:
            approved, by = await handler(request) is True, "handler"
            if isinstance(handler, ApprovalBroker):
                by = handler.answered_by(request.id) or by
        except BaseException as error:
            if must_go_on(error):
                raise
            by = "error"
            self._options.logger.exception("the approval of tool %s failed", call.name)
        finally:
            self._emit(ApprovalResolved(request_id=request.id, approved=approved, by=by))
        return approved

    async def _run(self, tool: Tool, call: ToolCall) -> ToolExecutionResult:
        """Raises ToolError (`tool_panicked`, `tool_timeout`), and any other WorkbenchError of the tool's own."""
        if inspect.iscoroutinefunction(tool.execute):
            return await self._timed(tool, call)
        # Waiting for a thread takes nothing of the tool's own time.
        async with self._threads.turn():
            return await self._timed(tool, call)

    async def _timed(self, tool: Tool, call: ToolCall) -> ToolExecutionResult:
        limit = self._options.tool_call_timeout
        timeout = f"tool {call.name} timed out after {limit:g} seconds"
        context = _Context(self._session, call.id, self._options.logger, self._emit)
        # What is in History must not change with what a tool does to its arguments.
        arguments = copy.deepcopy(call.arguments or {})
        try:
            with anyio.move_on_after(limit if limit > 0 else None) as scope:
                outcome = await self._invoke(tool, arguments, context)
                if isinstance(outcome, ToolExecutionResult):
                    # It may have been made without being checked, and the tool may keep what it holds.
                    return ToolExecutionResult.model_validate({**dict(outcome), "data": _copied(outcome)})
                raise ToolError(f"The tool {call.name} returned no result but a {type(outcome).__name__}.")
        except WorkbenchError:
            if not scope.cancel_called:
                raise
        except BaseException as error:
            if must_go_on(error) and not is_exit(error):
                raise
            if not scope.cancel_called:
                self._options.logger.warning("tool %s failed", call.name, exc_info=True)
                raise ToolError(f"The tool {call.name} failed: {described(error)}") from error
        finally:
            context.close()
        raise ToolError(timeout, code="tool_timeout")

    async def _invoke(self, tool: Tool, arguments: dict[str, Any], context: _Context) -> object:
        if inspect.iscoroutinefunction(tool.execute):
            return await tool.execute(arguments, context)
        outcome = await self._threads.run(lambda: tool.execute(arguments, context))
        return await outcome if inspect.isawaitable(outcome) else outcome

    def _succeeded(self, call: ToolCall, outcome: ToolExecutionResult) -> Executed:
        if outcome.is_error:
            info = ErrorInfo(code="tool_failed", message=outcome.content)
            return self._failed(call, info, data=outcome.data, terminate=outcome.terminate)
        result = ToolResult(
            call_id=call.id,
            name=call.name,
            ok=True,
            content=outcome.content,
            model_content=self._capped(outcome.content),
            data=outcome.data,
        )
        return Executed(result, terminate=outcome.terminate, images=outcome.images)

    def _failed(self, call: ToolCall, error: ErrorInfo, *, data: Any = None, terminate: bool = False) -> Executed:
        text = f"{error.message}\n{error.hint}" if error.hint else error.message
        result = ToolResult(
            call_id=call.id, name=call.name, ok=False, error=error, model_content=self._capped(text), data=data
        )
        return Executed(result, terminate=terminate)

    def _capped(self, content: str) -> str:
        return capped(content, self._options.max_tool_result_bytes)


class _Context:
    """The ToolContext of one call."""

    def __init__(self, session: ToolSession, call_id: str, logger: logging.Logger, emit: Emit) -> None:
        self.session = session
        self.call_id = call_id
        self.signal = CancelSignal()
        self.logger = logger
        self._emit = emit
        self._thread = threading.get_ident()
        self._token = current_token()
        self._closed = False

    def progress(self, message: str) -> None:
        """From the event loop's thread or any other; after the call's end nobody hears it."""
        if threading.get_ident() == self._thread:
            self._say(message)
        elif not self._closed:
            try:
                from_thread.run_sync(self._say, message, token=self._token)
            except anyio.RunFinishedError:
                self._closed = True

    def close(self) -> None:
        """The call is over: a thread that goes on is told to stop."""
        self._closed = True
        self.signal.cancel(OperationCancelledError("The call is over."))

    def _say(self, message: str) -> None:
        if not self._closed:
            self._emit(ToolProgress(call_id=self.call_id, message=message))


def _copied(outcome: ToolExecutionResult) -> Any:
    """The data of a result, as it is where it can't be copied."""
    data = dict(outcome).get("data")
    try:
        return copy.deepcopy(data)
    except Exception:  # noqa: BLE001
        return data


def _moment(deadline: float) -> datetime:
    seconds = deadline - anyio.current_time()
    # Years beyond what a date can say.
    return now() + timedelta(seconds=seconds if math.isfinite(seconds) and seconds < 1e9 else 1e9)
