"""Which providers can be asked, which of them answer, and whether a model does what an agent needs."""

from __future__ import annotations

import uuid
from typing import Any

import anyio

from workbench.errors import ModelRequestError, WorkbenchError
from workbench.models.adapter import WireModel
from workbench.models.resolving import Configured, Settings, configured, names
from workbench.models.wire import Timeouts, shown_url
from workbench.protocol.messages import ChatMessage, CompletionRequest, ErrorInfo, TokenDelta, ToolSchema, now
from workbench.protocol.model_reports import ProviderReport, TrialReport

_QUICK = Timeouts(connect=3.0, bytes=10.0, events=10.0)
_WORD = "workbench"
_TOOL = ToolSchema(
    name="repeat",
    description="Repeat a word.",
    parameters={
        "type": "object",
        "properties": {"word": {"type": "string", "description": "The word."}},
        "required": ["word"],
        "additionalProperties": False,
    },
)
# Enough for a model that thinks before it calls.
_MAX_TOKENS = 2_048


async def look(settings: Settings, only: str | None = None) -> tuple[ProviderReport, ...]:
    """Every provider that is known, or one; those that can be asked are asked what they offer, all at once."""
    wanted = names(settings) if only is None else [only]
    reports: dict[str, ProviderReport] = {}

    async def look_at(name: str) -> None:
        reports[name] = await _look_at(name, settings)

    async with anyio.create_task_group() as group:
        for name in wanted:
            group.start_soon(look_at, name)
    return tuple(reports[name] for name in wanted)


async def _look_at(name: str, settings: Settings) -> ProviderReport:
    try:
        found = configured(name, settings, timeouts=_QUICK)
    except WorkbenchError as error:
        said = settings.providers[name]
        return ProviderReport(
            name=name,
            api=said.api or "",
            base_url=shown_url(said.base_url),
            key=None,
            configured=False,
            error=info_of(error),
        )
    key = found.endpoint.key
    report = ProviderReport(
        name=name,
        api=found.provider.api,
        base_url=shown_url(found.endpoint.base_url),
        key=None if key is None else key.source,
        configured=not found.missing,
        missing=found.missing or None,
    )
    if found.missing:
        return report
    try:
        models = await _list(found)
    except WorkbenchError as error:
        return report.model_copy(update={"reachable": False, "error": info_of(error)})
    return report.model_copy(update={"reachable": True, "models": models})


async def _list(found: Configured) -> tuple[str, ...]:
    """The names of the models that a provider lists. Raises ModelRequestError and OptionsError."""
    body: Any = await found.wire().get(found.list_path)
    try:
        listed = body if isinstance(body, list) else body.get("data") or body.get("models") or []
        return tuple(str(model.get("id") or model["name"]).removeprefix("models/") for model in listed)
    except (AttributeError, LookupError, TypeError) as error:
        raise ModelRequestError(
            f"{found.provider.name} answered with what is no list of models.", provider=found.provider.name
        ) from error


async def try_out(model: WireModel) -> TrialReport:
    """Ask for one small tool call, streamed, and say what worked."""
    pieces = 0

    def hear(delta: TokenDelta) -> None:
        nonlocal pieces
        pieces += 1

    asked = ChatMessage(
        id=uuid.uuid4().hex,
        role="user",
        content=f"Call the tool {_TOOL.name} once, with the word {_WORD}. Say nothing else.",
        created_at=now(),
    )
    request = CompletionRequest(model=model.info.id, messages=(asked,), tools=(_TOOL,), max_tokens=_MAX_TOKENS)
    try:
        response = await model.generate(request, hear)
    except WorkbenchError as error:
        return TrialReport(model=model.info.id, works=False, answered=False, error=info_of(error))
    calls = [call for call in response.tool_calls if call.name == _TOOL.name]
    right = any(call.arguments == {"word": _WORD} for call in calls)
    return TrialReport(
        model=model.info.id,
        works=right,
        answered=True,
        pieces=pieces + len(response.tool_calls),
        called=bool(calls),
        arguments_right=right,
        finish_reason=response.finish_reason,
        usage=None if response.usage.is_empty else response.usage,
    )


def info_of(error: WorkbenchError) -> ErrorInfo:
    """An error as it crosses a boundary."""
    return ErrorInfo(code=error.code, message=error.message, hint=error.hint)
