"""Questions to somebody at a terminal, each answered by a key and Enter, as `git add -p` asks them."""

from __future__ import annotations

import errno
import os
import sys
from dataclasses import dataclass

import anyio

from workbench.cli import output

_WORDS = {"yes": "y", "no": "n", "quit": "q", "exit": "q", "help": "?"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A key, and what was typed after it. Another word than a key's is no key: `commit` says nothing to anybody."""

    key: str
    argument: str = ""


class Prompt:
    """Asks on standard output, reads from standard input."""

    def __init__(self) -> None:
        self._waiting = b""

    async def ask(self, question: str) -> Answer | None:
        """The answer to a question, None at the end of the input. An empty line is an answer without a key.

        A cancellation comes through while nobody answers.
        """
        line = await self.line(question)
        if line is None:
            return None
        line = line.strip()
        if line.startswith("/"):
            return Answer("/", line[1:].strip())
        key, _, argument = line.partition(" ")
        return Answer(_WORDS.get(key.lower(), key), argument.strip())

    async def line(self, question: str) -> str | None:
        """A whole line, None at the end of the input."""
        print(output.cyan(question), end=" ", flush=True)
        while b"\n" not in self._waiting:
            try:
                await anyio.wait_readable(sys.stdin.fileno())
            except anyio.get_cancelled_exc_class():
                print()
                raise
            try:
                data = os.read(sys.stdin.fileno(), 65536)
            except OSError as error:
                if error.errno != errno.EIO:
                    raise
                data = b""  # a terminal that was closed
            if not data:
                print()
                return None
            self._waiting += data
        line, _, self._waiting = self._waiting.partition(b"\n")
        return line.decode(errors="replace")
