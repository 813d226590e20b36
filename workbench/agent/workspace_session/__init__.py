"""A conversation and the workspace that it works on: the one part of the agent that knows of files."""

from __future__ import annotations

from workbench.agent.workspace_session.session import WorkspaceSession
from workbench.agent.workspace_session.travelling import WorkspaceRewound, last_id

__all__ = ["WorkspaceRewound", "WorkspaceSession", "last_id"]
