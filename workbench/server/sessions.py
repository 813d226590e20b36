"""`/v1/sessions`: workbench's own."""

from __future__ import annotations

import os
import time
from typing import Annotated

from anyio import to_thread
from fastapi import APIRouter, Query, Response

from workbench.errors import OptionsError, SessionNotFoundError
from workbench.protocol.session_reports import SessionsReport
from workbench.protocol.sessions import SessionDetail
from workbench.server.answers import ERRORS, WhileConnected, answer
from workbench.session_reports import detail_of, sessions_report
from workbench.sessions import Session, linked_root, named, survey, survey_workspace
from workbench.state import StateDirectory

sessions = APIRouter(prefix="/v1/sessions", tags=["sessions"], route_class=WhileConnected, responses=ERRORS)

Workspace = Annotated[str | None, Query(description="Only of this workspace.")]


@sessions.get("", response_model=SessionsReport)
async def listing(workspace: Workspace = None) -> Response:
    """All sessions of this user, of every workspace; nothing is started, and no workspace is searched through."""
    return answer(await to_thread.run_sync(_listed, workspace))


@sessions.get("/{name:path}", response_model=SessionDetail)
async def show(name: str, workspace: Workspace = None) -> Response:
    """The stored conversation of a session. Signed reasoning, which only its provider can read, is left out."""
    return answer(await to_thread.run_sync(_detail, name, workspace))


def _listed(workspace: str | None) -> SessionsReport:
    return sessions_report(survey(StateDirectory.open(), root=_root(workspace)), time.time_ns())


def _detail(name: str, workspace: str | None) -> SessionDetail:
    detail = detail_of(_find(name, workspace))
    plain = tuple(message.model_copy(update={"provider_state": None}) for message in detail.messages)
    return detail.model_copy(update={"messages": plain})


def _find(name: str, workspace: str | None) -> Session:
    places = [path for _, path in named(name, _root(workspace))]
    if len(places) > 1:
        roots = ", ".join(os.fsdecode(linked_root(path) or os.fsencode(path)) for path in places)
        raise OptionsError(
            f"{len(places)} workspaces have a session {name}.",
            code="session_ambiguous",
            hint=f"Say which one is meant with workspace=, one of {roots}.",
        )
    found = [session for path in places for session in survey_workspace(path, limit=0, only=name).sessions]
    if not found:
        raise SessionNotFoundError(f"There is no session {name}.", hint="/v1/sessions lists what there is.")
    return found[0]


def _root(workspace: str | None) -> bytes | None:
    if workspace is None:
        return None
    if "\0" in workspace:
        raise OptionsError(f"workspace: {workspace!r} is no path.")
    return os.path.realpath(os.fsencode(workspace))
