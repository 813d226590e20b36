"""Sessions as they are listed, for people and for programs."""

from __future__ import annotations

import os
import sys
import time

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from workbench.cli import output
from workbench.protocol.session_reports import ConversationReport
from workbench.session_reports import conversation, sessions_report
from workbench.sessions import Session, WorkspaceSessions
from workbench.state import Standing
from workbench.vfs import paths
from workbench.vfs.measure import Measured

STANDING = {
    Standing.MISSING: "missing: deleted, moved, or its disk isn't there",
    Standing.REPLACED: "another directory is there now",
    Standing.UNREACHABLE: "can't be reached",
    Standing.LET_GO: "let go of",
    None: "record unreadable",
}
_TITLE = 50
_AGES = (("d", 86400), ("h", 3600), ("min", 60))


def show_all(found: list[WorkspaceSessions], *, json: bool) -> None:
    """Every session as a line of a table, or all of it for programs."""
    now = time.time_ns()
    if json:
        output.write_json(sessions_report(found, now))
    elif not any(each.sessions for each in found):
        output.say("there are no sessions yet: workbench exec -- COMMAND starts one")
    else:
        _print(found, now)


def _print(found: list[WorkspaceSessions], now_ns: int) -> None:
    rows = [_row(workspace, session, now_ns) for workspace in found for session in workspace.sessions]
    head = ("SESSION", "WORKSPACE", "AGE", "CHANGES", "SIZE", "CHECKPOINTS", "SANDBOX", "CONVERSATION", "")
    if sys.stdout.isatty():
        table = Table(box=None, pad_edge=False)
        for number, name in enumerate(head):
            table.add_column(name, justify="right" if number in (2, 3, 4) else "left", no_wrap=number in (2, 3, 4))
        for row in rows:
            table.add_row(*(Text(cell) for cell in row))
        Console(no_color=not output.colours()).print(table)
    else:
        for row in (head, *rows):
            print("\t".join(row).rstrip("\t"))
    for workspace in found:
        said = f"{output.path(workspace.root)}: {size(workspace.store)} of checkpoints"
        output.say(f"{said} ({workspace.problem})" if workspace.problem else said)


def _row(workspace: WorkspaceSessions, session: Session, now_ns: int) -> tuple[str, ...]:
    running = session.backend or "running" if session.running else "busy" if session.busy else "-"
    share = f"{session.checkpoints:,} ({decimal(session.checkpoint_bytes)})" if session.checkpoints else "-"
    notes = [STANDING[workspace.standing]] if workspace.standing is not Standing.HERE else []
    talk = conversation(session)
    problems = [session.problem, (talk.problem or "") if talk is not None else ""]
    return (
        paths.display(os.fsencode(session.name)),
        output.path(workspace.root) if workspace.root else "?",
        age(now_ns - session.touched_ns) if session.touched_ns else "?",
        changes(session),
        size(session.upper),
        share,
        running,
        titled(talk) if talk is not None and not talk.problem else "-",
        "; ".join([*notes, *filter(None, problems)]),
    )


def titled(talk: ConversationReport) -> str:
    """`Fix the test (4 messages)`, on one line and cut where it's long."""
    title = output.text(" ".join(talk.title.split()))
    shown = title if len(title) <= _TITLE else f"{title[: _TITLE - 1]}…"
    return f"{shown} ({output.count(talk.messages, 'message')})".strip()


def changes(session: Session) -> str:
    """How many changes, or, where nobody counted them, that the overlay holds something."""
    if session.changes is not None:
        return f"{session.changes:,}"
    return f"? ({output.count(session.upper.files, 'file')}{'' if session.upper.complete else ' or more'})"


def contents(session: Session) -> str:
    """What an overlay holds: `2 changes (3 files)`."""
    if session.changes is None:
        return f"{changes(session)} changes"
    return f"{output.count(session.changes, 'change')} ({output.count(session.upper.files, 'file')})"


def size(measured: Measured) -> str:
    """What a tree takes; `at least` where it wasn't measured whole."""
    return f"{'' if measured.complete else 'at least '}{decimal(measured.size)}"


def age(nanoseconds: int) -> str:
    """`3 d`, in the largest unit of which there is one."""
    seconds = max(0, nanoseconds) // 1_000_000_000
    for unit, length in _AGES:
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"
