"""`log --audit`: who landed, refused, rewound, dropped and pruned what, and whether that is still what was written."""

from __future__ import annotations

import time
from collections.abc import Iterator

from workbench.cli import output
from workbench.cli.options import Context
from workbench.cli.report import audit_report, chain_report
from workbench.protocol.records import AuditRecord
from workbench.review import diff as rendering
from workbench.review.landed import Committed

_DIGITS = 16


async def show_audit(context: Context, number: int) -> None:
    """The newest lines of the audit log, what landed with the messages and commands that led to it."""
    async with context.open() as workspace:
        records = list(workspace.audit.records())[::-1][: number or None]
        landed = {committed.commit_id: (committed, messages) for committed, messages in workspace.timeline.landed()}
    if context.json:
        output.write_json_list([audit_report(record) for record in records])
        return
    for record in records:
        for line in _lines(record):
            print(line)
        if record.commit_id in landed:
            for line in _details(*landed[record.commit_id]):
                print(line)


def _lines(record: AuditRecord) -> Iterator[str]:
    at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.at_ns / 1e9))
    counts = ", ".join(_counted(kind, count) for kind, count in record.counts.items())
    about = record.commit_id or record.code
    who = record.user or str(record.uid)
    of = f"session {record.session}" if record.session else ""
    words = [at, output.bold(record.action), about, f"by {who}", of, counts]
    yield output.text("  ".join(word for word in words if word))
    if record.message:
        yield f"  {output.text(record.message)}"
    if record.digest:
        yield f"  digest {record.digest}"


def _counted(kind: str, count: int) -> str:
    """`2 files`; what was done to paths, such as `2 added`, has no plural."""
    return output.count(count, kind) if kind in ("file", "path", "checkpoint") else f"{count:,} {kind}"


def _details(committed: Committed, messages: list[str]) -> Iterator[str]:
    for message in messages:
        yield f"  after {output.text(message)}"
    shown = [change for change in committed.changes if not change.implied]
    for line in b"".join(rendering.name_status(shown)).splitlines():
        yield f"  {output.visible(line)}"


async def verify_audit(context: Context) -> bool:
    """Follow the audit log's chain; whether it's broken."""
    async with context.open() as workspace:
        found = workspace.audit.verify()
    if context.json:
        output.write_json(chain_report(found))
    elif found.wrong:
        print(f"line {found.wrong} of the audit log isn't what was written there: {found.why}")
    else:
        lines = output.count(found.lines, "line")
        print(f"the audit log is what was written: {lines}, the hash of the last is {found.last[:_DIGITS]}")
    return bool(found.wrong)
