"""How a run is asked for, bounded and ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from pydantic import Field

from workbench.protocol.messages import Thinking, Usage
from workbench.protocol.records import Frozen


class EndReason(StrEnum):
    """Why a run ended: stable values, safe to persist; new ones may be added."""

    STOP = "stop"
    MAX_TURNS = "max_turns"
    BUDGET = "budget"
    STUCK = "stuck"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    ERROR = "error"


class RetryOptions(Frozen):
    """`attempts` counts the first try; delays double from `base_delay_ms` on, up to `max_delay_ms`."""

    attempts: int = Field(default=4, ge=1)
    base_delay_ms: float = Field(default=500, ge=0)
    max_delay_ms: float = Field(default=30_000, ge=0)


class Budget(Frozen):
    """Limits in dollars and tokens, of one run and of the whole session; None is no limit."""

    run_usd: float | None = None
    session_usd: float | None = None
    run_tokens: int | None = None
    session_tokens: int | None = None


class RunOptions(Frozen):
    """What one run does otherwise: `system_suffix` is added to the system prompt, `thinking` replaces the session's."""

    system_suffix: str | None = None
    thinking: Thinking | None = None


class RunResult(Frozen):
    """How a run that didn't fail ended.

    `finish_reason` and `text` are those of the last reply. `usage` is of all model calls, failed ones too. `ok` says that
    it completed and that its last reply was neither cut nor filtered, which is what an automatic commit asks for.
    """

    run_id: str
    message_id: str | None
    status: Literal["completed", "cancelled", "max_steps"]
    end_reason: EndReason
    finish_reason: str | None
    text: str
    usage: Usage
    turns: int
    ok: bool


class RunReport(Frozen):
    """The last line of `workbench run --json`.

    `exit_code` is what it ends with. `changes` is how many the overlay holds now, `commit_id` what they landed as. `waits`
    (`code`, `message`, `hint`) says why they didn't land by themselves, or how the check failed; `error` why the run failed.
    """

    type: Literal["result"] = "result"
    version: int = 1
    exit_code: int
    end_reason: EndReason
    message_id: str | None
    usage: Usage
    changes: int
    text: str = ""
    turns: int = 0
    commit_id: str | None = None
    waits: dict[str, str | None] | None = None
    error: dict[str, str | None] | None = None
