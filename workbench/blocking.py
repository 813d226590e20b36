"""Blocking twins of `Workspace` and `WorkspaceSession`, for programs without an event loop.

::

    with Workspace.open("repo") as workspace, WorkspaceSession.open(workspace, model="anthropic/claude-sonnet-4.6") as session:
        for event in session.run("Fix the failing test."):
            if event.type == "text":
                print(event.text, end="")
        changes = workspace.changes()
        if session.result().ok:
            workspace.commit(workspace.reviewed(changes))

Each workspace has an event loop in a thread of its own, which ends with its `with`; an interrupt (KeyboardInterrupt) in a
call cancels what the call waits for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, ExitStack
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

from workbench import workspace as awaited
from workbench.agent import workspace_session as conversing
from workbench.agent.options import SessionOptions
from workbench.agent.run import RunStream
from workbench.checkpoints.store import Checkpoint
from workbench.errors import OptionsError
from workbench.landing import Landed
from workbench.live import LiveOverlay
from workbench.models.base import LanguageModel
from workbench.mounting import SandboxOptions
from workbench.protocol.commands import Command, CommandResult
from workbench.protocol.events import RunEvent
from workbench.protocol.messages import ImageAttachment
from workbench.protocol.runs import RunOptions, RunResult
from workbench.review.changeset import ChangeSet
from workbench.workspace import Discarded, Travelled, WorkspaceStatus

T = TypeVar("T")

_DEFAULT_OPTIONS = SessionOptions()
_DEFAULT_RUN_OPTIONS = RunOptions()


class Workspace:
    """`workbench.Workspace` whose calls return when they're done; each raises what the one of that name raises.

    `view`, the files of the merged view, blocks by itself. What has no twin here is reached by `call`.
    """

    def __init__(self, opened: awaited.Workspace) -> None:
        """Use `open`."""
        self._workspace = opened
        self._stack = ExitStack()
        self._portal: BlockingPortal | None = None

    @classmethod
    def open(cls, path: str | bytes, *, session: str = "default", options: SandboxOptions | None = None) -> Workspace:
        """As `workbench.Workspace.open` of a directory."""
        return cls(awaited.Workspace.open(path, session=session, options=options))

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            portal = stack.enter_context(start_blocking_portal())
            stack.enter_context(portal.wrap_async_context_manager(self._workspace))
            self._stack = stack.pop_all()
        self._portal = portal
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._portal = None
        self._stack.__exit__(kind, error, trace)

    @property
    def awaited(self) -> awaited.Workspace:
        """The workspace that this one stands for."""
        return self._workspace

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Await something in the workspace's event loop. Raises what it raises, OptionsError outside of the `with`."""
        return _wait(self.portal.start_task_soon(function))

    @property
    def portal(self) -> BlockingPortal:
        """The way into its event loop. Raises OptionsError outside of the `with`."""
        if self._portal is None:
            raise OptionsError("The workspace isn't open.", hint="Use it in a `with`.")
        return self._portal

    @property
    def view(self) -> LiveOverlay:
        """As `Workspace.view`."""
        return self._workspace.view

    def exec(self, command: Command) -> CommandResult:
        """As `Workspace.exec`."""
        return self.call(partial(self._workspace.exec, command))

    def read(self, path: bytes) -> bytes:
        """As `Workspace.read`."""
        return self.call(partial(self._workspace.read, path))

    def status(self) -> WorkspaceStatus:
        """As `Workspace.status`."""
        return self.call(self._workspace.status)

    def changes(self) -> ChangeSet:
        """As `Workspace.changes`."""
        return self.call(self._workspace.changes)

    def reviewed(self, changes: ChangeSet) -> str:
        """As `Workspace.reviewed`."""
        return self._workspace.reviewed(changes)

    def commit(self, digest: str, *, allow_risky: bool = False) -> Landed:
        """As `Workspace.commit`."""
        return self.call(partial(self._workspace.commit, digest, allow_risky=allow_risky))

    def discard(self) -> Discarded:
        """As `Workspace.discard`."""
        return self.call(self._workspace.discard)

    def checkpoint(self, message_id: str | None = None, *, label: str = "") -> Checkpoint:
        """As `Workspace.checkpoint`."""
        return self.call(partial(self._workspace.checkpoint, message_id, label=label))

    def rewind(self, message_id: str, *, step: int = 0, only: Sequence[bytes] = ()) -> Travelled:
        """As `Workspace.rewind`."""
        return self.call(partial(self._workspace.rewind, message_id, step=step, only=only))

    def redo(self) -> Travelled:
        """As `Workspace.redo`."""
        return self.call(self._workspace.redo)

    def stop(self) -> None:
        """As `Workspace.stop`: what runs in the sandbox ends."""
        self.call(self._workspace.stop)


