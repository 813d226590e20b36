"""Whether a command may reach a host: by the rules it was given, or since somebody who was asked says so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from workbench.sandbox.egress import hosts
from workbench.sandbox.egress.relay import HttpRefusal

_MOST_QUESTIONS = 32

YES, NO, ALWAYS = "yes", "no", "always"


@dataclass(slots=True)
class _Question:
    answered: anyio.Event = field(default_factory=anyio.Event)
    allowed: bool = False


class Permission:
    """What one command and those it started may reach."""

    def __init__(
        self,
        allowed: tuple[str, ...],
        *,
        ask: Callable[[str], None] | None = None,
        remember: Callable[[str], None] | None = None,
    ) -> None:
        """`allowed` are rules as `HostRule.parse` takes them.

        `ask` puts a question, whether a place (`host:port`) is allowed, which `answer` answers, at any time after; without
        it nothing else is allowed. `remember` hears of a place that is always allowed.
        """
        self._rules = [hosts.HostRule.parse(text) for text in allowed]
        self._ask = ask
        self._remember = remember
        self._questions: dict[str, _Question] = {}

    async def require(self, host: hosts.Host, port: int) -> None:
        """Return where a host is allowed, waiting for an answer where one is asked for. Raises HttpRefusal (403)."""
        if any(rule.matches(host, port) for rule in self._rules):
            return
        place = f"{hosts.written(host)}:{port}"
        shown = hosts.written(host) if port in hosts.DEFAULT_PORTS else place
        if self._ask is None:
            raise HttpRefusal(403, f"{place} isn't allowed; `--allow-host {shown}` would")
        question = self._questions.get(place)
        if question is None:
            # Whatever runs inside could go on asking until somebody says yes to be rid of it.
            if len(self._questions) >= _MOST_QUESTIONS:
                raise HttpRefusal(403, f"{place} isn't allowed, and too much has been asked already")
            question = self._questions[place] = _Question()
            self._ask(place)
        await question.answered.wait()
        if not question.allowed:
            raise HttpRefusal(403, f"{place} isn't allowed: that was the answer")

    def stop_asking(self) -> None:
        """Nobody is there any more: what wasn't answered is refused, and nothing else is asked."""
        self._ask = None
        for place in self._questions:
            self.answer(place, NO)

    def answer(self, place: str, answer: str) -> None:
        """What somebody says to a question; it holds for the rest of the command."""
        question = self._questions.get(place)
        if question is None or question.answered.is_set():
            return
        question.allowed = answer in (YES, ALWAYS)
        question.answered.set()
        if answer == ALWAYS and self._remember is not None:
            self._remember(place)
