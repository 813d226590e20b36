"""Another title for a session that isn't open."""

from __future__ import annotations

from workbench.agent.history import StoreHistory
from workbench.agent.session import AgentSession
from workbench.agent.stores import FileSessionStore
from workbench.errors import SessionNotFoundError


async def rename_stored(directory: str, session_id: str, title: str) -> str:
    """Rename the session that a `FileSessionStore` of that directory keeps, as `AgentSession.rename`; returns its title.

    A run that goes on in another process keeps it. Raises SessionNotFoundError, OptionsError, StoreError.
    """
    store = FileSessionStore(directory)
    detail = await store.load(session_id)
    if detail is None:
        raise SessionNotFoundError(f"There is no conversation of session {session_id}.")
    agent = AgentSession(
        id=session_id, history=StoreHistory(store), locker=store.locker, detail=detail, log=store.event_log
    )
    await agent.rename(title)
    return agent.summary().title
