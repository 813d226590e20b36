"""The frames between the host and a sandbox's supervisor, and between the keeper and its clients.

A frame is a header, `!IcI`: the payload's length, the kind, and the id of the exchange it belongs to, then the payload.
Whoever asks picks the id; an exchange begins with a request and ends with RESULT or FAILED.

=============  =========  ==========================================================================================
kind           from       payload
=============  =========  ==========================================================================================
RUN            host       JSON: `argv cwd environment tty rows columns stdin timeout_ms output_limit`, and from a client
                          `detached` (the keeper keeps it, and its output) and `label`
DATA           host       input of a command, or content of a file being written; empty: its end
CREDIT         both       `!I`: so many bytes of this exchange were consumed. Each side starts with WINDOW.
SIGNAL         host       `!B`: a signal for the command's foreground group
RESIZE         host       `!HH`: rows, columns
KILL           host       JSON: `grace_ms` (`signal` first, where it isn't 0), `discard` (its output), `reason`
FREEZE         host       empty; commands, writes and edits wait from its RESULT until the last holder's THAW
THAW           host       `!I`: the id of the FREEZE to end
WRITE          host       JSON: `mount path mode exclusive append`, then DATA
EDIT           host       JSON: `mount path call` (mkdir rmdir unlink symlink rename link chmod utime) and what it takes:
                          `mode target exclusive atime_ns mtime_ns`
READ           host       JSON: `mount path offset length`; answered by STDOUT frames
STAT           host       JSON: `mount path`
COUNTERS       host       empty
USAGE          host       empty; answered by RESULT with `jobs`: the RUN's id, then CPU ms, bytes, processes
CONNECT        host       JSON: `port`, of the loopback address inside; then DATA, answered by STDOUT frames
LISTEN         host       JSON: `socket`, a Unix socket inside, or empty; answered by STDOUT with `port`, until KILL
TUNNEL         host       JSON: `listening connection`; then DATA, answered by STDOUT; an empty one is each way's end
HELLO          sandbox    JSON: the first frame, id 0
STDOUT STDERR  sandbox    output
INPUT_CLOSED   sandbox    empty: the command reads no more
BEGUN          sandbox    `!I`: the command runs, under this process id; only where RUN said `announce`
OPENED         sandbox    `!I`: somebody has connected to the LISTEN of this id, and can be had by TUNNEL
RESULT         sandbox    JSON
FAILED         sandbox    JSON: `code message errno`; with id 0 the whole connection failed
GREET          client     JSON: `protocol`; the first frame to a keeper, answered by HELLO, with the supervisor's own and
                          `written`, equal as long as nothing writes to the layer, empty while something may
INFO           client     empty; answered by RESULT
STOP           client     JSON: `force reason`; answered by RESULT once the sandbox is gone
JOBS           client     empty; answered by RESULT with `jobs`, those that run and those that ended lately
ATTACH         client     JSON: `job follow tail` (lines; null: all); answered by output, then RESULT; takes what RUN takes
LEFT_OUT       keeper     `!Q`: so many bytes of the job's output aren't kept any more
DETACH         client     empty: ends the ATTACH of this id, not the job
END_JOB        client     JSON: `job`, and `signal`, or `grace_ms` and `reason`
ALLOW          client     JSON: what of the network may be reached until KILL, or until the client has gone, or what
                          it started in the background; answered by STDOUT, lines of JSON: `environment`, then `ask`,
                          which DATA answers
=============  =========  ==========================================================================================

The supervisor's frames are untrusted: whatever runs in the sandbox may have taken it over. Sizes are bounded, types are
checked, text is made printable, and what breaks a rule loses the sandbox.
"""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Iterator
from typing import Any

from workbench.errors import CommandError, OptionsError, SandboxError
from workbench.protocol.commands import Command, CommandResult

PROTOCOL = 1
KEEPER_PROTOCOL = 3
"""Of what clients and keepers say to each other. GREET, HELLO and STOP never change, so that any two can part."""

HEADER = struct.Struct("!IcI")
COUNT = struct.Struct("!I")
LONG_COUNT = struct.Struct("!Q")
SIZE = struct.Struct("!HH")
MAX_PAYLOAD = 1 << 20
MAX_ANSWER = 256 << 10
WINDOW = 256 << 10
CHUNK = 64 << 10
MAX_OUTPUT_LIMIT = 16 << 20
MAX_NUMBER = (1 << 63) - 1
HIGHEST_SIGNAL = 64

