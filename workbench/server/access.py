"""Who may ask, under which name, from which page: decided before anything else sees a request."""

from __future__ import annotations

import ipaddress
import re
import secrets
from urllib.parse import unquote

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from workbench.server.answers import refusal

OPEN = frozenset({"/v1/health", "/v1/openapi.json"})
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_ABSOLUTE = re.compile(rb"https?://([^/]*)(/.*)?", re.IGNORECASE | re.DOTALL)
_HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(?::[0-9]*)?")
_HEADERS = {
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_POLICY = "default-src 'none'; frame-ancestors 'none'; sandbox"


class Access:
    """Lets through what carries the token, under a name that can't be another site's.

    A page of another site can have its own name lead here (DNS rebinding), but not an address: so the host that was asked
    for is an address, `localhost`, or the `name` that the server was told. Browsers send the token only where our page
    does, since it's no cookie: other sites, and other ports of this machine, can't borrow it.
    """

    def __init__(self, app: ASGIApp, *, token: str, name: str = "") -> None:
        self._app = app
        self._token = token.encode()
        self._names = {"localhost", name.lower()} - {""}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """As of ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        without_body = scope["method"] == "HEAD"
        scope = _as_asked(scope)
        headers = Headers(scope=scope)

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    sent.setdefault(name, value)
                sent.setdefault("content-security-policy", _POLICY)
            elif without_body:
                message = {**message, "body": b""}
            await send(message)

        app = self._app
        host = headers.get("host", "")
        if not self._is_ours(host):
            app = refusal(421, "host_refused", "This server isn't asked under that name.", "Ask it by its address.")
        elif scope["method"] not in _SAFE and headers.get("origin", f"//{host}").partition("//")[2] != host:
            app = refusal(403, "origin_refused", "Pages of other sites may change nothing here.", "Ask without them.")
        elif scope["path"].startswith("/v1/") and scope["path"] not in OPEN and not self._is_known(headers):
            app = refusal(
                401,
                "unauthorized",
                "The token is missing or wrong.",
                "Open the address that 'workbench serve' printed, or send 'Authorization: Bearer TOKEN'.",
                {"www-authenticate": "Bearer"},
            )
        await app(scope, receive, guarded)

    def _is_ours(self, host: str) -> bool:
        parts = _HOST.fullmatch(host)
        name = (host if parts is None else parts[1]).lower()
        if name in self._names:
            return True
        try:
            ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
        except ValueError:
            return False
        return True

    def _is_known(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return scheme.lower() == "bearer" and secrets.compare_digest(token.strip().encode(), self._token)


def _as_asked(scope: Scope) -> Scope:
    """The same request, in the form in which everything behind this knows it.

    Its target may be a whole address, whose host then counts. HEAD is GET, answered without the body, and never by a stream.
    """
    whole = _ABSOLUTE.fullmatch(scope.get("raw_path") or b"")
    if whole is not None:
        path = whole[2] or b"/"
        others = [(name, value) for name, value in scope["headers"] if name != b"host"]
        scope = {**scope, "path": unquote(path), "raw_path": path, "headers": [(b"host", whole[1]), *others]}
    if scope["method"] == "HEAD":
        scope = {**scope, "method": "GET", "headers": [each for each in scope["headers"] if each[0] != b"accept"]}
    return scope
