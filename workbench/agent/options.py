"""What all runs of a session share."""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from workbench.agent.permissions import ApprovalHandler, PermissionResolver
from workbench.errors import OptionsError
from workbench.protocol.messages import ChatMessage, Thinking
from workbench.protocol.runs import Budget, RetryOptions
from workbench.tools.registry import ToolRegistry

_MAX_TURNS = 20
_RUN_SECONDS = 600.0
_LLM_CALL_SECONDS = 180.0
_TOOL_CALL_SECONDS = 120.0
_TOOL_RESULT_BYTES = 65_536
_REPLY_TOKENS = 16_384
_RETRY = RetryOptions()
_LOGGER = logging.getLogger("workbench.agent")


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionOptions:
    """What all runs of a session share. Checked and copied when made: changing what was passed in changes nothing later.

    `tools` None offers none; a call then gets `unknown_tool`, which the model sees. For every limit zero is the default.
    Negative `max_turns` and `max_tokens` are the default too, negative `tool_call_timeout` and `max_tool_result_bytes` are
    no limit, negative `run_timeout` and `llm_call_timeout` raise OptionsError. `temperature` and `thinking` None leave the
    model's default. `approve` None denies what must be asked. `after_tools` is awaited with each reply whose calls have
    all ended.
    """

    tools: ToolRegistry | None = None
    max_turns: int = _MAX_TURNS
    run_timeout: float = _RUN_SECONDS
    llm_call_timeout: float = _LLM_CALL_SECONDS
    tool_call_timeout: float = _TOOL_CALL_SECONDS
    max_tool_result_bytes: int = _TOOL_RESULT_BYTES
    max_tokens: int = _REPLY_TOKENS
    temperature: float | None = None
    thinking: Thinking | None = None
    prompt_caching: bool = True
    resolve_permission: PermissionResolver | None = None
    approve: ApprovalHandler | None = None
    retry: RetryOptions = _RETRY
    compact: bool = True
    budget: Budget | None = None
    after_tools: Callable[[ChatMessage], Awaitable[None]] | None = None
    logger: logging.Logger = _LOGGER

    def __post_init__(self) -> None:
        self._set(
            max_turns=self.max_turns if self.max_turns > 0 else _MAX_TURNS,
            max_tokens=self.max_tokens if self.max_tokens > 0 else _REPLY_TOKENS,
            run_timeout=_seconds("run_timeout", self.run_timeout, _RUN_SECONDS),
            llm_call_timeout=_seconds("llm_call_timeout", self.llm_call_timeout, _LLM_CALL_SECONDS),
            tool_call_timeout=self.tool_call_timeout or _TOOL_CALL_SECONDS,
            max_tool_result_bytes=self.max_tool_result_bytes or _TOOL_RESULT_BYTES,
        )
        if math.isnan(self.tool_call_timeout):
            raise OptionsError("tool_call_timeout isn't a number of seconds.")

    def _set(self, **values: object) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)


def _seconds(name: str, value: float, default: float) -> float:
    if value < 0 or math.isnan(value):
        raise OptionsError(f"{name} is {value:g}, which is no time that a run could take.")
    return value or default