RUN, DATA, CREDIT, SIGNAL, RESIZE, KILL = b"R", b"D", b"C", b"S", b"Z", b"K"
FREEZE, THAW, WRITE, READ, STAT, COUNTERS, EDIT = b"F", b"T", b"W", b"G", b"L", b"N", b"M"
USAGE, CONNECT = b"U", b"P"
LISTEN, TUNNEL, OPENED = b"l", b"t", b"o"
HELLO, STDOUT, STDERR, INPUT_CLOSED, RESULT, FAILED = b"H", b"O", b"E", b"I", b"X", b"!"
BEGUN = b"B"
GREET, INFO, STOP = b"V", b"A", b"Q"
JOBS, ATTACH, LEFT_OUT, DETACH, END_JOB = b"J", b"Y", b"m", b"y", b"j"
ALLOW = b"a"

_COMMAND_CODES = ("command_not_found", "command_not_executable", "invalid_directory", "spawn_failed")
_SANDBOX_CODES = (
    "sandbox_failed",
    "sandbox_lost",
    "sandbox_busy",
    "job_not_found",
    "keeper_failed",
    "engine_unavailable",
    "backend_unavailable",
    "image_unavailable",
    "disk_full",
)
_HINTS = {
    "command_not_found": "Check its name, and that the sandbox's image has it.",
    "command_not_executable": "Check its mode, its '#!' line and for which machine it was built.",
    "invalid_directory": "Name a directory that exists inside the sandbox.",
    "spawn_failed": "End some of what runs in the sandbox, or raise its limits.",
    "sandbox_busy": "Wait for what runs to end, or stop it.",
}
_TEXT_LIMIT = 1000
_PATH_LIMIT = 4096

Json = dict[str, Any]


def encode(kind: bytes, number: int, payload: bytes = b"") -> bytes:
    """One frame. Raises OptionsError where the payload is over `MAX_PAYLOAD` bytes."""
    if len(payload) > MAX_PAYLOAD:
        raise OptionsError(f"A request of {len(payload)} bytes is more than the {MAX_PAYLOAD} that a sandbox takes.")
    return HEADER.pack(len(payload), kind, number) + payload


def encode_json(kind: bytes, number: int, content: Json) -> bytes:
    """One frame with a JSON payload. Raises OptionsError as `encode`."""
    return encode(kind, number, json.dumps(content).encode())


class FrameDecoder:
    """Takes bytes as they come and gives whole frames; never holds more than one frame and what was just fed."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[bytes, int, bytes]]:
        """Yield kind, id and payload of each frame that `data` completes.

        Raises SandboxError (sandbox_lost) for a frame that claims more than `MAX_PAYLOAD` bytes.
        """
        buffer = self._buffer
        buffer += data
        at = 0
        while len(buffer) - at >= HEADER.size:
            length, kind, number = HEADER.unpack_from(buffer, at)
            if length > MAX_PAYLOAD:
                raise lost(f"it sent a frame of {length} bytes")
            end = at + HEADER.size + length
            if len(buffer) < end:
                break
            with memoryview(buffer) as view:
                payload = bytes(view[at + HEADER.size : end])
            at = end
            yield kind, number, payload
        del buffer[:at]


def lost(reason: str) -> SandboxError:
    """The error for a sandbox that is gone, or has to be taken as gone."""
    return SandboxError(
        f"The sandbox was lost: {reason}.",
        code="sandbox_lost",
        hint="Run the command again, which starts a new sandbox; what was written is kept.",
    )


def parse(payload: bytes) -> Json:
    """The JSON object of an answer. Raises SandboxError (sandbox_lost) where it isn't one, or is too large."""
    if len(payload) > MAX_ANSWER:
        raise lost(f"it sent an answer of {len(payload)} bytes")
    try:
        content = json.loads(payload)
    except (ValueError, RecursionError):
        raise lost("it sent what isn't JSON") from None
    if not isinstance(content, dict):
        raise lost("it sent what isn't a JSON object")
    return content


def number(content: Json, name: str, default: int = 0, *, low: int = 0, high: int = MAX_NUMBER) -> int:
    """A whole number of an answer, `default` where it's missing or null. Raises SandboxError (sandbox_lost)."""
    value = content.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise lost(f"its answer has a wrong {name}")
    return value


def text(content: Json, name: str, limit: int = _TEXT_LIMIT) -> str:
    """A text of an answer, made printable and cut at `limit` characters. Raises SandboxError (sandbox_lost)."""
    value = content.get(name, "")
    if not isinstance(value, str):
        raise lost(f"its answer has a wrong {name}")
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value[:limit])


def path(content: Json, name: str) -> str:
    """A path inside the sandbox, exact: for the sandbox alone, and not printable. Raises SandboxError (sandbox_lost)."""
    value = content.get(name, "")
    if not isinstance(value, str) or len(value) > _PATH_LIMIT:
        raise lost(f"its answer has a wrong {name}")
    return value


def flag(content: Json, name: str) -> bool:
    """A truth value of an answer, False where it's missing. Raises SandboxError (sandbox_lost)."""
    value = content.get(name, False)
    if not isinstance(value, bool):
        raise lost(f"its answer has a wrong {name}")
    return value


