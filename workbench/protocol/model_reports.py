"""What `workbench models` says to programs."""

from __future__ import annotations

from workbench.protocol.messages import ErrorInfo, Usage
from workbench.protocol.records import Frozen


class ProviderReport(Frozen):
    """One provider of models.

    `key` says where its key comes from, never what it is; None where it has none. `configured` says that it can be asked,
    `missing` what it lacks for that. `reachable` is None where it wasn't asked; `models` are those that it lists, `error`
    is why it couldn't.
    """

    name: str
    api: str
    base_url: str
    key: str | None
    configured: bool
    missing: str | None = None
    reachable: bool | None = None
    models: tuple[str, ...] = ()
    error: ErrorInfo | None = None


class ModelsReport(Frozen):
    """`workbench models --json`: the providers, and the date of what is known of context windows and prices."""

    version: int = 1
    catalog_date: str
    providers: tuple[ProviderReport, ...]


class TrialReport(Frozen):
    """`workbench models test NAME --json`: what worked of one small streamed tool call.

    `pieces` counts the parts that the reply came in. `called` says that the tool was called, `arguments_right` that it
    was with what was asked for. `error` is why there was no reply.
    """

    version: int = 1
    model: str
    works: bool
    answered: bool
    pieces: int = 0
    called: bool = False
    arguments_right: bool = False
    finish_reason: str | None = None
    usage: Usage | None = None
    error: ErrorInfo | None = None
