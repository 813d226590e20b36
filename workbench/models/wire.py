"""One request to a provider: sent, its answer read as it comes, every failure one kind of error."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import json
import logging
import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import anyio
import httpx

from workbench.errors import ModelRequestError, OptionsError
from workbench.models.errors import is_overflow, model_http_error, model_network_error
from workbench.models.keys import Key, masked
from workbench.models.reading import Reading, Receiver, unpacker
from workbench.models.sse import EventReader, ServerEvent

_logger = logging.getLogger("workbench.models")

_MOST_ERROR_BYTES = 1 << 20
# After the reply is finished: for the usage, which may come behind it, and for the end of the bytes behind that.
_USAGE_SECONDS = 15.0
_END_SECONDS = 1.0
# For the words of a failure, whose status says the most of it.
_ERROR_SECONDS = 15.0
_SECRET_WORDS = ("auth", "key", "token", "secret", "cookie")
_FIELD_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_STATUSES = {
    "overloaded_error": 529,
    "overloaded": 529,
    "rate_limit_error": 429,
    "rate_limit_exceeded": 429,
    "authentication_error": 401,
    "permission_error": 403,
    "not_found_error": 404,
    "invalid_request_error": 400,
    "request_too_large": 413,
    "timeout_error": 504,
    "insufficient_quota": 402,
    "billing_error": 402,
    "context_length_exceeded": 400,
    "invalid_prompt": 400,
    "resource_exhausted": 429,
    "invalid_argument": 400,
    "unauthenticated": 401,
    "permission_denied": 403,
    "not_found": 404,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Timeouts:
    """Seconds: to `connect`, between two `bytes`, comments among them, and between two `events`, which aren't."""

    connect: float = 15.0
    bytes: float = 180.0
    events: float = 300.0


PATIENT = Timeouts()


@dataclass(frozen=True, kw_only=True, slots=True)
class Endpoint:
    """Where a provider answers, and how it's asked.

    `key_header` is the header that takes the key, and `key_prefix` what stands before it there, where it isn't what the
    wire format has. `proxy` None is what the usual variables say, which never goes for this machine itself. `transport`
    stands in for the network.
    """

    provider: str
    base_url: str
    key: Key | None = None
    key_header: str = ""
    key_prefix: str = ""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    query: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = field(default=None, repr=False)
    timeouts: Timeouts = PATIENT
    transport: httpx.AsyncBaseTransport | None = None


