"""Exchanges on their way through a keeper, from its clients to the supervisor and back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from workbench.sandbox import frames
from workbench.sandbox.background import BackgroundJob, Follower


class Client(Protocol):
    """A connection of a client, with what it has asked for by its own ids."""

    pid: int
    routes: dict[int, int]
    followers: dict[int, Follower]

    def send(self, data: bytes) -> None:
        """Send whole frames, unless it has gone."""
        ...


@dataclass(slots=True, eq=False)
class Route:
    """One exchange on its way through: whose it is and under which id, and what credit there is each way.

    `id` is the name of a command; `job` is what is kept of one in the background, whose client only waits to hear that
    it has begun. `enders` wait for its end. `answered` takes the answer where we asked for ourselves, `receiver` everything
    that comes back.
    """

    kind: bytes
    client: Client | None
    number: int
    id: str = ""
    argv: list[str] = field(default_factory=list)
    tty: bool = False
    since: float = field(default_factory=time.monotonic)
    started_at: float = field(default_factory=time.time)
    outstanding: int = 0
    input_credit: int = frames.WINDOW
    job: BackgroundJob | None = None
    enders: list[tuple[Client, int]] = field(default_factory=list)
    answered: Callable[[bytes, bytes], None] | None = None
    receiver: Callable[[bytes, bytes], None] | None = None

    def describe(self) -> frames.Json:
        """A command, as clients are told of it."""
        job = self.job
        until = job.over_at if job and job.over else time.monotonic()
        return {
            "id": self.id,
            "argv": self.argv,
            "tty": self.tty,
            "background": job is not None,
            "client": self.client.pid if self.client else 0,
            "started_at_ms": int(self.started_at * 1000),
            "running_ms": int((until - self.since) * 1000),
            "output_bytes": job.log.end if job else 0,
            "result": frames.result_content(job.result) if job and job.result else None,
            "over": job is not None and job.over,
        }

    @property
    def is_attached(self) -> bool:
        """Whether somebody waits for it, or follows it."""
        return self.client is not None or (self.job is not None and bool(self.job.followers))
