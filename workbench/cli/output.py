"""How the command line speaks: results to stdout, talk to stderr, nothing of an agent's raw to a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from workbench.cli import terminal
from workbench.errors import CommitError, WorkbenchError

if TYPE_CHECKING:
    from workbench.protocol.records import Frozen

_RED, _GREEN, _CYAN, _BOLD, _DIM, _RESET = "\033[31m", "\033[32m", "\033[36m", "\033[1m", "\033[2m", "\033[0m"
# Controls, formats, line separators, surrogates: invisible, or they make a change look like another one.
_DECEIVING = frozenset(("Cc", "Cf", "Zl", "Zp", "Cs"))


class _Visible(dict[int, str | int]):
    """For `str.translate`: what may be shown as it is, and what stands for the rest; learned character by character."""

    def __missing__(self, code: int) -> str | int:
        import unicodedata  # not needed where all is ASCII text

        shown: str | int = code
        if unicodedata.category(chr(code)) in _DECEIVING:
            shown = f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
        self[code] = shown
        return shown


_ASCII = {code: f"^{chr(code ^ 64)}" for code in (*range(32), 127)} | {code: code for code in (9, 10, *range(32, 127))}
_VISIBLE = _Visible(_ASCII)

# A command that is about one session of one workspace, in a sentence that doesn't say yet which.
_ABOUT_A_SESSION = (
    r"\bworkbench (attempts (?:take|drop)|attempts|attach|chat|checkpoint|commit|diff|discard|exec|fork|kill|log|logs|ls"
    r"|merge|port|ps|redo|refresh|revert|review|rewind|run|shell|status|stop|wait|wrap)\b(?![^`'\"]* (?:-w|--session)\b)"
)
_given: dict[str, str] = {}
"""The options of this call that a command needs, too, to be about the same: there is one call in a process."""


def colours(stream: object = None) -> bool:
    """Whether to use colours: on a terminal, and not against NO_COLOR."""
    stream = sys.stdout if stream is None else stream
    return (
        bool(getattr(stream, "isatty", bool)()) and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    )


def visible(data: bytes) -> str:
    """Text for a terminal: undecodable bytes replaced, control and deceiving characters made visible."""
    return _visible(data.decode(errors="replace"))


def _visible(text: str) -> str:
    return text.translate(_VISIBLE)


def path(name: bytes) -> str:
    """A path for people, on one line whatever is in it; the root is a dot."""
    from workbench.vfs import paths

    return paths.display(name) or "."


def say(sentence: str) -> None:
    """One line of talk on stderr, unless that takes nothing any more."""
    end = "\r\n" if terminal.is_raw(2) else "\n"
    with contextlib.suppress(OSError):
        print(f"workbench: {_visible(sentence)}", end=end, file=sys.stderr, flush=True)


def error(error: WorkbenchError, *, as_json: bool) -> None:
    """An error: on stderr for people, as an object on stdout for programs."""
    hint = error.hint and typed(error.hint)
    if as_json:
        from workbench.protocol.reports import ErrorReport, PathReport

        fields = {"code": error.code, "message": error.message, "hint": hint}
        about = error.paths if isinstance(error, CommitError) else ()
        write_json(ErrorReport(error=fields, paths=tuple(map(PathReport.of, about))))
        return
    bold, reset = (_BOLD, _RESET) if colours(sys.stderr) else ("", "")
    print(f"workbench: {bold}{_visible(error.message)}{reset} [{error.code}]", file=sys.stderr)
    if isinstance(error, CommitError):
        for named in error.paths:
            print(f"  {path(named)}", file=sys.stderr)
    if hint:
        print(f"  {_visible(hint)}", file=sys.stderr)


def text(said: str) -> str:
    """Somebody's text on one line of a terminal: control and deceiving characters made visible."""
    return _visible(said).replace("\n", "^J").replace("\t", "^I")


def write_json(report: Frozen) -> None:
    """A report on stdout; on a terminal, or one that isn't UTF-8, what isn't ASCII is escaped."""
    write_json_text(report.model_dump_json())


