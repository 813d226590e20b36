"""Where files and conversation meet: a session of a workspace with the conversation that works on it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Self

from anyio import to_thread

from workbench.agent import settings
from workbench.agent.history import StoreHistory
from workbench.agent.journal import Journal, PendingMove, Undone
from workbench.agent.locks import FileLocker
from workbench.agent.options import SessionOptions
from workbench.agent.prompt import default_system_prompt, new_id
from workbench.agent.run import Run, RunStream
from workbench.agent.session import AgentSession
from workbench.agent.stores import FileSessionStore
from workbench.errors import CheckpointError, MessageExistsError, OptionsError, RewindError, SessionBusyError
from workbench.models.base import LanguageModel
from workbench.models.resolving import resolve
from workbench.protocol.messages import ChatMessage, ImageAttachment
from workbench.protocol.runs import RunOptions
from workbench.tools.project_notes import project_notes
from workbench.tools.registry import ToolRegistry
from workbench.tools.seen import SeenFiles
from workbench.tools.standard import note_tools, workspace_tools
from workbench.workspace import Workspace

_DEFAULT_OPTIONS = SessionOptions()
_DEFAULT_RUN = RunOptions()


@dataclass(frozen=True, slots=True)
class WorkspaceRewound:
    """What a rewind or a redo did: messages removed (or brought back), and surviving; paths restored; commands ended."""

    removed: int
    messages: tuple[ChatMessage, ...]
    restored: tuple[bytes, ...]
    ended_processes: int


class WorkspaceSession:
    """A conversation whose messages have checkpoints of the workspace's files under their ids."""

    def __init__(self, workspace: Workspace, agent: AgentSession, *, steps: _Steps | None = None) -> None:
        """Raises OptionsError unless `agent.id == workspace.session`. Only `open` has `steps` taken within a run."""
        if agent.id != workspace.session:
            raise OptionsError(
                f"The conversation {agent.id!r} isn't that of the session {workspace.session!r}.",
                hint="One session is one overlay with one conversation: give both the same name.",
            )
        self.workspace = workspace
        self.agent = agent
        self._steps = steps
        self._history = StoreHistory(FileSessionStore(workspace.directory))
        self._journal = Journal(workspace.directory, workspace.session)

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

        Args:
            model: one, or the name of one, `provider/model`.
            system_prompt: None is `default_system_prompt` with what the person's configuration adds.
            options: without `tools` the workspace's own are offered (`tools.standard`); after each reply's calls a
                sub-step is taken, before `after_tools` is awaited.
            notes: whether the workspace's AGENTS.md and the like are read into the prompt, as untrusted.

        Raises ModelNotFoundError, ModelRequestError (auth), OptionsError, StoreError, CheckpointError, OverlayError.
        """
        asked = resolve(model) if isinstance(model, str) else model
        seen = SeenFiles()
        if options.tools is None:
            tools = ToolRegistry()
            for tool in (*workspace_tools(workspace, seen), *note_tools(workspace, asked)):
                tools.register(tool)
            options = replace(options, tools=tools)
        prompt = system_prompt
        if prompt is None:
            said = settings.load()
            names = [schema.name for schema in options.tools.schemas()] if options.tools is not None else []
            root = os.fsencode(workspace.root).decode(errors="backslashreplace")
            prompt = default_system_prompt(workspace=root, tool_names=names, extra=said.system_prompt)
        if notes and (found := await project_notes(workspace)):
            prompt = f"{prompt}\n\n{found}"
        store = FileSessionStore(workspace.directory)
        steps = _Steps(workspace, options)
        agent = AgentSession(
            id=workspace.session,
            history=StoreHistory(store),
            locker=FileLocker(os.path.join(workspace.directory, "locks")),
            model=asked,
            workspace=os.fsdecode(workspace.root),
            system_prompt=prompt,
            options=replace(options, after_tools=steps.after_tools),
            detail=await store.load(workspace.session),
        )
        session = cls(workspace, agent, steps=steps)
        agent.subscribe(lambda event: seen.clear() if event.type == "session.rewound" else None)
        await session._complete()
        async with agent:
            yield session

    async def start(self, input: str, *, images: Sequence[ImageAttachment] = (), message_id: str | None = None) -> Run:
        """Checkpoint under `message_id` (made where absent), then `agent.start`. A checkpoint that fails starts nothing.

        Raises as `AgentSession.start` and `Workspace.checkpoint`.
        """
        message_id = await self._prepare(message_id)
        return self.agent.start(input, images=images, message_id=message_id)

    async def run(
        self,
        text: str,
        options: RunOptions = _DEFAULT_RUN,
        *,
        images: Sequence[ImageAttachment] = (),
        message_id: str | None = None,
    ) -> RunStream:
        """As `start`, with the run's events to be read. Raises SessionBusyError, and as `Workspace.checkpoint`."""
        message_id = await self._prepare(message_id)
        return self.agent.run_with_options(text, options, images=images, message_id=message_id)

    async def rewind(self, message_id: str, *, files: bool = True, conversation: bool = True) -> WorkspaceRewound:
        """Take back a message and all that came after it, of files, of the conversation, or of both.

        Both or neither, across a crash too. Of a run that failed the message isn't in the conversation: its files are
        restored, and `removed` is 0. Ends the sandbox, never a run. Raises RewindError (`session_busy`,
        `message_not_found`, `invalid_rewind_target`), CheckpointError, SandboxError (sandbox_busy), OverlayError, StoreError.
        """
        self._refuse_running()
        messages = await self._history.read(self.agent.id)
        at = next((index for index, message in enumerate(messages) if message.id == message_id), None)
        if at is not None and messages[at].role != "user":
            raise RewindError("Only a message of the user's can be taken back.", code="invalid_rewind_target")
        try:
            await to_thread.run_sync(self.workspace.timeline.find, message_id)
        except CheckpointError as error:
            if error.code != "checkpoint_not_found":
                raise
            if at is None or files:
                raise RewindError(
                    f"There is no message {message_id} to rewind to.", hint="`workbench log` lists them."
                ) from error
        removed = messages[at:] if at is not None and conversation else ()
        return await self._move(PendingMove(kind="rewind", message_id=message_id, files=files, removed=removed))

    async def redo(self) -> WorkspaceRewound:
        """Take back the last rewind that wasn't taken back yet. Raises as `rewind`, CheckpointError (nothing_to_redo)."""
        self._refuse_running()
        undone = await self._journal.last()
        if undone is None:
            raise CheckpointError("There is no rewind to take back.", code="nothing_to_redo")
        return await self._move(
            PendingMove(kind="redo", message_id=undone.message_id, files=undone.files, removed=undone.removed)
        )

    async def fork(self, message_id: str, *, name: str | None = None) -> str:
        """Another session as this one was before a message, files and conversation; its name, to be opened.

        Raises as `Workspace.fork`, and StoreError.
        """
        name = name if name is not None else await to_thread.run_sync(self.workspace.free_session)
        await self.workspace.fork(message_id, name)
        messages = await self._history.read(self.agent.id)
        ids = [message.id for message in messages]
        kept = messages[: ids.index(message_id)] if message_id in ids else messages
        detail = self.agent.detail()
        await self._history.change(name, lambda _: detail.model_copy(update={"id": name, "messages": kept}))
        return name

    async def _prepare(self, message_id: str | None) -> str:
        """The checkpoint of what is there before a message. Raises SessionBusyError, and as `Workspace.checkpoint`."""
        if self.agent.is_running:
            raise SessionBusyError("A run is in progress.", hint="Cancel it, or wait for its end.")
        message_id = message_id or new_id("msg")
        try:
            await self.workspace.checkpoint(message_id)
        except CheckpointError as error:
            if error.code != "checkpoint_exists":
                raise
            raise MessageExistsError(
                f"The session has, or had, a message {message_id} already.",
                hint="Use an id of its own for each message.",
            ) from error
        await self._journal.forget()
        if self._steps is not None:
            self._steps.begin(message_id)
        return message_id

    def _refuse_running(self) -> None:
        if self.agent.is_running:
            raise RewindError("A run is in progress.", code="session_busy", hint="Cancel it, or wait for its end.")

    async def _complete(self) -> None:
        pending = await self._journal.pending()
        if pending is not None:
            await self._carry_out(pending)

    async def _move(self, move: PendingMove) -> WorkspaceRewound:
        points = await to_thread.run_sync(self.workspace.timeline.redo_points)
        move = move.model_copy(update={"points": len(points)})
        await self._journal.begin(move)
        return await self._carry_out(move)

    async def _carry_out(self, move: PendingMove) -> WorkspaceRewound:
        """Files, conversation, and the journal's end; each step is found done where a crash came after it."""
        restored: tuple[bytes, ...] = ()
        ended = 0
        if move.files:
            points = await to_thread.run_sync(self.workspace.timeline.redo_points)
            if len(points) == move.points:
                rewinding = move.kind == "rewind"
                travelled = await (self.workspace.rewind(move.message_id) if rewinding else self.workspace.redo())
                restored, ended = travelled.journey.restored, len(travelled.ended)
        has_moved = move.files and len(await to_thread.run_sync(self.workspace.timeline.redo_points)) != move.points
        present = {message.id for message in await self._history.read(self.agent.id)}
        if move.kind == "redo":
            missing = tuple(message for message in move.removed if message.id not in present)
            if missing:
                await self.agent.bring_back(missing)
            await self._journal.end(None)
        else:
            if move.removed and move.removed[0].id in present:
                await self.agent.rewind(move.removed[0].id)
            await self._journal.end(Undone(message_id=move.message_id, files=has_moved, removed=move.removed))
        return WorkspaceRewound(len(move.removed), self.agent.detail().messages, restored, ended)


class _Steps:
    """Takes a sub-step of the running message's checkpoint after each reply whose calls have ended."""

    def __init__(self, workspace: Workspace, options: SessionOptions) -> None:
        self._workspace = workspace
        self._then = options.after_tools
        self._logger = options.logger
        self._message_id = ""
        self._step = 0

    def begin(self, message_id: str) -> None:
        """A run begins with this message."""
        self._message_id, self._step = message_id, 0

    async def after_tools(self, reply: ChatMessage) -> None:
        """What `SessionOptions.after_tools` is. A checkpoint that fails is logged: the run goes on without it."""
        self._step += 1
        try:
            await self._workspace.checkpoint(self._message_id, step=self._step, may_stop=False)
        except CheckpointError:
            self._logger.warning("no checkpoint after step %d of %s", self._step, self._message_id, exc_info=True)
        if self._then is not None:
            await self._then(reply)
