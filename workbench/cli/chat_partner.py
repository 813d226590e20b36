"""The model that a chat is with, and the session's conversation with it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Self

import anyio

from workbench.agent.options import SessionOptions
from workbench.agent.workspace_session import WorkspaceSession
from workbench.errors import OptionsError
from workbench.models.resolving import resolve
from workbench.workspace import Workspace


class Partner:
    """Opened when it's first spoken to, and kept open from then on; leaving its `async with` closes it."""

    def __init__(
        self, workspace: Workspace, name: str, key_command: str, options: SessionOptions, *, notes: bool
    ) -> None:
        """`name` is the model's, empty where none is known yet; `key_command` prints the key of that model's provider."""
        self.name = name
        self._workspace = workspace
        self._key_command = key_command
        self._key_provider = _provider(name)
        self._options = options
        self._notes = notes
        self._stack = AsyncExitStack()
        self._session: WorkspaceSession | None = None

    async def session(self) -> WorkspaceSession:
        """The conversation. Raises OptionsError where no model is named, and as `resolve` and `WorkspaceSession.open`."""
        if self._session is None:
            if not self.name:
                raise OptionsError(
                    "No model is named.",
                    hint="Say /model PROVIDER/NAME, or write `model` below [agent] into your config.toml; `workbench models` "
                    "lists what is configured.",
                )
            async with AsyncExitStack() as stack:
                model = await stack.enter_async_context(resolve(self.name, key_command=self._key_of(self.name)))
                opened = WorkspaceSession.open(self._workspace, model=model, options=self._options, notes=self._notes)
                self._session = await stack.enter_async_context(opened)
                self._stack = stack.pop_all()
        return self._session

    async def change(self, name: str) -> None:
        """Ask another model from now on. Raises as `resolve`, and leaves it as it is then."""
        resolve(name, key_command=self._key_of(name))
        await self.close()
        self.name, self._key_provider = name, self._key_provider or _provider(name)

    async def close(self) -> None:
        """Let go of the conversation, which somebody else is to change; the next message opens it again."""
        stack, self._stack, self._session = self._stack, AsyncExitStack(), None
        with anyio.CancelScope(shield=True):
            await stack.aclose()

    def _key_of(self, name: str) -> str:
        # One provider's key is never shown to another.
        return self._key_command if _provider(name) == self._key_provider or not self._key_provider else ""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _provider(name: str) -> str:
    return name.partition("/")[0]
