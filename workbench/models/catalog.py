"""What is known of models: context windows, prices, whether they think. Unknown stays unknown.

`catalog.json` is the data, with its date; a person's `[models."provider/name"]` in config.toml goes before it.
"""

from __future__ import annotations

import functools
import json
import re
from importlib import resources
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from workbench.protocol.messages import Usage

# A dated or moving name of a model is that model.
_VERSION = re.compile(r"[-@](latest|\d{8}|\d{4}-\d{2}-\d{2}|\d{3})$")


class Prices(BaseModel):
    """US dollars for a million tokens; a cache price None is that of any other input."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    cache_read: float | None = Field(default=None, ge=0)
    cache_write: float | None = Field(default=None, ge=0)
    cache_write_1h: float | None = Field(default=None, ge=0)


class LongPrices(Prices):
    """What the whole request costs where its input is `above` so many tokens."""

    above: int


class ModelFacts(BaseModel):
    """What is known of one model; None is unknown.

    `thinking` is how an older model of a provider with two ways takes it: by `budget`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    label: str | None = None
    context_window: int | None = Field(default=None, gt=0)
    supports_tools: bool | None = None
    supports_reasoning: bool | None = None
    thinking: Literal["budget"] | None = None
    prices: Prices | None = None
    long: tuple[LongPrices, ...] = ()

    def cost(self, usage: Usage, *, hour_writes: int = 0) -> float | None:
        """What it costs in US dollars, None where the prices aren't known; `hour_writes` were cached for an hour."""
        prices = self.prices
        for longer in self.long:
            if usage.input_tokens > longer.above:
                prices = longer
        if prices is None:
            return None
        read, write = usage.cache_read_tokens, usage.cache_write_tokens
        plain = max(0, usage.input_tokens - read - write)
        read_price = prices.input if prices.cache_read is None else prices.cache_read
        write_price = prices.input if prices.cache_write is None else prices.cache_write
        hour_price = write_price if prices.cache_write_1h is None else prices.cache_write_1h
        total = hour_writes * (hour_price - write_price)
        total += plain * prices.input + read * read_price + write * write_price + usage.output_tokens * prices.output
        return total / 1e6


UNKNOWN = ModelFacts()


class Catalog(BaseModel):
    """The data file: facts by `provider/name`, as of `date`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    date: str
    source: str
    models: dict[str, ModelFacts]


@functools.cache
def catalog() -> Catalog:
    """The catalog that comes with this version."""
    text = resources.files("workbench.models").joinpath("catalog.json").read_text(encoding="utf-8")
    return Catalog.model_validate(json.loads(text))


def facts_of(id: str) -> ModelFacts:
    """What the catalog says of `provider/name`; of a router's `router/vendor/name` but the prices, which are its own."""
    models = catalog().models
    for name in (id, _VERSION.sub("", id), _dashed(id), _VERSION.sub("", _dashed(id))):
        if name in models:
            return models[name]
    _, _, rest = id.partition("/")
    vendor = {"google": "gemini"}.get(rest.partition("/")[0], rest.partition("/")[0])
    if "/" not in rest or vendor == id.partition("/")[0]:
        return UNKNOWN
    found = facts_of(f"{vendor}/{rest.partition('/')[2]}")
    return found.model_copy(update={"prices": None, "long": ()})


def _dashed(id: str) -> str:
    provider, _, name = id.partition("/")
    return f"{provider}/{name.replace('.', '-')}"
