"""Several attempts at one task: what is kept of them, and how they are told of."""

from __future__ import annotations

from enum import StrEnum

from pydantic import AwareDatetime

from workbench.protocol.messages import Usage
from workbench.protocol.records import Frozen
from workbench.protocol.runs import EndReason, RunReport


class CheckResult(StrEnum):
    """Whether the check passed: `NONE` where none was asked for, or the attempt didn't get so far."""

    NONE = "none"
    PASSED = "passed"
    FAILED = "failed"


class AttemptRecord(Frozen):
    """One attempt: a fork, the session `session`, and what became of it.

    `end_reason` is None until it has ended; `ok` as in `RunResult`. `checkpoint` is the commit of what it left, which is
    what the check saw; `digest`, `files`, `added` and `deleted` (lines) are of what would land of it, and `last_message` is the
    end of its conversation. `error` (`code`, `message`, `hint`) says why it failed, or why its check couldn't be run.
    """

    number: int
    session: str
    end_reason: EndReason | None = None
    ok: bool = False
    check: CheckResult = CheckResult.NONE
    checkpoint: str = ""
    digest: str = ""
    files: int = 0
    added: int = 0
    deleted: int = 0
    last_message: str = ""
    text: str = ""
    turns: int = 0
    usage: Usage = Usage()
    ended_at: AwareDatetime | None = None
    error: dict[str, str | None] | None = None


class AttemptsGroup(Frozen):
    """The attempts of one command.

    All began with the message `message_id` from the checkpoint `base` (a commit) of their session, whose changes then had this
    `digest`, and whose conversation ended with `last_message`. `checks` says that a check was asked for. `offered` is the
    number of the one that the session's overlay was given last.
    """

    message_id: str
    task: str
    model: str
    base: str
    digest: str
    last_message: str
    checks: bool
    started_at: AwareDatetime
    attempts: tuple[AttemptRecord, ...]
    offered: int | None = None


class AttemptsRecord(Frozen):
    """`attempts.json` of an overlay: the attempts that are kept, the newest group last. Numbers go on from group to group."""

    version: int = 1
    groups: tuple[AttemptsGroup, ...] = ()


class AttemptReport(Frozen):
    """One attempt. `state` is `running`, `interrupted` (killed before its end), or the reason of its end; sizes as in
    `AttemptRecord`. `age_s` is in seconds since its end, else since all of them began."""

    attempt: int
    session: str
    state: str
    ok: bool
    check: CheckResult
    offered: bool
    files: int
    added: int
    deleted: int
    turns: int
    usage: Usage
    age_s: float
    text: str = ""
    error: dict[str, str | None] | None = None


class AttemptsGroupReport(Frozen):
    """The attempts of one command, by their number."""

    task: str
    model: str
    message_id: str
    attempts: tuple[AttemptReport, ...]


class AttemptsReport(Frozen):
    """`workbench attempts --json`: what is kept of a session's attempts, the newest group last."""

    version: int = 1
    session: str
    groups: tuple[AttemptsGroupReport, ...]


class AttemptsRunReport(RunReport):
    """The last line of `workbench run --attempts N --json`.

    As of a single run: that of the best attempt, but `usage`, which is of all. `offered` is the best's number, None where none
    was good enough; `session` is the one that has what it did. Where none was, `end_reason` is the first one's.
    """

    session: str
    offered: int | None
    attempts: tuple[AttemptReport, ...]


class DroppedReport(Frozen):
    """`workbench attempts drop --json`: the sessions that were removed, and why others weren't."""

    version: int = 1
    removed: tuple[str, ...]
    failed: tuple[dict[str, str | None], ...] = ()
