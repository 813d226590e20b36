"""Where files and conversation meet: a checkpoint before each message, and rewinds that move both.

A rewind is written down first, then the files go, then the conversation. Whoever next opens the session brings one that was
cut short to its end: the files say by their checkpoints whether they have gone already, the conversation by its messages.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import anyio
from anyio import to_thread

from workbench.agent.history import StoreHistory
from workbench.agent.locks import FileLocker
from workbench.agent.options import SessionOptions
from workbench.agent.permissions import PermissionRules
from workbench.agent.prompt import default_system_prompt, new_id, title_from_input
from workbench.agent.run import Run, RunStream
from workbench.agent.session import AgentSession
from workbench.agent.settings import load
from workbench.agent.stores import FileSessionStore
from workbench.agent.transcript import Change, Messages, before_message
from workbench.agent.travels import Travels
from workbench.checkpoints.history import RowKind
from workbench.errors import (
    CheckpointError,
    MessageExistsError,
    OptionsError,
    RewindError,
    SessionBusyError,
    SessionChangedError,
    SessionNotFoundError,
    StateError,
    WorkbenchError,
)
from workbench.models.base import LanguageModel
from workbench.models.resolving import resolve
from workbench.protocol.events import Notice, SessionEvent
from workbench.protocol.messages import ChatMessage, ImageAttachment, now
from workbench.protocol.runs import RunOptions
from workbench.protocol.sessions import TravelRecord, TravelsRecord
from workbench.review.comments import Claim, before_text
from workbench.tools.project_notes import project_notes
from workbench.tools.registry import ToolRegistry
from workbench.tools.seen import SeenFiles
from workbench.tools.standard import note_tools, workspace_tools
from workbench.workspace import Travelled, Workspace

_DEFAULT_OPTIONS = SessionOptions()
_DEFAULT_RUN_OPTIONS = RunOptions()
_Comments = TypeVar("_Comments")


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


class WorkspaceSession:
    """A conversation and the workspace that it works on. Leaving its `async with` closes the conversation, not the
    workspace."""

    def __init__(self, workspace: Workspace, agent: AgentSession) -> None:
        """Both have the same id. Raises OptionsError where they haven't."""
        if agent.id != workspace.session:
            raise OptionsError(f"The conversation {agent.id} isn't that of the session {workspace.session}.")
        self.workspace = workspace
        self.agent = agent
        self._travels = Travels(workspace.directory, agent.id)
        self._beginning = anyio.Lock()
        self._message_id = ""
        self._step = 0
        self._claim: Claim | None = None
        """The comments that the run under way tells."""
        agent.subscribe(self._settle_claim)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        workspace: Workspace,
        *,
        model: LanguageModel | str,
        system_prompt: str | None = None,
        options: SessionOptions = _DEFAULT_OPTIONS,
        notes: bool = True,
    ) -> AsyncIterator[Self]:
        """With the stores of the workspace's state directory. First completes a rewind that a crash cut short.

        A `model` that is a string is looked up by provider. `system_prompt` None is what `set_system_prompt` was given, else
        `default_system_prompt` with what the person's configuration adds at its end; with `notes` it holds those of the
        project's files.
        Options without tools get the workspace's own, without a resolver the rules of the person's configuration. Raises
        ModelNotFoundError, ModelRequestError (auth), OptionsError, StoreError, and what the completion raises.
        """
        settings, store, seen = load(), FileSessionStore(workspace.directory), SeenFiles()
        sessions: list[Self] = []

        async def after_tools(message: ChatMessage) -> None:
            await sessions[0]._take_step(message)
            if options.after_tools is not None:
                await options.after_tools(message)

        async with AsyncExitStack() as stack:
            if isinstance(model, str):
                model = await stack.enter_async_context(resolve(model))
            tools = options.tools if options.tools is not None else _tools(workspace, model, seen)
            detail = await store.load(workspace.session)
            if system_prompt is None and detail is not None:
                system_prompt = detail.system_prompt
            found = await project_notes(workspace) if notes else ""
            if system_prompt is None:
                names = [schema.name for schema in tools.schemas()]
                # The person has the last word.
                extra = _joined(found, settings.system_prompt)
                system_prompt = default_system_prompt(workspace=_root(workspace), tool_names=names, extra=extra)
            else:
                system_prompt = _joined(system_prompt, found)
            agent = AgentSession(
                id=workspace.session,
                history=StoreHistory(store),
                locker=_locker(workspace),
                model=model,
                workspace=_root(workspace),
                system_prompt=system_prompt,
                options=replace(
                    options,
                    tools=tools,
                    after_tools=after_tools,
                    resolve_permission=options.resolve_permission or PermissionRules(settings.permissions),
                ),
                detail=detail,
                log=store.event_log,
            )
            agent.subscribe(lambda event: seen.clear() if event.type == "session.rewound" else None)
            sessions.append(cls(workspace, agent))
            async with sessions[0] as session:
                yield session

    @classmethod
    @asynccontextmanager
    async def open_to_travel(cls, workspace: Workspace) -> AsyncIterator[Self]:
        """As `open`, without a model to ask: for `rewind`, `redo` and `fork`. Raises StoreError."""
        store = FileSessionStore(workspace.directory)
        detail = await StoreHistory(store).change(workspace.session, lambda stored: stored)
        agent = AgentSession(
            id=workspace.session,
            history=StoreHistory(store),
            locker=_locker(workspace),
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
        self._release()

    async def start(self, input: str, *, images: Sequence[ImageAttachment] = (), message_id: str | None = None) -> Run:
        """Take a checkpoint under the message's id, where there is none yet, then begin as `AgentSession.start`.

        What the person said of the changes in a review comes before the message's text: one run at a time tells it, and
        where that doesn't end well, the next one. A checkpoint that fails starts nothing. Raises as that, and
        CheckpointError, OverlayError (overlay_busy), StoreError, OSError.
        """
        if self.agent.is_running or self._beginning.statistics().locked:
            raise SessionBusyError("A run is in progress.", hint="Cancel it, or wait for its end.")
        async with self._beginning:
            message_id = await self._prepare(input, message_id)
            told = await self._with_comments(input)
            with self._released_on_error():
                return self.agent.start(told, images=images, message_id=message_id)

    async def run(
        self,
        text: str,
        options: RunOptions = _DEFAULT_RUN_OPTIONS,
        *,
        images: Sequence[ImageAttachment] = (),
        message_id: str | None = None,
    ) -> RunStream:
        """As start(), but waits until no run of this object goes on, and begins as `AgentSession.run_with_options`.

        Raises MessageExistsError, CheckpointError, OverlayError (overlay_busy), StoreError, OSError.
        """
        async with self._beginning:
            await self.agent.wait_idle()
            message_id = await self._prepare(text, message_id)
            told = await self._with_comments(text)
            with self._released_on_error():
                return self.agent.run_with_options(told, options, images=images, message_id=message_id)

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

    async def prepare(self, text: str) -> tuple[str, str]:
        """For forks that are all to be told a message: take a checkpoint under its id; that id, and what they are to be told.

        That's the text after what the person said of the changes in a review, which stays until one of them is adopted.
        Raises as `start`.
        """
        async with self._beginning:
            message_id = await self._prepare(text, None)
            comments = await self._looked_up(self.workspace.reviewing.comments.all, text)
            return message_id, before_text(comments or (), text)

    async def adopt(
        self, fork: str, commit: str, *, message_id: str, instead_of: Sequence[tuple[str, str]], force: bool = False
    ) -> Travelled:
        """Take over the files that a fork had at a checkpoint of its own (its commit), and its conversation.

        The fork was told the message that `prepare` was called for. Only where this session is what it was: `instead_of` are
        pairs of a checkpoint's commit and the id of the conversation's last message, empty for none. Else raises
        SessionChangedError. Raises SessionNotFoundError, RewindError (session_busy), StoreError, and as `Workspace.adopt`.
        """
        stored = await FileSessionStore(self.workspace.directory).load(fork)
        if stored is None:
            raise SessionNotFoundError(
                f"There is no conversation of a session '{fork}'.", hint="`workbench sessions` lists what there is."
            )
        found: list[Travelled] = []

        def change(messages: Messages) -> Messages:
            if last_id(messages) not in {last for _, last in instead_of}:
                raise SessionChangedError(
                    f"The conversation of session '{self.agent.id}' went on meanwhile, and isn't replaced.",
                    hint=f"Go on in the other one: say `--session {fork}`.",
                )
            return stored.messages

        @asynccontextmanager
        async def around(before: Messages, after: Messages) -> AsyncIterator[None]:
            commits = [each for each, _ in instead_of]
            found.append(await self.workspace.adopt(fork, commit, instead_of=commits, force=force))
            yield

        await self.agent.change_transcript(message_id, change, around=around)
        if stored.title and not self.agent.detail().title:
            await self.agent.rename(stored.title)
        await to_thread.run_sync(self._forget_before, message_id)
        return found[0]

    def _forget_before(self, message_id: str) -> None:
        """Drop the comments that were told with a message."""
        asked_ns = self.workspace.timeline.find(message_id).created_at
        comments = self.workspace.reviewing.comments
        try:
            comments.forget([comment for comment in comments.all() if comment.at_ns <= asked_ns])
        except StateError as error:
            # The files and the conversation are there all the same.
            self.agent.publish(Notice(code=error.code, message=f"{error.message} {error.hint}"))

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

    async def _prepare(self, text: str, message_id: str | None) -> str:
        """The message's id, with a checkpoint under it. Raises MessageExistsError, CheckpointError, OverlayError."""
        id = message_id if message_id is not None else new_id("msg")
        if id in (await self._travels.read()).started:
            raise MessageExistsError(
                f"The session has, or had, a message {id} already.", hint="Use an id of its own for each message."
            )
        try:
            await to_thread.run_sync(self.workspace.timeline.find, id)
        except CheckpointError as error:
            if error.code != "checkpoint_not_found":
                raise
            await self.workspace.checkpoint(id, label=title_from_input(text))
        await self._travels.change(lambda record: record.model_copy(update={"started": (*record.started, id)}))
        self._message_id, self._step = id, 0
        return id

    async def _with_comments(self, text: str) -> str:
        """A message's text after the comments that its run tells, which nobody else tells meanwhile."""
        self._release()
        self._claim = await self._looked_up(self.workspace.reviewing.comments.claim, text)
        return before_text(self._claim.comments if self._claim is not None else (), text)

    async def _looked_up(self, look: Callable[[], _Comments], text: str) -> _Comments | None:
        """What `look` finds of the comments; None where they can't be read, which is said."""
        try:
            found = await to_thread.run_sync(look)
        except StateError as error:
            # The run goes on: the file stays for the person to correct.
            self.agent.publish(Notice(code=error.code, message=f"{error.message} {error.hint}"))
            return None
        if found and not self.agent.detail().title:
            await self.agent.rename(title_from_input(text))
        return found

    @contextmanager
    def _released_on_error(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    def _settle_claim(self, event: SessionEvent) -> None:
        """A run that failed or was cancelled leaves no message: what it told is told again."""
        if event.type == "run.completed" and self._claim is not None:
            self._claim.forget()
            self._claim = None
        elif event.type in ("run.cancelled", "run.failed"):
            self._release()

    async def _take_step(self, message: ChatMessage) -> None:
        """Keep what the calls of a reply have made: one step a reply, since calls may run side by side."""
        self._step += 1
        label = ", ".join(dict.fromkeys(call.name for call in message.tool_calls))
        try:
            await self.workspace.checkpoint(self._message_id, label=label, step=self._step, may_stop=False)
        except WorkbenchError as error:
            # The run goes on: what was there before the message is kept all the same.
            self.agent.publish(Notice(code=error.code, message=f"No checkpoint after {label}: {error.message}"))


def last_id(messages: Messages) -> str:
    """The id of the last message, empty where there is none."""
    return messages[-1].id if messages else ""


def _tools(workspace: Workspace, model: LanguageModel, seen: SeenFiles) -> ToolRegistry:
    tools = ToolRegistry()
    for tool in (*workspace_tools(workspace, seen), *note_tools(workspace, model)):
        tools.register(tool)
    return tools


def _locker(workspace: Workspace) -> FileLocker:
    return FileLocker(os.path.join(workspace.directory, "sessions", ".runs"))


def _joined(*parts: str | None) -> str:
    """The parts of a prompt that there are."""
    return "\n\n".join(part for part in parts if part)


def _root(workspace: Workspace) -> str:
    """The real directory as text."""
    return workspace.root.decode(errors="backslashreplace")


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
