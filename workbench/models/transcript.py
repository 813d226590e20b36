"""What every wire format does to a conversation before it's sent; nothing of it is kept."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

from workbench.protocol.messages import ChatMessage, ImageAttachment, ToolCall

NO_OUTPUT = "(no output)"
_NO_TEXT = "(no text)"
# More of it than any tool takes, and less than what makes a provider refuse the whole conversation for good.
_MOST_ARGUMENT_CHARACTERS = 200_000


def split(messages: Sequence[ChatMessage]) -> tuple[list[ChatMessage], list[ChatMessage]]:
    """The system messages, and the others without replies that hold nothing: providers reject those for ever."""
    system = [message for message in messages if message.role == "system" and message.content.strip()]
    rest = [
        message
        for message in messages
        if message.role != "system"
        and (message.role != "assistant" or message.content.strip() or message.tool_calls or message.images)
    ]
    return system, rest


def text_of(message: ChatMessage) -> str:
    """What it says, never nothing: an empty text is refused, or stays in the way of every later request."""
    if message.content.strip():
        return message.content
    return NO_OUTPUT if message.role == "tool" else _NO_TEXT


def state_of(message: ChatMessage, provider: str, model: str, *, having: str = "") -> dict[str, Any] | None:
    """What this provider and model asked to get back with it; None for another's, and where it isn't `having` a field.

    A provider may be asked in another format than before, whose states are others.
    """
    state = message.provider_state
    if state is None or (state.provider, state.model) != (provider, model):
        return None
    value = json.loads(state.data)
    return value if isinstance(value, dict) and (not having or having in value) else None


def packed(state: dict[str, Any]) -> bytes:
    """The state as bytes, which `state_of` turns into the same values, lone surrogates too."""
    return json.dumps(state, separators=(",", ":")).encode()


def arguments_of(call: ToolCall) -> dict[str, Any]:
    """The arguments to send back: an object whatever the model made, and never so long that it poisons the conversation."""
    if call.arguments is not None and len(call.raw_arguments) <= _MOST_ARGUMENT_CHARACTERS:
        return call.arguments
    name = "unparsable_arguments" if call.arguments is None else "truncated_arguments"
    return {name: call.raw_arguments[:_MOST_ARGUMENT_CHARACTERS]}


def data_url(image: ImageAttachment) -> str:
    """The image as a URL that holds it."""
    return f"data:{image.media_type};base64,{base64.b64encode(image.data).decode()}"


def image_of(url: str) -> ImageAttachment | None:
    """The image in a data URL; None for any other URL."""
    head, _, data = url.partition(",")
    if not head.startswith("data:") or not head.endswith(";base64"):
        return None
    return ImageAttachment(media_type=head[5:-7], data=base64.b64decode(data))


class CallIds:
    """The ids of one request's calls as its provider gets them: unique, and of the form that it takes."""

    def __init__(self, *, allowed: str = r"[A-Za-z0-9_-]{1,40}", length: int = 40) -> None:
        self._allowed = re.compile(allowed)
        self._length = length
        self._sent: dict[str, str] = {}
        self._taken: set[str] = set()

    def open(self, ours: str, theirs: str = "") -> str:
        """The id to send for a call: the provider's own, where no earlier call has it, else one made of ours."""
        sent = theirs if theirs and theirs not in self._taken else self._fit(ours)
        self._taken.add(sent)
        self._sent[ours] = sent
        return sent

    def of(self, ours: str) -> str:
        """The id that was sent for the call which a result answers."""
        return self._sent.get(ours) or self._fit(ours)

    def _fit(self, ours: str) -> str:
        if self._allowed.fullmatch(ours):
            return ours
        return hashlib.sha256(ours.encode("utf-8", "surrogatepass")).hexdigest()[: self._length]


def names_of_calls(messages: Iterable[ChatMessage]) -> dict[str, str]:
    """Which tool each call was of."""
    return {call.id: call.name for message in messages for call in message.tool_calls}
