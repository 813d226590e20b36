"""One command without a terminal in a warm sandbox, over a plain socket: what `job.run` does, without an event loop.

To import one takes as long as all the rest of a warm command.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterator

from workbench.cli import terminal
from workbench.cli.asked import GRACE_MS, LAST_OUTPUT_S, cannot_write, is_written, say_stopping
from workbench.errors import SandboxError
from workbench.protocol.commands import Command, CommandResult
from workbench.sandbox import frames, runtime
from workbench.sandbox.exchange import Exchange

_GREETING_SECONDS = 10.0
_AGAIN_SECONDS = 1.0
_SEND_SECONDS = 30.0
_END_SECONDS = 20.0
_READ_SIZE = 256 << 10
_CREDENTIALS = struct.Struct("3i")
_RUN, _STOP, _INFO = 1, 2, 3
_STREAMS = {frames.STDOUT: 1, frames.STDERR: 2}


class Keeper:
    """A connection to an overlay's keeper, for one command. A context manager that closes it."""

    def __init__(self, stream: socket.socket) -> None:
        """Use `connect`."""
        self._stream = stream
        self._decoder = frames.FrameDecoder()
        self.target = ""
        """Where the sandbox has the workspace."""
        self.written = ""
        """Equal as long as nothing writes to the upper layer, empty while something may."""

    @classmethod
    def connect(cls, overlay_path: str) -> Keeper | None:
        """Connect to the overlay's keeper; None where none answers as it should, which `KeeperClient` deals with."""
        path = runtime.find_socket(overlay_path)
        if path is None:
            return None
        keeper = cls(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        with contextlib.suppress(OSError, SandboxError):
            keeper._stream.settimeout(_GREETING_SECONDS)
            keeper._stream.connect(path)
            credentials = keeper._stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            if _CREDENTIALS.unpack(credentials)[1] in (os.geteuid(), 0) and keeper._greet():
                return keeper
        keeper._stream.close()
        return None

    def __enter__(self) -> Keeper:
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()

    def _greet(self) -> bool:
        self._stream.sendall(frames.encode_json(frames.GREET, 0, {"protocol": frames.KEEPER_PROTOCOL}))
        while data := self._stream.recv(_READ_SIZE):
            for kind, _, payload in self._decoder.feed(data):
                hello = frames.parse(payload)
                if kind != frames.HELLO or hello.get("protocol") != frames.KEEPER_PROTOCOL:
                    return False
                self.target = frames.path(frames.objects(hello["supervisor"], "mounts")[0], "target")
                self.written = str(hello.get("written", ""))
                return True
        return False

    def look_again(self) -> None:
        """Have `written` as it is now; empty where the keeper doesn't say."""
        self.written = ""
        with contextlib.suppress(OSError, SandboxError):
            self._stream.settimeout(_AGAIN_SECONDS)
            self._greet()

    def run(self, command: Command) -> CommandResult:
        """Run a command to its end with this process's streams and signals. Raises as `Job.wait`."""
        with _signals() as signals, terminal.unblocked(1) as stdout, terminal.unblocked(2) as stderr:
            return _Job(self._stream, self._decoder, signals, {frames.STDOUT: stdout, frames.STDERR: stderr}).run(
                command
            )


class _Job:
    def __init__(
        self, stream: socket.socket, decoder: frames.FrameDecoder, signals: int, outputs: dict[bytes, int]
    ) -> None:
        stream.setblocking(False)
        self._stream = stream
        self._decoder = decoder
        self._signals = signals
        self._outputs = outputs
        self._stdin = sys.stdin.fileno()
        self._exchange = Exchange(_RUN)
        self._unsent = bytearray()
        self._input_ended = False
        self._discarding = False
        self._stopped = False
        self._asked: list[signal.Signals] = []
        self._deadline: float | None = None

    def run(self, command: Command) -> CommandResult:
        frames.check_command(command)
        self._unsent += frames.encode_json(frames.RUN, _RUN, frames.command_content(command))
        exchange = self._exchange
        try:
            while not (exchange.over and not exchange.chunks and not self._unsent):
                if self._stopped or not self._turn():
                    self._abandon()
                    return _ended_by(self._asked[-1])
        except BrokenPipeError:
            # Whoever read our output is gone: the command ends as it would have, writing to that pipe itself.
            self._abandon()
            return CommandResult(128 + signal.SIGPIPE, signal=signal.SIGPIPE.name)
        return frames.command_result(exchange.content(), b"", b"")

    def _abandon(self) -> None:
        """End the command, which nobody waits for any more, and see it end."""
        self._discarding = True
        self._kill(discard=True)
        self._deadline = time.monotonic() + _END_SECONDS
        with contextlib.suppress(SandboxError):
            # Where it's gone that was the aim.
            while not self._exchange.over and self._turn():
                pass

    def _turn(self) -> bool:
        """Wait for what comes next, and deal with it; False where the time is up. Raises SandboxError, BrokenPipeError."""
        poll = select.poll()
        poll.register(self._stream, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        poll.register(self._signals, select.POLLIN)
        if self._takes_input():
            poll.register(self._stdin, select.POLLIN)
        blocked = self._outputs[self._exchange.chunks[0][0]] if self._exchange.chunks else -1
        if blocked >= 0:
            poll.register(blocked, select.POLLOUT)
        seconds = _SEND_SECONDS if self._unsent else None
        if self._deadline is not None:
            seconds = max(0.0, self._deadline - time.monotonic())
        ready = dict(poll.poll(None if seconds is None else seconds * 1000))
        if not ready:
            if self._deadline is None:
                raise frames.lost("it doesn't read any more")
            return False
        if self._signals in ready:
            self._heed(os.read(self._signals, 64))
        if self._stdin in ready and self._takes_input():
            self._feed()
        if ready.get(self._stream.fileno(), 0) & ~select.POLLOUT:
            self._receive()
        self._write()
        self._send()
        return True

    def _takes_input(self) -> bool:
        exchange = self._exchange
        ended = self._input_ended or exchange.input_closed or exchange.over
        return not ended and not self._unsent and exchange.input_credit > 0

    def _feed(self) -> None:
        data = os.read(self._stdin, min(frames.CHUNK, self._exchange.input_credit))
        self._exchange.input_credit -= len(data)
        self._input_ended = not data
        self._unsent += frames.encode(frames.DATA, _RUN, data)

    def _receive(self) -> None:
        try:
            data = self._stream.recv(_READ_SIZE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            raise frames.lost("its stream has ended")
        for kind, number, payload in self._decoder.feed(data):
            if number == _RUN:
                self._exchange.receive(kind, payload)
            elif number == _STOP:
                self._stopped = True
            elif number == _INFO:
                self._stop_both(frames.parse(payload))
            elif kind == frames.FAILED:
                error = frames.failure(payload)
                raise error if isinstance(error, SandboxError) else frames.lost(str(error))

    def _write(self) -> None:
        exchange = self._exchange
        while exchange.chunks:
            kind, data = exchange.chunks[0]
            fd = _STREAMS[kind]
            try:
                goes_on = is_written(fd) and not self._discarding
                count = os.write(self._outputs[kind], data) if goes_on else len(data)
            except BlockingIOError:
                return
            except BrokenPipeError:
                raise
            except OSError as error:
                cannot_write(fd, error)
                continue
            del data[:count]
            exchange.taken(count)
            self._unsent += exchange.credit()
            if not data:
                exchange.chunks.popleft()

    def _send(self) -> None:
        if not self._unsent:
            return
        try:
            del self._unsent[: self._stream.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            if not self._exchange.over:
                raise frames.lost("its stream has ended") from None
            self._unsent.clear()

    def _heed(self, numbers: bytes) -> None:
        """^C goes to the command; a second one, and a SIGTERM, end it; the second ^C the sandbox as well, where it is alone."""
        for number in map(signal.Signals, numbers):
            self._asked.append(number)
            if number != signal.SIGINT:
                self._kill(grace_ms=GRACE_MS, first=number)
                # Its last output is waited for, but not for a reader that reads no more.
                self._deadline = time.monotonic() + LAST_OUTPUT_S
            elif self._asked.count(signal.SIGINT) == 1:
                self._unsent += frames.encode(frames.SIGNAL, _RUN, bytes([number]))
            else:
                self._unsent += frames.encode(frames.INFO, _INFO)

    def _stop_both(self, info: frames.Json) -> None:
        """End the command, and the sandbox, where nothing else runs in it."""
        others = sum(frames.number(one, "client") != os.getpid() for one in frames.objects(info, "jobs"))
        say_stopping(others)
        if others:
            self._stopped = True
        else:
            self._kill(discard=True)
            self._unsent += frames.encode_json(frames.STOP, _STOP, {"force": True, "reason": "cancel"})

    def _kill(self, *, grace_ms: int = 0, discard: bool = False, first: int = signal.SIGTERM) -> None:
        content = {"grace_ms": grace_ms, "discard": discard, "reason": "cancel", "signal": int(first)}
        self._unsent += frames.encode_json(frames.KILL, _RUN, content)


def _ended_by(number: signal.Signals) -> CommandResult:
    return CommandResult(128 + number, signal=number.name, ended_by="cancel")


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A descriptor from which the numbers of signals that arrive can be read."""
    ours, theirs = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    handlers = {number: signal.signal(number, lambda *_: None) for number in terminal.ending_signals()}
    before = signal.set_wakeup_fd(theirs, warn_on_full_buffer=False)
    try:
        yield ours
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.close(ours)
        os.close(theirs)
