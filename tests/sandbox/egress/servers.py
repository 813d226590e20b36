"""Servers on the loopback for what goes out of a sandbox: ordinary ones, and ones that misbehave."""

from __future__ import annotations

import http.server
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

HOST = "127.0.0.2"
"""Of the loopback, but none that `no_proxy` names inside."""

Serving = TypeVar("Serving", bound=http.server.HTTPServer)


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers by path; what it was sent is kept in the server's `requests`."""

    protocol_version = "HTTP/1.1"

    def do(self) -> None:
        server: Any = self.server
        length = int(self.headers.get("Content-Length") or 0)
        body = self.rfile.read(length) if length else self._chunked()
        server.requests.append((self.command, self.path, list(self.headers.items()), body))
        getattr(self, "serve_" + self.path.split("?")[0].strip("/").split("/")[0], self.serve_)(body)

    do_GET = do_POST = do_PUT = do_HEAD = do_OPTIONS = do  # noqa: N815  the names that http.server looks for

    def _chunked(self) -> bytes:
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        return body

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def serve_(self, body: bytes) -> None:
        self.answer(b"here")

    def serve_length(self, body: bytes) -> None:
        self.answer(str(len(body)).encode())

    def serve_big(self, body: bytes) -> None:
        self.answer(b"x" * int(self.path.rsplit("/", 1)[1]))

    def serve_redirect(self, body: bytes) -> None:
        self.answer(b"", 302, Location=self.path.split("?", 1)[1])

    def serve_echo(self, body: bytes) -> None:
        """Says back which headers it was sent."""
        text = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
        self.answer(text.encode(), X_Echo=self.headers.get("Authorization", ""))

    def serve_gzip(self, body: bytes) -> None:
        self.answer(b"\x1f\x8b", Content_Encoding="gzip")

    def serve_events(self, body: bytes) -> None:
        """Each event only once the one before was acknowledged by a request to /next."""
        server: Any = self.server
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for number in range(3):
            event = b"data: %d\n\n" % number
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
            self.wfile.flush()
            assert server.acknowledged.acquire(timeout=120)
        self.wfile.write(b"0\r\n\r\n")

    def serve_next(self, body: bytes) -> None:
        server: Any = self.server
        server.acknowledged.release()
        self.answer(b"")

    def serve_dies(self, body: bytes) -> None:
        """Closes in the middle of the body."""
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"only this")
        self.close_connection = True

    def log_message(self, *arguments: object) -> None:
        pass


class Server(http.server.ThreadingHTTPServer):
    """A web server in threads."""

    daemon_threads = True
    request_queue_size = 256

    def __init__(self, host: str = HOST, trust: ssl.SSLContext | None = None) -> None:
        super().__init__((host, 0), Handler)
        self.requests: list[tuple[str, str, list[tuple[str, str]], bytes]] = []
        self.acknowledged = threading.Semaphore(0)
        if trust is not None:
            self.socket = trust.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    @property
    def place(self) -> str:
        return f"{self.server_address[0]!s}:{self.server_address[1]}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Whoever breaks off is what is tested."""


@contextmanager
def serving(server: Serving) -> Iterator[Serving]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def raw_server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server whose every connection is handed to `talk`, in a thread of its own; yields its place."""
    with socket.create_server((HOST, 0)) as listener:
        listener.settimeout(None)
        ended = threading.Event()

        def accept() -> None:
            while not ended.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=serve, args=(connection,), daemon=True).start()

        def serve(connection: socket.socket) -> None:
            with connection:
                try:
                    talk(connection)
                except OSError:
                    return

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        yield f"{HOST}:{listener.getsockname()[1]}"
        ended.set()
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
