"""The commands of a sandbox by their names: for whoever started one in the background, follows it, or ends it."""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Callable

from workbench.errors import SandboxError
from workbench.sandbox import background, frames
from workbench.sandbox.background import BackgroundJob, Follower
from workbench.sandbox.routes import Client, Route

MOST_LISTED = 100
"""Commands in one answer, which is bounded."""

_ENDED_KEPT = 32
_ID_BYTES = 4


class NamedJobs:
    """The part of a keeper that knows commands by name."""

    def __init__(
        self,
        routes: dict[int, Route],
        most: int,
        *,
        ask: Callable[[bytes, bytes, Client | None, int], int],
        tell: Callable[[bytes, int, bytes], None],
        finish: Callable[[int, Route], None],
    ) -> None:
        """Args:
        routes: every exchange under way, by its id with the supervisor; the keeper's own.
        most: how many commands may run in the background.
        ask: starts an exchange with the supervisor, for a client under its id; returns the id there.
        tell: sends a frame to the supervisor.
        finish: an exchange is over.
        """
        self._routes = routes
        self._most = most
        self._ask = ask
        self._tell = tell
        self._finish = finish
        self._ended: deque[Route] = deque(maxlen=_ENDED_KEPT)

    def running(self) -> dict[int, Route]:
        """Every command, by its id with the supervisor."""
        return {number: route for number, route in self._routes.items() if route.kind == frames.RUN}

    def kill(self, number: int, reason: str, *, grace_ms: int, discard: bool) -> None:
        """Have a command, or another request, ended."""
        content = {"grace_ms": grace_ms, "discard": discard, "reason": reason}
        self._tell(frames.KILL, number, json.dumps(content).encode())

    def run(self, client: Client, number: int, payload: bytes) -> None:
        """Start a command for a client, who waits for its end, or in the background. Raises ValueError, KeyError, …."""
        content = json.loads(payload)
        is_background = bool(content.get("detached"))
        if is_background:
            if sum(route.job is not None for route in self.running().values()) >= self._most:
                error = SandboxError(
                    f"{self._most} commands already run in the background.",
                    code="sandbox_busy",
                    hint="End one of them with `workbench kill`; `workbench ps` lists them.",
                )
                client.send(frames.encode_json(frames.FAILED, number, frames.failure_content(error)))
                return
            payload = json.dumps({**content, "announce": True, "output_limit": 0}).encode()
        asked = self._ask(frames.RUN, payload, client, number)
        route = self._routes[asked]
        route.id = secrets.token_hex(_ID_BYTES)
        route.argv = background.shown_argv(content)
        route.tty = bool(content.get("tty"))
        if is_background:
            route.job = BackgroundJob(route.id, lambda kind, data: self._tell(kind, asked, data))

    def answer(self, number: int, route: Route, job: BackgroundJob, kind: bytes, payload: bytes) -> None:
        """Take what the supervisor says of a command in the background. Raises SandboxError (sandbox_lost)."""
        if kind in (frames.STDOUT, frames.STDERR):
            job.wrote(kind, payload)
        elif kind == frames.CREDIT:
            job.grant(payload)
        elif kind == frames.INPUT_CLOSED:
            job.close_input()
        elif kind == frames.BEGUN:
            self._begun(route)
        elif kind in (frames.RESULT, frames.FAILED):
            starter, answer = route.client, frames.encode(kind, route.number, payload)
            if kind == frames.RESULT or starter is None:
                self._begun(route)
                self._ended.append(route)
            self._finish(number, route)
            job.finish(kind, payload)
            if kind == frames.FAILED and starter is not None:
                starter.send(answer)

    def _begun(self, route: Route) -> None:
        """Tell who started a command in the background its name; from now on it's nobody's."""
        client, route.client = route.client, None
        if client is not None:
            client.routes.pop(route.number, None)
            client.send(frames.encode_json(frames.RESULT, route.number, {"job": route.id}))

    def request(self, client: Client, kind: bytes, number: int, content: frames.Json) -> None:
        """Attach to a command, or signal or end it. Raises SandboxError where the request is malformed."""
        found = self._find(str(content.get("job")))
        if isinstance(found, SandboxError):
            client.send(frames.encode_json(frames.FAILED, number, frames.failure_content(found)))
            return
        asked, route = found
        if kind == frames.END_JOB:
            if asked:
                self._end_job(asked, content)
            if asked and content.get("signal") is None:
                route.enders.append((client, number))
            else:
                client.send(frames.encode_json(frames.RESULT, number, {}))
            return
        if route.job is None:
            error = SandboxError(
                f"The command {route.id} runs in the foreground of another process, where its output goes.",
                code="job_not_found",
                hint="Only what `workbench exec -d` started can be attached to.",
            )
            client.send(frames.encode_json(frames.FAILED, number, frames.failure_content(error)))
            return
        tail = content.get("tail")
        start = 0 if tail is None else route.job.log.last_lines(frames.number(content, "tail"))
        until = None if frames.flag(content, "follow") else route.job.log.end
        follower = Follower(
            route.job, number, start, until, client.send, lambda over: client.followers.pop(over.number, None)
        )
        client.followers[number] = follower
        route.job.followers.add(follower)
        if route.job.input_closed:
            client.send(frames.encode(frames.INPUT_CLOSED, number))
        follower.pump()

    def _find(self, name: str) -> tuple[int, Route] | SandboxError:
        """The command of that name, or of the only one that begins so; its id is 0 once it has ended."""
        known = [*self.running().items(), *((0, route) for route in self._ended)]
        found = [(asked, route) for asked, route in known if name and route.id.startswith(name)]
        if len(found) == 1:
            return found[0]
        what = f"{len(found)} commands are called {name}…" if found else f"There is no command {name!r} in the sandbox."
        return SandboxError(what, code="job_not_found", hint="`workbench ps` lists what runs, and what ended lately.")

    def _end_job(self, asked: int, content: frames.Json) -> None:
        if content.get("signal") is not None:
            number = frames.number(content, "signal", low=1, high=frames.HIGHEST_SIGNAL)
            self._tell(frames.SIGNAL, asked, bytes([number]))
        else:
            reason, grace = frames.text(content, "reason", 100), frames.number(content, "grace_ms")
            self.kill(asked, reason, grace_ms=grace, discard=False)

    def follow_up(self, follower: Follower, kind: bytes, payload: bytes) -> None:
        """What a follower adds to their ATTACH. Raises SandboxError, struct.error where that is malformed."""
        job = follower.job
        asked = next((number for number, route in self._routes.items() if route.job is job), 0)
        if kind == frames.CREDIT:
            follower.credit += frames.COUNT.unpack(payload)[0]
            follower.pump()
        elif kind == frames.DETACH:
            follower.leave()
        elif not asked:
            return
        elif kind == frames.DATA:
            job.type(follower, payload)
        elif kind == frames.KILL:
            self._end_job(asked, frames.parse(payload))
        elif kind == frames.SIGNAL:
            self._end_job(asked, {"signal": payload[0] if len(payload) == 1 else 0})
        elif kind == frames.RESIZE and len(payload) == frames.SIZE.size:
            self._tell(kind, asked, payload)
        else:
            raise frames.lost(f"a request {kind!r} that there isn't")

    def list(self, client: Client, number: int) -> None:
        """Tell a client of all that run, with what they use, and of those in the background that ended lately."""

        def answer(kind: bytes, payload: bytes) -> None:
            used = frames.parse(payload) if kind == frames.RESULT else {"jobs": {}}
            jobs = [route.describe() for route in self._ended]
            for asked, route in tuple(self.running().items())[: MOST_LISTED - len(jobs)]:
                jobs.append({**route.describe(), **background.usage_of(used, asked)})
            client.send(frames.encode_json(frames.RESULT, number, {"jobs": jobs}))

        self._routes[self._ask(frames.USAGE, b"", None, 0)].answered = answer
