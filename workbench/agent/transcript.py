"""Changing the messages of a session between its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext

import anyio

from workbench.agent.history import History, RewindableHistory
from workbench.agent.locks import Locker
from workbench.errors import HistoryNotRewindableError, RewindError
from workbench.protocol.messages import ChatMessage, now
from workbench.protocol.sessions import SessionDetail

Messages = tuple[ChatMessage, ...]
Change = Callable[[Messages], Sequence[ChatMessage]]
Around = Callable[[Messages, Messages], AbstractAsyncContextManager[None]]

_LOCK_SECONDS = 1.0


async def changed(
    session_id: str, history: History, locker: Locker, change: Change, around: Around | None
) -> tuple[Messages, Messages]:
    """Put what `change` makes of the messages in their place; what they were, and are.

    No run of the session goes on meanwhile. It's done inside `around`, which gets the same two. Raises RewindError
    (`session_busy`), HistoryNotRewindableError, StoreError, and what both raise.
    """
    held = False
    with anyio.CancelScope(deadline=anyio.current_time() + _LOCK_SECONDS) as scope:
        async with locker.lock(session_id):
            held = True
            scope.deadline = float("inf")
            with anyio.CancelScope(shield=True):
                before = tuple(await history.read(session_id))
                after = tuple(change(before))
                if after != before and not isinstance(history, RewindableHistory):
                    raise HistoryNotRewindableError("The history of this session is append-only.")
                async with around(before, after) if around is not None else nullcontext():
                    if after != before and isinstance(history, RewindableHistory):
                        await history.change(session_id, lambda detail: _with_messages(detail, change(detail.messages)))
    if not held:
        raise RewindError("A run is in progress.", code="session_busy", hint="Wait for its end.")
    return before, after


def before_message(messages: Messages, message_id: str) -> Messages:
    """The messages before one of the user's. Raises RewindError (`message_not_found`, `invalid_rewind_target`)."""
    for index, message in enumerate(messages):
        if message.id == message_id:
            if message.role != "user":
                raise RewindError("Only a message of the user's can be taken back.", code="invalid_rewind_target")
            return messages[:index]
    raise RewindError(f"The session has no message {message_id}.", code="message_not_found")


def _with_messages(detail: SessionDetail, messages: Sequence[ChatMessage]) -> SessionDetail:
    update = {"messages": tuple(messages), "message_count": len(messages), "updated_at": now()}
    return detail.model_copy(update=update)