def write_schema(report: type[Frozen]) -> None:
    """The JSON schema of a report on stdout; the same model gives the same bytes."""
    print(json.dumps(report.model_json_schema(mode="serialization"), indent=2, sort_keys=True))


def write_json_list(reports: Iterable[Frozen]) -> None:
    """As `write_json`, a list of reports."""
    write_json_texts(report.model_dump_json() for report in reports)


def write_json_texts(texts: Iterable[str]) -> None:
    """As `write_json_list`, of what is JSON already, one by one."""
    if not _takes_unicode():
        write_json_text(f"[{','.join(texts)}]")
        return
    sys.stdout.write("[")
    for number, text in enumerate(texts):
        sys.stdout.write(f",{text}" if number else text)
    print("]", flush=True)


def write_json_text(text: str) -> None:
    """JSON on stdout, as `write_json`."""
    if not _takes_unicode():
        text = json.dumps(json.loads(text), separators=(",", ":"))
    # Programs follow what goes on.
    print(text, flush=True)


def _takes_unicode() -> bool:
    return not sys.stdout.isatty() and sys.stdout.encoding.lower() == "utf-8"


def drop(stream: TextIO) -> None:
    """Let what is still to be written to a standard stream, and all that follows, go nowhere: Python would complain of it."""
    null = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    os.dup2(null, stream.fileno())
    os.close(null)


def write_patch(lines: Iterable[bytes]) -> None:
    """A patch: raw bytes where stdout isn't a terminal, else visible and, where it may be, coloured."""
    if not sys.stdout.isatty():
        sys.stdout.flush()
        for line in lines:
            sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()
        return
    in_colour = colours()
    for chunk in lines:
        for line in chunk.splitlines():
            shown = visible(line)
            print(coloured(shown) if in_colour else shown)


def coloured(line: str) -> str:
    """A line of a patch in the colours that git gives one."""
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


def cyan(line: str) -> str:
    return f"{_CYAN}{line}{_RESET}" if colours() else line


def red(line: str) -> str:
    return f"{_RED}{line}{_RESET}" if colours() else line


def green(line: str) -> str:
    return f"{_GREEN}{line}{_RESET}" if colours() else line


def bold(line: str) -> str:
    return f"{_BOLD}{line}{_RESET}" if colours() else line


def about(workspace: str | None, session: str) -> None:
    """Say what this call is about: the directory that it was given, where it was, and the session."""
    _given.clear()
    if workspace is not None:
        _given["-w"] = _quoted(workspace)
    # Without its name, it would be about the one that is meant by itself.
    if session != _session_by_itself():
        _given["--session"] = _quoted(session)


def command(words: str, session: str) -> str:
    """A command of ours, as it's typed where this one was, for a session of the same workspace."""
    options = {name: value for name, value in _given.items() if name != "--session"}
    if session != _session_by_itself():
        options["--session"] = _quoted(session)
    return " ".join(("workbench", words, *(f"{name} {value}" for name, value in options.items())))


def typed(sentence: str) -> str:
    """A sentence whose commands, such as `workbench diff`, are about what this call is about, when they are typed."""
    import re

    options = "".join(f" {name} {value}" for name, value in _given.items())
    return re.sub(_ABOUT_A_SESSION, lambda found: found[0] + options, sentence)


def _quoted(word: str) -> str:
    import shlex  # not needed where nothing was said

    if word.isprintable():
        return shlex.quote(word)
    escaped = (chr(byte) if chr(byte).isalnum() and byte < 128 else f"\\x{byte:02x}" for byte in os.fsencode(word))
    return f"$'{''.join(escaped)}'"


def _session_by_itself() -> str:
    return os.environ.get("WORKBENCH_SESSION") or "default"


def dollars(amount: float) -> str:
    """`$0.0123`; what is too little to be seen so is said to be less."""
    return "<$0.0001" if 0 < amount < 0.00005 else f"${amount:,.4f}"


def count(number: int, noun: str) -> str:
    """`1 file`, `2 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