class Wire:
    """Requests to one endpoint. In an `async with` they share connections; else each has its own, closed after it."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises OptionsError for a base URL that can't be used."""
        self.endpoint = endpoint
        try:
            url = httpx.URL(endpoint.base_url)
        except httpx.InvalidURL:
            raise _bad_url(endpoint) from None
        if url.scheme not in ("http", "https") or not url.host or url.userinfo or url.query or url.fragment:
            raise _bad_url(endpoint)
        self._is_local = _is_local(url.host)
        self._client: httpx.AsyncClient | None = None
        self._users = 0

    async def __aenter__(self) -> Self:
        self._users += 1
        if self._client is None:
            self._client = self._new_client()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._users -= 1
        if self._users == 0 and self._client is not None:
            client, self._client = self._client, None
            await client.aclose()

    async def post(self, path: str, body: Mapping[str, Any], receiver: Receiver, *, stream: bool = True) -> None:
        """Send `body` as JSON and hand the answer to `receiver`, whichever form it takes.

        Raises ModelRequestError, without a key in it.
        """
        # A surrogate that stands alone comes of a name that isn't text; JSON can't carry it.
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
        headers = {"Content-Type": "application/json", "Accept": "text/event-stream" if stream else "application/json"}
        await self._send("POST", path, receiver, content=content, headers=headers, stream=stream)

    async def get(self, path: str) -> Any:
        """The JSON at `path`. Raises as `post` does."""
        receiver = _Whole()
        await self._send("GET", path, receiver, content=None, headers={"Accept": "application/json"}, stream=False)
        return receiver.body

    async def _send(
        self,
        method: str,
        path: str,
        receiver: Receiver,
        *,
        content: bytes | None,
        headers: dict[str, str],
        stream: bool,
    ) -> None:
        endpoint = self.endpoint
        secret = await endpoint.key.read(endpoint.provider) if endpoint.key is not None else ""
        headers = {"Accept-Encoding": "gzip", **headers, **endpoint.headers}
        if not all(map(_is_field, endpoint.headers.items())):
            # Its text would show what is in the header.
            raise self._refusal("A header holds what no header can.", "Correct it in config.toml.")
        if secret:
            if not (secret.isascii() and secret.isprintable()):
                raise self._refusal("The key holds what no header can.", "Copy it again.", code="auth")
            headers[endpoint.key_header] = endpoint.key_prefix + secret
        # An answer in one piece comes after all of it was thought of: silence before it means nothing.
        silence = endpoint.timeouts.bytes if stream else endpoint.timeouts.events
        request = httpx.Request(
            method,
            httpx.URL(endpoint.base_url.rstrip("/") + path).copy_merge_params(dict(endpoint.query)),
            headers=headers,
            content=content,
            extensions={"timeout": httpx.Timeout(silence, connect=endpoint.timeouts.connect).as_dict()},
        )
        try:
            if self._client is not None:
                await self._exchange(self._client, request, receiver)
            else:
                async with self._new_client() as client:
                    await self._exchange(client, request, receiver)
        except ModelRequestError as error:
            if error.code == "auth" and endpoint.key is not None:
                endpoint.key.forget()
            _mask(error, secret, *_credentials(endpoint.proxy), *_secret_headers(endpoint.headers))
            raise

    async def _exchange(self, client: httpx.AsyncClient, request: httpx.Request, receiver: Receiver) -> None:
        provider, has_begun = self.endpoint.provider, False
        reading = Reading(provider, self.endpoint.base_url, receiver)
        scope = anyio.CancelScope(deadline=anyio.current_time() + self.endpoint.timeouts.events)
        try:
            with scope:
                response = await client.send(request, stream=True)
                try:
                    has_begun = True
                    _logger.debug("%s answered with status %d", provider, response.status_code)
                    await self._read(response, reading, receiver, scope)
                finally:
                    with anyio.CancelScope(shield=True):
                        await response.aclose()
        except httpx.HTTPError as error:
            if reading.failure is None and not receiver.finished:
                if has_begun and not isinstance(error, httpx.TimeoutException):
                    raise _incomplete(provider, "The connection broke in the middle of the reply") from error
                raise model_network_error(provider, error) from error
        if reading.failure is not None:
            raise reading.failure
        if not receiver.finished:
            raise (
                self._silent()
                if scope.cancelled_caught
                else _incomplete(provider, "The reply ended before it was whole")
            )

    async def _read(
        self, response: httpx.Response, reading: Reading, receiver: Receiver, scope: anyio.CancelScope
    ) -> None:
        if not response.is_success:
            raise model_http_error(
                self.endpoint.provider, response.status_code, response.headers, await _beginning(response)
            )
        reading.unpack = unpacker(response.headers.get("Content-Encoding"))
        # The library would unpack too, but without bounds, and it leaves its generators behind where it can't.
        async for chunk in _body(response):
            if reading.failure is None:
                self._hurry(reading.feed(chunk), receiver, scope)
            if reading.failure is not None:
                # Leaving the loop would leave the library's generators behind, unclosed.
                scope.cancel()
        reading.end()

    def _hurry(self, was_event: bool, receiver: Receiver, scope: anyio.CancelScope) -> None:
        """Wait for the next event as long as for the first one, and for no more than the end once the reply is whole."""
        if receiver.finished:
            seconds = _END_SECONDS if receiver.done else _USAGE_SECONDS
            scope.deadline = min(scope.deadline, anyio.current_time() + seconds)
        elif was_event:
            scope.deadline = anyio.current_time() + self.endpoint.timeouts.events

    def _silent(self) -> ModelRequestError:
        return ModelRequestError(
            f"{self.endpoint.provider} sent nothing of a reply for {self.endpoint.timeouts.events:g} seconds.",
            code="network",
            provider=self.endpoint.provider,
            retryable=True,
            hint="Try again, or use another model.",
        )

    def _new_client(self) -> httpx.AsyncClient:
        endpoint = self.endpoint
        try:
            return httpx.AsyncClient(
                verify=_trust(),
                proxy=endpoint.proxy,
                transport=endpoint.transport,
                trust_env=not self._is_local,
            )
        except (ValueError, ImportError, httpx.InvalidURL):
            # Its text may hold the proxy's password.
            raise self._refusal(
                "The proxy can't be used.", "A proxy is http://HOST:PORT; for socks5:// install httpx[socks]."
            ) from None

    def _refusal(self, what: str, hint: str, *, code: str = "invalid_request") -> ModelRequestError:
        provider = self.endpoint.provider
        return ModelRequestError(f"{provider} can't be asked. {what}", code=code, provider=provider, hint=hint)