def objects(content: Json, name: str, limit: int = 1024) -> list[Json]:
    """A list of objects of an answer. Raises SandboxError (sandbox_lost)."""
    value = content.get(name, [])
    if not isinstance(value, list) or len(value) > limit or not all(isinstance(item, dict) for item in value):
        raise lost(f"its answer has a wrong {name}")
    return value


def portable(path: str) -> str:
    """A string of `os.fsdecode` as the frames carry it: UTF-8 with lone surrogates, whatever the host's locale."""
    return os.fsencode(path).decode("utf-8", "surrogateescape")


def command_content(command: Command) -> Json:
    """A RUN frame's content. Raises OptionsError where no such command can be."""
    try:
        return {
            "argv": [portable(word) for word in command.argv],
            "cwd": portable(command.cwd),
            "environment": {portable(name): portable(value) for name, value in command.environment.items()},
            "tty": command.tty,
            "rows": command.rows,
            "columns": command.columns,
            "stdin": command.stdin or command.tty,
            "timeout_ms": command.timeout_ms,
            "output_limit": command.output_limit,
            "label": portable(command.label),
        }
    except UnicodeEncodeError as error:
        raise OptionsError("The command holds characters that no command can be made of.") from error


def check_command(command: Command) -> None:
    """Raises OptionsError where a number of the command is out of range."""
    if not 0 <= command.output_limit <= MAX_OUTPUT_LIMIT:
        raise OptionsError(f"output_limit is {command.output_limit}, but has to be from 0 to {MAX_OUTPUT_LIMIT}.")
    if command.timeout_ms < 0:
        raise OptionsError(f"timeout_ms is {command.timeout_ms}, but can't be negative.")


def command_result(content: Json, stdout: bytes, stderr: bytes) -> CommandResult:
    """What a RUN exchange's RESULT says. Raises SandboxError (sandbox_lost)."""
    omitted = content.get("omitted", [])
    if not isinstance(omitted, list) or len(omitted) > 2:
        raise lost("its answer has a wrong omitted")
    return CommandResult(
        exit_code=number(content, "exit_code", high=255),
        signal=text(content, "signal", 32),
        timed_out=flag(content, "timed_out"),
        duration_ms=number(content, "duration_ms"),
        stdout=stdout,
        stderr=stderr,
        omitted_bytes=sum(number({"omitted": value}, "omitted") for value in omitted),
        stopped_processes=number(content, "stopped"),
        out_of_memory=flag(content, "out_of_memory"),
        out_of_processes=flag(content, "out_of_processes"),
        tmp_full=flag(content, "tmp_full"),
        home_full=flag(content, "home_full"),
        user_cpu_ms=number(content, "user_cpu_us") // 1000,
        system_cpu_ms=number(content, "system_cpu_us") // 1000,
        memory_peak_bytes=number(content, "memory_peak_bytes"),
        ended_by=text(content, "ended_by", 100),
    )


def result_content(result: CommandResult) -> Json:
    """The other way round, without output: what `command_result` makes a result like this one of."""
    return {
        "exit_code": result.exit_code,
        "signal": result.signal,
        "timed_out": result.timed_out,
        "duration_ms": result.duration_ms,
        "omitted": [result.omitted_bytes],
        "stopped": result.stopped_processes,
        "out_of_memory": result.out_of_memory,
        "out_of_processes": result.out_of_processes,
        "tmp_full": result.tmp_full,
        "home_full": result.home_full,
        "user_cpu_us": result.user_cpu_ms * 1000,
        "system_cpu_us": result.system_cpu_ms * 1000,
        "memory_peak_bytes": result.memory_peak_bytes,
        "ended_by": result.ended_by,
    }


def failure(payload: bytes, path: str = "") -> SandboxError | OptionsError | OSError:
    """The error that a FAILED frame stands for; `path` is what an OSError names."""
    content = parse(payload)
    code, message = text(content, "code", 64), text(content, "message")
    errno = number(content, "errno", high=4095)
    if code == "os_error":
        return OSError(errno, os.strerror(errno), path)
    sentence = message[:1].upper() + message[1:].rstrip(".") + "."
    if code == "invalid_options":
        return OptionsError(sentence)
    if code in _COMMAND_CODES:
        return CommandError(sentence, code=code, hint=_HINTS.get(code))
    code = code if code in _SANDBOX_CODES else "sandbox_failed"
    return SandboxError(sentence, code=code, hint=text(content, "hint") or _HINTS.get(code))


def failure_content(error: SandboxError | OptionsError) -> Json:
    """The other way round: what `failure` makes an error like this one of."""
    return {"code": error.code, "message": error.message, "hint": error.hint or "", "errno": 0}
