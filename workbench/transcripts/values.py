"""Taking values out of records that somebody else wrote, of which nothing is certain."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from pydantic_core import from_json

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_BOM = b"\xef\xbb\xbf"
_SPACE = " \t\r\n\0\ufeff"
_TIME = re.compile(
    rb'(?<!\\)"(?:timestamp|lastUpdated|ts|time|updated_at|updatedAt)"\s*:\s*("[^"\\]{10,40}"|[0-9.]{9,20})'
)
MAX_TEXT = 32_768


def mapping(value: object) -> dict[str, Any]:
    """The object itself, {} for anything else."""
    return value if isinstance(value, dict) else {}


def items(value: object) -> list[Any]:
    """The array itself, [] for anything else."""
    return value if isinstance(value, list) else []


def string(value: object) -> str:
    """The string itself, "" for anything else."""
    return value if isinstance(value, str) else ""


def is_name(text: str) -> bool:
    """Whether a text is a name in a directory, and no way out of it."""
    return text not in ("", ".", "..") and "/" not in text and "\0" not in text


def named(value: object) -> str | None:
    """A string that says something, else None."""
    return value if isinstance(value, str) and value else None


def count(value: object) -> int:
    """A number of things: what isn't a finite number, or is below 0, is 0."""
    if isinstance(value, int):
        return int(value) if value > 0 else 0
    return max(0, int(value)) if isinstance(value, float) and math.isfinite(value) else 0


def money(value: object) -> float | None:
    """An amount in USD, None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        amount = float(value)
    except OverflowError:
        return None
    return amount if math.isfinite(amount) and amount >= 0 else None


def moment(value: object) -> datetime | None:
    """A time in UTC, from ISO 8601 or from seconds, milliseconds or microseconds since 1970; None where it is none."""
    if isinstance(value, str):
        return _moment_of(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        return None
    try:
        return _EPOCH + timedelta(seconds=value / (1 if value < 1e11 else 1e3 if value < 1e14 else 1e6))
    except (ValueError, OverflowError):
        return None


def _moment_of(text: str) -> datetime | None:
    try:
        if text[4:5] != "-":
            if not text[:1].isdigit():
                return None
            if len(text) > 8 and text.isdigit():
                return moment(int(text))
        said = datetime.fromisoformat(text)
        return said if said.tzinfo is UTC else said.replace(tzinfo=UTC) if said.tzinfo is None else said.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def last_moment_in(data: bytes) -> datetime | None:
    """The latest time that a piece of JSON text names, cut as it may be."""
    found = (moment(_parsed_time(match[1])) for match in _TIME.finditer(data))
    return max((time for time in found if time is not None), default=None)


def _parsed_time(text: bytes) -> object:
    if text.startswith(b'"'):
        return text[1:-1].decode("utf-8", "replace")
    try:
        return float(text)
    except ValueError:
        return None


def without_surrogates(value: Any) -> Any:
    """The same value with U+FFFD for half of a surrogate pair, which no output can carry."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [without_surrogates(each) for each in value]
    if isinstance(value, dict):
        return {without_surrogates(key): without_surrogates(each) for key, each in value.items()}
    return value


# Of what a record says little is said again, but for its keys.
parse_fast = partial(from_json, cache_strings="keys")
"""One JSON value, of text that is whole and in order. Raises ValueError where it isn't."""


def parse(data: bytes) -> Any:
    """One JSON value, decoded as far as it is UTF-8. Raises ValueError where the text isn't exactly one."""
    try:
        return from_json(data)
    except ValueError:
        text = data.removeprefix(_BOM).decode("utf-8", "replace").strip(_SPACE)
        try:
            return without_surrogates(json.loads(text))
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def parse_all(data: bytes) -> Iterator[tuple[Any, int, int]]:
    """The JSON values that stand on one line, each with its place and length in bytes.

    Raises ValueError where the line, or what follows a value, is none.
    """
    try:
        yield from_json(data), 0, len(data)
        return
    except ValueError:
        pass
    decoder = json.JSONDecoder()
    text = data.decode("utf-8", "replace")
    # Places are only right in text whose bytes were UTF-8; else the whole line is each value's place.
    exact = "\ufffd" not in text
    at = 0
    while True:
        while at < len(text) and text[at] in _SPACE:
            at += 1
        if at == len(text):
            return
        try:
            value, end = decoder.raw_decode(text, at)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        place = (len(text[:at].encode()), len(text[at:end].encode())) if exact else (0, len(data))
        yield without_surrogates(value), *place
        at = end


def parse_partial(data: bytes) -> Any:
    """What can be told of a value that is cut somewhere; None where that is nothing."""
    data = data.removeprefix(_BOM).lstrip()
    for cut_bytes in range(4):  # the last character may be cut too
        try:
            return from_json(data[: len(data) - cut_bytes], allow_partial="trailing-strings")
        except ValueError:
            continue
    return None


def cut(text: str, length: int) -> str:
    """The first so many characters, with an ellipsis as the last where there are more."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def block_text(content: object, *kinds: str) -> str:
    """The text of a message's content: a string, or blocks of which those of the named kinds (all: none) carry text."""
    if isinstance(content, str):
        return content
    texts = []
    for block in items(content):
        if isinstance(block, str):
            texts.append(block)
        elif isinstance(block, dict) and (not kinds or block.get("type") in kinds):
            texts.append(string(block.get("text")))
    return "\n".join(filter(None, texts))
