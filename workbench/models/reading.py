"""An answer as it's read: which form it has, and what is wrong with it."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Callable
from typing import Any, Protocol

from workbench.errors import ModelRequestError
from workbench.models.sse import EventReader, ServerEvent

_FIELDS = (b"data:", b"event:", b"id:", b"retry:", b":")
_SHOWN_CHARACTERS = 300
# Of one answer, unpacked: more than any reply with images has, and less than what a machine has room for.
_MOST_BYTES = 128 << 20
# Only says that the connection lives, as a comment does.
_PING = "ping"
# What reading data of another shape than was expected raises.
WRONG_DATA = (ValueError, TypeError, AttributeError, LookupError, RecursionError)


class Receiver(Protocol):
    """What takes in an answer, piece by piece."""

    @property
    def finished(self) -> bool:
        """Whether the provider said that the reply is whole."""

    @property
    def done(self) -> bool:
        """Whether nothing more will come."""

    def event(self, event: ServerEvent) -> None:
        """An event of a stream. Raises ModelRequestError, and what reading wrong data raises."""

    def whole(self, body: Any) -> None:
        """The JSON of an answer that isn't a stream. Raises as `event` does."""

    def deliver(self) -> None:
        """Hand on what has come of the reply. Raises what the one who gets it raises."""


class Reading:
    """Bytes of an answer in, which a receiver gets as events or as one body.

    A status of 200 says little: what begins like an event stream is one, whatever its headers say, and all else is read
    to its end. `unpack` opens each piece. `failure` is the first thing that went wrong; after it nothing more is taken in.
    """

    def __init__(self, provider: str, base_url: str, receiver: Receiver) -> None:
        self._provider = provider
        self._base_url = base_url
        self._receiver = receiver
        self._reader = EventReader()
        self._start = bytearray()
        self._is_stream: bool | None = None
        self._bytes = 0
        self.unpack: Callable[[bytes], bytes] = bytes
        self.failure: Exception | None = None

    def feed(self, chunk: bytes) -> bool:
        """Take in a chunk; whether it completed an event that says something."""
        try:
            chunk = self.unpack(chunk)
        except ValueError as error:
            self._fail(unreadable(self._provider, str(error)))
            return False
        self._bytes += len(chunk)
        if self._bytes > _MOST_BYTES:
            self._fail(_endless(self._provider))
            return False
        if self._is_stream:
            return self._take(self._reader.feed(chunk))
        self._start += chunk
        if self._is_stream is None:
            self._is_stream = _is_stream(bytes(self._start))
        return bool(self._is_stream) and self._take(self._reader.feed(bytes(self._start)))

    def end(self) -> None:
        """The bytes have ended."""
        if self._is_stream:
            self._take(self._reader.end())
            return
        text = self._start.decode(errors="replace").strip()
        if not text:
            return
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            self._fail(self._unreadable(text))
            return
        self._try(functools.partial(self._receiver.whole, body), text)

    def _take(self, events: list[ServerEvent]) -> bool:
        for event in events:
            # Some servers close every format with the mark of another.
            if self._receiver.done:
                break
            self._try(functools.partial(self._receiver.event, event), event.data)
        return any(event.name != _PING for event in events)

    def _try(self, take: Callable[[], None], text: str) -> None:
        if self.failure is not None:
            return
        try:
            take()
        except ModelRequestError as error:
            self._fail(error)
        except WRONG_DATA as error:
            unreadable = self._unreadable(text)
            unreadable.__cause__ = error
            self._fail(unreadable)
        try:
            self._receiver.deliver()
        except Exception as error:  # noqa: BLE001  whatever it is, it's raised once the connection is closed
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.failure = self.failure or error

    def _unreadable(self, text: str) -> ModelRequestError:
        if text.lstrip()[:1] != "<":
            return unreadable(self._provider, text)
        return ModelRequestError(
            f"{self._provider} answered with a page: {text.strip()[:_SHOWN_CHARACTERS]}",
            code="invalid_request",
            provider=self._provider,
            hint=f"Check the base URL, {self._base_url}, and what stands between.",
        )


def unpacker(encoding: str | None) -> Callable[[bytes], bytes]:
    """What unpacks the pieces of a body, each to not much more than a thousand times its size, and raises ValueError.

    Only what was asked for is unpacked, and once: layers, and other ways of packing, have no such bound.
    """
    named = (encoding or "identity").strip().lower()
    decompress = zlib.decompressobj(16 + zlib.MAX_WBITS).decompress if named == "gzip" else bytes

    def unpack(chunk: bytes) -> bytes:
        if named not in ("gzip", "identity"):
            raise ValueError(f"it's packed as {named}, which wasn't asked for")
        try:
            return decompress(chunk)
        except zlib.error as error:
            raise ValueError(f"it isn't packed as {named}") from error

    return unpack


def _endless(provider: str) -> ModelRequestError:
    return ModelRequestError(
        f"{provider} sent more than {_MOST_BYTES >> 20} MB, and still no end of the reply.",
        code="incomplete_stream",
        provider=provider,
        hint="Use another model.",
    )


def unreadable(provider: str, text: str) -> ModelRequestError:
    """The error for an answer that is no reply, which may be one the next time."""
    return ModelRequestError(
        f"{provider} answered with what is no reply: {text.strip()[:_SHOWN_CHARACTERS]}",
        code="incomplete_stream",
        provider=provider,
        retryable=True,
        hint="Try again, or use another model.",
    )


def _is_stream(start: bytes) -> bool | None:
    """Whether the first bytes of an answer are those of an event stream; None while that can't be said."""
    start = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if any(start.startswith(field) for field in _FIELDS):
        return True
    return None if any(field.startswith(start) for field in _FIELDS) else False
