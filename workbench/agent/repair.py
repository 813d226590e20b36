"""A history as providers accept it: made just before each request, never stored.

A conversation can be broken by a process that was killed in a tool, by a store that somebody edited, or by a caller who
owns the log. Providers refuse such a request for good: a call without its result, a result without its call, an empty
message, an id that is there twice, a tool's name with characters that no tool's may have.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from workbench.agent.capping import EMPTY
from workbench.agent.prompt import tool_message
from workbench.protocol.messages import ChatMessage, ToolCall

_NO_NAME = re.compile("[^A-Za-z0-9_-]")
_NAME_CHARACTERS = 64
INTERRUPTED = "The call was interrupted; whether it took effect is unknown."


def repaired(messages: Sequence[ChatMessage]) -> tuple[ChatMessage, ...]:
    """The messages with each call followed by its result, in order; those that need nothing are returned as they are.

    A missing result is said to be interrupted; results without a call, second results and messages without content go.
    """
    conversation = RepairedConversation()
    conversation.extend(messages)
    return tuple(conversation.messages)


class RepairedConversation:
    """The same for a conversation that grows: what was repaired once isn't looked at again."""

    def __init__(self, tool_names: Iterable[str] = ()) -> None:
        """`tool_names` are offered, and so are names whatever they look like."""
        self._tool_names = frozenset(tool_names)
        self.messages: list[ChatMessage] = []
        self._used: set[str] = set()

    def extend(self, messages: Sequence[ChatMessage]) -> None:
        """Add messages; a reply comes together with the results of its calls."""
        index = 0
        while index < len(messages):
            message = messages[index]
            index += 1
            if message.role == "tool":
                continue
            if message.role != "assistant":
                if message.content.strip() or message.images or message.role == "system":
                    self.messages.append(message)
                continue
            answers: dict[str | None, ChatMessage] = {}
            while index < len(messages) and messages[index].role == "tool":
                answers.setdefault(messages[index].tool_call_id, messages[index])
                index += 1
            self.messages.extend(_step(message, answers, self._used, self._tool_names))


def _step(
    message: ChatMessage, answers: dict[str | None, ChatMessage], used: set[str], tool_names: frozenset[str]
) -> list[ChatMessage]:
    """A reply and the results of its calls; nothing of a reply without content."""
    if not (message.content.strip() or message.images or message.tool_calls):
        return []
    calls, results = [], []
    for call in message.tool_calls:
        answer = answers.get(call.id) or tool_message(call, INTERRUPTED, is_error=True)
        shaped = _named(_unique(call, used), tool_names)
        calls.append(shaped)
        update: dict[str, object] = {}
        if answer.tool_call_id != shaped.id:
            update["tool_call_id"] = shaped.id
        if not answer.content.strip():
            update["content"] = EMPTY
        results.append(answer.model_copy(update=update) if update else answer)
    update = {}
    if any(shaped is not call for shaped, call in zip(calls, message.tool_calls, strict=True)):
        update["tool_calls"] = tuple(calls)
    if message.content and not message.content.strip():
        update["content"] = ""
    return [message.model_copy(update=update) if update else message, *results]


def _unique(call: ToolCall, used: set[str]) -> ToolCall:
    """The call with an id that no earlier one has."""
    id, number = call.id, 2
    while id in used:
        id = f"{call.id}-{number}"
        number += 1
    used.add(id)
    return call if id == call.id else call.model_copy(update={"id": id})


def _named(call: ToolCall, tool_names: frozenset[str]) -> ToolCall:
    """The call with a name that a tool could have."""
    if call.name in tool_names:
        return call
    name = _NO_NAME.sub("_", call.name)[:_NAME_CHARACTERS] or "unnamed"
    return call if name == call.name else call.model_copy(update={"name": name})
