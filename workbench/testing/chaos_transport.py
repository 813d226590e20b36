"""A network that fails now and then, the same way each time."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from typing import Literal

import httpx

Fault = Literal["status", "connect", "cut", "corrupt"]

_FAULTS: tuple[Fault, ...] = ("status", "connect", "cut", "corrupt")
_STATUSES = (408, 429, 500, 502, 503, 529)


class ChaosTransport(httpx.AsyncBaseTransport):
    """Passes requests on, and makes some of them fail; give it to an `Endpoint` as its `transport`.

    `status` answers 429 or a server's error in the place of the real answer, sometimes with a Retry-After. `connect` is a
    connection that can't be made. `cut` breaks the answer off in the middle. `corrupt` takes a quote out of a tool call's
    arguments. `happened` holds what was done to each request, None for nothing; the same `seed` does the same again.
    """

    def __init__(
        self,
        inner: httpx.AsyncBaseTransport | None = None,
        *,
        seed: int = 0,
        rate: float = 0.3,
        faults: Sequence[Fault] = _FAULTS,
    ) -> None:
        """`rate` is the share of requests that something happens to; `inner` None is the real network."""
        self._inner = inner or httpx.AsyncHTTPTransport()
        self._random = random.Random(seed)
        self._rate = rate
        self._faults = tuple(faults)
        self.happened: list[Fault | None] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """As of every transport."""
        happens = self._random.random() < self._rate
        fault = self._random.choice(self._faults) if happens else None
        status, wait, place = self._random.choice(_STATUSES), self._random.randrange(3), self._random.randrange(1, 6)
        self.happened.append(fault)
        if fault == "connect":
            raise httpx.ConnectError("chaos: nobody is there", request=request)
        if fault == "status":
            headers = {"Retry-After": str(wait)} if wait else {}
            return httpx.Response(status, headers=headers, json={"error": {"message": "chaos"}}, request=request)
        response = await self._inner.handle_async_request(request)
        if fault is not None and isinstance(response.stream, httpx.AsyncByteStream):
            response.stream = _Broken(response.stream, fault, place)
        return response

    async def aclose(self) -> None:
        """Close what is below."""
        await self._inner.aclose()


class _Broken(httpx.AsyncByteStream):
    def __init__(self, inner: httpx.AsyncByteStream, fault: Fault, place: int) -> None:
        self._inner = inner
        self._fault = fault
        self._place = place

    async def __aiter__(self) -> AsyncIterator[bytes]:
        number = 0
        async for chunk in self._inner:
            if self._fault == "cut" and number >= self._place:
                # The rest is read all the same: leaving here would leave what is below unclosed.
                continue
            # An escaped quote is one inside of a string: the chunk stays JSON, the arguments don't.
            if self._fault == "corrupt" and (b'"arguments"' in chunk or b'"partial_json"' in chunk):
                chunk = chunk.replace(b'\\"', b"", 1)
            number += 1
            yield chunk
        if self._fault == "cut":
            raise httpx.ReadError("chaos: cut off")

    async def aclose(self) -> None:
        await self._inner.aclose()
