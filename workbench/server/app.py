"""The application: its routes, the page, and what stands before both."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Literal

from fastapi import Depends, FastAPI, Request, Response
from fastapi.security import HTTPBearer
from starlette.middleware import Middleware

from workbench import __version__
from workbench.protocol.records import Frozen
from workbench.server.access import Access
from workbench.server.answers import add_error_handlers, answer
from workbench.server.library import Library
from workbench.server.sessions import sessions
from workbench.server.transcripts import transcripts
from workbench.transcripts import HostPlatform

_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
# Nothing inline, nothing of elsewhere, and no text that becomes markup: browsers that know trusted types refuse that.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)


class Health(Frozen):
    """The server answers."""

    status: Literal["ok"] = "ok"


def create_app(platform: HostPlatform, *, token: str, name: str = "") -> FastAPI:
    """The application over what a platform holds, for who has the token.

    `name` is another name than `localhost` that the server may be asked under.
    """
    app = FastAPI(
        title="workbench",
        version=__version__,
        description="Sessions of coding agents, to be read. Every request but for the health carries the token.",
        openapi_url="/v1/openapi.json",
        docs_url=None,
        redoc_url=None,
        middleware=[Middleware(Access, token=token, name=name)],
    )
    app.state.library = Library(platform)
    add_error_handlers(app)
    # It only tells the OpenAPI document: who may ask is decided before.
    bearer = Depends(HTTPBearer(auto_error=False, description="What is in the server's token file."))
    for router in (transcripts, sessions):
        app.include_router(router, dependencies=[bearer])
    app.add_api_route("/v1/health", _health, response_model=Health, tags=["health"])
    for file in files("workbench.server").joinpath("page").iterdir():
        path = "/" if file.name == "index.html" else f"/{file.name}"
        app.add_route(path, _static(file), include_in_schema=False)
    return app


async def _health() -> Response:
    return answer(Health())


def _static(file: Traversable) -> Callable[[Request], Awaitable[Response]]:
    # Read once: it's answered whatever the threads are busy with.
    content, media_type = file.read_bytes(), _MEDIA_TYPES[file.name.rpartition(".")[2]]

    async def respond(request: Request) -> Response:
        return Response(content, media_type=media_type, headers={"content-security-policy": _POLICY})

    return respond
