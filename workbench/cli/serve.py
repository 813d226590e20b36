"""`serve`: the HTTP server and its page, until ^C."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import anyio
import typer

from workbench.cli import output
from workbench.cli.options import JsonOption, QuietOption, failing
from workbench.errors import OptionsError, ServerError
from workbench.protocol.reports import ServeReport
from workbench.state import StateDirectory

if TYPE_CHECKING:
    from socket import socket

_NEEDED = ("fastapi", "sse_starlette", "uvicorn")
_TOKEN_FILE = "serve-token"


def serve(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="PORT", min=0, max=65535, help="0 is a free one.")] = 0,
    token_file: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="The token that requests carry, made where it's missing; else in the state directory."
        ),
    ] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", metavar="", help="Let other machines reach an address that they can.")
    ] = False,
    quiet: QuietOption = False,
    json: JsonOption = False,
) -> None:
    """Serve the sessions of coding agents, workbench's own among them: a page to read them in, and an HTTP API, until ^C.

    Nothing is written, and nobody is answered without the token, which is in the address that is printed.
    """
    with failing(json):
        if missing := [name for name in _NEEDED if find_spec(name) is None]:
            raise ServerError(
                f"What `workbench serve` needs isn't installed: {', '.join(missing)}.",
                code="extra_missing",
                hint="pip install 'overlay-workbench[server]'",
            )
        from workbench.server import serving, tokens

        if not host:
            raise OptionsError("--host names no address.", hint="Leave it out, and it's 127.0.0.1.")
        if not allow_remote and not serving.is_loopback(host):
            raise OptionsError(
                f"Other machines may reach {host}, and whoever is on the way can read along.",
                hint="Leave --host out and forward the port (ssh -L), or say --allow-remote.",
            )
        path = token_file or os.path.join(StateDirectory.open().path, _TOKEN_FILE)
        token = tokens.token_in(path)
        with serving.listen(host, port) as listener:
            report = _report(host, listener, path)
            anyio.run(_serve, report, listener, token, quiet, json)


async def _serve(report: ServeReport, listener: socket, token: str, quiet: bool, json: bool) -> None:
    from workbench.server import serving
    from workbench.server.app import create_app
    from workbench.transcripts import LocalPlatform

    def ready() -> None:
        if json:
            output.write_json(report)
        else:
            print(f"{report.url}#token={token}", flush=True)
        if not quiet:
            output.say("serving, until ^C; who has the address can read every session")

    await serving.serve(create_app(LocalPlatform(), token=token, name=report.host), listener, ready=ready)


def _report(host: str, listener: socket, path: str) -> ServeReport:
    port = listener.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    return ServeReport(url=f"http://{shown}:{port}/", host=host, port=port, token_file=os.path.abspath(path))
