"""Sessions as programs get them, on the command line and over HTTP."""

from __future__ import annotations

import os
from collections.abc import Sequence

from workbench.conversations import stored
from workbench.errors import SessionError, StateError
from workbench.protocol.reports import PathReport, SandboxReport
from workbench.protocol.session_reports import ConversationReport, SessionReport, SessionsReport, StoreReport
from workbench.protocol.sessions import SessionDetail, SessionSummary
from workbench.sessions import Session, WorkspaceSessions
from workbench.vfs import paths


def sessions_report(found: Sequence[WorkspaceSessions], now_ns: int) -> SessionsReport:
    """What programs get of all sessions."""
    return SessionsReport(
        sessions=tuple(session_report(each, session, now_ns) for each in found for session in each.sessions),
        workspaces=tuple(
            StoreReport(
                workspace=PathReport.of(each.root),
                standing=None if each.standing is None else each.standing.value,
                directory=each.directory,
                size=each.store.size,
                complete=each.store.complete,
                problem=each.problem or None,
            )
            for each in found
        ),
    )


def session_report(workspace: WorkspaceSessions, session: Session, now_ns: int) -> SessionReport:
    """What programs get of one session."""
    state = "running" if session.running else "busy" if session.busy else "stopped"
    return SessionReport(
        session=paths.display(os.fsencode(session.name)),
        workspace=PathReport.of(workspace.root),
        standing=None if workspace.standing is None else workspace.standing.value,
        age_s=max(0, now_ns - session.touched_ns) / 1e9 if session.touched_ns else None,
        changes=session.changes,
        entries=session.upper.files,
        upper_size=session.upper.size,
        complete=session.upper.complete,
        checkpoints=session.checkpoints,
        checkpoint_size=session.checkpoint_bytes,
        sandbox=SandboxReport(backend=session.backend, state=state),
        problem=session.problem or None,
        conversation=conversation(session),
    )


def conversation(session: Session) -> ConversationReport | None:
    """What a list shows of a session's conversation, None where it has none."""
    if not session.conversation:
        return None
    try:
        found = stored(session.conversation, SessionSummary)
    except StateError as error:
        return ConversationReport(problem=error.message)
    except OSError as error:
        return ConversationReport(problem=f"The conversation can't be read: {error.strerror}.")
    if found is None:
        return None
    return ConversationReport(
        title=found.title,
        model=found.model,
        messages=found.message_count,
        usage=found.usage,
        created_at=found.created_at,
        updated_at=found.updated_at,
    )


def detail_of(session: Session) -> SessionDetail:
    """The whole conversation of a session. Raises SessionError (no_conversation), StateError (state_corrupt), OSError."""
    found = stored(session.conversation, SessionDetail) if session.conversation else None
    if found is None:
        raise SessionError(
            f"Session {session.name} has no conversation.",
            code="no_conversation",
            hint=f"`workbench run --session {session.name} TASK` begins one.",
        )
    return found
