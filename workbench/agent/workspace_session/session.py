"""Where files and conversation meet: a checkpoint before each message, and rewinds that move both."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from types import TracebackType
from typing import Self

import anyio
from anyio import to_thread

from workbench.agent.history import StoreHistory
from workbench.agent.options import SessionOptions
from workbench.agent.permissions import PermissionRules
from workbench.agent.prompt import default_system_prompt, new_id, title_from_input
from workbench.agent.run import Run, RunStream
from workbench.agent.session import AgentSession
from workbench.agent.settings import load
from workbench.agent.stores import FileSessionStore
from workbench.agent.transcript import Messages
from workbench.agent.workspace_session.approvals import NotedApprovals
from workbench.agent.workspace_session.told import ToldComments
from workbench.agent.workspace_session.travelling import TravellingSession, last_id, run_locker
from workbench.errors import (
    CheckpointError,
    MessageExistsError,
    SessionBusyError,
    SessionChangedError,
    SessionNotFoundError,
    WorkbenchError,
)
from workbench.models.base import LanguageModel
from workbench.models.resolving import resolve
from workbench.protocol.events import Notice
from workbench.protocol.messages import ChatMessage, ImageAttachment
from workbench.protocol.runs import RunOptions
from workbench.tools.project_notes import project_notes
from workbench.tools.registry import ToolRegistry
from workbench.tools.seen import SeenFiles
from workbench.tools.standard import note_tools, workspace_tools
from workbench.workspace import Travelled, Workspace

_DEFAULT_OPTIONS = SessionOptions()
_DEFAULT_RUN_OPTIONS = RunOptions()


class WorkspaceSession(TravellingSession):
    """A conversation and the workspace that it works on. Leaving its `async with` closes the conversation, not the
    workspace."""

    def __init__(self, workspace: Workspace, agent: AgentSession) -> None:
        """Both have the same id. Raises OptionsError where they haven't."""
        super().__init__(workspace, agent)
        self._comments = ToldComments(workspace, agent)
        NotedApprovals(workspace, agent)
        self._beginning = anyio.Lock()
        self._message_id = ""
        self._step = 0

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
        project's files. Options without tools get the workspace's own, without a resolver the rules of the person's
        configuration. Raises ModelNotFoundError, ModelRequestError (auth), OptionsError, StoreError, and what the completion
        raises.
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
                locker=run_locker(workspace),
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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await super().__aexit__(kind, error, trace)
        self._comments.release()

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
            told = await self._comments.told_with(input)
            with self._comments.released_on_error():
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
            told = await self._comments.told_with(text)
            with self._comments.released_on_error():
                return self.agent.run_with_options(told, options, images=images, message_id=message_id)

    async def prepare(self, text: str) -> tuple[str, str]:
        """For forks that are all to be told a message: take a checkpoint under its id; that id, and what they are to be told.

        That's the text after what the person said of the changes in a review, which stays until one of them is adopted.
        Raises as `start`.
        """
        async with self._beginning:
            message_id = await self._prepare(text, None)
            return message_id, await self._comments.shown_with(text)

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
        await to_thread.run_sync(self._comments.forget_before, message_id)
        return found[0]

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

    async def _take_step(self, message: ChatMessage) -> None:
        """Keep what the calls of a reply have made: one step a reply, since calls may run side by side."""
        self._step += 1
        label = ", ".join(dict.fromkeys(call.name for call in message.tool_calls))
        try:
            await self.workspace.checkpoint(self._message_id, label=label, step=self._step, may_stop=False)
        except WorkbenchError as error:
            # The run goes on: what was there before the message is kept all the same.
            self.agent.publish(Notice(code=error.code, message=f"No checkpoint after {label}: {error.message}"))


def _tools(workspace: Workspace, model: LanguageModel, seen: SeenFiles) -> ToolRegistry:
    tools = ToolRegistry()
    for tool in (*workspace_tools(workspace, seen), *note_tools(workspace, model)):
        tools.register(tool)
    return tools


def _joined(*parts: str | None) -> str:
    """The parts of a prompt that there are."""
    return "\n\n".join(part for part in parts if part)


def _root(workspace: Workspace) -> str:
    """The real directory as text."""
    return workspace.root.decode(errors="backslashreplace")
