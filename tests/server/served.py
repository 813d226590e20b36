"""The application on a real uvicorn, in a thread, asked over loopback."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import httpx
import uvicorn

from tests.waiting import wait_until
from workbench.server.app import create_app
from workbench.server.serving import listen
from workbench.transcripts import HostPlatform

TOKEN = "a-token-of-thirty-two-characters-or-more"


@dataclass(frozen=True)
class Served:
    """Where it listens, and who asks with the token."""

    url: str
    client: httpx.Client
    stranger: httpx.Client
    """One without the token."""

    def get(self, path: str, **options: object) -> httpx.Response:
        return self.client.get(path, **options)  # type: ignore[arg-type]

    def told(self, path: str, **params: object) -> object:
        """The JSON of an answer that has to be one."""
        response = self.get(path, params=params or None)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, path: str, status: int, **params: object) -> dict[str, str]:
        """The error of an answer that has to be one, by its three fields."""
        response = self.get(path, params=params or None)
        assert response.status_code == status, response.text
        error = response.json()["error"]
        assert error.keys() == {"code", "message", "hint"}
        assert error["message"].endswith(".") or ": " in error["message"]
        assert "Traceback" not in response.text
        return error  # type: ignore[no-any-return]

    def events(self, path: str, **params: object) -> list[tuple[str, str]]:
        """All events of a stream: their names and data."""
        headers = {"accept": "text/event-stream"}
        with self.client.stream("GET", path, params=params or None, headers=headers) as response:  # type: ignore[arg-type]
            assert response.headers["content-type"].startswith("text/event-stream")
            return list(parsed(response.iter_lines()))


def parsed(lines: Iterator[str]) -> Iterator[tuple[str, str]]:
    """The events of a stream's lines."""
    name = data = ""
    for line in lines:
        if line.startswith("event:"):
            name = line[6:].strip()
        elif line.startswith("data:"):
            data += line[5:].strip()
        elif not line and name:
            yield name, data
            name = data = ""


@contextlib.contextmanager
def serving(platform: HostPlatform, name: str = "") -> Iterator[Served]:
    """The application over a platform, for the while."""
    with listen("127.0.0.1", 0) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        app = create_app(platform, token=TOKEN, name=name)
        config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            wait_until(lambda: server.started, "the server listens")
            headers = {"authorization": f"Bearer {TOKEN}"}
            with (
                httpx.Client(base_url=url, headers=headers, timeout=120, trust_env=False) as client,
                httpx.Client(base_url=url, timeout=120, trust_env=False) as stranger,
            ):
                yield Served(url, client, stranger)
        finally:
            server.should_exit = True
            thread.join()
