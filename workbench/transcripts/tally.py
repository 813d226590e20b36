"""What models used, added up over sessions: each response once, in however many files it stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic_core import from_json

from workbench.errors import OptionsError
from workbench.protocol.messages import Usage
from workbench.protocol.records import Frozen
from workbench.transcripts.models import SessionUsage, UsedRequest
from workbench.transcripts.values import mapping, money

Grouping = Literal["day", "model", "project", "agent", "session"]
UNKNOWN = "unknown"


class UsageRow(Frozen):
    """What one group used. `cost_usd` is what is known of its costs, `without_cost` how many requests have none."""

    name: str
    sessions: int = 0
    requests: int = 0
    input_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    cost_usd: float = 0.0
    without_cost: int = 0


@dataclass(frozen=True, slots=True)
class Prices:
    """What a token of each model costs, in USD, where an agent recorded no cost."""

    by_model: Mapping[str, Mapping[str, Any]]

    @classmethod
    def parse(cls, data: bytes) -> Prices:
        """From JSON: models by name, each with `input_cost_per_token` and `output_cost_per_token`, and, where they differ,
        `cache_read_input_token_cost` and `cache_creation_input_token_cost`, as LiteLLM publishes them.

        Raises:
            OptionsError: it isn't such.
        """
        try:
            value = from_json(data)
        except ValueError as error:
            raise OptionsError(f"The prices aren't JSON: {error}.") from error
        if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
            raise OptionsError("The prices aren't an object of models.", hint="LiteLLM publishes such a file.")
        return cls(value)

    def cost(self, model: str | None, usage: Usage) -> float | None:
        """What a request cost; None where its model has no price."""
        prices = mapping(self.by_model.get(model or ""))
        read_in, written_out = money(prices.get("input_cost_per_token")), money(prices.get("output_cost_per_token"))
        if read_in is None or written_out is None:
            return None
        read = money(prices.get("cache_read_input_token_cost"))
        written = money(prices.get("cache_creation_input_token_cost"))
        fresh = max(0, usage.input_tokens - usage.cache_read_tokens - usage.cache_write_tokens)
        return (
            fresh * read_in
            + usage.cache_read_tokens * (read_in if read is None else read)
            + usage.cache_write_tokens * (read_in if written is None else written)
            + usage.output_tokens * written_out
        )


class Tally:
    """Adds up sessions, which are given in the order of their starts: what one copied from an older one is the older's.

    `since` and `until` are moments that requests are counted between, the later one excluded.
    """

    def __init__(
        self,
        by: Grouping,
        *,
        prices: Prices | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> None:
        self._by = by
        self._prices = prices
        self._since, self._until = since, until
        self._seen: set[int] = set()
        self._rows: dict[str, dict[str, float]] = {}

    def add(self, session: SessionUsage) -> None:
        """A session's requests, but for those that were counted already."""
        counted: set[str] = set()
        for request in session.requests:
            key = hash((session.ref.agent, request.id))
            at = request.at or session.last_active_at
            if key in self._seen or not self._is_within(at):
                continue
            self._seen.add(key)
            name = self._name(session, request, at)
            row = self._rows.setdefault(name, dict.fromkeys(UsageRow.model_fields, 0))
            if name not in counted:
                counted.add(name)
                row["sessions"] += 1
            self._count(row, request)

    def _is_within(self, at: datetime | None) -> bool:
        if at is None:
            return self._since is None and self._until is None
        return (self._since is None or at >= self._since) and (self._until is None or at < self._until)

    def _count(self, row: dict[str, float], request: UsedRequest) -> None:
        usage = request.usage
        row["requests"] += 1
        row["input_tokens"] += usage.input_tokens
        row["cache_read_tokens"] += usage.cache_read_tokens
        row["cache_write_tokens"] += usage.cache_write_tokens
        row["output_tokens"] += usage.output_tokens
        row["reasoning_tokens"] += usage.reasoning_tokens
        cost = usage.cost_usd
        if cost is None and self._prices is not None:
            cost = self._prices.cost(request.model, usage)
        row["cost_usd"] += cost or 0.0
        row["without_cost"] += cost is None

    def _name(self, session: SessionUsage, request: UsedRequest, at: datetime | None) -> str:
        match self._by:
            case "day":
                return at.astimezone().date().isoformat() if at is not None else UNKNOWN
            case "model":
                return request.model or UNKNOWN
            case "project":
                return session.cwd or UNKNOWN
            case "agent":
                return session.ref.agent
            case "session":
                return f"{session.ref.agent} {session.session_id}"

    def rows(self) -> tuple[UsageRow, ...]:
        """The groups: days in their order, others by what they used."""
        rows = [UsageRow.model_validate({**row, "name": name}) for name, row in self._rows.items()]
        if self._by == "day":
            return tuple(sorted(rows, key=lambda row: row.name))
        return tuple(sorted(rows, key=lambda row: (-row.input_tokens - row.output_tokens, row.name)))


def total(rows: tuple[UsageRow, ...]) -> UsageRow:
    """All groups together; a session that is in several counts in each."""
    fields = [name for name in UsageRow.model_fields if name != "name"]
    return UsageRow.model_validate(
        {"name": "total", **{name: sum(getattr(row, name) for row in rows) for name in fields}}
    )


def day_start(text: str) -> datetime:
    """The local midnight that a day such as 2026-03-01 begins with, or the moment that an ISO time names.

    Raises:
        OptionsError: it is neither.
    """
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        raise OptionsError(f"{text!r} is no day.", hint="Write it like 2026-03-01.") from None
