"""How the command line speaks: results to stdout, talk to stderr, nothing of an agent's raw to a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable

from workbench.errors import ConflictError, WorkbenchError

_RED, _GREEN, _CYAN, _BOLD, _DIM, _RESET = "\033[31m", "\033[32m", "\033[36m", "\033[1m", "\033[2m", "\033[0m"
_CONTROLS = {code: f"^{chr(code ^ 64)}" for code in (*range(32), 127) if code not in (9, 10)} | {
    code: f"\\x{code:02x}" for code in range(128, 160)
}
# Invisible or direction-changing: they can make a change look like another one.
_DECEIVING = {
    code: f"\\u{code:04x}" for code in (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x206A), 0xFEFF)
}
_VISIBLE = _CONTROLS | _DECEIVING


def colours(stream: object = None) -> bool:
    """Whether to use colours: on a terminal, and not against NO_COLOR."""
    stream = sys.stdout if stream is None else stream
    return (
        bool(getattr(stream, "isatty", bool)()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def visible(data: bytes) -> str:
    """Text for a terminal: undecodable bytes replaced, control and deceiving characters made visible."""
    return data.decode(errors="replace").translate(_VISIBLE)


def say(sentence: str) -> None:
    """One line of talk on stderr."""
    print(f"workbench: {sentence}", file=sys.stderr, flush=True)


def error(error: WorkbenchError, *, as_json: bool) -> None:
    """An error: on stderr for people, as an object on stdout for programs."""
    if as_json:
        from workbench.protocol.reports import ErrorReport

        fields = {"code": error.code, "message": error.message, "hint": error.hint}
        print(ErrorReport(error=fields).model_dump_json())
        return
    bold, reset = (_BOLD, _RESET) if colours(sys.stderr) else ("", "")
    print(f"workbench: {bold}{error.message}{reset} [{error.code}]", file=sys.stderr)
    if isinstance(error, ConflictError):
        for path in error.paths:
            print(f"  {visible(path)}", file=sys.stderr)
    if error.hint:
        print(f"  {error.hint}", file=sys.stderr)


def write_patch(lines: Iterable[bytes]) -> None:
    """A patch: raw bytes where stdout isn't a terminal, else visible and, where it may be, coloured."""
    if not sys.stdout.isatty():
        sys.stdout.flush()
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    coloured = colours()
    for chunk in lines:
        for line in chunk.splitlines():
            shown = visible(line)
            print(_coloured(shown) if coloured else shown)


def _coloured(line: str) -> str:
    if line.startswith(
        ("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "rename ", "similarity", "old mode", "new mode")
    ):
        return f"{_BOLD}{line}{_RESET}"
    for start, colour in (("@@", _CYAN), ("+", _GREEN), ("-", _RED)):
        if line.startswith(start):
            return f"{colour}{line}{_RESET}"
    return line


def dim(line: str) -> str:
    return f"{_DIM}{line}{_RESET}" if colours() else line


def bold(line: str) -> str:
    return f"{_BOLD}{line}{_RESET}" if colours() else line


def count(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
