"""What reads one agent's sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Literal, Protocol, runtime_checkable

from workbench.protocol.signal import CancelSignal
from workbench.transcripts.homes import AgentHome, HomeRule
from workbench.transcripts.models import (
    Capability,
    SessionHead,
    SessionListFailure,
    SessionPromptsOptions,
    SessionReadError,
    SessionRef,
    SessionSummaryWithPrompts,
    Transcript,
)
from workbench.transcripts.platform import SessionPlatform

ReadProgress = Callable[[int, int], None]
"""Called with the bytes read so far, and those of all the files known so far."""


class SessionAdapter(Protocol):
    """How one agent stores its sessions. Expected failures are values; only defects raise, and a signal's reason.

    `capabilities` is all that its transcripts can list; `home` is used instead of the catalog's rule, and required where
    the catalog has none. `workbench.testing.SessionAdapterContract` has the checks that an adapter must pass.
    """

    @property
    def agent(self) -> str: ...
    @property
    def display_name(self) -> str: ...
    @property
    def capabilities(self) -> tuple[Capability, ...]: ...
    @property
    def home(self) -> HomeRule | None: ...
    @property
    def specification_version(self) -> Literal["sessions-v1"]: ...

    def roots(self, home: AgentHome) -> tuple[str, ...]:
        """The directories that hold this agent's sessions."""
        ...

    async def detect(self, platform: SessionPlatform, ref: SessionRef) -> bool:
        """Whether `ref.path` is a session of this agent; cheap, for refs whose agent is unknown."""
        ...

    def discover(
        self, platform: SessionPlatform, root: str, *, signal: CancelSignal | None = None
    ) -> AsyncIterator[SessionHead | SessionListFailure]:
        """The sessions under a root, reading at most 64 KB from each end of each file."""
        ...

    async def load(
        self,
        platform: SessionPlatform,
        ref: SessionRef,
        *,
        progress: ReadProgress | None = None,
        signal: CancelSignal | None = None,
    ) -> Transcript | SessionReadError:
        """Read every file of a session; single unreadable records are skipped ones of the transcript."""
        ...


@runtime_checkable
class SummarizingAdapter(SessionAdapter, Protocol):
    """An adapter with a pass that is faster than folding a loaded transcript."""

    async def summarize(
        self,
        platform: SessionPlatform,
        ref: SessionRef,
        *,
        prompts: SessionPromptsOptions | None = None,
        signal: CancelSignal | None = None,
    ) -> SessionSummaryWithPrompts | SessionReadError:
        """What `fold` makes of the loaded transcript, prompts too, without keeping its events or texts.

        Its memory grows with requests, lanes and calls, never with bytes. Which reads fail may differ from `load`.
        """
        ...
