"""What a person said of the changes in a review, on its way to the agent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from anyio import to_thread

from workbench.agent.prompt import title_from_input
from workbench.agent.session import AgentSession
from workbench.errors import StateError
from workbench.protocol.events import Notice, SessionEvent
from workbench.review.comments import Claim, before_text
from workbench.workspace import Workspace

_Comments = TypeVar("_Comments")


class ToldComments:
    """The comments on a workspace's changes: one run at a time tells them, and where that doesn't end well, the next one."""

    def __init__(self, workspace: Workspace, agent: AgentSession) -> None:
        self._workspace = workspace
        self._agent = agent
        self._comments = workspace.reviewing.comments
        self._claim: Claim | None = None
        agent.subscribe(self._settle)

    async def told_with(self, text: str) -> str:
        """A message's text after the comments that its run tells, which nobody else tells meanwhile. Raises OSError."""
        self.release()
        self._claim = await self._looked_up(self._comments.claim, text)
        return before_text(self._claim.comments if self._claim is not None else (), text)

    async def shown_with(self, text: str) -> str:
        """The same, and they stay to be told: for forks of which one is to be adopted. Raises OSError."""
        return before_text(await self._looked_up(self._comments.all, text) or (), text)

    def forget_before(self, message_id: str) -> None:
        """Drop the comments that were shown with a message; blocking. Raises OSError."""
        asked_ns = self._workspace.timeline.find(message_id).created_at
        try:
            self._comments.forget([comment for comment in self._comments.all() if comment.at_ns <= asked_ns])
        except StateError as error:
            # The files and the conversation are there all the same.
            self._say(error)

    @contextmanager
    def released_on_error(self) -> Iterator[None]:
        """Around what begins the run: where it doesn't, the comments are told by the next one."""
        try:
            yield
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        """No run tells them any more."""
        if self._claim is not None:
            self._claim.release()
            self._claim = None

    async def _looked_up(self, look: Callable[[], _Comments], text: str) -> _Comments | None:
        """What `look` finds of the comments; None where they can't be read, which is said."""
        try:
            found = await to_thread.run_sync(look)
        except StateError as error:
            # The run goes on: the file stays for the person to correct.
            self._say(error)
            return None
        if found and not self._agent.detail().title:
            await self._agent.rename(title_from_input(text))
        return found

    def _settle(self, event: SessionEvent) -> None:
        """A run that failed or was cancelled leaves no message: what it told is told again."""
        if event.type == "run.completed" and self._claim is not None:
            self._claim.forget()
            self._claim = None
        elif event.type in ("run.cancelled", "run.failed"):
            self.release()

    def _say(self, error: StateError) -> None:
        self._agent.publish(Notice(code=error.code, message=f"{error.message} {error.hint}"))
