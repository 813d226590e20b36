"""Files and conversation on their way together: rewinds, redos and forks that move both.

A rewind is written down first, then the files go, then the conversation. Whoever next opens the session brings one that was
cut short to its end: the files say by their checkpoints whether they have gone already, the conversation by its messages.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self

import anyio
from anyio import to_thread

from workbench.agent.history import StoreHistory
from workbench.agent.locks import FileLocker
from workbench.agent.session import AgentSession
from workbench.agent.stores import FileSessionStore
from workbench.agent.transcript import Change, Messages, before_message
from workbench.agent.travels import Travels
from workbench.checkpoints.history import RowKind
from workbench.errors import CheckpointError, OptionsError, RewindError, WorkbenchError
from workbench.protocol.messages import now
from workbench.protocol.sessions import TravelRecord, TravelsRecord
from workbench.workspace import Travelled, Workspace


@dataclass(frozen=True, slots=True)
class WorkspaceRewound:
    """What a rewind or a redo did.

    `removed` counts the messages that it took back (of a redo those that it brought back), `messages` are those that are
    there now. `travelled` is how the files went, None where they didn't.
    """

    removed: int
    messages: Messages
    travelled: Travelled | None

    @property
    def restored(self) -> tuple[bytes, ...]:
        """The paths that are what they were."""
        journey = self.travelled.journey if self.travelled is not None else None
        return tuple(sorted((*journey.removed, *journey.restored))) if journey is not None else ()

    @property
    def ended_processes(self) -> int:
        """How many commands that ended."""
        return len(self.travelled.ended) if self.travelled is not None else 0


class TravellingSession:
    """A conversation and the workspace that it works on, as far as no model is needed. Leaving its `async with` closes the
    conversation, not the workspace."""

    def __init__(self, workspace: Workspace, agent: AgentSession) -> None:
        """Both have the same id. Raises OptionsError where they haven't."""
        if agent.id != workspace.session:
            raise OptionsError(f"The conversation {agent.id} isn't that of the session {workspace.session}.")
        self.workspace = workspace
        self.agent = agent
        self._travels = Travels(workspace.directory, agent.id)

    @classmethod
    @asynccontextmanager
    async def open_to_travel(cls, workspace: Workspace) -> AsyncIterator[Self]:
        """With the stores of the workspace's state directory. First completes a rewind that a crash cut short.

        Raises StoreError, and what the completion raises.
        """
        store = FileSessionStore(workspace.directory)
        detail = await StoreHistory(store).change(workspace.session, lambda stored: stored)
        agent = AgentSession(
            id=workspace.session,
            history=StoreHistory(store),
            locker=run_locker(workspace),
            detail=detail,
            log=store.event_log,
        )
        async with cls(workspace, agent) as session:
            yield session

    async def __aenter__(self) -> Self:
        await self.complete()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await self.agent.close()

    async def rewind(
        self, message_id: str, *, files: bool = True, conversation: bool = True, force: bool = False
    ) -> WorkspaceRewound:
        """Make files and conversation what they were before a message.

        Of one that isn't in the conversation, since its run failed, only the files go. Ends the sandbox; `force` also where
        a shell is attached. Raises RewindError (message_not_found, invalid_rewind_target, session_busy), OptionsError where
        nothing is to go, and as `Workspace.rewind`; where it fails after it was begun, the next open completes it.
        """
        if not files and not conversation:
            raise OptionsError("A rewind of neither files nor conversation does nothing.")
        await self.complete()
        started = (await self._travels.read()).started

        def change(messages: Messages) -> Messages:
            kept = _before(messages, message_id, started)
            return kept if conversation else messages

        async def planned(before: Messages, after: Messages) -> TravelRecord:
            if files:
                await self._require(message_id)
            return TravelRecord(
                kind="rewind",
                message_id=message_id,
                files=files,
                conversation=conversation,
                after=await to_thread.run_sync(self._newest),
                head=last_id(after),
                removed=before[len(after) :],
            )

        return await self._travel(message_id, change, planned, force)

    async def redo(self, *, force: bool = False) -> WorkspaceRewound:
        """Take back the last rewind that wasn't taken back yet, of what it was of; any number of times.

        Raises CheckpointError (nothing_to_redo) where there is none, or where something was said or the files were brought
        elsewhere since; else as `rewind`.
        """
        await self.complete()
        undone = (await self._travels.read()).undone
        if not undone:
            raise _nothing_to_redo("There is no rewind to take back.")
        travel = undone[-1]

        def change(messages: Messages) -> Messages:
            if travel.conversation and last_id(messages) != travel.head:
                raise _nothing_to_redo("The conversation went on since the rewind.")
            return (*messages, *travel.removed)

        async def planned(before: Messages, after: Messages) -> TravelRecord:
            points = await to_thread.run_sync(self.workspace.timeline.redo_points)
            if travel.before and (not points or points[-1].message_id != travel.before):
                raise _nothing_to_redo("The files were brought elsewhere since the rewind.")
            if (await self._travels.read()).undone != undone:
                raise _nothing_to_redo("Somebody else has taken the rewind back just now.")
            return travel.model_copy(update={"kind": "redo", "after": await to_thread.run_sync(self._newest)})

        return await self._travel(travel.message_id, change if travel.conversation else tuple, planned, force)

    async def fork(self, message_id: str, *, name: str | None = None) -> str:
        """Start another session with files and conversation as they were before a message; its id, to be opened.

        Raises RewindError (message_not_found, invalid_rewind_target), and as `Workspace.fork`.
        """
        await self._kept_before(message_id)
        session = name if name is not None else await to_thread.run_sync(self.workspace.free_session)
        await self.workspace.fork(message_id, session)
        await self.fork_conversation(message_id, session)
        return session

    async def fork_conversation(self, message_id: str, session: str) -> None:
        """Give another session, whose files are those of before a message, the conversation of before it.

        Raises RewindError (message_not_found, invalid_rewind_target), StoreError.
        """
        messages = await self._kept_before(message_id)
        store = FileSessionStore(self.workspace.directory)
        stored = await store.load(self.agent.id)
        fork = self.agent.detail().model_copy(
            update={
                "id": session,
                "messages": messages,
                "system_prompt": stored.system_prompt if stored is not None else None,
                "created_at": now(),
                "updated_at": now(),
            }
        )
        await StoreHistory(store).change(session, lambda _: fork)

    async def has_message(self, message_id: str) -> bool:
        """Whether a run was begun with it, of files and conversation that can go back to before it."""
        try:
            await self._kept_before(message_id)
        except RewindError as error:
            return error.code != "message_not_found"
        return True

    async def goes_along(self) -> bool:
        """Whether the next redo of the files is of a rewind that took the conversation along."""
        undone = (await self._travels.read()).undone
        points = await to_thread.run_sync(self.workspace.timeline.redo_points)
        return bool(undone) and undone[-1].before in ("", points[-1].message_id if points else "")

    async def complete(self) -> None:
        """Bring a rewind or a redo that was cut short to its end. Raises as `rewind`."""
        travel = (await self._travels.read()).under_way
        if travel is None:
            return
        removed = {message.id for message in travel.removed}

        def change(messages: Messages) -> Messages:
            if not travel.conversation:
                return messages
            kept = tuple(message for message in messages if message.id not in removed)
            return kept if travel.kind == "rewind" else (*kept, *travel.removed)

        async def planned(before: Messages, after: Messages) -> TravelRecord:
            if (await self._travels.read()).under_way != travel:
                raise _ArrivedError
            return travel

        # Who had begun it may be alive, and have ended it while this one waited for the lock.
        with contextlib.suppress(_ArrivedError):
            await self._travel(travel.message_id, change, planned, True)

    async def _travel(
        self,
        message_id: str,
        change: Change,
        planned: Callable[[Messages, Messages], Awaitable[TravelRecord]],
        force: bool,
    ) -> WorkspaceRewound:
        """Write the journal, move the files, change the conversation, and put the journal away."""
        travelled: Travelled | None = None
        count = 0

        @asynccontextmanager
        async def around(before: Messages, after: Messages) -> AsyncIterator[None]:
            nonlocal travelled, count
            count = len(before)
            travel = await planned(before, after)
            await self._travels.change(lambda record: record.model_copy(update={"under_way": travel}))
            try:
                travelled = await self._move(travel, force)
            except WorkbenchError:
                # What was begun is completed by the next open; of what wasn't nothing remains.
                if not self.workspace.timeline.is_under_way:
                    await self._travels.change(lambda record: record.model_copy(update={"under_way": None}))
                raise
            if travel.kind == "rewind" and travel.files:
                travel = travel.model_copy(update={"before": await to_thread.run_sync(self._left, travel)})
            yield
            await self._travels.change(partial(_ended, travel))

        rewound = await self.agent.change_transcript(message_id, change, around=around)
        return WorkspaceRewound(abs(len(rewound.messages) - count), rewound.messages, travelled)

    async def _move(self, travel: TravelRecord, force: bool) -> Travelled | None:
        """Bring the files where a travel takes them; None where they don't go, or have gone already."""
        if not travel.files or await to_thread.run_sync(self._arrived, travel):
            return None
        if travel.kind == "rewind":
            return await self.workspace.rewind(travel.message_id, force=force)
        return await self.workspace.redo(force=force) if travel.before else None

    async def _kept_before(self, message_id: str) -> Messages:
        """The messages before one of the user's; all of them where its run failed. Raises RewindError."""
        return _before(self.agent.detail().messages, message_id, (await self._travels.read()).started)

    async def _require(self, message_id: str) -> None:
        """Make sure that there is a checkpoint of a message. Raises RewindError, CheckpointError (store_corrupt)."""
        try:
            await to_thread.run_sync(self.workspace.timeline.find, message_id)
        except CheckpointError as error:
            if error.code != "checkpoint_not_found":
                raise
            raise RewindError(
                f"There are no files of before the message {message_id}.",
                code="message_not_found",
                hint="Take back the conversation alone; `workbench log` lists what there is of the files.",
            ) from error

    def _arrived(self, travel: TravelRecord) -> bool:
        kind = RowKind.REWIND if travel.kind == "rewind" else RowKind.REDO
        rows = self.workspace.store.all(self.workspace.session)
        return any(row.number > travel.after and row.purpose.kind is kind for row in rows)

    def _left(self, travel: TravelRecord) -> str:
        """The id of the checkpoint that redo goes back to, empty where the files were the same."""
        points = self.workspace.timeline.redo_points()
        return points[-1].message_id if points and self._arrived(travel) else ""

    def _newest(self) -> int:
        latest = self.workspace.store.latest(self.workspace.session)
        return latest.number if latest is not None else 0


def last_id(messages: Messages) -> str:
    """The id of the last message, empty where there is none."""
    return messages[-1].id if messages else ""


def run_locker(workspace: Workspace) -> FileLocker:
    """What serialises the runs of a workspace's sessions."""
    return FileLocker(os.path.join(workspace.directory, "sessions", ".runs"))


class _ArrivedError(Exception):
    """What was to be completed has been completed."""


def _ended(travel: TravelRecord, record: TravelsRecord) -> TravelsRecord:
    """The record once a travel has arrived."""
    undone = (*record.undone, travel) if travel.kind == "rewind" else record.undone[:-1]
    return record.model_copy(update={"under_way": None, "undone": undone})


def _before(messages: Messages, message_id: str, started: Sequence[str]) -> Messages:
    """The messages before one of the user's; all of them where its run failed. Raises RewindError."""
    try:
        return before_message(messages, message_id)
    except RewindError as error:
        if error.code != "message_not_found" or message_id not in started:
            raise
        return messages


def _nothing_to_redo(message: str) -> CheckpointError:
    return CheckpointError(message, code="nothing_to_redo", hint="`workbench log` lists what you can rewind to.")
