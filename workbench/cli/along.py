"""Going back and forth in a session in which an agent was spoken with: the conversation goes along with the files."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from workbench.workspace import Travelled, Workspace

if TYPE_CHECKING:
    from workbench.agent.workspace_session import WorkspaceSession


async def rewind(workspace: Workspace, message_id: str, *, force: bool) -> tuple[Travelled | None, int]:
    """To before a message, or to a checkpoint: how the files went, and how many messages were taken back.

    Raises as `WorkspaceSession.rewind`.
    """
    async with _conversation(workspace) as session:
        if session is not None and await session.has_message(message_id):
            rewound = await session.rewind(message_id, force=force)
            return rewound.travelled, rewound.removed
    return await workspace.rewind(message_id, force=force), 0


async def redo(workspace: Workspace, *, force: bool) -> tuple[Travelled | None, int]:
    """As `rewind`, back to where the last rewind or discard came from, with the messages that come back."""
    async with _conversation(workspace) as session:
        if session is not None and await session.goes_along():
            rewound = await session.redo(force=force)
            return rewound.travelled, rewound.removed
    return await workspace.redo(force=force), 0


async def fork(workspace: Workspace, message_id: str, name: str, *, step: int) -> None:
    """Another session from a checkpoint, with the conversation of before it. Raises as `WorkspaceSession.fork`."""
    async with _conversation(workspace) as session:
        await workspace.fork(message_id, name, step=step)
        if session is not None and await session.has_message(message_id):
            await session.fork_conversation(message_id, name)


async def results(workspace: Workspace, session: str) -> dict[str, str]:
    """How the run of each message of a session ended. Raises as `FileEventLog.run_results`."""
    if not os.path.isdir(os.path.dirname(workspace.conversation_path)):
        return {}
    from workbench.agent.stores import FileSessionStore

    return await FileSessionStore(workspace.directory).event_log.run_results(session)


@asynccontextmanager
async def _conversation(workspace: Workspace) -> AsyncIterator[WorkspaceSession | None]:
    """The session's conversation, None where there never was one."""
    if not os.path.isdir(workspace.conversation_path):
        yield None
        return
    # Only here: everybody else would wait for what an agent needs.
    from workbench.agent.workspace_session import WorkspaceSession

    async with WorkspaceSession.open_to_travel(workspace) as session:
        yield session
