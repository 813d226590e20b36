"""A model provider on this machine: a real HTTP server that answers from a script, in every wire format."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Literal, Self

from workbench.testing.model_formats import Event, Format, StubReply, encoded, format_of

_KEY_HEADERS = ("authorization", "x-api-key", "x-goog-api-key", "api-key")
_POLL_SECONDS = 0.02
_SENT_AT_ONCE = 1 << 16


@dataclass(frozen=True, slots=True)
class StubRequest:
    """A request that came; header names are in lower case, and `body` is the JSON of it, None without one."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    data: bytes


class StubModelServer:
    """Answers requests in turn from a script of replies, over real sockets of the loopback address.

    Which wire format a request is of, and whether it asks for a stream, the server sees by itself: Chat Completions,
    Responses, Messages or Gemini; `GET .../models` lists `models`. ::

        with StubModelServer(StubReply(text="Hello")) as stub:
            client = openai.OpenAI(base_url=f"{stub.url}/v1", api_key="any")

    A request for which no reply is left gets status 500; replies that nobody asked for are an AssertionError at the end.
    """

    def __init__(
        self,
        *replies: StubReply,
        key: str | None = None,
        repeat: bool = False,
        answer: Callable[[StubRequest], StubReply | None] | None = None,
        models: Sequence[str] = ("m",),
        host: Literal["127.0.0.1", "::1"] = "127.0.0.1",
    ) -> None:
        """With a `key`, requests without it get 401 and hear what they sent; `repeat` gives the last reply for ever.

        With `answer` there is no script: it's called with one request at a time, and None is no reply. So conversations
        that go on side by side can be told apart by what was said in them.
        """
        self.requests: list[StubRequest] = []
        self._replies = list(replies)
        self._key = key
        self._repeat = repeat
        self._answer = answer
        self._models = tuple(models)
        self._host = host
        self._lock = threading.Lock()
        self._released = threading.Event()
        self._closing = threading.Event()
        self._connections: set[socket.socket] = set()
        self._server: _Server | None = None

    def __enter__(self) -> Self:
        kind = _Server if self._host == "127.0.0.1" else _ServerOfSix
        self._server = kind((self._host, 0), _Handler)
        self._server.stub = self
        threading.Thread(target=self._server.serve_forever, args=(_POLL_SECONDS,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        server, self._server = self._server, None
        assert server is not None
        self._closing.set()
        server.shutdown()
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        server.server_close()
        if kind is None and not self._repeat:
            assert not self._replies, f"nobody asked for {len(self._replies)} of the replies"

    @property
    def url(self) -> str:
        """Where it listens, without a path."""
        assert self._server is not None
        host = self._host if self._host == "127.0.0.1" else f"[{self._host}]"
        return f"http://{host}:{self._server.server_port}"

    @property
    def open_connections(self) -> int:
        """How many connections are open at this moment."""
        with self._lock:
            return len(self._connections)

    def release(self) -> None:
        """Let every reply go on that waits, or will."""
        self._released.set()

    def _opened(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)

    def _closed(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def _next(self, request: StubRequest) -> StubReply | None:
        with self._lock:
            self.requests.append(request)
            if self._answer is not None:
                return self._answer(request)
            if self._repeat and len(self._replies) == 1:
                return self._replies[0]
            return self._replies.pop(0) if self._replies else None

    def _held(self, connection: socket.socket) -> bool:
        """Wait to be released; False where the client has gone, or the server goes."""
        while not self._released.is_set():
            if self._closing.is_set():
                return False
            readable, _, _ = select.select([connection], [], [], _POLL_SECONDS)
            if readable and not connection.recv(1, socket.MSG_PEEK):
                return False
        return True


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = True
    request_queue_size = 128
    stub: StubModelServer

    def process_request(self, request: Any, client_address: Any) -> None:
        self.stub._opened(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.stub._closed(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that leaves in the middle is no fault of the server's."""


class _ServerOfSix(_Server):
    address_family = socket.AF_INET6


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        request = self._read()
        if not self._is_allowed(request):
            return
        names = self.server.stub._models
        if "x-goog-api-key" in request.headers:
            self._answer(200, {"models": [{"name": f"models/{name}"} for name in names]})
        else:
            self._answer(200, {"object": "list", "data": [{"id": name, "object": "model"} for name in names]})

    def do_POST(self) -> None:
        request = self._read()
        format = format_of(request.path)
        if not self._is_allowed(request):
            return
        if format is None:
            self._answer(404, {"error": {"message": f"There's nothing at {request.path}."}})
            return
        reply = self.server.stub._next(request)
        if reply is None:
            self._answer(500, format.failure(500, "The script of the stub has ended."))
        elif reply.body is not None or reply.status != 200:
            body = reply.body
            if body is None:
                body = json.dumps(format.failure(reply.status, reply.text or "It failed.")).encode()
            self._send(reply, [body], {"Content-Type": "application/json", **reply.headers})
        elif request.body.get("stream") or "streamGenerateContent" in request.path:
            self._stream(reply, self._events(format, reply, request.body))
        else:
            body = json.dumps(format.whole(reply, request.body)).encode()
            self._send(reply, [body], {"Content-Type": "application/json", **reply.headers})

    def _events(self, format: Format, reply: StubReply, body: Any) -> list[Event]:
        events = format.stream(reply, body)
        if reply.edit is not None:
            events = reply.edit(events)
        if reply.error is not None:
            events = [*events[: reply.error_after], format.error(reply.error)]
        return events

    def _stream(self, reply: StubReply, events: list[Event]) -> None:
        chunks = [encoded(event, reply.newline) for event in events]
        if reply.comments:
            comment = f": keep-alive{reply.newline * 2}:{reply.newline}".encode()
            chunks = [part for chunk in chunks for part in (comment, chunk)]
        self._send(reply, chunks, {"Content-Type": "text/event-stream", **reply.headers})

    def _send(self, reply: StubReply, chunks: list[bytes], headers: dict[str, str]) -> None:
        self.send_response(reply.status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number, chunk in enumerate([*chunks, b""]):
            if number == reply.hold_after:
                self.wfile.flush()
                if not self.server.stub._held(self.connection):
                    self.close_connection = True
                    return
            if number == reply.cut_after:
                # Without the mark of the end, so that nobody can take it for one.
                self.close_connection = True
                return
            if number == reply.end_after:
                break
            for piece in _cut(chunk, reply.piece):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")

    def _is_allowed(self, request: StubRequest) -> bool:
        key = self.server.stub._key
        sent = next((request.headers[name] for name in _KEY_HEADERS if name in request.headers), "")
        if key is None or sent.removeprefix("Bearer ") == key:
            return True
        format = format_of(request.path)
        message = f"Incorrect API key provided: {sent.removeprefix('Bearer ')}"
        self._answer(401, format.failure(401, message) if format else {"error": {"message": message}})
        return False

    def _read(self) -> StubRequest:
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        body = json.loads(data) if data else None
        return StubRequest(self.command, self.path, headers, body, data)

    def _answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def _cut(data: bytes, size: int) -> Iterable[bytes]:
    size = size or _SENT_AT_ONCE
    return (data[start : start + size] for start in range(0, len(data), size))
