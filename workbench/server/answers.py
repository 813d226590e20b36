"""What is answered: reports as JSON, errors as the command line's, and nothing any more where nobody is left to read it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import Any

import anyio
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException

from workbench.errors import (
    CapabilityUnsupportedError,
    OptionsError,
    SessionBusyError,
    SessionNotFoundError,
    TranscriptError,
    WorkbenchError,
)
from workbench.protocol.records import Frozen
from workbench.protocol.reports import ErrorReport

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReport, "description": HTTPStatus(status).phrase} for status in (401, 404, 409, 422, 500)
}
_STATUS: tuple[tuple[type[WorkbenchError], int], ...] = (
    (SessionNotFoundError, 404),
    (SessionBusyError, 409),
    (OptionsError, 422),
    (CapabilityUnsupportedError, 422),
    (TranscriptError, 422),
)
_CODES = {"no_conversation": 404, "session_ambiguous": 409}
_CLOSED = 499
_LOG = logging.getLogger("workbench.server")

_Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def answer(report: Frozen, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A report as JSON, whatever text is in it."""
    return Response(report.model_dump_json(), status, headers, "application/json")


def refusal(
    status: int, code: str, message: str, hint: str | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """An error as JSON: its code, a sentence, a next step."""
    return answer(ErrorReport(error={"code": code, "message": message, "hint": hint}), status, headers)


class WhileConnected(APIRoute):
    """A route whose work ends once its client has gone away."""

    def get_route_handler(self) -> _Handler:
        """The handler, beside who waits for the client to go."""
        handle = super().get_route_handler()

        async def watched(request: Request) -> Response:
            response = Response(status_code=_CLOSED)
            raised: list[Exception] = []
            async with anyio.create_task_group() as tasks:

                async def gone() -> None:
                    while (await request.receive())["type"] != "http.disconnect":
                        pass
                    tasks.cancel_scope.cancel()

                tasks.start_soon(gone)
                # Carried out of the group by hand: one error, not a group of them.
                try:
                    response = await handle(request)
                except Exception as error:  # noqa: BLE001  raised again below
                    raised.append(error)
                tasks.cancel_scope.cancel()
            if raised:
                raise raised[0]
            return response

        return watched


def add_error_handlers(app: FastAPI) -> None:
    """Every error as JSON; what nobody expected is logged with its stack, which never leaves."""
    app.add_exception_handler(WorkbenchError, _ours)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _of_http)
    app.add_exception_handler(OSError, _of_system)
    app.add_exception_handler(Exception, _unexpected)


async def _ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, WorkbenchError)
    return refusal(status_of(error), error.code, error.message, error.hint)


def status_of(error: WorkbenchError) -> int:
    """The HTTP status of an error."""
    if error.code in _CODES:
        return _CODES[error.code]
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    issues = (f"{'.'.join(map(str, issue['loc'][1:]))}: {issue['msg']}" for issue in error.errors())
    return refusal(422, "invalid_options", "; ".join(issues), "/v1/openapi.json has what each request takes.")


async def _of_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    phrase = HTTPStatus(error.status_code).phrase
    hint = "/v1/openapi.json has what there is."
    return refusal(error.status_code, phrase.lower().replace(" ", "_"), f"{phrase}.", hint, error.headers)


async def _of_system(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    _LOG.error("%s %s", request.method, request.url.path, exc_info=error)
    return refusal(500, "system_error", f"The system refused: {error.strerror or 'it says no more'}.")


async def _unexpected(request: Request, error: Exception) -> Response:
    # The server logs it, with its stack, and closes the connection.
    hint = "Its log, on stderr, says at what."
    return refusal(500, "internal_error", "The server failed at this.", hint, {"connection": "close"})