class _Whole:
    """Takes in JSON, whatever it is."""

    def __init__(self) -> None:
        self.body: Any = None
        self.finished = self.done = False

    def event(self, event: ServerEvent) -> None:
        raise ValueError(event)

    def whole(self, body: Any) -> None:
        self.body = body
        self.finished = self.done = True

    def deliver(self) -> None:
        pass


def stream_error(provider: str, error: Any) -> ModelRequestError:
    """The error for one that came inside an answer of status 200: `error` is what the provider says of it."""
    described = error if isinstance(error, dict) else {"message": str(error)}
    status = next(
        (status for status in (_status(described.get(name)) for name in ("code", "type", "status")) if status), None
    )
    body = json.dumps({"error": described}, ensure_ascii=False).encode("utf-8", "replace")
    if status is None:
        text = body.decode()
        status = 529 if "overloaded" in text.lower() else 400 if is_overflow(text) else 502
    return model_http_error(provider, status, {}, body)


def _status(named: Any) -> int | None:
    if isinstance(named, int) and 400 <= named < 600:
        return named
    if isinstance(named, str):
        return int(named) if named.isdigit() and 400 <= int(named) < 600 else _STATUSES.get(named.lower())
    return None


def _incomplete(provider: str, what: str) -> ModelRequestError:
    return ModelRequestError(
        f"{what}, from {provider}.",
        code="incomplete_stream",
        provider=provider,
        retryable=True,
        hint="Try again, or use another model.",
    )


def _body(response: httpx.Response) -> httpx.AsyncByteStream:
    """The bytes as they come, also of a response that a transport made whole."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return response.stream


async def _beginning(response: httpx.Response) -> bytes:
    """What a failure says, as much of it as comes soon; the status says enough without it."""
    body, unpack = bytearray(), unpacker(response.headers.get("Content-Encoding"))
    with contextlib.suppress(httpx.HTTPError), anyio.move_on_after(_ERROR_SECONDS) as scope:
        async for chunk in _body(response):
            try:
                body += unpack(chunk)[: _MOST_ERROR_BYTES - len(body)]
            except ValueError:
                scope.cancel()
            if len(body) == _MOST_ERROR_BYTES:
                # Leaving the loop would leave the library's generators behind, unclosed.
                scope.cancel()
    # Where a stream was asked for, some servers fail with one.
    events = EventReader().feed(bytes(body)) if body.startswith(b"data:") else []
    return events[0].data.encode() if events else bytes(body)


def _mask(error: ModelRequestError, *secrets: str) -> None:
    error.message = masked(error.message, *secrets)
    error.args = (error.message,)
    if error.hint is not None:
        error.hint = masked(error.hint, *secrets)


def _credentials(url: str | None) -> tuple[str, ...]:
    if url is None:
        return ()
    try:
        return tuple(filter(None, (httpx.URL(url).password, httpx.URL(url).userinfo.decode())))
    except (httpx.InvalidURL, UnicodeDecodeError):
        return ()


def _secret_headers(headers: Mapping[str, str]) -> list[str]:
    return [value for name, value in headers.items() if any(word in name.lower() for word in _SECRET_WORDS)]


def _bad_url(endpoint: Endpoint) -> OptionsError:
    return OptionsError(
        f"The base URL of {endpoint.provider} can't be used.",
        hint="It's http:// or https://, a host and a path. Credentials belong into its key or its headers, "
        "what stands behind a ? into its query.",
    )


def shown_url(url: str) -> str:
    """The URL without what may be secret in it."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return ""
    return str(parsed.copy_with(username=None, password=None, query=None, fragment=None))


def _is_field(header: tuple[str, str]) -> bool:
    """Whether name and value can stand in a header, and make no second one."""
    name, value = header
    return bool(_FIELD_NAME.fullmatch(name)) and value.isascii() and value.isprintable()


def _is_local(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@functools.cache
def _trust() -> ssl.SSLContext:
    # Reading the system's certificates takes longer than a short request.
    return httpx.create_ssl_context()
