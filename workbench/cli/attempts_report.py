"""Attempts as they are listed: for people a row each, for programs a report."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from workbench.cli import output
from workbench.cli.session_list import age
from workbench.protocol.attempts import AttemptRecord, AttemptReport, AttemptsGroup, CheckResult
from workbench.protocol.messages import now
from workbench.vfs import paths

_HEAD = ("", "ATTEMPT", "SESSION", "ENDED", "CHECK", "FILES", "LINES", "COST", "AGE")
_RIGHT = (1, 5, 7, 8)


def attempt_report(group: AttemptsGroup, attempt: AttemptRecord, *, running: bool) -> AttemptReport:
    """What programs get of one attempt; `running` says that somebody works on those that haven't ended."""
    since = attempt.ended_at or group.started_at
    return AttemptReport(
        attempt=attempt.number,
        session=paths.display(os.fsencode(attempt.session)),
        state=_state(attempt, running),
        ok=attempt.ok,
        check=attempt.check,
        offered=group.offered == attempt.number,
        files=attempt.files,
        added=attempt.added,
        deleted=attempt.deleted,
        turns=attempt.turns,
        usage=attempt.usage,
        age_s=max(0.0, (now() - since).total_seconds()),
        text=attempt.text,
        error=attempt.error,
    )


def print_table(groups: Iterable[AttemptsGroup], *, running: bool, file: TextIO) -> None:
    """A row for each attempt; a star marks the one that the session was given last."""
    rows = [_row(attempt_report(group, each, running=running)) for group in groups for each in group.attempts]
    if not file.isatty():
        for row in (_HEAD, *rows):
            print("\t".join(row).rstrip("\t"), file=file)
        return
    table = Table(box=None, pad_edge=False)
    for number, name in enumerate(_HEAD):
        table.add_column(name, justify="right" if number in _RIGHT else "left", no_wrap=number != 3)
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    Console(file=file, no_color=not output.colours(file)).print(table)


def _row(report: AttemptReport) -> tuple[str, ...]:
    cost = report.usage.cost_usd
    why = f" ({report.error['code']})" if report.error is not None else ""
    return (
        "*" if report.offered else "",
        str(report.attempt),
        report.session,
        f"{report.state}{why}",
        "-" if report.check is CheckResult.NONE else report.check.value,
        f"{report.files:,}",
        f"+{report.added:,} -{report.deleted:,}",
        output.dollars(cost) if cost is not None else "-",
        age(int(report.age_s * 1e9)),
    )


def _state(attempt: AttemptRecord, running: bool) -> str:
    if attempt.end_reason is not None:
        return attempt.end_reason.value
    return "running" if running else "interrupted"
