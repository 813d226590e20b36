"""What became of one request to go out: written down when it's over, and bounded in bytes while it lasts."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from operator import attrgetter

import anyio
from anyio.abc import ByteStream

from workbench.protocol.egress import EgressEvent

ALLOWED, REFUSED, FAILED, LIMITED = "allowed", "refused", "failed", "limited"

LOG = "egress.jsonl"
"""The log's name in an overlay's directory; the one before it has `.1` at its end."""

_LOG_LIMIT = 4 << 20


@dataclass(slots=True)
class Attempt:
    """One request on its way, or a tunnel: `host` is empty until it's known."""

    kind: str
    method: str = ""
    host: str = ""
    port: int = 0
    secret: str = ""
    verdict: str = REFUSED
    reason: str = ""
    address: str = ""
    status: int = 0
    sent: int = 0
    received: int = 0
    began_ns: int = field(default_factory=time.time_ns)

    def event(self) -> EgressEvent:
        """What is told of it."""
        fields = {name: getattr(self, name) for name in self.__slots__ if name != "began_ns"}
        return EgressEvent(began_ns=self.began_ns, ended_ns=time.time_ns(), **fields)


class Account:
    """How many bytes each host took and gave altogether, and the limit on that; 0 is none."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used: Counter[str] = Counter()

    def has_room(self, host: str, more: int = 0) -> bool:
        """Whether a host may take or give so many bytes more, or at least one."""
        return not self._limit or self._used[host] + max(more, 1) <= self._limit

    def add(self, host: str, number: int) -> None:
        """Count bytes."""
        self._used[host] += number


class MeteredStream(ByteStream):
    """A stream to a host that counts on an attempt and an account; what would exceed the limit breaks it."""

    def __init__(self, stream: ByteStream, attempt: Attempt, account: Account) -> None:
        self._stream = stream
        self._attempt = attempt
        self._account = account

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """As the stream's; also anyio.BrokenResourceError beyond the limit."""
        data = await self._stream.receive(max_bytes)
        await self._check(len(data))
        self._attempt.received += len(data)
        return data

    async def send(self, item: bytes) -> None:
        """As the stream's; also anyio.BrokenResourceError beyond the limit, with nothing sent."""
        await self._check(len(item))
        self._attempt.sent += len(item)
        await self._stream.send(item)

    async def send_eof(self) -> None:
        """As the stream's."""
        await self._stream.send_eof()

    async def aclose(self) -> None:
        """As the stream's."""
        await self._stream.aclose()

    async def _check(self, number: int) -> None:
        if not self._account.has_room(self._attempt.host, number):
            self._attempt.verdict = LIMITED
            self._attempt.reason = "the host has had all the bytes it may take and give"
            # So that whoever waits for the other direction hears of it, too.
            await self._stream.aclose()
            raise anyio.BrokenResourceError
        self._account.add(self._attempt.host, number)


class EgressLog:
    """The last attempts of an overlay's sandboxes, a line of JSON each: 4 to 8 MiB of them."""

    def __init__(self, overlay_path: str) -> None:
        self._path = os.path.join(overlay_path, LOG)

    def add(self, event: EgressEvent) -> None:
        """Append an event. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._path, flags, 0o600)
        try:
            os.write(fd, event.model_dump_json().encode() + b"\n")
            full = os.fstat(fd).st_size > _LOG_LIMIT
        finally:
            os.close(fd)
        if full:
            os.rename(self._path, f"{self._path}.1")

    def events(self) -> list[EgressEvent]:
        """All that are kept, as they began; a line that was cut by a crash is left out. Raises OSError."""
        found = []
        for path in (f"{self._path}.1", self._path):
            with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
                for line in file:
                    with contextlib.suppress(ValueError):
                        found.append(EgressEvent.model_validate(json.loads(line)))
        return sorted(found, key=attrgetter("began_ns"))
