"""Which of the agent's calls were approved, and which not: lines of the workspace's audit log."""

from __future__ import annotations

import os

from workbench.agent.session import AgentSession
from workbench.protocol.events import Notice, SessionEvent
from workbench.protocol.sessions import ApprovalRequest
from workbench.workspace import Workspace


class NotedApprovals:
    """Writes down what became of each call that was asked about: which it was by its digest, never its arguments."""

    def __init__(self, workspace: Workspace, agent: AgentSession) -> None:
        self._workspace = workspace
        self._agent = agent
        self._asked: dict[str, ApprovalRequest] = {}
        agent.subscribe(self._note)

    def _note(self, event: SessionEvent) -> None:
        if event.type == "approval.requested":
            self._asked[event.request.id] = event.request
        elif event.type == "approval.resolved" and (request := self._asked.pop(event.request_id, None)):
            try:
                self._workspace.audit.append(
                    "approval" if event.approved else "refusal",
                    session=self._workspace.session,
                    digest=request.digest,
                    code="" if event.approved else "tool_denied",
                    message=f"{request.tool_call.name}, answered by {event.by}",
                )
            except OSError as error:
                reason = os.strerror(error.errno or 0)
                self._agent.publish(
                    Notice(code="system_error", message=f"The audit log misses who approved a call: {reason}.")
                )
