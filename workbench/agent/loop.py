"""The loop: ask the model, run the calls it makes, hand it their results, until it answers without calls or a limit is met."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from workbench.agent.asking import Asker
from workbench.agent.budgets import Spending
from workbench.agent.compaction import Compactor
from workbench.agent.marks import marked
from workbench.agent.options import SessionOptions
from workbench.agent.prompt import assistant_message, create_message, estimate_tokens, new_id, tool_message
from workbench.agent.repair import RepairedConversation
from workbench.agent.run import Emit
from workbench.agent.stuck import NUDGE, Progress, StuckDetector
from workbench.agent.toolcalls import Executed, ToolCalls
from workbench.agent.validation import is_plain_json
from workbench.models.errors import is_model_request_error
from workbench.protocol.events import ImageEvent, MessageCompleted, Notice, ToolCallEvent, ToolResultEvent
from workbench.protocol.messages import (
    ChatMessage,
    CompletionRequest,
    CompletionResponse,
    ModelInfo,
    Thinking,
    ToolCall,
    ToolSchema,
)
from workbench.protocol.runs import EndReason

# Ends of a reply after which it may not be whole.
CUT = frozenset({"length", "content_filter", "error"})


@dataclass(frozen=True)
class LoopEnd:
    """Why the loop ended, and what the last reply was; `finish_reason` is None where there was none."""

    reason: EndReason
    finish_reason: str | None
    text: str
    turns: int


class Loop:
    """One run's loop. `messages` grows by replies and tool messages as they become whole."""

    def __init__(
        self,
        *,
        model: ModelInfo,
        options: SessionOptions,
        system: str | None,
        thinking: Thinking | None,
        schemas: Sequence[ToolSchema],
        history: Sequence[ChatMessage],
        messages: list[ChatMessage],
        asker: Asker,
        calls: ToolCalls,
        compactor: Compactor,
        spending: Spending,
        emit: Emit,
        room: Callable[[], Awaitable[None]],
    ) -> None:
        self._model = model
        self._options = options
        self._system = create_message("system", system) if system else None
        self._thinking = thinking
        self._schemas = tuple(schemas)
        self._messages = messages
        self._conversation = RepairedConversation(schema.name for schema in schemas)
        self._conversation.extend(history)
        # How many of the run's own messages are in it.
        self._repaired = 0
        self._asker = asker
        self._calls = calls
        self._compactor = compactor
        self._spending = spending
        self._emit = emit
        self._room = room
        self._stuck = StuckDetector()
        self._ids = {call.id for message in (*history, *messages) for call in message.tool_calls}
        self._overhead = estimate_tokens((system or "") + "".join(str(schema.parameters) for schema in schemas))
        self._last: CompletionResponse | None = None
        self._turns = 0
        self._noticed: set[str] = set()

    async def run(self) -> LoopEnd:
        """Loop until the end. Raises what the model raises, and CallTimeoutError."""
        if self._schemas and self._model.supports_tools is False:
            self._notice("tools_unsupported", f"{self._model.id} can't use tools, so none are offered.")
            self._schemas = ()
        while True:
            await self._room()
            if self._turns >= self._options.max_turns:
                return self._end(EndReason.MAX_TURNS)
            if limit := self._spending.exceeded():
                self._notice("budget", limit)
                return self._end(EndReason.BUDGET)
            if (reason := await self._turn()) is not None:
                return self._end(reason)

    def last(self) -> LoopEnd:
        """How far it has come, for a run that is cancelled."""
        return self._end(EndReason.CANCELLED)

    async def _turn(self) -> EndReason | None:
        """One reply and its calls; None where the model is to be asked again."""
        response = await self._ask()
        self._turns += 1
        self._last = response
        if self._spending.unenforceable:
            self._notice("price_unknown", "The price of a model call is unknown: the budget can't be kept exactly.")
        if response.finish_reason == "length":
            self._notice("reply_truncated", "The reply was cut at its limit of tokens.", again=True)
        for image in response.images:
            self._emit(ImageEvent(image=image))
        calls = tuple(self._unique(call) for call in response.tool_calls)
        if not (response.content or response.images or calls):
            # Providers refuse a message without content, now and in every later request.
            return EndReason.STOP
        message = assistant_message(response.model_copy(update={"tool_calls": calls}))
        for call in calls:
            self._emit(ToolCallEvent(tool_call=call.model_copy(deep=True)))
        self._announce(message)
        if not calls:
            return EndReason.STOP
        return await self._run_calls(message, cut=response.finish_reason in CUT)

    async def _run_calls(self, message: ChatMessage, *, cut: bool) -> EndReason | None:
        calls = message.tool_calls
        results: list[Executed] = []
        progress = Progress.MOVING

        def on_result(index: int, executed: Executed) -> None:
            nonlocal progress
            results.append(executed)
            result = executed.result
            if index == len(calls) - 1:
                progress = self._stuck.judge(calls, [one.result for one in results])
                if progress is Progress.NUDGE:
                    self._notice("stuck", "The model repeats itself, and was told so.", again=True)
                    result = result.model_copy(update={"model_content": f"{result.model_content}\n\n{NUDGE}"})
            self._emit(ToolResultEvent(tool_result=result))
            self._announce(
                tool_message(calls[index], result.model_content, is_error=not result.ok, images=executed.images)
            )

        await self._room()
        await self._calls.run(calls, cut=cut, on_result=on_result)
        if self._options.after_tools is not None:
            await self._options.after_tools(message.model_copy(deep=True))
        if any(executed.terminate for executed in results):
            return EndReason.STOP
        if progress is Progress.STUCK:
            self._notice("stuck", "The model went on repeating itself.", again=True)
            return EndReason.STUCK
        return None

    async def _ask(self) -> CompletionResponse:
        """A reply; where the request turns out to be too long, once more with less of the conversation."""
        self._conversation.extend(self._messages[self._repaired :])
        self._repaired = len(self._messages)
        try:
            return await self._ask_once()
        except Exception as error:
            if not (is_model_request_error(error) and error.code == "context_overflow" and self._options.compact):
                raise
            is_shorter = await self._compactor.shrink(self._conversation.messages)
            # Usage means that there was a reply, to a part of the request, and it was shown: only the next run has less.
            if not is_shorter or error.usage is not None:
                raise
        return await self._ask_once()

    async def _ask_once(self) -> CompletionResponse:
        messages: Sequence[ChatMessage] = self._conversation.messages
        if self._options.compact:
            messages = await self._compactor.view(messages, self._overhead)
        if self._system is not None:
            messages = (self._system, *messages)
        request = CompletionRequest(
            model=self._model.id,
            messages=marked(messages) if self._options.prompt_caching else tuple(messages),
            tools=self._schemas,
            temperature=self._options.temperature,
            max_tokens=self._options.max_tokens,
            thinking=self._thinking,
        )
        response = await self._asker.ask(request)
        self._compactor.learn(response.usage.input_tokens)
        return response

    def _announce(self, message: ChatMessage) -> None:
        self._messages.append(message)
        self._emit(MessageCompleted(message=message.model_copy(deep=True)))

    def _unique(self, call: ToolCall) -> ToolCall:
        """The call with an id that no other call of the session has: some servers count from 0 in each reply.

        Its arguments are none where History couldn't keep them.
        """
        if call.arguments is not None and not is_plain_json(call.arguments):
            call = call.model_copy(update={"arguments": None})
        if not call.id or call.id in self._ids:
            call = call.model_copy(update={"id": new_id("call")})
        self._ids.add(call.id)
        return call

    def _notice(self, code: str, message: str, *, again: bool = False) -> None:
        """Say something, once a run unless it's to be said `again`."""
        if again or code not in self._noticed:
            self._noticed.add(code)
            self._emit(Notice(code=code, message=message))

    def _end(self, reason: EndReason) -> LoopEnd:
        last = self._last
        if last is None:
            return LoopEnd(reason, None, "", self._turns)
        return LoopEnd(reason, last.finish_reason, last.content, self._turns)
