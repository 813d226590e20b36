"""The same reports one by one, as server-sent events, for who asks for `text/event-stream`."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing

from fastapi import Request, Response
from sse_starlette import EventSourceResponse, ServerSentEvent

from workbench.errors import WorkbenchError
from workbench.protocol.records import Frozen
from workbench.protocol.reports import ErrorReport

MEDIA_TYPE = "text/event-stream"
_LOG = logging.getLogger("workbench.server")


def wants_stream(request: Request) -> bool:
    """Whether events are asked for."""
    return MEDIA_TYPE in request.headers.get("accept", "")


def stream(items: AsyncGenerator[Frozen, None], names: Mapping[type[Frozen], str]) -> Response:
    """Each item as an event of its kind's name, then `end`; in the place of that, `error` where it was cut short."""

    async def events() -> AsyncGenerator[ServerSentEvent, None]:
        try:
            async with aclosing(items):
                async for item in items:
                    yield ServerSentEvent(item.model_dump_json(), event=names[type(item)])
        except WorkbenchError as error:
            yield _error(error.code, error.message, error.hint)
        except Exception as error:  # noqa: BLE001  what has begun can't become a status any more
            _LOG.error("a stream was cut short", exc_info=error)
            yield _error("internal_error", "The server failed at this.", "Its log, on stderr, says at what.")
        else:
            yield ServerSentEvent("{}", event="end")

    return EventSourceResponse(events())


def _error(code: str, message: str, hint: str | None) -> ServerSentEvent:
    report = ErrorReport(error={"code": code, "message": message, "hint": hint})
    return ServerSentEvent(report.model_dump_json(), event="error")
