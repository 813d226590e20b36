"""What a run may spend."""

from __future__ import annotations

from workbench.protocol.messages import Usage
from workbench.protocol.runs import Budget


class Spending:
    """Adds up what a run uses, next to what its session had used before.

    Of a call whose price is unknown the tokens count, but no dollars: a limit in dollars then holds for the known part.
    """

    def __init__(self, budget: Budget | None, session: Usage) -> None:
        self._budget = budget or Budget()
        self._session = session
        self._known_usd = 0.0
        self.usage = Usage()
        self.unknown_price = False

    def add(self, usage: Usage) -> None:
        """Count one model call."""
        self.usage += usage
        self._known_usd += usage.cost_usd or 0.0
        self.unknown_price |= usage.cost_usd is None

    @property
    def unenforceable(self) -> bool:
        """Whether there is a limit in dollars, and calls whose price is unknown."""
        return self.unknown_price and (self._budget.run_usd is not None or self._budget.session_usd is not None)

    def exceeded(self) -> str | None:
        """What limit has been reached, in a sentence; None where none has."""
        run, session = _tokens(self.usage), _tokens(self._session)
        usd = self._session.cost_usd or 0.0
        for limit, spent, what in (
            (self._budget.run_usd, self._known_usd, "dollars of this run"),
            (self._budget.session_usd, self._known_usd + usd, "dollars of this session"),
            (self._budget.run_tokens, run, "tokens of this run"),
            (self._budget.session_tokens, run + session, "tokens of this session"),
        ):
            if limit is not None and spent >= limit:
                return f"The budget of {_plain(limit)} {what} is spent."
        return None


def _tokens(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens


def _plain(limit: float) -> str:
    """As a person writes it: never 3e-05, nor 1e+06."""
    return f"{limit:,.6f}".rstrip("0").rstrip(".")