class WorkspaceSession:
    """`workbench.WorkspaceSession` over a blocking workspace; each call raises what the one of that name raises."""

    def __init__(self, workspace: Workspace, opened: AbstractAsyncContextManager[conversing.WorkspaceSession]) -> None:
        """Use `open`."""
        self._workspace = workspace
        self._opened = opened
        self._stack = ExitStack()
        self._session: conversing.WorkspaceSession | None = None
        self._run: RunStream | None = None

    @classmethod
    def open(
        cls,
        workspace: Workspace,
        *,
        model: LanguageModel | str,
        system_prompt: str | None = None,
        options: SessionOptions = _DEFAULT_OPTIONS,
        notes: bool = True,
    ) -> WorkspaceSession:
        """As `workbench.WorkspaceSession.open`, once it's entered."""
        opened = conversing.WorkspaceSession.open(
            workspace.awaited, model=model, system_prompt=system_prompt, options=options, notes=notes
        )
        return cls(workspace, opened)

    def __enter__(self) -> Self:
        self._session = self._stack.enter_context(self._workspace.portal.wrap_async_context_manager(self._opened))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._session = None
        self._stack.__exit__(kind, error, trace)

    @property
    def awaited(self) -> conversing.WorkspaceSession:
        """The session that this one stands for. Raises OptionsError outside of the `with`."""
        if self._session is None:
            raise OptionsError("The session isn't open.", hint="Use it in a `with`.")
        return self._session

    def run(
        self,
        text: str,
        options: RunOptions = _DEFAULT_RUN_OPTIONS,
        *,
        images: Sequence[ImageAttachment] = (),
        message_id: str | None = None,
    ) -> Iterator[RunEvent]:
        """As `WorkspaceSession.run`: its events as they come; `result` says how it ended. Leaving early cancels it."""
        begin = partial(self.awaited.run, text, options, images=images, message_id=message_id)
        run = self._run = self._workspace.call(begin)
        return self._events(run)

    def _events(self, run: RunStream) -> Iterator[RunEvent]:
        async def following() -> RunEvent | None:
            return await anext(run, None)

        async def left() -> None:
            run.cancel()
            await run.wait_finished()

        try:
            while (event := self._workspace.call(following)) is not None:
                yield event
        finally:
            self._workspace.call(left)

    def result(self) -> RunResult:
        """How the last run ended, which is waited for. Raises RunFailedError, OptionsError where there was none."""
        if self._run is None:
            raise OptionsError("There was no run.", hint="Begin one with run().")
        return self._workspace.call(self._run.result)

    def rewind(self, message_id: str, *, files: bool = True, conversation: bool = True) -> conversing.WorkspaceRewound:
        """As `WorkspaceSession.rewind`."""
        return self._workspace.call(partial(self.awaited.rewind, message_id, files=files, conversation=conversation))

    def redo(self) -> conversing.WorkspaceRewound:
        """As `WorkspaceSession.redo`."""
        return self._workspace.call(self.awaited.redo)

    def fork(self, message_id: str, *, name: str | None = None) -> str:
        """As `WorkspaceSession.fork`."""
        return self._workspace.call(partial(self.awaited.fork, message_id, name=name))


def _wait(future: Future[T]) -> T:
    try:
        return future.result()
    except KeyboardInterrupt:
        # Cancelling it is what the interrupt asks for; its end is waited for, so that nothing goes on behind it.
        future.cancel()
        try:
            future.result()
        except CancelledError:
            pass
        raise
