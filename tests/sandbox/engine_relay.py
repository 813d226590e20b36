"""The engine's socket once more, with somebody in between who sees each request, and can kill who made it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.waiting import wait_until
from workbench.sandbox.engine import find_socket

_RANDOM = re.compile(r"[0-9a-f]{16,}")
_NAME = re.compile(r"workbench-[0-9a-f]{16}")


class EngineRelay:
    """Passes requests on to the engine; `host` is what DOCKER_HOST has to be."""

    def __init__(self, path: str) -> None:
        self.host = f"unix://{path}"
        self.requests: list[str] = []
        """What other processes asked for that changes something, without what is random in it; and the first of what
        went over each stream, to it (DATA) and from it (ANSWER)."""
        self.names: set[str] = set()
        """The sandboxes that they named."""
        self.killed = threading.Event()
        self._engine = find_socket({})
        self._kill_at = ""
        self._under_way: set[socket.socket] = set()
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def kill_at(self, request: str) -> None:
        """Kill whoever next makes this request (see `requests`) as soon as the engine has it."""
        self._kill_at = request
        self.killed.clear()

    def until_quiet(self) -> None:
        """Wait until the engine is done with whatever it was asked."""
        wait_until(lambda: not self._under_way, "the engine has answered")

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._under_way.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        pid = struct.unpack("3i", near.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
        with near, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as far:
            far.connect(self._engine)
            head = b""
            while b"\r\n" not in head and (piece := near.recv(65536)):
                head += piece
            far.sendall(head)
            # Some only look who listens.
            asked = _told(head) if head and pid != os.getpid() else ""
            if asked:
                self.names.update(_NAME.findall(head.decode("latin-1")))
                self._step(asked, pid)
            stream = asked.removeprefix("POST ") if asked.endswith("/attach") else ""
            if stream:
                # That of a container which never starts lasts as long as the container.
                self._under_way.discard(near)
            up = threading.Thread(target=self._copy, args=(near, far, pid, [f"DATA {stream}"] if stream else []))
            up.start()
            # What comes back first is the engine's own answer.
            self._copy(far, near, pid, ["", f"ANSWER {stream}"] if stream else [])
            up.join()
        self._under_way.discard(near)

    def _step(self, step: str, pid: int) -> None:
        self.requests.append(step)
        if step == self._kill_at:
            self._kill_at = ""
            # First: whoever waits for its end looks here next.
            self.killed.set()
            os.kill(pid, signal.SIGKILL)

    def _copy(self, source: socket.socket, target: socket.socket, pid: int, steps: list[str]) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
                if steps and (step := steps.pop(0)):
                    self._step(step, pid)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One end has gone: so does the other.
            for end in (source, target):
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)


def _told(head: bytes) -> str:
    """A request that changes something, without what is random in it, else nothing."""
    method, target = head.decode("latin-1").split(" ", 2)[:2]
    path = target.partition("/v")[2].partition("/")[2].partition("?")[0]
    if method not in ("POST", "DELETE"):
        return ""
    named = re.search(r'[?&]name=([^& ]*)|\r\n\r\n\{"Name": "([^"]*)"', head.decode("latin-1"))
    name = f" {named[1] or named[2]}" if named else ""
    return _RANDOM.sub("*", f"{method} {path}{name}")


@contextmanager
def engine_relay() -> Iterator[EngineRelay]:
    """A relay before the engine that is found here."""
    # Not below pytest's own directory: a socket's path must be short.
    with tempfile.TemporaryDirectory(prefix="wb-relay-") as directory:
        relay = EngineRelay(str(Path(directory, "engine.sock")))
        try:
            yield relay
        finally:
            relay.close()
