"""What to ask ripgrep, so that a search by ours need only look at the files it names: all that could match, and then some.

Its rules differ from ours in what is text, what a line is, what is ignored and what an expression means. So it only
sorts out: what it's asked for matches at least wherever ours does, in any file at all, and ours decides.
"""

from __future__ import annotations

import re

_SHELL = 'ulimit -c 0; ulimit -d 1048576; cd -- "$0" && exec "$@"'
"""A line without an end is held in memory whole; so much of it, in KiB."""

_LONGEST = 4096
"""Bytes of a pattern: a longer one isn't for a command line."""

_OPTIONS = (
    "--no-config",
    "--no-ignore",
    "--hidden",
    "--text",
    "--encoding=none",
    "--no-unicode",
    "--no-mmap",
    "--no-messages",
    "--color=never",
    "--files-with-matches",
    "--null",
)

_TOKEN = re.compile(
    rb"""
      (?P<boundary> [\^$] | \\[bBAZ] )
    | (?P<set>      \\[dDwWsS] )
    | (?P<hex>      \\x(?P<digits>[0-9A-Fa-f]{2}) )
    | (?P<escaped>  \\(?P<byte>[^A-Za-z0-9]) )
    | (?P<members>  \[ \^?+ (?: [^\]\\\[] | \\[^A-Za-z0-9] | \\[dDwWsS] )+ \] )
    | (?P<group>    \( (?! \? ) | \(\?: | \) | \| | \. )
    | (?P<repeated> (?: [*+?] | \{[0-9]+ (?: , [0-9]* )? \} ) \?? (?! [*+?{] ) )
    | (?P<plain>    [^\\\[(*+?{] | \{ (?! [0-9,] ) )
    """,
    re.VERBOSE | re.DOTALL,
)
_MEMBER = re.compile(rb"\\[dDwWsS]|\\?+(.)(?:-\\?+(.))?", re.DOTALL)
_GLOB = re.compile(rb"[A-Za-z0-9._/-]+")


def expression(pattern: bytes, *, literal: bool, ignore_case: bool) -> str | None:
    """An expression of ripgrep's that matches in every line in which `pattern` (Python's, over bytes) does, and at NULs.

    None where it isn't sure: for what is very long, and whatever isn't made of characters, sets, groups, alternatives
    and repetitions. What only says where a match may stand is left out, since a line may be searched in pieces.
    """
    if len(pattern) > _LONGEST:
        return None
    translated = "".join(map(_byte, pattern)) if literal else _translated(pattern)
    if translated is None:
        return None
    return f"{'(?i)' if ignore_case else ''}(?:{translated})|\\x00"


def command(executable: str, expression: str, directory: bytes, left_out: list[bytes]) -> tuple[bytes, ...]:
    """What to run for the files below a directory (relative to the current one) in which the expression matches.

    Directories `left_out`, relative to it, aren't entered, where that can be said. With an exit code of 0 or 1 its
    output is for `files`; with any other nothing is known.
    """
    globs = [b"--glob=!/" + path + b"/" for path in left_out if _GLOB.fullmatch(path)]
    options = [option.encode() for option in _OPTIONS]
    below = b"./" + directory
    return (b"/bin/sh", b"-c", _SHELL.encode(), below, executable.encode(), *options, *globs, b"-e",
            expression.encode(), b"--", b"./")  # fmt: skip


def files(output: bytes) -> list[bytes]:
    """The paths that it printed, relative to the directory."""
    return [path.removeprefix(b"./") for path in output.split(b"\0") if path]


def _translated(pattern: bytes) -> str | None:
    pieces: list[str] = []
    at = 0
    while at < len(pattern):
        token = _TOKEN.match(pattern, at)
        if token is None:
            return None
        at = token.end()
        if not token["boundary"]:
            pieces.append(_piece(token))
    return "".join(pieces)


def _piece(token: re.Match[bytes]) -> str:
    if token["members"]:
        return _members(token["members"])
    if token["hex"]:
        return _byte(int(token["digits"], 16))
    if token["escaped"]:
        return _byte(token["byte"][0])
    if token["plain"]:
        return _byte(token["plain"][0])
    return token[0].decode("ascii")


def _members(text: bytes) -> str:
    negated = text[1:2] == b"^"
    pieces = []
    for member in _MEMBER.finditer(text[1 + negated : -1]):
        first, last = member[1], member[2]
        if first is None:
            pieces.append(member[0].decode("ascii"))
        else:
            pieces.append("-".join(_hexadecimal(end[0]) for end in (first, last) if end is not None))
    return f"[{'^' if negated else ''}{''.join(pieces)}]"


def _byte(byte: int) -> str:
    return chr(byte) if bytes((byte,)).isalnum() else _hexadecimal(byte)


def _hexadecimal(byte: int) -> str:
    return f"\\x{byte:02x}"
