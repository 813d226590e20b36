"""A model that answers from a script, for tests of what asks it."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import anyio

from workbench.protocol.messages import (
    CompletionRequest,
    CompletionResponse,
    ImageAttachment,
    ModelInfo,
    ProviderState,
    TokenDelta,
    ToolCall,
    Usage,
)

_numbers = itertools.count(1)


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One reply of a ScriptedModel.

    `text` is streamed as one delta, or in the pieces of `deltas`, whose concatenation it then is; `reasoning` comes first.
    `error` is raised in the place of a reply, after the deltas. `delay` seconds pass before the first delta; `until` is
    waited for after the last. `finish_reason` is `tool_calls` where there are calls, else `stop`. With `streamed` False
    nothing is streamed.
    """

    text: str = ""
    deltas: Sequence[str] = ()
    reasoning: str = ""
    tool_calls: Sequence[ToolCall] = ()
    images: Sequence[ImageAttachment] = ()
    usage: Usage = field(default_factory=Usage)
    finish_reason: str | None = None
    provider_state: ProviderState | None = None
    error: BaseException | None = None
    delay: float = 0.0
    until: anyio.Event | None = None
    streamed: bool = True

    @staticmethod
    def call(name: str, arguments: dict[str, Any] | None = None, *, id: str | None = None) -> ToolCall:
        """A call to put into `tool_calls`, with an id of its own where none is given."""
        values = arguments or {}
        return ToolCall(
            id=id or f"scripted_{next(_numbers)}", name=name, arguments=values, raw_arguments=json.dumps(values)
        )

    @staticmethod
    def unparsable(name: str, raw_arguments: str) -> ToolCall:
        """A call whose arguments aren't a JSON object."""
        return ToolCall(id=f"scripted_{next(_numbers)}", name=name, arguments=None, raw_arguments=raw_arguments)

    def reply(self) -> CompletionResponse:
        """The whole reply."""
        return CompletionResponse(
            content=self.text or "".join(self.deltas),
            reasoning=self.reasoning or None,
            tool_calls=tuple(self.tool_calls),
            images=tuple(self.images),
            usage=self.usage,
            finish_reason=self.finish_reason or ("tool_calls" if self.tool_calls else "stop"),
            provider_state=self.provider_state,
        )


class ScriptedModel:
    """Answers the requests with its turns, in order; use it in `with`, which fails where turns are left.

    A turn may be a function of the request. `requests` holds what it was asked.
    """

    def __init__(self, *turns: Turn | Callable[[CompletionRequest], Turn], info: ModelInfo | None = None) -> None:
        self._turns = list(turns)
        self._info = info or ModelInfo(id="scripted", provider="scripted")
        self.requests: list[CompletionRequest] = []

    @property
    def info(self) -> ModelInfo:
        """As of every model."""
        return self._info

    @property
    def unconsumed(self) -> int:
        """How many turns are left."""
        return len(self._turns)

    async def generate(
        self, request: CompletionRequest, on_delta: Callable[[TokenDelta], None] | None = None
    ) -> CompletionResponse:
        """The next turn. Raises its error, and AssertionError where the script is over."""
        self.requests.append(request)
        if not self._turns:
            raise AssertionError("the scripted model was asked more often than it has turns")
        turn = self._turns.pop(0)
        if not isinstance(turn, Turn):
            turn = turn(request)
        await anyio.sleep(turn.delay)
        if on_delta is not None and turn.streamed:
            for kind, pieces in (("reasoning", [turn.reasoning]), ("text", turn.deltas or [turn.text])):
                for piece in pieces:
                    if piece:
                        on_delta(TokenDelta.model_validate({"kind": kind, "text": piece}))
                        await anyio.lowlevel.checkpoint()
        if turn.until is not None:
            await turn.until.wait()
        if turn.error is not None:
            raise turn.error
        return turn.reply()

    def assert_consumed(self) -> None:
        """Raises AssertionError where turns are left."""
        assert not self._turns, f"{len(self._turns)} turns of the scripted model were never asked for"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # A test that fails already has a better reason.
        if error is None:
            self.assert_consumed()
